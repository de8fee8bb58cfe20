//! Keys and tenants as people change them, each change with its audit entry in one transaction.

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_as};
use tidings_core::ids::TenantId;
use tidings_core::store::{ApiKey, Deed, KeyFilter, StoreError, Tenant};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::audit_log;
use crate::error::store_error;
use crate::registry::KeyRow;
use crate::rows::{json, number};
use crate::writer::Writer;

pub(crate) async fn principal(readers: &SqlitePool, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
    let row = query!(
        r#"SELECT k.id AS "id!: Uuid", k.tenant_id, k.name, k.key_hash, k.kind, k.scopes, k.expires_at, k.revoked_at, t.name AS tenant_name,
            t.state AS tenant_state
           FROM api_keys k CROSS JOIN tenants t ON t.id = k.tenant_id WHERE k.key_hash = ?1"#,
        key_hash
    );
    let Some(row) = row.fetch_optional(readers).await.map_err(store_error)? else { return Ok(None) };
    let tenant = Tenant { id: TenantId(number(row.tenant_id)?), name: row.tenant_name, active: row.tenant_state == "active" };
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
    Ok(Some((key.into_key()?, tenant)))
}

pub(crate) async fn page(readers: &SqlitePool, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
    let (tenant, kinds) = (filter.tenant.map(|tenant| tenant.0), json(&filter.kinds));
    let rows = query_as!(
        KeyRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys
           WHERE (?1 IS NULL OR tenant_id = ?1) AND kind IN (SELECT value FROM json_each(?2))
            AND id < coalesce(?3, x'ffffffffffffffffffffffffffffffff')
           ORDER BY id DESC LIMIT ?4"#,
        tenant,
        kinds,
        filter.before,
        filter.limit
    );
    rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(KeyRow::into_key).collect()
}

pub(crate) async fn key(readers: &SqlitePool, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
    let row = query_as!(
        KeyRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys WHERE id = ?1"#,
        id
    );
    row.fetch_optional(readers).await.map_err(store_error)?.map(KeyRow::into_key).transpose()
}

pub(crate) async fn issue(writer: &mut Writer, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
    writer.begin().await?;
    let issued = issue_one(writer.connection(), key, after, entry).await;
    writer.end(issued).await
}

async fn issue_one(
    connection: &mut SqliteConnection,
    key: &ApiKey,
    after: Option<(Uuid, Timestamp)>,
    entry: &Deed,
) -> Result<(), StoreError> {
    let (scopes, expires_at) = (json(&key.scopes), key.expires_at.map(Timestamp::as_micros));
    let done = query!(
        "INSERT INTO api_keys (id, tenant_id, name, key_hash, kind, scopes, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (key_hash) DO NOTHING",
        key.id,
        key.tenant.0,
        key.name,
        key.key_hash,
        key.kind,
        scopes,
        expires_at
    );
    if done.execute(&mut *connection).await.map_err(store_error)?.rows_affected() == 0 {
        return Ok(());
    }
    if let Some((earlier, until)) = after {
        let until = until.as_micros();
        query!("UPDATE api_keys SET expires_at = min(coalesce(expires_at, ?2), ?2) WHERE id = ?1", earlier, until)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
    }
    audit_log::record(connection, &[entry.row()], entry.at).await
}

pub(crate) async fn revoke(writer: &mut Writer, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    writer.begin().await?;
    let revoked = revoke_one(writer.connection(), id, entry).await;
    writer.end(revoked).await
}

async fn revoke_one(connection: &mut SqliteConnection, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    let at = entry.at.as_micros();
    let done = query!("UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND (revoked_at IS NULL OR revoked_at > ?2)", id, at)
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    audit_log::record(connection, &[entry.row()], entry.at).await.map(|()| true)
}

pub(crate) async fn make_tenant(writer: &mut Writer, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
    writer.begin().await?;
    let made = make_one(writer.connection(), name, entry).await;
    writer.end(made).await
}

async fn make_one(connection: &mut SqliteConnection, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
    let made = query!(
        r#"INSERT INTO tenants (public_id, name) VALUES (randomblob(16), ?1) ON CONFLICT (name) DO NOTHING RETURNING id AS "id!""#,
        name
    );
    let Some(row) = made.fetch_optional(&mut *connection).await.map_err(store_error)? else { return Ok(None) };
    let tenant = Tenant { id: TenantId(number(row.id)?), name: name.to_owned(), active: true };
    let entry = Deed { tenant: Some(tenant.id), ..entry.clone() };
    audit_log::record(connection, &[entry.row()], entry.at).await.map(|()| Some(tenant))
}

pub(crate) async fn set_active(writer: &mut Writer, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
    writer.begin().await?;
    let set = set_one(writer.connection(), name, active, entry).await;
    writer.end(set).await
}

async fn set_one(connection: &mut SqliteConnection, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
    let state = if active { "active" } else { "disabled" };
    let set = query!(r#"UPDATE tenants SET state = ?2 WHERE name = ?1 AND state <> ?2 RETURNING id AS "id!""#, name, state);
    let Some(row) = set.fetch_optional(&mut *connection).await.map_err(store_error)? else { return Ok(false) };
    let entry = Deed { tenant: Some(TenantId(number(row.id)?)), ..entry.clone() };
    audit_log::record(connection, &[entry.row()], entry.at).await.map(|()| true)
}
