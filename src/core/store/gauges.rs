//! How full the queue is and how old what waits in it: read every few seconds for whoever watches the process.

use std::time::Duration;

use async_trait::async_trait;

use super::StoreError;
use crate::ids::LaneId;
use crate::state::State;
use crate::time::Timestamp;

/// The open rows of one lane in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Which lane.
    pub lane: LaneId,
    /// Which state.
    pub state: State,
    /// How many rows.
    pub rows: i64,
    /// Since when the oldest of them could have been claimed; `None` where none could.
    pub ready_since: Option<Timestamp>,
}

/// What is measured in the database.
#[async_trait]
pub trait Gauges: Send + Sync {
    /// Open rows by lane and state; those that there are none of are left out, and rows that only a newer binary can
    /// read. An index-only pass over the queue.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn depths(&self, now: Timestamp) -> Result<Vec<Depth>, StoreError>;

    /// For how long the oldest writing transaction of the cluster runs: events of later ones are not told before it
    /// ends. Zero where there is none, and on SQLite, where one process writes.
    ///
    /// # Errors
    /// When it cannot be asked.
    async fn horizon_age(&self) -> Result<Duration, StoreError>;
}
