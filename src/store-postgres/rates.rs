//! Rates that processes share: one row for each bucket, filled and drawn from in one statement on the database's time.

use std::collections::HashMap;

use tidings_core::slices::{Ask, Slice};
use tidings_core::store::StoreError;

use crate::PostgresStore;
use crate::error::committing;

/// Draws from each of these buckets; makes those that are not there.
pub(crate) async fn draw(store: &PostgresStore, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
    let mut drawn = draw_known(store, asks).await?;
    let unknown: Vec<&Ask> = asks.iter().filter(|ask| !drawn.contains_key(&ask.key)).collect();
    if !unknown.is_empty() {
        make(store, &unknown).await?;
        let unknown: Vec<Ask> = unknown.into_iter().cloned().collect();
        drawn.extend(draw_known(store, &unknown).await?);
    }
    let of = |ask: &Ask| drawn.get(&ask.key).copied().ok_or_else(|| StoreError::Unreadable("a bucket that was just made".to_owned()));
    asks.iter().map(of).collect()
}

/// What `Ask::grant` says, on the newest version of each row: those who come at once go one after the other, in the order
/// of the keys. A clock that goes back gives nothing.
async fn draw_known(store: &PostgresStore, asks: &[Ask]) -> Result<HashMap<String, Slice>, StoreError> {
    let keys: Vec<String> = asks.iter().map(|ask| ask.key.clone()).collect();
    let rates: Vec<f64> = asks.iter().map(|ask| ask.per_second).collect();
    let bursts: Vec<f64> = asks.iter().map(|ask| ask.burst).collect();
    let aheads: Vec<f64> = asks.iter().map(|ask| ask.ahead).collect();
    let least: Vec<f64> = asks.iter().map(|ask| f64::from(ask.least)).collect();
    let wanted: Vec<f64> = asks.iter().map(|ask| f64::from(ask.wanted)).collect();
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"WITH asked AS (
            SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[], $5::float8[], $6::float8[])
                AS a (key, rate, burst, ahead, least, wanted)),
        locked AS MATERIALIZED (
            SELECT key, tokens, rate, refilled_at, clock_timestamp() AS now FROM rate_buckets WHERE key = ANY($1) ORDER BY key FOR UPDATE),
        filled AS (
            SELECT a.*, l.now,
                LEAST(a.burst, l.tokens + GREATEST(0, EXTRACT(EPOCH FROM l.now - l.refilled_at)::float8) * l.rate) AS level
            FROM locked l JOIN asked a ON a.key = l.key),
        drawn AS (
            SELECT f.*, CASE WHEN level + ahead < GREATEST(least, 1) THEN 0
                ELSE floor(GREATEST(least, LEAST(wanted, GREATEST((level + ahead) / 2, least), level + ahead)) + 1e-9) END AS granted
            FROM filled f)
        UPDATE rate_buckets b SET tokens = d.level - d.granted, refilled_at = GREATEST(b.refilled_at, d.now), rate = d.rate, burst = d.burst
        FROM drawn d WHERE b.key = d.key
        RETURNING b.key AS "key!", d.granted::int AS "granted!", b.tokens AS "level!""#,
        &keys,
        &rates,
        &bursts,
        &aheads,
        &least,
        &wanted,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(committing)?;
    let slice = |granted: i32, level| Slice { granted: u32::try_from(granted).unwrap_or_default(), level };
    Ok(rows.into_iter().map(|row| (row.key, slice(row.granted, row.level))).collect())
}

async fn make(store: &PostgresStore, asks: &[&Ask]) -> Result<(), StoreError> {
    let mut asks = asks.to_vec();
    asks.sort_by(|a, b| a.key.cmp(&b.key));
    let keys: Vec<String> = asks.iter().map(|ask| ask.key.clone()).collect();
    let rates: Vec<f64> = asks.iter().map(|ask| ask.per_second).collect();
    let bursts: Vec<f64> = asks.iter().map(|ask| ask.burst).collect();
    let mut conn = store.connection().await?;
    sqlx::query!(
        "INSERT INTO rate_buckets (key, tokens, refilled_at, rate, burst)
         SELECT key, burst, clock_timestamp(), rate, burst FROM unnest($1::text[], $2::float8[], $3::float8[]) AS a (key, rate, burst)
         ON CONFLICT (key) DO NOTHING",
        &keys,
        &rates,
        &bursts,
    )
    .execute(&mut *conn)
    .await
    .map(|_| ())
    .map_err(committing)
}
