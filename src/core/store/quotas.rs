//! The counts of accounts' days that processes share. What is granted is decided in `crate::pool`.

use async_trait::async_trait;

use super::StoreError;
use crate::pool::{Ask, Drawn, Rest};
use crate::time::Timestamp;

/// How many calls of an account's day are gone, one row for each account and day; it outlives every process.
#[async_trait]
pub trait Quotas: Send + Sync {
    /// Draws from each of these counts what `Ask::grant` says, look and take in one atomic step (S-085). A day that nobody
    /// has drawn from yet has nothing used, unless it overlaps with days of another zone. Counts are there once; answers come
    /// in the order of the asks.
    ///
    /// # Errors
    /// When it cannot be drawn, or when that is not known: then nothing was granted, and what was drawn is lost.
    async fn draw_calls(&self, asks: &[Ask]) -> Result<Vec<Drawn>, StoreError>;

    /// Gives units back that were drawn and are not used. It must not be repeated where its end is not known.
    ///
    /// # Errors
    /// When it is not written, or when that is not known.
    async fn give_calls_back(&self, rests: &[Rest]) -> Result<(), StoreError>;

    /// The counts of these days, in this order; what processes hold is in them.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn calls_used(&self, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError>;
}
