//! A store that is frozen: since when, and how it comes to be so. What a frozen store does not do any more is decided where it
//! would be done: `api::frozen` for requests, `pauses` for claims, `keeper` for timers.

use tidings_core::moving::FROZEN;
use tidings_core::store::{Store, StoreError};
use tidings_core::time::Timestamp;

/// Since when the store is frozen, if it is.
///
/// # Errors
/// When it cannot be read.
pub async fn since(store: &dyn Store) -> Result<Option<Timestamp>, StoreError> {
    store.setting(FROZEN).await?.map(|value| read(&value)).transpose()
}

/// Freezes the store, unless it is frozen already; since when it is.
///
/// # Errors
/// When it cannot be written.
pub async fn freeze(store: &dyn Store, now: Timestamp) -> Result<Timestamp, StoreError> {
    read(&store.settle_setting(FROZEN, &now.as_micros().to_be_bytes()).await?)
}

fn read(value: &[u8]) -> Result<Timestamp, StoreError> {
    let micros = value.try_into().map_err(|_| StoreError::Unreadable("since when it is frozen".to_owned()))?;
    Ok(Timestamp::from_micros(i64::from_be_bytes(micros)))
}
