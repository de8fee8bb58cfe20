//! Settings, tenants, keys, accounts, lanes, processes: small tables with numbers that outlive the configuration.
//! Numbers are looked up before they are made, so that starting again uses none up.

use sqlx::PgConnection;
use tidings_core::ids::{AccountId, InstanceId, LaneId, TenantId};
use tidings_core::store::{ApiKey, StoreError, Tenant};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::{At, at};
use crate::rows::word;

/// A value of `settings`.
pub(crate) async fn setting(store: &PostgresStore, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query_scalar!("SELECT value FROM settings WHERE key = $1", key).fetch_optional(&mut *conn).await.map_err(before)
}

/// Sets a value that nobody has set yet, and returns the one that holds.
pub(crate) async fn settle_setting(store: &PostgresStore, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query!("INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", key, value)
        .execute(&mut *conn)
        .await
        .map_err(committing)?;
    sqlx::query_scalar!("SELECT value FROM settings WHERE key = $1", key).fetch_one(&mut *conn).await.map_err(before)
}

/// The tenant of this name, made where there is none.
pub(crate) async fn ensure_tenant(store: &PostgresStore, name: &str) -> Result<Tenant, StoreError> {
    let mut conn = store.connection().await?;
    if let Some(tenant) = tenant_named(&mut conn, name).await? {
        return Ok(tenant);
    }
    sqlx::query!("INSERT INTO tenants (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", name)
        .execute(&mut *conn)
        .await
        .map_err(committing)?;
    tenant_named(&mut conn, name).await?.ok_or_else(|| StoreError::Unreadable("a tenant is gone that was just made".to_owned()))
}

async fn tenant_named(conn: &mut PgConnection, name: &str) -> Result<Option<Tenant>, StoreError> {
    let row = sqlx::query!("SELECT id, name, state FROM tenants WHERE name = $1", name).fetch_optional(conn).await.map_err(before)?;
    Ok(row.map(|row| Tenant { id: TenantId(row.id), name: row.name, active: row.state == "active" }))
}

/// Every tenant.
pub(crate) async fn tenants(store: &PostgresStore) -> Result<Vec<Tenant>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!("SELECT id, name, state FROM tenants ORDER BY id").fetch_all(&mut *conn).await.map_err(before)?;
    Ok(rows.into_iter().map(|row| Tenant { id: TenantId(row.id), name: row.name, active: row.state == "active" }).collect())
}

/// A row of `api_keys`.
pub(crate) struct KeyRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i32,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) kind: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) expires_at: Option<At>,
    pub(crate) revoked_at: Option<At>,
}

impl KeyRow {
    pub(crate) fn key(self) -> ApiKey {
        ApiKey {
            id: self.id,
            tenant: TenantId(self.tenant_id),
            name: self.name,
            key_hash: self.key_hash,
            kind: self.kind,
            scopes: self.scopes,
            expires_at: self.expires_at.map(|at| at.0),
            revoked_at: self.revoked_at.map(|at| at.0),
        }
    }
}

/// Adds a key; the same hash again is nothing.
pub(crate) async fn add_key(store: &PostgresStore, key: &ApiKey) -> Result<(), StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query!(
        "INSERT INTO api_keys (id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (key_hash) DO NOTHING",
        key.id,
        key.tenant.0,
        key.name,
        key.key_hash,
        key.kind,
        &key.scopes[..],
        at(key.expires_at) as _,
        at(key.revoked_at) as _,
    )
    .execute(&mut *conn)
    .await
    .map_err(committing)?;
    Ok(())
}

/// Every key, revoked and expired ones too.
pub(crate) async fn keys(store: &PostgresStore) -> Result<Vec<ApiKey>, StoreError> {
    let mut conn = store.connection().await?;
    let rows =
        sqlx::query_as!(KeyRow, "SELECT id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys ORDER BY id")
            .fetch_all(&mut *conn)
            .await
            .map_err(before)?;
    Ok(rows.into_iter().map(KeyRow::key).collect())
}

/// The key with this hash.
pub(crate) async fn key_by_hash(store: &PostgresStore, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query_as!(
        KeyRow,
        "SELECT id, tenant_id, name, key_hash, kind, scopes, expires_at, revoked_at FROM api_keys WHERE key_hash = $1",
        key_hash,
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    Ok(row.map(KeyRow::key))
}

/// The numbers of accounts, by name and kind.
pub(crate) async fn ensure_accounts(store: &PostgresStore, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
    let mut conn = store.connection().await?;
    let names: Vec<String> = accounts.iter().map(|(name, _)| name.clone()).collect();
    let kinds: Vec<String> = accounts.iter().map(|(_, kind)| kind.clone()).collect();
    sqlx::query!(
        "INSERT INTO accounts AS a (name, kind)
         SELECT DISTINCT ON (x.name) x.name, x.kind FROM unnest($1::text[], $2::text[]) AS x (name, kind)
         WHERE NOT EXISTS (SELECT FROM accounts b WHERE b.name = x.name AND b.kind = x.kind) ORDER BY x.name
         ON CONFLICT (name) DO UPDATE SET kind = excluded.kind",
        &names[..],
        &kinds[..],
    )
    .execute(&mut *conn)
    .await
    .map_err(committing)?;
    let ids = sqlx::query_scalar!(
        "SELECT a.id FROM unnest($1::text[]) WITH ORDINALITY AS x (name, place) JOIN accounts a ON a.name = x.name ORDER BY x.place",
        &names[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(ids.into_iter().map(AccountId).collect())
}

/// The names of all accounts that ever were.
pub(crate) async fn account_names(store: &PostgresStore) -> Result<Vec<(AccountId, String)>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!("SELECT id, name FROM accounts ORDER BY id").fetch_all(&mut *conn).await.map_err(before)?;
    Ok(rows.into_iter().map(|row| (AccountId(row.id), row.name)).collect())
}

/// The numbers of lanes.
pub(crate) async fn ensure_lanes(store: &PostgresStore, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
    let mut conn = store.connection().await?;
    let channels: Vec<String> = lanes.iter().map(|lane| lane.0.to_string()).collect();
    let classes: Vec<String> = lanes.iter().map(|lane| lane.1.to_string()).collect();
    let routes: Vec<String> = lanes.iter().map(|lane| lane.2.clone()).collect();
    sqlx::query!(
        "INSERT INTO lanes (channel, class, route)
         SELECT DISTINCT x.channel, x.class, x.route FROM unnest($1::text[], $2::text[], $3::text[]) AS x (channel, class, route)
         WHERE NOT EXISTS (SELECT FROM lanes l WHERE l.channel = x.channel AND l.class = x.class AND l.route = x.route)
         ORDER BY x.channel, x.class, x.route
         ON CONFLICT (channel, class, route) DO NOTHING",
        &channels[..],
        &classes[..],
        &routes[..],
    )
    .execute(&mut *conn)
    .await
    .map_err(committing)?;
    let ids = sqlx::query_scalar!(
        "SELECT l.id FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS x (channel, class, route, place)
         JOIN lanes l ON l.channel = x.channel AND l.class = x.class AND l.route = x.route ORDER BY x.place",
        &channels[..],
        &classes[..],
        &routes[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(ids.into_iter().map(LaneId).collect())
}

/// Every lane that ever was.
pub(crate) async fn lanes(store: &PostgresStore) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!("SELECT id, channel, class, route FROM lanes ORDER BY id").fetch_all(&mut *conn).await.map_err(before)?;
    rows.into_iter().map(|row| Ok((LaneId(row.id), word(&row.channel)?, word(&row.class)?, row.route))).collect()
}

/// A new process.
pub(crate) async fn register_instance(store: &PostgresStore, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
    let mut conn = store.connection().await?;
    let id = sqlx::query_scalar!(
        "INSERT INTO instances (started_at, seen_at, config_digest) VALUES ($1, $1, $2) RETURNING id",
        At(now),
        config_digest,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(committing)?;
    Ok(InstanceId(id))
}
