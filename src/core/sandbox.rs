//! What the sandbox keeps of a message. Sending to it is an adapter in `providers`; showing it is the gateway's.

use serde::{Deserialize, Serialize};

use crate::ids::{Handle, NotificationId, TenantId};
use crate::time::Timestamp;
use crate::words::{Channel, Mode};

/// How many messages are kept for each tenant and mode; older ones go.
pub const KEPT_PER_TENANT: i64 = 1_000;

/// One message that the sandbox took.
#[derive(Debug, Clone)]
pub struct SandboxMessage {
    /// UUIDv7 of the arrival; shown as `msg_` and 32 hex digits. A repeat of the same handle has a new one.
    pub id: uuid::Uuid,
    /// Whose it is.
    pub tenant: TenantId,
    /// The mode of the notification.
    pub mode: Mode,
    /// When the sandbox took it.
    pub received_at: Timestamp,
    /// The medium.
    pub channel: Channel,
    /// The intent behind it.
    pub notification: NotificationId,
    /// Which send of which delivery.
    pub handle: Handle,
    /// The application's own key.
    pub idempotency_key: String,
    /// Canonical addresses in the envelope, for the `to` filter.
    pub envelope_to: Vec<String>,
    /// `SandboxEmail` as JSON; sealed by the store's caller.
    pub body: Vec<u8>,
}

/// The readable part of an email in the sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub struct SandboxEmail {
    /// The envelope sender.
    pub envelope_from: String,
    /// Everybody in the envelope, bcc included.
    pub envelope_to: Vec<String>,
    /// The finished message as a real relay would have got it (base64 in JSON), the source of all other views.
    pub raw: String,
}
