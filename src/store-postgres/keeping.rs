//! Deleting what has been kept for long enough, some hundred rows in a transaction. What is erased of a notification is
//! decided in core, under the locks of its deliveries; a row that somebody else has locked is never waited for. How emptied
//! partitions go is `drop_past`, in the schema.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::ids::{DeliveryId, InstanceId, NotificationId, TenantId};
use tidings_core::retention::{AUDIT_KEPT, ENVELOPES_KEPT, IDLE_LINES_KEPT, INSTANCES_KEPT, Kept, QUOTAS_KEPT, Retention, Standing};
use tidings_core::store::{Due, DueNotification, StoreError};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::At;

/// Deliveries of one transaction: nobody waits for rows that have had their time, and each commit costs the same.
pub(crate) const ROWS_AT_ONCE: usize = 500;
/// Rows of anything else that one statement deletes.
const CHUNK: i64 = 100;
/// Rows that one step of a walk reads; more than a notification can have deliveries.
const LOOKED_AT: i64 = 1_000;
/// How long the runs of jobs are remembered.
const RUNS_KEPT: Duration = Duration::from_secs(7 * 86_400);

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

pub(crate) async fn due(
    store: &PostgresStore,
    kept: Kept,
    keep: &Retention,
    after: Option<NotificationId>,
    now: Timestamp,
) -> Result<Due, StoreError> {
    // A walk enters by the key, whatever the statistics say of a table that is filled at one end and emptied at the other.
    let mut conn = store.mover().await?;
    let until = NotificationId::first_at(keep.youngest(kept, now));
    let is_due = |deliveries: &[Standing]| keep.is_due(kept, deliveries, now);
    if kept == Kept::Content {
        return due_contents(&mut conn, after, until, is_due).await;
    }
    let rows = sqlx::query_as!(
        StandingRow,
        r#"SELECT d.id, d.tenant_id, d.state, d.settled_at AS "settled_at: At", d.attention FROM deliveries d
           WHERE d.id > $1 AND d.id < $2 ORDER BY d.id LIMIT $3"#,
        after.map_or(Uuid::nil(), |id| id.last_delivery().as_uuid()),
        until,
        LOOKED_AT,
    );
    let rows = rows.fetch_all(&mut *conn).await.map_err(before)?;
    let is_cut = is_full(rows.len());
    Ok(Due::of(rows.into_iter().map(StandingRow::read), is_cut, is_due))
}

fn is_full(rows: usize) -> bool {
    i64::try_from(rows).unwrap_or(i64::MAX) >= LOOKED_AT
}

/// What is erased is gone from `contents`: a walk meets only what is still kept.
async fn due_contents(
    conn: &mut PgConnection,
    after: Option<NotificationId>,
    until: Uuid,
    is_due: impl Fn(&[Standing]) -> bool,
) -> Result<Due, StoreError> {
    let ids = sqlx::query_scalar!(
        "SELECT id FROM contents WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3",
        after.map_or(Uuid::nil(), NotificationId::as_uuid),
        until,
        LOOKED_AT,
    );
    let ids = ids.fetch_all(&mut *conn).await.map_err(before)?;
    let first: Vec<NotificationId> = ids.iter().map(|id| NotificationId::from_uuid(*id)).collect();
    let Some(highest) = first.last() else { return Ok(Due::default()) };
    let last: Vec<Uuid> = first.iter().map(|id| id.last_delivery().as_uuid()).collect();
    let rows = sqlx::query_as!(
        StandingRow,
        r#"SELECT d.id, d.tenant_id, d.state, d.settled_at AS "settled_at: At", d.attention
         FROM unnest($1::uuid[], $2::uuid[]) AS x (first, last) CROSS JOIN LATERAL (
            SELECT d.id, d.tenant_id, d.state, d.settled_at, d.attention FROM deliveries d
            WHERE d.id > x.first AND d.id <= x.last OFFSET 0) d
         ORDER BY d.id"#,
        &ids[..],
        &last[..],
    );
    let rows = rows.fetch_all(conn).await.map_err(before)?;
    let due = Due::of(rows.into_iter().map(StandingRow::read), false, is_due);
    Ok(Due { next: is_full(ids.len()).then_some(*highest), ..due })
}

struct StandingRow {
    id: Uuid,
    tenant_id: i32,
    state: Option<String>,
    settled_at: Option<At>,
    attention: Option<bool>,
}

impl StandingRow {
    fn read(self) -> (DeliveryId, TenantId, Standing) {
        // A word of a newer binary is none of ours: what it says is left alone (S-231).
        let state = self.state.and_then(|word| word.parse().ok());
        let settled_at = self.settled_at.map(|at| at.0);
        (
            DeliveryId::from_uuid(self.id),
            TenantId(self.tenant_id),
            Standing { state, settled_at, needs_attention: self.attention.is_some() },
        )
    }
}

pub(crate) async fn erase(
    store: &PostgresStore,
    kept: Kept,
    keep: &Retention,
    chunk: &[DueNotification],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    by_key_only(&mut tx).await?;
    // Keys before deliveries, as whoever takes one over does.
    let held = if kept == Kept::Content { Vec::new() } else { lock_keys(&mut tx, chunk).await? };
    let due = still_due(&mut tx, kept, keep, chunk, now).await?;
    if due.is_empty() {
        return Ok(0);
    }
    match kept {
        Kept::Content => erase_contents(&mut tx, &due).await?,
        Kept::Destinations => {
            free_keys(&mut tx, &held, &due).await?;
            wipe(&mut tx, &due).await?;
        }
        Kept::Records => {
            free_keys(&mut tx, &held, &due).await?;
            delete_records(&mut tx, &due).await?;
        }
    }
    fail_point("keeping.before_commit");
    tx.commit().await.map_err(committing)?;
    fail_point("keeping.between_chunks");
    Ok(due.len() as u64)
}

/// Rows are few and known by their keys, whatever statistics say of tables that are filled at one end and emptied at the other.
async fn by_key_only(conn: &mut PgConnection) -> Result<(), StoreError> {
    let set = sqlx::query_scalar!(
        "SELECT count(set_config(name, 'off', true)) FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS x (name)"
    );
    set.fetch_one(conn).await.map(|_| ()).map_err(before)
}

fn tenants(chunk: &[DueNotification]) -> Vec<i32> {
    chunk.iter().map(|found| found.tenant.0).collect()
}

fn ids(chunk: &[DueNotification]) -> Vec<Uuid> {
    chunk.iter().map(|found| found.id.as_uuid()).collect()
}

fn delivery_ids(chunk: &[DueNotification]) -> Vec<Uuid> {
    chunk.iter().flat_map(DueNotification::delivery_ids).map(DeliveryId::as_uuid).collect()
}

/// Those of a chunk of which everything can be locked and is due as it stands now.
async fn still_due(
    conn: &mut PgConnection,
    kept: Kept,
    keep: &Retention,
    chunk: &[DueNotification],
    now: Timestamp,
) -> Result<Vec<DueNotification>, StoreError> {
    let rows = sqlx::query_as!(
        StandingRow,
        r#"SELECT d.id, d.tenant_id, d.state, d.settled_at AS "settled_at: At", d.attention FROM deliveries d
           WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE OF d SKIP LOCKED"#,
        &delivery_ids(chunk)[..],
    );
    let rows = rows.fetch_all(conn).await.map_err(before)?;
    let due = Due::of(rows.into_iter().map(StandingRow::read), false, |deliveries| keep.is_due(kept, deliveries, now));
    let asked: HashMap<NotificationId, &DueNotification> = chunk.iter().map(|found| (found.id, found)).collect();
    Ok(due.found.into_iter().filter(|locked| asked.get(&locked.id) == Some(&locked)).collect())
}

/// A key that is still that of a notification.
struct HeldKey {
    tenant_id: i32,
    mode: i16,
    idempotency_key: String,
    notification_id: Uuid,
}

async fn lock_keys(conn: &mut PgConnection, chunk: &[DueNotification]) -> Result<Vec<HeldKey>, StoreError> {
    let locked = sqlx::query_as!(
        HeldKey,
        "SELECT i.tenant_id, i.mode, i.idempotency_key, i.notification_id
         FROM unnest($1::int[], $2::uuid[]) AS x (tenant_id, id)
         JOIN notifications n ON n.tenant_id = x.tenant_id AND n.id = x.id AND n.id = ANY($2)
         JOIN idempotency i ON i.tenant_id = n.tenant_id AND i.mode = n.mode AND i.idempotency_key = n.idempotency_key
            AND i.notification_id = n.id
         ORDER BY i.tenant_id, i.mode, i.idempotency_key FOR UPDATE OF i",
        &tenants(chunk)[..],
        &ids(chunk)[..],
    );
    locked.fetch_all(conn).await.map_err(before)
}

/// These belong to nobody from now on.
async fn free_keys(conn: &mut PgConnection, held: &[HeldKey], due: &[DueNotification]) -> Result<(), StoreError> {
    let due: HashSet<Uuid> = ids(due).into_iter().collect();
    let held: Vec<&HeldKey> = held.iter().filter(|key| due.contains(&key.notification_id)).collect();
    if held.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "DELETE FROM idempotency i USING unnest($1::int[], $2::smallint[], $3::text[]) AS x (tenant_id, mode, idempotency_key)
         WHERE i.tenant_id = x.tenant_id AND i.mode = x.mode AND i.idempotency_key = x.idempotency_key",
        &held.iter().map(|key| key.tenant_id).collect::<Vec<_>>()[..],
        &held.iter().map(|key| key.mode).collect::<Vec<_>>()[..],
        held.iter().map(|key| key.idempotency_key.as_str()).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}

async fn erase_contents(conn: &mut PgConnection, due: &[DueNotification]) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM contents WHERE id = ANY($1)", &ids(due)[..]).execute(conn).await.map(|_| ()).map_err(before)
}

/// The digest stays: what is suppressed, searched and matched by it outlives the address (S-156).
async fn wipe(conn: &mut PgConnection, due: &[DueNotification]) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE deliveries d SET address = NULL, ref = NULL, copies = NULL WHERE d.id = ANY($1)
            AND (d.address IS NOT NULL OR d.ref IS NOT NULL OR d.copies IS NOT NULL)",
        &delivery_ids(due)[..],
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}

async fn delete_records(conn: &mut PgConnection, due: &[DueNotification]) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH d AS (DELETE FROM deliveries d WHERE d.id = ANY($1)),
         a AS (DELETE FROM attempts a WHERE a.delivery_id = ANY($1)),
         c AS (DELETE FROM contents WHERE id = ANY($3))
         DELETE FROM notifications n USING unnest($2::int[], $3::uuid[]) AS x (tenant_id, id)
         WHERE n.tenant_id = x.tenant_id AND n.id = x.id AND n.id = ANY($3)",
        &delivery_ids(due)[..],
        &tenants(due)[..],
        &ids(due)[..],
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}

/// Drops one partition that holds nothing younger; what lies in the default partition goes a chunk at a time.
pub(crate) async fn purge_events(store: &PostgresStore, told_before: Timestamp) -> Result<u64, StoreError> {
    let mut conn = store.connection().await?;
    let purged = sqlx::query_scalar!(r#"SELECT purge_events($1) AS "purged!""#, At(told_before) as _);
    let purged = purged.fetch_one(&mut *conn).await.map_err(committing)?;
    Ok(u64::try_from(purged).unwrap_or_default())
}

pub(crate) async fn purge_rest(store: &PostgresStore, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
    let mut conn = store.connection().await?;
    let mut purged = 0;
    // What goes is an array: joined to it, the tables would be read from one end to the other.
    let messages = sqlx::query!(
        "DELETE FROM sandbox_messages WHERE id = ANY(ARRAY(
            SELECT id FROM sandbox_messages WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED))",
        NotificationId::first_at(now.minus(keep.content)),
        CHUNK,
    );
    purged += messages.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    // In the order of time, as they were written.
    let entries = sqlx::query!(
        "DELETE FROM audit_log WHERE id = ANY(ARRAY(SELECT id FROM audit_log ORDER BY id LIMIT $2)) AND at < $1",
        At(now.minus(AUDIT_KEPT)) as _,
        CHUNK,
    );
    purged += entries.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    let suppressions = sqlx::query!(
        "DELETE FROM suppressions WHERE id = ANY(ARRAY(
            SELECT id FROM suppressions WHERE expires_at < $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        At(now.minus(keep.metadata)) as _,
        CHUNK,
    );
    purged += suppressions.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    let lines = sqlx::query!(
        "DELETE FROM ordering_lanes WHERE ctid = ANY(
            ARRAY(SELECT ctid FROM ordering_lanes WHERE head IS NULL AND head_since < $1 ORDER BY head_since LIMIT $2 FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT ctid FROM ordering_lanes WHERE head IS NULL AND head_since IS NULL LIMIT $2 FOR UPDATE SKIP LOCKED))",
        At(now.minus(IDLE_LINES_KEPT)) as _,
        CHUNK,
    );
    purged += lines.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    let counts = sqlx::query!(
        "DELETE FROM quota_pools p USING (
            SELECT key, period_start FROM quota_pools WHERE period_start < $1 LIMIT $2 FOR UPDATE SKIP LOCKED) x
         WHERE (p.key, p.period_start) = (x.key, x.period_start)",
        At(now.minus(QUOTAS_KEPT)) as _,
        CHUNK,
    );
    purged += counts.execute(&mut *conn).await.map_err(committing)?.rows_affected();
    let instances = sqlx::query!(
        "DELETE FROM instances WHERE id IN (SELECT id FROM instances WHERE seen_at < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)",
        At(now.minus(INSTANCES_KEPT)) as _,
        CHUNK,
    );
    Ok(purged + instances.execute(&mut *conn).await.map_err(committing)?.rows_affected())
}

/// Drops one partition of which next to nothing is left; the server's own vacuum does the rest.
pub(crate) async fn give_back(store: &PostgresStore, keep: &Retention, now: Timestamp) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let records = keep.youngest(Kept::Records, now);
    for (parent, before) in [
        ("contents", keep.youngest(Kept::Content, now)),
        ("notifications", records),
        ("attempts", records),
        ("deliveries", records),
        ("envelopes", now.minus(ENVELOPES_KEPT)),
    ] {
        let dropped = sqlx::query_scalar!(r#"SELECT drop_past($1, $2) AS "dropped!""#, parent, At(before) as _);
        match dropped.fetch_one(&mut *conn).await.map_err(committing) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // Somebody works with the table for longer than others could wait behind us, or its index is not vacuumed yet.
            Err(error @ StoreError::Busy(_)) => {
                tracing::debug!(table = parent, error = %error, "an emptied partition could not be dropped; it is tried again");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
