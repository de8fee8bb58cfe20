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

use crate::{PostgresStore, audit, feed, limited, limited_write, listing, operational, read, sandbox};

#[async_trait]
impl Reading for PostgresStore {
    async fn by_key(&self, tenant: TenantId, mode: Mode, idempotency_key: &str) -> Result<Option<KeyHolder>, StoreError> {
        limited(read::by_key(self, tenant, mode, idempotency_key)).await
    }

    async fn notification(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredNotification>, StoreError> {
        limited(read::notification(self, tenant, mode, id)).await
    }

    async fn next_due(&self) -> Result<Vec<(LaneId, Timestamp)>, StoreError> {
        limited(read::next_due(self)).await
    }

    async fn waiting_lanes(&self) -> Result<Vec<LaneId>, StoreError> {
        limited(read::waiting_lanes(self)).await
    }

    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError> {
        limited(audit::audit(self, since, until, overdue)).await
    }

    async fn open_count(&self) -> Result<i64, StoreError> {
        limited(read::open_count(self)).await
    }
}

#[async_trait]
impl Listing for PostgresStore {
    async fn scan(&self, window: &Window) -> Result<Scan, StoreError> {
        limited(listing::scan(self, window)).await
    }

    async fn notifications(&self, tenant: TenantId, mode: Mode, ids: &[NotificationId]) -> Result<Vec<StoredNotification>, StoreError> {
        limited(listing::notifications(self, tenant, mode, ids)).await
    }

    async fn delivery(&self, tenant: TenantId, mode: Mode, id: DeliveryId) -> Result<Option<StoredNotification>, StoreError> {
        limited(listing::delivery(self, tenant, mode, id)).await
    }

    async fn content(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredContent>, StoreError> {
        limited(listing::content(self, tenant, mode, id)).await
    }
}

#[async_trait]
impl Feed for PostgresStore {
    async fn events(&self, query: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
        limited(feed::feed(self, query)).await
    }

    async fn end(&self) -> Result<FeedPosition, StoreError> {
        limited(feed::feed_end(self)).await
    }

    async fn tell(&self, occurrences: &[Occurrence]) -> Result<(), StoreError> {
        limited_write(operational::tell_alone(self, occurrences)).await
    }
}

#[async_trait]
impl Mailbox for PostgresStore {
    async fn sandbox_messages(
        &self,
        tenant: TenantId,
        mode: Option<Mode>,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxMessage>, StoreError> {
        limited(sandbox::page(self, tenant, mode, filter)).await
    }

    async fn sandbox_message(&self, tenant: TenantId, mode: Option<Mode>, id: Uuid) -> Result<Option<SandboxMessage>, StoreError> {
        limited(sandbox::message(self, tenant, mode, id)).await
    }

    async fn clear_sandbox(&self, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError> {
        limited_write(sandbox::clear(self, tenant, mode)).await
    }
}
