//! A store that can be told to fail the way a real one does, at an exact place.

use std::sync::Arc;
use std::sync::Mutex;

use async_trait::async_trait;
use tidings_core::ids::{AccountId, DeliveryId, InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::operational::Occurrence;
use tidings_core::policy::Rules;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::slices::{Ask, Slice};
use tidings_core::store::*;
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode};
use uuid::Uuid;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Nothing,
    /// Nothing can be reached.
    Away,
    /// The disk is full: reads go on.
    Full,
    /// The commit happens, but its answer is lost.
    AnswerLost,
    /// The connection breaks in the commit, which does not happen, and nobody can be asked afterwards.
    CommitLost,
    /// Another transaction has the key and is not decided.
    InProgress,
    /// Nothing fails, but the time of content is over.
    Erased,
    /// Nothing fails but the buckets of rates.
    NoRates,
}

pub(super) struct Broken {
    inner: Arc<dyn Store>,
    failure: Mutex<Failure>,
    draws: std::sync::atomic::AtomicUsize,
}

impl Broken {
    pub(super) fn around(inner: Arc<dyn Store>) -> Self {
        Self { inner, failure: Mutex::new(Failure::Nothing), draws: Default::default() }
    }

    pub(super) fn fails(&self, failure: Failure) {
        *self.failure.lock().unwrap() = failure;
    }

    /// How often rates were drawn from.
    pub(super) fn draws(&self) -> usize {
        self.draws.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn failure(&self) -> Failure {
        *self.failure.lock().unwrap()
    }

    fn readable(&self) -> Result<(), StoreError> {
        match self.failure() {
            Failure::Away | Failure::CommitLost => Err(StoreError::Unreachable("nobody there".into())),
            Failure::Nothing | Failure::Full | Failure::AnswerLost | Failure::InProgress | Failure::Erased | Failure::NoRates => Ok(()),
        }
    }
}

#[async_trait]
impl Store for Broken {
    fn acts(&self) -> &dyn Acts {
        self.inner.acts()
    }
    fn listing(&self) -> &dyn Listing {
        self
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn access(&self) -> &dyn Access {
        self.inner.access()
    }
    fn suppressions(&self) -> &dyn Suppressions {
        self.inner.suppressions()
    }
    fn gauges(&self) -> &dyn Gauges {
        self.inner.gauges()
    }
    fn pauses(&self) -> &dyn Switches {
        self.inner.pauses()
    }
    fn moving(&self) -> &dyn Moving {
        self.inner.moving()
    }
    async fn migrate(&self) -> Result<(), StoreError> {
        self.inner.migrate().await
    }
    async fn pending_migrations(&self) -> Result<Vec<String>, StoreError> {
        self.inner.pending_migrations().await
    }
    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.time().await
    }
    async fn prove_writable(&self, instance: InstanceId, config_digest: &[u8], now: Timestamp) -> Result<(), StoreError> {
        self.inner.prove_writable(instance, config_digest, now).await
    }
    fn feed(&self) -> &dyn Feed {
        self
    }
    fn keeping(&self) -> &dyn Keeping {
        self.inner.keeping()
    }
    fn ordering(&self) -> &dyn Ordering {
        self.inner.ordering()
    }
    fn rates(&self) -> &dyn Rates {
        self
    }
    fn quotas(&self) -> &dyn Quotas {
        self.inner.quotas()
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl Feed for Broken {
    async fn events(&self, query: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
        self.inner.feed().events(query).await
    }
    async fn end(&self) -> Result<FeedPosition, StoreError> {
        self.inner.feed().end().await
    }
    async fn tell(&self, occurrences: &[Occurrence]) -> Result<(), StoreError> {
        self.readable()?;
        self.inner.feed().tell(occurrences).await
    }
}

#[async_trait]
impl Registry for Broken {
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.setting(key).await
    }
    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.inner.settle_setting(key, value).await
    }
    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError> {
        self.inner.ensure_tenant(name).await
    }
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.readable()?;
        self.inner.tenants().await
    }
    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        self.inner.add_key(key).await
    }
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.inner.keys().await
    }
    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
        match self.failure() {
            // Known from a moment ago, as in the process's cache.
            Failure::CommitLost => {}
            _ => self.readable()?,
        }
        self.inner.key_by_hash(key_hash).await
    }
    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
        self.inner.ensure_accounts(accounts).await
    }
    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError> {
        self.inner.account_names().await
    }
    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
        self.inner.ensure_lanes(lanes).await
    }
    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
        self.inner.lanes().await
    }
    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
        self.inner.register_instance(now, config_digest).await
    }
}

#[async_trait]
impl Outbox for Broken {
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
        let count = batch.accept.len();
        let all = |result: fn() -> Result<Accepted, StoreError>| WriteResults {
            accept: (0..count).map(|_| result()).collect(),
            ..WriteResults::default()
        };
        match self.failure() {
            Failure::Nothing | Failure::Erased | Failure::NoRates => self.inner.commit(rules, batch, now).await,
            Failure::Away => all(|| Err(StoreError::Unreachable("nobody there".into()))),
            Failure::Full => all(|| Err(StoreError::NotWritable("the disk is full".into()))),
            Failure::CommitLost => all(|| Err(StoreError::CommitUnknown("reset".into()))),
            Failure::InProgress => all(|| Ok(Accepted::InProgress)),
            Failure::AnswerLost => {
                self.inner.commit(rules, batch, now).await;
                all(|| Err(StoreError::CommitUnknown("reset".into())))
            }
        }
    }
    fn committers(&self) -> usize {
        self.inner.committers()
    }
    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError> {
        self.inner.renew(instance, running, until, now).await
    }
    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        self.inner.sweep(rules, sweep, limit, now).await
    }
    async fn void_leases(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.inner.void_leases(now).await
    }
    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
        self.inner.outgoing(ids).await
    }
}

#[async_trait]
impl Reading for Broken {
    async fn by_key(&self, tenant: TenantId, mode: Mode, idempotency_key: &str) -> Result<Option<KeyHolder>, StoreError> {
        self.readable()?;
        self.inner.by_key(tenant, mode, idempotency_key).await
    }
    async fn notification(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredNotification>, StoreError> {
        self.readable()?;
        self.inner.notification(tenant, mode, id).await
    }
    async fn next_due(&self) -> Result<Vec<(LaneId, Timestamp)>, StoreError> {
        self.inner.next_due().await
    }
    async fn waiting_lanes(&self) -> Result<Vec<LaneId>, StoreError> {
        self.inner.waiting_lanes().await
    }
    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError> {
        self.inner.audit(since, until, overdue).await
    }
    async fn open_count(&self) -> Result<i64, StoreError> {
        self.inner.open_count().await
    }
}

#[async_trait]
impl Listing for Broken {
    async fn scan(&self, window: &Window) -> Result<Scan, StoreError> {
        self.readable()?;
        self.inner.listing().scan(window).await
    }
    async fn notifications(&self, tenant: TenantId, mode: Mode, ids: &[NotificationId]) -> Result<Vec<StoredNotification>, StoreError> {
        self.inner.listing().notifications(tenant, mode, ids).await
    }
    async fn delivery(&self, tenant: TenantId, mode: Mode, id: DeliveryId) -> Result<Option<StoredNotification>, StoreError> {
        self.inner.listing().delivery(tenant, mode, id).await
    }
    async fn content(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredContent>, StoreError> {
        let content = self.inner.listing().content(tenant, mode, id).await?;
        let is_erased = self.failure() == Failure::Erased;
        Ok(content.map(|content| StoredContent { body: content.body.filter(|_| !is_erased), ..content }))
    }
}

#[async_trait]
impl Mailbox for Broken {
    async fn sandbox_messages(
        &self,
        tenant: TenantId,
        mode: Option<Mode>,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxMessage>, StoreError> {
        self.readable()?;
        self.inner.sandbox_messages(tenant, mode, filter).await
    }
    async fn sandbox_message(&self, tenant: TenantId, mode: Option<Mode>, id: Uuid) -> Result<Option<SandboxMessage>, StoreError> {
        self.readable()?;
        self.inner.sandbox_message(tenant, mode, id).await
    }
    async fn clear_sandbox(&self, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError> {
        self.inner.clear_sandbox(tenant, mode).await
    }
}

#[async_trait]
impl Rates for Broken {
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
        self.draws.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if self.failure() == Failure::NoRates {
            return Err(StoreError::Refused("no such table".into()));
        }
        self.readable()?;
        self.inner.rates().draw(asks).await
    }
}
