//! What is said of a notification and its deliveries when they are read: derived status, `open`, what a delivery waits
//! for, and one sentence for people. Nothing of it is stored.

use std::fmt::Write as _;

use crate::delivery::{Delivery, Flags};
use crate::state::{Certainty, State};
use crate::time::Timestamp;
use crate::words::{Reason, WaitReason, words};

words! {
    /// How a notification as a whole stands; an open list for clients.
    pub enum Status {
        Scheduled = "scheduled", Processing = "processing", Delivered = "delivered", Accepted = "accepted",
        Suppressed = "suppressed", Expired = "expired", Cancelled = "cancelled", Superseded = "superseded",
        Unknown = "unknown", Failed = "failed", PartiallyFailed = "partially_failed",
    }
}

impl Status {
    /// Derives the status from the states of all deliveries of a notification. Without any it is `processing`.
    pub fn of(states: impl IntoIterator<Item = State>) -> Self {
        let (mut scheduled, mut kinds) = (false, Vec::new());
        let (mut good, mut bad) = (false, false);
        for state in states {
            match state {
                State::Scheduled => scheduled = true,
                State::Queued | State::RetryWait | State::Deferred | State::Dispatching | State::Ambiguous => return Self::Processing,
                State::Accepted | State::Delivered => good = true,
                State::Bounced | State::Failed | State::Suppressed | State::Cancelled => bad = true,
                State::Expired | State::Superseded | State::Dead | State::Unknown => bad = true,
            }
            if let Some(kind) = Self::of_ended(state)
                && !kinds.contains(&kind)
            {
                kinds.push(kind);
            }
        }
        match kinds.as_slice() {
            _ if scheduled => Self::Scheduled,
            [] => Self::Processing,
            [one] => *one,
            _ if good && bad => Self::PartiallyFailed,
            _ if good => Self::Accepted,
            mixed if mixed.contains(&Self::Unknown) => Self::Unknown,
            _ => Self::Failed,
        }
    }

    /// The status of a notification whose only delivery ended in `state`; `None` while it is open.
    const fn of_ended(state: State) -> Option<Self> {
        match state {
            State::Queued | State::Scheduled | State::RetryWait | State::Deferred | State::Dispatching | State::Ambiguous => None,
            State::Accepted => Some(Self::Accepted),
            State::Delivered => Some(Self::Delivered),
            State::Bounced | State::Failed | State::Dead => Some(Self::Failed),
            State::Suppressed => Some(Self::Suppressed),
            State::Cancelled => Some(Self::Cancelled),
            State::Expired => Some(Self::Expired),
            State::Superseded => Some(Self::Superseded),
            State::Unknown => Some(Self::Unknown),
        }
    }
}

/// Why a waiting delivery is not on its way: its own timer first, then what holds up its lane (`held_by`, known to the
/// process alone). `None` for one that is due and will be taken at once, and for one that does not wait.
pub fn wait_reason(delivery: &Delivery, held_by: Option<WaitReason>, now: Timestamp) -> Option<WaitReason> {
    if !delivery.state.is_waiting() {
        return None;
    }
    if delivery.blocked {
        return Some(WaitReason::Order);
    }
    let is_ahead = delivery.available_at.is_some_and(|at| at > now);
    match delivery.state {
        State::Scheduled if is_ahead => Some(WaitReason::Scheduled),
        State::Deferred if is_ahead => Some(WaitReason::QuietHours),
        // It stands back because nobody may send it, and not for a try of its own.
        State::RetryWait | State::Queued if is_ahead && held_by == Some(WaitReason::NoAccount) => held_by,
        State::RetryWait | State::Queued if is_ahead => Some(WaitReason::Backoff),
        _ => held_by,
    }
}

/// What holds up a route, from what holds up each of the accounts that may carry its messages (`None`: nothing does). Of
/// several reasons the one that is over first; without accounts there is nobody to carry it.
pub fn held_by(accounts: impl IntoIterator<Item = Option<WaitReason>>) -> Option<WaitReason> {
    let mut first = Some(WaitReason::NoAccount);
    for account in accounts {
        let reason = account?;
        first = first.into_iter().chain([reason]).min_by_key(|reason| lasts(*reason));
    }
    first
}

/// How long a reason lasts, compared with the others.
const fn lasts(reason: WaitReason) -> u8 {
    match reason {
        WaitReason::Scheduled | WaitReason::Backoff | WaitReason::Order | WaitReason::Rate | WaitReason::RetryBudget => 0,
        WaitReason::Breaker => 1,
        WaitReason::QuietHours | WaitReason::Digest | WaitReason::DailyCap => 2,
        // Somebody has to act.
        WaitReason::Paused | WaitReason::Policy | WaitReason::Held => 3,
        WaitReason::Credential | WaitReason::Tenant => 4,
        WaitReason::NoAccount => 5,
    }
}

/// What `summary` needs beside the delivery.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances<'a> {
    /// What it waits for, as `wait_reason` says.
    pub waits_for: Option<WaitReason>,
    /// The account of the newest attempt.
    pub account: Option<&'a str>,
    /// The account that takes it next, where there can be only one.
    pub next_account: Option<&'a str>,
}

/// One sentence for people; never an address or content.
pub fn summary(delivery: &Delivery, around: &Circumstances<'_>) -> String {
    let by = |account: Option<&str>| account.map(|name| format!(" by {name}")).unwrap_or_default();
    let (last, next) = (by(around.account), by(around.next_account));
    let mut text = match delivery.state {
        State::Queued | State::Scheduled | State::RetryWait | State::Deferred => waiting(delivery, around, &next),
        State::Dispatching => format!("is being sent{last}"),
        State::Ambiguous => ambiguous(delivery, &last),
        State::Accepted if delivery.flags.has(Flags::SANDBOX) => "was taken by the sandbox and did not leave this installation".to_owned(),
        State::Accepted if delivery.flags.has(Flags::CONFIRMED) => format!("was accepted{last}, which is confirmed"),
        State::Accepted => format!("was accepted{last}; whether it reached the person is not known"),
        State::Delivered => format!("was delivered{last}"),
        State::Bounced => format!("came back{}", because(delivery.reason)),
        State::Failed if delivery.reason == Some(Reason::ResolvedNotSent) => "was not sent, as an operator found".to_owned(),
        State::Failed => format!("was refused{last}{}", because(delivery.reason)),
        State::Suppressed => format!("was not sent{}", because(delivery.reason.or(Some(Reason::Suppressed)))),
        State::Cancelled => format!("was not sent{}", because(delivery.reason.or(Some(Reason::Cancelled)))),
        State::Expired => format!("was not sent in time{}", because(delivery.reason)),
        State::Superseded => format!("was not sent{}", because(delivery.reason.or(Some(Reason::Collapsed)))),
        State::Dead => format!("could not be sent{}", because(delivery.reason)),
        State::Unknown => unknown(delivery.reason),
    };
    if delivery.state.is_end() && delivery.state != State::Unknown && delivery.certainty() == Certainty::Unknown {
        text.push_str("; an earlier try may have been taken");
    }
    if delivery.flags.has(Flags::DUPLICATE_SENT) {
        text.push_str("; it was sent twice");
    } else if delivery.flags.has(Flags::POSSIBLE_DUPLICATE) {
        text.push_str("; it may have been sent twice");
    }
    text
}

fn waiting(delivery: &Delivery, around: &Circumstances<'_>, next: &str) -> String {
    let at = delivery.available_at.map(|at| format!(" at {}", for_people(at))).unwrap_or_default();
    match around.waits_for {
        Some(WaitReason::Scheduled) => format!("will be sent{at}{next}"),
        Some(WaitReason::Backoff) => format!("will be tried again{at}{next}"),
        Some(WaitReason::QuietHours) => format!("waits for the end of quiet hours and will be sent{at}"),
        Some(WaitReason::Order) => "waits for an earlier message with the same ordering key".to_owned(),
        Some(WaitReason::NoAccount) => "waits because no account can carry it: see the accounts in the configuration".to_owned(),
        Some(WaitReason::Credential) => "waits because the account's credentials are refused".to_owned(),
        Some(WaitReason::Paused) => "waits because sending is paused".to_owned(),
        Some(WaitReason::Breaker) => "waits because the provider does not work at the moment".to_owned(),
        Some(WaitReason::Rate) => "waits because the rate of its account is used up for the moment".to_owned(),
        Some(WaitReason::Tenant) => "waits because its tenant is disabled".to_owned(),
        Some(WaitReason::DailyCap) => "waits for the next day because the account's calls for today are used up".to_owned(),
        Some(WaitReason::RetryBudget) => "waits for room within a limit".to_owned(),
        Some(WaitReason::Digest | WaitReason::Policy | WaitReason::Held) => "is held by a rule".to_owned(),
        None if delivery.attempt_count > 0 => format!("will be tried again in a moment{next}"),
        None => format!("will be sent in a moment{next}"),
    }
}

fn ambiguous(delivery: &Delivery, last: &str) -> String {
    let mut text = format!("may have been taken{last}, which gave no clear answer");
    if let Some(at) = delivery.check_at {
        // Writing to a String cannot fail.
        let _ = write!(text, "; what to do about it is decided at {}", for_people(at));
    }
    text
}

fn unknown(reason: Option<Reason>) -> String {
    let why = match reason {
        Some(Reason::Poison) => "it was lost in several processes",
        Some(Reason::Expired) => "a try was not answered, and then its time was over",
        Some(Reason::Cancelled) => "a try was not answered, and then it was cancelled",
        Some(Reason::Suppressed) => "a try was not answered, and then its address was suppressed",
        Some(Reason::Refused) => "a try was not answered, and a later one was refused",
        _ => "the provider never gave a clear answer",
    };
    format!("may or may not have been sent: {why}")
}

/// The reason in words, with what leads over to it.
fn because(reason: Option<Reason>) -> String {
    let words = match reason {
        None => return String::new(),
        Some(Reason::HardBounce) => "the mailbox does not exist",
        Some(Reason::SoftBounce) => "the mailbox does not take mail at the moment",
        Some(Reason::MailboxFull) => "the mailbox is full",
        Some(Reason::DomainNotFound) => "the domain does not take mail",
        Some(Reason::Blocked) => "the receiver blocks it",
        Some(Reason::RecipientRefused) => "the recipient was refused",
        Some(Reason::ContentRefused) => "the content was refused",
        Some(Reason::RequestRefused) => "the provider did not accept the request",
        Some(Reason::SenderRefused) => "the sender was refused",
        Some(Reason::TooLarge) => "it is too large",
        Some(Reason::TokenInvalid) => "the token is no longer valid",
        Some(Reason::Suppressed) => "the address is suppressed",
        Some(Reason::ProviderSuppressed) => "the provider suppresses the address",
        Some(Reason::Preference) => "the person does not want it",
        Some(Reason::Deadline | Reason::Expired) => "its deadline passed",
        Some(Reason::Late) => "it would have come too late after its time",
        Some(Reason::QuietHours) => "quiet hours outlasted its deadline",
        Some(Reason::AttemptsExhausted) => "every try failed",
        Some(Reason::Poison) => "processes died with it",
        Some(Reason::RenderError) => "the message could not be built",
        Some(Reason::RecipientRate) => "the person got too many messages",
        Some(Reason::SpendCap) => "the spending limit is reached",
        Some(Reason::DestinationNotAllowed) => "the destination is not allowed",
        Some(Reason::NoAccount) => "no account could carry it",
        Some(Reason::Collapsed) => "a newer message took its place",
        Some(Reason::DuplicateCause) => "it was sent for the same cause before",
        Some(Reason::CancelledByRequest | Reason::Cancelled) => "it was cancelled",
        Some(Reason::CancelledByOperator) => "an operator cancelled it",
        Some(Reason::EarlierHopSucceeded) => "another channel reached the person first",
        Some(Reason::Erased) => "its data was erased",
        Some(Reason::ResolvedNotSent) => "an operator found that it was not",
        Some(Reason::Discarded) => "an operator discarded it",
        Some(Reason::HoldOver) => "no clear answer came",
        Some(Reason::Refused) => "it was refused",
    };
    format!(": {words}")
}

/// `2027-03-01 09:00:00 UTC`.
fn for_people(at: Timestamp) -> String {
    let text = at.to_string();
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {} UTC", time.split('.').next().unwrap_or_default())
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
