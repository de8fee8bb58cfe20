//! A change in the making: what every change sets, and the columns that come and go with a state.

use super::landing::{Finish, FinishFacts};
use crate::delivery::{AttemptRecord, Change, Delivery, EventRecord, EventType, Flags};
use crate::policy::Rules;
use crate::state::{Event, Facts, Next, State, reason_behind};
use crate::time::Timestamp;
use crate::words::{AttemptOutcome, Reason};

/// A change in the making.
pub(crate) struct Draft {
    pub(super) before: Delivery,
    /// The delivery as it is to be, but for what its state brings with it.
    pub(crate) after: Delivery,
    /// The attempt to insert or complete.
    pub(crate) attempt: Option<AttemptRecord>,
    /// An acceptance is recorded, whatever the state says.
    pub(crate) was_accepted: bool,
    facts_only: Vec<EventType>,
    pub(super) copies: Option<Vec<u8>>,
}

impl Draft {
    /// No change yet.
    pub(crate) fn of(delivery: &Delivery) -> Self {
        let was_accepted = matches!(delivery.state, State::Accepted | State::Delivered | State::Bounced);
        Self { before: delivery.clone(), after: delivery.clone(), attempt: None, was_accepted, facts_only: Vec::new(), copies: None }
    }

    /// What is changed beside the state, which stays.
    pub(crate) fn beside_the_state(mut self) -> Change {
        self.after.version += 1;
        Change {
            before: self.before,
            after: self.after,
            attempt: self.attempt,
            events: Vec::new(),
            copies: self.copies,
            suppression: None,
            of_copies: Vec::new(),
        }
    }

    /// Waits until this instant, where it comes to wait.
    pub(crate) fn wait_until(mut self, at: Timestamp) -> Self {
        self.after.available_at = Some(at);
        self
    }

    pub(super) fn hold_from(&mut self, rules: &Rules, since: Timestamp) {
        self.after.ambiguous_since = Some(since);
        self.after.rung = 0;
        self.after.check_at = Some(since.plus(rules.of(self.before.class).ambiguity.hold));
    }

    pub(super) fn wait_for_account(self, next: Timestamp, now: Timestamp) -> Option<Change> {
        let past_expiry = next >= self.before.expires_at;
        self.wait_until(next).step(Event::AccountAtFault { past_expiry }, past_expiry.then_some(Reason::Deadline), now)
    }

    /// Records the acceptance of a generation; a second one, or another generation's, is a doubled send (S-112, S-126).
    pub(super) fn accept(&mut self, facts: &FinishFacts, item: &Finish) {
        let again = facts.accepted_generations.contains(&item.generation);
        if let Some(attempt) = &mut self.attempt {
            attempt.accepted_at = (!again).then_some(item.finished_at);
            if again {
                attempt.outcome = AttemptOutcome::AcceptedAgain;
            }
        }
        if !facts.accepted_generations.is_empty() && !self.before.flags.has(Flags::DUPLICATE_SENT) {
            self.after.flags = self.after.flags.with(Flags::DUPLICATE_SENT);
            self.facts_only.push(EventType::DuplicateSent);
        }
    }

    /// Does what the table says of `event`; `None` where it says nothing.
    pub(crate) fn step(self, event: Event, reason: Option<Reason>, now: Timestamp) -> Option<Change> {
        let from = self.before.state;
        self.step_from(from, event, reason, now)
    }

    /// Asks the table and fills in what every move sets.
    pub(super) fn step_from(mut self, from: State, event: Event, reason: Option<Reason>, now: Timestamp) -> Option<Change> {
        let facts = Facts {
            unresolved: self.after.unresolved,
            called: self.after.attempt_count > 0,
            was_accepted: self.was_accepted,
            channel: self.before.channel,
            reason: self.before.reason,
        };
        let to = match from.after(event, &facts) {
            Next::To(to) => to,
            // News for a row that stays where it is: recorded beside the state.
            Next::Same | Next::Pending if self.attempt.is_some() => self.before.state,
            Next::Same | Next::Pending | Next::Refused => return None,
        };
        self.after.version += 1;
        if to != self.before.state {
            let intended = match from.after(event, &Facts { unresolved: 0, ..facts }) {
                Next::To(intended) => intended,
                Next::Same | Next::Pending | Next::Refused => to,
            };
            let behind = reason_behind(intended).filter(|_| to == State::Unknown);
            self.enter(to, behind.or(reason), now);
        }
        let entry = EventType::of_entry(to).filter(|_| to != self.before.state);
        let (smtp_code, enhanced_code) =
            self.attempt.as_ref().and_then(|attempt| attempt.provider_code.as_deref()).map_or((None, None), codes);
        let events = entry.into_iter().chain(self.facts_only);
        let events = events.map(|kind| EventRecord { kind, occurred_at: now, smtp_code, enhanced_code: enhanced_code.clone() }).collect();
        Some(Change {
            before: self.before,
            after: self.after,
            attempt: self.attempt,
            events,
            copies: self.copies,
            suppression: None,
            of_copies: Vec::new(),
        })
    }

    /// Sets the columns that belong to a state and clears those that belong to others.
    fn enter(&mut self, to: State, reason: Option<Reason>, now: Timestamp) {
        let after = &mut self.after;
        after.state = to;
        if !to.is_waiting() {
            after.available_at = None;
            after.blocked = false;
        } else if after.no_resend.is_some() {
            // What was stopped while its call ran does not wait for a try that will never be: the next judgement ends it.
            after.available_at = Some(now);
        }
        if to != State::Dispatching {
            after.lease_expires_at = None;
            after.lease_owner = None;
        }
        if to != State::Ambiguous {
            after.ambiguous_since = None;
            after.check_at = None;
        }
        if to.is_open() {
            after.settled_at = None;
            after.reason = None;
        } else {
            after.reason = reason;
            after.settled_at = Some(if to == State::Accepted { after.settled_at.unwrap_or(now) } else { now });
        }
    }
}

/// The reply code and enhanced code in a provider code such as `550 5.1.1`.
fn codes(code: &str) -> (Option<i16>, Option<String>) {
    let (reply, enhanced) = code.split_once(' ').unwrap_or((code, ""));
    let smtp_code = reply.parse().ok().filter(|code| (200..600).contains(code));
    (smtp_code, smtp_code.and(Some(enhanced).filter(|enhanced| !enhanced.is_empty()).map(str::to_owned)))
}
