//! Ordering keys beside the ordinary path, in which the transaction that ends a head lets its successor go.

use async_trait::async_trait;

use super::{StoreError, Swept};
use crate::time::Timestamp;

/// Upkeep of ordering keys.
#[async_trait]
pub trait Ordering: Send + Sync {
    /// Lets at most `limit` successors of heads that are stuck go, as `order::skip` decides, and tells it of the heads
    /// (S-078). Heads that have left the queue without doing so themselves, as in a binary that does not know of order, are
    /// passed as well. Returns the rows that may go now.
    ///
    /// # Errors
    /// When they cannot be read or written.
    async fn skip_stuck(&self, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError>;
}
