//! The small bodies of operators' acts: a switch, a pause of an account, a test of one.

use crate::address::Mailbox;
use crate::fault::{FaultCode, Faults};
use crate::json::{self, Json};
use crate::pointer::Pointer;
use crate::time::Timestamp;

use super::fields::{Fields, Shape, wrong_type};
use super::mailboxes::mailbox;

const SWITCH: Shape = Shape { known: &["paused", "until", "reason"], later: &[] };
const PAUSE: Shape = Shape { known: &["until", "reason"], later: &[] };
const TEST: Shape = Shape { known: &["to"], later: &[] };
const LONGEST_REASON: usize = 500;

/// What a switch is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchRequest {
    /// Whether it stops anything.
    pub paused: bool,
    /// It stops nothing from here on.
    pub until: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
}

/// The body of `PUT /v1/switches/{scope}`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_switch(body: &[u8], now: Timestamp) -> Result<SwitchRequest, Faults> {
    read(body, &SWITCH, |fields, faults| {
        let paused = match fields.get("paused") {
            Some(Json::Bool(paused)) => Some(*paused),
            Some(other) => {
                faults.push(wrong_type(&fields.at("paused"), "true or false", other));
                None
            }
            None => {
                faults.add(&fields.at("paused"), FaultCode::InvalidField, "say true or false");
                None
            }
        };
        let (until, reason) = terms(fields, now, faults);
        Some(SwitchRequest { paused: paused?, until, reason })
    })
}

/// The body of a pause, which may be empty: it is paused until somebody resumes it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_pause(body: &[u8], now: Timestamp) -> Result<SwitchRequest, Faults> {
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    read(body, &PAUSE, |fields, faults| {
        let (until, reason) = terms(fields, now, faults);
        Some(SwitchRequest { paused: true, until, reason })
    })
}

/// Whom a test goes to.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_test(body: &[u8]) -> Result<Mailbox, Faults> {
    read(body, &TEST, |fields, faults| match fields.get("to") {
        Some(to) => mailbox(to, &fields.at("to"), faults),
        None => {
            faults.add(&fields.at("to"), FaultCode::InvalidRecipient, "say to whom the test goes");
            None
        }
    })
}

fn read<T>(body: &[u8], shape: &Shape, take: impl FnOnce(&Fields<'_>, &mut Faults) -> Option<T>) -> Result<T, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let taken = Fields::open(&document, &Pointer::ROOT, shape, &mut faults).and_then(|fields| take(&fields, &mut faults));
    match taken {
        Some(taken) if faults.is_empty() => Ok(taken),
        _ => Err(faults),
    }
}

/// Until when, and why.
fn terms(fields: &Fields<'_>, now: Timestamp, faults: &mut Faults) -> (Option<Timestamp>, Option<String>) {
    let mut until: Option<Timestamp> = None;
    if let Some(text) = fields.text("until", faults) {
        match text.parse() {
            Ok(at) if at > now => until = Some(at),
            Ok(_) => faults.add(&fields.at("until"), FaultCode::InvalidField, "the time has passed"),
            Err(err) => faults.add(&fields.at("until"), FaultCode::InvalidField, format!("{err}")),
        }
    }
    let reason = fields.text("reason", faults).map(str::to_owned);
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > LONGEST_REASON || reason.chars().any(char::is_control)) {
        faults.add(&fields.at("reason"), FaultCode::InvalidField, "at most 500 characters on one line");
    }
    (until, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_switch_says_whether_until_when_and_why() {
        let read = |body: &str| parse_switch(body.as_bytes(), NOW).unwrap();
        let plain = SwitchRequest { paused: true, until: None, reason: None };
        assert_eq!(read(r#"{"paused": true, "until": null}"#), plain);
        let until = Some(Timestamp::from_millis(1_900_000_000_000));
        let limited = read(r#"{"paused": true, "until": "2030-03-17T17:46:40Z", "reason": "storm"}"#);
        assert_eq!(limited, SwitchRequest { until, reason: Some("storm".into()), ..plain });
        assert_eq!(parse_pause(b"", NOW).unwrap().until, None);
    }

    #[test]
    fn all_faults_are_named() {
        let faults =
            |body: &str| parse_switch(body.as_bytes(), NOW).unwrap_err().into_iter().map(|fault| fault.pointer).collect::<Vec<_>>();
        assert_eq!(faults(r#"{"paused": 1, "until": "2020-01-01T00:00:00Z", "x": 1}"#), ["/x", "/paused", "/until"]);
        assert_eq!(faults(r#"{"paused": true, "for": "2h", "until": "2030-01-01T00:00:00"}"#), ["/for", "/until"]);
        assert_eq!(faults(r#"{"until": 1, "reason": "a\nb"}"#), ["/paused", "/until", "/reason"]);
        assert_eq!(parse_test(b"{}").unwrap_err().into_iter().count(), 1);
    }
}
