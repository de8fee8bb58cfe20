//! What the words of status answers mean, and what to do about each: the text behind `/docs/reasons`.

use tidings_core::state::{Certainty, State};
use tidings_core::status::Status;
use tidings_core::words::{AttemptOutcome, Reason, WaitReason};

/// Of a `status`.
pub(super) const fn of_status(status: Status) -> &'static str {
    match status {
        Status::Scheduled => "Every open delivery waits for its send_at. Nothing to do; it can still be cancelled.",
        Status::Processing => "A delivery is open. Read again, or wait for its event.",
        Status::Delivered => "Every delivery was delivered.",
        Status::Accepted => "Providers took every delivery. Whether all of them arrived is not known.",
        Status::Suppressed => "No address may be written to. See the suppression.",
        Status::Expired => "Nothing was sent before its deadline.",
        Status::Cancelled => "Everything was cancelled before it was sent.",
        Status::Superseded => "Something else took its place.",
        Status::Unknown => "It may or may not have been sent. The operator can find out and resolve it.",
        Status::Failed => "Nothing could be delivered. See the reason of each delivery.",
        Status::PartiallyFailed => "Some deliveries went well and others did not. See each.",
    }
}

/// Of a `state`.
pub(super) const fn of_state(state: State) -> &'static str {
    match state {
        State::Queued => "Accepted and waiting for its turn; wait_reason says what for. Nothing to do.",
        State::Scheduled => "Waits for its send_at.",
        State::RetryWait => "A try failed for the time being; the next comes at available_at. Nothing to do.",
        State::Deferred => "Waits for the end of quiet hours, or is held.",
        State::Dispatching => "A provider is being called at this moment.",
        State::Ambiguous => {
            "A provider may have taken it and gave no clear answer. Tidings looks it up or waits for a report; nothing to do."
        }
        State::Accepted => "A provider took it. Whether it arrived is not known yet, and where nobody reports it never is.",
        State::Delivered => "The provider reports that it arrived.",
        State::Bounced => "It came back. See the reason; a bad address is suppressed.",
        State::Failed => "It was refused for good. See the reason.",
        State::Suppressed => "The address is not to be written to. See the suppression.",
        State::Cancelled => "It was cancelled before it was sent.",
        State::Expired => "Its deadline passed before it could be sent.",
        State::Superseded => "Something else took its place.",
        State::Dead => "Every try failed. It is in the list of dead letters: the operator can send it again.",
        State::Unknown => "It may or may not have been sent, and no answer came in time. The operator can resolve it.",
    }
}

/// Of a `certainty`.
pub(super) const fn of_certainty(certainty: Certainty) -> &'static str {
    match certainty {
        Certainty::Confirmed => "The state is the whole truth.",
        Certainty::Unconfirmed => "A provider took it; nothing was reported yet.",
        Certainty::Unknown => "A call was not answered: it may have been sent, whatever the state says.",
    }
}

/// Of a `reason`.
pub(super) const fn of_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::HardBounce => "The mailbox does not exist. Ask the person for another address.",
        Reason::SoftBounce => "The mailbox did not take it for a while. Later mail may arrive.",
        Reason::MailboxFull => "The mailbox is full. Later mail may arrive.",
        Reason::DomainNotFound => "The domain of the address takes no mail. Check its spelling.",
        Reason::Blocked => "The receiver blocks the sender or the message. Look into the sender's reputation.",
        Reason::RecipientRefused => "The provider refused the address. Check it.",
        Reason::ContentRefused => "The provider refused what the message says. Change the content.",
        Reason::RequestRefused => "The provider did not accept the form of the request. Tell the operator.",
        Reason::SenderRefused => "No account may send as this author. Tell the operator.",
        Reason::TooLarge => "The message is larger than the receiver takes. Send a link instead.",
        Reason::TokenInvalid => "The app is gone from the device. Nothing to do.",
        Reason::Suppressed => "The address is on the list of those not to be written to.",
        Reason::ProviderSuppressed => "The provider itself does not write to this address any more.",
        Reason::Preference => "The person does not want this kind of message.",
        Reason::Deadline => "It was not sent before its expires_at.",
        Reason::Late => "It would have come too long after its send_at.",
        Reason::QuietHours => "The person's quiet hours lasted beyond its deadline.",
        Reason::AttemptsExhausted => "The provider refused it for the time being too often. It can be sent again by the operator.",
        Reason::Poison => "Processes died while sending it. It may have been sent; tell the operator.",
        Reason::RenderError => "The message could not be built from what is stored.",
        Reason::RecipientRate => "The person has got too many messages in a short time.",
        Reason::SpendCap => "The spending limit is reached.",
        Reason::DestinationNotAllowed => "The operator's rules exclude the destination.",
        Reason::NoAccount => "No configured account can carry it.",
        Reason::Collapsed => "A newer message with the same collapse_key took its place.",
        Reason::DuplicateCause => "It was sent for the same cause before.",
        Reason::CancelledByRequest => "The application cancelled it.",
        Reason::CancelledByOperator => "An operator cancelled it.",
        Reason::EarlierHopSucceeded => "Another channel reached the person first.",
        Reason::Erased => "The person's data was erased.",
        Reason::ResolvedNotSent => "An operator found that it was not sent.",
        Reason::Discarded => "An operator discarded it.",
        Reason::HoldOver => "No clear answer came within the time that is waited for one: it may or may not have been sent.",
        Reason::Expired => "With unknown: a try was never answered, and then its deadline passed.",
        Reason::Cancelled => "With unknown: a try was never answered, and then it was cancelled.",
        Reason::Refused => "With unknown: a try was never answered, and a later one was refused.",
    }
}

/// Of a `wait_reason`.
pub(super) const fn of_wait(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Scheduled => "Its send_at lies ahead.",
        WaitReason::Backoff => "An earlier try failed; the next one comes at available_at.",
        WaitReason::Rate => "The account's rate is used up for the moment.",
        WaitReason::DailyCap => {
            "What the account sends in a day is used up for messages of this class: it goes on when the provider's next day begins."
        }
        WaitReason::Breaker => "The provider does not work at the moment.",
        WaitReason::Paused => "An operator paused sending.",
        WaitReason::Credential => "The account's credentials are refused. Tell the operator.",
        WaitReason::RetryBudget => "Too many retries are under way.",
        WaitReason::Order => "An earlier message with the same ordering_key comes first.",
        WaitReason::QuietHours => "The person has quiet hours.",
        WaitReason::Digest => "It is collected with others.",
        WaitReason::Policy => "A rule holds it.",
        WaitReason::NoAccount => "No account can carry it. Tell the operator.",
        WaitReason::Tenant => "The tenant is disabled.",
        WaitReason::Held => "An operator holds it.",
    }
}

/// Of the `outcome` of an attempt.
pub(super) const fn of_outcome(outcome: AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::InFlight => "The call is running.",
        AttemptOutcome::Accepted => "The provider took it.",
        AttemptOutcome::AcceptedAgain => "The provider took it, though an earlier call was taken too.",
        AttemptOutcome::NotStarted => "Handed back before the provider could have taken it; does not count.",
        AttemptOutcome::NotSent => "Certainly not taken; it may work later.",
        AttemptOutcome::Throttled => "Certainly not taken: the account is to slow down.",
        AttemptOutcome::RecipientRefused => "The address was refused.",
        AttemptOutcome::ContentRefused => "The content was refused.",
        AttemptOutcome::RequestRefused => "The request was refused.",
        AttemptOutcome::SenderRefused => "The author was refused.",
        AttemptOutcome::Credential => "The account could not log in.",
        AttemptOutcome::Ambiguous => "The provider may or may not have taken it.",
        AttemptOutcome::Lost => "The process that made the call died; the provider may or may not have taken it.",
    }
}
