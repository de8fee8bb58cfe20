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
mod ports;
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
use tidings_core::ids::{InstanceId, LaneId};
use tidings_core::store::{
    Access, Acts, Feed, Gauges, Keeping, Listing, Moving, Ordering, Quotas, Rates, Store, StoreError, Suppressions, Switches,
};
use tidings_core::time::Timestamp;

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
