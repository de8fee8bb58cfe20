//! What accepting promises: all or nothing, one notification for each key, no batch-mate hurt.

use std::sync::Arc;

use tidings_core::state::State;
use tidings_core::store::{Accepted, StoreError};
use tidings_core::words::{Class, Mode};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::World;
use super::world::{accept_on, destination};

/// S-001, S-011: one commit holds everything, and the key finds it at once.
pub async fn an_accepted_notification_is_found_by_key_and_waits_in_the_queue(world: &World) {
    let item = world.email("order-1");
    let (id, delivery) = (item.id, item.deliveries[0].id);

    world.taken(item.clone()).await;

    let holder = world.store.by_key(world.tenant, Mode::Live, "order-1").await.unwrap();
    assert_eq!(holder, Some(item.as_holder()));
    assert_eq!(world.state(delivery).await, State::Queued);
    assert_eq!(world.store.open_count().await.unwrap(), 1);
    assert_eq!(world.store.notification(world.tenant, Mode::Live, id).await.unwrap().unwrap().idempotency_key, "order-1");
}

/// S-005, S-007: the loser of a key learns who holds it.
pub async fn a_key_that_is_held_names_its_holder_and_writes_nothing(world: &World) {
    let first = world.email("order-1");
    world.taken(first.clone()).await;

    let second = world.email("order-1");
    let results = world.accept(vec![second, world.email("order-2")]).await;

    assert_eq!(results[0].as_ref().unwrap(), &Accepted::KeyHeld(first.as_holder()));
    assert_eq!(results[1].as_ref().unwrap(), &Accepted::Taken);
    assert_eq!(world.count("deliveries", "true").await, 2);
}

/// S-005: two stores, one key, the same instant. The unique index decides.
pub async fn accepts_of_one_key_at_once_have_one_winner(world: &World) {
    let stores = world.stores();
    for round in 0..20 {
        let key = format!("order-{round}");
        let barrier = Arc::new(Barrier::new(4));
        let mut racers = JoinSet::new();
        for n in 0..4 {
            let (store, rules, barrier) = (stores[n % stores.len()].clone(), world.rules.clone(), barrier.clone());
            let item = world.email(&key);
            racers.spawn(async move {
                barrier.wait().await;
                (item.as_holder(), accept_on(&store, &rules, vec![item]).await.remove(0).unwrap())
            });
        }
        let results = racers.join_all().await;

        let winners: Vec<_> = results.iter().filter(|(_, accepted)| *accepted == Accepted::Taken).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let winner = &winners[0].0;
        let losers = results.iter().filter(|(_, accepted)| *accepted == Accepted::KeyHeld(winner.clone())).count();
        assert_eq!(losers, 3, "{results:?}");
        assert_eq!(world.store.by_key(world.tenant, Mode::Live, &key).await.unwrap().as_ref(), Some(winner));
    }
    assert_eq!(world.count("notifications", "true").await, 20);
    assert_eq!(world.count("queue", "true").await, 20);
}

/// No index sees the second in time: the first rides the commit, the second rides on the first.
pub async fn the_same_key_twice_in_a_batch_is_taken_once(world: &World) {
    let held = world.email("held");
    world.taken(held.clone()).await;

    let (first, second) = (world.email("new"), world.email("new"));
    let batch = vec![world.email("held"), first.clone(), world.email("other"), second, world.email("held")];
    let results: Vec<_> = world.accept(batch).await.into_iter().map(Result::unwrap).collect();

    let by_held = Accepted::KeyHeld(held.as_holder());
    assert_eq!(results, [by_held.clone(), Accepted::Taken, Accepted::Taken, Accepted::KeyHeld(first.as_holder()), by_held]);
    assert_eq!(world.count("deliveries", "true").await, 3);
}

/// S-059, S-008: what the database refuses is refused alone, and occupies no key.
pub async fn one_bad_item_never_hurts_its_batch_mates(world: &World) {
    let mut batch: Vec<_> = (0..20).map(|n| world.email(&format!("order-{n}"))).collect();
    batch[3].idempotency_key = "nul\0inside".to_owned();
    // The queue's CHECK refuses a row that is dispatching without a lease.
    batch[7].deliveries[0].state = State::Dispatching;
    batch[11].id = batch[10].id;
    batch[11].deliveries = batch[10].deliveries.clone();
    batch[19].tags = vec!["\0".to_owned()];

    let results = world.accept(batch.clone()).await;

    for (n, result) in results.iter().enumerate() {
        match n {
            3 | 7 | 19 => assert!(matches!(result, Err(StoreError::Refused(_))), "{n}: {result:?}"),
            // Of two with one identity either may be the one.
            10 | 11 => {}
            _ => assert!(matches!(result, Ok(Accepted::Taken)), "{n}: {result:?}"),
        }
    }
    assert_eq!(results[10..12].iter().filter(|result| matches!(result, Ok(Accepted::Taken))).count(), 1, "{results:?}");
    assert_eq!(world.count("notifications", "true").await, 16);
    assert_eq!(world.count("queue", "true").await, 16);

    batch[7].deliveries[0].state = State::Queued;
    world.taken(batch[7].clone()).await;
}

/// A refused item never held its key: the next one with it is not refused for it.
pub async fn a_bad_item_does_not_take_the_key_from_its_batch_mate(world: &World) {
    let mut bad = world.email("order-1");
    bad.deliveries[0].state = State::Dispatching;
    let good = world.email("order-1");

    let results = world.accept(vec![bad, good.clone(), world.email("order-1")]).await;

    assert!(matches!(results[0], Err(StoreError::Refused(_))), "{results:?}");
    assert_eq!(results[1].as_ref().unwrap(), &Accepted::Taken);
    assert_eq!(results[2].as_ref().unwrap(), &Accepted::KeyHeld(good.as_holder()));
}

/// S-003: a key means something inside its tenant and mode alone.
pub async fn tenants_and_modes_do_not_share_keys(world: &World) {
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    let live = world.email("order-1");
    let foreign = world.email_of(other, Class::Transactional, "order-1");
    let mut test = world.email("order-1");
    test.mode = Mode::Test;

    let results: Vec<_> = world.accept(vec![live.clone(), foreign.clone(), test.clone()]).await.into_iter().map(Result::unwrap).collect();

    assert_eq!(results, [Accepted::Taken, Accepted::Taken, Accepted::Taken]);
    for item in [live, foreign, test] {
        let holder = world.store.by_key(item.tenant, item.mode, "order-1").await.unwrap();
        assert_eq!(holder, Some(item.as_holder()));
    }
}

/// S-001: every destination is written with the intent.
pub async fn a_notification_is_written_with_all_its_deliveries(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries = (1..=50).map(|ordinal| destination(item.id, ordinal, world.lane(Class::Transactional))).collect();
    let last = item.deliveries[49].id;

    world.taken(item).await;

    let read = world.read(last).await;
    assert_eq!(read.deliveries.iter().map(|stored| stored.delivery.id.ordinal()).collect::<Vec<_>>(), (1..=50).collect::<Vec<_>>());
    assert_eq!(world.store.open_count().await.unwrap(), 50);
}

/// Sorted by key before any SQL: batches that share keys in opposite order do not wait for each other in a circle.
pub async fn batches_with_the_same_keys_in_opposite_order_both_succeed(world: &World) {
    let stores = world.stores();
    for round in 0..5 {
        let forth: Vec<_> = (0..30).map(|n| world.email(&format!("order-{round}-{n}"))).collect();
        let back: Vec<_> = (0..30).rev().map(|n| world.email(&format!("order-{round}-{n}"))).collect();
        let rules = &world.rules;
        let (one, two) = tokio::join!(accept_on(&stores[0], rules, forth), accept_on(&stores[1 % stores.len()], rules, back));

        let results: Vec<_> = one.into_iter().chain(two).map(Result::unwrap).collect();
        assert_eq!(results.iter().filter(|accepted| **accepted == Accepted::Taken).count(), 30);
        assert_eq!(results.iter().filter(|accepted| matches!(accepted, Accepted::KeyHeld(_))).count(), 30);
    }
}

/// S-012: who does not know whether it was committed may give it again, and learns that its own is there.
pub async fn the_same_notification_again_is_held_by_itself(world: &World) {
    let item = world.email("order-1");
    world.taken(item.clone()).await;

    let results = world.accept(vec![item.clone(), world.email("order-2")]).await;

    assert_eq!(results[0].as_ref().unwrap(), &Accepted::KeyHeld(item.as_holder()));
    assert_eq!(results[1].as_ref().unwrap(), &Accepted::Taken);
    assert_eq!(world.count("queue", "true").await, 2);
}

/// S-017: an intent without a deadline cannot be stored, whoever writes it.
pub async fn nothing_is_stored_without_a_deadline(world: &World) {
    world.taken(world.email("order-1")).await;
    for table in ["notifications", "deliveries", "queue"] {
        // The same row in a table without constraints, its deadline taken away.
        world.sql(&format!("CREATE TABLE torn_{table} AS SELECT * FROM {table}")).await;
        world.sql(&format!("UPDATE torn_{table} SET expires_at = NULL")).await;
        let inserted = world.db.execute(&format!("INSERT INTO {table} SELECT * FROM torn_{table}")).await;
        let refused = inserted.unwrap_err().to_lowercase();
        assert!(refused.contains("expires_at") && (refused.contains("not null") || refused.contains("not-null")), "{refused}");
    }
}
