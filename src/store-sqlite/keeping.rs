//! Deleting what has been kept for long enough, a hundred rows in a transaction: a larger one would hold up the live path.
//! What is erased of a notification is decided in core, within the transaction that erases it.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_as, query_scalar};
use tidings_core::crash::fail_point;
use tidings_core::ids::{DeliveryId, InstanceId, NotificationId, TenantId};
use tidings_core::retention::{AUDIT_KEPT, IDLE_LINES_KEPT, INSTANCES_KEPT, Kept, QUOTAS_KEPT, Retention, Standing};
use tidings_core::store::{Due, DueNotification, StoreError};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::error::{commit_error, store_error};
use crate::rows::{Hex, ids_json, json};
use crate::writer::Writer;

/// Rows of one transaction.
pub(crate) const CHUNK: usize = 100;
/// Rows that one step of a walk reads; more than a notification can have deliveries.
const LOOKED_AT: i64 = 1_000;
/// Pages given back at a time.
const PAGES: &str = "PRAGMA incremental_vacuum(500)";
/// How long the runs of jobs are remembered.
const RUNS_KEPT: Duration = Duration::from_secs(7 * 86_400);

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

pub(crate) async fn due(
    readers: &SqlitePool,
    kept: Kept,
    keep: &Retention,
    after: Option<NotificationId>,
    now: Timestamp,
) -> Result<Due, StoreError> {
    let after = after.map_or(Uuid::nil(), |id| id.last_delivery().as_uuid());
    let until = NotificationId::first_at(keep.youngest(kept, now));
    let rows = query_as!(
        StandingRow,
        r#"SELECT d.id AS "id!: Uuid", d.tenant_id AS "tenant_id!: i32", d.state AS "state?: String", d.settled_at AS "settled_at?: i64",
            d.attention AS "attention?: i64"
           FROM deliveries d WHERE d.id > ?1 AND d.id < ?2 ORDER BY d.id LIMIT ?3"#,
        after,
        until,
        LOOKED_AT
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    let is_cut = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= LOOKED_AT;
    Ok(Due::of(rows.into_iter().map(StandingRow::read), is_cut, |deliveries| keep.is_due(kept, deliveries, now)))
}

struct StandingRow {
    id: Uuid,
    tenant_id: i32,
    state: Option<String>,
    settled_at: Option<i64>,
    attention: Option<i64>,
}

impl StandingRow {
    fn read(self) -> (DeliveryId, TenantId, Standing) {
        // A word of a newer binary is none of ours: what it says is left alone (S-231).
        let state = self.state.and_then(|word| word.parse().ok());
        let settled_at = self.settled_at.map(Timestamp::from_micros);
        (
            DeliveryId::from_uuid(self.id),
            TenantId(self.tenant_id),
            Standing { state, settled_at, needs_attention: self.attention.is_some() },
        )
    }
}

pub(crate) async fn erase(
    writer: &mut Writer,
    kept: Kept,
    keep: &Retention,
    chunk: &[DueNotification],
    now: Timestamp,
) -> Result<u64, StoreError> {
    writer.begin().await?;
    let erased = erase_in(writer.connection(), kept, keep, chunk, now).await;
    fail_point("keeping.before_commit");
    let erased = writer.end(erased).await?;
    fail_point("keeping.between_chunks");
    Ok(erased)
}

async fn erase_in(
    connection: &mut SqliteConnection,
    kept: Kept,
    keep: &Retention,
    chunk: &[DueNotification],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let due = still_due(connection, kept, keep, chunk, now).await?;
    let rows: Vec<_> = due.iter().map(|found| (found.tenant.0, Hex::uuid(found.id.as_uuid()))).collect();
    let (rows, ids) = (json(&rows), ids_json(due.iter().flat_map(DueNotification::delivery_ids)));
    match kept {
        Kept::Content => erase_contents(connection, &rows).await?,
        Kept::Destinations => {
            free_keys(connection, &rows, now).await?;
            wipe(connection, &ids).await?;
        }
        Kept::Records => delete_records(connection, &rows, &ids).await?,
    }
    Ok(due.len() as u64)
}

/// Those of a chunk that are due as they stand now: nobody else writes before we have.
async fn still_due(
    connection: &mut SqliteConnection,
    kept: Kept,
    keep: &Retention,
    chunk: &[DueNotification],
    now: Timestamp,
) -> Result<Vec<DueNotification>, StoreError> {
    let ids = ids_json(chunk.iter().flat_map(DueNotification::delivery_ids));
    let rows = query_as!(
        StandingRow,
        r#"SELECT d.id AS "id!: Uuid", d.tenant_id AS "tenant_id!: i32", d.state AS "state?: String", d.settled_at AS "settled_at?: i64",
            d.attention AS "attention?: i64"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value) ORDER BY d.id"#,
        ids
    );
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    let now_due = Due::of(rows.into_iter().map(StandingRow::read), false, |deliveries| keep.is_due(kept, deliveries, now));
    Ok(now_due.found.into_iter().filter(|found| chunk.contains(found)).collect())
}

async fn erase_contents(connection: &mut SqliteConnection, rows: &str) -> Result<(), StoreError> {
    query!(
        "UPDATE notifications SET body = NULL FROM json_each(?1) AS x
         WHERE notifications.tenant_id = x.value->>0 AND notifications.id = unhex(x.value->>1) AND notifications.body IS NOT NULL",
        rows
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// Their keys belong to nobody from now on, unless somebody has taken them over.
async fn free_keys(connection: &mut SqliteConnection, rows: &str, now: Timestamp) -> Result<(), StoreError> {
    let now = now.as_micros();
    query!(
        "UPDATE notifications SET key_freed = ?2 FROM json_each(?1) AS x
         WHERE notifications.tenant_id = x.value->>0 AND notifications.id = unhex(x.value->>1) AND notifications.key_freed IS NULL",
        rows,
        now
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// The digest stays: what is suppressed, searched and matched by it outlives the address (S-156).
async fn wipe(connection: &mut SqliteConnection, ids: &str) -> Result<(), StoreError> {
    query!(
        "UPDATE deliveries SET address = NULL, ref = NULL, copies = NULL FROM json_each(?1) AS x
         WHERE deliveries.id = unhex(x.value) AND (address IS NOT NULL OR ref IS NOT NULL OR copies IS NOT NULL)",
        ids
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

async fn delete_records(connection: &mut SqliteConnection, rows: &str, ids: &str) -> Result<(), StoreError> {
    query!("DELETE FROM attempts WHERE delivery_id IN (SELECT unhex(value) FROM json_each(?1))", ids)
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    query!("DELETE FROM deliveries WHERE id IN (SELECT unhex(value) FROM json_each(?1))", ids)
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    query!("DELETE FROM notifications WHERE (tenant_id, id) IN (SELECT value->>0, unhex(value->>1) FROM json_each(?1))", rows)
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(store_error)
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

pub(crate) async fn purge_rest(writer: &mut Writer, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
    writer.begin().await?;
    let purged = purge_rest_in(writer.connection(), keep, now).await;
    writer.end(purged).await
}

async fn purge_rest_in(connection: &mut SqliteConnection, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
    let (mut purged, chunk) = (0, CHUNK as i64);
    let before = NotificationId::first_at(now.minus(keep.content));
    let messages = query!(
        "DELETE FROM sandbox_messages WHERE id IN (SELECT id FROM sandbox_messages WHERE id < ?1 ORDER BY id LIMIT ?2)",
        before,
        chunk
    );
    purged += messages.execute(&mut *connection).await.map_err(store_error)?.rows_affected();
    // In the order of time, as they were written.
    let before = now.minus(AUDIT_KEPT).as_micros();
    let entries =
        query!("DELETE FROM audit_log WHERE id IN (SELECT id FROM audit_log WHERE id > 0 ORDER BY id LIMIT ?2) AND at < ?1", before, chunk);
    purged += entries.execute(&mut *connection).await.map_err(store_error)?.rows_affected();
    let before = now.minus(keep.metadata).as_micros();
    let suppressions = query!(
        "DELETE FROM suppressions WHERE id IN (SELECT id FROM suppressions WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)",
        before,
        chunk
    );
    purged += suppressions.execute(&mut *connection).await.map_err(store_error)?.rows_affected();
    let before = now.minus(IDLE_LINES_KEPT).as_micros();
    let lines = query!(
        "DELETE FROM ordering_lanes WHERE rowid IN
            (SELECT rowid FROM ordering_lanes INDEXED BY ordering_ages WHERE head IS NULL AND head_since < ?1 LIMIT ?2)",
        before,
        chunk
    );
    purged += lines.execute(&mut *connection).await.map_err(store_error)?.rows_affected();
    let before = now.minus(QUOTAS_KEPT).as_micros();
    let counts =
        query!("DELETE FROM quota_pools WHERE rowid IN (SELECT rowid FROM quota_pools WHERE window_start < ?1 LIMIT ?2)", before, chunk);
    purged += counts.execute(&mut *connection).await.map_err(store_error)?.rows_affected();
    let before = now.minus(INSTANCES_KEPT).as_micros();
    let instances =
        query!("DELETE FROM instances WHERE id IN (SELECT id FROM instances WHERE seen_at < ?1 ORDER BY id LIMIT ?2)", before, chunk);
    Ok(purged + instances.execute(connection).await.map_err(store_error)?.rows_affected())
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
