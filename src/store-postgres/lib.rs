//! The PostgreSQL store: the SQL behind the ports of `tidings-core`, for any number of processes on one database.
//! Decisions are core's, made inside the transactions here; times come in as arguments.

mod accept;
mod access;
mod acts;
mod apply;
mod audit;
mod audit_log;
mod claim;
mod commit;
mod completing;
mod error;
mod feed;
mod finish;
mod gauges;
mod history;
mod instant;
mod keeping;
mod key_expiry;
mod listing;
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
mod wake;

use std::future::Future;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgPool, Postgres};
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
use uuid::Uuid;

pub use crate::wake::{WakeListener, Woken};

/// The newest shape of rows that this binary knows; newer ones are left to newer binaries (S-231).
const SCHEMA_VERSION: i16 = 1;

/// No answer within this time: the call is given up. Every statement ends by itself long before.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How to use a database.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections in all; wake-ups and migrations have their own.
    pub max_connections: u32,
    /// Off behind a pooler that gives every transaction another session.
    pub statement_cache: bool,
    /// Accept a database that does not wait for the disk.
    pub relaxed_durability: bool,
    /// Where to migrate, when not by the same URL.
    pub migrate_url: Option<String>,
    /// Where to notify and listen, when not by the same URL.
    pub listen_url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_connections: 16, statement_cache: true, relaxed_durability: false, migrate_url: None, listen_url: None }
    }
}

/// A PostgreSQL database behind the port.
#[derive(Debug)]
pub struct PostgresStore {
    pool: PgPool,
    /// Sessions that keep their plans: for the statement that accepts, and for it alone.
    accepting: PgPool,
    /// Sessions that keep plans which only use indexes: for what claims, reads and finishes deliveries.
    moving: PgPool,
    describe: String,
    committers: usize,
    migrate_options: PgConnectOptions,
    listen_options: PgConnectOptions,
    wake: wake::Wake,
    relaxed_durability: bool,
    partitions_due: AtomicI64,
}

impl PostgresStore {
    /// A store on the database that `url` names. Connections are made when they are first needed, so a database that is
    /// away is told by `migrate` and `time`, which may be tried again; both refuse one whose commits do not wait for the
    /// disk (S-002).
    ///
    /// # Errors
    /// When a URL cannot be read.
    pub async fn connect(url: &str, options: Options) -> Result<Self, StoreError> {
        schema::connect(url, &options)
    }

    /// Wakes other processes for rows in these lanes, soon and once for many calls. A hint: it may get lost. To be called
    /// after a commit, inside a runtime; does not wait.
    pub fn notify(&self, lanes: &[LaneId]) {
        self.wake.notify(lanes);
    }

    /// Hears the hints of all processes, on a connection of its own.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn listen(&self) -> Result<WakeListener, StoreError> {
        WakeListener::listen(self.listen_options.clone()).await
    }

    async fn connection(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.pool.acquire().await.map_err(error::before)
    }

    /// For statements that find each row by an index.
    async fn mover(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.moving.acquire().await.map_err(error::before)
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| Err(error::silent()))
}

async fn limited_write<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| Err(error::silent_commit()))
}

#[async_trait]
impl Store for PostgresStore {
    fn acts(&self) -> &dyn Acts {
        self
    }

    fn listing(&self) -> &dyn Listing {
        self
    }

    fn describe(&self) -> String {
        self.describe.clone()
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
        schema::migrate(self).await
    }

    async fn pending_migrations(&self) -> Result<Vec<String>, StoreError> {
        limited(schema::pending(self)).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        limited(schema::time(self)).await
    }

    async fn prove_writable(&self, instance: InstanceId, config_digest: &[u8], now: Timestamp) -> Result<(), StoreError> {
        limited_write(schema::prove_writable(self, instance, config_digest, now)).await
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
        self.wake.close();
        // Calls that run are waited for, but not for ever.
        let all = async { tokio::join!(self.pool.close(), self.accepting.close(), self.moving.close()) };
        let _ = tokio::time::timeout(CALL_LIMIT, all).await;
    }
}

#[async_trait]
impl Registry for PostgresStore {
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        limited(registry::setting(self, key)).await
    }

    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        limited_write(registry::settle_setting(self, key, value)).await
    }

    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError> {
        limited_write(registry::ensure_tenant(self, name)).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        limited(registry::tenants(self)).await
    }

    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        limited_write(registry::add_key(self, key)).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        limited(registry::keys(self)).await
    }

    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
        limited(registry::key_by_hash(self, key_hash)).await
    }

    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
        limited_write(registry::ensure_accounts(self, accounts)).await
    }

    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError> {
        limited(registry::account_names(self)).await
    }

    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
        limited_write(registry::ensure_lanes(self, lanes)).await
    }

    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
        limited(registry::lanes(self)).await
    }

    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
        schema::partitions_ahead(self, now).await;
        limited_write(registry::register_instance(self, now, config_digest)).await
    }
}

#[async_trait]
impl Outbox for PostgresStore {
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
        commit::commit(self, rules, batch, now).await
    }

    fn committers(&self) -> usize {
        self.committers
    }

    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError> {
        limited(sweep::renew(self, instance, running, until, now)).await
    }

    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        schema::partitions_ahead(self, now).await;
        limited_write(sweep::sweep(self, rules, sweep, limit, now)).await
    }

    async fn void_leases(&self, _now: Timestamp) -> Result<u64, StoreError> {
        // Owners may live in other processes: leases end by themselves.
        Ok(0)
    }

    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
        limited(read::outgoing(self, ids)).await
    }
}

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

    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError> {
        limited(audit::audit(self, since, until, overdue)).await
    }

    async fn open_count(&self) -> Result<i64, StoreError> {
        limited(read::open_count(self)).await
    }
}

#[async_trait]
impl Acts for PostgresStore {
    async fn act(&self, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
        acts::act(self, rules, acts, now).await
    }

    async fn dead_letters(&self, tenant: TenantId, mode: Mode, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        limited(acts::dead_letters(self, tenant, mode, filter)).await
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

#[async_trait]
impl Suppressions for PostgresStore {
    async fn add(&self, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
        limited_write(suppressions::add(self, items, actor)).await
    }

    async fn page(&self, tenant: TenantId, mode: Mode, filter: &SuppressionFilter) -> Result<Vec<StoredSuppression>, StoreError> {
        limited(suppressions::page(self, tenant, mode, filter)).await
    }

    async fn of(&self, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
        limited(suppressions::of(self, asked)).await
    }

    async fn hits(&self, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
        limited(suppressions::hits(self, asked, now)).await
    }

    async fn remove(&self, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(suppressions::remove(self, tenant, mode, id, entry)).await
    }
}

#[async_trait]
impl Switches for PostgresStore {
    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        limited(switches::switches(self)).await
    }

    async fn set_switch(&self, scope: &Scope, paused: bool, until: Option<Timestamp>, by: &SwitchedBy) -> Result<(), StoreError> {
        limited_write(switches::set_switch(self, scope, paused, until, by)).await
    }

    async fn clear_switch(&self, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
        limited_write(switches::clear_switch(self, scope, by)).await
    }

    async fn disabled_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        limited(switches::disabled_tenants(self)).await
    }

    async fn note_act(&self, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
        limited_write(switches::note(self, action, subject, by)).await
    }

    async fn open_calls(&self) -> Result<Vec<OpenCalls>, StoreError> {
        limited(switches::open_calls(self)).await
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
impl Access for PostgresStore {
    async fn principal(&self, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
        limited(access::principal(self, key_hash)).await
    }

    async fn page(&self, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
        limited(access::page(self, filter)).await
    }

    async fn key(&self, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
        limited(access::key(self, id)).await
    }

    async fn issue(&self, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
        limited_write(access::issue(self, key, after, entry)).await
    }

    async fn revoke(&self, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(access::revoke(self, id, entry)).await
    }

    async fn make_tenant(&self, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
        limited_write(access::make_tenant(self, name, entry)).await
    }

    async fn set_active(&self, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(access::set_active(self, name, active, entry)).await
    }
}

#[async_trait]
impl Gauges for PostgresStore {
    async fn depths(&self, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
        limited(gauges::depths(self, now)).await
    }

    async fn horizon_age(&self) -> Result<Duration, StoreError> {
        limited(gauges::horizon_age(self)).await
    }
}

#[async_trait]
impl Ordering for PostgresStore {
    async fn skip_stuck(&self, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        limited_write(order::skip_stuck(self, limit, now)).await
    }
}

#[async_trait]
impl Keeping for PostgresStore {
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError> {
        limited_write(keeping::take_run(self, job, window, instance, now)).await
    }

    async fn due(&self, kept: Kept, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Due, StoreError> {
        limited(keeping::due(self, kept, keep, after, now)).await
    }

    fn rows_at_once(&self) -> usize {
        keeping::ROWS_AT_ONCE
    }

    async fn erase(&self, kept: Kept, keep: &Retention, chunk: &[DueNotification], now: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::erase(self, kept, keep, chunk, now)).await
    }

    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::purge_events(self, before)).await
    }

    async fn purge_rest(&self, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::purge_rest(self, keep, now)).await
    }

    async fn carry_log_over(&self) -> Result<i64, StoreError> {
        // The server's own checkpointer does.
        Ok(0)
    }

    async fn give_back(&self, keep: &Retention, now: Timestamp) -> Result<bool, StoreError> {
        limited_write(keeping::give_back(self, keep, now)).await
    }
}

#[async_trait]
impl Rates for PostgresStore {
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
        limited_write(rates::draw(self, asks)).await
    }
}

#[async_trait]
impl Quotas for PostgresStore {
    async fn draw_calls(&self, asks: &[pool::Ask]) -> Result<Vec<pool::Drawn>, StoreError> {
        limited_write(quotas::draw(self, asks)).await
    }

    async fn give_calls_back(&self, rests: &[pool::Rest]) -> Result<(), StoreError> {
        limited_write(quotas::give_back(self, rests)).await
    }

    async fn calls_used(&self, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
        limited(quotas::used(self, days)).await
    }
}

#[async_trait]
impl Moving for PostgresStore {
    async fn unfreeze(&self) -> Result<bool, StoreError> {
        limited_write(moving::unfreeze(self)).await
    }

    async fn seen_since(&self, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
        limited(moving::seen_since(self, since)).await
    }

    async fn under_way(&self) -> Result<Vec<Owned>, StoreError> {
        limited(moving::under_way(self)).await
    }

    async fn export(&self, sink: &mut dyn Sink) -> Result<(), ExportError> {
        moving::export(self, sink).await
    }

    async fn import(&self, source: &mut dyn Source) -> Result<(), ImportError> {
        moving::import(self, source).await
    }

    async fn settle_feed(&self) -> Result<bool, StoreError> {
        moving::settle_feed(self).await
    }
}
