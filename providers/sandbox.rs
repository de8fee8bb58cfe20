//! The sandbox: takes messages like a provider and keeps them where people and tests can read them.
//! Which messages come here, and how they are shown, is the gateway's business.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidings_core::adapter::{Abilities, Adapter, ContentFault, Idempotency, Lookup, Outgoing, SandboxMailbox};
use tidings_core::content::Content;
use tidings_core::outcome::{NotSent, Outcome, Refusal, Report};
use tidings_core::sandbox::{SandboxEmail, SandboxMessage};
use tidings_core::suppression::{REHEARSAL_DOMAIN, REHEARSED};
use tidings_core::time::Clock;
use tidings_core::words::{Channel, Reason};

use crate::envelope;
use crate::mime;

/// How long `slow@` takes: longer than a call that counts as slow.
const SLOW: Duration = Duration::from_secs(9);
/// How long `throttle@` asks to wait, once per delivery.
const THROTTLE: Duration = Duration::from_secs(2);

/// See the module.
pub struct Sandbox {
    mailbox: Arc<dyn SandboxMailbox>,
    clock: Arc<dyn Clock>,
}

/// The outcomes that an address can rehearse without receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rehearsal {
    Deliver,
    Slow,
    Reject,
    Timeout,
    Throttle,
    Suppressed,
}

impl Rehearsal {
    fn of(outgoing: &Outgoing) -> Self {
        let to = &outgoing.to.email;
        if to.domain() != REHEARSAL_DOMAIN {
            return Self::Deliver;
        }
        let local = to.local_part();
        match local.split('+').next().unwrap_or(local) {
            "slow" => Self::Slow,
            "reject" => Self::Reject,
            "timeout" => Self::Timeout,
            "throttle" => Self::Throttle,
            REHEARSED => Self::Suppressed,
            _ => Self::Deliver,
        }
    }
}

impl Sandbox {
    /// A sandbox that keeps its messages in `mailbox`.
    pub fn new(mailbox: Arc<dyn SandboxMailbox>, clock: Arc<dyn Clock>) -> Self {
        Self { mailbox, clock }
    }

    async fn keep(&self, outgoing: &Outgoing) -> Report {
        let Ok(raw) = mime::message(outgoing) else {
            return Report::new(Outcome::BuildFailed).with_detail("the message could not be built");
        };
        let Content::Email(content) = &*outgoing.content;
        let recipients = envelope::recipients(outgoing);
        let email = SandboxEmail {
            envelope_from: content.from.email.as_str().to_owned(),
            envelope_to: recipients.iter().map(|address| address.as_str().to_owned()).collect(),
            raw: STANDARD.encode(&raw),
        };
        let Ok(body) = serde_json::to_vec(&email) else {
            return Report::new(Outcome::BuildFailed).with_detail("the message could not be kept as text");
        };
        let received_at = self.clock.now();
        let message = SandboxMessage {
            id: message_id(outgoing, received_at),
            tenant: outgoing.tenant,
            mode: outgoing.mode,
            received_at,
            channel: Channel::Email,
            notification: outgoing.notification,
            handle: outgoing.handle,
            idempotency_key: outgoing.idempotency_key.clone(),
            envelope_to: recipients.iter().map(|address| address.canonical()).collect(),
            body,
        };
        let id = message.id;
        outgoing.crossing.pass();
        tidings_core::crash::fail_point("send.after_dot");
        match self.mailbox.keep(message).await {
            Ok(()) => {
                tidings_core::crash::fail_point("send.after_reply");
                Report::new(Outcome::Accepted { message_id: Some(format!("msg_{}", id.simple())), refused_copies: Vec::new() })
            }
            Err(error) if error.is_repeatable() => {
                Report::new(Outcome::NotSent { why: NotSent::Unreachable, retry_after: None }).with_detail("the sandbox's store was away")
            }
            Err(_) => Report::new(Outcome::Ambiguous).with_detail("the sandbox's store broke off"),
        }
    }
}

/// The arrival's UUIDv7, made unique by the handle so that the sandbox needs no randomness of its own.
fn message_id(outgoing: &Outgoing, received_at: tidings_core::time::Timestamp) -> uuid::Uuid {
    let mut unique = [0; 10];
    unique.copy_from_slice(&outgoing.handle.delivery.as_uuid().as_bytes()[6..]);
    unique[0] ^= outgoing.handle.generation.to_be_bytes()[1];
    uuid::Builder::from_unix_timestamp_millis(received_at.as_millis(), &unique).into_uuid()
}

#[async_trait]
impl Adapter for Sandbox {
    fn abilities(&self) -> Abilities {
        Abilities {
            channel: Channel::Email,
            idempotency: Idempotency::None,
            lookup: Lookup::None,
            visibility_lag: Duration::ZERO,
            receipts: false,
        }
    }

    fn check(&self, _content: &Content) -> Result<(), Vec<ContentFault>> {
        Ok(())
    }

    async fn send(&self, outgoing: &Outgoing) -> Report {
        if self.clock.now() >= outgoing.start_before {
            return Report::new(Outcome::NotStarted);
        }
        tidings_core::crash::fail_point("send.before_first_byte");
        match Rehearsal::of(outgoing) {
            Rehearsal::Deliver => self.keep(outgoing).await,
            Rehearsal::Slow => {
                tokio::time::sleep(self.clock.real(SLOW)).await;
                self.keep(outgoing).await
            }
            Rehearsal::Reject => {
                // Not hard: a rehearsal works twice, so nothing may come of it.
                let refused = Outcome::Refused { by: Refusal::Recipient { listed: false, hard: false }, reason: Reason::RecipientRefused };
                Report::new(refused).with_code("550 5.1.1").with_detail("the sandbox rehearses a refused recipient")
            }
            Rehearsal::Suppressed => {
                let refused = Outcome::Refused { by: Refusal::Recipient { listed: true, hard: false }, reason: Reason::ProviderSuppressed };
                Report::new(refused).with_detail("the sandbox rehearses an address on the provider's own list")
            }
            Rehearsal::Timeout => {
                outgoing.crossing.pass();
                Report::new(Outcome::Ambiguous).with_detail("the sandbox rehearses a provider that does not answer")
            }
            // The first call is throttled, the next one goes through.
            Rehearsal::Throttle if self.clock.now() < outgoing.notification.created_at().plus(THROTTLE) => {
                Report::new(Outcome::Throttled { retry_after: Some(THROTTLE) }).with_detail("the sandbox rehearses a throttling provider")
            }
            Rehearsal::Throttle => self.keep(outgoing).await,
        }
    }
}
