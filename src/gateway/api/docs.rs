//! `/docs`: what this version serves, and what its words mean. Every problem's `type` opens here.

use std::fmt::Write as _;

use actix_web::{HttpResponse, web};
use tidings_core::words::{AttemptOutcome, Reason, WaitReason};

use super::html::{Policy, page};
use super::problem::{Code, Problem};

const INDEX: &str = include_str!("pages/index.html");

/// `GET /docs`
pub(super) async fn index() -> HttpResponse {
    let mut codes = String::new();
    for code in Code::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(
            codes,
            "<tr><td><a href=\"/docs/errors/{word}\">{word}</a></td><td>{}</td><td>{}</td></tr>",
            code.status().as_u16(),
            code.title(),
            word = code.as_str()
        );
    }
    page("API", "", &INDEX.replace("{{codes}}", &codes), Policy::Plain)
}

/// `GET /docs/errors/{code}`
pub(super) async fn error(code: web::Path<String>) -> Result<HttpResponse, Problem> {
    let code = Code::ALL.iter().find(|known| known.as_str() == *code).ok_or_else(Problem::not_found)?;
    let again =
        if code.is_retryable() { "The same request under the same key may succeed." } else { "Repeating the same request does not help." };
    let body = format!(
        "<p><a href=\"/docs\">API</a></p>\n<h1>{}</h1>\n<p><code>{}</code>, HTTP status {}.</p>\n<p>{}</p>\n<p>{again}</p>",
        code.title(),
        code.as_str(),
        code.status().as_u16(),
        code.advice(),
    );
    Ok(page(code.title(), "", &body, Policy::Plain))
}

/// `GET /docs/reasons`
pub(super) async fn reasons() -> HttpResponse {
    let mut body = String::from(
        "<p><a href=\"/docs\">API</a></p>\n<h1>Words</h1>\n<p>These lists grow: a client must bear words it does not know.</p>\n",
    );
    table(&mut body, "reason", Reason::ALL.iter().map(|word| (word.as_str(), of_reason(*word))));
    table(&mut body, "wait_reason", WaitReason::ALL.iter().map(|word| (word.as_str(), of_wait(*word))));
    table(&mut body, "outcome of an attempt", AttemptOutcome::ALL.iter().map(|word| (word.as_str(), of_outcome(*word))));
    page("Words", "", &body, Policy::Plain)
}

fn table(body: &mut String, title: &str, words: impl Iterator<Item = (&'static str, &'static str)>) {
    let _ = writeln!(body, "<h2>{title}</h2>\n<table>");
    for (word, meaning) in words {
        let _ = writeln!(body, "<tr><td><code>{word}</code></td><td>{meaning}</td></tr>");
    }
    body.push_str("</table>\n");
}

const fn of_reason(reason: Reason) -> &'static str {
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

const fn of_wait(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Scheduled => "Its send_at lies ahead.",
        WaitReason::Backoff => "An earlier try failed; the next one comes at available_at.",
        WaitReason::Rate => "The account's rate is used up for the moment.",
        WaitReason::DailyCap => "The account's daily limit is used up.",
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

const fn of_outcome(outcome: AttemptOutcome) -> &'static str {
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
