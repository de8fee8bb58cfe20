//! Rates of the one process that there is: kept in its memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tidings_core::slices::{Ask, Level, Slice};

/// The buckets by key.
pub(crate) type Levels = Mutex<HashMap<String, Level>>;

/// Draws from each of these buckets.
pub(crate) fn draw(levels: &Levels, asks: &[Ask]) -> Vec<Slice> {
    let mut levels = levels.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let mut of = |ask: &Ask| match levels.get_mut(&ask.key) {
        Some(level) => level.draw(ask, now),
        None => levels.entry(ask.key.clone()).or_insert(Level::full(ask, now)).draw(ask, now),
    };
    asks.iter().map(&mut of).collect()
}
