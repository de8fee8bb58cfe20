//! Reading back: by key, by id, for adapters, and what the pump asks. The queue row of an open delivery wins over its
//! record. Which tenant and mode may see what is part of every question.

use std::collections::HashMap;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_as, query_scalar};
use tidings_core::delivery::AttemptRecord;
use tidings_core::ids::{DeliveryId, LaneId, NotificationId, TenantId};
use tidings_core::store::{Behind, KeyHolder, StoreError, StoredDelivery, StoredNotification, StoredOutgoing};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::error::store_error;
use crate::listing::{NotificationRow, ids_of};
use crate::rows::{AttemptRow, DeliveryRow, Hex, NEVER, ids_json, json, number};

pub(crate) async fn outgoing(readers: &SqlitePool, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
    let ids = json(&ids.iter().map(|id| (Hex::of(*id), Hex::uuid(id.notification().as_uuid()))).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", n.idempotency_key AS "key!", n.schema_version AS "schema_version!", d.address AS "address?",
            n.body AS "body?", d.copies AS "copies?", d.message_id AS "message_id?"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0)
            CROSS JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = unhex(x.value->>1)"#,
        ids
    );
    let mut outgoing = Vec::new();
    for row in rows.fetch_all(readers).await.map_err(store_error)? {
        // Without an address there is nothing to send; it was erased.
        let Some(address) = row.address else { continue };
        outgoing.push(StoredOutgoing {
            id: DeliveryId::from_uuid(row.id),
            idempotency_key: row.key,
            schema_version: number(row.schema_version)?,
            address,
            body: row.body,
            copies: row.copies,
            message_id: row.message_id,
        });
    }
    Ok(outgoing)
}

pub(crate) async fn by_key(readers: &SqlitePool, tenant: TenantId, mode: Mode, key: &str) -> Result<Option<KeyHolder>, StoreError> {
    let mode = mode.as_i16();
    let row = query!(
        r#"SELECT id AS "id!: Uuid", fingerprint, fingerprint_version FROM notifications
           WHERE tenant_id = ?1 AND mode = ?2 AND idempotency_key = ?3 AND key_freed IS NULL"#,
        tenant.0,
        mode,
        key
    );
    let Some(row) = row.fetch_optional(readers).await.map_err(store_error)? else { return Ok(None) };
    let id = NotificationId::from_uuid(row.id);
    Ok(Some(KeyHolder { id, fingerprint: row.fingerprint, fingerprint_version: number(row.fingerprint_version)? }))
}

pub(crate) async fn notification(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    id: NotificationId,
) -> Result<Option<StoredNotification>, StoreError> {
    // One snapshot for the three statements: an attempt and the state it led to are seen together.
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let (uuid, mode_number) = (id.as_uuid(), mode.as_i16());
    let row = query_as!(
        NotificationRow,
        r#"SELECT id AS "id!: Uuid", idempotency_key, category, class, tags, metadata, send_at, expires_at, delivery_count FROM notifications
           WHERE tenant_id = ?1 AND id = ?2 AND mode = ?3"#,
        tenant.0,
        uuid,
        mode_number
    );
    let Some(row) = row.fetch_optional(&mut *snapshot).await.map_err(store_error)? else { return Ok(None) };
    let ids: Vec<DeliveryId> = ids_of(row.id, row.delivery_count).collect();
    let deliveries = deliveries(&mut snapshot, &ids).await?.remove(&id).unwrap_or_else(|| Ok(Vec::new()))?;
    snapshot.commit().await.map_err(store_error)?;
    row.into_notification(tenant, mode, deliveries).map(Some)
}

/// The deliveries of each notification in the order of their ordinals, or why those of one cannot be read.
pub(crate) type Deliveries = HashMap<NotificationId, Result<Vec<StoredDelivery>, StoreError>>;

/// Deliveries with all that became of them.
pub(crate) async fn deliveries(connection: &mut SqliteConnection, ids: &[DeliveryId]) -> Result<Deliveries, StoreError> {
    let ids = ids_json(ids.iter().copied());
    let mut attempts = attempts(connection, &ids).await?;
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.tenant_id AS "tenant_id!", d.mode AS "mode!", d.channel AS "channel!", d.class AS "class!",
            d.lane AS "lane!", coalesce(q.category, '') AS "category!: String", coalesce(q.state, d.state) AS "state!: String",
            coalesce(q.version, d.version) AS "version!: i64", coalesce(q.generation, d.generation) AS "generation!: i64",
            coalesce(q.attempt_number, d.attempt_number) AS "attempt_number!: i64",
            coalesce(q.attempt_count, d.attempt_count) AS "attempt_count!: i64", coalesce(q.attempts_used, 0) AS "attempts_used!: i64",
            coalesce(q.attempt_limit, 0) AS "attempt_limit!: i64", coalesce(q.lost_count, 0) AS "lost_count!: i64",
            coalesce(q.build_failures, 0) AS "build_failures!: i64", coalesce(q.unresolved, d.unresolved) AS "unresolved!: i64",
            q.no_resend AS "no_resend?", q.available_at AS "available_at?", q.lease_expires_at AS "lease_expires_at?",
            q.lease_owner AS "lease_owner?", iif(q.id IS NULL, d.account_id, q.account_id) AS "account_id?: i64",
            q.attempt_started_at AS "attempt_started_at?", q.ambiguous_since AS "ambiguous_since?", q.check_at AS "check_at?",
            coalesce(q.rung, 0) AS "rung!: i64", coalesce(q.expires_at, d.expires_at) AS "expires_at!: i64", q.sender AS "sender?",
            coalesce(q.flags, d.flags) AS "flags!: i64", iif(q.id IS NULL, d.reason, NULL) AS "reason?: String", d.settled_at AS "settled_at?",
            d.address AS "address?", d.ref AS "reference?", d.copies AS "copies?", d.message_id AS "message_id?", d.send_at AS "send_at?", d.updated_at AS "updated_at!",
            coalesce(q.siblings, 0) AS "siblings!: i64", q.ordering_key IS NOT NULL AS "is_ordered!: bool",
            q.collapse_key IS NOT NULL AS "is_collapsible!: bool",
            d.suppression_id AS "suppression_id?: Uuid", s.reason AS "suppression_reason?", s.scope AS "suppression_scope?",
            s.created_at AS "suppressed_at?"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value) LEFT JOIN queue q ON q.id = d.id
            LEFT JOIN suppressions s ON s.id = d.suppression_id
           ORDER BY d.id"#,
        ids
    );
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    let mut deliveries = Deliveries::new();
    for row in rows {
        let delivery = DeliveryRow {
            id: row.id,
            tenant_id: row.tenant_id,
            mode: row.mode,
            channel: row.channel,
            class: row.class,
            lane: row.lane,
            category: row.category,
            state: row.state,
            version: row.version,
            generation: row.generation,
            attempt_number: row.attempt_number,
            attempt_count: row.attempt_count,
            attempts_used: row.attempts_used,
            attempt_limit: row.attempt_limit,
            lost_count: row.lost_count,
            build_failures: row.build_failures,
            unresolved: row.unresolved,
            no_resend: row.no_resend,
            available_at: row.available_at,
            lease_expires_at: row.lease_expires_at,
            lease_owner: row.lease_owner,
            account_id: row.account_id,
            attempt_started_at: row.attempt_started_at,
            ambiguous_since: row.ambiguous_since,
            check_at: row.check_at,
            rung: row.rung,
            expires_at: row.expires_at,
            sender: row.sender,
            flags: row.flags,
            reason: row.reason,
            settled_at: row.settled_at,
            siblings: row.siblings,
            is_ordered: row.is_ordered,
            is_collapsible: row.is_collapsible,
        };
        let id = DeliveryId::from_uuid(row.id);
        let suppression = row.suppression_id.map(|id| Behind {
            id,
            reason: row.suppression_reason,
            scope: row.suppression_scope,
            created_at: row.suppressed_at.map(Timestamp::from_micros),
        });
        let attempts = attempts.remove(&id).unwrap_or_else(|| Ok(Vec::new()));
        let stored = delivery.into_delivery().and_then(|delivery| {
            Ok(StoredDelivery {
                delivery,
                attempts: attempts?,
                address: row.address,
                reference: row.reference,
                copies: row.copies,
                message_id: row.message_id,
                send_at: row.send_at.map(Timestamp::from_micros),
                suppression,
                updated_at: Timestamp::from_micros(row.updated_at),
            })
        });
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

type Attempts = HashMap<DeliveryId, Result<Vec<AttemptRecord>, StoreError>>;

async fn attempts(connection: &mut SqliteConnection, ids: &str) -> Result<Attempts, StoreError> {
    let rows = query_as!(
        AttemptRow,
        r#"SELECT a.delivery_id AS "delivery_id!: Uuid", a.number AS "number!", a.generation AS "generation!", a.account_id AS "account_id?",
            a.started_at AS "started_at!", a.finished_at AS "finished_at?", a.outcome AS "outcome!", a.accepted_at AS "accepted_at?",
            a.late AS "late!", a.provider_code AS "provider_code?", a.provider_message_id AS "provider_message_id?",
            a.match_key AS "match_key?", a.detail AS "detail?"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value) ORDER BY a.delivery_id, a.number"#,
        ids
    );
    let mut attempts = Attempts::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        gather(attempts.entry(DeliveryId::from_uuid(row.delivery_id)).or_insert_with(|| Ok(Vec::new())), row.into_record());
    }
    Ok(attempts)
}

/// Jumps from tenant to tenant as the claim does: a lane with a million rows is two steps for each tenant in it.
pub(crate) async fn next_due(readers: &SqlitePool) -> Result<Vec<(LaneId, Timestamp)>, StoreError> {
    let rows = query!(
        r#"WITH RECURSIVE ring (lane, tenant_id) AS (
            SELECT l.id, (SELECT min(q.tenant_id) FROM queue q WHERE q.lane = l.id AND q.available_at IS NOT NULL) FROM lanes l
            UNION ALL
            SELECT r.lane, (SELECT min(q.tenant_id) FROM queue q
                WHERE q.lane = r.lane AND q.available_at IS NOT NULL AND q.tenant_id > r.tenant_id)
            FROM ring r WHERE r.tenant_id IS NOT NULL),
           due (lane, at) AS (
            SELECT r.lane, (SELECT min(q.available_at) FROM queue q
                WHERE q.lane = r.lane AND q.tenant_id = r.tenant_id AND q.available_at IS NOT NULL)
            FROM ring r WHERE r.tenant_id IS NOT NULL)
           SELECT lane AS "lane!: i32", min(at) AS "at!: i64" FROM due WHERE at < ?1 GROUP BY lane ORDER BY lane"#,
        NEVER
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    Ok(rows.into_iter().map(|row| (LaneId(row.lane), Timestamp::from_micros(row.at))).collect())
}

pub(crate) async fn waiting_lanes(readers: &SqlitePool) -> Result<Vec<LaneId>, StoreError> {
    let lanes = query_scalar!(
        r#"SELECT l.id AS "id!: i32" FROM lanes l
           WHERE EXISTS (SELECT 1 FROM queue q WHERE q.lane = l.id AND q.available_at IS NOT NULL) ORDER BY l.id"#
    );
    Ok(lanes.fetch_all(readers).await.map_err(store_error)?.into_iter().map(LaneId).collect())
}

pub(crate) async fn open_count(readers: &SqlitePool) -> Result<i64, StoreError> {
    query_scalar!("SELECT count(*) FROM queue").fetch_one(readers).await.map_err(store_error)
}
