//! How full the queue is.

use sqlx::query;
use sqlx::sqlite::SqlitePool;
use tidings_core::ids::LaneId;
use tidings_core::store::{Depth, StoreError};
use tidings_core::time::Timestamp;

use crate::error::store_error;

pub(crate) async fn depths(readers: &SqlitePool, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
    let now = now.as_micros();
    let rows = query!(
        r#"SELECT lane AS "lane!: i32", state AS "state!", count(*) AS "rows!: i64",
            min(CASE WHEN available_at <= ?1 THEN available_at END) AS "ready_since: i64"
           FROM queue GROUP BY lane, state ORDER BY lane, state"#,
        now
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    let depths = rows.into_iter().filter_map(|row| {
        let ready_since = row.ready_since.map(Timestamp::from_micros);
        Some(Depth { lane: LaneId(row.lane), state: row.state.parse().ok()?, rows: row.rows, ready_since })
    });
    Ok(depths.collect())
}
