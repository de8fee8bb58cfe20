//! In what two requests under one idempotency key differ, as pointers. The earlier one is put together again from what
//! is stored of it; what the stored content does not tell (what was asked for and left to the operator) is kept beside it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::EmailContent;
use crate::fingerprint;
use crate::pointer::Pointer;
use crate::request::{Author, EmailDraft, Recipient, Request, When};
use crate::time::Timestamp;
use crate::words::Channel;

/// More places than this help nobody.
const MOST: usize = 20;

/// What a request asked for that its content and its rows do not tell. Empty for most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// It named its category.
    #[serde(default, skip_serializing_if = "is_false")]
    pub category: bool,
    /// It named its channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// It named its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<AskedFrom>,
    /// When to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<AskedWhen>,
    /// When to expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<AskedWhen>,
    /// Its `ordering_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Its `collapse_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
}

/// How a request named its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedFrom {
    /// As the mailbox that stands in the content.
    Mailbox,
    /// By the name of a sender.
    Sender(String),
}

/// An instant in microseconds or a span in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum AskedWhen {
    At(i64),
    In(u64),
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl From<When> for AskedWhen {
    fn from(when: When) -> Self {
        match when {
            When::At(instant) => Self::At(instant.as_micros()),
            When::In(span) => Self::In(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl From<AskedWhen> for When {
    fn from(asked: AskedWhen) -> Self {
        match asked {
            AskedWhen::At(micros) => Self::At(Timestamp::from_micros(micros)),
            AskedWhen::In(millis) => Self::In(std::time::Duration::from_millis(millis)),
        }
    }
}

impl Asked {
    /// What a request says that has to be kept beside its content.
    pub fn of(request: &Request) -> Self {
        Self {
            category: request.category.is_some(),
            channels: request.channels.clone(),
            from: request.email.from.as_ref().map(|author| match author {
                Author::Mailbox(_) => AskedFrom::Mailbox,
                Author::Sender(name) => AskedFrom::Sender(name.clone()),
            }),
            send: request.send.map(AskedWhen::from),
            expires: request.expires.map(AskedWhen::from),
            ordering_key: request.ordering_key.clone(),
            collapse_key: request.collapse_key.clone(),
        }
    }

    /// The request as it was, but for what never enters its identity.
    pub fn restore(self, category: &str, tags: Vec<String>, recipients: Vec<Recipient>, content: EmailContent) -> Request {
        let EmailContent { from, subject, text, html, reply_to, cc, bcc, also_to, headers, attachments } = content;
        let from = self.from.map(|asked| match asked {
            AskedFrom::Mailbox => Author::Mailbox(from),
            AskedFrom::Sender(name) => Author::Sender(name),
        });
        Request {
            category: self.category.then(|| category.to_owned()),
            channels: self.channels,
            recipients,
            email: EmailDraft { from, subject, text, html, reply_to, cc, bcc, also_to, headers, attachments },
            send: self.send.map(When::from),
            expires: self.expires.map(When::from),
            send_at: None,
            expires_at: None,
            tags,
            metadata: Vec::new(),
            ordering_key: self.ordering_key,
            collapse_key: self.collapse_key,
        }
    }
}

/// Where `request` differs from `earlier`, in the long form of every shorthand; at most 20 places.
pub fn differs(earlier: &Request, request: &Request) -> Vec<String> {
    let form = |request| serde_json::from_slice::<Value>(&fingerprint::canonical(request)).unwrap_or_default();
    let mut places = Vec::new();
    compare(&form(earlier), &form(request), &Pointer::ROOT, request, &mut places);
    places
}

fn compare(earlier: &Value, now: &Value, at: &Pointer<'_>, request: &Request, places: &mut Vec<String>) {
    if earlier == now || places.len() >= MOST {
        return;
    }
    match (earlier, now) {
        (Value::Object(one), Value::Object(other)) if !is_choice(one) && !is_choice(other) => {
            let added = other.keys().filter(|name| !one.contains_key(*name));
            for name in one.keys().chain(added) {
                let absent = Value::Null;
                let pair = (one.get(name).unwrap_or(&absent), other.get(name).unwrap_or(&absent));
                compare(pair.0, pair.1, &at.name(written(name, request)), request, places);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, pair) in one.iter().zip(other).enumerate() {
                compare(pair.0, pair.1, &at.index(index), request, places);
            }
        }
        _ => {
            let place = at.to_string();
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
}

/// A time in its canonical form: one of two members that mean the same field.
fn is_choice(object: &serde_json::Map<String, Value>) -> bool {
    object.len() == 1 && object.keys().all(|name| name == "at_micros" || name == "in_millis")
}

/// The name that callers use for a member of the canonical form.
fn written<'a>(name: &'a str, request: &Request) -> &'a str {
    match (name, request.send, request.expires) {
        ("send", Some(When::In(_)), _) => "send_in",
        ("send", ..) => "send_at",
        ("expires", _, Some(When::In(_))) => "expires_in",
        ("expires", ..) => "expires_at",
        ("content_sha256", ..) => "content",
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{RequestLimits, parse};

    const BODY: &str = r#"{"to": [{"email": "Ada@Example.com", "name": "Ada", "ref": "user_42"}, "bob@example.com"], "category": "receipt",
        "channels": ["email"], "email": {"from": "shop", "subject": "Hello", "text": "It works.", "headers": {"X-A": "1"},
        "attachments": [{"filename": "a.txt", "content_type": "text/plain", "content": "aGVsbG8="}]},
        "tags": ["a"], "send_in": "90s", "expires_in": "10m", "metadata": {"order": "1"}}"#;

    fn request(body: &str) -> Request {
        parse(body.as_bytes(), &RequestLimits::default(), Timestamp::from_millis(1_800_000_000_000)).unwrap()
    }

    /// Through what is stored, as the gateway stores it.
    fn stored(request: &Request) -> Request {
        let asked = serde_json::to_vec(&Asked::of(request)).unwrap();
        let from = match &request.email.from {
            Some(Author::Mailbox(mailbox)) => mailbox.clone(),
            _ => "shop@example.com".parse().unwrap(),
        };
        let content = request.email.clone().into_content(from);
        let asked: Asked = serde_json::from_slice(&asked).unwrap();
        asked.restore(request.category.as_deref().unwrap_or("default"), request.tags.clone(), request.recipients.clone(), content)
    }

    #[test]
    fn what_is_stored_of_a_request_tells_all_of_its_identity() {
        let shorthand = r#"{"to": "ada@example.com", "email": {"subject": "s", "html": "<p>", "from": "A <a@example.com>"}}"#;
        for body in [BODY, shorthand] {
            let request = request(body);
            assert_eq!(fingerprint::canonical(&stored(&request)), fingerprint::canonical(&request));
            assert_eq!(differs(&stored(&request), &request), Vec::<String>::new());
        }
    }

    #[test]
    fn every_difference_is_named_where_the_caller_wrote_it() {
        let first = stored(&request(BODY));
        for (from, to, places) in [
            ("aGVsbG8=", "aGVsbG9v", vec!["/email/attachments/0/content"]),
            ("\"Ada\"", "\"Eve\"", vec!["/to/0/name"]),
            ("bob@", "bobby@", vec!["/to/1/email"]),
            (", \"bob@example.com\"", "", vec!["/to"]),
            ("\"from\": \"shop\", ", "", vec!["/email/from"]),
            ("\"from\": \"shop\"", "\"from\": \"x@example.com\"", vec!["/email/from"]),
            ("\"category\": \"receipt\",", "", vec!["/category"]),
            ("90s", "91s", vec!["/send_in"]),
            ("\"expires_in\": \"10m\"", "\"expires_at\": \"2027-02-01T00:00:00Z\"", vec!["/expires_at"]),
            ("\"X-A\": \"1\"", "\"X-B\": \"1\"", vec!["/email/headers/X-A", "/email/headers/X-B"]),
            ("[\"a\"]", "[\"b\"]", vec!["/tags/0"]),
            ("It works.", "It does not.", vec!["/email/text"]),
            ("\"order\": \"1\"", "\"order\": \"2\"", vec![]),
        ] {
            assert_eq!(differs(&first, &request(&BODY.replace(from, to))), places, "{to}");
        }
    }
}
