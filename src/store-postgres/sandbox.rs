//! What the sandbox took: written in batches, kept to a bound for each tenant and mode, shown newest first.

use std::collections::HashSet;

use sqlx::{Connection, PgConnection};
use tidings_core::ids::{DeliveryId, Handle, NotificationId, TenantId};
use tidings_core::sandbox::{KEPT_PER_TENANT, SandboxMessage};
use tidings_core::store::{SandboxFilter, StoreError};
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::At;
use crate::rows::{small, text_array, word};

/// Adds messages and lets the oldest go.
pub(crate) async fn add(store: &PostgresStore, messages: &[SandboxMessage]) -> Result<Vec<()>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    insert(&mut tx, messages).await?;
    let owners: HashSet<(i32, i16)> = messages.iter().map(|message| (message.tenant.0, message.mode.as_i16())).collect();
    for (tenant, mode) in owners {
        trim(&mut tx, tenant, mode).await?;
    }
    tx.commit().await.map_err(committing)?;
    Ok(vec![(); messages.len()])
}

async fn insert(conn: &mut PgConnection, messages: &[SandboxMessage]) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO sandbox_messages (id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation,
            idempotency_key, envelope_to, body)
         SELECT id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation, idempotency_key,
            envelope_to::text[], body
         FROM unnest($1::uuid[], $2::int[], $3::smallint[], $4::timestamptz[], $5::text[], $6::uuid[], $7::uuid[], $8::smallint[],
                     $9::text[], $10::text[], $11::bytea[])
            AS x (id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation, idempotency_key, envelope_to,
                  body)
         ON CONFLICT (id) DO NOTHING",
        &messages.iter().map(|m| m.id).collect::<Vec<_>>()[..],
        &messages.iter().map(|m| m.tenant.0).collect::<Vec<_>>()[..],
        &messages.iter().map(|m| m.mode.as_i16()).collect::<Vec<_>>()[..],
        messages.iter().map(|m| At(m.received_at)).collect::<Vec<_>>() as _,
        messages.iter().map(|m| m.channel.as_str()).collect::<Vec<_>>() as _,
        &messages.iter().map(|m| m.notification.as_uuid()).collect::<Vec<_>>()[..],
        &messages.iter().map(|m| m.handle.delivery.as_uuid()).collect::<Vec<_>>()[..],
        &messages.iter().map(|m| small(m.handle.generation)).collect::<Vec<_>>()[..],
        messages.iter().map(|m| m.idempotency_key.as_str()).collect::<Vec<_>>() as _,
        &messages.iter().map(|m| text_array(&m.envelope_to)).collect::<Vec<_>>()[..],
        messages.iter().map(|m| m.body.as_slice()).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}

async fn trim(conn: &mut PgConnection, tenant: i32, mode: i16) -> Result<(), StoreError> {
    sqlx::query!(
        "DELETE FROM sandbox_messages WHERE id IN (
            SELECT id FROM sandbox_messages WHERE tenant_id = $1 AND mode = $2 ORDER BY id DESC OFFSET $3 FOR UPDATE SKIP LOCKED)",
        tenant,
        mode,
        KEPT_PER_TENANT,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}

/// A row of `sandbox_messages`.
struct MessageRow {
    id: Uuid,
    tenant_id: i32,
    mode: i16,
    received_at: At,
    channel: String,
    notification_id: Uuid,
    delivery_id: Uuid,
    generation: i16,
    idempotency_key: String,
    envelope_to: Vec<String>,
    body: Vec<u8>,
}

impl MessageRow {
    fn message(self) -> Result<SandboxMessage, StoreError> {
        let generation = u16::try_from(self.generation).map_err(|_| StoreError::Unreadable("a generation is negative".to_owned()))?;
        Ok(SandboxMessage {
            id: self.id,
            tenant: TenantId(self.tenant_id),
            mode: Mode::from_i16(self.mode),
            received_at: self.received_at.0,
            channel: word(&self.channel)?,
            notification: NotificationId::from_uuid(self.notification_id),
            handle: Handle { delivery: DeliveryId::from_uuid(self.delivery_id), generation },
            idempotency_key: self.idempotency_key,
            envelope_to: self.envelope_to,
            body: self.body,
        })
    }
}

/// A page, newest first.
pub(crate) async fn page(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Option<Mode>,
    filter: &SandboxFilter,
) -> Result<Vec<SandboxMessage>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query_as!(
        MessageRow,
        "SELECT id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation, idempotency_key, envelope_to, body
         FROM sandbox_messages
         WHERE tenant_id = $1 AND ($2::smallint IS NULL OR mode = $2) AND ($3::text IS NULL OR $3 = ANY(envelope_to))
            AND ($4::text IS NULL OR channel = $4) AND ($5::uuid IS NULL OR notification_id = $5)
            AND ($6::text IS NULL OR idempotency_key = $6) AND ($7::uuid IS NULL OR id < $7)
         ORDER BY id DESC LIMIT $8",
        tenant.0,
        mode.map(Mode::as_i16),
        filter.to.as_deref(),
        filter.channel.map(|channel| channel.as_str()),
        filter.notification.map(|id| id.as_uuid()),
        filter.idempotency_key.as_deref(),
        filter.before,
        filter.limit,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    rows.into_iter().map(MessageRow::message).collect()
}

/// One message.
pub(crate) async fn message(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Option<Mode>,
    id: Uuid,
) -> Result<Option<SandboxMessage>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query_as!(
        MessageRow,
        "SELECT id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation, idempotency_key, envelope_to, body
         FROM sandbox_messages WHERE id = $1 AND tenant_id = $2 AND ($3::smallint IS NULL OR mode = $3)",
        id,
        tenant.0,
        mode.map(Mode::as_i16),
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    row.map(MessageRow::message).transpose()
}

/// Empties the sandbox of a tenant and mode.
pub(crate) async fn clear(store: &PostgresStore, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError> {
    let mut conn = store.connection().await?;
    let done = sqlx::query!(
        "DELETE FROM sandbox_messages WHERE tenant_id = $1 AND ($2::smallint IS NULL OR mode = $2)",
        tenant.0,
        mode.map(Mode::as_i16),
    )
    .execute(&mut *conn)
    .await
    .map_err(committing)?;
    Ok(done.rows_affected())
}
