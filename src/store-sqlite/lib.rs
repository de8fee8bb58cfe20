//! The store on SQLite: one file, one process, one writing connection; readers beside it never wait for it.
//! Decisions are made in `tidings-core`; this crate selects facts, asks, and writes what the answer says.

mod accept;
mod access;
mod acts;
mod apply;
mod audit;
mod audit_log;
mod batch;
mod claim;
mod commit;
mod completing;
#[cfg(test)]
mod durability;
mod error;
mod feed;
mod files;
mod finish;
mod gauges;
mod keeping;
mod listing;
mod log;
mod many;
mod moved_feed;
mod moving;
mod operational;
mod order;
mod quotas;
mod rates;
mod read;
mod registry;
mod rows;
mod sandbox;
mod schema;
mod suppressions;
mod sweep;
mod switches;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqlitePool;
use tidings_core::acts::Act;
use tidings_core::ids::{AccountId, DeliveryId, InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::operational::Occurrence;
use tidings_core::policy::Rules;
use tidings_core::pool;
use tidings_core::retention::{Kept, Retention};
use tidings_core::sandbox::SandboxMessage;
use tidings_core::slices::{Ask, Slice};
use tidings_core::store::{
    Access, Acted, Acts, ApiKey, Asked, DeadLetter, DeadLetterFilter, Deed, Depth, Due, DueNotification, ExportError, Feed, FeedPage,
    FeedPosition, FeedQuery, Finding, Gauges, ImportError, Keeping, KeyFilter, KeyHolder, Listing, Mailbox, Moving, NewSuppression,
    OpenCalls, Ordering, Outbox, Owned, Quotas, Rates, Reading, Registry, SandboxFilter, Scan, Sink, Source, Store, StoreError,
    StoredContent, StoredNotification, StoredOutgoing, StoredSuppression, Suppressed, SuppressionFilter, Suppressions, Sweep, Swept,
    SwitchedBy, Switches, Tenant, Window, WriteBatch, WriteResults,
};
use tidings_core::suppression::Hit;
use tidings_core::switches::{Scope, Switch};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode};
use tokio::sync::Mutex;
use uuid::Uuid;

pub use error::OpenError;
use writer::{Writer, WriterGuard};

/// The file name of the database in its directory.
pub const FILE_NAME: &str = "tidings.db";

/// Content of a newer shape than this is left to newer binaries (S-231).
const SCHEMA_VERSION: i64 = 1;

/// A store in one SQLite file, held by one process at a time.
pub struct SqliteStore {
    path: PathBuf,
    writer: Mutex<Option<Writer>>,
    readers: SqlitePool,
    rates: rates::Levels,
    log: log::Log,
}

impl SqliteStore {
    /// Opens the database at `path`, which is made where there is none, and locks it for this process.
    ///
    /// # Errors
    /// When another process holds it, or it cannot be read or written.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        let (writer, readers) = schema::open(path).await?;
        Ok(Self {
            path: path.to_owned(),
            writer: Mutex::new(Some(writer)),
            readers,
            rates: rates::Levels::default(),
            log: log::Log::of(path),
        })
    }

    /// Opens the database in a directory, which is made where there is none.
    ///
    /// # Errors
    /// As `open`.
    pub async fn open_in(directory: &Path) -> Result<Self, OpenError> {
        Self::open(&directory.join(FILE_NAME)).await
    }

    async fn writer(&self) -> Result<WriterGuard<'_>, StoreError> {
        writer::take(&self.writer).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn acts(&self) -> &dyn Acts {
        self
    }

    fn listing(&self) -> &dyn Listing {
        self
    }

    fn describe(&self) -> String {
        schema::describe(&self.path)
    }

    fn access(&self) -> &dyn Access {
        self
    }

    fn suppressions(&self) -> &dyn Suppressions {
        self
    }

    fn gauges(&self) -> &dyn Gauges {
        self
    }

    fn pauses(&self) -> &dyn Switches {
        self
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&mut *self.writer().await?, &self.path).await
    }

    async fn pending_migrations(&self) -> Result<Vec<String>, StoreError> {
        schema::pending(self.writer().await?.connection()).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        // The only process there is may keep its own time.
        Ok(None)
    }

    async fn prove_writable(&self, instance: InstanceId, config_digest: &[u8], now: Timestamp) -> Result<(), StoreError> {
        registry::see_instance(self.writer().await?.connection(), instance, config_digest, now).await
    }

    fn feed(&self) -> &dyn Feed {
        self
    }

    fn keeping(&self) -> &dyn Keeping {
        self
    }

    fn ordering(&self) -> &dyn Ordering {
        self
    }

    fn rates(&self) -> &dyn Rates {
        self
    }

    fn quotas(&self) -> &dyn Quotas {
        self
    }

    fn moving(&self) -> &dyn Moving {
        self
    }

    async fn close(&self) {
        self.readers.close().await;
        self.log.close().await;
        writer::close(&self.writer).await;
    }
}

#[async_trait]
impl Registry for SqliteStore {
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        registry::setting(&self.readers, key).await
    }

    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        registry::settle_setting(self.writer().await?.connection(), key, value).await
    }

    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError> {
        registry::ensure_tenant(self.writer().await?.connection(), name).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        registry::tenants(&self.readers).await
    }

    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        registry::add_key(self.writer().await?.connection(), key).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        registry::keys(&self.readers).await
    }

    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
        registry::key_by_hash(&self.readers, key_hash).await
    }

    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
        registry::ensure_accounts(&mut *self.writer().await?, accounts).await
    }

    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError> {
        registry::account_names(&self.readers).await
    }

    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
        registry::ensure_lanes(&mut *self.writer().await?, lanes).await
    }

    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
        registry::lanes(&self.readers).await
    }

    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
        registry::register_instance(self.writer().await?.connection(), now, config_digest).await
    }
}

#[async_trait]
impl Outbox for SqliteStore {
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
        commit::commit(self, rules, &batch, now).await
    }

    fn committers(&self) -> usize {
        1
    }

    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        _now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError> {
        sweep::renew(self.writer().await?.connection(), instance, running, until).await
    }

    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        sweep::sweep(&mut *self.writer().await?, rules, sweep, limit, now).await
    }

    async fn void_leases(&self, now: Timestamp) -> Result<u64, StoreError> {
        sweep::void_leases(self.writer().await?.connection(), now).await
    }

    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
        read::outgoing(&self.readers, ids).await
    }
}

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

    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError> {
        audit::audit(&self.readers, since, until, overdue).await
    }

    async fn open_count(&self) -> Result<i64, StoreError> {
        read::open_count(&self.readers).await
    }
}

#[async_trait]
impl Acts for SqliteStore {
    async fn act(&self, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
        acts::act(self, rules, acts, now).await
    }

    async fn dead_letters(&self, tenant: TenantId, mode: Mode, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        acts::dead_letters(&self.readers, tenant, mode, filter).await
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

#[async_trait]
impl Suppressions for SqliteStore {
    async fn add(&self, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
        suppressions::add(&mut *self.writer().await?, items, actor).await
    }

    async fn page(&self, tenant: TenantId, mode: Mode, filter: &SuppressionFilter) -> Result<Vec<StoredSuppression>, StoreError> {
        suppressions::page(&self.readers, tenant, mode, filter).await
    }

    async fn of(&self, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
        suppressions::of(&self.readers, asked).await
    }

    async fn hits(&self, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
        suppressions::hits(&self.readers, asked, now).await
    }

    async fn remove(&self, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        suppressions::remove(&mut *self.writer().await?, tenant, mode, id, entry).await
    }
}

#[async_trait]
impl Switches for SqliteStore {
    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        switches::switches(&self.readers).await
    }

    async fn set_switch(&self, scope: &Scope, paused: bool, until: Option<Timestamp>, by: &SwitchedBy) -> Result<(), StoreError> {
        switches::set_switch(self.writer().await?.connection(), scope, paused, until, by).await
    }

    async fn clear_switch(&self, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
        switches::clear_switch(self.writer().await?.connection(), scope, by).await
    }

    async fn disabled_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        switches::disabled_tenants(&self.readers).await
    }

    async fn note_act(&self, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
        switches::note(self.writer().await?.connection(), action, subject, by).await
    }

    async fn open_calls(&self) -> Result<Vec<OpenCalls>, StoreError> {
        switches::open_calls(&self.readers).await
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
impl Access for SqliteStore {
    async fn principal(&self, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
        access::principal(&self.readers, key_hash).await
    }

    async fn page(&self, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
        access::page(&self.readers, filter).await
    }

    async fn key(&self, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
        access::key(&self.readers, id).await
    }

    async fn issue(&self, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
        access::issue(&mut *self.writer().await?, key, after, entry).await
    }

    async fn revoke(&self, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        access::revoke(&mut *self.writer().await?, id, entry).await
    }

    async fn make_tenant(&self, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
        access::make_tenant(&mut *self.writer().await?, name, entry).await
    }

    async fn set_active(&self, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
        access::set_active(&mut *self.writer().await?, name, active, entry).await
    }
}

#[async_trait]
impl Gauges for SqliteStore {
    async fn depths(&self, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
        gauges::depths(&self.readers, now).await
    }

    async fn horizon_age(&self) -> Result<Duration, StoreError> {
        // One process writes, in one transaction at a time.
        Ok(Duration::ZERO)
    }
}

#[async_trait]
impl Ordering for SqliteStore {
    async fn skip_stuck(&self, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        order::skip_stuck(&mut *self.writer().await?, limit, now).await
    }
}

#[async_trait]
impl Keeping for SqliteStore {
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError> {
        keeping::take_run(&mut *self.writer().await?, job, window, instance, now).await
    }

    async fn due(&self, kept: Kept, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Due, StoreError> {
        keeping::due(&self.readers, kept, keep, after, now).await
    }

    fn rows_at_once(&self) -> usize {
        keeping::CHUNK
    }

    async fn erase(&self, kept: Kept, keep: &Retention, chunk: &[DueNotification], now: Timestamp) -> Result<u64, StoreError> {
        keeping::erase(&mut *self.writer().await?, kept, keep, chunk, now).await
    }

    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError> {
        keeping::purge_events(&mut *self.writer().await?, before).await
    }

    async fn purge_rest(&self, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
        keeping::purge_rest(&mut *self.writer().await?, keep, now).await
    }

    async fn carry_log_over(&self) -> Result<i64, StoreError> {
        let writer_is_idle = self.writer.try_lock().is_ok();
        self.log.carry_over(writer_is_idle).await
    }

    async fn give_back(&self, _keep: &Retention, _now: Timestamp) -> Result<bool, StoreError> {
        keeping::give_back(&mut *self.writer().await?).await
    }
}

#[async_trait]
impl Rates for SqliteStore {
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
        Ok(rates::draw(&self.rates, asks))
    }
}

#[async_trait]
impl Quotas for SqliteStore {
    async fn draw_calls(&self, asks: &[pool::Ask]) -> Result<Vec<pool::Drawn>, StoreError> {
        quotas::draw(&mut *self.writer().await?, asks).await
    }

    async fn give_calls_back(&self, rests: &[pool::Rest]) -> Result<(), StoreError> {
        quotas::give_back(&mut *self.writer().await?, rests).await
    }

    async fn calls_used(&self, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
        quotas::used(&self.readers, days).await
    }
}

#[async_trait]
impl Moving for SqliteStore {
    async fn unfreeze(&self) -> Result<bool, StoreError> {
        moving::unfreeze(self.writer().await?.connection()).await
    }

    async fn seen_since(&self, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
        moving::seen_since(&self.readers, since).await
    }

    async fn under_way(&self) -> Result<Vec<Owned>, StoreError> {
        moving::under_way(&self.readers).await
    }

    async fn export(&self, sink: &mut dyn Sink) -> Result<(), ExportError> {
        moving::export(&self.readers, sink).await
    }

    async fn import(&self, source: &mut dyn Source) -> Result<(), ImportError> {
        moving::import(&mut *self.writer().await?, source).await
    }

    async fn settle_feed(&self) -> Result<bool, StoreError> {
        // The file counts its events itself and is never without its count.
        Ok(false)
    }
}
