//! What is known by name or number: settings, tenants, keys, accounts, lanes, processes.
//! Names are made where there are none; two callers that make the same one agree.

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_scalar};
use tidings_core::ids::{AccountId, InstanceId, LaneId, TenantId};
use tidings_core::store::{ApiKey, StoreError, Tenant};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class};
use uuid::Uuid;

use crate::error::{commit_error, store_error};
use crate::rows::{json, number, word};
use crate::writer::Writer;

pub(crate) async fn see_instance(
    connection: &mut SqliteConnection,
    instance: InstanceId,
    config_digest: &[u8],
    now: Timestamp,
) -> Result<(), StoreError> {
    let now = now.as_micros();
    query!(
        "INSERT INTO instances (id, started_at, seen_at, config_digest) VALUES (?1, ?2, ?2, ?3)
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, config_digest = excluded.config_digest",
        instance.0,
        now,
        config_digest
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(commit_error)
}

pub(crate) async fn setting(readers: &SqlitePool, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
    query_scalar!("SELECT value FROM settings WHERE key = ?1", key).fetch_optional(readers).await.map_err(store_error)
}

pub(crate) async fn settle_setting(connection: &mut SqliteConnection, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
    query!("INSERT INTO settings (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO NOTHING", key, value)
        .execute(&mut *connection)
        .await
        .map_err(commit_error)?;
    query_scalar!("SELECT value FROM settings WHERE key = ?1", key).fetch_one(connection).await.map_err(store_error)
}

pub(crate) async fn ensure_tenant(connection: &mut SqliteConnection, name: &str) -> Result<Tenant, StoreError> {
    query!("INSERT INTO tenants (public_id, name) VALUES (randomblob(16), ?1) ON CONFLICT (name) DO NOTHING", name)
        .execute(&mut *connection)
        .await
        .map_err(commit_error)?;
    let row = query!("SELECT id, name, state FROM tenants WHERE name = ?1", name).fetch_one(connection).await.map_err(store_error)?;
    Ok(Tenant { id: TenantId(number(row.id)?), name: row.name, active: row.state == "active" })
}

pub(crate) async fn tenants(readers: &SqlitePool) -> Result<Vec<Tenant>, StoreError> {
    let rows = query!("SELECT id, name, state FROM tenants ORDER BY id").fetch_all(readers).await.map_err(store_error)?;
    rows.into_iter().map(|row| Ok(Tenant { id: TenantId(number(row.id)?), name: row.name, active: row.state == "active" })).collect()
}

pub(crate) async fn add_key(connection: &mut SqliteConnection, key: &ApiKey) -> Result<(), StoreError> {
    let scopes = json(&key.scopes);
    let expires_at = key.expires_at.map(Timestamp::as_micros);
    let revoked_at = key.revoked_at.map(Timestamp::as_micros);
    query!(
        "INSERT INTO api_keys (id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (key_hash) DO NOTHING",
        key.id,
        key.tenant.0,
        key.name,
        key.key_hash,
        key.kind,
        scopes,
        expires_at,
        revoked_at
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(commit_error)
}

pub(crate) struct KeyRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i64,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) kind: String,
    pub(crate) scopes: String,
    pub(crate) expires_at: Option<i64>,
    pub(crate) revoked_at: Option<i64>,
}

impl KeyRow {
    pub(crate) fn into_key(self) -> Result<ApiKey, StoreError> {
        Ok(ApiKey {
            id: self.id,
            tenant: TenantId(number(self.tenant_id)?),
            name: self.name,
            key_hash: self.key_hash,
            kind: self.kind,
            scopes: serde_json::from_str(&self.scopes).map_err(|err| StoreError::Unreadable(format!("scopes: {err}")))?,
            expires_at: self.expires_at.map(Timestamp::from_micros),
            revoked_at: self.revoked_at.map(Timestamp::from_micros),
        })
    }
}

pub(crate) async fn keys(readers: &SqlitePool) -> Result<Vec<ApiKey>, StoreError> {
    let rows = sqlx::query_as!(
        KeyRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys ORDER BY id"#
    );
    rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(KeyRow::into_key).collect()
}

pub(crate) async fn key_by_hash(readers: &SqlitePool, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
    let row = sqlx::query_as!(
        KeyRow,
        r#"SELECT id AS "id!: Uuid", tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys WHERE key_hash = ?1"#,
        key_hash
    );
    row.fetch_optional(readers).await.map_err(store_error)?.map(KeyRow::into_key).transpose()
}

pub(crate) async fn ensure_accounts(writer: &mut Writer, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
    writer.begin().await?;
    let ensured = ensure_each_account(writer.connection(), accounts).await;
    writer.end(ensured).await
}

async fn ensure_each_account(connection: &mut SqliteConnection, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
    let mut ids = Vec::with_capacity(accounts.len());
    for (name, kind) in accounts {
        query!("INSERT INTO accounts (name, kind) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING", name, kind)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
        let id = query_scalar!("SELECT id FROM accounts WHERE name = ?1", name).fetch_one(&mut *connection).await.map_err(store_error)?;
        ids.push(AccountId(number(id)?));
    }
    Ok(ids)
}

pub(crate) async fn account_names(readers: &SqlitePool) -> Result<Vec<(AccountId, String)>, StoreError> {
    let rows = query!("SELECT id, name FROM accounts ORDER BY id").fetch_all(readers).await.map_err(store_error)?;
    rows.into_iter().map(|row| Ok((AccountId(number(row.id)?), row.name))).collect()
}

pub(crate) async fn ensure_lanes(writer: &mut Writer, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
    writer.begin().await?;
    let ensured = ensure_each_lane(writer.connection(), lanes).await;
    writer.end(ensured).await
}

async fn ensure_each_lane(connection: &mut SqliteConnection, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
    let mut ids = Vec::with_capacity(lanes.len());
    for (channel, class, route) in lanes {
        let (channel, class) = (channel.as_str(), class.as_str());
        query!(
            "INSERT INTO lanes (channel, class, route) VALUES (?1, ?2, ?3) ON CONFLICT (channel, class, route) DO NOTHING",
            channel,
            class,
            route
        )
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
        let id = query_scalar!("SELECT id FROM lanes WHERE channel = ?1 AND class = ?2 AND route = ?3", channel, class, route);
        ids.push(LaneId(number(id.fetch_one(&mut *connection).await.map_err(store_error)?)?));
    }
    Ok(ids)
}

pub(crate) async fn lanes(readers: &SqlitePool) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
    let rows = query!("SELECT id, channel, class, route FROM lanes ORDER BY id").fetch_all(readers).await.map_err(store_error)?;
    rows.into_iter().map(|row| Ok((LaneId(number(row.id)?), word(&row.channel)?, word(&row.class)?, row.route))).collect()
}

pub(crate) async fn register_instance(
    connection: &mut SqliteConnection,
    now: Timestamp,
    config_digest: &[u8],
) -> Result<InstanceId, StoreError> {
    let now = now.as_micros();
    let id = query_scalar!(
        r#"INSERT INTO instances (started_at, seen_at, config_digest) VALUES (?1, ?1, ?2) RETURNING id AS "id!""#,
        now,
        config_digest
    );
    Ok(InstanceId(number(id.fetch_one(connection).await.map_err(commit_error)?)?))
}
