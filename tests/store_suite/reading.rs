//! What reading promises: what was written comes back as it was, to whom it belongs.

use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::words::{Class, Mode};

use super::World;
use super::world::{accepted, answered, at, unique_id};

/// Every byte and every text comes back.
pub async fn a_notification_is_read_back_as_it_was_accepted(world: &World) {
    let mut item = world.email("order-1");
    item.send_at = Some(at(10));
    world.taken(item.clone()).await;

    let read = world.read(item.deliveries[0].id).await;

    assert_eq!((read.tenant, read.id, read.mode), (item.tenant, item.id, item.mode));
    assert_eq!((&read.idempotency_key, &read.category, read.class), (&item.idempotency_key, &item.category, item.class));
    assert_eq!((read.tags, read.metadata), (item.tags, item.metadata));
    assert_eq!((read.send_at, read.expires_at), (item.send_at, item.expires_at));
    let (stored, sent) = (&read.deliveries[0], &item.deliveries[0]);
    assert_eq!((stored.delivery.lane, stored.delivery.channel, stored.delivery.class), (sent.lane, sent.channel, item.class));
    assert_eq!((stored.delivery.state, stored.delivery.available_at), (sent.state, Some(sent.available_at)));
    assert_eq!((stored.delivery.expires_at, stored.delivery.attempt_limit), (item.expires_at, sent.attempt_limit));
    assert_eq!(stored.address.as_ref(), Some(&sent.address));
    assert_eq!((&stored.reference, &stored.message_id), (&sent.reference, &sent.message_id));
    assert_eq!(stored.attempts, []);
}

/// The attempts of a delivery in order; one that runs is in the delivery's own columns.
pub async fn attempts_are_read_in_order(world: &World) {
    let first = world.dispatched("order-1", at(1)).await;
    world.moved(&first, answered(None), at(2)).await;
    let second = world.claim(10, at(10_000)).await.remove(0);
    world.moved(&second, Outcome::Ambiguous, at(10_001)).await;

    let attempts = world.stored(first.id).await.attempts;
    assert_eq!(attempts.iter().map(|attempt| (attempt.number, attempt.started_at)).collect::<Vec<_>>(), [(1, at(1)), (2, at(10_000))]);
    assert!(attempts.iter().all(|attempt| attempt.account == Some(world.account)));

    let running = world.dispatched("order-2", at(10_001)).await;
    let stored = world.stored(running.id).await;
    assert_eq!((stored.attempts.len(), stored.delivery.attempt_started_at), (0, Some(at(10_001))));
}

/// A record goes on to say what the queue row knew: numbers, flags, account, reason.
pub async fn an_ended_delivery_keeps_its_numbers(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    let moved = world.moved(&claimed, accepted(), at(2)).await;

    let stored = world.stored(claimed.id).await;
    assert_eq!(stored.updated_at, at(2));
    let stored = stored.delivery;
    assert_eq!((stored.version, stored.generation, stored.attempt_number), (moved.version, 1, 1));
    assert_eq!((stored.attempt_count, stored.account, stored.flags), (1, Some(world.account), moved.flags));
    assert_eq!((stored.lease_owner, stored.available_at, stored.check_at), (None, None, None));
}

/// S-003: ids of others are not there, whatever they are.
pub async fn others_see_nothing(world: &World) {
    let item = world.email("order-1");
    world.taken(item.clone()).await;
    let other = world.store.ensure_tenant("other").await.unwrap().id;

    assert!(world.store.notification(other, Mode::Live, item.id).await.unwrap().is_none());
    assert!(world.store.notification(world.tenant, Mode::Test, item.id).await.unwrap().is_none());
    assert!(world.store.notification(world.tenant, Mode::Live, unique_id(at(0))).await.unwrap().is_none());
    assert_eq!(world.store.by_key(other, Mode::Live, "order-1").await.unwrap(), None);
    assert_eq!(world.store.by_key(world.tenant, Mode::Test, "order-1").await.unwrap(), None);
    assert_eq!(world.store.by_key(world.tenant, Mode::Live, "ORDER-1").await.unwrap(), None, "keys are compared byte by byte");
}

/// Adapters get the sealed content and address; what is unknown is left out.
pub async fn adapters_get_what_they_need(world: &World) {
    let (one, two) = (world.email("order-1"), world.email("order-2"));
    world.accept(vec![one.clone(), two.clone()]).await;

    let ids = [two.deliveries[0].id, unique_id(at(0)).delivery(1), one.deliveries[0].id];
    let mut outgoing = world.store.outgoing(&ids).await.unwrap();

    outgoing.sort_by_key(|outgoing| outgoing.id);
    assert_eq!(outgoing.len(), 2);
    for (outgoing, item) in outgoing.iter().zip([one, two]) {
        assert_eq!(outgoing.id, item.deliveries[0].id);
        assert_eq!((&outgoing.idempotency_key, outgoing.schema_version), (&item.idempotency_key, 1));
        assert_eq!((outgoing.body.as_ref(), &outgoing.address), (Some(&item.body), &item.deliveries[0].address));
        assert_eq!((&outgoing.message_id, &outgoing.copies), (&item.deliveries[0].message_id, &None));
    }
}

/// For each lane the earliest of all its tenants.
pub async fn the_next_due_row_of_each_lane_is_known(world: &World) {
    assert_eq!(world.store.next_due().await.unwrap(), []);
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    for (tenant, class, key, due) in [
        (world.tenant, Class::Transactional, "a", 50),
        (other, Class::Transactional, "b", 40),
        (other, Class::Critical, "c", 70),
        (world.tenant, Class::Bulk, "d", 5),
    ] {
        let mut item = world.email_of(tenant, class, key);
        item.deliveries[0].available_at = at(due);
        world.taken(item).await;
    }
    world.claim(10, at(6)).await;

    let mut due = world.store.next_due().await.unwrap();
    due.sort();
    let mut expected = vec![(world.lane(Class::Critical), at(70)), (world.lane(Class::Transactional), at(40))];
    expected.sort();
    assert_eq!(due, expected, "a running row is not due");
}

/// What is due later, and what is at work, included or not: who polls asks only where something waits.
pub async fn the_lanes_in_which_rows_wait_are_known(world: &World) {
    assert_eq!(world.store.waiting_lanes().await.unwrap(), []);
    let mut later = world.email_of(world.tenant, Class::Bulk, "later");
    later.deliveries[0].available_at = at(1_000);
    world.taken(later).await;
    world.taken(world.email("order-1")).await;
    let mut waiting = world.store.waiting_lanes().await.unwrap();
    waiting.sort_unstable();
    let mut expected = vec![world.lane(Class::Transactional), world.lane(Class::Bulk)];
    expected.sort_unstable();
    assert_eq!(waiting, expected);

    let claimed = world.claim(10, at(1)).await.remove(0);
    assert_eq!(world.store.waiting_lanes().await.unwrap(), [world.lane(Class::Bulk)]);
    world.moved(&claimed, answered(None), at(2)).await;
    assert_eq!(world.store.waiting_lanes().await.unwrap().len(), 2, "it waits to be tried again");
}

/// Waiting, dispatching and ambiguous rows are open; ends are not.
pub async fn open_rows_are_counted(world: &World) {
    let ended = world.dispatched("ended", at(1)).await;
    world.moved(&ended, accepted(), at(2)).await;
    let ambiguous = world.dispatched("ambiguous", at(1)).await;
    world.moved(&ambiguous, Outcome::Ambiguous, at(2)).await;
    world.dispatched("running", at(1)).await;
    world.taken(world.email("waiting")).await;

    assert_eq!(world.store.open_count().await.unwrap(), 3);
    assert_eq!(world.state(ambiguous.id).await, State::Ambiguous);
}
