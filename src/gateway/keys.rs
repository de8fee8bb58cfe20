//! Makes API keys and the first one; checks of presented keys are `api::auth`'s.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tidings_core::ids::TenantId;
use tidings_core::request::SCOPES;
use tidings_core::secrets::Secret;
use tidings_core::store::{ApiKey, Deed, Store};
use tidings_core::time::Timestamp;

use crate::api::auth;
use crate::api::keys::KeyId;
use crate::config::Settings;

/// The tenant that is always there.
pub const DEFAULT_TENANT: &str = "default";

/// What became of the first key.
pub enum Bootstrap {
    /// Made at this start and written there.
    Made(PathBuf),
    /// Made earlier and still there.
    Kept(PathBuf),
    /// Made earlier, but its file is gone.
    FileGone,
    /// The configuration names it, or keys are made by hand.
    Configured,
}

/// Sees to it that somebody can call: the configured key, or on loopback one that is made for an empty store.
///
/// # Errors
/// When the key cannot be stored or written.
pub async fn bootstrap(settings: &Settings, store: &dyn Store, now: Timestamp) -> anyhow::Result<Bootstrap> {
    let tenant = store.ensure_tenant(DEFAULT_TENANT).await.context("the default tenant could not be made")?;
    if let Some(key) = &settings.bootstrap.api_key {
        if !auth::is_well_formed(key.reveal()) {
            bail!("bootstrap.api_key is not an API key: make one with \"tidings keys create\"");
        }
        if store.key_by_hash(&hash(key.reveal())).await?.is_none() {
            let row = row("bootstrap", tenant.id, key.reveal(), &SCOPES.map(str::to_owned), now);
            store.access().issue(&row, None, &entry(&row, now)).await?;
        }
        return Ok(Bootstrap::Configured);
    }
    let path = settings.server.data_dir.join("api-key");
    if !settings.server.binds_loopback() {
        return Ok(Bootstrap::Configured);
    }
    if !store.keys().await?.is_empty() {
        return Ok(if path.exists() { Bootstrap::Kept(path) } else { Bootstrap::FileGone });
    }
    let key = auth::new_key("live", rand::random());
    let row = row("first", tenant.id, &key, &SCOPES.map(str::to_owned), now);
    store.access().issue(&row, None, &entry(&row, now)).await?;
    write_private(&path, &key).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(Bootstrap::Made(path))
}

/// A new key: its row, and the key itself, which nobody can tell afterwards.
pub fn new(tenant: TenantId, name: &str, kind: &str, scopes: &[String], expires_at: Option<Timestamp>, now: Timestamp) -> (ApiKey, String) {
    let key = auth::new_key(kind, rand::random());
    (ApiKey { expires_at, ..row(name, tenant, &key, scopes, now) }, key)
}

/// The 32 bytes behind a configured master secret.
///
/// # Errors
/// When it is not base64 of exactly 32 bytes.
pub fn decode_master(master: &Secret) -> anyhow::Result<[u8; 32]> {
    let bytes = STANDARD.decode(master.reveal().trim()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.context("secrets.master must be 32 bytes in base64, as \"openssl rand -base64 32\" prints them")
}

/// What the store keeps of a key.
pub fn hash(key: &str) -> Vec<u8> {
    Sha256::digest(key.as_bytes()).to_vec()
}

fn row(name: &str, tenant: TenantId, key: &str, scopes: &[String], now: Timestamp) -> ApiKey {
    let kind = auth::kind_of(key).unwrap_or("live").to_owned();
    let id = uuid::Builder::from_unix_timestamp_millis(now.as_millis(), &rand::random()).into_uuid();
    ApiKey { id, tenant, name: name.to_owned(), key_hash: hash(key), kind, scopes: scopes.to_vec(), expires_at: None, revoked_at: None }
}

fn entry(row: &ApiKey, at: Timestamp) -> Deed {
    let subject = KeyId(row.id).to_string();
    Deed { at, tenant: Some(row.tenant), actor: "start".to_owned(), action: "key.created", subject, reason: None }
}

fn write_private(path: &std::path::Path, key: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{key}")
}
