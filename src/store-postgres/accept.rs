//! Accepting: one statement that commits by itself writes key, notification, content, deliveries and queue rows of a
//! whole batch (S-001). A key that is held turns its item away without hurting the others (S-005).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::ids::{NotificationId, TenantId};
use tidings_core::key_expiry::may_be_free;
use tidings_core::store::{Accepted, KeyHolder, NewDelivery, NewNotification, StoreError};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::error::{before, committing};
use crate::instant::{At, at};
use crate::key_expiry;
use crate::rows::{small, text_array};
use crate::{PostgresStore, order};

/// Writes items that are sorted by key, each key once (two transactions with the same keys in opposite order would
/// deadlock). Another transaction that is about to commit one of the keys is waited for no longer than `patience`.
pub(crate) async fn accept(
    store: &PostgresStore,
    items: &[Arc<NewNotification>],
    patience: Duration,
    now: Timestamp,
) -> Result<Vec<Result<Accepted, StoreError>>, StoreError> {
    let taken = if items.iter().any(|item| item.is_keyed()) {
        accept_keyed(store, items, patience, now).await?
    } else {
        let mut accepting = store.accepting.acquire().await.map_err(before)?;
        fail_point("accept.before_commit");
        insert(&mut accepting, items, patience, now).await?
    };
    fail_point("accept.after_commit");
    if taken.len() == items.len() {
        return Ok(items.iter().map(|_| Ok(Accepted::Taken)).collect());
    }
    // What was taken is committed: an error from here on is about the others alone.
    let others: Vec<&Arc<NewNotification>> = items.iter().filter(|item| !taken.contains(&item.id.as_uuid())).collect();
    let holders = match store.connection().await {
        Ok(mut conn) => holders(&mut conn, &others).await,
        Err(error) => Err(error),
    };
    let mut results = Vec::with_capacity(items.len());
    for item in items {
        results.push(match outcome(item, &taken, &holders) {
            Ok(Accepted::KeyHeld(holder)) if may_be_free(holder.id, now) => key_expiry::take_over(store, item, holder, patience, now).await,
            // Its time was over, so the key is this one's (S-010).
            Ok(Accepted::InProgress) => key_expiry::take_purged(store, item, patience, now).await,
            other => other,
        });
    }
    Ok(results)
}

/// The same for a batch in which some have an ordering or a collapse key: others' rows are part of their transaction.
async fn accept_keyed(
    store: &PostgresStore,
    items: &[Arc<NewNotification>],
    patience: Duration,
    now: Timestamp,
) -> Result<HashSet<Uuid>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let taken = insert_keyed(&mut tx, items, patience, now).await?;
    fail_point("accept.before_commit");
    tx.commit().await.map_err(committing)?;
    Ok(taken)
}

/// Inserts, and does to others' rows what ordering and collapse keys ask for; inside the caller's transaction.
pub(crate) async fn insert_keyed(
    conn: &mut PgConnection,
    items: &[Arc<NewNotification>],
    patience: Duration,
    now: Timestamp,
) -> Result<HashSet<Uuid>, StoreError> {
    let mut lines = order::lock_lines(conn, items).await?;
    let taken = insert(conn, items, patience, now).await?;
    let accepted: Vec<&NewNotification> = items.iter().map(|item| &**item).filter(|item| taken.contains(&item.id.as_uuid())).collect();
    order::seat(conn, &accepted, &mut lines, now).await?;
    order::collapse(conn, &accepted, now).await?;
    Ok(taken)
}

fn outcome(
    item: &NewNotification,
    taken: &HashSet<Uuid>,
    holders: &Result<HashMap<(TenantId, Mode, String), KeyHolder>, StoreError>,
) -> Result<Accepted, StoreError> {
    if taken.contains(&item.id.as_uuid()) {
        return Ok(Accepted::Taken);
    }
    let holders = holders.as_ref().map_err(crate::error::again)?;
    let key = (item.tenant, item.mode, item.idempotency_key.clone());
    // A holder that is gone again was purged at this very moment.
    Ok(holders.get(&key).cloned().map_or(Accepted::InProgress, Accepted::KeyHeld))
}

/// One column of the notifications, and one of their deliveries.
fn column<'a, T>(items: &'a [Arc<NewNotification>], value: impl Fn(&'a NewNotification) -> T) -> Vec<T> {
    items.iter().map(|item| value(item)).collect()
}

async fn insert(
    conn: &mut PgConnection,
    items: &[Arc<NewNotification>],
    patience: Duration,
    now: Timestamp,
) -> Result<HashSet<Uuid>, StoreError> {
    let deliveries: Vec<(Uuid, &NewDelivery)> =
        items.iter().flat_map(|item| item.deliveries.iter().map(|delivery| (item.id.as_uuid(), delivery))).collect();
    let taken = sqlx::query_scalar!(
        r#"WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true) AS is_set),
         x AS MATERIALIZED (
            SELECT x.* FROM patience CROSS JOIN unnest($3::int[], $4::uuid[], $5::smallint[], $6::text[], $7::bytea[], $8::smallint[],
                $9::smallint[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::text[], $15::timestamptz[],
                $16::timestamptz[], $17::bytea[], $18::smallint[], $31::bytea[], $32::int[]) WITH ORDINALITY
                AS x (tenant_id, id, mode, idempotency_key, fingerprint, fingerprint_version, schema_version, category, class,
                      tags, metadata, trace_context, send_at, expires_at, body, delivery_count, ref_digest, flags, place)
            WHERE patience.is_set IS NOT NULL),
         k AS (
            INSERT INTO idempotency (tenant_id, mode, idempotency_key, notification_id, fingerprint, fingerprint_version)
            SELECT tenant_id, mode, idempotency_key, id, fingerprint, fingerprint_version FROM x ORDER BY place
            ON CONFLICT DO NOTHING RETURNING notification_id),
         n AS (
            INSERT INTO notifications (tenant_id, id, mode, idempotency_key, fingerprint, fingerprint_version, schema_version,
                category, class, tags, metadata, trace_context, send_at, expires_at, delivery_count, ref_digest)
            SELECT tenant_id, id, mode, idempotency_key, fingerprint, fingerprint_version, schema_version, category, class,
                tags::text[], metadata, trace_context, send_at, expires_at, delivery_count, ref_digest
            FROM x JOIN k ON k.notification_id = x.id),
         c AS (INSERT INTO contents (id, body) SELECT x.id, x.body FROM x JOIN k ON k.notification_id = x.id),
         y AS MATERIALIZED (
            SELECT y.*, x.tenant_id, x.mode, x.category, x.class, x.expires_at, x.schema_version, x.flags, x.delivery_count
            FROM unnest($19::uuid[], $20::uuid[], $21::text[], $22::int[], $23::text[], $24::timestamptz[], $25::bytea[],
                $26::bytea[], $27::bytea[], $28::text[], $29::text[], $30::smallint[])
                AS y (notification_id, id, channel, lane, state, available_at, address_digest, address, ref, sender, message_id,
                      attempt_limit)
            JOIN k ON k.notification_id = y.notification_id JOIN x ON x.id = y.notification_id),
         d AS (
            INSERT INTO deliveries (id, tenant_id, mode, channel, class, lane, version, generation, address_digest, address, ref,
                message_id, expires_at, updated_at)
            SELECT id, tenant_id, mode, channel, class, lane, 1, 1, address_digest, address, ref, message_id, expires_at, $2 FROM y),
         q AS (
            INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at,
                address_digest, sender, schema_version, flags, siblings)
            SELECT id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at, address_digest, sender,
                schema_version, flags, delivery_count FROM y)
         SELECT notification_id AS "id!" FROM k"#,
        format!("{}ms", patience.as_millis().max(1)),
        At(now),
        &column(items, |item| item.tenant.0)[..],
        &column(items, |item| item.id.as_uuid())[..],
        &column(items, |item| item.mode.as_i16())[..],
        column(items, |item| item.idempotency_key.as_str()) as _,
        column(items, |item| item.fingerprint.as_slice()) as _,
        &column(items, |item| item.fingerprint_version)[..],
        &column(items, |item| item.schema_version)[..],
        column(items, |item| item.category.as_str()) as _,
        column(items, |item| item.class.as_str()) as _,
        &column(items, |item| text_array(&item.tags))[..],
        column(items, |item| item.metadata.as_deref()) as _,
        column(items, |item| item.trace_context.as_deref()) as _,
        column(items, |item| at(item.send_at)) as _,
        column(items, |item| At(item.expires_at)) as _,
        column(items, |item| item.body.as_slice()) as _,
        &column(items, |item| i16::try_from(item.deliveries.len()).unwrap_or(i16::MAX))[..],
        &deliveries.iter().map(|(notification, _)| *notification).collect::<Vec<_>>()[..],
        &deliveries.iter().map(|(_, d)| d.id.as_uuid()).collect::<Vec<_>>()[..],
        deliveries.iter().map(|(_, d)| d.channel.as_str()).collect::<Vec<_>>() as _,
        &deliveries.iter().map(|(_, d)| d.lane.0).collect::<Vec<_>>()[..],
        deliveries.iter().map(|(_, d)| d.state.as_str()).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| At(d.available_at)).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| d.address_digest.as_slice()).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| d.address.as_slice()).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| d.reference.as_deref()).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| d.sender.as_deref()).collect::<Vec<_>>() as _,
        deliveries.iter().map(|(_, d)| d.message_id.as_deref()).collect::<Vec<_>>() as _,
        &deliveries.iter().map(|(_, d)| small(d.attempt_limit)).collect::<Vec<_>>()[..],
        column(items, |item| item.ref_digest.as_deref()) as _,
        &column(items, |item| item.first_flags().0)[..],
    )
    .fetch_all(conn)
    .await
    .map_err(committing)?;
    Ok(taken.into_iter().collect())
}

/// Who holds the keys of these items.
pub(crate) async fn holders(
    conn: &mut PgConnection,
    items: &[&Arc<NewNotification>],
) -> Result<HashMap<(TenantId, Mode, String), KeyHolder>, StoreError> {
    let rows = sqlx::query!(
        "SELECT i.tenant_id, i.mode, i.idempotency_key, i.notification_id, i.fingerprint, i.fingerprint_version
         FROM unnest($1::int[], $2::smallint[], $3::text[]) AS x (tenant_id, mode, idempotency_key)
         JOIN idempotency i ON i.tenant_id = x.tenant_id AND i.mode = x.mode AND i.idempotency_key = x.idempotency_key",
        &items.iter().map(|item| item.tenant.0).collect::<Vec<_>>()[..],
        &items.iter().map(|item| item.mode.as_i16()).collect::<Vec<_>>()[..],
        items.iter().map(|item| item.idempotency_key.as_str()).collect::<Vec<_>>() as _,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let holder =
        |row: (Uuid, Vec<u8>, i16)| KeyHolder { id: NotificationId::from_uuid(row.0), fingerprint: row.1, fingerprint_version: row.2 };
    Ok(rows
        .into_iter()
        .map(|row| {
            let key = (TenantId(row.tenant_id), Mode::from_i16(row.mode), row.idempotency_key);
            (key, holder((row.notification_id, row.fingerprint, row.fingerprint_version)))
        })
        .collect())
}
