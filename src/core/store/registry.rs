//! Tenants, keys, accounts, lanes, processes and settings: what is asked for rarely and changed by hand or at start.

use async_trait::async_trait;
use uuid::Uuid;

use super::StoreError;
use crate::ids::{AccountId, InstanceId, LaneId, TenantId};
use crate::time::Timestamp;
use crate::words::{Channel, Class};

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its number.
    pub id: TenantId,
    /// Its name, unique.
    pub name: String,
    /// Whether it may send.
    pub active: bool,
}

/// An API key as stored; the key itself is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the whole key.
    pub key_hash: Vec<u8>,
    /// `live`, `test` or `team`.
    pub kind: String,
    /// In the order given.
    pub scopes: Vec<String>,
    /// Not valid from here on.
    pub expires_at: Option<Timestamp>,
    /// Not valid since.
    pub revoked_at: Option<Timestamp>,
}

/// Tenants, keys, accounts, lanes, processes and settings.
#[async_trait]
pub trait Registry: Send + Sync {
    /// A value of `settings`.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets a value that nobody has set yet, and returns the one that holds: any number of processes agree at once.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError>;

    /// The tenant of this name, made where there is none.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError>;

    /// Every tenant.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;

    /// Adds a key; the same hash again is nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError>;

    /// Every key, revoked and expired ones too.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// The key with this hash.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError>;

    /// The numbers of accounts by name, made where there is none, in the order given.
    ///
    /// # Errors
    /// When they cannot be written.
    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError>;

    /// The names of all accounts that ever were.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError>;

    /// The numbers of lanes by channel, class and route, made where there is none, in the order given.
    ///
    /// # Errors
    /// When they cannot be written.
    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError>;

    /// Every lane that ever was.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError>;

    /// A new process.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError>;
}
