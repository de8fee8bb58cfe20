//! The canonical form of a request: the bytes that an idempotency key is bound to (S-004). Two spellings of one request give
//! the same bytes; any difference that changes what is sent gives others. The keyed digest over them is `secrets::Keyring`'s.
//!
//! Stored fingerprints outlive a release. A field that is added later is left out while it is absent, so that older requests
//! keep their bytes; any other change needs a new `FINGERPRINT_VERSION` and the old form beside the new one.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Serialize;

use crate::address::Mailbox;
use crate::content::Attachment;
use crate::request::{Author, EmailDraft, Recipient, Request, UNKNOWN_TYPE, When};
use crate::words::Channel;

#[cfg(test)]
mod tests;

/// The room that the form of an ordinary request takes.
const USUAL_SIZE: usize = 512;

/// The canonical form: compact JSON with sorted names, absent and empty fields left out, shorthand expanded, addresses
/// as they are matched, instants and durations as numbers, attachments as their SHA-256. `metadata` is not part of it.
pub fn canonical(request: &Request) -> Vec<u8> {
    let form = CanonicalRequest {
        category: request.category.as_deref(),
        channels: &request.channels,
        collapse_key: request.collapse_key.as_deref(),
        email: CanonicalEmail::from(&request.email),
        expires: request.expires.map(CanonicalWhen::from),
        ordering_key: request.ordering_key.as_deref(),
        send: request.send.map(CanonicalWhen::from),
        tags: &request.tags,
        to: request.recipients.iter().map(CanonicalRecipient::from).collect(),
    };
    let mut written = Vec::with_capacity(USUAL_SIZE);
    serde_json::to_writer(&mut written, &form).expect("texts, numbers and maps with text names always have a JSON form");
    written
}

// The fields of each struct stand in alphabetical order: serde writes them as declared, and that is what sorts them.

#[derive(Serialize)]
struct CanonicalRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channels: &'a [Channel],
    #[serde(skip_serializing_if = "Option::is_none")]
    collapse_key: Option<&'a str>,
    email: CanonicalEmail<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<CanonicalWhen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    send: Option<CanonicalWhen>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [String],
    to: Vec<CanonicalRecipient<'a>>,
}

/// As it was asked for: the instant that a duration leads to differs with every call.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum CanonicalWhen {
    AtMicros(i64),
    InMillis(u128),
}

impl From<When> for CanonicalWhen {
    fn from(when: When) -> Self {
        match when {
            When::At(instant) => Self::AtMicros(instant.as_micros()),
            When::In(span) => Self::InMillis(span.as_millis()),
        }
    }
}

#[derive(Serialize)]
struct CanonicalRecipient<'a> {
    email: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<&'a str>,
}

impl<'a> From<&'a Recipient> for CanonicalRecipient<'a> {
    fn from(recipient: &'a Recipient) -> Self {
        let Mailbox { email, name } = &recipient.mailbox;
        Self { email: email.canonical(), name: name.as_deref(), reference: recipient.reference.as_deref() }
    }
}

#[derive(Serialize)]
struct CanonicalMailbox<'a> {
    email: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl<'a> From<&'a Mailbox> for CanonicalMailbox<'a> {
    fn from(mailbox: &'a Mailbox) -> Self {
        Self { email: mailbox.email.canonical(), name: mailbox.name.as_deref() }
    }
}

/// A mailbox, or the name of a sender as a bare text.
#[derive(Serialize)]
#[serde(untagged)]
enum CanonicalFrom<'a> {
    Mailbox(CanonicalMailbox<'a>),
    Sender(&'a str),
}

#[derive(Serialize)]
struct CanonicalEmail<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_to: Vec<CanonicalMailbox<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<CanonicalAttachment<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bcc: Vec<CanonicalMailbox<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cc: Vec<CanonicalMailbox<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<CanonicalFrom<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reply_to: Vec<CanonicalMailbox<'a>>,
    subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

impl<'a> From<&'a EmailDraft> for CanonicalEmail<'a> {
    fn from(email: &'a EmailDraft) -> Self {
        fn all(mailboxes: &[Mailbox]) -> Vec<CanonicalMailbox<'_>> {
            mailboxes.iter().map(CanonicalMailbox::from).collect()
        }
        Self {
            also_to: all(&email.also_to),
            attachments: email.attachments.iter().map(CanonicalAttachment::from).collect(),
            bcc: all(&email.bcc),
            cc: all(&email.cc),
            from: email.from.as_ref().map(|author| match author {
                Author::Mailbox(mailbox) => CanonicalFrom::Mailbox(mailbox.into()),
                Author::Sender(name) => CanonicalFrom::Sender(name),
            }),
            headers: email.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            html: email.html.as_deref(),
            reply_to: all(&email.reply_to),
            subject: &email.subject,
            text: email.text.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct CanonicalAttachment<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_id: Option<&'a str>,
    content_sha256: String,
    /// Left out where it is the default: saying it and not saying it are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    filename: &'a str,
}

impl<'a> From<&'a Attachment> for CanonicalAttachment<'a> {
    fn from(attachment: &'a Attachment) -> Self {
        Self {
            content_id: attachment.content_id.as_deref(),
            content_sha256: hex::encode(digest(&SHA256, &attachment.content)),
            content_type: Some(attachment.content_type.as_str()).filter(|content_type| *content_type != UNKNOWN_TYPE),
            filename: &attachment.filename,
        }
    }
}
