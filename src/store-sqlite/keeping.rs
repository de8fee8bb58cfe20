//! Deleting what has been kept for long enough, a hundred rows in a transaction: a larger one would hold up the live path.

use std::collections::BTreeMap;

use sqlx::sqlite::SqlitePool;
use sqlx::{query, query_scalar};
use tidings_core::crash::fail_point;
use tidings_core::ids::{DeliveryId, InstanceId, NotificationId};
use tidings_core::retention::Retention;
use tidings_core::state::State;
use tidings_core::store::{StoreError, Walked};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::SqliteStore;
use crate::error::{commit_error, store_error};
use crate::rows::{Hex, json, word};
use crate::writer::Writer;

/// Rows of one transaction.
const CHUNK: usize = 100;
/// Deliveries that one step of a walk reads; more than a notification can have.
const LOOKED_AT: i64 = 1_000;
/// Pages given back at a time.
const PAGES: &str = "PRAGMA incremental_vacuum(500)";
/// How long the runs of jobs are remembered.
const RUNS_KEPT: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

pub(crate) async fn take_run(
    writer: &mut Writer,
    job: &str,
    window: Timestamp,
    instance: InstanceId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (window, now, before) = (window.as_micros(), now.as_micros(), now.minus(RUNS_KEPT).as_micros());
    query!("DELETE FROM sweep_runs WHERE job = ?1 AND window_start < ?2", job, before)
        .execute(writer.connection())
        .await
        .map_err(commit_error)?;
    let taken = query!(
        "INSERT INTO sweep_runs (job, window_start, instance_id, started_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        job,
        window,
        instance.0,
        now
    );
    Ok(taken.execute(writer.connection()).await.map_err(commit_error)?.rows_affected() == 1)
}

/// A notification with its tenant, and how its deliveries stand.
type Standing = BTreeMap<NotificationId, (i64, Vec<(Option<State>, Option<Timestamp>)>)>;

pub(crate) async fn erase_content(
    store: &SqliteStore,
    keep: &Retention,
    after: Option<NotificationId>,
    now: Timestamp,
) -> Result<Walked, StoreError> {
    let (standing, next) = standing(&store.readers, keep, after, now).await?;
    let due: Vec<_> = standing.iter().filter(|(_, (_, deliveries))| keep.content_is_due(deliveries, now)).collect();
    let mut erased = 0;
    for chunk in due.chunks(CHUNK) {
        let rows: Vec<_> =
            chunk.iter().map(|(id, (tenant, _))| (tenant, Hex::uuid(id.as_uuid()), Hex::uuid(id.last_delivery().as_uuid()))).collect();
        let rows = json(&rows);
        let mut writer = store.writer().await?;
        // What somebody opened again since we looked keeps its content.
        let done = query!(
            "UPDATE notifications SET body = NULL FROM jsonb_each(?1) AS x
             WHERE notifications.tenant_id = x.value->>0 AND notifications.id = unhex(x.value->>1) AND notifications.body IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.id > unhex(x.value->>1) AND q.id <= unhex(x.value->>2))",
            rows
        );
        erased += done.execute(writer.connection()).await.map_err(commit_error)?.rows_affected();
        fail_point("keeping.between_chunks");
    }
    Ok(Walked { next, erased })
}

/// The next whole notifications that may be due, and the last of them where there may be more.
async fn standing(
    readers: &SqlitePool,
    keep: &Retention,
    after: Option<NotificationId>,
    now: Timestamp,
) -> Result<(Standing, Option<NotificationId>), StoreError> {
    let after = after.map_or(Uuid::nil(), |id| id.last_delivery().as_uuid());
    let until = NotificationId::first_at(keep.youngest_content(now));
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.tenant_id AS "tenant_id!", d.state AS "state?: String", d.settled_at AS "settled_at?: i64"
           FROM deliveries d WHERE d.id > ?1 AND d.id < ?2 ORDER BY d.id LIMIT ?3"#,
        after,
        until,
        LOOKED_AT
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    let is_cut = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= LOOKED_AT;
    let mut standing = Standing::new();
    for row in rows {
        let state = row.state.as_deref().map(word).transpose()?;
        let id = DeliveryId::from_uuid(row.id).notification();
        standing.entry(id).or_insert((row.tenant_id, Vec::new())).1.push((state, row.settled_at.map(Timestamp::from_micros)));
    }
    if is_cut {
        // Of the last one there may be more deliveries.
        standing.pop_last();
    }
    let next = standing.last_key_value().map(|(id, _)| *id).filter(|_| is_cut);
    Ok((standing, next))
}

pub(crate) async fn purge_events(writer: &mut Writer, before: Timestamp) -> Result<u64, StoreError> {
    writer.begin().await?;
    let purged = purge_in(writer, before).await;
    writer.end(purged).await
}

async fn purge_in(writer: &mut Writer, before: Timestamp) -> Result<u64, StoreError> {
    let (before, chunk) = (before.as_micros(), CHUNK as i64);
    // Positions are in the order of time: the oldest chunk up to the first that is kept.
    let last = query_scalar!(
        r#"SELECT max(pos) AS "pos?: i64" FROM (SELECT pos, at FROM events WHERE pos > 0 ORDER BY pos LIMIT ?2) WHERE at < ?1"#,
        before,
        chunk
    );
    let Some(last) = last.fetch_one(writer.connection()).await.map_err(store_error)? else { return Ok(0) };
    query!(
        "INSERT INTO feed_floors (tenant_id, mode, pos, n)
         SELECT tenant_id, mode, max(pos), 0 FROM events NOT INDEXED WHERE pos <= ?1 GROUP BY tenant_id, mode
         ON CONFLICT (tenant_id, mode) DO UPDATE SET pos = max(feed_floors.pos, excluded.pos)",
        last
    )
    .execute(writer.connection())
    .await
    .map_err(store_error)?;
    let done = query!("DELETE FROM events WHERE pos <= ?1", last).execute(writer.connection()).await.map_err(store_error)?;
    Ok(done.rows_affected())
}

/// Free pages beyond a tenth of the file go back, some at a time.
pub(crate) async fn give_back(writer: &mut Writer) -> Result<bool, StoreError> {
    let free: i64 = query_scalar("PRAGMA freelist_count").fetch_one(writer.connection()).await.map_err(store_error)?;
    let pages: i64 = query_scalar("PRAGMA page_count").fetch_one(writer.connection()).await.map_err(store_error)?;
    if free.saturating_mul(10) <= pages {
        return Ok(false);
    }
    // The pragma works while it is stepped, so it is stepped to its end.
    query(PAGES).fetch_all(writer.connection()).await.map_err(commit_error)?;
    Ok(true)
}
