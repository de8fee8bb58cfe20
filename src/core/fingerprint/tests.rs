//! One request in many spellings, and requests that differ in one thing.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::request::{self, RequestLimits};
use crate::time::Timestamp;

fn canonical_of(body: &str) -> String {
    let now: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let request = request::parse(body.as_bytes(), &RequestLimits::default(), now).unwrap_or_else(|err| panic!("{body}: {err:?}"));
    String::from_utf8(canonical(&request)).unwrap()
}

#[test]
fn the_canonical_form_of_version_1_stays_what_it_is() {
    let body = r#"{"to": [{"email": "Ada@EXAMPLE.com", "name": "Ada", "ref": "user_42", "metadata": {"a": "b"}}], "category": "receipt",
        "email": {"from": "Shop <shop@example.com>", "subject": "Your \"receipt\" ü", "text": "a\nb", "html": "<p>", "reply_to": "r@example.com",
                  "cc": ["c@example.com"], "bcc": "b@example.com", "also_to": {"email": "t@example.com", "name": "T"},
                  "headers": {"X-B": "2", "X-A": "1"},
                  "attachments": [{"filename": "a.txt", "content_type": "text/plain", "content": "aGk=", "content_id": "c"}]},
        "channels": ["email"], "tags": ["b", "a"], "metadata": {"x": "y"}, "send_at": "2027-01-02T01:00:00+01:00", "expires_in": "90s"}"#;
    let expected = concat!(
        r#"{"category":"receipt","channels":["email"],"email":{"also_to":[{"email":"t@example.com","name":"T"}],"#,
        r#""attachments":[{"content_id":"c","content_sha256":"8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4","#,
        r#""content_type":"text/plain","filename":"a.txt"}],"bcc":[{"email":"b@example.com"}],"cc":[{"email":"c@example.com"}],"#,
        r#""from":{"email":"shop@example.com","name":"Shop"},"headers":{"X-A":"1","X-B":"2"},"html":"<p>","#,
        r#""reply_to":[{"email":"r@example.com"}],"subject":"Your \"receipt\" ü","text":"a\nb"},"expires":{"in_millis":90000},"#,
        r#""send":{"at_micros":1798848000000000},"tags":["b","a"],"to":[{"email":"ada@example.com","name":"Ada","ref":"user_42"}]}"#,
    );
    assert_eq!(canonical_of(body), expected);
}

#[test]
fn absent_fields_leave_no_trace() {
    let body = r#"{"to": "ada@example.com", "email": {"subject": "s", "text": "t"}}"#;
    assert_eq!(canonical_of(body), r#"{"email":{"subject":"s","text":"t"},"to":[{"email":"ada@example.com"}]}"#);
}

/// A request in its plain long form: every field that a random one has, in one spelling.
fn plain_request() -> impl Strategy<Value = Value> {
    let mailbox = || {
        ("[a-z]{1,8}", prop::option::of("[A-Za-z ,]{0,6}[a-z]"))
            .prop_map(|(local, name)| long_mailbox(&format!("{local}@example.com"), name))
    };
    let mailboxes = || prop::collection::vec(mailbox(), 0..3).prop_map(Value::from);
    let attachment = ("[a-z]{1,8}", prop::collection::vec(any::<u8>(), 0..8)).prop_map(|(filename, bytes)| {
        use base64::Engine as _;
        json!({"filename": filename, "content": base64::engine::general_purpose::STANDARD.encode(bytes), "content_type": "application/octet-stream"})
    });
    let email = (
        ".{0,8}[a-z]",
        ".{0,8}",
        mailboxes(),
        mailboxes(),
        prop::collection::btree_map("X-[a-z]{1,4}", "[a-z]{1,4}", 0..4),
        prop::collection::vec(attachment, 0..3),
        prop::option::of(mailbox()),
    );
    let when = prop_oneof![Just(Value::Null), (1_i64..1_000_000).prop_map(|second| json!(instant(second, 0)))];
    let span = prop_oneof![Just(Value::Null), (1_u64..80).prop_map(|hours| json!(format!("{hours}h")))];
    let tags = prop::collection::btree_set("[a-z]{1,4}", 0..4);
    (prop::collection::btree_set("[a-z]{1,8}", 1..4), email, when, span, tags, prop::option::of("[a-z]{1,8}")).prop_map(
        |(to, (subject, text, copies, reply_to, headers, attachments, from), send_at, expires_in, tags, category)| {
            let printable = |text: String| text.chars().filter(|c| !c.is_control()).collect::<String>();
            let to: Vec<Value> = to.into_iter().map(|local| json!({"email": format!("{local}@example.com"), "name": null, "ref": local, "metadata": {}})).collect();
            let copies = if to.len() == 1 { copies } else { json!([]) };
            json!({"to": to, "category": category, "send_at": send_at, "expires_in": expires_in, "tags": tags, "metadata": {},
                   "email": {"subject": printable(subject), "text": text.replace('\0', "") + "x", "html": null, "from": from, "reply_to": reply_to,
                             "cc": copies, "bcc": [], "headers": headers, "attachments": attachments}})
        },
    )
}

fn long_mailbox(email: &str, name: Option<String>) -> Value {
    json!({"email": email, "name": name})
}

/// The instant `second` seconds into 2027, written with an offset of so many hours.
fn instant(second: i64, offset: i8) -> String {
    let written: jiff::Timestamp = "2027-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second);
    written.to_zoned_datetime(jiff::tz::TimeZone::fixed(jiff::tz::offset(offset))).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Decides how each thing is spelled.
struct Spelling(u64);

impl Spelling {
    fn pick(&mut self, among: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % among as u64).unwrap()
    }

    /// Another way to say the same.
    fn respell(&mut self, plain: &Value) -> String {
        let mut body = plain.clone();
        for pointer in ["/to", "/email/cc", "/email/reply_to"] {
            let list = body.pointer_mut(pointer).unwrap();
            list.as_array_mut().unwrap().iter_mut().for_each(|mailbox| self.respell_mailbox(mailbox));
            match list.as_array().unwrap().as_slice() {
                [one] if self.pick(2) == 0 => *list = one.clone(),
                _ => {}
            }
        }
        self.respell_mailbox(&mut body["email"]["from"]);
        body["metadata"] = json!({"random": self.pick(1000).to_string()});
        if let Some(send_at) = body["send_at"].as_str() {
            let second = send_at.parse::<Timestamp>().unwrap().since("2027-01-01T00:00:00Z".parse().unwrap()).as_secs();
            body["send_at"] = json!(instant(i64::try_from(second).unwrap(), i8::try_from(self.pick(20)).unwrap() - 10));
        }
        if let Some(hours) = body["expires_in"].as_str().and_then(|span| span.strip_suffix('h')).filter(|_| self.pick(2) == 0) {
            body["expires_in"] = json!(format!("{}m", hours.parse::<u64>().unwrap() * 60));
        }
        for attachment in body["email"]["attachments"].as_array_mut().unwrap() {
            if self.pick(2) == 0 {
                attachment["content"] = json!(attachment["content"].as_str().unwrap().trim_end_matches('='));
                attachment["content_type"] = Value::Null;
            }
        }
        self.write(&body)
    }

    fn respell_mailbox(&mut self, mailbox: &mut Value) {
        let Some(fields) = mailbox.as_object_mut() else { return };
        let email = fields["email"].as_str().unwrap().to_owned();
        let email = [email.clone(), email.to_uppercase(), email.replace('e', "E")][self.pick(3)].clone();
        fields["email"] = json!(email);
        if fields.get("ref").is_some_and(|reference| !reference.is_null()) || self.pick(2) == 0 {
            return;
        }
        *mailbox = match fields["name"].as_str() {
            Some(name) => json!(format!("\"{name}\" <{email}>")),
            None => json!(email),
        };
    }

    /// JSON with members in any order, `null` ones there or not, and spare blanks.
    fn write(&mut self, value: &Value) -> String {
        match value {
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                for last in (1..members.len()).rev() {
                    members.swap(last, self.pick(last + 1));
                }
                members.retain(|(_, value)| !value.is_null() || self.pick(2) == 0);
                let members: Vec<String> =
                    members.into_iter().map(|(name, value)| format!("{}:{}", json!(name), self.write(value))).collect();
                format!("{{{}}}", members.join([",", " ,\n "][self.pick(2)]))
            }
            Value::Array(items) => format!("[{}]", items.iter().map(|item| self.write(item)).collect::<Vec<_>>().join(",")),
            other => other.to_string(),
        }
    }
}

/// Every change of one field that changes what is sent.
fn changes(plain: &Value) -> Vec<(&'static str, Value)> {
    let one = plain["to"].as_array().unwrap().len() == 1;
    let mut changes = vec![
        ("/category", json!("another-one")),
        ("/channels", json!(["email"])),
        ("/tags", json!(["another"])),
        ("/send_at", json!("2027-01-20T00:00:00Z")),
        ("/expires_in", json!("100h")),
        ("/to/0/email", json!("another.one@example.com")),
        ("/to/0/name", json!("Another")),
        ("/to/0/ref", json!("another-one")),
        ("/to/0/ref", Value::Null),
        ("/email/from", json!("sender")),
        ("/email/from", json!("other@example.org")),
        ("/email/subject", json!("Another one")),
        ("/email/text", json!("Another one")),
        ("/email/html", json!("<p>")),
        ("/email/reply_to", json!("other@example.org")),
        ("/email/headers", json!({"X-Another": "1"})),
        ("/email/attachments", json!([{"filename": "another-one", "content": "aGk="}])),
    ];
    if one {
        changes.extend([
            ("/email/cc", json!("other@example.org")),
            ("/email/bcc", json!("other@example.org")),
            ("/email/also_to", json!("other@example.org")),
        ]);
    }
    if !plain["email"]["attachments"].as_array().unwrap().is_empty() {
        changes.extend([
            ("/email/attachments/0/filename", json!("another-one")),
            ("/email/attachments/0/content", json!("YW5vdGhlciBvbmU=")),
            ("/email/attachments/0/content_type", json!("text/plain")),
            ("/email/attachments/0/content_id", json!("c")),
        ]);
    }
    changes
}

fn changed(plain: &Value, pointer: &str, value: Value) -> Value {
    let mut body = plain.clone();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
    body
}

proptest! {
    #[test]
    fn spelling_never_changes_the_form(plain in plain_request(), seed in 1_u64..) {
        let spelled = Spelling(seed).respell(&plain);
        prop_assert_eq!(canonical_of(&spelled), canonical_of(&plain.to_string()), "{}", spelled);
    }

    #[test]
    fn every_change_of_what_is_sent_changes_the_form(plain in plain_request()) {
        let form = canonical_of(&plain.to_string());
        for (pointer, value) in changes(&plain) {
            let other = changed(&plain, pointer, value);
            prop_assert_ne!(canonical_of(&other.to_string()), form.clone(), "{}", pointer);
        }
    }

    #[test]
    fn names_are_sorted_at_every_level(plain in plain_request()) {
        fn sorted(value: &crate::json::Json<'_>) -> bool {
            match value {
                crate::json::Json::Object(members) => members.is_sorted_by(|a, b| a.0 < b.0) && members.iter().all(|(_, value)| sorted(value)),
                crate::json::Json::List(items) => items.iter().all(sorted),
                _ => true,
            }
        }
        let mut plain = plain;
        plain["email"]["headers"] = Value::Object(Map::from_iter([("X-B".to_owned(), json!("1")), ("X-A".to_owned(), json!("1"))]));
        let form = canonical_of(&plain.to_string());
        prop_assert!(sorted(&crate::json::parse(form.as_bytes()).unwrap()), "{}", form);
    }
}
