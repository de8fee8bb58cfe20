//! Keys and tenants as people change them, each change with its audit entry in one transaction.

use sqlx::Connection;
use tidings_core::ids::TenantId;
use tidings_core::store::{ApiKey, Deed, KeyFilter, StoreError, Tenant};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::PostgresStore;
use crate::audit_log;
use crate::error::{before, committing};
use crate::instant::{At, at};
use crate::registry::KeyRow;

pub(crate) async fn principal(store: &PostgresStore, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query!(
        r#"SELECT k.id, k.tenant_id, k.name, k.key_hash, k.kind, k.scopes, k.expires_at AS "expires_at: At", k.revoked_at AS "revoked_at: At",
            t.name AS tenant_name, t.state AS tenant_state
           FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE k.key_hash = $1"#,
        key_hash,
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    let Some(row) = row else { return Ok(None) };
    let tenant = Tenant { id: TenantId(row.tenant_id), name: row.tenant_name, active: row.tenant_state == "active" };
    let key = KeyRow {
        id: row.id,
        tenant_id: row.tenant_id,
        name: row.name,
        key_hash: row.key_hash,
        kind: row.kind,
        scopes: row.scopes,
        expires_at: row.expires_at,
        revoked_at: row.revoked_at,
    };
    Ok(Some((key.key(), tenant)))
}

pub(crate) async fn page(store: &PostgresStore, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query_as!(
        KeyRow,
        "SELECT id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys
         WHERE ($1::int IS NULL OR tenant_id = $1) AND kind = ANY($2) AND ($3::uuid IS NULL OR id < $3)
         ORDER BY id DESC LIMIT $4",
        filter.tenant.map(|tenant| tenant.0),
        &filter.kinds[..],
        filter.before,
        filter.limit,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().map(KeyRow::key).collect())
}

pub(crate) async fn key(store: &PostgresStore, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query_as!(
        KeyRow,
        "SELECT id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys WHERE id = $1",
        id,
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    Ok(row.map(KeyRow::key))
}

pub(crate) async fn issue(store: &PostgresStore, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let done = sqlx::query!(
        "INSERT INTO api_keys (id, tenant_id, name, key_hash, kind, scopes, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (key_hash) DO NOTHING",
        key.id,
        key.tenant.0,
        key.name,
        key.key_hash,
        key.kind,
        &key.scopes[..],
        at(key.expires_at) as _,
    )
    .execute(&mut *tx)
    .await
    .map_err(before)?;
    if done.rows_affected() == 0 {
        return Ok(());
    }
    if let Some((earlier, until)) = after {
        sqlx::query!("UPDATE api_keys SET expires_at = least(expires_at, $2) WHERE id = $1", earlier, At(until) as _)
            .execute(&mut *tx)
            .await
            .map_err(before)?;
    }
    audit_log::record(&mut tx, &[entry.row()], entry.at).await?;
    tx.commit().await.map_err(committing)
}

pub(crate) async fn revoke(store: &PostgresStore, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let at = At(entry.at);
    let done = sqlx::query!("UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND (revoked_at IS NULL OR revoked_at > $2)", id, at as _)
        .execute(&mut *tx)
        .await
        .map_err(before)?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    audit_log::record(&mut tx, &[entry.row()], entry.at).await?;
    tx.commit().await.map_err(committing)?;
    Ok(true)
}

pub(crate) async fn make_tenant(store: &PostgresStore, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let made = sqlx::query_scalar!("INSERT INTO tenants (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING id", name)
        .fetch_optional(&mut *tx)
        .await
        .map_err(before)?;
    let Some(id) = made.map(TenantId) else { return Ok(None) };
    audit_log::record(&mut tx, &[Deed { tenant: Some(id), ..entry.clone() }.row()], entry.at).await?;
    tx.commit().await.map_err(committing)?;
    Ok(Some(Tenant { id, name: name.to_owned(), active: true }))
}

pub(crate) async fn set_active(store: &PostgresStore, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let state = if active { "active" } else { "disabled" };
    let set = sqlx::query_scalar!("UPDATE tenants SET state = $2 WHERE name = $1 AND state <> $2 RETURNING id", name, state)
        .fetch_optional(&mut *tx)
        .await
        .map_err(before)?;
    let Some(id) = set.map(TenantId) else { return Ok(false) };
    audit_log::record(&mut tx, &[Deed { tenant: Some(id), ..entry.clone() }.row()], entry.at).await?;
    tx.commit().await.map_err(committing)?;
    Ok(true)
}
