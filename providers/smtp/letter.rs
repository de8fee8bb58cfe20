//! What one call writes: envelope and finished bytes, fitted to whether the relay takes UTF-8 addresses.

use tidings_core::adapter::Outgoing;
use tidings_core::address::EmailAddress;
use tidings_core::content::Content;
use tidings_core::outcome::{Outcome, Refusal, RefusedCopy, Report};
use tidings_core::words::Reason;

use super::settings::Settings;
use crate::dkim::Keys;
use crate::{envelope, mime};

/// Said of an address that the relay has no way to be told (RFC 6531 section 3.5).
const NO_UTF8: &str = "553 5.6.7";
/// Fields that Amazon SES writes anew: to sign them would break every signature.
const REPLACED_BY_SES: &[&str] = &["date", "message-id"];
const SES_HOSTS: &str = ".amazonaws.com";

/// Envelope and message.
pub(super) struct Letter {
    pub(super) sender: String,
    /// `to` first.
    pub(super) recipients: Vec<EmailAddress>,
    /// Copies that this relay cannot be told of.
    pub(super) refused: Vec<RefusedCopy>,
    /// Of them, those that have no mailbox.
    pub(super) dead: Vec<String>,
    pub(super) message: Vec<u8>,
    /// Whether the relay must be told to expect UTF-8 addresses.
    pub(super) is_utf8: bool,
}

impl Letter {
    /// The letter, or the report where there is none to send.
    pub(super) fn of(outgoing: &Outgoing, settings: &Settings, dkim: &Keys, smtputf8: bool) -> Result<Self, Box<Report>> {
        let Content::Email(email) = &*outgoing.content;
        if !smtputf8 {
            refuse_utf8(outgoing)?;
        }
        let all = envelope::recipients(outgoing);
        let (recipients, unspeakable): (Vec<_>, Vec<_>) = all.into_iter().cloned().partition(|to| smtputf8 || !to.needs_smtputf8());
        let refused: Vec<_> =
            unspeakable.iter().map(|copy| RefusedCopy { address: copy.as_str().to_owned(), code: NO_UTF8.to_owned() }).collect();
        let message = if refused.is_empty() {
            mime::message(outgoing)
        } else {
            let mut fewer = outgoing.clone();
            fewer.left_out.extend(refused.iter().map(|copy| copy.address.clone()));
            mime::message(&fewer)
        };
        let mut message = message.map_err(|err| Box::new(Report::new(Outcome::BuildFailed).with_detail(err.to_string())))?;
        let replaced = if settings.host.to_ascii_lowercase().ends_with(SES_HOSTS) { REPLACED_BY_SES } else { &[] };
        dkim.sign(email.from.email.domain(), &mut message, outgoing.date, replaced);
        let sender = match &settings.return_path {
            Some(base) => envelope::return_path(base, &outgoing.handle),
            None => email.from.email.as_str().to_owned(),
        };
        let shown = email.reply_to.iter().chain(&email.also_to).chain(&email.cc).map(|mailbox| &mailbox.email);
        let is_utf8 = smtputf8
            && (recipients.iter().any(EmailAddress::needs_smtputf8)
                || !sender.is_ascii()
                || email.from.email.needs_smtputf8()
                || shown.into_iter().any(EmailAddress::needs_smtputf8));
        Ok(Self { sender, recipients, refused, dead: Vec::new(), message, is_utf8 })
    }
}

/// Addresses without which there is no message.
fn refuse_utf8(outgoing: &Outgoing) -> Result<(), Box<Report>> {
    let Content::Email(email) = &*outgoing.content;
    let (by, reason) = if outgoing.to.email.needs_smtputf8() {
        (Refusal::Recipient { listed: false, hard: false }, Reason::RecipientRefused)
    } else if email.from.email.needs_smtputf8() {
        (Refusal::Sender, Reason::SenderRefused)
    } else if email.reply_to.iter().any(|mailbox| mailbox.email.needs_smtputf8()) {
        (Refusal::Request, Reason::RequestRefused)
    } else {
        return Ok(());
    };
    let report = Report::new(Outcome::Refused { by, reason });
    Err(Box::new(report.with_detail("an address needs SMTPUTF8, which the relay does not offer")))
}
