//! What the sandbox took: added in batches, the newest thousand of each tenant and mode kept, read by filters.
//! What a message holds is sealed by the caller.

use std::collections::HashSet;

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tidings_core::ids::{NotificationId, TenantId};
use tidings_core::sandbox::{KEPT_PER_TENANT, SandboxMessage};
use tidings_core::store::{SandboxFilter, StoreError};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::commit::{Parts, end_part};
use crate::error::{commit_error, store_error};
use crate::rows::{Hex, json, mode as read_mode, number, word};
use crate::writer::Writer;

pub(crate) async fn add(writer: &mut Writer, messages: &[SandboxMessage]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    let mut results: Vec<Result<(), StoreError>> = messages.iter().map(|_| Ok(())).collect();
    let mut parts = Parts::of(messages.len());
    while let Some(part) = parts.next() {
        writer.savepoint().await?;
        let written = write(writer.connection(), &messages[part.clone()]).await;
        match end_part(writer, written).await? {
            Ok(()) => {}
            Err(_) if parts.halve(&part) => {}
            Err(err) => results[part.start] = Err(err),
        }
    }
    Ok(results)
}

async fn write(connection: &mut SqliteConnection, messages: &[SandboxMessage]) -> Result<(), StoreError> {
    let mut blobs = Vec::new();
    let mut rows = Vec::with_capacity(messages.len());
    for message in messages {
        if message.idempotency_key.contains('\0') {
            return Err(StoreError::Refused("a text holds a NUL".into()));
        }
        rows.push((
            (Hex::uuid(message.id), message.tenant.0, message.mode.as_i16(), message.received_at),
            (message.channel.as_str(), Hex::uuid(message.notification.as_uuid()), message.handle.to_string()),
            (&message.idempotency_key, &message.envelope_to),
            (blobs.len() + 1, message.body.len()),
        ));
        blobs.extend_from_slice(&message.body);
    }
    let rows = json(&rows);
    // The same message again is a batch that was committed without our learning of it.
    query!(
        "INSERT INTO sandbox_messages (id, tenant_id, mode, received_at, channel, notification_id, handle, idempotency_key, envelope_to, body)
         SELECT unhex(value->>'$[0][0]'), value->>'$[0][1]', value->>'$[0][2]', value->>'$[0][3]', value->>'$[1][0]',
            unhex(value->>'$[1][1]'), value->>'$[1][2]', value->>'$[2][0]', value->'$[2][1]', substr(?2, value->>'$[3][0]', value->>'$[3][1]')
         FROM json_each(?1) WHERE true
         ON CONFLICT (id) DO NOTHING",
        rows,
        blobs
    )
    .execute(&mut *connection)
    .await
    .map_err(store_error)?;
    let owners: HashSet<_> = messages.iter().map(|message| (message.tenant.0, message.mode.as_i16())).collect();
    for (tenant, mode) in owners {
        query!(
            "DELETE FROM sandbox_messages WHERE tenant_id = ?1 AND mode = ?2 AND id <=
                (SELECT id FROM sandbox_messages WHERE tenant_id = ?1 AND mode = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3)",
            tenant,
            mode,
            KEPT_PER_TENANT
        )
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    }
    Ok(())
}

struct MessageRow {
    id: Uuid,
    tenant_id: i64,
    mode: i64,
    received_at: i64,
    channel: String,
    notification_id: Uuid,
    handle: String,
    idempotency_key: String,
    envelope_to: String,
    body: Vec<u8>,
}

impl MessageRow {
    fn into_message(self) -> Result<SandboxMessage, StoreError> {
        let unreadable = |what: &str, err: &dyn std::fmt::Display| StoreError::Unreadable(format!("{what} of a sandbox message: {err}"));
        Ok(SandboxMessage {
            id: self.id,
            tenant: TenantId(number(self.tenant_id)?),
            mode: read_mode(self.mode)?,
            received_at: Timestamp::from_micros(self.received_at),
            channel: word(&self.channel)?,
            notification: NotificationId::from_uuid(self.notification_id),
            handle: self.handle.parse().map_err(|err| unreadable("handle", &err))?,
            idempotency_key: self.idempotency_key,
            envelope_to: serde_json::from_str(&self.envelope_to).map_err(|err| unreadable("envelope", &err))?,
            body: self.body,
        })
    }
}

pub(crate) async fn messages(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Option<Mode>,
    filter: &SandboxFilter,
) -> Result<Vec<SandboxMessage>, StoreError> {
    let mode = mode.map(Mode::as_i16);
    let channel = filter.channel.map(|channel| channel.as_str());
    let notification = filter.notification.map(NotificationId::as_uuid);
    let rows = sqlx::query_as!(
        MessageRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, mode, received_at, channel, notification_id AS "notification_id!: Uuid", handle,
            idempotency_key, envelope_to, body
           FROM sandbox_messages
           WHERE tenant_id = ?1 AND (?2 IS NULL OR mode = ?2) AND (?3 IS NULL OR channel = ?3) AND (?4 IS NULL OR notification_id = ?4)
            AND (?5 IS NULL OR idempotency_key = ?5) AND (?6 IS NULL OR id < ?6)
            AND (?7 IS NULL OR EXISTS (SELECT 1 FROM json_each(envelope_to) WHERE value = ?7))
           ORDER BY id DESC LIMIT ?8"#,
        tenant.0,
        mode,
        channel,
        notification,
        filter.idempotency_key,
        filter.before,
        filter.to,
        filter.limit
    );
    rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(MessageRow::into_message).collect()
}

pub(crate) async fn message(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Option<Mode>,
    id: Uuid,
) -> Result<Option<SandboxMessage>, StoreError> {
    let mode = mode.map(Mode::as_i16);
    let row = sqlx::query_as!(
        MessageRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, mode, received_at, channel, notification_id AS "notification_id!: Uuid", handle,
            idempotency_key, envelope_to, body
           FROM sandbox_messages WHERE id = ?1 AND tenant_id = ?2 AND (?3 IS NULL OR mode = ?3)"#,
        id,
        tenant.0,
        mode
    );
    row.fetch_optional(readers).await.map_err(store_error)?.map(MessageRow::into_message).transpose()
}

pub(crate) async fn clear(connection: &mut SqliteConnection, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError> {
    let mode = mode.map(Mode::as_i16);
    let done = query!("DELETE FROM sandbox_messages WHERE tenant_id = ?1 AND (?2 IS NULL OR mode = ?2)", tenant.0, mode);
    Ok(done.execute(connection).await.map_err(commit_error)?.rows_affected())
}
