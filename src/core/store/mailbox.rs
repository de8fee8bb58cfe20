//! What the sandbox took.

use async_trait::async_trait;
use uuid::Uuid;

use super::StoreError;
use crate::ids::{NotificationId, TenantId};
use crate::sandbox::SandboxMessage;
use crate::words::{Channel, Mode};

/// A page of the sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// A canonical address in the envelope.
    pub to: Option<String>,
    /// One channel.
    pub channel: Option<Channel>,
    /// One intent.
    pub notification: Option<NotificationId>,
    /// The intent with this key.
    pub idempotency_key: Option<String>,
    /// Only messages older than this one.
    pub before: Option<Uuid>,
    /// How many at most.
    pub limit: i64,
}

/// The messages of the sandbox; they are kept by `Outbox::commit`.
#[async_trait]
pub trait Mailbox: Send + Sync {
    /// What the sandbox took, newest first.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn sandbox_messages(
        &self,
        tenant: TenantId,
        mode: Option<Mode>,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxMessage>, StoreError>;

    /// One message of the sandbox.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn sandbox_message(&self, tenant: TenantId, mode: Option<Mode>, id: Uuid) -> Result<Option<SandboxMessage>, StoreError>;

    /// Empties the sandbox of a tenant and mode.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn clear_sandbox(&self, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError>;
}
