//! Reading: what adapters need of a delivery, a notification with all that became of it, and what waits.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::delivery::{AttemptRecord, Delivery};
use tidings_core::ids::{DeliveryId, LaneId, NotificationId, TenantId};
use tidings_core::store::{Behind, KeyHolder, StoreError, StoredDelivery, StoredNotification, StoredOutgoing};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::before;
use crate::instant::At;
use crate::listing::{NotificationRow, ids_of};
use crate::rows::{AttemptRow, RecordRow, open_rows, records};

/// What adapters need, still sealed. Each row is looked up by its key, in the one partition that the key names: OFFSET 0 keeps
/// the planner from joining in another way.
pub(crate) async fn outgoing(store: &PostgresStore, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
    let mut conn = store.mover().await?;
    let deliveries: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let notifications: Vec<Uuid> = ids.iter().map(|id| id.notification().as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT x.id AS "id!", d.address AS "address?", d.copies AS "copies?", d.message_id AS "message_id?",
            n.idempotency_key AS "idempotency_key!", n.schema_version AS "schema_version!", c.body AS "body?"
         FROM unnest($1::uuid[], $2::uuid[]) AS x (id, notification_id)
         CROSS JOIN LATERAL (
            SELECT d.tenant_id, d.address, d.copies, d.message_id FROM deliveries d WHERE d.id = x.id OFFSET 0) d
         CROSS JOIN LATERAL (
            SELECT n.idempotency_key, n.schema_version FROM notifications n
            WHERE n.tenant_id = d.tenant_id AND n.id = x.notification_id OFFSET 0) n
         LEFT JOIN LATERAL (SELECT c.body FROM contents c WHERE c.id = x.notification_id OFFSET 0) c ON true"#,
        &deliveries[..],
        &notifications[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let outgoing = rows.into_iter().map(|row| {
        Some(StoredOutgoing {
            id: DeliveryId::from_uuid(row.id),
            idempotency_key: row.idempotency_key,
            schema_version: row.schema_version,
            // Without an address it was erased; there is nothing to send it to.
            address: row.address?,
            body: row.body,
            copies: row.copies,
            message_id: row.message_id,
        })
    });
    Ok(outgoing.flatten().collect())
}

/// Which notification holds a key.
pub(crate) async fn by_key(store: &PostgresStore, tenant: TenantId, mode: Mode, key: &str) -> Result<Option<KeyHolder>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query!(
        "SELECT notification_id, fingerprint, fingerprint_version FROM idempotency
         WHERE tenant_id = $1 AND mode = $2 AND idempotency_key = $3",
        tenant.0,
        mode.as_i16(),
        key,
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    Ok(row.map(|row| KeyHolder {
        id: NotificationId::from_uuid(row.notification_id),
        fingerprint: row.fingerprint,
        fingerprint_version: row.fingerprint_version,
    }))
}

/// A notification with its deliveries and attempts, all of one moment: rows move between `queue` and the record.
pub(crate) async fn notification(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    id: NotificationId,
) -> Result<Option<StoredNotification>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(before)?;
    let row = sqlx::query_as!(
        NotificationRow,
        "SELECT id, idempotency_key, category, class, tags, metadata, send_at, expires_at, delivery_count FROM notifications
         WHERE tenant_id = $1 AND id = $2 AND mode = $3",
        tenant.0,
        id.as_uuid(),
        mode.as_i16(),
    )
    .fetch_optional(&mut *tx)
    .await
    .map_err(before)?;
    let Some(row) = row else { return Ok(None) };
    let ids: Vec<Uuid> = ids_of(row.id, row.delivery_count).collect();
    let deliveries = deliveries(&mut tx, &ids).await?.remove(&id).unwrap_or_else(|| Ok(Vec::new()))?;
    tx.commit().await.map_err(before)?;
    row.notification(tenant, mode, deliveries).map(Some)
}

/// The deliveries of each notification in the order of their ordinals, or why those of one cannot be read.
pub(crate) type Deliveries = HashMap<NotificationId, Result<Vec<StoredDelivery>, StoreError>>;

/// Deliveries with all that became of them.
pub(crate) async fn deliveries(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Deliveries, StoreError> {
    let records =
        records!("FROM deliveries d WHERE d.id = ANY($1::uuid[]) ORDER BY d.id", ids).fetch_all(&mut *conn).await.map_err(before)?;
    let mut open = HashMap::new();
    if records.iter().any(|record| record.state.is_none()) {
        let rows = open_rows!("FROM queue q JOIN lanes l ON l.id = q.lane WHERE q.id = ANY($1::uuid[])", ids)
            .fetch_all(&mut *conn)
            .await
            .map_err(before)?;
        open.extend(rows.into_iter().map(|row| (DeliveryId::from_uuid(row.id), row.delivery())));
    }
    let mut attempts = attempts(&mut *conn, ids).await?;
    let suppressions = suppressions(conn, records.iter().filter_map(|record| record.suppression_id)).await?;
    let mut deliveries = Deliveries::new();
    for record in records {
        let id = DeliveryId::from_uuid(record.id);
        let stored = stored(record, &mut open, attempts.remove(&id), &suppressions);
        gather(deliveries.entry(id.notification()).or_insert_with(|| Ok(Vec::new())), stored);
    }
    Ok(deliveries)
}

/// Adds to a list, which the first row that cannot be read makes unreadable as a whole.
pub(crate) fn gather<T>(list: &mut Result<Vec<T>, StoreError>, row: Result<T, StoreError>) {
    match (list.as_mut(), row) {
        (Ok(rows), Ok(row)) => rows.push(row),
        (Ok(_), Err(err)) => *list = Err(err),
        (Err(_), _) => {}
    }
}

fn stored(
    record: RecordRow,
    open: &mut HashMap<DeliveryId, Result<Delivery, StoreError>>,
    attempts: Option<Result<Vec<AttemptRecord>, StoreError>>,
    suppressions: &HashMap<Uuid, Behind>,
) -> Result<StoredDelivery, StoreError> {
    let id = DeliveryId::from_uuid(record.id);
    let delivery = match record.delivery()? {
        Some(ended) => ended,
        None => open.remove(&id).ok_or_else(|| StoreError::Unreadable("an open delivery has no queue row".to_owned()))??,
    };
    Ok(StoredDelivery {
        delivery,
        address: record.address,
        reference: record.reference,
        copies: record.copies,
        message_id: record.message_id,
        send_at: record.send_at.map(|at| at.0),
        suppression: record
            .suppression_id
            .map(|id| suppressions.get(&id).cloned().unwrap_or(Behind { id, reason: None, scope: None, created_at: None })),
        updated_at: record.updated_at.0,
        attempts: attempts.unwrap_or_else(|| Ok(Vec::new()))?,
    })
}

/// Those entries that are still there.
async fn suppressions(conn: &mut PgConnection, ids: impl Iterator<Item = Uuid>) -> Result<HashMap<Uuid, Behind>, StoreError> {
    let ids: Vec<Uuid> = ids.collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query!(r#"SELECT id, reason, scope, created_at AS "created_at: At" FROM suppressions WHERE id = ANY($1)"#, &ids[..],)
        .fetch_all(conn)
        .await
        .map_err(before)?;
    let suppressed = rows.into_iter().map(|row| Behind {
        id: row.id,
        reason: Some(row.reason),
        scope: Some(row.scope),
        created_at: Some(row.created_at.0),
    });
    Ok(suppressed.map(|suppressed| (suppressed.id, suppressed)).collect())
}

type Attempts = HashMap<DeliveryId, Result<Vec<AttemptRecord>, StoreError>>;

async fn attempts(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Attempts, StoreError> {
    let rows = sqlx::query_as!(
        AttemptRow,
        "SELECT delivery_id, number, generation, account_id, started_at, finished_at, outcome, accepted_at, late, provider_code,
            provider_message_id, match_key, detail
         FROM attempts WHERE delivery_id = ANY($1) ORDER BY delivery_id, number",
        ids,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut attempts = Attempts::new();
    for row in rows {
        gather(attempts.entry(DeliveryId::from_uuid(row.delivery_id)).or_insert_with(|| Ok(Vec::new())), row.record());
    }
    Ok(attempts)
}

/// When the next row of each lane is due: one index probe for each lane and tenant.
pub(crate) async fn next_due(store: &PostgresStore) -> Result<Vec<(LaneId, Timestamp)>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"WITH RECURSIVE t (lane, tenant_id, available_at) AS (
            SELECT l.id, f.tenant_id, f.available_at
            FROM lanes l CROSS JOIN LATERAL (
                SELECT q.tenant_id, q.available_at FROM queue q WHERE q.lane = l.id AND q.available_at IS NOT NULL
                ORDER BY q.tenant_id, q.available_at LIMIT 1) f
            UNION ALL
            SELECT t.lane, n.tenant_id, n.available_at
            FROM t CROSS JOIN LATERAL (
                SELECT q.tenant_id, q.available_at FROM queue q
                WHERE q.lane = t.lane AND q.available_at IS NOT NULL AND q.tenant_id > t.tenant_id
                ORDER BY q.tenant_id, q.available_at LIMIT 1) n)
         SELECT lane AS "lane!", min(available_at) AS "due!" FROM t WHERE available_at < 'infinity' GROUP BY lane ORDER BY lane"#,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().map(|row| (LaneId(row.lane), row.due.0)).collect())
}

/// The lanes in which rows wait.
pub(crate) async fn waiting_lanes(store: &PostgresStore) -> Result<Vec<LaneId>, StoreError> {
    let mut conn = store.mover().await?;
    let lanes = sqlx::query_scalar!(
        "SELECT l.id FROM lanes l CROSS JOIN LATERAL (
            SELECT q.lane FROM queue q WHERE q.lane = l.id AND q.available_at IS NOT NULL ORDER BY q.tenant_id, q.available_at LIMIT 1) q
         ORDER BY l.id",
    );
    Ok(lanes.fetch_all(&mut *conn).await.map_err(before)?.into_iter().map(LaneId).collect())
}

/// How many rows are open.
pub(crate) async fn open_count(store: &PostgresStore) -> Result<i64, StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM queue"#).fetch_one(&mut *conn).await.map_err(before)
}
