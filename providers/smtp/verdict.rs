//! What a refusal means, by where in the dialogue it came: whose fault it is, and whether it may work later.
//! Reading the reply is `reply`'s business, leading the dialogue `transaction`'s.

use std::fmt;
use std::time::Duration;

use tidings_core::outcome::{NotSent, Outcome, Refusal, Report};
use tidings_core::words::{Class, Reason};

use super::reply::{Cause, Reply};

/// Where in the dialogue something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Greeting,
    Ehlo,
    Tls,
    Auth,
    Mail,
    Rcpt,
    Data,
    Dot,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greeting => "the greeting",
            Self::Ehlo => "EHLO",
            Self::Tls => "STARTTLS",
            Self::Auth => "AUTH",
            Self::Mail => "MAIL",
            Self::Rcpt => "RCPT",
            Self::Data => "DATA",
            Self::Dot => "the end of the message",
        })
    }
}

/// What a reply answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) phase: Phase,
    pub(super) class: Class,
    /// Whether the envelope held nobody but `to`, so that a word about a mailbox is about that one.
    pub(super) alone: bool,
}

/// Nobody answered: limited by age alone.
pub(super) fn unreachable(detail: impl Into<String>) -> Report {
    Report::new(Outcome::NotSent { why: NotSent::Unreachable, retry_after: None }).with_detail(detail)
}

/// What no sender could pass on this account.
pub(super) fn credential(detail: impl Into<String>) -> Report {
    Report::new(Outcome::Credential).with_detail(detail)
}

/// The report of a refusal while the connection was being opened.
pub(super) fn refused_at_opening(reply: &Reply, phase: Phase) -> Report {
    refused(reply, Situation { phase, class: Class::Transactional, alone: false })
}

/// The report of a refusal.
pub(super) fn refused(reply: &Reply, at: Situation) -> Report {
    Report::new(outcome(reply, at)).with_code(reply.record()).with_detail(format!("refused at {}", at.phase))
}

fn outcome(reply: &Reply, at: Situation) -> Outcome {
    match (reply.code / 100, at.phase) {
        (4, _) => temporary(reply, at),
        (5, _) if matches!(reply.code, 530 | 534 | 535 | 538) => Outcome::Credential,
        // Whoever is refused before MAIL is refused whatever they bring.
        (5, Phase::Greeting | Phase::Ehlo | Phase::Tls | Phase::Auth) => Outcome::Credential,
        (5, Phase::Mail) => refused_sender(reply),
        (5, Phase::Rcpt) => refused_recipient(reply),
        (5, Phase::Data | Phase::Dot) => refused_message(reply, at.alone),
        // A yes where none belongs: the relay and we do not understand each other.
        _ => not_sent(NotSent::Unreachable),
    }
}

fn temporary(reply: &Reply, at: Situation) -> Outcome {
    // Words about one recipient never silence the account; 421, 454 and what is said before any recipient may.
    let about_account = matches!(reply.code, 421 | 454) || at.phase == Phase::Mail;
    if about_account && reply.names_a_rate() {
        return throttled(reply);
    }
    let early = at.phase < Phase::Mail && reply.code == 421 || matches!(at.phase, Phase::Greeting | Phase::Tls);
    if early {
        return not_sent(NotSent::Unreachable);
    }
    let wait = if at.class == Class::Critical { Duration::from_secs(60) } else { Duration::from_secs(300) };
    let greylisted = at.phase >= Phase::Rcpt && reply.is_greylisting();
    Outcome::NotSent { why: NotSent::Answered, retry_after: greylisted.then_some(wait) }
}

/// A daily quota frees itself bit by bit over 24 hours, so it is asked again after one; a rate is left to the pacer.
fn throttled(reply: &Reply) -> Outcome {
    let of_the_day = reply.says(&["daily", "per day", "24 hour"]);
    Outcome::Throttled { retry_after: of_the_day.then_some(Duration::from_secs(3_600)) }
}

const fn not_sent(why: NotSent) -> Outcome {
    Outcome::NotSent { why, retry_after: None }
}

/// A rate in a 5yz: the day's quota is the account's, anything else is worth another try later.
fn refused_for_rate(reply: &Reply) -> Outcome {
    if reply.says(&["daily", "per day", "24 hour", "sending limit"]) { throttled(reply) } else { not_sent(NotSent::Answered) }
}

fn refused_sender(reply: &Reply) -> Outcome {
    match (reply.cause(), reply.code) {
        (Cause::TooLarge, _) | (_, 552) => request(Reason::TooLarge),
        (Cause::Throttled, _) => refused_for_rate(reply),
        (Cause::SenderRefused, _) | (_, 550 | 551 | 553 | 554 | 556) => sender(),
        _ => request(Reason::RequestRefused),
    }
}

fn refused_recipient(reply: &Reply) -> Outcome {
    let protocol = matches!(reply.code, 500..=504 | 555);
    match reply.cause() {
        Cause::InvalidMailbox { hard } | Cause::MailboxInactive { hard } => recipient(hard, Reason::RecipientRefused),
        Cause::DomainNotFound { hard } => recipient(hard, Reason::DomainNotFound),
        Cause::MailboxFull => recipient(false, Reason::MailboxFull),
        Cause::SenderRefused => sender(),
        _ if protocol => request(Reason::RequestRefused),
        // This account may not carry it; another one may.
        Cause::Policy if reply.says(&["relay"]) => not_sent(NotSent::Route),
        Cause::Policy | Cause::SpamBlock | Cause::Authentication => recipient(false, Reason::Blocked),
        Cause::Content => Outcome::Refused { by: Refusal::Content, reason: Reason::ContentRefused },
        Cause::TooLarge => request(Reason::TooLarge),
        Cause::Throttled => refused_for_rate(reply),
        Cause::Unknown if reply.code == 552 => recipient(false, Reason::MailboxFull),
        Cause::Unknown => recipient(false, Reason::RecipientRefused),
    }
}

fn refused_message(reply: &Reply, alone: bool) -> Outcome {
    let unverified = reply.says(&["not verified", "not authorized"]);
    match reply.cause() {
        Cause::SenderRefused | Cause::Authentication => sender(),
        _ if unverified => sender(),
        Cause::TooLarge => request(Reason::TooLarge),
        Cause::InvalidMailbox { hard } | Cause::MailboxInactive { hard } => recipient(hard && alone, Reason::RecipientRefused),
        Cause::DomainNotFound { hard } => recipient(hard && alone, Reason::DomainNotFound),
        Cause::MailboxFull if alone => recipient(false, Reason::MailboxFull),
        _ if reply.code == 552 => request(Reason::TooLarge),
        Cause::Content => Outcome::Refused { by: Refusal::Content, reason: Reason::ContentRefused },
        Cause::Policy | Cause::SpamBlock => Outcome::Refused { by: Refusal::Content, reason: Reason::Blocked },
        Cause::Throttled => refused_for_rate(reply),
        Cause::MailboxFull | Cause::Unknown => request(Reason::RequestRefused),
    }
}

const fn sender() -> Outcome {
    Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused }
}

const fn request(reason: Reason) -> Outcome {
    Outcome::Refused { by: Refusal::Request, reason }
}

const fn recipient(hard: bool, reason: Reason) -> Outcome {
    Outcome::Refused { by: Refusal::Recipient { listed: false, hard }, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: Phase, raw: &str) -> Outcome {
        let (code, text) = raw.split_once(' ').unwrap();
        outcome(&Reply::new(code.parse().unwrap(), text.to_owned()), Situation { phase, class: Class::Transactional, alone: true })
    }

    #[test]
    fn a_refused_sender_is_never_the_recipients_fault() {
        for (phase, raw) in [
            (Phase::Mail, "550 no"),
            (Phase::Mail, "553 5.7.1 Sender address rejected"),
            (Phase::Mail, "501 5.1.7 Bad sender address syntax"),
            // Relays that check the sender late say so at RCPT.
            (Phase::Rcpt, "553 5.7.1 Sender address rejected: not owned by user"),
            (Phase::Dot, "554 Message rejected: Email address is not verified. The following identities failed"),
            (Phase::Dot, "554 Access denied: User is not authorized to perform this"),
            (Phase::Dot, "550 5.7.26 unauthenticated"),
        ] {
            assert_eq!(at(phase, raw), sender(), "{raw}");
        }
    }

    #[test]
    fn what_concerns_one_recipient_never_silences_the_account() {
        let answered =
            |retry_after: Option<u64>| Outcome::NotSent { why: NotSent::Answered, retry_after: retry_after.map(Duration::from_secs) };
        assert_eq!(at(Phase::Rcpt, "452 4.5.3 Too many recipients"), answered(None));
        assert_eq!(at(Phase::Rcpt, "450 4.2.0 Greylisted, try again in 5 minutes"), answered(Some(300)));
        assert_eq!(at(Phase::Rcpt, "451 4.7.1 Greylisting in action"), answered(Some(300)));
        assert_eq!(at(Phase::Rcpt, "421 4.7.0 Too many messages, slow down"), Outcome::Throttled { retry_after: None });
        assert_eq!(at(Phase::Mail, "450 4.7.1 Error: too much mail from you"), Outcome::Throttled { retry_after: None });
        assert_eq!(at(Phase::Rcpt, "421 4.3.2 shutting down"), answered(None));
        assert_eq!(at(Phase::Greeting, "421 4.3.2 shutting down"), not_sent(NotSent::Unreachable));
    }

    #[test]
    fn a_quota_of_the_day_is_asked_again_after_an_hour() {
        let hour = Outcome::Throttled { retry_after: Some(Duration::from_secs(3_600)) };
        assert_eq!(at(Phase::Data, "454 Throttling failure: Daily message quota exceeded."), hour);
        assert_eq!(at(Phase::Dot, "550 5.4.5 Daily user sending limit exceeded"), hour);
    }

    #[test]
    fn only_what_every_sender_meets_is_a_credential_fault() {
        for (phase, raw) in
            [(Phase::Greeting, "554 no"), (Phase::Ehlo, "501 bad name"), (Phase::Auth, "535 no"), (Phase::Mail, "530 login first")]
        {
            assert_eq!(at(phase, raw), Outcome::Credential, "{raw}");
        }
        assert_eq!(at(Phase::Rcpt, "554 5.7.1 Relay access denied"), not_sent(NotSent::Route));
        assert_eq!(at(Phase::Rcpt, "550 5.1.1 User unknown in relay recipient table"), recipient(true, Reason::RecipientRefused));
    }

    #[test]
    fn a_mailbox_is_blamed_at_the_end_only_where_there_is_one() {
        let reply = Reply::new(550, "5.1.1 User unknown".to_owned());
        let at = |alone| outcome(&reply, Situation { phase: Phase::Dot, class: Class::Bulk, alone });
        assert_eq!(at(true), recipient(true, Reason::RecipientRefused));
        assert_eq!(at(false), recipient(false, Reason::RecipientRefused));
    }
}
