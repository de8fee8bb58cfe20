//! What a list of notifications is asked for: the filters and the page, from the body of a search or from the parameters
//! of a URL. Addresses and metadata stand in a body alone: URLs are written into logs.

use std::str::FromStr;

use super::fields::{Fields, Shape, is_label, text, wrong_type};
use super::labels;
use crate::address::EmailAddress;
use crate::fault::{FaultCode, Faults};
use crate::json::{self, Json};
use crate::nearest::nearest;
use crate::pointer::Pointer;
use crate::state::State;
use crate::status::Status;
use crate::time::Timestamp;
use crate::words::Channel;

/// The most items of one page.
pub const MOST_ITEMS: usize = 200;
/// As many items has a page that does not say.
pub const USUAL_ITEMS: usize = 50;

/// A list that is asked for.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// The notification under this key alone.
    pub idempotency_key: Option<String>,
    /// The state of a delivery.
    pub state: Option<State>,
    /// How a notification stands as a whole.
    pub status: Option<Status>,
    /// The channel of a delivery.
    pub channel: Option<Channel>,
    /// The application's name for its kind.
    pub category: Option<String>,
    /// One of its tags.
    pub tag: Option<String>,
    /// The application's name for a recipient.
    pub reference: Option<String>,
    /// The address of a delivery.
    pub to: Option<EmailAddress>,
    /// The application's own facts, all of which must be there.
    pub metadata: Vec<(String, String)>,
    /// Created at this instant or later.
    pub since: Option<Timestamp>,
    /// Created before this instant.
    pub until: Option<Timestamp>,
    /// A cursor, not looked at yet.
    pub after: Option<String>,
    /// How many items at most; `None` leaves it to the server.
    pub limit: Option<usize>,
}

/// The filters that may stand in a URL, and the page.
pub const PARAMETERS: &[&str] =
    &["idempotency_key", "state", "status", "channel", "category", "tag", "ref", "since", "until", "after", "limit"];

const SHAPE: Shape = Shape {
    known: &[
        "idempotency_key",
        "state",
        "status",
        "channel",
        "category",
        "tag",
        "ref",
        "to",
        "metadata",
        "since",
        "until",
        "after",
        "limit",
    ],
    later: &[],
};

/// Reads the body of a search.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_search(body: &[u8]) -> Result<Search, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &SHAPE, &mut faults) else { return Err(faults) };
    let mut search = Search { metadata: labels::metadata(&fields, &mut faults), ..Search::default() };
    for name in PARAMETERS.iter().copied().filter(|name| *name != "limit") {
        let at = fields.at(name);
        if let Some(raw) = fields.text(name, &mut faults)
            && let Err(why) = search.set(name, raw)
        {
            faults.add(&at, FaultCode::InvalidField, why);
        }
    }
    if let Some(value) = fields.get("to") {
        let at = fields.at("to");
        match text(value, &at, &mut faults).map(EmailAddress::from_str) {
            Some(Ok(address)) => search.to = Some(address),
            Some(Err(why)) => faults.add(&at, FaultCode::InvalidRecipient, why.to_string()),
            None => {}
        }
    }
    match fields.get("limit") {
        None => {}
        Some(Json::Number(Some(limit))) if (1..=MOST_ITEMS as u64).contains(limit) => search.limit = usize::try_from(*limit).ok(),
        Some(Json::Number(_)) => faults.add(&fields.at("limit"), FaultCode::InvalidField, wrong_limit()),
        Some(other) => faults.push(wrong_type(&fields.at("limit"), "a number", other)),
    }
    if faults.is_empty() { Ok(search) } else { Err(faults) }
}

fn wrong_limit() -> String {
    format!("a limit is a whole number from 1 to {MOST_ITEMS}")
}

impl Search {
    /// Sets one of `PARAMETERS` from its text.
    ///
    /// # Errors
    /// What would be right, without the value.
    pub fn set(&mut self, name: &str, raw: &str) -> Result<(), String> {
        match name {
            "idempotency_key" => self.idempotency_key = Some(key(raw)?),
            "state" => self.state = Some(word(raw, "state", State::ALL, State::as_str)?),
            "status" => self.status = Some(word(raw, "status", Status::ALL, Status::as_str)?),
            "channel" => self.channel = Some(word(raw, "channel", Channel::ALL, Channel::as_str)?),
            "category" => self.category = Some(label(raw, "a category")?),
            "tag" => self.tag = Some(label(raw, "a tag")?),
            "ref" => self.reference = Some(reference(raw)?),
            "since" => self.since = Some(instant(raw)?),
            "until" => self.until = Some(instant(raw)?),
            "after" => self.after = Some(raw.to_owned()),
            "limit" => self.limit = Some(page_limit(raw)?),
            _ => return Err("there is no such filter".to_owned()),
        }
        Ok(())
    }
}

fn key(raw: &str) -> Result<String, String> {
    let is_key = (1..=255).contains(&raw.len()) && raw.bytes().all(|byte| byte.is_ascii_graphic());
    is_key.then(|| raw.to_owned()).ok_or_else(|| "a key is 1 to 255 visible ASCII characters".to_owned())
}

fn word<T: Copy>(raw: &str, what: &str, all: &[T], as_str: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|word| as_str(*word) == raw);
    found.ok_or_else(|| match nearest(raw, all.iter().map(|word| as_str(*word))) {
        Some(meant) => format!("there is no such {what}; did you mean \"{meant}\"?"),
        None => format!("there is no such {what}; /docs/reasons lists the words"),
    })
}

fn label(raw: &str, what: &str) -> Result<String, String> {
    is_label(raw).then(|| raw.to_owned()).ok_or_else(|| format!("{what} is 1 to 64 characters of [A-Za-z0-9_.:-]"))
}

fn reference(raw: &str) -> Result<String, String> {
    let is_ref = (1..=labels::MAX_REF).contains(&raw.chars().count()) && !raw.chars().any(char::is_control);
    is_ref.then(|| raw.to_owned()).ok_or_else(|| format!("a ref is 1 to {} characters, none of them a control character", labels::MAX_REF))
}

fn instant(raw: &str) -> Result<Timestamp, String> {
    raw.parse().map_err(|err: crate::time::TimestampError| err.to_string())
}

/// How many items a page holds at most: plain digits from 1 to 200.
///
/// # Errors
/// What would be right.
pub fn page_limit(raw: &str) -> Result<usize, String> {
    let is_plain = raw.len() <= 3 && raw.bytes().all(|byte| byte.is_ascii_digit());
    raw.parse().ok().filter(|limit| is_plain && (1..=MOST_ITEMS).contains(limit)).ok_or_else(wrong_limit)
}

// Addresses and the caller's own facts never reach a log (S-213).
impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Search(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_body_may_ask_for_everything() {
        let body = br#"{"state": "dead", "status": "failed", "channel": "email", "category": "receipt", "tag": "a", "ref": "user 42",
            "to": "Ada@EXAMPLE.com", "metadata": {"order": "1"}, "since": "2027-03-01T09:00:00+01:00", "until": "2027-03-02T09:00:00Z",
            "idempotency_key": "k", "after": "x", "limit": 200}"#;
        let search = parse_search(body).unwrap();
        assert_eq!((search.state, search.status, search.channel), (Some(State::Dead), Some(Status::Failed), Some(Channel::Email)));
        assert_eq!(search.to.map(|to| to.canonical()).as_deref(), Some("ada@example.com"));
        assert_eq!((search.limit, search.metadata.len(), search.reference.as_deref()), (Some(200), 1, Some("user 42")));
        assert_eq!(parse_search(b"{}"), Ok(Search::default()));
        assert_eq!(parse_search(br#"{"state": null}"#), Ok(Search::default()));
    }

    #[test]
    fn all_faults_of_a_body_are_told_at_once() {
        let body =
            br#"{"state": "deadd", "status": 1, "limit": 201, "to": "nobody", "since": "2027-03-01T09:00:00", "sort": "asc", "tag": "",
            "metadata": {"a": 1}, "ref": "", "idempotency_key": "a b"}"#;
        let faults = parse_search(body).unwrap_err();
        let told: Vec<_> = faults.as_slice().iter().map(|fault| (fault.pointer.as_str(), fault.code)).collect();
        let invalid = |pointer| (pointer, FaultCode::InvalidField);
        assert_eq!(
            told,
            [
                ("/sort", FaultCode::UnknownField),
                invalid("/metadata/a"),
                invalid("/idempotency_key"),
                invalid("/state"),
                invalid("/status"),
                invalid("/tag"),
                invalid("/ref"),
                invalid("/since"),
                ("/to", FaultCode::InvalidRecipient),
                invalid("/limit"),
            ]
        );
        assert!(faults.as_slice()[3].detail.ends_with("did you mean \"dead\"?"));
    }

    #[test]
    fn a_limit_is_a_whole_number() {
        for (wrong, right) in [("0", "1"), ("-1", "2"), ("1.5", "200"), ("1e2", "50"), ("\"5\"", "5"), ("true", "7")] {
            assert!(parse_search(format!("{{\"limit\": {wrong}}}").as_bytes()).is_err(), "{wrong}");
            assert_eq!(parse_search(format!("{{\"limit\": {right}}}").as_bytes()).unwrap().limit, right.parse().ok());
        }
        for wrong in ["0", "201", "", "-1", "+5", "ten", "99999999999999999999"] {
            assert!(Search::default().set("limit", wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(name in proptest::sample::select(PARAMETERS), raw in ".{0,60}") {
            let _ = Search::default().set(name, &raw);
        }
    }
}
