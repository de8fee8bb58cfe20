//! What callers are shown: notifications, lists, the feed, and the sandbox.
//! Each is one call of the module that holds the SQL.

use async_trait::async_trait;
use tidings_core::ids::{DeliveryId, LaneId, NotificationId, TenantId};
use tidings_core::operational::Occurrence;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::store::{
    Feed, FeedPage, FeedPosition, FeedQuery, Finding, KeyHolder, Listing, Mailbox, Reading, SandboxFilter, Scan, StoreError, StoredContent,
    StoredNotification, Window,
};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::{SqliteStore, audit, feed, listing, operational, read, sandbox};

#[async_trait]
impl Reading for SqliteStore {
    async fn by_key(&self, tenant: TenantId, mode: Mode, idempotency_key: &str) -> Result<Option<KeyHolder>, StoreError> {
        read::by_key(&self.readers, tenant, mode, idempotency_key).await
    }

    async fn notification(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredNotification>, StoreError> {
        read::notification(&self.readers, tenant, mode, id).await
    }

    async fn next_due(&self) -> Result<Vec<(LaneId, Timestamp)>, StoreError> {
        read::next_due(&self.readers).await
    }

    async fn waiting_lanes(&self) -> Result<Vec<LaneId>, StoreError> {
        read::waiting_lanes(&self.readers).await
    }

    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError> {
        audit::audit(&self.readers, since, until, overdue).await
    }

    async fn open_count(&self) -> Result<i64, StoreError> {
        read::open_count(&self.readers).await
    }
}

#[async_trait]
impl Listing for SqliteStore {
    async fn scan(&self, window: &Window) -> Result<Scan, StoreError> {
        listing::scan(&self.readers, window).await
    }

    async fn notifications(&self, tenant: TenantId, mode: Mode, ids: &[NotificationId]) -> Result<Vec<StoredNotification>, StoreError> {
        listing::notifications(&self.readers, tenant, mode, ids).await
    }

    async fn delivery(&self, tenant: TenantId, mode: Mode, id: DeliveryId) -> Result<Option<StoredNotification>, StoreError> {
        listing::delivery(&self.readers, tenant, mode, id).await
    }

    async fn content(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredContent>, StoreError> {
        listing::content(&self.readers, tenant, mode, id).await
    }
}

#[async_trait]
impl Feed for SqliteStore {
    async fn events(&self, query: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
        feed::feed(&self.readers, query).await
    }

    async fn end(&self) -> Result<FeedPosition, StoreError> {
        feed::feed_end(&self.readers).await
    }

    async fn tell(&self, occurrences: &[Occurrence]) -> Result<(), StoreError> {
        operational::tell(self.writer().await?.connection(), occurrences).await
    }
}

#[async_trait]
impl Mailbox for SqliteStore {
    async fn sandbox_messages(
        &self,
        tenant: TenantId,
        mode: Option<Mode>,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxMessage>, StoreError> {
        sandbox::messages(&self.readers, tenant, mode, filter).await
    }

    async fn sandbox_message(&self, tenant: TenantId, mode: Option<Mode>, id: Uuid) -> Result<Option<SandboxMessage>, StoreError> {
        sandbox::message(&self.readers, tenant, mode, id).await
    }

    async fn clear_sandbox(&self, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError> {
        sandbox::clear(self.writer().await?.connection(), tenant, mode).await
    }
}
