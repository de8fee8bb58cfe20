//! The states of a delivery and the one table of what moves it between them.
//! The table in words, with its row numbers, is `docs/states.md`. Which columns change with a move is `transition`'s business; nothing else changes a state.

use crate::words::{Channel, Reason, words};

words! {
    /// Where a delivery stands.
    pub enum State {
        Queued = "queued", Scheduled = "scheduled", RetryWait = "retry_wait", Deferred = "deferred",
        Dispatching = "dispatching", Ambiguous = "ambiguous", Accepted = "accepted",
        Delivered = "delivered", Bounced = "bounced", Failed = "failed", Suppressed = "suppressed",
        Cancelled = "cancelled", Expired = "expired", Superseded = "superseded", Dead = "dead", Unknown = "unknown",
    }
}

words! {
    /// How sure we are that the state is the whole truth.
    pub enum Certainty { Confirmed = "confirmed", Unconfirmed = "unconfirmed", Unknown = "unknown", }
}

impl State {
    /// Waiting to be claimed.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Queued | Self::Scheduled | Self::RetryWait | Self::Deferred)
    }

    /// Held in the `queue` table: Tidings may still call a provider, or does not know yet.
    pub const fn is_open(self) -> bool {
        self.is_waiting() || matches!(self, Self::Dispatching | Self::Ambiguous)
    }

    /// Over, but for evidence. `accepted` is not an end while receipts may come.
    pub const fn is_end(self) -> bool {
        !self.is_open() && !matches!(self, Self::Accepted)
    }
}

/// What a receipt or a look-up proves, by rank (`accepted`, `sent`, `deferred` 1 to 2; `delivered` 3; negatives 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// Rank 1 or 2: a provider has it.
    Taken,
    /// Rank 3.
    Delivered,
    /// Rank 4: the mailbox or the carrier gave it back.
    Bounced,
    /// Rank 4: the provider dropped it.
    Failed,
    /// Rank 4: the provider's own list or a STOP.
    Suppressed,
}

/// What happens to a delivery. The numbers in the comments of `after` are the rows of the documented table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The judge cleared it for a call.
    Cleared,
    /// It is past `expires_at`, or too late after its `send_at`.
    Overdue,
    /// The address is suppressed, or consent is missing.
    Suppressed,
    /// Quiet hours of the person.
    QuietHours,
    /// No usable account, a disabled tenant, a switch, no token.
    Held,
    /// The owner hands it back: the provider cannot have taken it.
    NotStarted,
    /// The provider took it.
    Accepted,
    /// Certainly not taken; tries are left and the next is before `expires_at`.
    NotSentAgain,
    /// Certainly not taken; the tries are used up.
    NotSentUsedUp,
    /// Certainly not taken; the next try would be at or past `expires_at`.
    NotSentPastExpiry,
    /// The account is to slow down or lacks a credential; the message is not to blame.
    AccountAtFault {
        /// The earliest next try would be at or past `expires_at`.
        past_expiry: bool,
    },
    /// A definite refusal.
    Refused,
    /// A refusal by the provider's own suppression list.
    RefusedListed,
    /// A refusal that another account of the route may not share.
    RefusedHere,
    /// The provider may have taken it.
    Ambiguous,
    /// The lease ran out, or the instance is gone.
    LeaseLost,
    /// A receipt or a look-up.
    Evidence(Evidence),
    /// The same call again under the vendor's own key.
    KeyedResend,
    /// The hold is over and the class policy allows one more send.
    HoldOverResend,
    /// The hold is over.
    HoldOver,
    /// A newer notification has the same `collapse_key`.
    Collapsed,
    /// The application or an operator wants it stopped.
    Cancelled,
    /// An acceptance of an older attempt or generation comes in late.
    StaleAcceptance,
    /// An older attempt turns out not to have been taken.
    StaleDenial,
    /// An operator says it was sent.
    ResolvedSent,
    /// An operator says it was not sent.
    ResolvedNotSent {
        /// It is past `expires_at`.
        past_expiry: bool,
    },
    /// An operator opens the same generation again.
    ResendSame,
    /// An operator asks for the next generation.
    ResendNext,
    /// `send_at` was changed.
    Rescheduled {
        /// The new time lies ahead.
        ahead: bool,
    },
    /// The message could not be built, before the first byte; it is tried once more.
    BuildFailedAgain,
    /// The message could not be built, for the second time.
    BuildFailed,
    /// A backup was restored: what was open then may have been sent since (S-248).
    RestoredInHold,
}

/// What else the table asks about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Attempts, over all generations, that may have been taken and for which no evidence came,
    /// counted after what this event itself resolves or adds.
    pub unresolved: u16,
    /// It was called before.
    pub called: bool,
    /// A generation of it was accepted.
    pub was_accepted: bool,
    /// The medium: only texts come back from `bounced`.
    pub channel: Channel,
    /// The reason beside `unknown`: the end it would otherwise have had.
    pub reason: Option<Reason>,
}

/// What the table answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The delivery moves (or is confirmed where it is).
    To(State),
    /// News that changes nothing.
    Same,
    /// Kept, and applied when the running call's outcome is written (row 15).
    Pending,
    /// The event cannot happen here; the caller's guard was wrong or the act is refused.
    Refused,
}

macro_rules! waiting {
    () => {
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred
    };
}
macro_rules! ended {
    () => {
        State::Delivered
            | State::Bounced
            | State::Failed
            | State::Suppressed
            | State::Cancelled
            | State::Expired
            | State::Superseded
            | State::Dead
            | State::Unknown
    };
}

impl State {
    /// Where a new delivery starts (row 1).
    pub const fn first(send_at_ahead: bool) -> Self {
        if send_at_ahead { Self::Scheduled } else { Self::Queued }
    }

    /// Where `event` takes a delivery in this state: the whole table.
    pub fn after(self, event: Event, facts: &Facts) -> Next {
        use State::*;
        // An unresolved attempt dominates: nothing says "not sent" while an earlier call may have been taken.
        let end = |end: State| Next::To(if facts.unresolved == 0 { end } else { Unknown });
        match (event, self) {
            // 2
            (Event::Cleared, waiting!()) => Next::To(Dispatching),
            (Event::Cleared, Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 3
            (Event::Overdue, waiting!()) => end(Expired),
            (Event::Overdue, Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 4
            (Event::Suppressed, waiting!()) => end(Suppressed),
            (Event::Suppressed, Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 5
            (Event::QuietHours, waiting!()) => Next::To(Deferred),
            (Event::QuietHours, Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 6
            (Event::Held, waiting!()) => Next::Same,
            (Event::Held, Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 7, 17
            (Event::NotStarted, Dispatching | Ambiguous) => Next::To(if facts.called { RetryWait } else { Queued }),
            (Event::NotStarted, waiting!() | Accepted | ended!()) => Next::Refused,
            // 8, 17
            (Event::Accepted, Dispatching | Ambiguous) => Next::To(Accepted),
            (Event::Accepted, waiting!() | Accepted | ended!()) => Next::Refused,
            // 9, 17
            (Event::NotSentAgain, Dispatching | Ambiguous) => Next::To(RetryWait),
            (Event::NotSentAgain, waiting!() | Accepted | ended!()) => Next::Refused,
            // 10, 17
            (Event::NotSentUsedUp, Dispatching | Ambiguous) => end(Dead),
            (Event::NotSentUsedUp, waiting!() | Accepted | ended!()) => Next::Refused,
            (Event::NotSentPastExpiry, Dispatching | Ambiguous) => end(Expired),
            (Event::NotSentPastExpiry, waiting!() | Accepted | ended!()) => Next::Refused,
            // 11, 17
            (Event::AccountAtFault { past_expiry: false }, Dispatching | Ambiguous) => Next::To(RetryWait),
            (Event::AccountAtFault { past_expiry: true }, Dispatching | Ambiguous) => end(Expired),
            (Event::AccountAtFault { past_expiry: _ }, waiting!() | Accepted | ended!()) => Next::Refused,
            // 12, 17
            (Event::Refused, Dispatching | Ambiguous) => end(Failed),
            (Event::Refused, waiting!() | Accepted | ended!()) => Next::Refused,
            (Event::RefusedListed, Dispatching | Ambiguous) => end(Suppressed),
            (Event::RefusedListed, waiting!() | Accepted | ended!()) => Next::Refused,
            (Event::RefusedHere, Dispatching | Ambiguous) => Next::To(RetryWait),
            (Event::RefusedHere, waiting!() | Accepted | ended!()) => Next::Refused,
            // 13
            (Event::Ambiguous, Dispatching) => Next::To(Ambiguous),
            (Event::Ambiguous, Ambiguous) => Next::Same,
            (Event::Ambiguous, waiting!() | Accepted | ended!()) => Next::Refused,
            // 14
            (Event::LeaseLost, Dispatching) => Next::To(Ambiguous),
            (Event::LeaseLost, waiting!() | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 15, 18, 21, 22, 23
            (Event::Evidence(evidence), _) => self.after_evidence(evidence, facts),
            // 16
            (Event::KeyedResend, Ambiguous) => Next::To(Dispatching),
            (Event::KeyedResend, waiting!() | Dispatching | Accepted | ended!()) => Next::Refused,
            // 19
            (Event::HoldOverResend, Ambiguous) => Next::To(RetryWait),
            (Event::HoldOverResend, waiting!() | Dispatching | Accepted | ended!()) => Next::Refused,
            // 20
            (Event::HoldOver, Ambiguous) => Next::To(Unknown),
            (Event::HoldOver, waiting!() | Dispatching | Accepted | ended!()) => Next::Refused,
            // 24
            (Event::Collapsed, waiting!()) => end(Superseded),
            (Event::Collapsed, Dispatching | Ambiguous | Accepted | ended!()) => Next::Same,
            // 25
            (Event::Cancelled, waiting!()) => end(Cancelled),
            (Event::Cancelled, Dispatching | Ambiguous | Accepted | ended!()) => Next::Same,
            // 26
            (Event::StaleAcceptance, waiting!() | Ambiguous | Unknown | Expired | Dead) => Next::To(Accepted),
            (Event::StaleAcceptance, Dispatching) => Next::Pending,
            (Event::StaleAcceptance, Accepted | Delivered | Bounced | Failed | Suppressed | Cancelled | Superseded) => Next::Same,
            // 27
            (Event::StaleDenial, Unknown) if facts.unresolved == 0 => Next::To(facts.reason.map_or(Dead, end_behind)),
            (Event::StaleDenial, waiting!() | Dispatching | Ambiguous | Accepted | ended!()) => Next::Same,
            // 28
            (Event::ResolvedSent, Ambiguous | Unknown) => Next::To(Accepted),
            (Event::ResolvedNotSent { past_expiry: false }, Ambiguous) => Next::To(RetryWait),
            (Event::ResolvedNotSent { past_expiry: true }, Ambiguous) => end(Failed),
            (Event::ResolvedNotSent { past_expiry: _ }, Unknown) => end(Failed),
            (Event::ResolvedSent | Event::ResolvedNotSent { .. }, waiting!() | Dispatching | Accepted) => Next::Refused,
            (
                Event::ResolvedSent | Event::ResolvedNotSent { .. },
                Delivered | Bounced | Failed | Suppressed | Cancelled | Expired | Superseded | Dead,
            ) => Next::Refused,
            // 29
            (Event::ResendSame, Dead | Expired | Failed) if facts.unresolved == 0 && !facts.was_accepted => Next::To(Queued),
            (Event::ResendSame, waiting!() | Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 30
            (Event::ResendNext, Accepted | ended!()) => Next::To(Queued),
            (Event::ResendNext, waiting!() | Dispatching | Ambiguous) => Next::Refused,
            // 31
            (Event::Rescheduled { ahead }, Queued | Scheduled) if !facts.called => Next::To(Self::first(ahead)),
            (Event::Rescheduled { .. }, waiting!() | Dispatching | Ambiguous | Accepted | ended!()) => Next::Refused,
            // 33
            (Event::BuildFailedAgain, Dispatching | Ambiguous) => Next::To(RetryWait),
            (Event::BuildFailedAgain, waiting!() | Accepted | ended!()) => Next::Refused,
            (Event::BuildFailed, Dispatching | Ambiguous) => end(Dead),
            (Event::BuildFailed, waiting!() | Accepted | ended!()) => Next::Refused,
            // 34
            (Event::RestoredInHold, waiting!() | Dispatching) => Next::To(Ambiguous),
            (Event::RestoredInHold, Ambiguous | Accepted | ended!()) => Next::Same,
        }
    }

    /// Rows 15, 18, 21, 22 and 23: every order of receipts gives one end.
    fn after_evidence(self, evidence: Evidence, facts: &Facts) -> Next {
        use State::*;
        let proven = match evidence {
            Evidence::Taken => Accepted,
            Evidence::Delivered => Delivered,
            Evidence::Bounced => Bounced,
            Evidence::Failed => Failed,
            Evidence::Suppressed => Suppressed,
        };
        match self {
            Dispatching => Next::Pending,
            Queued | Scheduled | RetryWait | Deferred if facts.unresolved == 0 && !facts.called => Next::Same,
            Queued | Scheduled | RetryWait | Deferred => Next::To(proven),
            Ambiguous | Accepted | Unknown | Expired | Dead => Next::To(proven),
            Delivered => match evidence {
                // Some mailboxes accept first and bounce hours later.
                Evidence::Bounced if facts.channel == Channel::Email => Next::To(Bounced),
                Evidence::Taken | Evidence::Delivered | Evidence::Bounced | Evidence::Failed | Evidence::Suppressed => Next::Same,
            },
            Bounced => match evidence {
                // Carriers report late; the caller holds the 72 h window.
                Evidence::Delivered if facts.channel == Channel::Sms => Next::To(Delivered),
                Evidence::Taken | Evidence::Delivered | Evidence::Bounced | Evidence::Failed | Evidence::Suppressed => Next::Same,
            },
            Failed | Suppressed | Cancelled | Superseded => Next::Same,
        }
    }
}

/// The reason shown beside `unknown` for a delivery that would otherwise have ended in `end`.
pub const fn reason_behind(end: State) -> Option<Reason> {
    match end {
        State::Failed => Some(Reason::Refused),
        State::Suppressed => Some(Reason::Suppressed),
        State::Cancelled => Some(Reason::Cancelled),
        State::Expired => Some(Reason::Expired),
        State::Superseded => Some(Reason::Collapsed),
        State::Dead => Some(Reason::AttemptsExhausted),
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred | State::Dispatching | State::Ambiguous => None,
        State::Accepted | State::Delivered | State::Bounced | State::Unknown => None,
    }
}

/// The end behind `unknown` with this reason; `hold_over` and `poison` were nobody's refusal and are `dead`.
const fn end_behind(reason: Reason) -> State {
    match reason {
        Reason::Refused => State::Failed,
        Reason::Suppressed => State::Suppressed,
        Reason::Cancelled => State::Cancelled,
        Reason::Expired => State::Expired,
        Reason::Collapsed => State::Superseded,
        _ => State::Dead,
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
