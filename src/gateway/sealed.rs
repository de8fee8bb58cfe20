//! What is stored sealed, by whom it is opened, and to which row and column each blob is bound: the one place that knows
//! the form inside. How sealing works is `tidings_core::secrets`' business.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::content::{Content, EmailContent};
use tidings_core::differs::Asked;
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::outcome::{Outcome, RefusedCopy, Report};
use tidings_core::secrets::{CannotOpen, Keyring};
use tidings_core::store::StoredSuppression;
use uuid::Uuid;

/// The shape of what is sealed here. A worker leaves rows of a newer one alone (S-231).
pub const SCHEMA_VERSION: i16 = 1;

/// The room that an ordinary value takes before it is sealed.
const USUAL_SIZE: usize = 512;

/// Where one delivery goes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// As the caller wrote it, for the answer to the request and its replays.
    pub written: String,
    /// As it is sent to.
    pub mailbox: Mailbox,
    /// The caller's own facts about this recipient, in the caller's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata: Vec<(String, String)>,
}

/// What became of the copies of a message.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Copies that were taken while others were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
    /// Copies that were refused; they are never tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedCopy>,
    /// Copies that were suppressed at the newest attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppressed: Vec<String>,
}

impl Copies {
    /// The addresses that no later call includes.
    pub fn left_out(&self) -> Vec<String> {
        self.accepted.iter().cloned().chain(self.refused.iter().map(|copy| copy.address.clone())).collect()
    }

    /// With what a call reports about copies.
    #[must_use]
    pub fn after(mut self, report: &Report) -> Self {
        let refused = match &report.outcome {
            Outcome::Accepted { refused_copies, .. } => refused_copies.as_slice(),
            _ => &[],
        };
        self.refused.extend_from_slice(refused);
        self.accepted.extend_from_slice(&report.accepted_copies);
        self
    }
}

/// Seals what is said, and what of the request it does not tell.
pub fn seal_content(keyring: &Keyring, id: NotificationId, content: &Content, asked: &Asked) -> Vec<u8> {
    let Content::Email(email) = content;
    seal(keyring, &Kept::Email { email, asked }, &context("content", id))
}

/// Opens what is said.
///
/// # Errors
/// When the blob is not of this row and key, or of a newer shape.
pub fn open_content(keyring: &Keyring, id: NotificationId, sealed: &[u8]) -> Result<Content, CannotOpen> {
    open(keyring, sealed, &context("content", id))
}

/// Opens what is said with what was asked for beside it.
///
/// # Errors
/// When the blob is not of this row and key, or of a newer shape.
pub fn open_asked(keyring: &Keyring, id: NotificationId, sealed: &[u8]) -> Result<(EmailContent, Asked), CannotOpen> {
    let Reopened::Email { email, asked } = open(keyring, sealed, &context("content", id))?;
    Ok((email, asked))
}

/// The content as it is sealed: `Content`, with a member that it does not read.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Kept<'a> {
    Email {
        #[serde(flatten)]
        email: &'a EmailContent,
        asked: &'a Asked,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reopened {
    Email {
        #[serde(flatten)]
        email: EmailContent,
        #[serde(default)]
        asked: Asked,
    },
}

/// Seals where a delivery goes.
pub fn seal_address(keyring: &Keyring, id: DeliveryId, address: &Address) -> Vec<u8> {
    seal(keyring, address, &context("address", id))
}

/// Opens where a delivery goes.
///
/// # Errors
/// When the blob is not of this row and key.
pub fn open_address(keyring: &Keyring, id: DeliveryId, sealed: &[u8]) -> Result<Address, CannotOpen> {
    open(keyring, sealed, &context("address", id))
}

/// Seals the caller's facts about a notification, in the caller's order; `None` where there are none.
pub fn seal_metadata(keyring: &Keyring, id: NotificationId, metadata: &[(String, String)]) -> Option<Vec<u8>> {
    (!metadata.is_empty()).then(|| seal(keyring, metadata, &context("metadata", id)))
}

/// Opens the caller's facts about a notification.
///
/// # Errors
/// When the blob is not of this row and key.
pub fn open_metadata(keyring: &Keyring, id: NotificationId, sealed: &[u8]) -> Result<Vec<(String, String)>, CannotOpen> {
    open(keyring, sealed, &context("metadata", id))
}

/// Seals the caller's name for the person.
pub fn seal_reference(keyring: &Keyring, id: DeliveryId, reference: &str) -> Vec<u8> {
    seal(keyring, reference, &context("reference", id))
}

/// Opens the caller's name for the person.
///
/// # Errors
/// When the blob is not of this row and key.
pub fn open_reference(keyring: &Keyring, id: DeliveryId, sealed: &[u8]) -> Result<String, CannotOpen> {
    open(keyring, sealed, &context("reference", id))
}

/// Seals what became of the copies of a message.
pub fn seal_copies(keyring: &Keyring, id: DeliveryId, copies: &Copies) -> Vec<u8> {
    seal(keyring, copies, &context("copies", id))
}

/// Opens what became of the copies of a message.
///
/// # Errors
/// When the blob is not of this row and key.
pub fn open_copies(keyring: &Keyring, id: DeliveryId, sealed: &[u8]) -> Result<Copies, CannotOpen> {
    open(keyring, sealed, &context("copies", id))
}

/// Seals the address of a suppression that somebody asked for.
pub fn seal_suppressed(keyring: &Keyring, id: Uuid, address: &EmailAddress) -> Vec<u8> {
    seal(keyring, address, &format!("suppression:{}", id.simple()))
}

/// Opens the address of a suppression; `None` where there is none or it cannot be opened. That of a refused recipient is
/// sealed as its delivery's, that of a refused copy like one that somebody asked for.
pub fn open_suppressed(keyring: &Keyring, row: &StoredSuppression) -> Option<EmailAddress> {
    let sealed = row.address.as_deref()?;
    let own = open(keyring, sealed, &format!("suppression:{}", row.id.simple())).ok();
    own.or_else(|| open_address(keyring, row.delivery?, sealed).ok().map(|address| address.mailbox.email))
}

/// Seals a message of the sandbox, which is JSON already.
pub fn seal_sandbox(keyring: &Keyring, id: Uuid, body: &[u8]) -> Vec<u8> {
    keyring.seal(body, format!("sandbox:{}", id.simple()).as_bytes(), rand::random())
}

/// Opens a message of the sandbox.
///
/// # Errors
/// When the blob is not of this row and key.
pub fn open_sandbox<T: DeserializeOwned>(keyring: &Keyring, id: Uuid, sealed: &[u8]) -> Result<T, CannotOpen> {
    open(keyring, sealed, &format!("sandbox:{}", id.simple()))
}

/// The row and column that a blob belongs to.
fn context(column: &str, id: impl std::fmt::Display) -> String {
    let mut context = String::with_capacity(64);
    context.push_str(column);
    // Nothing can fail: a `String` takes whatever is written to it.
    let _ = write!(context, ":{id}");
    context
}

fn seal<T: Serialize + ?Sized>(keyring: &Keyring, value: &T, context: &str) -> Vec<u8> {
    let mut plain = Vec::with_capacity(USUAL_SIZE);
    serde_json::to_writer(&mut plain, value).expect("texts, lists and maps with text names always have a JSON form");
    keyring.seal(&plain, context.as_bytes(), rand::random())
}

fn open<T: DeserializeOwned>(keyring: &Keyring, sealed: &[u8], context: &str) -> Result<T, CannotOpen> {
    serde_json::from_slice(&keyring.open(sealed, context.as_bytes())?).map_err(|_| CannotOpen)
}

// Addresses and the caller's own facts never reach a log (S-213).
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address(..)")
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").field("accepted", &self.accepted.len()).field("refused", &self.refused.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_core::time::Timestamp;

    fn ids() -> (NotificationId, NotificationId) {
        let at = Timestamp::from_millis(1_800_000_000_000);
        (NotificationId::new(at, [1; 10]), NotificationId::new(at, [2; 10]))
    }

    #[test]
    fn a_sealed_address_opens_for_its_own_delivery_alone() {
        let (keyring, (id, other)) = (Keyring::derive(&[7; 32]), ids());
        let mailbox: Mailbox = "Ada <Ada@Example.com>".parse().unwrap();
        let address =
            Address { written: "Ada <Ada@Example.com>".to_owned(), mailbox, metadata: vec![("seat".to_owned(), "4A".to_owned())] };
        let sealed = seal_address(&keyring, id.delivery(1), &address);
        assert_eq!(open_address(&keyring, id.delivery(1), &sealed), Ok(address));
        assert_eq!(open_address(&keyring, id.delivery(2), &sealed), Err(CannotOpen));
        assert_eq!(open_address(&keyring, other.delivery(1), &sealed), Err(CannotOpen));
        assert_eq!(open_reference(&keyring, id.delivery(1), &sealed), Err(CannotOpen));
    }

    #[test]
    fn copies_are_kept_when_some_were_refused_and_all_of_them_are_left_out_later() {
        let (keyring, (id, _)) = (Keyring::derive(&[7; 32]), ids());
        let refused = vec![RefusedCopy { address: "b@example.com".to_owned(), code: "550 5.1.1".to_owned() }];
        let mut report = Report::new(Outcome::Accepted { message_id: None, refused_copies: refused });
        report.accepted_copies = vec!["c@example.com".to_owned()];
        let earlier =
            Copies { accepted: vec!["a@example.com".to_owned()], suppressed: vec!["d@example.com".to_owned()], ..Copies::default() };
        let sealed = seal_copies(&keyring, id.delivery(1), &earlier.clone().after(&report));
        let copies = open_copies(&keyring, id.delivery(1), &sealed).unwrap();
        assert_eq!(copies.suppressed, ["d@example.com"], "asked again at every attempt, so not left out for ever");
        assert!(earlier.clone().after(&Report::new(Outcome::Ambiguous)) == earlier);
        assert_eq!(copies.left_out(), ["a@example.com", "c@example.com", "b@example.com"]);
    }
}
