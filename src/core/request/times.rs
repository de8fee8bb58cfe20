//! When a message is sent and when it becomes worthless (S-064). An instant that has passed since the request was first
//! made is told apart from one that was never right: a replay must still find its answer.

use std::time::Duration;

use crate::fault::{FaultCode, Faults};
use crate::time::{Timestamp, parse_duration};

use super::fields::Fields;

/// How far ahead a message may wait, and how long it may live from then on.
pub(super) const HORIZON: Duration = Duration::from_secs(90 * 86_400);
/// A `send_at` that passed no longer ago than this means now.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// An instant as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this instant.
    At(Timestamp),
    /// This long after: after acceptance for `send_in`, after the sending is due for `expires_in`.
    In(Duration),
}

impl When {
    fn after(self, start: Timestamp) -> Timestamp {
        match self {
            When::At(instant) => instant,
            When::In(span) => start.plus(span),
        }
    }
}

pub(super) struct Times {
    pub(super) send: Option<When>,
    pub(super) expires: Option<When>,
    pub(super) send_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    /// Faults that the same request did not have earlier.
    pub(super) overdue: Faults,
}

pub(super) fn times(fields: &Fields<'_>, now: Timestamp, faults: &mut Faults) -> Times {
    let mut overdue = Faults::new();
    let send = when(fields, ["send_at", "send_in"], faults);
    let expires = when(fields, ["expires_at", "expires_in"], faults);
    let send_at = send.and_then(|send| send_at(fields, send, now, faults, &mut overdue));
    let due = send_at.unwrap_or(now);
    if let Some(expires) = expires {
        check_expiry(fields, expires, send, due, now, faults, &mut overdue);
    }
    Times { send, expires, send_at, expires_at: expires.map(|expires| expires.after(due)), overdue }
}

/// One of a pair of fields: an instant, or a duration.
fn when<'j>(fields: &Fields<'j>, [instant, span]: [&'j str; 2], faults: &mut Faults) -> Option<When> {
    if fields.get(instant).is_some() && fields.get(span).is_some() {
        faults.add(&fields.at(span), FaultCode::InvalidField, format!("give {instant} or {span}, not both"));
    }
    if fields.get(instant).is_some() {
        let parsed = fields.text(instant, faults)?.parse();
        return parsed.map(When::At).map_err(|err| faults.add(&fields.at(instant), FaultCode::InvalidField, err.to_string())).ok();
    }
    let parsed = parse_duration(fields.text(span, faults)?);
    parsed.map(When::In).map_err(|err| faults.add(&fields.at(span), FaultCode::InvalidField, err.to_string())).ok()
}

/// The instant to wait for; `None` means now.
pub(super) fn send_at(fields: &Fields<'_>, send: When, now: Timestamp, faults: &mut Faults, overdue: &mut Faults) -> Option<Timestamp> {
    let at = fields.at(match send {
        When::At(_) => "send_at",
        When::In(_) => "send_in",
    });
    let due = send.after(now);
    if due.plus(GRACE) < now {
        overdue.add(&at, FaultCode::SendAtPast, "the time has passed by more than 5 minutes; leave the field out to send now");
    }
    if due > now.plus(HORIZON) {
        faults.add(&at, FaultCode::SendAtTooFar, "a message may wait for at most 90 days");
    }
    (due > now).then_some(due)
}

fn check_expiry(
    fields: &Fields<'_>,
    expires: When,
    send: Option<When>,
    due: Timestamp,
    now: Timestamp,
    faults: &mut Faults,
    overdue: &mut Faults,
) {
    let (at, end) = (fields.at(if matches!(expires, When::At(_)) { "expires_at" } else { "expires_in" }), expires.after(due));
    match (expires, send) {
        (When::In(span), _) if span.is_zero() => faults.add(&at, FaultCode::InvalidField, "must be longer than nothing"),
        (When::At(_), _) if end <= now => {
            overdue.add(&at, FaultCode::InvalidField, "the time has passed; give a later one or leave the field out")
        }
        // Two fixed instants in the wrong order were never right; a span from now on may only have become too long.
        (When::At(_), Some(When::At(_))) if end <= due => faults.add(&at, FaultCode::InvalidField, "must be later than send_at"),
        (When::At(_), _) if end <= due => overdue.add(&at, FaultCode::InvalidField, "must be later than the time that send_in gives"),
        _ if end > due.plus(HORIZON) => faults.add(&at, FaultCode::ExpiresAtTooFar, "at most 90 days after the message is due to be sent"),
        _ => {}
    }
}
