//! The port to providers: what an adapter is given, what it answers, what it says about itself.
//! Which account takes a message, and what an outcome leads to, is decided elsewhere in core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::address::Mailbox;
use crate::content::Content;
use crate::ids::{Handle, NotificationId, TenantId};
use crate::outcome::Report;
use crate::time::Timestamp;
use crate::words::{Channel, Class, Mode};

/// One message on its way to one provider.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Which logical send of which delivery; travels with the message (S-121).
    pub handle: Handle,
    /// Whose message it is.
    pub tenant: TenantId,
    /// The mode of the notification.
    pub mode: Mode,
    /// The intent behind it.
    pub notification: NotificationId,
    /// The application's own key for it.
    pub idempotency_key: String,
    /// Decides patience and priority.
    pub class: Class,
    /// The person written to.
    pub to: Mailbox,
    /// What is said.
    pub content: Arc<Content>,
    /// Email: the `Message-ID` without angle brackets, fixed on the delivery and kept by every retry.
    pub message_id: String,
    /// Email: the `Date` header: when this attempt started.
    pub date: Timestamp,
    /// Email: envelope addresses of copies that an earlier call already delivered, suppressed ones included.
    /// They are left out of this one.
    pub left_out: Vec<String>,
    /// The message is worthless from here on.
    pub expires_at: Timestamp,
    /// How long the one answer that decides is worth waiting for : after it the outcome is `Ambiguous`.
    pub patience: Duration,
    /// No byte may be written from here on (the lease's end less 10 s): later, answer `NotStarted`.
    pub start_before: Timestamp,
    /// Raised by the adapter in the moment from which on the provider may have taken the message.
    pub crossing: Crossing,
}

/// Whether a call has passed the point from which on the provider may have taken the message (SMTP: the first byte of
/// the final dot; HTTP: the body was polled). A call that is cut off before it is handed back, after it is ambiguous (S-102).
#[derive(Debug, Clone, Default)]
pub struct Crossing(Arc<AtomicBool>);

impl Crossing {
    /// Passes the point. Called before the byte that decides may leave.
    pub fn pass(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the point was passed.
    pub fn is_passed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// One vendor's send side for one account.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// What this vendor can do.
    fn abilities(&self) -> Abilities;

    /// Whether this vendor's limits allow the content; called at intake.
    ///
    /// # Errors
    /// The faults, each with a pointer relative to the content.
    fn check(&self, content: &Content) -> Result<(), Vec<ContentFault>>;

    /// Sends one message. Always returns: every phase has its own deadline, and nothing is retried inside
    /// but connections that were found dead before the message began (S-057).
    async fn send(&self, outgoing: &Outgoing) -> Report;

    /// Closes idle connections. Calls in flight go on.
    async fn close(&self) {}
}

/// A vendor's limit that content breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentFault {
    /// JSON pointer below the content, such as `/attachments/0`.
    pub pointer: String,
    /// What is wrong, without the content.
    pub detail: String,
    /// The limit in bytes, and what was found.
    pub limit: Option<(u64, u64)>,
}

/// What a vendor can do. Retrying an uncertain call is unlocked by these alone (S-045).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// The channel it serves.
    pub channel: Channel,
    /// Whether the vendor drops a repeated call by key, and for how long.
    pub idempotency: Idempotency,
    /// Whether a message can be looked up.
    pub lookup: Lookup,
    /// How long the vendor may need before a message shows up in look-ups (S-124).
    pub visibility_lag: Duration,
    /// Whether receipts come back.
    pub receipts: bool,
}

/// A vendor's own protection against doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// None.
    None,
    /// A key is honoured for `window` after the first call.
    Key {
        /// How long.
        window: Duration,
    },
}

/// What a vendor's look-up takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// There is none.
    None,
    /// The vendor's message id.
    ById,
    /// Our handle.
    ByHandle,
}

/// Where the sandbox keeps what was sent to it, so that people and tests can read it.
#[async_trait]
pub trait SandboxMailbox: Send + Sync {
    /// Keeps one message.
    ///
    /// # Errors
    /// When the store did not take it.
    async fn keep(&self, message: crate::sandbox::SandboxMessage) -> Result<(), crate::store::StoreError>;
}
