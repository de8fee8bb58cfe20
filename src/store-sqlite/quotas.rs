//! The counts of accounts' days: drawn from in one transaction of the one writer.

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_scalar};
use tidings_core::pool::{Ask, Drawn, Rest};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::error::store_error;
use crate::writer::Writer;

/// Days that begin within so many microseconds of each other (22 hours) are one day in two zones.
const OVERLAP: i64 = 22 * 3_600_000_000;

/// Draws from each of these counts; makes those that are not there.
pub(crate) async fn draw(writer: &mut Writer, asks: &[Ask]) -> Result<Vec<Drawn>, StoreError> {
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    writer.begin().await?;
    let drawn = draw_in(writer.connection(), asks).await;
    writer.end(drawn).await
}

async fn draw_in(connection: &mut SqliteConnection, asks: &[Ask]) -> Result<Vec<Drawn>, StoreError> {
    let mut drawn = Vec::with_capacity(asks.len());
    for ask in asks {
        let day = ask.day.as_micros();
        query!(
            "INSERT INTO quota_pools (key, window_start, quota, used)
             SELECT ?1, ?2, ?3, coalesce(sum(used), 0) FROM quota_pools
             WHERE key = ?1 AND window_start > ?2 - ?4 AND window_start < ?2 + ?4
             ON CONFLICT (key, window_start) DO NOTHING",
            ask.key,
            day,
            ask.cap,
            OVERLAP
        )
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
        let used = query_scalar!("SELECT used FROM quota_pools WHERE key = ?1 AND window_start = ?2", ask.key, day);
        let used = used.fetch_one(&mut *connection).await.map_err(store_error)?;
        let granted = ask.grant(used);
        let used = used.saturating_add(granted);
        query!("UPDATE quota_pools SET used = ?3, quota = ?4 WHERE key = ?1 AND window_start = ?2", ask.key, day, used, ask.cap)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
        drawn.push(Drawn { granted, used });
    }
    Ok(drawn)
}

/// Units that were drawn and not used.
pub(crate) async fn give_back(writer: &mut Writer, rests: &[Rest]) -> Result<(), StoreError> {
    if rests.is_empty() {
        return Ok(());
    }
    writer.begin().await?;
    let given = give_back_in(writer.connection(), rests).await;
    writer.end(given).await
}

async fn give_back_in(connection: &mut SqliteConnection, rests: &[Rest]) -> Result<(), StoreError> {
    for rest in rests {
        let day = rest.day.as_micros();
        query!("UPDATE quota_pools SET used = max(used - ?3, 0) WHERE key = ?1 AND window_start = ?2", rest.key, day, rest.units)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
    }
    Ok(())
}

/// The counts of these days.
pub(crate) async fn used(readers: &SqlitePool, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
    let mut counts = Vec::with_capacity(days.len());
    for (key, day) in days {
        let day = day.as_micros();
        let used = query_scalar!("SELECT used FROM quota_pools WHERE key = ?1 AND window_start = ?2", key, day);
        counts.push(used.fetch_optional(readers).await.map_err(store_error)?.unwrap_or_default());
    }
    Ok(counts)
}
