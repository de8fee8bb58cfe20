//! The email of a request: who it is from, what it says, who gets a copy.

use crate::address::Mailbox;
use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::pointer::Pointer;

use super::fields::{Fields, Shape, is_label};
use super::mailboxes::{mailbox, mailboxes};
use super::{Author, EmailDraft, RequestLimits, attachments, headers};

const SHAPE: Shape =
    Shape { known: &["from", "subject", "text", "html", "reply_to", "cc", "bcc", "also_to", "headers", "attachments"], later: &[] };

const MAX_SUBJECT: usize = 255;

/// Reads the email; `recipients` is how many stand in `to`.
pub(super) fn email(
    value: &Json<'_>,
    at: &Pointer<'_>,
    recipients: usize,
    limits: &RequestLimits,
    faults: &mut Faults,
) -> Option<EmailDraft> {
    let fields = Fields::open(value, at, &SHAPE, faults)?;
    let from = fields.get("from").and_then(|value| from(value, &fields.at("from"), faults));
    let subject = subject(&fields, faults);
    // An empty alternative is none.
    let text = fields.text("text", faults).filter(|text| !text.is_empty()).map(str::to_owned);
    let html = fields.text("html", faults).filter(|html| !html.is_empty()).map(str::to_owned);
    if text.is_none() && html.is_none() && !has_wrong_body(&fields) {
        faults.add(at, FaultCode::InvalidContent, "text or html is needed, and one of them must not be empty");
    }
    let reply_to = mailboxes(&fields, "reply_to", limits.recipients, faults);
    let [cc, bcc, also_to] = copies(&fields, recipients, limits, faults);
    let headers = fields.get("headers").map(|value| headers::headers(value, &fields.at("headers"), faults)).unwrap_or_default();
    let attachments =
        fields.get("attachments").map(|value| attachments::attachments(value, &fields.at("attachments"), faults)).unwrap_or_default();
    Some(EmailDraft { from, subject: subject?, text, html, reply_to, cc, bcc, also_to, headers, attachments })
}

/// Whether a body is there that is no text, which is a fault of its own already.
fn has_wrong_body(fields: &Fields<'_>) -> bool {
    ["text", "html"].iter().any(|name| fields.get(name).is_some_and(|value| !matches!(value, Json::Text(_))))
}

fn from(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Author> {
    match value {
        Json::Text(name) if !name.contains('@') && is_label(name) => Some(Author::Sender(name.to_string())),
        Json::Text(name) if !name.contains('@') => {
            faults.add(at, FaultCode::InvalidContent, "neither a mailbox such as \"Shop <shop@example.com>\" nor the name of a sender");
            None
        }
        other => mailbox(other, at, faults).map(Author::Mailbox),
    }
}

fn subject(fields: &Fields<'_>, faults: &mut Faults) -> Option<String> {
    let at = fields.at("subject");
    let subject = match fields.get("subject") {
        Some(_) => fields.text("subject", faults)?,
        None => "",
    };
    if subject.trim().is_empty() {
        faults.add(&at, FaultCode::InvalidContent, "a subject is needed");
    }
    if subject.chars().any(char::is_control) {
        faults.add(&at, FaultCode::InvalidContent, "a subject is one line without control characters");
    }
    let length = subject.chars().count();
    if length > MAX_SUBJECT {
        let detail = format!("a subject has at most {MAX_SUBJECT} characters");
        faults.push(Fault::new(&at, FaultCode::InvalidContent, detail).over(MAX_SUBJECT, length));
    }
    Some(subject.to_owned())
}

/// `cc`, `bcc` and `also_to`: they ride in the message of the one recipient, and count together.
fn copies(fields: &Fields<'_>, recipients: usize, limits: &RequestLimits, faults: &mut Faults) -> [Vec<Mailbox>; 3] {
    let (limit, mut total) = (limits.recipients, 0);
    ["cc", "bcc", "also_to"].map(|name| {
        let copies = mailboxes(fields, name, limit, faults);
        if !copies.is_empty() && recipients > 1 {
            let detail = "copies need exactly one recipient in \"to\": with several, each gets a message of its own";
            faults.add(&fields.at(name), FaultCode::InvalidContent, detail);
        }
        let before = total;
        total += copies.len();
        if before <= limit && total > limit {
            let detail = format!("at most {limit} copies in cc, bcc and also_to together");
            faults.push(Fault::new(&fields.at(name), FaultCode::InvalidRecipient, detail).over(limit, total));
        }
        copies
    })
}
