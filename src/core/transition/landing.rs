//! What the outcome of a call does to its delivery: under the running epoch a command, after it evidence.

use std::time::Duration;

use super::{Draft, acceptance_stops};
use crate::delivery::{AttemptRecord, Change, Delivery, Flags};
use crate::ids::{AccountId, DeliveryId};
use crate::outcome::{NotSent, Outcome, Refusal, Report};
use crate::policy::{BUILD_RETRY, Rules};
use crate::state::{Event, Evidence, State};
use crate::store::NewSuppression;
use crate::suppression::{Note, imposed_by};
use crate::time::Timestamp;
use crate::words::{AttemptOutcome, Class, Reason};

/// The outcome of one call, ready to be written.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Which delivery.
    pub id: DeliveryId,
    /// The lease's epoch under which the call ran.
    pub number: u16,
    /// Which logical send it was.
    pub generation: u16,
    /// By which account.
    pub account: AccountId,
    /// When its claim was committed.
    pub started_at: Timestamp,
    /// When the outcome was known.
    pub finished_at: Timestamp,
    /// The outcome itself.
    pub report: Report,
    /// Random, in `0.0..1.0`, for the delay before the next try.
    pub jitter: f64,
    /// Where the account stands in its route.
    pub position: RoutePosition,
    /// The other accounts of the route that may send it.
    pub others: Vec<AccountId>,
    /// Until when receipts may come after an acceptance; `None` where the account reports nothing.
    pub receipt_window: Option<Duration>,
    /// The sandbox took it.
    pub sandbox: bool,
    /// The id by which receipts will find the attempt.
    pub match_key: Option<String>,
    /// Refused copies, sealed.
    pub copies: Option<Vec<u8>>,
    /// Suppressions that refused copies lead to.
    pub of_copies: Vec<NewSuppression>,
}

/// Where an account stands in the route of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutePosition {
    /// It is not the first.
    pub is_failover: bool,
    /// The route has another one.
    pub has_other: bool,
    /// The route has one behind it.
    pub has_later: bool,
}

/// What the store knows when an outcome comes in.
#[derive(Debug, Clone)]
pub struct FinishFacts {
    /// The delivery: its queue row, or its record once it has left the queue.
    pub delivery: Delivery,
    /// What is recorded of this very attempt already.
    pub recorded: Option<AttemptOutcome>,
    /// An operator settled this very attempt: it is no longer counted as unresolved.
    pub settled: bool,
    /// Generations of which an acceptance is recorded.
    pub accepted_generations: Vec<u16>,
    /// The other calls of the same generation: by whom, and what came of them.
    pub tried: Vec<(AccountId, AttemptOutcome)>,
}

impl FinishFacts {
    /// Whether an account of the route has not been asked in this generation.
    fn has_untried(&self, item: &Finish) -> bool {
        item.others.iter().any(|other| !self.tried.iter().any(|(account, _)| account == other))
    }

    /// Whether an account of the route has not refused it in this generation.
    fn has_unrefused(&self, item: &Finish) -> bool {
        item.others.iter().any(|other| !self.tried.iter().any(|(account, outcome)| account == other && outcome.refused_here()))
    }
}

/// What became of a `Finish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landed {
    /// Written; the delivery as it is now, and what came to light.
    Moved(Box<Delivery>, Found),
    /// It was written before, or says nothing new.
    Already,
    /// The row moved between reading and writing; give it again.
    Fenced,
    /// Neither queue nor record knows the delivery: it was purged.
    Gone,
}

/// The rare things that an outcome may bring to light; they are counted (S-224).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// It came after its lease had ended.
    pub is_late: bool,
    /// The delivery was ambiguous and is no longer.
    pub resolves: bool,
    /// It is known from now on that two sends were taken.
    pub is_duplicate: bool,
    /// The provider suppresses the address itself.
    pub is_listed: bool,
}

impl Found {
    /// What a change that an outcome led to says.
    pub fn of(change: &Change) -> Self {
        let (before, after) = (&change.before, &change.after);
        Self {
            is_late: change.attempt.as_ref().is_some_and(|attempt| attempt.late),
            resolves: before.state == State::Ambiguous && after.state != State::Ambiguous,
            is_duplicate: after.flags.has(Flags::DUPLICATE_SENT) && !before.flags.has(Flags::DUPLICATE_SENT),
            is_listed: after.state == State::Suppressed && before.state != State::Suppressed,
        }
    }
}

/// Writes the outcome of a call (rows 7 to 13, 17, 26, 27 and 33); `None` where it says nothing new.
pub fn finish(rules: &Rules, facts: &FinishFacts, item: &Finish, now: Timestamp) -> Option<Change> {
    let delivery = &facts.delivery;
    let is_open = matches!(facts.recorded, None | Some(AttemptOutcome::Lost | AttemptOutcome::Ambiguous | AttemptOutcome::InFlight));
    if !is_open {
        return None;
    }
    let is_current = item.number == delivery.attempt_number && item.generation == delivery.generation;
    let change = match delivery.state {
        State::Dispatching | State::Ambiguous if is_current => land(rules, facts, item, now),
        _ => land_late(facts, item, now),
    };
    // What a provider says about the mailbox holds wherever the delivery stands by now (S-149).
    let imposed = imposed_by(&item.report.outcome, delivery.id, now).map(Note::Imposes);
    change.map(|change| Change { suppression: imposed, of_copies: item.of_copies.clone(), ..change })
}

/// An outcome under the running epoch (rows 7 to 13, 33), or of an epoch whose lease was lost since (row 17).
fn land(rules: &Rules, facts: &FinishFacts, item: &Finish, now: Timestamp) -> Option<Change> {
    let delivery = &facts.delivery;
    let is_late = delivery.state == State::Ambiguous;
    let mut draft = Draft::of(delivery);
    if is_late {
        // The reaper counted the call and called it unresolved; its own result resolves it first.
        draft.after.unresolved = draft.after.unresolved.saturating_sub(1);
    } else {
        draft.after.attempt_count += 1;
    }
    draft.attempt = Some(record(item, item.report.outcome.word(), is_late));
    draft.copies.clone_from(&item.copies);

    let taken_before = facts.accepted_generations.iter().any(|generation| acceptance_stops(delivery, *generation));
    let is_accepted = matches!(item.report.outcome, Outcome::Accepted { .. });
    if taken_before && !is_accepted {
        // An earlier generation was taken, as became known while this call ran (rows 15 and 18).
        return draft.step_from(State::Ambiguous, Event::Evidence(Evidence::Taken), None, now);
    }
    match &item.report.outcome {
        Outcome::Accepted { .. } => land_accepted(draft, facts, item, now),
        Outcome::NotSent { why, retry_after } => land_not_sent(draft, rules, facts, item, *why, *retry_after, now),
        Outcome::Throttled { retry_after } => {
            let wait = if item.position.has_other { Duration::ZERO } else { retry_after.unwrap_or(Duration::from_secs(1)) };
            draft.wait_for_account(now.plus(wait.mul_f64(1.0 + item.jitter / 10.0)), now)
        }
        Outcome::Credential => draft.wait_for_account(now, now),
        Outcome::Refused { by, reason } => match by {
            Refusal::Sender if facts.has_unrefused(item) => draft.wait_until(now).step(Event::RefusedHere, None, now),
            Refusal::Recipient { listed: true, .. } => draft.step(Event::RefusedListed, Some(Reason::ProviderSuppressed), now),
            Refusal::Sender | Refusal::Recipient { .. } | Refusal::Content | Refusal::Request => {
                draft.step(Event::Refused, Some(*reason), now)
            }
        },
        Outcome::Ambiguous if is_late => None,
        Outcome::Ambiguous => {
            draft.after.unresolved += 1;
            draft.hold_from(rules, now);
            draft.step(Event::Ambiguous, None, now)
        }
        Outcome::NotStarted => {
            draft.after.attempt_count = draft.after.attempt_count.saturating_sub(1);
            draft.wait_until(now).step(Event::NotStarted, None, now)
        }
        Outcome::BuildFailed => {
            draft.after.attempt_count = draft.after.attempt_count.saturating_sub(1);
            draft.after.build_failures += 1;
            if draft.after.build_failures >= 2 {
                draft.step(Event::BuildFailed, Some(Reason::RenderError), now)
            } else {
                draft.wait_until(now.plus(BUILD_RETRY)).step(Event::BuildFailedAgain, None, now)
            }
        }
    }
}

fn land_accepted(mut draft: Draft, facts: &FinishFacts, item: &Finish, now: Timestamp) -> Option<Change> {
    draft.accept(facts, item);
    if item.position.is_failover {
        draft.after.flags = draft.after.flags.with(Flags::VIA_FAILOVER);
    }
    if item.sandbox {
        draft.after.flags = draft.after.flags.with(Flags::SANDBOX);
    }
    draft.after.settled_at = Some(item.receipt_window.map_or(now, |window| now.plus(window)));
    draft.step(Event::Accepted, None, now)
}

fn land_not_sent(
    mut draft: Draft,
    rules: &Rules,
    facts: &FinishFacts,
    item: &Finish,
    why: NotSent,
    retry_after: Option<Duration>,
    now: Timestamp,
) -> Option<Change> {
    let retry = &rules.of(draft.before.class).retry;
    let failures = match why {
        NotSent::Route if facts.has_unrefused(item) => return draft.wait_until(now).step(Event::RefusedHere, None, now),
        NotSent::Route => return draft.step(Event::Refused, Some(Reason::NoAccount), now),
        NotSent::Unreachable => draft.before.attempt_count.saturating_sub(draft.before.attempts_used),
        NotSent::Answered => {
            draft.after.attempts_used += 1;
            if draft.after.attempts_used >= draft.before.attempt_limit {
                return draft.step(Event::NotSentUsedUp, Some(Reason::AttemptsExhausted), now);
            }
            draft.before.attempts_used
        }
    };
    // Down the route at once; the next round of it waits, or a code would use up its tries within a second.
    let moves_on = draft.before.class == Class::Critical && (item.position.has_later || facts.has_untried(item));
    let delay = if moves_on { Duration::ZERO } else { retry.delay(why, failures, retry_after, item.jitter) };
    let next = now.plus(delay);
    if next >= draft.before.expires_at {
        return draft.step(Event::NotSentPastExpiry, Some(Reason::Deadline), now);
    }
    draft.wait_until(next).step(Event::NotSentAgain, None, now)
}

/// A result of an older epoch or generation: evidence, never a command (rows 26 and 27, S-034).
fn land_late(facts: &FinishFacts, item: &Finish, now: Timestamp) -> Option<Change> {
    let delivery = &facts.delivery;
    let mut draft = Draft::of(delivery);
    let word = item.report.outcome.word();
    if facts.recorded.is_some() && !facts.settled {
        draft.after.unresolved = draft.after.unresolved.saturating_sub(1);
        if word == AttemptOutcome::NotStarted {
            // The reaper counted a call that never was one.
            draft.after.attempt_count = draft.after.attempt_count.saturating_sub(1);
        }
    }
    draft.attempt = Some(record(item, word, true));
    match item.report.outcome {
        Outcome::Ambiguous => None,
        Outcome::Accepted { .. } => {
            draft.accept(facts, item);
            if delivery.attempt_number == item.number {
                // The resend that was due for the next generation does not happen.
                draft.after.generation = item.generation;
            }
            let settled = delivery.settled_at.unwrap_or(now);
            draft.after.settled_at = Some(item.receipt_window.map_or(now, |window| settled.max(now.plus(window))));
            draft.step(Event::StaleAcceptance, None, now)
        }
        Outcome::NotSent { .. }
        | Outcome::Throttled { .. }
        | Outcome::Refused { .. }
        | Outcome::Credential
        | Outcome::NotStarted
        | Outcome::BuildFailed => {
            // Nobody refused these, so that the end behind them keeps their reason.
            let reason = delivery.reason.filter(|reason| matches!(reason, Reason::HoldOver | Reason::Poison | Reason::Discarded));
            draft.step(Event::StaleDenial, reason, now)
        }
    }
}

fn record(item: &Finish, outcome: AttemptOutcome, late: bool) -> AttemptRecord {
    let provider_message_id = match &item.report.outcome {
        Outcome::Accepted { message_id, .. } => message_id.clone(),
        _ => None,
    };
    AttemptRecord {
        number: item.number,
        generation: item.generation,
        account: Some(item.account),
        started_at: item.started_at,
        finished_at: Some(item.finished_at),
        outcome,
        accepted_at: None,
        late,
        provider_code: item.report.code.clone(),
        provider_message_id,
        match_key: item.match_key.clone(),
        detail: item.report.detail.clone(),
    }
}
