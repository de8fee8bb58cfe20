//! What an SQLite error means to the caller, by its code; and why a store could not be opened.
//! What is done about it is decided by who called.

use std::path::PathBuf;

use tidings_core::store::{BoxError, StoreError};

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is not there and could not be made.
    #[error("the directory {} could not be made", path.display())]
    Directory {
        /// Which directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The database or its lock could not be opened or made: it or the directory cannot be written.
    #[error("the file {} could not be opened for writing", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Another process uses this store.
    #[error("another process holds the lock on {}; an SQLite store belongs to one process", path.display())]
    InUse {
        /// Which file is locked.
        path: PathBuf,
    },
    /// SQLite refused the file.
    #[error("the database {} could not be opened", path.display())]
    Database {
        /// Which file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: BoxError,
    },
}

const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;

/// An error of a statement before the commit: nothing happened.
pub(crate) fn store_error(err: sqlx::Error) -> StoreError {
    match &err {
        sqlx::Error::PoolTimedOut => StoreError::Busy(err.into()),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => StoreError::Unreachable(err.into()),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => StoreError::Unreadable(err.to_string()),
        _ => match primary_code(&err) {
            Some(BUSY | LOCKED) => StoreError::Busy(err.into()),
            Some(READONLY | IOERR | FULL | CANTOPEN) => StoreError::NotWritable(err.into()),
            _ => StoreError::Refused(err.into()),
        },
    }
}

/// An error of a COMMIT, or of a statement that commits by itself: where the disk failed, the commit may stand in the log.
pub(crate) fn commit_error(err: sqlx::Error) -> StoreError {
    match (&err, primary_code(&err)) {
        (sqlx::Error::WorkerCrashed | sqlx::Error::Io(_), _) | (_, Some(IOERR)) => StoreError::CommitUnknown(err.into()),
        _ => store_error(err),
    }
}

fn primary_code(err: &sqlx::Error) -> Option<i32> {
    let code: i32 = err.as_database_error()?.code()?.parse().ok()?;
    // The upper bits tell variants apart that mean the same here.
    Some(code & 0xff)
}

/// Whether an item of the batch is to blame, so that its batch-mates are worth another try without it.
pub(crate) const fn blames_an_item(err: &StoreError) -> bool {
    match err {
        StoreError::Refused(_) | StoreError::Unreadable(_) => true,
        StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::NotWritable(_) | StoreError::CommitUnknown(_) => false,
    }
}

/// The same error for one more item of a batch that failed as a whole.
pub(crate) fn copy_of(err: &StoreError) -> StoreError {
    let text = |source: &BoxError| BoxError::from(source.to_string());
    match err {
        StoreError::Busy(source) => StoreError::Busy(text(source)),
        StoreError::Unreachable(source) => StoreError::Unreachable(text(source)),
        StoreError::NotWritable(source) => StoreError::NotWritable(text(source)),
        StoreError::CommitUnknown(source) => StoreError::CommitUnknown(text(source)),
        StoreError::Refused(source) => StoreError::Refused(text(source)),
        StoreError::Unreadable(what) => StoreError::Unreadable(what.clone()),
    }
}
