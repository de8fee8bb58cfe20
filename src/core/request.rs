//! What an application may ask for: the body of a notification, read and checked as a whole, all faults at once (S-014, S-015).
//! What needs stored facts or configuration (category, sender, route, key, suppression) is decided after it.

use std::fmt;

use crate::address::Mailbox;
use crate::content::{Attachment, EmailContent};
use crate::fault::{FaultCode, Faults};
use crate::json::{self, Json};
use crate::pointer::Pointer;
use crate::time::Timestamp;
use crate::words::Channel;

pub mod acts;
mod attachments;
mod email;
mod fields;
mod headers;
mod keys;
mod labels;
mod mailboxes;
pub mod operating;
mod recipients;
mod relations;
mod search;
mod suppressions;
#[cfg(test)]
mod tests;
mod times;

pub(crate) use attachments::UNKNOWN_TYPE;
use fields::{Fields, Shape};
pub use keys::{KINDS, NewKey, SCOPES, parse_new_key, parse_nothing, parse_rotation};
pub use search::{MOST_ITEMS, PARAMETERS, Search, USUAL_ITEMS, page_limit, parse_search};
pub use suppressions::{Suppress, parse_reason, parse_scope, parse_suppression_lookup, parse_suppressions};
pub use times::When;

/// What the operator may set about the size of a request (`[limits]`); all other bounds are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// The most recipients in `to`, and the most copies of one message.
    pub recipients: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { recipients: 50 }
    }
}

/// A request that is sound in itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// The operator's name for this kind of message.
    pub category: Option<String>,
    /// The channels that are asked for, in this order; empty means every channel that has both address and content.
    pub channels: Vec<Channel>,
    /// At least one; no two have the same canonical address.
    pub recipients: Vec<Recipient>,
    /// What is said by email.
    pub email: EmailDraft,
    /// When to send, as it was asked for.
    pub send: Option<When>,
    /// When the message becomes worthless, as it was asked for.
    pub expires: Option<When>,
    /// Not before this instant; `None` means now.
    pub send_at: Option<Timestamp>,
    /// Not after this instant; `None` where the category or class decides.
    pub expires_at: Option<Timestamp>,
    /// Words of the application to find the notification by.
    pub tags: Vec<String>,
    /// The application's own facts, in its order. They never change what is sent.
    pub metadata: Vec<(String, String)>,
    /// What has the same key goes out one after the other.
    pub ordering_key: Option<String>,
    /// Of what waits with the same key for the same address, only the newest is sent.
    pub collapse_key: Option<String>,
}

/// One person who is written to.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient {
    /// Where, and under which name.
    pub mailbox: Mailbox,
    /// The address as the caller wrote it, for the `202` alone.
    pub written: String,
    /// The application's own name for the person (`ref`).
    pub reference: Option<String>,
    /// The application's own facts about this recipient, in its order.
    pub metadata: Vec<(String, String)>,
}

/// An email whose author may still have to be found.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the other fields are those of EmailContent")]
pub struct EmailDraft {
    /// Without it the category, the account or the tenant decides.
    pub from: Option<Author>,
    pub subject: String,
    pub text: Option<String>,
    pub html: Option<String>,
    pub reply_to: Vec<Mailbox>,
    pub cc: Vec<Mailbox>,
    pub bcc: Vec<Mailbox>,
    pub also_to: Vec<Mailbox>,
    pub headers: Vec<(String, String)>,
    pub attachments: Vec<Attachment>,
}

/// Who an email is from, as the request says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Author {
    /// This mailbox.
    Mailbox(Mailbox),
    /// The sender that the configuration declares under this name.
    Sender(String),
}

impl EmailDraft {
    /// The email as it is stored, once its author is known.
    pub fn into_content(self, from: Mailbox) -> EmailContent {
        let Self { from: _, subject, text, html, reply_to, cc, bcc, also_to, headers, attachments } = self;
        EmailContent { from, subject, text, html, reply_to, cc, bcc, also_to, headers, attachments }
    }
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong; at least one fault.
    pub faults: Faults,
    /// The request, where nothing but the passage of time speaks against it (a past `send_at` or `expires_at`).
    /// If it was accepted earlier under the same key, it is a replay and gets its first answer (S-007); otherwise
    /// the faults stand.
    pub overdue: Option<Box<Request>>,
}

impl From<Faults> for Refused {
    fn from(faults: Faults) -> Self {
        Self { faults, overdue: None }
    }
}

/// Reads the body of a single notification.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(body: &[u8], limits: &RequestLimits, now: Timestamp) -> Result<Request, Refused> {
    parse_document(&json::parse(body)?, &Pointer::ROOT, limits, now)
}

const SHAPE: Shape = Shape {
    known: &[
        "category",
        "to",
        "channels",
        "email",
        "send_at",
        "send_in",
        "expires_at",
        "expires_in",
        "tags",
        "metadata",
        "ordering_key",
        "collapse_key",
    ],
    later: &["sms", "push", "strategy", "fallback", "template", "dedup_key"],
};

/// Reads one notification that stands at `at` in a larger document, such as `/notifications/3` in a batch.
/// The document has been read by `json::parse`; members that are the envelope's own have been taken out of it.
///
/// # Errors
/// Everything that is wrong with it, with pointers from the root of the larger document.
pub fn parse_document(document: &Json<'_>, at: &Pointer<'_>, limits: &RequestLimits, now: Timestamp) -> Result<Request, Refused> {
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(document, at, &SHAPE, &mut faults) else { return Err(faults.into()) };

    let category = labels::category(&fields, &mut faults);
    let channels = labels::channels(&fields, &mut faults);
    let (recipients, written) = recipients::recipients(&fields, limits, &mut faults);
    let email = match fields.get("email") {
        Some(email) => email::email(email, &fields.at("email"), written, limits, &mut faults),
        None => {
            faults.add(&fields.at("email"), FaultCode::InvalidContent, "there is nothing to send: email content is missing");
            None
        }
    };
    let times = times::times(&fields, now, &mut faults);
    let tags = labels::tags(&fields, &mut faults);
    let metadata = labels::metadata(&fields, &mut faults);
    let ordering_key = relations::ordering_key(&fields, &mut faults);
    let collapse_key = relations::key(&fields, "collapse_key", &mut faults);

    let times::Times { send, expires, send_at, expires_at, overdue } = times;
    match email {
        Some(email) if faults.is_empty() => {
            let request = Request {
                category,
                channels,
                recipients,
                email,
                send,
                expires,
                send_at,
                expires_at,
                tags,
                metadata,
                ordering_key,
                collapse_key,
            };
            if overdue.is_empty() { Ok(request) } else { Err(Refused { faults: overdue, overdue: Some(Box::new(request)) }) }
        }
        _ => {
            faults.extend(overdue);
            Err(faults.into())
        }
    }
}

// Addresses, content and the caller's own facts never reach a log (S-213): `Debug` tells numbers only.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("recipients", &self.recipients.len()).field("email", &self.email).finish_non_exhaustive()
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recipient(..)")
    }
}

impl fmt::Debug for EmailDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmailDraft").field("attachments", &self.attachments.len()).finish_non_exhaustive()
    }
}
