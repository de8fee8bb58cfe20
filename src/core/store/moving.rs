//! Moving an installation to another database: everything out of one store, in one snapshot, and into an empty one, in one
//! transaction (S-237). What moves in which form is said in `crate::moving`.

use async_trait::async_trait;

use super::{BoxError, StoreError};
use crate::ids::InstanceId;
use crate::moving::{DumpFault, Header, Row, Table};
use crate::time::Timestamp;

/// What a dump needs to say of the store that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The newest migration that the store's binary knows.
    pub schema: i64,
    /// What kind of store it is.
    pub kind: &'static str,
    /// The highest position that readers of the feed may have been given.
    pub feed_end: i64,
    /// The oldest instant of a row.
    pub oldest: Option<Timestamp>,
}

/// Where exported rows go.
#[async_trait]
pub trait Sink: Send {
    /// Takes what comes before all rows.
    ///
    /// # Errors
    /// When it could not be taken.
    async fn begin(&mut self, origin: Origin) -> Result<(), BoxError>;

    /// Takes rows of a table; all rows of one come before those of the next.
    ///
    /// # Errors
    /// When they could not be taken.
    async fn rows(&mut self, table: &'static Table, rows: Vec<Row>) -> Result<(), BoxError>;
}

/// Where imported rows come from.
#[async_trait]
pub trait Source: Send {
    /// What came before all rows.
    fn header(&self) -> &Header;

    /// The next rows; none only when everything came, as it was written.
    ///
    /// # Errors
    /// When something did not.
    async fn next(&mut self) -> Result<Option<(&'static Table, Vec<Row>)>, DumpFault>;
}

/// Why nothing was exported, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// What the store says.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rows could not be passed on.
    #[error("the dump could not be written")]
    Sink(#[source] BoxError),
    /// Somebody wrote meanwhile: what was exported is not all there is.
    #[error("the store was written to while it was exported: a process that does not know of the freeze is still running")]
    WrittenMeanwhile,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// What the store says.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The dump is not whole.
    #[error(transparent)]
    Dump(#[from] DumpFault),
    /// Something is there already: tables with their numbers of rows.
    #[error("the store is not empty: it holds {}", told(.0))]
    NotEmpty(Vec<(&'static str, i64)>),
    /// It comes from a store whose schema this binary does not know.
    #[error("the dump has schema {dump}, and this binary knows none above {own}: use the version that wrote it, or a newer one")]
    Newer {
        /// The newest migration of the store that it comes from.
        dump: i64,
        /// The newest migration here.
        own: i64,
    },
    /// A row was refused.
    #[error("rows of {table} could not be written")]
    Rows {
        /// Of which table.
        table: &'static str,
        /// What the store says.
        #[source]
        source: StoreError,
    },
}

fn told(tables: &[(&str, i64)]) -> String {
    let each = tables.iter().map(|(table, rows)| format!("{rows} row{} in {table}", if *rows == 1 { "" } else { "s" }));
    each.collect::<Vec<_>>().join(", ")
}

/// Calls that one process has under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Whose.
    pub owner: InstanceId,
    /// How many.
    pub calls: i64,
    /// When the newest of them began.
    pub newest: Timestamp,
}

/// Moving.
#[async_trait]
pub trait Moving: Send + Sync {
    /// Takes and sends again; whether the store was frozen.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn unfreeze(&self) -> Result<bool, StoreError>;

    /// Processes that were seen since then.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn seen_since(&self, since: Timestamp) -> Result<Vec<InstanceId>, StoreError>;

    /// Who has calls under way.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn under_way(&self) -> Result<Vec<Owned>, StoreError>;

    /// Passes on everything that moves, as it is at one instant, in chunks.
    ///
    /// # Errors
    /// Why it is not everything.
    async fn export(&self, sink: &mut dyn Sink) -> Result<(), ExportError>;

    /// Writes everything that `source` has into this store, which must be empty: all of it or nothing. Calls that were
    /// under way have lost their leases then, and positions of events go on behind all that were given away.
    ///
    /// # Errors
    /// Why nothing was written.
    async fn import(&self, source: &mut dyn Source) -> Result<(), ImportError>;

    /// Sees to it that new events come behind all that were told, also where the database is another one than before: a
    /// restored copy counts its transactions anew. Returns whether positions had to leap.
    ///
    /// # Errors
    /// When it cannot be read or written.
    async fn settle_feed(&self) -> Result<bool, StoreError>;
}
