//! Acts that stop, move or settle what is under way (rows 25, 28 and 31), and the one that takes it off the list.

use std::time::Duration;

use super::{ALREADY, ActFacts, Acting, Finding, One, Refusal, done, refused};
use crate::delivery::{AttemptRecord, Flags};
use crate::policy::Rules;
use crate::state::{Event, State};
use crate::time::Timestamp;
use crate::transition::Draft;
use crate::words::{AttemptOutcome, Reason};

/// Row 25: stops what waits; what is on its way is not sent again, and the answer says that it is on its way (S-065).
pub(super) fn cancel(facts: &ActFacts, reason: Reason, now: Timestamp) -> One {
    let delivery = &facts.delivery;
    match delivery.state {
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred => {
            done(Draft::of(delivery).step(Event::Cancelled, Some(reason), now).map(Acting::of))
        }
        State::Dispatching | State::Ambiguous => {
            let mut draft = Draft::of(delivery);
            draft.after.no_resend = Some(reason);
            let change = delivery.no_resend.is_none().then(|| Acting::of(draft.beside_the_state()));
            (change, Err(Refusal::AlreadyDispatched(delivery.state)))
        }
        State::Cancelled | State::Superseded | State::Suppressed | State::Expired => ALREADY,
        State::Unknown if delivery.reason == Some(Reason::Cancelled) => ALREADY,
        State::Accepted | State::Delivered | State::Bounced | State::Failed | State::Dead | State::Unknown => {
            refused(Refusal::AlreadyDispatched(delivery.state))
        }
    }
}

/// Row 31: what was never called is sent at another time. A deadline that category and class gave moves along; one that
/// the caller gave stays, and the new time has to lie before it.
pub(super) fn reschedule(rules: &Rules, facts: &ActFacts, send_at: Option<Timestamp>, now: Timestamp) -> One {
    let delivery = &facts.delivery;
    let is_movable = matches!(delivery.state, State::Queued | State::Scheduled) && delivery.attempt_count == 0;
    if is_movable && delivery.is_ordered && send_at.is_some() {
        return refused(Refusal::Ordered);
    }
    if is_movable && delivery.blocked {
        return ALREADY;
    }
    if !is_movable || delivery.no_resend.is_some() {
        return refused(Refusal::AlreadyDispatched(delivery.state));
    }
    let ahead = send_at.filter(|at| *at > now);
    let due = ahead.unwrap_or(now);
    let is_so = match (ahead, delivery.state) {
        (Some(at), State::Scheduled) => delivery.available_at == Some(at),
        (None, State::Queued) => delivery.available_at.is_none_or(|at| at <= now),
        _ => false,
    };
    if is_so {
        return ALREADY;
    }
    let usual = rules.deadline(&delivery.category, delivery.class);
    let lifetime = facts.expires_at.since(facts.send_at.unwrap_or_else(|| delivery.id.notification().created_at()));
    // An id keeps its instant to the millisecond only.
    let is_usual = lifetime.abs_diff(usual) <= Duration::from_millis(1);
    let expires_at = if is_usual { due.plus(usual) } else { delivery.expires_at };
    if expires_at <= due {
        return refused(Refusal::PastDeadline(expires_at));
    }
    let mut draft = Draft::of(delivery).wait_until(due);
    draft.after.expires_at = expires_at;
    let change = draft.step(Event::Rescheduled { ahead: ahead.is_some() }, None, now);
    done(change.map(|change| Acting { send_at: Some(due), ..Acting::of(change) }))
}

/// Row 28: an operator's word is about the delivery as a whole, so that no attempt of it stays unresolved (S-130).
pub(super) fn resolve(facts: &ActFacts, finding: Finding, now: Timestamp) -> One {
    let delivery = &facts.delivery;
    match delivery.state {
        State::Ambiguous | State::Unknown => {}
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred
            if finding == Finding::NotSent && delivery.unresolved == 0 =>
        {
            return ALREADY;
        }
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred | State::Dispatching => {
            return refused(Refusal::OutcomeUnresolved(delivery.state));
        }
        State::Accepted | State::Delivered | State::Bounced if finding == Finding::Sent => return ALREADY,
        State::Failed | State::Suppressed | State::Cancelled | State::Expired | State::Superseded | State::Dead
            if finding == Finding::NotSent =>
        {
            return ALREADY;
        }
        State::Accepted | State::Delivered | State::Bounced => return refused(Refusal::OutcomeKnown(delivery.state)),
        State::Failed | State::Suppressed | State::Cancelled | State::Expired | State::Superseded | State::Dead => {
            return refused(Refusal::OutcomeKnown(delivery.state));
        }
    }
    let mut draft = Draft::of(delivery).wait_until(now);
    draft.after.unresolved = 0;
    let change = match finding {
        Finding::Sent => {
            draft.after.flags = delivery.flags.with(Flags::CONFIRMED);
            draft.after.settled_at = Some(now);
            draft.attempt = newest_unanswered(facts).map(|attempt| as_sent(facts, attempt, now));
            draft.step(Event::ResolvedSent, None, now)
        }
        Finding::NotSent => {
            let past_expiry = now >= delivery.expires_at;
            draft.step(Event::ResolvedNotSent { past_expiry }, Some(Reason::ResolvedNotSent), now)
        }
    };
    done(change.map(|change| Acting { settles_attempts: true, ..Acting::of(change) }))
}

/// Takes a dead letter off the list; it stays what it is (S-060).
pub(super) fn discard(facts: &ActFacts) -> One {
    let delivery = &facts.delivery;
    match delivery.state {
        State::Dead | State::Unknown if delivery.reason == Some(Reason::Discarded) => ALREADY,
        State::Dead | State::Unknown => {
            let mut draft = Draft::of(delivery);
            draft.after.reason = Some(Reason::Discarded);
            done(Some(Acting::of(draft.beside_the_state())))
        }
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred | State::Dispatching | State::Ambiguous => {
            refused(Refusal::NotFound)
        }
        State::Accepted | State::Delivered | State::Bounced | State::Failed => refused(Refusal::NotFound),
        State::Suppressed | State::Cancelled | State::Expired | State::Superseded => refused(Refusal::NotFound),
    }
}

fn newest_unanswered(facts: &ActFacts) -> Option<&AttemptRecord> {
    let is_unanswered = |attempt: &&AttemptRecord| matches!(attempt.outcome, AttemptOutcome::Ambiguous | AttemptOutcome::Lost);
    facts.attempts.iter().filter(is_unanswered).max_by_key(|attempt| attempt.number)
}

/// The attempt with the acceptance that an operator vouches for; a generation has one (S-112).
fn as_sent(facts: &ActFacts, attempt: &AttemptRecord, now: Timestamp) -> AttemptRecord {
    let again = facts.attempts.iter().any(|other| other.generation == attempt.generation && other.accepted_at.is_some());
    AttemptRecord {
        finished_at: attempt.finished_at.or(Some(now)),
        outcome: if again { AttemptOutcome::AcceptedAgain } else { AttemptOutcome::Accepted },
        accepted_at: (!again).then_some(now),
        late: true,
        detail: Some("an operator found that it was sent".to_owned()),
        ..attempt.clone()
    }
}
