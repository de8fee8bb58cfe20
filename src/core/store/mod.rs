//! The port to the database: coarse, batch-shaped commands and what they carry, one trait for each concern.
//!
//! A store method is one statement or one transaction. Stores select facts, call the decisions of this crate inside
//! the transaction (`judge`, `transition`) and write what those say, guarded by version; SQL decides nothing and reads
//! no clock. Both stores have the same files and the same order of methods.

mod access;
mod acts;
mod feed;
mod gauges;
mod keeping;
mod listing;
mod mailbox;
mod moving;
mod ordering;
mod outbox;
mod quotas;
mod rates;
mod reading;
mod registry;
mod suppressions;
mod switches;
mod trail;

use std::time::Duration;

use async_trait::async_trait;

pub use access::{Access, KeyFilter};
pub use acts::{Acted, Acts, DeadLetter, DeadLetterFilter, MOST_ACTS};
pub use feed::{EventSubject, Feed, FeedPage, FeedPosition, FeedQuery, StoredEvent};
pub use gauges::{Depth, Gauges};
pub use keeping::{Due, DueNotification, Keeping};
pub use listing::{Listing, MOST_DELIVERIES, Scan, StoredContent, Window};
pub use mailbox::{Mailbox, SandboxFilter};
pub use moving::{ExportError, ImportError, Moving, Origin, Owned, Sink, Source};
pub use ordering::Ordering;
pub use outbox::{
    Accepted, Claimed, Grouped, KeyHolder, LaneSeen, NewDelivery, NewNotification, Outbox, StoredOutgoing, Sweep, Swept, WriteBatch,
    WriteResults, group_by_key,
};
pub use quotas::Quotas;
pub use rates::Rates;
pub use reading::{Behind, Finding, Reading, StoredDelivery, StoredNotification, Violation};
pub use registry::{ApiKey, Registry, Tenant};
pub use suppressions::{Asked, NewSuppression, StoredSuppression, Suppressed, SuppressionFilter, Suppressions};
pub use switches::{OpenCalls, SwitchedBy, Switches};
pub use trail::Deed;

use crate::ids::InstanceId;
use crate::time::Timestamp;

/// What a database error carries with it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a command did not succeed, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Locked or in conflict for longer than the store is willing to wait; nothing happened.
    #[error("the store is busy")]
    Busy(#[source] BoxError),
    /// No connection, or it broke before the commit; nothing happened.
    #[error("the store could not be reached")]
    Unreachable(#[source] BoxError),
    /// The disk is full or the database read-only; nothing happened.
    #[error("the store cannot be written")]
    NotWritable(#[source] BoxError),
    /// The connection broke during the commit: it may have happened.
    #[error("the connection broke during the commit")]
    CommitUnknown(#[source] BoxError),
    /// The database refused this very item.
    #[error("the store refused the data")]
    Refused(#[source] BoxError),
    /// A stored row cannot be read: it comes from a newer binary or is damaged.
    #[error("a stored row could not be read: {0}")]
    Unreadable(String),
}

impl StoreError {
    /// Whether the same command may simply be given again.
    pub const fn is_repeatable(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Unreachable(_) | Self::NotWritable(_) => true,
            // It may have happened: read before doing it again.
            Self::CommitUnknown(_) | Self::Refused(_) | Self::Unreadable(_) => false,
        }
    }
}

/// The database behind everything. Times come in as arguments.
#[async_trait]
pub trait Store: Registry + Outbox + Reading + Mailbox {
    /// Acts on deliveries that exist.
    fn acts(&self) -> &dyn Acts;
    /// Lists of notifications and what a single delivery is asked for.
    fn listing(&self) -> &dyn Listing;

    /// What the people who run it call it: `SQLite in ./data` or `PostgreSQL at host/name`, without credentials.
    fn describe(&self) -> String;

    /// Keys and tenants as people change them.
    fn access(&self) -> &dyn Access;

    /// Addresses that are not written to.
    fn suppressions(&self) -> &dyn Suppressions;

    /// What is measured.
    fn gauges(&self) -> &dyn Gauges;

    /// What operators have paused.
    fn pauses(&self) -> &dyn Switches;

    /// Brings the schema up to this binary's, under one lock.
    ///
    /// # Errors
    /// Also when the schema says that it needs a newer binary.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// The migrations that `migrate` would apply, as number and name; nothing is changed.
    ///
    /// # Errors
    /// When the schema cannot be read.
    async fn pending_migrations(&self) -> Result<Vec<String>, StoreError>;

    /// The database's own time, for anchoring the process clock; `None` where the process clock is the database's.
    ///
    /// # Errors
    /// When it cannot be asked.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Proves that something can be written, by writing it: that this process lives, and with which configuration.
    ///
    /// # Errors
    /// Why it cannot.
    async fn prove_writable(&self, instance: InstanceId, config_digest: &[u8], now: Timestamp) -> Result<(), StoreError>;

    /// The pull feed.
    fn feed(&self) -> &dyn Feed;

    /// Ordering keys.
    fn ordering(&self) -> &dyn Ordering;

    /// Retention.
    fn keeping(&self) -> &dyn Keeping;

    /// Rates that processes share.
    fn rates(&self) -> &dyn Rates;

    /// The counts of accounts' days.
    fn quotas(&self) -> &dyn Quotas;

    /// Moving everything to another database.
    fn moving(&self) -> &dyn Moving;

    /// Gives back what is held open. Calls that run go on.
    async fn close(&self);
}

/// A statement and a lock wait take no longer than this (S-022).
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(2);
