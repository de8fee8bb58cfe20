//! What is to be said, as stored (sealed) with the notification and handed to adapters.
//! Parsing and checking it is `request`'s business; writing MIME is the adapters'.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::address::Mailbox;

/// The content of one notification for one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// An email.
    Email(EmailContent),
}

/// An email as the application wrote it, checked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmailContent {
    /// The visible author. Filled at intake from the category, the account or the tenant where the request has none.
    pub from: Mailbox,
    /// At most 255 characters, no CR, LF or NUL.
    pub subject: String,
    /// The plain-text alternative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The HTML alternative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Where answers go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reply_to: Vec<Mailbox>,
    /// Visible copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<Mailbox>,
    /// Copies in the envelope only: in no header, ever.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<Mailbox>,
    /// Further mailboxes shown in `To`, treated like `cc`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_to: Vec<Mailbox>,
    /// Custom headers in the caller's order; none that we own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Files and inline images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A file that rides in an email.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The name shown to the person, in any script.
    pub filename: String,
    /// The media type with all its parameters, such as `text/calendar; method=REQUEST; charset=UTF-8`.
    pub content_type: String,
    /// The bytes; base64 in JSON.
    #[serde(with = "base64_bytes")]
    pub content: Vec<u8>,
    /// For inline images: what `cid:` in the HTML names, without angle brackets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<String>,
}

// Content never reaches a log (S-213): `Debug` tells sizes only.
impl fmt::Debug for EmailContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmailContent").field("attachments", &self.attachments.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("bytes", &self.content.len()).finish_non_exhaustive()
    }
}

mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map_err(de::Error::custom)
    }
}
