//! A message of the sandbox as people and tests read it: taken apart from the bytes that a relay would have got.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{Address, Message, MessageParser, MessagePart, MimeHeaders as _, PartType};
use serde::Serialize;
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::sandbox::{SandboxEmail, SandboxMessage};
use tidings_core::secrets::{CannotOpen, Keyring};
use tidings_core::words::Channel;
use uuid::Uuid;

use super::finds::{codes, links, links_of_html, push_new};
use super::view::Instant;
use crate::sealed;

/// `msg_` and 32 hexadecimal digits.
#[derive(Clone, Copy)]
pub(super) struct MessageId(pub(super) Uuid);

impl std::fmt::Display for MessageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "msg_{}", self.0.simple())
    }
}

impl std::str::FromStr for MessageId {
    type Err = ();
    fn from_str(raw: &str) -> Result<Self, ()> {
        let hex = raw.strip_prefix("msg_").filter(|hex| hex.len() == 32 && !hex.bytes().any(|b| b.is_ascii_uppercase())).ok_or(())?;
        Uuid::try_parse(hex).map(Self).map_err(|_| ())
    }
}

impl Serialize for MessageId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What can be seen of a message.
#[derive(Serialize)]
pub(super) struct MessageView {
    pub(super) id: MessageId,
    pub(super) received_at: Instant,
    pub(super) channel: Channel,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) envelope_from: String,
    pub(super) envelope_to: Vec<String>,
    pub(super) subject: Option<String>,
    pub(super) text: Option<String>,
    pub(super) html: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) attachments: Vec<AttachmentView>,
    pub(super) codes: Vec<String>,
    pub(super) links: Vec<String>,
    pub(super) notification_id: NotificationId,
    pub(super) delivery_id: DeliveryId,
    pub(super) idempotency_key: String,
    pub(super) generation: u16,
}

/// A file that rides in a message.
#[derive(Serialize)]
pub(super) struct AttachmentView {
    pub(super) filename: String,
    pub(super) content_type: String,
    pub(super) size: usize,
    pub(super) content_id: Option<String>,
    pub(super) url: String,
}

/// A message whose seal is open.
pub(super) struct Opened {
    message: SandboxMessage,
    envelope_from: String,
    envelope_to: Vec<String>,
    /// The message as a relay would have got it.
    pub(super) raw: Vec<u8>,
}

impl Opened {
    /// Opens a stored message.
    ///
    /// # Errors
    /// When the blob is not of this row and key.
    pub(super) fn open(keyring: &Keyring, message: SandboxMessage) -> Result<Self, CannotOpen> {
        let email: SandboxEmail = sealed::open_sandbox(keyring, message.id, &message.body)?;
        let raw = STANDARD.decode(email.raw).map_err(|_| CannotOpen)?;
        Ok(Self { message, envelope_from: email.envelope_from, envelope_to: email.envelope_to, raw })
    }

    fn parse(&self) -> Option<Message<'_>> {
        MessageParser::default().parse(&self.raw)
    }

    /// Takes the message apart. One that no parser understands shows as its envelope alone.
    pub(super) fn view(&self) -> MessageView {
        let (id, message) = (MessageId(self.message.id), &self.message);
        let Parts { from, to, subject, text, html, readable, headers, attachments } =
            self.parse().map(|parsed| Parts::of(id, &parsed)).unwrap_or_default();
        let mut links = links(text.as_deref().unwrap_or_default());
        html.as_deref().map(links_of_html).into_iter().flatten().for_each(|link| push_new(&mut links, link));
        MessageView {
            id,
            received_at: Instant(message.received_at),
            channel: message.channel,
            from,
            to,
            envelope_from: self.envelope_from.clone(),
            envelope_to: self.envelope_to.clone(),
            subject,
            text,
            html,
            headers,
            attachments,
            codes: codes(&readable),
            links,
            notification_id: message.notification,
            delivery_id: message.handle.delivery,
            idempotency_key: message.idempotency_key.clone(),
            generation: message.handle.generation,
        }
    }

    /// Name and bytes of one attachment.
    pub(super) fn attachment(&self, number: usize) -> Option<(String, Vec<u8>)> {
        let parsed = self.parse()?;
        let part = parsed.attachment(u32::try_from(number).ok()?)?;
        Some((filename(number, part), part.contents().to_vec()))
    }

    /// Inline images as `data:` URLs by their content id, those of at most `limit` bytes.
    pub(super) fn inline_images(&self, limit: usize) -> Vec<(String, String)> {
        let Some(parsed) = self.parse() else { return Vec::new() };
        let images = parsed.attachments().filter(|part| part.contents().len() <= limit);
        let with_id = images.filter_map(|part| Some((part.content_id()?.to_owned(), content_type(part), part.contents())));
        with_id
            .filter(|(_, content_type, _)| content_type.starts_with("image/"))
            .map(|(id, content_type, bytes)| (id, format!("data:{content_type};base64,{}", STANDARD.encode(bytes))))
            .collect()
    }
}

/// What a parser finds in a message.
#[derive(Default)]
struct Parts {
    from: String,
    to: String,
    subject: Option<String>,
    text: Option<String>,
    html: Option<String>,
    /// The text, made from the HTML where there is no other.
    readable: String,
    headers: Vec<(String, String)>,
    attachments: Vec<AttachmentView>,
}

impl Parts {
    fn of(id: MessageId, message: &Message<'_>) -> Self {
        let text = message.text_part(0).filter(|part| matches!(part.body, PartType::Text(_))).and_then(MessagePart::text_contents);
        let html = message.html_part(0).filter(|part| matches!(part.body, PartType::Html(_))).and_then(MessagePart::text_contents);
        Self {
            from: message.from().map(written).unwrap_or_default(),
            to: message.to().map(written).unwrap_or_default(),
            subject: message.subject().map(str::to_owned),
            text: text.map(str::to_owned),
            html: html.map(str::to_owned),
            readable: message.body_text(0).unwrap_or_default().into_owned(),
            headers: headers(message),
            attachments: message.attachments().enumerate().map(|(number, part)| attachment_view(id, number, part)).collect(),
        }
    }
}

fn attachment_view(id: MessageId, number: usize, part: &MessagePart<'_>) -> AttachmentView {
    AttachmentView {
        filename: filename(number, part),
        content_type: content_type(part),
        size: part.contents().len(),
        content_id: part.content_id().map(str::to_owned),
        url: format!("/v1/sandbox/messages/{id}/attachments/{number}"),
    }
}

fn filename(number: usize, part: &MessagePart<'_>) -> String {
    part.attachment_name().map_or_else(|| format!("attachment-{}", number + 1), str::to_owned)
}

fn content_type(part: &MessagePart<'_>) -> String {
    let of = |content_type: &mail_parser::ContentType<'_>| {
        let subtype = content_type.subtype().unwrap_or("octet-stream");
        format!("{}/{subtype}", content_type.ctype()).to_ascii_lowercase()
    };
    part.content_type().map_or_else(|| "application/octet-stream".to_owned(), of)
}

/// Mailboxes as one writes them.
fn written(address: &Address<'_>) -> String {
    let mut text = String::new();
    for mailbox in address.iter() {
        if !text.is_empty() {
            text.push_str(", ");
        }
        // Writing to a String cannot fail.
        let _ = match (mailbox.name(), mailbox.address()) {
            (Some(name), Some(email)) => write!(text, "{name} <{email}>"),
            (one, other) => write!(text, "{}", one.or(other).unwrap_or_default()),
        };
    }
    text
}

/// The headers in their order, unfolded, otherwise as they stand in the message.
fn headers(message: &Message<'_>) -> Vec<(String, String)> {
    message.headers_raw().map(|(name, value)| (name.to_owned(), value.replace("\r\n", "").trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_core::ids::{Handle, TenantId};
    use tidings_core::time::Timestamp;
    use tidings_core::words::Mode;

    fn opened(raw: &str) -> Opened {
        let notification = NotificationId::new(Timestamp::from_millis(1_800_000_000_000), [1; 10]);
        let handle = Handle { delivery: notification.delivery(1), generation: 1 };
        let keyring = Keyring::derive(&[7; 32]);
        let email = SandboxEmail {
            envelope_from: "shop@example.com".to_owned(),
            envelope_to: vec!["ada@example.com".to_owned(), "hidden@example.com".to_owned()],
            raw: STANDARD.encode(raw.replace('\n', "\r\n")),
        };
        let id = Uuid::from_u128(5);
        let body = sealed::seal_sandbox(&keyring, id, &serde_json::to_vec(&email).unwrap());
        let received_at = Timestamp::from_millis(1_800_000_000_500);
        let (tenant, mode, channel) = (TenantId(1), Mode::Test, Channel::Email);
        let idempotency_key = "hello-1".to_owned();
        let message =
            SandboxMessage { id, tenant, mode, received_at, channel, notification, handle, idempotency_key, envelope_to: Vec::new(), body };
        Opened::open(&keyring, message).expect("it was sealed for this row")
    }

    #[test]
    fn a_message_is_taken_apart_as_a_mail_program_would() {
        let message = opened(include_str!("tests/message_sample.eml"));
        insta::assert_json_snapshot!(message.view());
        let (name, bytes) = message.attachment(1).expect("there are two");
        assert_eq!((name.as_str(), bytes.as_slice()), ("Grüße.txt", b"hello".as_slice()));
        assert!(message.attachment(2).is_none());
        assert_eq!(message.inline_images(1_000), [("logo@shop".to_owned(), "data:image/png;base64,iVBORw==".to_owned())]);
    }

    #[test]
    fn what_is_no_message_shows_its_envelope() {
        let view = opened("").view();
        assert_eq!((view.envelope_to.len(), view.text, view.headers.len()), (2, None, 0));
    }

    proptest! {
        #[test]
        fn no_message_panics(raw in "[A-Za-z:;/=\\-\\n \"<>@.é0-9]{0,200}") {
            opened(&raw).view();
        }
    }
}
