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
mod history;
mod keeping;
mod listing;
mod log;
mod many;
mod moved_feed;
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
mod writer;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sqlx::sqlite::SqlitePool;
use tidings_core::ids::InstanceId;
use tidings_core::store::{
    Access, Acts, Feed, Gauges, Keeping, Listing, Moving, Ordering, Quotas, Rates, Store, StoreError, Suppressions, Switches,
};
use tidings_core::time::Timestamp;
use tokio::sync::Mutex;

use writer::{Writer, WriterGuard};

pub use error::OpenError;

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
