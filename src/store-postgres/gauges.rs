//! How full the queue is, and how far behind the events are.

use std::time::Duration;

use tidings_core::ids::LaneId;
use tidings_core::store::{Depth, StoreError};
use tidings_core::time::Timestamp;

use crate::PostgresStore;
use crate::error::before;
use crate::instant::At;

/// Open rows by lane and state.
pub(crate) async fn depths(store: &PostgresStore, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"SELECT lane AS "lane!", state AS "state!", count(*) AS "rows!",
            min(available_at) FILTER (WHERE available_at <= $1) AS "ready_since: At"
         FROM queue GROUP BY lane, state ORDER BY lane, state"#,
        At(now),
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let depths = rows.into_iter().filter_map(|row| {
        let ready_since = row.ready_since.map(|at| at.0);
        Some(Depth { lane: LaneId(row.lane), state: row.state.parse().ok()?, rows: row.rows, ready_since })
    });
    Ok(depths.collect())
}

/// For how long the oldest writing transaction runs. Of other users' sessions the database may say nothing.
pub(crate) async fn horizon_age(store: &PostgresStore) -> Result<Duration, StoreError> {
    let mut conn = store.connection().await?;
    let seconds = sqlx::query_scalar!(
        r#"SELECT COALESCE(max(EXTRACT(EPOCH FROM clock_timestamp() - xact_start)), 0)::float8 AS "seconds!"
         FROM pg_stat_activity WHERE backend_xid IS NOT NULL"#
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}
