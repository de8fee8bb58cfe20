//! What a database error means for the caller. The SQLSTATE decides, and whether a commit was out when it came.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidings_core::store::{BoxError, StoreError};

/// An error that several items of a batch share.
#[derive(Debug, Clone)]
struct Cause(Arc<BoxError>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

fn cause(error: impl Into<BoxError>) -> BoxError {
    Box::new(Cause(Arc::new(error.into())))
}

/// An error before the commit: whatever it is, nothing happened.
pub(crate) fn before(error: sqlx::Error) -> StoreError {
    classify(error, StoreError::Unreachable)
}

/// An error while a COMMIT, or a statement that commits by itself, was out: a broken connection tells nothing (S-012).
pub(crate) fn committing(error: sqlx::Error) -> StoreError {
    classify(error, StoreError::CommitUnknown)
}

fn classify(error: sqlx::Error, broken: fn(BoxError) -> StoreError) -> StoreError {
    let kind = match &error {
        sqlx::Error::Database(database) => by_code(database.code().as_deref().unwrap_or_default(), broken),
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => StoreError::Unreachable,
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => broken,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => return StoreError::Unreadable(error.to_string()),
        _ => StoreError::Refused,
    };
    kind(cause(error))
}

/// By SQLSTATE, `PostgreSQL` appendix A.
fn by_code(code: &str, broken: fn(BoxError) -> StoreError) -> fn(BoxError) -> StoreError {
    match code {
        // Serialization, deadlock, lock time-out, statement time-out.
        "40001" | "40P01" | "55P03" | "57014" => StoreError::Busy,
        // Read only; disk full; an error below the file system.
        "25006" | "53100" | "58030" => StoreError::NotWritable,
        // The server goes down, ends our session, or lost it.
        "57P01" | "57P02" | "57P05" | "25P03" => broken,
        code if code.starts_with("08") => broken,
        // No room for another connection, not up yet, not let in: nothing was begun.
        code if code.starts_with("53") || code.starts_with("28") => StoreError::Unreachable,
        "57P03" | "3D000" => StoreError::Unreachable,
        _ => StoreError::Refused,
    }
}

/// No answer within our own limit, while a commit may have been out.
pub(crate) fn silent_commit() -> StoreError {
    StoreError::CommitUnknown(cause("no answer in time"))
}

/// No answer within our own limit to something that only reads, or that may be done again.
pub(crate) fn silent() -> StoreError {
    StoreError::Unreachable(cause("no answer in time"))
}

/// The same error for another item of the batch.
pub(crate) fn again(error: &StoreError) -> StoreError {
    let shared = |source: &BoxError| match source.downcast_ref::<Cause>() {
        Some(cause) => Box::new(cause.clone()) as BoxError,
        None => source.to_string().into(),
    };
    match error {
        StoreError::Busy(source) => StoreError::Busy(shared(source)),
        StoreError::Unreachable(source) => StoreError::Unreachable(shared(source)),
        StoreError::NotWritable(source) => StoreError::NotWritable(shared(source)),
        StoreError::CommitUnknown(source) => StoreError::CommitUnknown(shared(source)),
        StoreError::Refused(source) => StoreError::Refused(shared(source)),
        StoreError::Unreadable(what) => StoreError::Unreadable(what.clone()),
    }
}

/// Lost against another transaction: to be repeated from fresh reads (S-027).
pub(crate) fn is_lost_race(error: &StoreError) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// Waited for another transaction's lock for as long as it was allowed to.
pub(crate) fn is_lock_timeout(error: &StoreError) -> bool {
    code(error).as_deref() == Some("55P03")
}

/// Whether a smaller part of the batch may succeed: the data was at fault, not the database (S-059).
pub(crate) fn is_about_items(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_))
}

fn code(error: &StoreError) -> Option<String> {
    let StoreError::Busy(source) = error else { return None };
    let error = source.downcast_ref::<Cause>()?.0.downcast_ref::<sqlx::Error>()?;
    error.as_database_error()?.code().map(|code| code.into_owned())
}
