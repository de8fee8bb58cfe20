//! Carries pages from the write-ahead log into the database beside the writer, so that no commit has to.
//! What the settings of the log are is `schema`'s decision.

use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Connection, query_as};
use tidings_core::store::StoreError;
use tokio::sync::Mutex;

use crate::error::store_error;
use crate::schema::options;

/// Pages that are worth a checkpoint, which has to wait for the disk twice.
const WORTH_IT: i64 = 1_000;
/// From here on it is done beside a writer that is never idle: at 16,000 a commit would.
const PRESSING: i64 = 8_000;

/// A connection of its own, made when it is first needed.
pub(crate) struct Log {
    path: PathBuf,
    connection: Mutex<Option<SqliteConnection>>,
}

/// What SQLite tells of a checkpoint: whether it was kept from it, pages in the log, and of those in the database.
type Told = (i64, i64, i64);

impl Log {
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: Mutex::new(None) }
    }

    /// Carries over what no reader needs in the log any more, where that is worth it. Neither readers nor the writer wait
    /// for it, and it waits for nobody. Returns how many pages were still to be carried over when it began.
    pub(crate) async fn carry_over(&self, writer_is_idle: bool) -> Result<i64, StoreError> {
        let mut held = self.connection.lock().await;
        if held.is_none() {
            *held = Some(options(&self.path).connect().await.map_err(store_error)?);
        }
        let Some(connection) = held.as_mut() else { return Ok(0) };
        let (_, logged, carried): Told = query_as("PRAGMA wal_checkpoint(NOOP)").fetch_one(&mut *connection).await.map_err(store_error)?;
        let left = logged - carried;
        if left >= PRESSING || (left >= WORTH_IT && writer_is_idle) {
            let _: Told = query_as("PRAGMA wal_checkpoint(PASSIVE)").fetch_one(connection).await.map_err(store_error)?;
        }
        Ok(left)
    }

    pub(crate) async fn close(&self) {
        if let Some(connection) = self.connection.lock().await.take()
            && let Err(err) = connection.close().await
        {
            tracing::debug!(error = %err, "the connection to the log was not closed in order");
        }
    }
}
