//! Reads a relay's reply: code, enhanced status, and the cause that both and the text name.
//! What a cause leads to at which point of the dialogue is decided in `verdict`.

use lettre::transport::smtp::Error;
use lettre::transport::smtp::response::Response;

/// One reply, all its lines in one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) enhanced: Option<Enhanced>,
    text: String,
}

/// An enhanced status code (RFC 3463), such as 5.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Enhanced {
    class: u16,
    subject: u16,
    detail: u16,
}

/// What a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody has this address. `hard`: and nobody ever will.
    InvalidMailbox {
        hard: bool,
    },
    /// Somebody had it once.
    MailboxInactive {
        hard: bool,
    },
    MailboxFull,
    DomainNotFound {
        hard: bool,
    },
    SenderRefused,
    Authentication,
    Policy,
    SpamBlock,
    Content,
    TooLarge,
    Throttled,
    Unknown,
}

impl Reply {
    pub(super) fn new(code: u16, text: String) -> Self {
        Self { code, enhanced: enhanced(&text), text: text.to_ascii_lowercase() }
    }

    pub(super) fn of(response: &Response) -> Self {
        Self::new(response.code().into(), response.message().collect::<Vec<_>>().join(" "))
    }

    /// The refusal that lettre made an error of; `None` where no clear reply came.
    pub(super) fn of_error(err: &Error) -> Option<Self> {
        let text = std::error::Error::source(err).map(ToString::to_string).unwrap_or_default();
        err.status().map(|code| Self::new(code.into(), text))
    }

    /// Whether it says yes, and is not merely in the middle of something.
    pub(super) const fn is_positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// `550 5.1.1`, for the record.
    pub(super) fn record(&self) -> String {
        match self.enhanced {
            Some(Enhanced { class, subject, detail }) => format!("{} {class}.{subject}.{detail}", self.code),
            None => self.code.to_string(),
        }
    }

    /// Whether the text holds any of the phrases.
    pub(super) fn says(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.text.contains(phrase))
    }

    /// Whether the account is told to slow down.
    pub(super) fn names_a_rate(&self) -> bool {
        self.says(RATE) || self.is_status(4, 5) || self.is_status(7, 38)
    }

    pub(super) fn is_greylisting(&self) -> bool {
        self.says(&["greylist", "graylist", "grey list", "gray list"])
            || (self.code == 450 && self.says(&["try again", "try later", "minutes", "seconds"]))
    }

    fn is_status(&self, subject: u16, detail: u16) -> bool {
        self.enhanced.is_some_and(|status| (status.subject, status.detail) == (subject, detail))
    }

    /// The cause: the enhanced status where it says anything, else the text.
    pub(super) fn cause(&self) -> Cause {
        let Some(status) = self.enhanced else { return self.cause_of_text(Cause::Unknown) };
        match (status.subject, status.detail) {
            (1, 0) => self.cause_of_text(Cause::InvalidMailbox { hard: true }),
            (1, 1 | 3 | 4) => Cause::InvalidMailbox { hard: true },
            (1, 2 | 10) => Cause::DomainNotFound { hard: true },
            (1, 6) | (2, 1) => Cause::MailboxInactive { hard: true },
            (1, 7 | 8) | (7, 27) => Cause::SenderRefused,
            (2, 2) => Cause::MailboxFull,
            (2, 3) | (3, 4) => Cause::TooLarge,
            // One hosted platform answers so for recipients that it does not know.
            (4, 1) if self.code == 550 && self.says(&["access denied"]) => Cause::InvalidMailbox { hard: true },
            (4, 4) if self.says(&["host not found"]) => Cause::DomainNotFound { hard: true },
            (4, 3 | 4) => Cause::DomainNotFound { hard: false },
            (4, 5) | (5, 3) | (7, 38) => Cause::Throttled,
            (6, 7) => Cause::InvalidMailbox { hard: false },
            (7, 13) if self.code == 525 => Cause::MailboxInactive { hard: true },
            (7, 17 | 18) => Cause::MailboxInactive { hard: false },
            (7, 20..=26 | 29) => Cause::Authentication,
            (7, 0..=2) => self.cause_of_text(Cause::Policy),
            (7, _) => Cause::Policy,
            (4 | 6, _) | (5, 1..) => Cause::Unknown,
            _ => self.cause_of_text(Cause::Unknown),
        }
    }

    /// The first row of phrases that fits, from the top.
    fn cause_of_text(&self, otherwise: Cause) -> Cause {
        // A security status (x.7.z) with "address rejected" or "disabled" is a policy's word, not the mailbox's end.
        let is_policy = self.enhanced.is_some_and(|status| status.subject == 7);
        let unavailable = self.code == 550 && self.says(&["mailbox unavailable"]);
        let rejected = !is_policy && self.says(&["address rejected"]) && !self.says(&["greylist"]);
        if self.says(&["throttling failure", "daily message quota", "maximum sending rate"]) {
            Cause::Throttled
        } else if self.says(&["sender address rejected", "sender rejected", "not owned by user"]) {
            Cause::SenderRefused
        } else if unavailable || rejected || self.says(UNKNOWN_USER) {
            Cause::InvalidMailbox { hard: true }
        } else if self.says(&["disabled", "inactive", "deactivated", "suspended mailbox"]) {
            Cause::MailboxInactive { hard: !is_policy }
        } else if self.says(&["mailbox full", "over quota", "quota exceeded", "out of storage"]) {
            Cause::MailboxFull
        } else if self.says(UNKNOWN_DOMAIN) {
            Cause::DomainNotFound { hard: !is_policy }
        } else if self.says(&["blocked using", "blacklist", "listed on", "spamhaus", "dnsbl", "reputation"]) {
            Cause::SpamBlock
        } else if self.says(&["spam", "content rejected", "virus", "infected", "attachment"]) {
            Cause::Content
        } else if self.says(&["dmarc", "spf", "dkim", "unauthenticated"]) {
            Cause::Authentication
        } else if self.says(&["greylist", "try again later", "try later"]) || self.says(RATE) {
            Cause::Throttled
        } else if self.says(&["too large", "size exceeds", "too big"]) {
            Cause::TooLarge
        } else if self.says(&["timed out", "timeout", "expired", "too old", "connection re", "unable to connect"]) {
            Cause::Unknown
        } else if self.says(&["relay", "access denied", "not permitted", "policy"]) {
            Cause::Policy
        } else {
            otherwise
        }
    }
}

const RATE: &[&str] =
    &["throttl", "daily message quota", "maximum sending rate", "sending limit", "too many", "too much mail", "rate limit", "slow down"];
const UNKNOWN_USER: &[&str] =
    &["user unknown", "no such user", "unknown user", "does not exist", "recipient not found", "invalid recipient"];
const UNKNOWN_DOMAIN: &[&str] =
    &["domain not found", "domain name not found", "host not found", "unable to find mx", "no mx", "nxdomain", "null mx"];

/// The enhanced status that the text starts with.
fn enhanced(text: &str) -> Option<Enhanced> {
    let mut numbers = text.split_ascii_whitespace().next()?.splitn(3, '.').map(|part| {
        let digits = (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse::<u16>().ok()).flatten()
    });
    let (class, subject, detail) = (numbers.next()??, numbers.next()??, numbers.next()??);
    matches!(class, 2 | 4 | 5).then_some(Enhanced { class, subject, detail })
}

/// What the relay calls the message, out of its final reply: `queued as ID`, `Ok ID`, `OK id=ID`.
pub(super) fn provider_message_id(response: &Response) -> Option<String> {
    response.message().find_map(|line| {
        let lower = line.to_ascii_lowercase();
        let after = |mark: &str| lower.find(mark).map(|at| line[at + mark.len()..].trim());
        let named = after("queued as ").or_else(|| after("ok id=")).and_then(|rest| rest.split_ascii_whitespace().next());
        let alone = || {
            let rest = lower.starts_with("ok ").then(|| line[3..].trim()).or_else(|| after(" ok "))?;
            (!rest.contains(' ') && rest.bytes().any(|b| b.is_ascii_digit())).then_some(rest)
        };
        let id = named.or_else(alone)?.trim_matches(|c: char| "<>();,.\"'".contains(c));
        let usable = (4..=200).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@=+/".contains(&b));
        usable.then(|| id.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(raw: &str) -> Cause {
        let (code, text) = raw.split_once(' ').unwrap();
        Reply::new(code.parse().unwrap(), text.to_owned()).cause()
    }

    #[test]
    fn the_status_decides_and_the_text_refines_what_it_leaves_open() {
        let hard = Cause::InvalidMailbox { hard: true };
        for (raw, expected) in [
            ("550 5.1.1 whatever", hard),
            ("550 No such user", hard),
            ("550 mailbox unavailable", hard),
            ("551 mailbox unavailable", Cause::Unknown),
            ("550 5.1.1 User unknown in relay recipient table", hard),
            ("550 5.7.1 Recipient address rejected: Access denied", Cause::Policy),
            ("550 5.7.1 Relaying denied", Cause::Policy),
            ("554 5.7.1 blocked using zen.spamhaus.org", Cause::SpamBlock),
            ("550 5.7.1 account disabled by policy", Cause::MailboxInactive { hard: false }),
            ("550 5.7.26 DMARC", Cause::Authentication),
            ("550 5.7.1 Sender address rejected: not owned by user", Cause::SenderRefused),
            ("450 4.2.0 Recipient address rejected: Greylisted", Cause::Throttled),
            ("452 4.2.2 Over quota", Cause::MailboxFull),
            ("556 5.1.10 null MX", Cause::DomainNotFound { hard: true }),
            ("550 5.4.4 routing loop", Cause::DomainNotFound { hard: false }),
            ("550 5.4.5 daily sending limit", Cause::Throttled),
            ("554 Transaction failed", Cause::Unknown),
            // Neither a version nor an address is a status.
            ("550 192.0.2.1 is listed on a blocklist", Cause::SpamBlock),
        ] {
            assert_eq!(cause(raw), expected, "{raw}");
        }
    }

    #[test]
    fn the_id_is_taken_from_the_final_reply_and_from_nothing_else_in_it() {
        let id = |raw: &str| provider_message_id(&format!("{raw}\r\n").parse().unwrap());
        assert_eq!(id("250 2.0.0 Ok: queued as 4F1A2B3C4D").as_deref(), Some("4F1A2B3C4D"));
        assert_eq!(id("250-2.0.0 first line\r\n250 2.0.0 Ok: queued as <4F1A2B3C4D>.").as_deref(), Some("4F1A2B3C4D"));
        assert_eq!(id("250 Ok 0102019c-1a2b-000000").as_deref(), Some("0102019c-1a2b-000000"));
        assert_eq!(id("250 2.0.0 Ok 0102019c-000000").as_deref(), Some("0102019c-000000"));
        assert_eq!(id("250 OK id=1rAbCd-000123-Xy").as_deref(), Some("1rAbCd-000123-Xy"));
        for none in ["250 Ok", "250 2.0.0 OK 1700000000 a1si123 - gsmtp", "250 Ok thanks", "250 Message accepted", "250 queued as \u{3f}?"]
        {
            assert_eq!(id(none), None, "{none}");
        }
    }
}
