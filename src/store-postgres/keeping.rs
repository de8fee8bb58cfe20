//! Deleting what has been kept for long enough: content a hundred rows at a time, events by dropping whole partitions.

use std::collections::HashMap;

use tidings_core::crash::fail_point;
use tidings_core::ids::{DeliveryId, InstanceId, NotificationId};
use tidings_core::retention::{Retention, Standing};
use tidings_core::store::{StoreError, Walked};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::At;
use crate::rows::word;

/// Rows of one transaction.
const CHUNK: i64 = 100;
/// How long the runs of jobs are remembered.
const RUNS_KEPT: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

pub(crate) async fn take_run(
    store: &PostgresStore,
    job: &str,
    window: Timestamp,
    instance: InstanceId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let taken = sqlx::query!(
        "WITH old AS (DELETE FROM sweep_runs WHERE job = $1 AND window_start < $5)
         INSERT INTO sweep_runs (job, window_start, instance_id, started_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        job,
        At(window) as _,
        instance.0,
        At(now) as _,
        At(now.minus(RUNS_KEPT)) as _,
    );
    Ok(taken.execute(&mut *conn).await.map_err(committing)?.rows_affected() == 1)
}

pub(crate) async fn erase_content(
    store: &PostgresStore,
    keep: &Retention,
    after: Option<NotificationId>,
    now: Timestamp,
) -> Result<Walked, StoreError> {
    let mut conn = store.connection().await?;
    // What is erased is gone from `contents`: a walk meets only what is still kept.
    let ids = sqlx::query_scalar!(
        "SELECT id FROM contents WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3",
        after.map_or(Uuid::nil(), NotificationId::as_uuid),
        NotificationId::first_at(keep.youngest_content(now)),
        CHUNK,
    );
    let ids = ids.fetch_all(&mut *conn).await.map_err(before)?;
    let first: Vec<NotificationId> = ids.iter().map(|id| NotificationId::from_uuid(*id)).collect();
    let (Some(lowest), Some(highest)) = (first.first(), first.last()) else { return Ok(Walked { next: None, erased: 0 }) };
    let last: Vec<Uuid> = first.iter().map(|id| id.last_delivery().as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT d.id, d.state, d.settled_at AS "settled_at: At"
         FROM unnest($1::uuid[], $2::uuid[]) AS x (first, last) JOIN deliveries d ON d.id > x.first AND d.id <= x.last
         WHERE d.id > $3 AND d.id <= $4"#,
        &ids[..],
        &last[..],
        lowest.as_uuid(),
        highest.last_delivery().as_uuid(),
    );
    let mut standing: HashMap<NotificationId, Vec<Standing>> = HashMap::new();
    for row in rows.fetch_all(&mut *conn).await.map_err(before)? {
        let state = row.state.as_deref().map(word).transpose()?;
        standing.entry(DeliveryId::from_uuid(row.id).notification()).or_default().push((state, row.settled_at.map(|at| at.0)));
    }
    let is_due = |id: &&NotificationId| standing.get(id).is_some_and(|deliveries| keep.content_is_due(deliveries, now));
    let due: Vec<NotificationId> = first.iter().filter(is_due).copied().collect();
    // What somebody opened again since we looked keeps its content.
    let erased = sqlx::query!(
        "DELETE FROM contents c USING unnest($1::uuid[], $2::uuid[]) AS x (id, last)
         WHERE c.id = x.id AND c.id = ANY($1) AND NOT EXISTS (SELECT FROM queue q WHERE q.id > x.id AND q.id <= x.last)",
        &due.iter().map(|id| id.as_uuid()).collect::<Vec<_>>()[..],
        &due.iter().map(|id| id.last_delivery().as_uuid()).collect::<Vec<_>>()[..],
    );
    let erased = erased.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    fail_point("keeping.between_chunks");
    Ok(Walked { next: (ids.len() as i64 == CHUNK).then_some(*highest), erased })
}

/// Drops one partition that holds nothing younger; what lies in the default partition goes a chunk at a time.
pub(crate) async fn purge_events(store: &PostgresStore, told_before: Timestamp) -> Result<u64, StoreError> {
    let mut conn = store.connection().await?;
    let purged = sqlx::query_scalar!(r#"SELECT purge_events($1) AS "purged!""#, At(told_before) as _);
    let purged = purged.fetch_one(&mut *conn).await.map_err(committing)?;
    Ok(u64::try_from(purged).unwrap_or_default())
}
