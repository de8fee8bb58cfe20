//! The buckets of rates that processes share. What is granted is decided in `crate::slices`.

use async_trait::async_trait;

use super::StoreError;
use crate::slices::{Ask, Slice};

/// Shared rates, on the store's own time: the database's on PostgreSQL; on SQLite, where there is one process, its own, and
/// nothing of it outlives the process.
#[async_trait]
pub trait Rates: Send + Sync {
    /// Draws from each of these buckets, refill and take in one atomic step (S-085). A bucket that nobody has drawn from is
    /// full. Keys are there once; slices come in the order of the asks. What was drawn never comes back.
    ///
    /// # Errors
    /// When it cannot be drawn, or when that is not known: then nothing was granted.
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError>;
}
