//! The one writing connection: transactions that begin IMMEDIATE and savepoints inside them.
//! What is written in them is the other modules' business. A caller whose future is dropped in the middle leaves a
//! transaction open; the next caller takes it back first.

use std::fs::File;
use std::time::Duration;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, query};
use tidings_core::store::StoreError;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::error::{commit_error, store_error};

/// Longer than any batch takes: who waits so long is better told.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The writing connection, and the lock that makes it the only one.
pub(crate) struct Writer {
    connection: SqliteConnection,
    in_transaction: bool,
    has_savepoints: bool,
    _lock: File,
}

/// The writer while somebody has it.
pub(crate) type WriterGuard<'a> = MappedMutexGuard<'a, Writer>;

impl Writer {
    pub(crate) const fn new(connection: SqliteConnection, lock: File) -> Self {
        Self { connection, in_transaction: false, has_savepoints: true, _lock: lock }
    }

    /// The connection, for statements inside the transaction or ones that commit by themselves.
    pub(crate) const fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    pub(crate) async fn begin(&mut self) -> Result<(), StoreError> {
        self.has_savepoints = true;
        self.start().await
    }

    /// As `begin`, where all parts stand or fall together: SQLite keeps a copy of every page that is changed behind a
    /// savepoint, which for rows spread over an index costs as much as the rows themselves.
    pub(crate) async fn begin_whole(&mut self) -> Result<(), StoreError> {
        self.has_savepoints = false;
        self.start().await
    }

    /// Whether a part of this transaction can be taken back alone.
    pub(crate) const fn has_savepoints(&self) -> bool {
        self.has_savepoints
    }

    async fn start(&mut self) -> Result<(), StoreError> {
        self.in_transaction = true;
        // A deferred transaction that reads first fails at once when it then writes; IMMEDIATE waits its turn.
        let begun = query("BEGIN IMMEDIATE").execute(&mut self.connection).await;
        self.in_transaction = begun.is_ok();
        begun.map(|_| ()).map_err(store_error)
    }

    /// Commits what succeeded and takes back what did not.
    pub(crate) async fn end<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let committed = match result {
            Ok(value) => query("COMMIT").execute(&mut self.connection).await.map(|_| value).map_err(commit_error),
            Err(err) => Err(err),
        };
        if committed.is_err() {
            self.roll_back().await;
        }
        self.in_transaction = false;
        committed
    }

    async fn roll_back(&mut self) {
        // Refused where SQLite has rolled back by itself, as it does when the disk is full.
        if let Err(err) = query("ROLLBACK").execute(&mut self.connection).await {
            tracing::debug!(error = %err, "there was no transaction to roll back");
        }
    }

    pub(crate) async fn savepoint(&mut self) -> Result<(), StoreError> {
        if self.has_savepoints { self.run("SAVEPOINT part").await } else { Ok(()) }
    }

    pub(crate) async fn keep_part(&mut self) -> Result<(), StoreError> {
        if self.has_savepoints { self.run("RELEASE part").await } else { Ok(()) }
    }

    pub(crate) async fn undo_part(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO part").await?;
        self.run("RELEASE part").await
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), StoreError> {
        query(sql).execute(&mut self.connection).await.map(|_| ()).map_err(store_error)
    }
}

/// Waits for the writer and hands it over without a transaction.
pub(crate) async fn take(writer: &Mutex<Option<Writer>>) -> Result<WriterGuard<'_>, StoreError> {
    let guard = tokio::time::timeout(LONGEST_WAIT, writer.lock()).await.map_err(|elapsed| StoreError::Busy(elapsed.into()))?;
    let mut writer = MutexGuard::try_map(guard, Option::as_mut).map_err(|_| StoreError::Unreachable("the store is closed".into()))?;
    if writer.in_transaction {
        writer.roll_back().await;
        writer.in_transaction = false;
    }
    Ok(writer)
}

/// Gives the connection and the lock back.
pub(crate) async fn close(writer: &Mutex<Option<Writer>>) {
    let taken = writer.lock().await.take();
    if let Some(taken) = taken
        && let Err(err) = taken.connection.close().await
    {
        tracing::warn!(error = %err, "the database was not closed in order");
    }
}
