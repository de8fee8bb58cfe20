//! What the stories send, and the adapter that sends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tidings_core::adapter::{Adapter, Crossing, Outgoing};
use tidings_core::address::Mailbox;
use tidings_core::content::{Content, EmailContent};
use tidings_core::ids::{DeliveryId, Handle, TenantId};
use tidings_core::outcome::{Outcome, Report};
use tidings_core::time::{Clock, Timestamp};
use tidings_core::words::{Class, Mode};
use tidings_providers::{Context, build};
use tidings_tests::smtp_peer::ScriptedSmtp;

/// The time of the process, moved on where a story says so.
#[derive(Default)]
pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Timestamp::from_micros(now.as_micros() as i64 + self.0.load(Ordering::SeqCst))
    }
}

pub(crate) fn mailbox(raw: &str) -> Mailbox {
    raw.parse().unwrap()
}

/// A small email that may be sent for the next hour.
pub(crate) fn outgoing(edit: impl FnOnce(&mut Outgoing, &mut EmailContent)) -> Outgoing {
    let delivery = DeliveryId::from_uuid(uuid::Uuid::parse_str("019cae2c1f5e7c3a9b0d4e5f60718293").unwrap());
    let mut email = EmailContent {
        from: mailbox("Shop <shop@example.com>"),
        subject: "Your receipt".to_owned(),
        text: Some("Thank you.\n".to_owned()),
        html: None,
        reply_to: vec![],
        cc: vec![],
        bcc: vec![],
        also_to: vec![],
        headers: vec![],
        attachments: vec![],
    };
    let now = TestClock::default().now();
    let mut outgoing = Outgoing {
        handle: Handle { delivery, generation: 1 },
        tenant: TenantId(1),
        mode: Mode::Live,
        notification: delivery.notification(),
        idempotency_key: "order-10432".to_owned(),
        class: Class::Transactional,
        to: mailbox("Ann <ann@example.com>"),
        content: Arc::new(Content::Email(email.clone())),
        message_id: format!("{delivery}@example.com"),
        date: Timestamp::from_millis(1_767_225_600_000),
        left_out: vec![],
        expires_at: now.plus(Duration::from_secs(3_600)),
        patience: Duration::from_secs(300),
        start_before: now.plus(Duration::from_secs(3_600)),
        crossing: Crossing::default(),
    };
    edit(&mut outgoing, &mut email);
    outgoing.content = Arc::new(Content::Email(email));
    outgoing
}

pub(crate) fn plain_outgoing() -> Outgoing {
    outgoing(|_, _| {})
}

/// The adapter of an account with these settings on top of the server's host and port, in clear text where none says otherwise.
pub(crate) fn adapter(peer: &ScriptedSmtp, settings: Value) -> Arc<dyn Adapter> {
    adapter_at(peer, settings, Arc::new(TestClock::default()), 4)
}

pub(crate) fn adapter_at(peer: &ScriptedSmtp, settings: Value, clock: Arc<TestClock>, concurrency: usize) -> Arc<dyn Adapter> {
    let mut all = json!({"host": "127.0.0.1", "port": peer.addr().port(), "tls": "none"});
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    build("smtp", all, &Context { clock, concurrency, default_helo: None, dkim: Default::default(), sandbox: None }).unwrap()
}

/// Settings that trust the server's authority.
pub(crate) fn trusting(peer: &ScriptedSmtp, tls: &str) -> (Value, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), peer.ca_pem()).unwrap();
    (json!({"tls": tls, "ca_file": file.path()}), file)
}

pub(crate) fn accepted_id(report: &Report) -> Option<&str> {
    match &report.outcome {
        Outcome::Accepted { message_id, .. } => message_id.as_deref(),
        other => panic!("not accepted: {other:?} {:?}", report.detail),
    }
}

pub(crate) fn is_accepted(report: &Report) -> bool {
    matches!(report.outcome, Outcome::Accepted { .. })
}
