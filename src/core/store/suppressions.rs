//! Addresses that are not written to: added in batches, listed, looked up by digest, taken away with a word in the audit.
//! Which of them a message obeys is decided in `suppression`; a refusal's own row is written by `Outbox::commit`.

use async_trait::async_trait;
use uuid::Uuid;

use super::{Deed, StoreError};
use crate::ids::{DeliveryId, TenantId};
use crate::suppression::{Hit, SuppressionReason, SuppressionScope};
use crate::time::Timestamp;
use crate::words::{Channel, Mode};

/// A suppression that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSuppression {
    /// Its identity: a UUIDv7 of the present, so that lists are in order.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: TenantId,
    /// Live or test.
    pub mode: Mode,
    /// The medium.
    pub channel: Channel,
    /// What the address is matched by.
    pub address_digest: Vec<u8>,
    /// The sealed address.
    pub address: Vec<u8>,
    /// Why.
    pub reason: SuppressionReason,
    /// How far it reaches.
    pub scope: SuppressionScope,
    /// Who says so, such as `api`.
    pub source: String,
    /// A remark for people.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// The delivery in which it was found out, where it was.
    pub delivery: Option<DeliveryId>,
}

/// What became of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suppressed {
    /// It is new.
    Added(Uuid),
    /// There is one for the same address, reason and scope already.
    Kept(Uuid),
}

/// A suppression as it is read back. Words that a newer binary wrote are shown as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSuppression {
    /// Its identity.
    pub id: Uuid,
    /// The medium.
    pub channel: Channel,
    /// Why.
    pub reason: String,
    /// How far it reaches.
    pub scope: String,
    /// Who said so.
    pub source: String,
    /// A remark for people.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Not in force from here on.
    pub expires_at: Option<Timestamp>,
    /// The sealed address; `None` once erased.
    pub address: Option<Vec<u8>>,
    /// The delivery in which it was found out, where it was.
    pub delivery: Option<DeliveryId>,
}

/// A page of the list.
#[derive(Debug, Clone, Default)]
pub struct SuppressionFilter {
    /// One channel.
    pub channel: Option<Channel>,
    /// One reason.
    pub reason: Option<String>,
    /// One scope.
    pub scope: Option<String>,
    /// Made at or after.
    pub since: Option<Timestamp>,
    /// Made before.
    pub until: Option<Timestamp>,
    /// Only those older than this one.
    pub before: Option<Uuid>,
    /// How many at most.
    pub limit: i64,
}

/// Whose suppressions are asked for, and by which digests.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Whose.
    pub tenant: TenantId,
    /// Live or test.
    pub mode: Mode,
    /// The medium.
    pub channel: Channel,
    /// One digest for each address and live version of the digest key (S-156).
    pub digests: Vec<Vec<u8>>,
}

/// Addresses that are not written to.
#[async_trait]
pub trait Suppressions: Send + Sync {
    /// Sees to it that these are there, in one transaction, with one result for each; the same again is nothing. One that
    /// has an end is in force for good. What is new or changed is told in the feed, with whose key asked for it.
    ///
    /// # Errors
    /// When they cannot be written; then none is.
    async fn add(&self, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError>;

    /// A page of a tenant's and mode's own, newest first.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn page(&self, tenant: TenantId, mode: Mode, filter: &SuppressionFilter) -> Result<Vec<StoredSuppression>, StoreError>;

    /// Those that these addresses have, ended ones too, oldest first.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn of(&self, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError>;

    /// Those in force, each with the digest that it was found by.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn hits(&self, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError>;

    /// Takes one away, writes the audit entry and tells it in the feed, in the same transaction. `false` where this tenant and mode has none.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn remove(&self, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError>;
}
