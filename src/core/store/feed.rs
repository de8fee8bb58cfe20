//! The pull feed: events in the order of their positions, with what they need of the record.

use async_trait::async_trait;

use super::StoreError;
use crate::delivery::{EventType, Flags};
use crate::ids::{AccountId, DeliveryId, TenantId};
use crate::operational::Occurrence;
use crate::time::Timestamp;
use crate::words::{Channel, Class, Mode};

/// A place in the feed. Behind a place that a reader has reached nothing is committed any more (S-206).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedPosition {
    /// Which transaction.
    pub pos: i64,
    /// Which event of it.
    pub n: i32,
}

/// What a reader asks for.
#[derive(Debug, Clone)]
pub struct FeedQuery {
    /// Whose events.
    pub tenant: TenantId,
    /// Of which mode.
    pub mode: Mode,
    /// Together with those of the whole installation, in the order of their places.
    pub with_installation: bool,
    /// Of which types; none means all.
    pub types: Vec<EventType>,
    /// Only what comes after this place; `None` means the oldest kept.
    pub after: Option<FeedPosition>,
    /// How many at most.
    pub limit: i64,
}

/// A page of the feed.
#[derive(Debug, Clone)]
pub struct FeedPage {
    /// In order.
    pub events: Vec<StoredEvent>,
    /// Where to go on.
    pub next: FeedPosition,
    /// Nothing more is there at the moment.
    pub is_end: bool,
}

/// An event as it is stored. Its words are not read: a newer binary may have written others.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are those of EventRow")]
pub struct StoredEvent {
    pub position: FeedPosition,
    pub at: Timestamp,
    pub delivery: DeliveryId,
    pub version: i32,
    pub kind: String,
    pub previous: Option<String>,
    pub state: String,
    pub reason: Option<String>,
    pub certainty: String,
    pub account: Option<AccountId>,
    pub generation: i64,
    pub attempt_count: i64,
    pub flags: Flags,
    pub bounce_class: Option<String>,
    pub smtp_code: Option<i64>,
    pub enhanced_code: Option<String>,
    pub occurred_at: Timestamp,
    /// Its `data` as JSON, where it is about no delivery; `delivery` is then its own identity and the other fields say nothing.
    pub detail: Option<String>,
    /// What the record says of it; `None` once that was purged.
    pub subject: Option<EventSubject>,
}

/// What an event shows of its notification and delivery.
#[derive(Debug, Clone)]
pub struct EventSubject {
    /// The caller's key.
    pub idempotency_key: String,
    /// The application's name for its kind.
    pub category: String,
    /// How urgent.
    pub class: Class,
    /// In the caller's order.
    pub tags: Vec<String>,
    /// Sealed metadata.
    pub metadata: Option<Vec<u8>>,
    /// The medium.
    pub channel: Channel,
    /// The caller's sealed name for the person.
    pub reference: Option<Vec<u8>>,
    /// The provider's id of the acceptance of the event's generation.
    pub provider_message_id: Option<String>,
}

/// The pull feed.
#[async_trait]
pub trait Feed: Send + Sync {
    /// A page of events, oldest first; `None` where some of what comes after the place was purged.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn events(&self, query: &FeedQuery) -> Result<Option<FeedPage>, StoreError>;

    /// The end of the feed: everything that is committed from now on comes after it.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn end(&self) -> Result<FeedPosition, StoreError>;

    /// Tells what happened to something that the store does not hold, in a transaction of its own.
    ///
    /// # Errors
    /// When it cannot be written; then nothing is.
    async fn tell(&self, occurrences: &[Occurrence]) -> Result<(), StoreError>;
}
