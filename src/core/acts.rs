//! What people and applications ask of deliveries that exist: cancel, reschedule, resolve, resend, discard (rows 25 and 28
//! to 31). Which state an act leads to is the table in `state`; storing it is the stores' business, answering the gateway's.

use std::time::Duration;

use crate::delivery::{AttemptRecord, Change, Delivery};
use crate::ids::{DeliveryId, NotificationId, TenantId};
use crate::policy::Rules;
use crate::state::State;
use crate::time::Timestamp;
use crate::words::{Mode, Reason, words};

mod audit;
mod resend;
mod settle;
#[cfg(test)]
mod tests;

pub use audit::AuditEntry;

/// One thing that is asked for.
#[derive(Debug, Clone)]
pub struct Act {
    /// Whose deliveries.
    pub tenant: TenantId,
    /// The only mode that exists for whoever asks.
    pub mode: Mode,
    /// Of which deliveries.
    pub target: Target,
    /// What.
    pub verb: Verb,
    /// Only while the version is still this one: a delivery's own, a notification's sum.
    pub if_version: Option<i64>,
    /// Who asks, for the audit log: a key, never an address.
    pub actor: String,
    /// Why, in the words of whoever asks.
    pub note: Option<String>,
}

/// The deliveries that an act is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// All of a notification.
    Notification(NotificationId),
    /// One.
    Delivery(DeliveryId),
}

impl Target {
    /// The notification, or the one that the delivery belongs to.
    pub fn notification(self) -> NotificationId {
        match self {
            Self::Notification(id) => id,
            Self::Delivery(id) => id.notification(),
        }
    }
}

words! {
    /// What an operator found out about a send.
    pub enum Finding { Sent = "sent", NotSent = "not_sent", }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Not to be sent any more, for this reason.
    Cancel(Reason),
    /// To be sent at another time; `None` means now.
    Reschedule(Option<Timestamp>),
    /// What became of a send that nobody answered for.
    Resolve(Finding),
    /// To be sent again.
    Resend(Resend),
    /// To be looked at no more (S-060).
    Discard,
}

impl Verb {
    /// The word in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel(_) => "cancel",
            Self::Reschedule(_) => "reschedule",
            Self::Resolve(Finding::Sent) => "resolve_sent",
            Self::Resolve(Finding::NotSent) => "resolve_not_sent",
            Self::Resend(Resend { replay: Some(_), .. }) => "replay",
            Self::Resend(Resend { replay: None, .. }) => "resend",
            Self::Discard => "discard",
        }
    }
}

/// How a delivery is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resend {
    /// Which generation is asked for; `None` opens the present one again, where certainly nobody took it.
    pub generation: Option<u16>,
    /// How long it is worth sending; `None` leaves it to category and class.
    pub expires_in: Option<Duration>,
    /// As one of many: how long it waits, so that live traffic has the accounts to itself (S-062).
    pub replay: Option<Duration>,
}

/// What the store knows of a delivery when an act is decided, all of one locked moment.
#[derive(Debug, Clone)]
pub struct ActFacts {
    /// Its queue row, or its record once it has left the queue; the category is filled in either way.
    pub delivery: Delivery,
    /// Its recorded attempts.
    pub attempts: Vec<AttemptRecord>,
    /// Email: its present `Message-ID`.
    pub message_id: Option<String>,
    /// Whether address and content are still there.
    pub has_content: bool,
    /// How often it was replayed in bulk.
    pub replays: u16,
    /// When it was to be sent, as accepted.
    pub send_at: Option<Timestamp>,
    /// When it was to be dropped, as accepted.
    pub expires_at: Timestamp,
}

impl ActFacts {
    /// Whether some generation was taken.
    fn was_accepted(&self) -> bool {
        let by_state = matches!(self.delivery.state, State::Accepted | State::Delivered | State::Bounced);
        by_state || self.attempts.iter().any(|attempt| attempt.accepted_at.is_some())
    }
}

/// A change that an act makes, with what it writes beside the state. A store writes both in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acting {
    /// The change.
    pub change: Change,
    /// The delivery's own `send_at` from now on.
    pub send_at: Option<Timestamp>,
    /// Its `Message-ID` from now on.
    pub message_id: Option<String>,
    /// It was replayed once more.
    pub replayed: bool,
    /// Attempts without an answer are settled: no longer counted as unresolved, whatever their results say later.
    pub settles_attempts: bool,
    /// A new generation: what receipts said of earlier ones does not rank against its own.
    pub forgets_receipts: bool,
}

impl Acting {
    /// A change with nothing beside it.
    const fn of(change: Change) -> Self {
        Self { change, send_at: None, message_id: None, replayed: false, settles_attempts: false, forgets_receipts: false }
    }
}

/// Why an act was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such delivery for whoever asks, or none that this can be asked of.
    NotFound,
    /// It has changed since the version that was named.
    StaleVersion,
    /// Nothing of it can be stopped or moved any more; the furthest state.
    AlreadyDispatched(State),
    /// It is open, or may have been taken.
    OutcomeUnresolved(State),
    /// What became of it is known, and it is something else.
    OutcomeKnown(State),
    /// The generation has to be named; this is the next.
    GenerationMissing(u16),
    /// This one is the next.
    GenerationAhead(u16),
    /// The new time lies at or past its deadline.
    PastDeadline(Timestamp),
    /// It goes out in its turn: a time of its own would hold up its line, or be ignored (S-077).
    Ordered,
    /// It ended too long ago (S-063).
    ReplayWindowClosed,
    /// It was replayed as often as may be (S-062).
    ReplayedTooOften,
    /// Its address or content is gone.
    ContentErased,
}

/// What an act comes to. Changes are written also where the answer is a refusal: a cancel that comes too late for the
/// running call still forbids the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is to be written; each delivery once.
    pub changes: Vec<Acting>,
    /// What is answered. `Ok` without changes: it is so already.
    pub answer: Result<(), Refusal>,
}

impl Decision {
    const fn refused(refusal: Refusal) -> Self {
        Self { changes: Vec::new(), answer: Err(refusal) }
    }
}

/// What an act does to one delivery.
type One = (Option<Acting>, Result<(), Refusal>);

/// It is so already.
const ALREADY: One = (None, Ok(()));

const fn refused(refusal: Refusal) -> One {
    (None, Err(refusal))
}

fn done(acting: Option<Acting>) -> One {
    match acting {
        Some(acting) => (Some(acting), Ok(())),
        // The table has the last word.
        None => refused(Refusal::NotFound),
    }
}

/// Decides about an act, given all deliveries that it is about.
pub fn decide(rules: &Rules, act: &Act, facts: &[ActFacts], now: Timestamp) -> Decision {
    if facts.is_empty() {
        return Decision::refused(Refusal::NotFound);
    }
    let version: i64 = facts.iter().map(|facts| i64::from(facts.delivery.version)).sum();
    if act.if_version.is_some_and(|expected| expected != version) {
        return Decision::refused(Refusal::StaleVersion);
    }
    let one = |facts: &ActFacts| match act.verb {
        Verb::Cancel(reason) => settle::cancel(facts, reason, now),
        Verb::Reschedule(send_at) => settle::reschedule(rules, facts, send_at, now),
        Verb::Resolve(finding) => settle::resolve(facts, finding, now),
        Verb::Resend(resend) => resend::resend(rules, facts, resend, now),
        Verb::Discard => settle::discard(facts),
    };
    let (changes, answers): (Vec<_>, Vec<_>) = facts.iter().map(one).unzip();
    // A time that is wrong for one delivery is wrong in the request.
    if let Some(wrong) = answers.iter().find(|answer| matches!(answer, Err(Refusal::PastDeadline(_) | Refusal::Ordered))) {
        return Decision { changes: Vec::new(), answer: *wrong };
    }
    let answer = answers.iter().find(|answer| answer.is_ok()).or(answers.first()).copied().unwrap_or(Err(Refusal::NotFound));
    Decision { changes: changes.into_iter().flatten().collect(), answer }
}

/// Acts in rounds that touch every delivery at most once, in the order given.
pub fn rounds(acts: &[Act]) -> Vec<Vec<usize>> {
    let overlap = |a: &Act, b: &Act| match (a.target, b.target) {
        (Target::Delivery(a), Target::Delivery(b)) => a == b,
        (a, b) => a.notification() == b.notification(),
    };
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (index, act) in acts.iter().enumerate() {
        let after = rounds.iter().rposition(|round| round.iter().any(|earlier| overlap(&acts[*earlier], act)));
        let round = after.map_or(0, |after| after + 1);
        if rounds.len() <= round {
            rounds.push(Vec::new());
        }
        rounds[round].push(index);
    }
    rounds
}
