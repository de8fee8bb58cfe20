//! What the sandbox promises: it shows what was sent, to whom it belongs, and does not grow for ever.

use tidings_core::ids::{Handle, TenantId};
use tidings_core::sandbox::{KEPT_PER_TENANT, SandboxMessage};
use tidings_core::store::{SandboxFilter, WriteBatch};
use tidings_core::words::{Channel, Mode};

use super::World;
use super::world::{at, unique_id};

fn message(tenant: TenantId, mode: Mode, key: &str, to: &[&str]) -> SandboxMessage {
    let notification = unique_id(at(0));
    SandboxMessage {
        id: unique_id(at(0)).as_uuid(),
        tenant,
        mode,
        received_at: at(1),
        channel: Channel::Email,
        notification,
        handle: Handle { delivery: notification.delivery(1), generation: 1 },
        idempotency_key: key.to_owned(),
        envelope_to: to.iter().map(|to| (*to).to_owned()).collect(),
        body: vec![0, 1, 255, 0],
    }
}

async fn add(world: &World, messages: Vec<SandboxMessage>) {
    let batch = WriteBatch { sandbox: messages, ..WriteBatch::default() };
    let results = world.store.commit(&world.rules, batch, at(1)).await.sandbox;
    results.into_iter().for_each(|added| added.unwrap());
}

async fn keys(world: &World, mode: Option<Mode>, filter: SandboxFilter) -> Vec<String> {
    let filter = SandboxFilter { limit: if filter.limit == 0 { 100 } else { filter.limit }, ..filter };
    let messages = world.store.sandbox_messages(world.tenant, mode, &filter).await.unwrap();
    messages.into_iter().map(|message| message.idempotency_key).collect()
}

/// A message comes back as it was taken.
pub async fn a_message_of_the_sandbox_is_read_back(world: &World) {
    let sent = message(world.tenant, Mode::Test, "order-1", &["a@example.org", "grün@example.org"]);
    add(world, vec![sent.clone()]).await;

    let read = world.store.sandbox_message(world.tenant, Some(Mode::Test), sent.id).await.unwrap().unwrap();

    assert_eq!((read.id, read.tenant, read.mode, read.received_at), (sent.id, sent.tenant, sent.mode, sent.received_at));
    assert_eq!((read.channel, read.notification, read.handle), (sent.channel, sent.notification, sent.handle));
    assert_eq!((read.idempotency_key, read.envelope_to, read.body), (sent.idempotency_key, sent.envelope_to, sent.body));
}

/// Newest first, narrowed by whatever the reader asks for.
pub async fn messages_of_the_sandbox_are_filtered(world: &World) {
    let messages: Vec<_> = [("one", "a@example.org"), ("two", "b@example.org"), ("three", "a@example.org")]
        .map(|(key, to)| message(world.tenant, Mode::Test, key, &["copy@example.org", to]))
        .to_vec();
    let (second, notification) = (messages[1].id, messages[0].notification);
    add(world, messages).await;
    add(world, vec![message(world.tenant, Mode::Live, "live", &["a@example.org"])]).await;

    let all = SandboxFilter::default;
    assert_eq!(keys(world, None, all()).await, ["live", "three", "two", "one"]);
    assert_eq!(keys(world, Some(Mode::Test), all()).await, ["three", "two", "one"]);
    let test = Some(Mode::Test);
    assert_eq!(keys(world, test, SandboxFilter { to: Some("a@example.org".to_owned()), ..all() }).await, ["three", "one"]);
    assert_eq!(keys(world, test, SandboxFilter { to: Some("example.org".to_owned()), ..all() }).await, [""; 0]);
    assert_eq!(keys(world, test, SandboxFilter { idempotency_key: Some("two".to_owned()), ..all() }).await, ["two"]);
    assert_eq!(keys(world, test, SandboxFilter { notification: Some(notification), ..all() }).await, ["one"]);
    assert_eq!(keys(world, test, SandboxFilter { channel: Some(Channel::Sms), ..all() }).await, [""; 0]);
    assert_eq!(keys(world, test, SandboxFilter { before: Some(second), ..all() }).await, ["one"]);
    assert_eq!(keys(world, test, SandboxFilter { limit: 2, ..all() }).await, ["three", "two"]);
}

/// Other tenants and modes are not there.
pub async fn a_sandbox_belongs_to_its_tenant_and_mode(world: &World) {
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    let (own, foreign) = (message(world.tenant, Mode::Test, "own", &[]), message(other, Mode::Test, "foreign", &[]));
    add(world, vec![own.clone(), foreign.clone()]).await;

    assert_eq!(keys(world, None, SandboxFilter::default()).await, ["own"]);
    assert!(world.store.sandbox_message(world.tenant, None, foreign.id).await.unwrap().is_none());
    assert!(world.store.sandbox_message(world.tenant, Some(Mode::Live), own.id).await.unwrap().is_none());

    assert_eq!(world.store.clear_sandbox(world.tenant, Some(Mode::Live)).await.unwrap(), 0);
    assert_eq!(world.store.clear_sandbox(world.tenant, None).await.unwrap(), 1);
    assert!(world.store.sandbox_message(other, None, foreign.id).await.unwrap().is_some());
}

/// The newest thousand of each tenant and mode stay.
pub async fn the_sandbox_keeps_the_newest_of_each_tenant_and_mode(world: &World) {
    add(world, vec![message(world.tenant, Mode::Live, "live", &[])]).await;
    for hundred in 0..11 {
        add(world, (0..100).map(|n| message(world.tenant, Mode::Test, &format!("{}", hundred * 100 + n), &[])).collect()).await;
    }

    let kept = keys(world, Some(Mode::Test), SandboxFilter { limit: 5_000, ..SandboxFilter::default() }).await;

    assert_eq!(kept.len() as i64, KEPT_PER_TENANT);
    assert_eq!((kept.first().unwrap().as_str(), kept.last().unwrap().as_str()), ("1099", "100"));
    assert_eq!(keys(world, Some(Mode::Live), SandboxFilter::default()).await, ["live"]);
}

/// The same message twice, as after a commit that nobody heard of, is one.
pub async fn the_same_message_again_is_nothing(world: &World) {
    let sent = message(world.tenant, Mode::Test, "order-1", &[]);
    add(world, vec![sent.clone()]).await;
    add(world, vec![sent, message(world.tenant, Mode::Test, "order-2", &[])]).await;

    assert_eq!(keys(world, None, SandboxFilter::default()).await, ["order-2", "order-1"]);
}
