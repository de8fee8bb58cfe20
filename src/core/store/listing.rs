//! Lists of notifications, one delivery by its id, and the content that was given.

use async_trait::async_trait;
use uuid::Uuid;

use super::{StoreError, StoredNotification};
use crate::ids::{DeliveryId, NotificationId, TenantId};
use crate::listing::Seen;
use crate::words::Mode;

/// More deliveries than this are not looked at in one go; a single notification may have more.
pub const MOST_DELIVERIES: usize = 2_000;

/// Where a list is looked at: ids of one tenant from `from` to just below `before`, of both modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Whose list.
    pub tenant: TenantId,
    /// The lowest id.
    pub from: Uuid,
    /// What lies above the highest id.
    pub before: Uuid,
    /// How many rows are looked at, at most.
    pub rows: usize,
    /// Whether deliveries are looked at too.
    pub with_deliveries: bool,
    /// Whether metadata is.
    pub with_metadata: bool,
}

/// What was seen in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Newest first. Rows that this binary cannot read are left out (S-231).
    pub seen: Vec<Seen>,
    /// The lowest id that was looked at, where there may be more below it.
    pub reached: Option<Uuid>,
}

impl Scan {
    /// How many of the rows with so many deliveries are looked at in one go: at least one.
    pub fn fitting(delivery_counts: impl IntoIterator<Item = usize>) -> usize {
        let mut sum = 0;
        let fits = |count: &usize| {
            sum += count;
            sum <= MOST_DELIVERIES
        };
        delivery_counts.into_iter().take_while(fits).count().max(1)
    }
}

/// What was said, as long as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredContent {
    /// The shape of the sealed content.
    pub schema_version: i16,
    /// Sealed content; `None` once it was erased.
    pub body: Option<Vec<u8>>,
}

/// Lists, and what a single delivery is asked for.
#[async_trait]
pub trait Listing: Send + Sync {
    /// Looks at the newest rows of a window: a bounded number, whatever the table holds (S-199).
    ///
    /// # Errors
    /// When it cannot be read.
    async fn scan(&self, window: &Window) -> Result<Scan, StoreError>;

    /// Several notifications as `Reading::notification` gives one, newest first. What is not there, or cannot be read by
    /// this binary, is left out.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn notifications(&self, tenant: TenantId, mode: Mode, ids: &[NotificationId]) -> Result<Vec<StoredNotification>, StoreError>;

    /// A notification with this one of its deliveries alone.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn delivery(&self, tenant: TenantId, mode: Mode, id: DeliveryId) -> Result<Option<StoredNotification>, StoreError>;

    /// The content of a notification.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn content(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredContent>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_before_it_holds_too_many_deliveries_but_always_goes_on() {
        assert_eq!(Scan::fitting([500, 500, 500, 500, 1]), 4);
        assert_eq!(Scan::fitting([4_000, 1]), 1);
        assert_eq!(Scan::fitting([1; 250]), 250);
    }
}
