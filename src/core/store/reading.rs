//! What is read back: notifications by key and id, what is due, and what the auditor finds.

use async_trait::async_trait;
use uuid::Uuid;

use super::{KeyHolder, StoreError};
use crate::delivery::{AttemptRecord, Delivery};
use crate::ids::{LaneId, NotificationId, TenantId};
use crate::time::Timestamp;
use crate::words::{Class, Mode, words};

/// A notification as it is read back.
#[derive(Debug, Clone)]
pub struct StoredNotification {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its identity.
    pub id: NotificationId,
    /// Live or test.
    pub mode: Mode,
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
    /// When it was to be sent.
    pub send_at: Option<Timestamp>,
    /// When it was to be dropped.
    pub expires_at: Timestamp,
    /// In order of their ordinals.
    pub deliveries: Vec<StoredDelivery>,
}

/// A delivery as it is read back.
#[derive(Debug, Clone)]
pub struct StoredDelivery {
    /// The row itself.
    pub delivery: Delivery,
    /// The sealed address.
    pub address: Option<Vec<u8>>,
    /// The caller's sealed name for the person.
    pub reference: Option<Vec<u8>>,
    /// Sealed copies with their fate.
    pub copies: Option<Vec<u8>>,
    /// Email: the `Message-ID`.
    pub message_id: Option<String>,
    /// When it was to be sent, where that is its own: it was moved.
    pub send_at: Option<Timestamp>,
    /// The suppression that ended it, or that its refusal led to.
    pub suppression: Option<Behind>,
    /// When the record was written last.
    pub updated_at: Timestamp,
    /// Finished attempts in order; a running one is in the delivery's own columns.
    pub attempts: Vec<AttemptRecord>,
}

/// The suppression behind a delivery: what stopped it, or what its refusal led to. Once it is removed, its id alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// Its identity.
    pub id: Uuid,
    /// Why the address is suppressed.
    pub reason: Option<String>,
    /// How far it reaches.
    pub scope: Option<String>,
    /// Since when.
    pub created_at: Option<Timestamp>,
}

words! {
    /// A relation between rows that must always hold and does not (S-031).
    pub enum Violation {
        /// A `queue` row whose record is missing or says that it has ended.
        OpenWithoutRecord = "open_without_record",
        /// A record that says it is open, without a `queue` row.
        RecordWithoutQueue = "record_without_queue",
        /// A notification with another number of deliveries than it was accepted with.
        DeliveriesMissing = "deliveries_missing",
        /// A `dispatching` row long after its lease.
        LeaseOverdue = "lease_overdue",
        /// An `ambiguous` row long after its hold.
        HoldOverdue = "hold_overdue",
    }
}

/// What the auditor found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which relation is broken.
    pub violation: Violation,
    /// How many rows break it.
    pub count: i64,
    /// One of them: a delivery, or the notification whose deliveries are not all there.
    pub sample: Uuid,
}

/// What is read back.
#[async_trait]
pub trait Reading: Send + Sync {
    /// Which notification holds a key; read from the primary (S-011).
    ///
    /// # Errors
    /// When it cannot be read.
    async fn by_key(&self, tenant: TenantId, mode: Mode, idempotency_key: &str) -> Result<Option<KeyHolder>, StoreError>;

    /// A notification with its deliveries and their attempts; `None` for other tenants' and the other mode's.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn notification(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredNotification>, StoreError>;

    /// For each lane with waiting rows: when its next row is due (not those blocked by ordering).
    ///
    /// # Errors
    /// When it cannot be read.
    async fn next_due(&self) -> Result<Vec<(LaneId, Timestamp)>, StoreError>;

    /// The lanes in which rows wait, due or not: one index probe for each lane, however much waits.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn waiting_lanes(&self) -> Result<Vec<LaneId>, StoreError>;

    /// Looks for rows that break a relation: all of `queue`, and records accepted between `since` and `until`, which the
    /// caller keeps short. Rows whose timer ran out before `overdue` should have been moved by a sweep.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError>;

    /// How many rows are open: waiting, dispatching, ambiguous.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn open_count(&self) -> Result<i64, StoreError>;
}
