//! What the end of a key promises: thirty days after everything is settled it belongs to whoever uses it next.

use std::sync::Arc;

use tidings_core::retention::{Kept, Retention};
use tidings_core::store::{Accepted, NewNotification};
use tidings_core::time::Timestamp;
use tidings_core::words::{Class, Mode};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::World;
use super::world::{accept_at, accepted, at, destination};

const MONTH: i64 = 30 * 86_400;

async fn accept(world: &World, items: Vec<NewNotification>, now: Timestamp) -> Vec<Accepted> {
    accept_at(&world.store, &world.rules, items, now).await.into_iter().map(Result::unwrap).collect()
}

/// A notification whose only delivery is settled at `at(2)`.
async fn settled(world: &World, key: &str) -> NewNotification {
    let item = world.email(key);
    world.taken(item.clone()).await;
    let claimed = world.claim(100, at(1)).await;
    let delivery = claimed.iter().find(|delivery| delivery.id == item.deliveries[0].id).expect("it is due");
    world.moved(delivery, accepted(), at(2)).await;
    item
}

/// S-009, S-010: to the second, by the last of its deliveries, and without any sweep. Both notifications can be read.
pub async fn a_key_is_free_again_thirty_days_after_its_last_delivery_is_settled(world: &World) {
    let mut old = world.email("order-1");
    old.deliveries.push(destination(old.id, 2, world.lane(Class::Transactional)));
    world.taken(old.clone()).await;
    let claimed = world.claim(100, at(1)).await;
    world.moved(&claimed[0], accepted(), at(2)).await;
    world.moved(&claimed[1], accepted(), at(50)).await;

    let early = accept(world, vec![world.email("order-1")], at(50 + MONTH - 1)).await;
    assert_eq!(early, [Accepted::KeyHeld(old.as_holder())]);
    let new = world.email("order-1");
    assert_eq!(accept(world, vec![new.clone()], at(50 + MONTH)).await, [Accepted::Taken]);

    let by_key = world.store.by_key(world.tenant, Mode::Live, "order-1").await.unwrap();
    assert_eq!(by_key, Some(new.as_holder()));
    assert_eq!(accept(world, vec![world.email("order-1")], at(50 + MONTH)).await, [Accepted::KeyHeld(new.as_holder())]);
    for id in [old.id, new.id] {
        let read = world.store.notification(world.tenant, Mode::Live, id).await.unwrap().unwrap();
        assert_eq!((read.id, read.idempotency_key.as_str()), (id, "order-1"));
    }
    assert_eq!(world.store.open_count().await.unwrap(), 1);
}

/// S-010: one delivery that is open keeps the key, however old it is.
pub async fn the_key_of_an_open_notification_is_never_free(world: &World) {
    let mut old = world.email("order-1");
    old.deliveries.push(destination(old.id, 2, world.lane(Class::Transactional)));
    world.taken(old.clone()).await;
    let claimed = world.claim(1, at(1)).await;
    world.moved(&claimed[0], accepted(), at(2)).await;

    let late = accept(world, vec![world.email("order-1")], at(100 * MONTH)).await;

    assert_eq!(late, [Accepted::KeyHeld(old.as_holder())]);
    assert_eq!(world.count("notifications", "true").await, 1);
}

/// Beside new keys, keys that are held, and the same expired key twice.
pub async fn an_expired_key_in_a_batch_hurts_nobody_else(world: &World) {
    settled(world, "expired").await;
    let held = world.email("held");
    world.taken(held.clone()).await;
    let first = world.email("expired");

    let batch = vec![world.email("new"), first.clone(), world.email("held"), world.email("expired"), world.email("other")];
    let results = accept(world, batch, at(2 + MONTH)).await;

    let (by_held, by_first) = (Accepted::KeyHeld(held.as_holder()), Accepted::KeyHeld(first.as_holder()));
    assert_eq!(results, [Accepted::Taken, Accepted::Taken, by_held, by_first, Accepted::Taken]);
    assert_eq!(world.count("queue", "true").await, 4);
}

/// S-005 for a key that has had its time: the database decides, and the losers learn who has it now.
pub async fn of_those_who_reuse_a_key_at_once_one_wins(world: &World) {
    let stores = world.stores();
    for round in 0..5 {
        let key = format!("order-{round}");
        settled(world, &key).await;
        let barrier = Arc::new(Barrier::new(4));
        let mut racers = JoinSet::new();
        for n in 0..4 {
            let (store, rules, barrier) = (stores[n % stores.len()].clone(), world.rules.clone(), barrier.clone());
            let item = world.email(&key);
            racers.spawn(async move {
                barrier.wait().await;
                (item.as_holder(), accept_at(&store, &rules, vec![item], at(2 + MONTH)).await.remove(0).unwrap())
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
    assert_eq!(world.count("notifications", "true").await, 10);
}

/// S-010: whoever uses a key whose time is over has it, whether the purge comes before, after or between.
pub async fn a_key_that_is_purged_at_this_moment_is_taken(world: &World) {
    let stores = world.stores();
    let (purging, taking) = (stores[0].clone(), stores[stores.len() - 1].clone());
    let (now, keep) = (at(2 + MONTH), Retention::default());
    for round in 0..20 {
        let key = format!("order-{round}");
        let old = settled(world, &key).await;
        let due = purging.keeping().due(Kept::Destinations, &keep, None, now).await.unwrap().found;
        let due: Vec<_> = due.into_iter().filter(|found| found.id == old.id).collect();
        assert_eq!(due.len(), 1);
        let new = world.email(&key);
        let (purged, taken) = tokio::join!(
            purging.keeping().erase(Kept::Destinations, &keep, &due, now),
            accept_at(&taking, &world.rules, vec![new.clone()], now),
        );

        assert_eq!((purged.unwrap(), taken[0].as_ref().unwrap()), (1, &Accepted::Taken));
        assert_eq!(world.store.by_key(world.tenant, Mode::Live, &key).await.unwrap(), Some(new.as_holder()));
    }
}
