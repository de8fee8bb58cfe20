//! Who may call: keys and tenants as people change them. Every change is written with its audit entry, in one transaction.

use async_trait::async_trait;
use uuid::Uuid;

use super::{ApiKey, Deed, StoreError, Tenant};
use crate::ids::TenantId;
use crate::time::Timestamp;

/// Which keys somebody manages.
#[derive(Debug, Clone)]
pub struct KeyFilter {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// Of these kinds.
    pub kinds: Vec<String>,
    /// Only those older than this one.
    pub before: Option<Uuid>,
    /// How many at most.
    pub limit: i64,
}

/// Keys and tenants as people change them.
#[async_trait]
pub trait Access: Send + Sync {
    /// The key with this hash, and whose it is.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn principal(&self, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError>;

    /// Keys, newest first, revoked and expired ones too.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn page(&self, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError>;

    /// One key.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn key(&self, id: Uuid) -> Result<Option<ApiKey>, StoreError>;

    /// Adds a key, and where it follows an earlier one (its id, and until when that one is still in force), shortens that.
    /// The same hash again is nothing.
    ///
    /// # Errors
    /// When it cannot be written; then nothing is.
    async fn issue(&self, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError>;

    /// Revokes a key at the entry's instant; `false` where it was revoked before, or is not there.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn revoke(&self, id: Uuid, entry: &Deed) -> Result<bool, StoreError>;

    /// Makes a tenant; `None` where there is one of this name.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn make_tenant(&self, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError>;

    /// Lets a tenant send or keeps it from it; `false` where it is so already, or there is none of this name.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn set_active(&self, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError>;
}
