//! What a call to a provider meant: why it ended so, and whether the message may have been taken (S-049).
//! Adapters choose the outcome from their vendor's words; `transition` decides what follows from it.

use std::time::Duration;

use crate::words::{AttemptOutcome, Reason};

/// The meaning of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider took it.
    Accepted {
        /// What the provider calls it, normalised; `None` where the answer named nothing usable.
        message_id: Option<String>,
        /// Copies (cc, bcc, further `To`) that were refused while the message itself was taken.
        refused_copies: Vec<RefusedCopy>,
    },
    /// Certainly not taken; it may work later or elsewhere.
    NotSent {
        /// What stood in the way.
        why: NotSent,
        /// The least the provider asks to wait.
        retry_after: Option<Duration>,
    },
    /// Certainly not taken, because the account is to slow down. Uses no attempt.
    Throttled {
        /// How long the account is to stay silent; `None` leaves it to the pacer.
        retry_after: Option<Duration>,
    },
    /// Certainly not taken, and the same message will not be.
    Refused {
        /// Whose fault it is.
        by: Refusal,
        /// The word that applications see.
        reason: Reason,
    },
    /// What no sender could pass on this account: a wrong password, a refused certificate. Uses no attempt.
    Credential,
    /// It may or may not have been taken. Never resent on this alone (S-119).
    Ambiguous,
    /// Handed back before the provider could have taken it; not counted.
    NotStarted,
    /// The message could not be built, or the adapter panicked before the first byte.
    BuildFailed,
}

/// What stood in the way of a message that certainly was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// Nobody answered: DNS, connect, TLS, greeting, 421 before MAIL, a connection lost early. Limited by age alone.
    Unreachable,
    /// The provider answered with a temporary refusal. Counts against the attempts.
    Answered,
    /// This account cannot carry this message (permanent_route): the next account, else `failed`.
    Route,
}

/// Whose fault a definite refusal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The address.
    Recipient {
        /// It stands on the provider's own suppression list, or the person opted out there.
        listed: bool,
        /// The mailbox does not exist and will not: what a suppression of the address may rest on.
        hard: bool,
    },
    /// What the message says.
    Content,
    /// How it was asked for, size included.
    Request,
    /// Who it comes from: the next account of the route, else `failed`.
    Sender,
}

/// A copy that the provider refused while it took the message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RefusedCopy {
    /// The address as it stood in the envelope. Sealed before it is stored.
    pub address: String,
    /// The provider's code, such as `550 5.1.1`.
    pub code: String,
}

/// Everything an adapter reports about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it meant.
    pub outcome: Outcome,
    /// The provider's own code, such as `550 5.1.1`, for the attempt's record.
    pub code: Option<String>,
    /// One short sentence in our words: phase and kind of failure. Never an address, content or secret.
    pub detail: Option<String>,
    /// Copies that this call did deliver, so that no later attempt repeats them. Empty unless some were refused.
    pub accepted_copies: Vec<String>,
    /// Copies whose refusal was certain about the mailbox, whatever became of the message itself (S-149).
    pub dead_copies: Vec<String>,
}

impl Report {
    /// A report of `outcome` with neither code nor detail.
    pub const fn new(outcome: Outcome) -> Self {
        Self { outcome, code: None, detail: None, accepted_copies: Vec::new(), dead_copies: Vec::new() }
    }

    /// The same report with the provider's code.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The same report with a sentence of ours.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl Outcome {
    /// The word that attempts show.
    pub const fn word(&self) -> AttemptOutcome {
        match self {
            Self::Accepted { .. } => AttemptOutcome::Accepted,
            // The account will not carry it at all: in the history that is a refusal, so that it is not asked again.
            Self::NotSent { why: NotSent::Route, .. } => AttemptOutcome::RequestRefused,
            Self::NotSent { .. } => AttemptOutcome::NotSent,
            Self::Throttled { .. } => AttemptOutcome::Throttled,
            Self::Refused { by: Refusal::Recipient { .. }, .. } => AttemptOutcome::RecipientRefused,
            Self::Refused { by: Refusal::Content, .. } => AttemptOutcome::ContentRefused,
            Self::Refused { by: Refusal::Request, .. } => AttemptOutcome::RequestRefused,
            Self::Refused { by: Refusal::Sender, .. } => AttemptOutcome::SenderRefused,
            Self::Credential => AttemptOutcome::Credential,
            Self::Ambiguous => AttemptOutcome::Ambiguous,
            Self::NotStarted | Self::BuildFailed => AttemptOutcome::NotStarted,
        }
    }
}
