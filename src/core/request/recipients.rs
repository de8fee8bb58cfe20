//! `to`: who is written to. Each recipient gets a message of their own, so the same mailbox twice is refused
//! rather than written to twice.

use std::collections::HashSet;

use crate::fault::{Fault, FaultCode, Faults};
use crate::ids::MAX_DELIVERIES;
use crate::json::Json;
use crate::pointer::Pointer;

use super::fields::{Fields, Shape};
use super::mailboxes::{mailbox, named, one_or_list};
use super::{Recipient, RequestLimits, labels};

const SHAPE: Shape = Shape { known: &["email", "name", "ref", "metadata"], later: &["phone", "push", "variables"] };

/// The recipients that could be read, and how many are written there.
pub(super) fn recipients(fields: &Fields<'_>, limits: &RequestLimits, faults: &mut Faults) -> (Vec<Recipient>, usize) {
    let at = fields.at("to");
    let Some(value) = fields.get("to") else {
        faults.add(&at, FaultCode::InvalidField, "a recipient is missing, such as \"ada@example.com\" or {\"email\": ...}");
        return (Vec::new(), 0);
    };
    let (items, is_list) = one_or_list(value);
    let limit = limits.recipients.min(usize::from(MAX_DELIVERIES));
    if items.is_empty() {
        faults.add(&at, FaultCode::InvalidRecipient, "at least one recipient is needed");
    }
    if items.len() > limit {
        faults.push(Fault::new(&at, FaultCode::InvalidRecipient, format!("at most {limit} recipients")).over(limit, items.len()));
        return (Vec::new(), items.len());
    }
    let mut seen = HashSet::with_capacity(items.len());
    let mut recipients = Vec::with_capacity(items.len());
    for (position, item) in items.iter().enumerate() {
        let element = at.index(position);
        let at = if is_list { &element } else { &at };
        let Some(recipient) = recipient(item, at, faults) else { continue };
        if is_list && !seen.insert(recipient.mailbox.email.canonical()) {
            faults.add(at, FaultCode::InvalidRecipient, "an earlier recipient has the same address, and each gets a message of its own");
        }
        recipients.push(recipient);
    }
    (recipients, items.len())
}

fn recipient(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Recipient> {
    match value {
        Json::Text(text) if is_phone_number(text) => {
            faults.add(at, FaultCode::InvalidRecipient, "SMS is not available in this version of Tidings: give an email address");
            None
        }
        Json::Object(_) => {
            let fields = Fields::open(value, at, &SHAPE, faults)?;
            let reference = labels::reference(&fields, faults);
            let metadata = labels::metadata(&fields, faults);
            let mailbox = named(&fields, faults)?;
            let written = fields.text("email", faults)?.to_owned();
            Some(Recipient { mailbox, written, reference, metadata })
        }
        Json::Text(text) => {
            let mailbox = mailbox(value, at, faults)?;
            Some(Recipient { mailbox, written: text.to_string(), reference: None, metadata: Vec::new() })
        }
        other => mailbox(other, at, faults).and(None),
    }
}

/// The shorthand for a phone number, in any of the ways people write one.
fn is_phone_number(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('+') && text.len() > 1 && text[1..].bytes().all(|b| b.is_ascii_digit() || b" ()-./".contains(&b))
}
