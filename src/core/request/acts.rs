//! What is asked for of deliveries that exist: the bodies of cancel, PATCH, resolve, resend and of acts on dead letters.
//! Whether it can be done is decided in `acts`, by what is stored.

use std::str::FromStr;
use std::time::Duration;

use super::fields::{Fields, Shape, list, text, wrong_type};
use super::times::{HORIZON, When, send_at};
use crate::acts::{Finding, Resend};
use crate::fault::{FaultCode, Faults};
use crate::ids::DeliveryId;
use crate::json::{self, Json};
use crate::pointer::Pointer;
use crate::state::State;
use crate::time::{Timestamp, parse_duration};
use crate::words::{Channel, Class, Reason};

/// The most dead letters of one act.
pub const MOST_DEAD_LETTERS: usize = 1_000;
/// The most characters of a reason.
const LONGEST_REASON: usize = 500;

/// Takes the body of a cancel: none, or an empty object.
///
/// # Errors
/// Everything that stands in it.
pub fn cancel(body: &[u8]) -> Result<(), Faults> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    read(body, &[], |_, _| Some(()))
}

/// Takes the body of a PATCH: the new time to send, `None` for now.
///
/// # Errors
/// All faults at once.
pub fn reschedule(body: &[u8], now: Timestamp) -> Result<Option<Timestamp>, Faults> {
    read(body, &["send_at"], |fields, faults| {
        if !fields.names("send_at") {
            faults.add(&fields.at("send_at"), FaultCode::InvalidField, "give the time to send, or null to send now");
            return None;
        }
        if fields.get("send_at").is_none() {
            return Some(None);
        }
        let at = fields.text("send_at", faults)?.parse();
        let at = at
            .map_err(|err: crate::time::TimestampError| faults.add(&fields.at("send_at"), FaultCode::InvalidField, err.to_string()))
            .ok()?;
        let mut overdue = Faults::new();
        let due = send_at(fields, When::At(at), now, faults, &mut overdue);
        faults.extend(overdue);
        Some(due)
    })
}

/// Takes the body of a resolve: what was found, and why somebody is sure.
///
/// # Errors
/// All faults at once.
pub fn resolve(body: &[u8]) -> Result<(Finding, String), Faults> {
    read(body, &["as", "reason"], |fields, faults| {
        let finding = word(fields, "as", "\"sent\" or \"not_sent\"", faults);
        if fields.get("as").is_none() {
            faults.add(&fields.at("as"), FaultCode::InvalidField, "say \"sent\" or \"not_sent\"");
        }
        finding.zip(reason(fields, faults))
    })
}

/// Takes the body of a resend.
///
/// # Errors
/// All faults at once.
pub fn resend(body: &[u8]) -> Result<(Resend, String), Faults> {
    read(body, &["generation", "reason", "expires_in"], |fields, faults| {
        let generation = fields.get("generation").and_then(|value| generation(fields, value, faults));
        let expires_in = expires_in(fields, faults);
        reason(fields, faults).map(|reason| (Resend { generation, expires_in, replay: None }, reason))
    })
}

/// Which dead letters an act is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// These.
    Ids(Vec<DeliveryId>),
    /// All that match, as many as one act takes.
    Matching(Box<Matching>),
}

/// What dead letters are filtered by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matching {
    /// `dead` or `unknown`.
    pub state: Option<State>,
    /// Why.
    pub reason: Option<Reason>,
    /// One medium.
    pub channel: Option<Channel>,
    /// One class.
    pub class: Option<Class>,
    /// One kind of message.
    pub category: Option<String>,
    /// Accepted at this instant or later.
    pub since: Option<Timestamp>,
    /// Accepted before this instant.
    pub until: Option<Timestamp>,
}

/// An act on dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDeadLetters {
    /// Which.
    pub which: Which,
    /// Why.
    pub reason: String,
    /// Replay: how long they are worth sending from now on.
    pub expires_in: Option<Duration>,
}

/// Takes the body of a replay, which may say for how long, or of a discard.
///
/// # Errors
/// All faults at once.
pub fn on_dead_letters(body: &[u8], is_replay: bool) -> Result<OnDeadLetters, Faults> {
    let known: &'static [&'static str] = if is_replay { &["filter", "ids", "reason", "expires_in"] } else { &["filter", "ids", "reason"] };
    read(body, known, |fields, faults| {
        let which = match (fields.get("ids"), fields.get("filter")) {
            (Some(value), None) => ids(fields, value, faults).map(Which::Ids),
            (None, Some(value)) => matching(value, &fields.at("filter"), faults).map(|matching| Which::Matching(Box::new(matching))),
            (Some(_), Some(_)) => {
                faults.add(&fields.at("filter"), FaultCode::InvalidField, "give ids or filter, not both");
                None
            }
            (None, None) => {
                faults.add(&fields.at("ids"), FaultCode::InvalidField, "give ids, or a filter ({} matches all dead letters)");
                None
            }
        };
        let expires_in = expires_in(fields, faults);
        which.zip(reason(fields, faults)).map(|(which, reason)| OnDeadLetters { which, reason, expires_in })
    })
}

/// Opens a body and takes it apart; whatever was wrong with it comes out together.
fn read<T>(body: &[u8], known: &'static [&'static str], take: impl FnOnce(&Fields<'_>, &mut Faults) -> Option<T>) -> Result<T, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let shape = Shape { known, later: &[] };
    let taken = Fields::open(&document, &Pointer::ROOT, &shape, &mut faults).and_then(|fields| take(&fields, &mut faults));
    match taken {
        Some(taken) if faults.is_empty() => Ok(taken),
        _ => Err(faults),
    }
}

fn reason(fields: &Fields<'_>, faults: &mut Faults) -> Option<String> {
    let given = match fields.get("reason") {
        Some(_) => fields.text("reason", faults)?,
        None => "",
    };
    let length = given.chars().count();
    if given.trim().is_empty() || length > LONGEST_REASON || given.chars().any(char::is_control) {
        let detail = "say why in 1 to 500 characters; it is kept in the audit log, so leave addresses and content out";
        faults.add(&fields.at("reason"), FaultCode::InvalidField, detail);
        return None;
    }
    Some(given.to_owned())
}

fn generation(fields: &Fields<'_>, value: &Json<'_>, faults: &mut Faults) -> Option<u16> {
    let number = match value {
        Json::Number(number) => number.and_then(|number| u16::try_from(number).ok()).filter(|number| (1..=1_000).contains(number)),
        other => {
            faults.push(wrong_type(&fields.at("generation"), "a number", other));
            return None;
        }
    };
    if number.is_none() {
        faults.add(&fields.at("generation"), FaultCode::InvalidField, "a generation is a whole number from 1 to 1,000");
    }
    number
}

fn expires_in(fields: &Fields<'_>, faults: &mut Faults) -> Option<Duration> {
    fields.get("expires_in")?;
    let parsed = parse_duration(fields.text("expires_in", faults)?);
    let at = fields.at("expires_in");
    match parsed {
        Ok(span) if span.is_zero() => faults.add(&at, FaultCode::InvalidField, "must be longer than nothing"),
        Ok(span) if span > HORIZON => faults.add(&at, FaultCode::ExpiresAtTooFar, "at most 90 days"),
        Ok(span) => return Some(span),
        Err(err) => faults.add(&at, FaultCode::InvalidField, err.to_string()),
    }
    None
}

fn ids(fields: &Fields<'_>, value: &Json<'_>, faults: &mut Faults) -> Option<Vec<DeliveryId>> {
    let at = fields.at("ids");
    let items = list(value, &at, faults);
    if items.is_empty() || items.len() > MOST_DEAD_LETTERS {
        faults.add(&at, FaultCode::InvalidField, "1 to 1,000 ids of deliveries");
        return None;
    }
    let mut ids: Vec<DeliveryId> = Vec::with_capacity(items.len());
    let mut seen = std::collections::BTreeSet::new();
    for (place, item) in items.iter().enumerate() {
        let here = at.index(place);
        match text(item, &here, faults).map(str::parse) {
            Some(Ok(id)) if seen.insert(id) => ids.push(id),
            Some(Ok(_)) => faults.add(&here, FaultCode::InvalidField, "the id occurs twice"),
            Some(Err(_)) => faults.add(&here, FaultCode::InvalidField, "not the id of a delivery"),
            None => {}
        }
    }
    Some(ids)
}

const FILTER: Shape = Shape { known: &["state", "reason", "channel", "class", "category", "since", "until"], later: &[] };

fn matching(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Matching> {
    let fields = Fields::open(value, at, &FILTER, faults)?;
    let state = word(&fields, "state", "\"dead\" or \"unknown\"", faults);
    if state.is_some_and(|state| !matches!(state, State::Dead | State::Unknown)) {
        faults.add(&fields.at("state"), FaultCode::InvalidField, "dead letters are \"dead\" or \"unknown\"");
    }
    Some(Matching {
        state,
        reason: word(&fields, "reason", "a word of /docs/reasons", faults),
        channel: word(&fields, "channel", "\"email\", \"sms\" or \"push\"", faults),
        class: word(&fields, "class", "\"critical\", \"transactional\" or \"bulk\"", faults),
        category: fields.text("category", faults).map(str::to_owned),
        since: instant(&fields, "since", faults),
        until: instant(&fields, "until", faults),
    })
}

fn word<'j, T: FromStr>(fields: &Fields<'j>, name: &'j str, what: &str, faults: &mut Faults) -> Option<T> {
    let parsed = fields.text(name, faults)?.parse();
    parsed.map_err(|_| faults.add(&fields.at(name), FaultCode::InvalidField, format!("must be {what}"))).ok()
}

fn instant<'j>(fields: &Fields<'j>, name: &'j str, faults: &mut Faults) -> Option<Timestamp> {
    let parsed = fields.text(name, faults)?.parse();
    parsed.map_err(|err: crate::time::TimestampError| faults.add(&fields.at(name), FaultCode::InvalidField, err.to_string())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn now() -> Timestamp {
        "2027-03-01T09:00:00Z".parse().unwrap()
    }

    fn pointers<T: std::fmt::Debug>(read: Result<T, Faults>) -> Vec<String> {
        read.unwrap_err().as_slice().iter().map(|fault| format!("{} {}", fault.pointer, fault.code)).collect()
    }

    #[test]
    fn null_means_now_and_nothing_at_all_is_a_mistake() {
        assert_eq!(reschedule(br#"{"send_at": null}"#, now()), Ok(None));
        assert_eq!(reschedule(br#"{"send_at": "2027-03-01T09:00:01Z"}"#, now()), Ok(Some(now().plus(Duration::from_secs(1)))));
        assert_eq!(reschedule(br#"{"send_at": "2027-03-01T08:56:00Z"}"#, now()), Ok(None), "just missed means now");
        for (body, fault) in [
            ("{}", "/send_at invalid_field"),
            (r#"{"send_at": "2027-03-01T09:00:00"}"#, "/send_at invalid_field"),
            (r#"{"send_at": 5}"#, "/send_at invalid_field"),
            (r#"{"send_at": "2027-03-01T08:00:00Z"}"#, "/send_at send_at_past"),
            (r#"{"send_at": "2028-03-01T08:00:00Z"}"#, "/send_at send_at_too_far"),
            ("[]", " invalid_field"),
        ] {
            assert_eq!(pointers(reschedule(body.as_bytes(), now())), [fault], "{body}");
        }
        assert_eq!(pointers(reschedule(br#"{"send_in": "5m"}"#, now())), ["/send_in unknown_field", "/send_at invalid_field"]);
    }

    #[test]
    fn a_cancel_has_no_body_to_speak_of() {
        for body in ["", " ", "{}"] {
            assert_eq!(cancel(body.as_bytes()), Ok(()));
        }
        assert_eq!(pointers(cancel(br#"{"reason": "x"}"#)), ["/reason unknown_field"]);
    }

    #[test]
    fn a_resend_says_why_and_names_its_generation_by_number() {
        let read = resend(br#"{"generation": 2, "reason": "mailbox is back", "expires_in": "2h"}"#).unwrap();
        assert_eq!(read.0, Resend { generation: Some(2), expires_in: Some(Duration::from_secs(7_200)), replay: None });
        assert_eq!(resend(br#"{"reason": "x", "generation": null}"#).unwrap().0, Resend::default());
        let faults = pointers(resend(br#"{"generation": 1.5, "expires_in": "0s", "reason": " "}"#));
        assert_eq!(faults, ["/generation invalid_field", "/expires_in invalid_field", "/reason invalid_field"]);
        for wrong in ["0", "-1", "1001", "99999999999999999999", "\"2\""] {
            assert_eq!(pointers(resend(format!(r#"{{"generation": {wrong}, "reason": "x"}}"#).as_bytes())), ["/generation invalid_field"]);
        }
        assert_eq!(pointers(resend(br#"{"expires_in": "91d", "reason": "x"}"#)), ["/expires_in expires_at_too_far"]);
    }

    #[test]
    fn a_finding_is_one_of_two_words() {
        assert_eq!(resolve(br#"{"as": "not_sent", "reason": "the provider says so"}"#).unwrap().0, Finding::NotSent);
        assert_eq!(pointers(resolve(br#"{"as": "maybe"}"#)), ["/as invalid_field", "/reason invalid_field"]);
        assert_eq!(pointers(resolve(br#"{"reason": "x"}"#)), ["/as invalid_field"]);
    }

    #[test]
    fn dead_letters_are_named_one_way() {
        let all = on_dead_letters(br#"{"filter": {}, "reason": "fixed"}"#, true).unwrap();
        assert_eq!(all.which, Which::Matching(Box::default()));
        let id = "dlv_0192f0c1e2d37000800000000000a001";
        let one = on_dead_letters(format!(r#"{{"ids": ["{id}"], "reason": "fixed"}}"#).as_bytes(), false).unwrap();
        assert_eq!(one.which, Which::Ids(vec![id.parse().unwrap()]));
        for (body, faults) in [
            (r#"{"reason": "x"}"#.to_owned(), vec!["/ids invalid_field"]),
            (r#"{"ids": [], "reason": "x"}"#.to_owned(), vec!["/ids invalid_field"]),
            (format!(r#"{{"ids": ["{id}"], "filter": {{}}, "reason": "x"}}"#), vec!["/filter invalid_field"]),
            (
                format!(r#"{{"ids": ["{id}", "{id}", 5, "ntf_1"], "reason": "x"}}"#),
                vec!["/ids/1 invalid_field", "/ids/2 invalid_field", "/ids/3 invalid_field"],
            ),
            (
                r#"{"filter": {"state": "failed", "since": "soon", "addr": 1}, "reason": "x"}"#.to_owned(),
                vec!["/filter/addr unknown_field", "/filter/state invalid_field", "/filter/since invalid_field"],
            ),
            (r#"{"filter": {}, "reason": "x", "expires_in": "1h"}"#.to_owned(), vec!["/expires_in unknown_field"]),
        ] {
            assert_eq!(pointers(on_dead_letters(body.as_bytes(), false)), faults, "{body}");
        }
        let many = vec![format!("\"{id}\""); 1_001].join(",");
        assert_eq!(pointers(on_dead_letters(format!(r#"{{"ids": [{many}], "reason": "x"}}"#).as_bytes(), true)), ["/ids invalid_field"]);
    }

    proptest! {
        #[test]
        fn no_body_panics(body in "[\\{\\}\\[\\]\":,a-z0-9_ ]{0,60}", value in "[a-z0-9:\\-]{0,24}") {
            let filled = format!(r#"{{"send_at":"{value}","as":"{value}","reason":"{value}","ids":["{value}"],"expires_in":"{value}"}}"#);
            for body in [body, filled] {
                let _ = cancel(body.as_bytes());
                let _ = reschedule(body.as_bytes(), now());
                let _ = resolve(body.as_bytes());
                let _ = resend(body.as_bytes());
                let _ = on_dead_letters(body.as_bytes(), true);
            }
        }
    }
}
