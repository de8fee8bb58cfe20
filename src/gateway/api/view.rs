//! How a notification looks in answers, and the first of them: it is rendered from facts that never change, so that a
//! replay renders the same bytes again (S-007). How things stand now is shown by `read`.

use serde::{Serialize, Serializer};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::secrets::{CannotOpen, Keyring};
use tidings_core::state::State;
use tidings_core::status::Status;
use tidings_core::store::{StoredDelivery, StoredNotification};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode};

use crate::sealed::{self, Address};

/// The room that the answer about an ordinary notification takes.
const USUAL_SIZE: usize = 1_000;

/// An instant as answers show it: RFC 3339 in UTC with milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Instant(pub Timestamp);

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Where the status of a notification is read.
#[derive(Debug, Clone, Copy)]
pub struct StatusUrl(pub NotificationId);

impl Serialize for StatusUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("/v1/notifications/{}", self.0))
    }
}

/// The caller's own facts as an object, in the caller's order.
pub(crate) struct Pairs<'a>(pub(crate) &'a [(String, String)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[derive(Serialize)]
pub(super) struct NotificationView<'a, D> {
    pub(super) id: NotificationId,
    pub(super) idempotency_key: &'a str,
    pub(super) mode: Mode,
    pub(super) status: Status,
    pub(super) open: bool,
    pub(super) version: i64,
    pub(super) category: &'a str,
    pub(super) class: Class,
    pub(super) created_at: Instant,
    pub(super) send_at: Option<Instant>,
    pub(super) expires_at: Instant,
    pub(super) tags: &'a [String],
    pub(super) metadata: Pairs<'a>,
    pub(super) status_url: StatusUrl,
    pub(super) deliveries: Vec<D>,
}

/// What the first answer and its replays are rendered from.
#[allow(missing_docs, reason = "the fields are those of NewNotification and StoredNotification")]
pub struct First<'a> {
    pub id: NotificationId,
    pub idempotency_key: &'a str,
    pub mode: Mode,
    pub category: &'a str,
    pub class: Class,
    pub send_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    pub tags: &'a [String],
    pub metadata: &'a [(String, String)],
    pub deliveries: Vec<FirstDelivery<'a>>,
}

/// One delivery of a first answer.
#[allow(missing_docs, reason = "the fields are those of NewDelivery and StoredDelivery")]
pub struct FirstDelivery<'a> {
    pub id: DeliveryId,
    pub channel: Channel,
    /// As the caller wrote it.
    pub to: Option<&'a str>,
    pub reference: Option<&'a str>,
}

#[derive(Serialize)]
struct Accepted<'a> {
    id: DeliveryId,
    channel: Channel,
    to: Option<&'a str>,
    #[serde(rename = "ref")]
    reference: Option<&'a str>,
    hop: u8,
    state: State,
}

impl First<'_> {
    /// The body of the answer.
    pub fn render(self) -> Vec<u8> {
        let state = State::first(self.send_at.is_some());
        // A new delivery has version 1, and a notification the sum of its deliveries'.
        let version = i64::try_from(self.deliveries.len()).unwrap_or(i64::MAX);
        let accepted = |FirstDelivery { id, channel, to, reference }| Accepted { id, channel, to, reference, hop: 1, state };
        let view = NotificationView {
            id: self.id,
            idempotency_key: self.idempotency_key,
            mode: self.mode,
            status: Status::of([state]),
            open: true,
            version,
            category: self.category,
            class: self.class,
            created_at: Instant(self.id.created_at()),
            send_at: self.send_at.map(Instant),
            expires_at: Instant(self.expires_at),
            tags: self.tags,
            metadata: Pairs(self.metadata),
            status_url: StatusUrl(self.id),
            deliveries: self.deliveries.into_iter().map(accepted).collect(),
        };
        to_json(&view)
    }
}

/// The first answer to a notification that was accepted earlier.
///
/// # Errors
/// When what is sealed in it cannot be opened.
pub fn first_again(keyring: &Keyring, stored: &StoredNotification) -> Result<Vec<u8>, CannotOpen> {
    let metadata = metadata(keyring, stored)?;
    let opened = stored.deliveries.iter().map(|delivery| Opened::open(keyring, delivery)).collect::<Result<Vec<_>, _>>()?;
    let first = First {
        id: stored.id,
        idempotency_key: &stored.idempotency_key,
        mode: stored.mode,
        category: &stored.category,
        class: stored.class,
        send_at: stored.send_at,
        expires_at: stored.expires_at,
        tags: &stored.tags,
        metadata: &metadata,
        deliveries: stored
            .deliveries
            .iter()
            .zip(&opened)
            .map(|(stored, opened)| FirstDelivery {
                id: stored.delivery.id,
                channel: stored.delivery.channel,
                to: opened.address.as_ref().map(|address| address.written.as_str()),
                reference: opened.reference.as_deref(),
            })
            .collect(),
    };
    Ok(first.render())
}

/// How a notification stands, from the states of its deliveries.
pub fn status(stored: &StoredNotification) -> Status {
    Status::of(stored.deliveries.iter().map(|stored| stored.delivery.state))
}

pub(super) fn metadata(keyring: &Keyring, stored: &StoredNotification) -> Result<Vec<(String, String)>, CannotOpen> {
    stored.metadata.as_deref().map_or_else(|| Ok(Vec::new()), |sealed| sealed::open_metadata(keyring, stored.id, sealed))
}

/// What is sealed in a delivery.
pub(super) struct Opened {
    pub(super) address: Option<Address>,
    pub(super) reference: Option<String>,
}

impl Opened {
    pub(super) fn open(keyring: &Keyring, stored: &StoredDelivery) -> Result<Self, CannotOpen> {
        let id = stored.delivery.id;
        Ok(Self {
            address: stored.address.as_deref().map(|sealed| sealed::open_address(keyring, id, sealed)).transpose()?,
            reference: stored.reference.as_deref().map(|sealed| sealed::open_reference(keyring, id, sealed)).transpose()?,
        })
    }
}

pub(super) fn to_json<T: Serialize>(view: &T) -> Vec<u8> {
    let mut written = Vec::with_capacity(USUAL_SIZE);
    serde_json::to_writer(&mut written, view).expect("texts, numbers and maps with text names always have a JSON form");
    written
}
