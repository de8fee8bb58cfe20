//! The counts of accounts' days: one row for each account and day, drawn from in one statement.

use std::collections::HashMap;

use tidings_core::pool::{Ask, Drawn, Rest};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::At;

/// Draws from each of these counts; makes those that are not there.
pub(crate) async fn draw(store: &PostgresStore, asks: &[Ask]) -> Result<Vec<Drawn>, StoreError> {
    let mut drawn = draw_known(store, asks).await?;
    let unknown: Vec<Ask> = asks.iter().filter(|ask| !drawn.contains_key(&ask.key)).cloned().collect();
    if !unknown.is_empty() {
        make(store, &unknown).await?;
        drawn.extend(draw_known(store, &unknown).await?);
    }
    let of = |ask: &Ask| drawn.get(&ask.key).copied().ok_or_else(|| StoreError::Unreadable("a count that was just made".to_owned()));
    asks.iter().map(of).collect()
}

/// What `Ask::grant` says, on the newest version of each row: those who come at once go one after the other, in the order
/// of the keys.
async fn draw_known(store: &PostgresStore, asks: &[Ask]) -> Result<HashMap<String, Drawn>, StoreError> {
    if asks.is_empty() {
        return Ok(HashMap::new());
    }
    let keys: Vec<String> = asks.iter().map(|ask| ask.key.clone()).collect();
    let days: Vec<At> = asks.iter().map(|ask| At(ask.day)).collect();
    let caps: Vec<i64> = asks.iter().map(|ask| ask.cap).collect();
    let bounds: Vec<i64> = asks.iter().map(|ask| ask.bound).collect();
    let wanted: Vec<i64> = asks.iter().map(|ask| ask.wanted).collect();
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"WITH asked AS (
            SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::bigint[])
                AS a (key, day, cap, bound, wanted)),
        locked AS MATERIALIZED (
            SELECT p.key, p.period_start, p.used FROM quota_pools p JOIN asked a ON p.key = a.key AND p.period_start = a.day
            ORDER BY p.key FOR UPDATE OF p),
        drawn AS (
            SELECT a.*, GREATEST(LEAST(a.wanted, GREATEST(r.room / 8, 1), r.room), 0) AS granted
            FROM locked l JOIN asked a ON a.key = l.key CROSS JOIN LATERAL (SELECT GREATEST(a.bound - l.used, 0) AS room) r)
        UPDATE quota_pools p SET used = p.used + d.granted, quota = d.cap
        FROM drawn d WHERE p.key = d.key AND p.period_start = d.day
        RETURNING p.key AS "key!", d.granted AS "granted!", p.used AS "used!""#,
        &keys,
        &days as _,
        &caps,
        &bounds,
        &wanted,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(committing)?;
    Ok(rows.into_iter().map(|row| (row.key, Drawn { granted: row.granted, used: row.used })).collect())
}

/// Days that begin within 22 hours of each other are one day in two zones: what was used of one is used of the other.
async fn make(store: &PostgresStore, asks: &[Ask]) -> Result<(), StoreError> {
    let mut asks = asks.iter().collect::<Vec<_>>();
    asks.sort_by(|a, b| a.key.cmp(&b.key));
    let keys: Vec<String> = asks.iter().map(|ask| ask.key.clone()).collect();
    let days: Vec<At> = asks.iter().map(|ask| At(ask.day)).collect();
    let caps: Vec<i64> = asks.iter().map(|ask| ask.cap).collect();
    let mut conn = store.connection().await?;
    sqlx::query!(
        "INSERT INTO quota_pools (key, period_start, quota, used)
         SELECT a.key, a.day, a.cap, COALESCE((SELECT sum(o.used) FROM quota_pools o WHERE o.key = a.key
            AND o.period_start > a.day - interval '22 hours' AND o.period_start < a.day + interval '22 hours'), 0)
         FROM unnest($1::text[], $2::timestamptz[], $3::bigint[]) AS a (key, day, cap)
         ON CONFLICT (key, period_start) DO NOTHING",
        &keys,
        &days as _,
        &caps,
    )
    .execute(&mut *conn)
    .await
    .map(|_| ())
    .map_err(committing)
}

/// Units that were drawn and not used.
pub(crate) async fn give_back(store: &PostgresStore, rests: &[Rest]) -> Result<(), StoreError> {
    if rests.is_empty() {
        return Ok(());
    }
    let mut rests = rests.iter().collect::<Vec<_>>();
    rests.sort_by(|a, b| a.key.cmp(&b.key));
    let keys: Vec<String> = rests.iter().map(|rest| rest.key.clone()).collect();
    let days: Vec<At> = rests.iter().map(|rest| At(rest.day)).collect();
    let units: Vec<i64> = rests.iter().map(|rest| rest.units).collect();
    let mut conn = store.connection().await?;
    sqlx::query!(
        "WITH given AS (
            SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bigint[]) AS g (key, day, units)),
        locked AS MATERIALIZED (
            SELECT p.key FROM quota_pools p JOIN given g ON p.key = g.key AND p.period_start = g.day ORDER BY p.key FOR UPDATE OF p)
        UPDATE quota_pools p SET used = GREATEST(p.used - g.units, 0)
        FROM given g JOIN locked l ON l.key = g.key WHERE p.key = g.key AND p.period_start = g.day",
        &keys,
        &days as _,
        &units,
    )
    .execute(&mut *conn)
    .await
    .map(|_| ())
    .map_err(committing)
}

/// The counts of these days.
pub(crate) async fn used(store: &PostgresStore, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
    if days.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<String> = days.iter().map(|(key, _)| key.clone()).collect();
    let starts: Vec<At> = days.iter().map(|(_, start)| At(*start)).collect();
    let mut conn = store.connection().await?;
    let counts = sqlx::query_scalar!(
        r#"SELECT COALESCE(p.used, 0) AS "used!" FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY AS a (key, day, n)
         LEFT JOIN quota_pools p ON p.key = a.key AND p.period_start = a.day ORDER BY a.n"#,
        &keys,
        &starts as _,
    );
    counts.fetch_all(&mut *conn).await.map_err(before)
}
