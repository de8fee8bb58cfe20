//! What an event does to a delivery: the row as it is to be, the attempt to record, the events to tell.
//! Which state an event leads to is the table in `state`; which candidates go out is `judge`'s. Outcomes of calls are
//! `landing`'s, what every change sets stands in `draft`.

mod draft;
mod landing;

use crate::delivery::{AttemptRecord, Change, Delivery, Flags};
use crate::ids::{AccountId, InstanceId};
use crate::policy::{NOBODY_RETRY, OnAmbiguous, POISON_LOSSES, Rules};
use crate::state::{Event, Evidence, State};
use crate::time::Timestamp;
use crate::words::{AttemptOutcome, Reason};

pub(crate) use draft::Draft;
pub use landing::{Finish, FinishFacts, Found, Landed, RoutePosition, finish};

/// A row that no account of its route may send stands back for a while, so that it does not keep others from being looked
/// at (DATA 5). One that is scheduled stays: how late it is counts from when it was due.
pub fn step_aside(delivery: &Delivery, now: Timestamp) -> Option<Change> {
    if delivery.state == State::Scheduled || !delivery.state.is_waiting() {
        return None;
    }
    let after = Delivery { available_at: Some(now.plus(NOBODY_RETRY)), version: delivery.version + 1, ..delivery.clone() };
    Some(Change {
        before: delivery.clone(),
        after,
        attempt: None,
        events: Vec::new(),
        copies: None,
        suppression: None,
        of_copies: Vec::new(),
    })
}

/// A claim was cleared for a call by `account` (row 2).
pub fn dispatch(delivery: &Delivery, account: AccountId, instance: InstanceId, lease_until: Timestamp, now: Timestamp) -> Option<Change> {
    let mut draft = Draft::of(delivery);
    draft.after.attempt_number += 1;
    draft.after.account = Some(account);
    draft.after.attempt_started_at = Some(now);
    draft.after.lease_expires_at = Some(lease_until);
    draft.after.lease_owner = Some(instance);
    if delivery.generation >= 2 && delivery.unresolved > 0 {
        draft.after.flags = draft.after.flags.with(Flags::POSSIBLE_DUPLICATE);
    }
    draft.step(Event::Cleared, None, now)
}

/// Whether a recorded acceptance of `generation` is the answer to this delivery: that of an earlier generation is not,
/// where an operator knew of it and asked for another send (row 30).
pub const fn acceptance_stops(delivery: &Delivery, generation: u16) -> bool {
    generation == delivery.generation || !delivery.flags.has(Flags::ASKED_AGAIN)
}

/// Ends a waiting row that is past `expires_at`, or too late after its `send_at` (row 3, S-048, S-071).
pub fn expire(rules: &Rules, delivery: &Delivery, now: Timestamp) -> Option<Change> {
    let lateness = rules.of(delivery.class).max_lateness;
    let due = delivery.available_at.filter(|_| delivery.state == State::Scheduled);
    let reason = if now >= delivery.expires_at {
        Reason::Deadline
    } else if due.is_some_and(|due| now > due.plus(lateness)) {
        Reason::Late
    } else {
        return None;
    };
    Draft::of(delivery).step(Event::Overdue, Some(reason), now)
}

/// Ends a waiting row that is suppressed, or was cancelled or superseded while a call was running (rows 4, 24, 25).
pub fn stop(delivery: &Delivery, reason: Reason, now: Timestamp) -> Option<Change> {
    let event = match reason {
        Reason::Suppressed | Reason::Preference => Event::Suppressed,
        Reason::Collapsed => Event::Collapsed,
        _ => Event::Cancelled,
    };
    Draft::of(delivery).step(event, Some(reason), now)
}

/// Judges a row whose lease ended: its call may have gone out (row 14, S-036). `was_accepted` tells that evidence which
/// `acceptance_stops` it waits to be applied (row 15).
pub fn reap(rules: &Rules, delivery: &Delivery, was_accepted: bool, now: Timestamp) -> Option<Change> {
    let mut draft = Draft::of(delivery);
    draft.after.attempt_count += 1;
    draft.after.lost_count += 1;
    draft.after.unresolved += 1;
    let since = delivery.lease_expires_at.unwrap_or(now).min(now);
    draft.hold_from(rules, since);
    draft.attempt = Some(AttemptRecord {
        number: delivery.attempt_number,
        generation: delivery.generation,
        account: delivery.account,
        started_at: delivery.attempt_started_at.unwrap_or(since),
        finished_at: None,
        outcome: AttemptOutcome::Lost,
        accepted_at: None,
        late: false,
        provider_code: None,
        provider_message_id: None,
        match_key: None,
        detail: Some("the process that made the call did not report its outcome".to_owned()),
    });
    if was_accepted {
        return draft.step_from(State::Ambiguous, Event::Evidence(Evidence::Taken), None, now);
    }
    draft.step(Event::LeaseLost, None, now)
}

/// Decides about an ambiguous row whose hold is over (rows 18 to 20).
pub fn check(rules: &Rules, delivery: &Delivery, was_accepted: bool, now: Timestamp) -> Option<Change> {
    if delivery.check_at.is_none_or(|check_at| now < check_at) {
        return None;
    }
    let mut draft = Draft::of(delivery);
    if was_accepted {
        return draft.step(Event::Evidence(Evidence::Taken), None, now);
    }
    let policy = rules.on_ambiguous(&delivery.category, delivery.class, delivery.channel);
    let ending = if let Some(reason) = delivery.no_resend {
        Some(match reason {
            Reason::Collapsed => Reason::Collapsed,
            _ => Reason::Cancelled,
        })
    } else if delivery.lost_count >= POISON_LOSSES {
        Some(Reason::Poison)
    } else if policy == OnAmbiguous::Hold || delivery.generation >= 2 {
        Some(Reason::HoldOver)
    } else if now >= delivery.expires_at {
        Some(Reason::Expired)
    } else {
        None
    };
    if let Some(reason) = ending {
        return draft.step(Event::HoldOver, Some(reason), now);
    }
    draft.after.generation += 1;
    draft.after.available_at = Some(now);
    draft.step(Event::HoldOverResend, None, now)
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
