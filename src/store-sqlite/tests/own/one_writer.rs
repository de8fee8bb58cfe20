//! One batch is one transaction, and the process that holds the lock is the only one.

use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::store::{Sweep, WriteBatch};
use tidings_core::words::Class;

use super::fresh;
use crate::store_suite::{World, at};

/// The slot that a finish frees and the claim that refills it share a commit.
#[tokio::test]
async fn a_claim_sees_what_was_finished_in_the_same_batch() {
    let world = World::new(fresh().await).await;
    let claimed = world.dispatched("order-1", at(1)).await;

    let batch = WriteBatch {
        finish: vec![world.report(&claimed, Outcome::NotStarted, at(2))],
        claim: Some(world.plan(10, at(2))),
        ..WriteBatch::default()
    };
    let results = world.store.commit(&world.rules, batch, at(2)).await;

    let again = results.claim.unwrap().unwrap().dispatched;
    assert_eq!((again[0].id, again[0].attempt_number), (claimed.id, 2));
}

/// An item that is refused in one part leaves the other parts of the transaction whole.
#[tokio::test]
async fn a_refused_item_does_not_undo_the_other_parts_of_its_batch() {
    let world = World::new(fresh().await).await;
    let claimed = world.dispatched("order-1", at(1)).await;
    let mut bad = world.email("bad");
    bad.deliveries[0].state = State::Dispatching;

    let batch = WriteBatch {
        finish: vec![world.report(&claimed, Outcome::Ambiguous, at(2))],
        claim: Some(world.plan(10, at(2))),
        accept: vec![bad.into(), world.email("good").into()],
        ..WriteBatch::default()
    };
    let results = world.store.commit(&world.rules, batch, at(2)).await;

    assert!(results.accept[0].is_err() && results.accept[1].is_ok() && results.finish[0].is_ok(), "{results:?}");
    assert_eq!(world.state(claimed.id).await, State::Ambiguous);
    assert_eq!(world.store.open_count().await.unwrap(), 2);
}

/// The lock file proves at start that no owner lives: every lease is void at once.
#[tokio::test]
async fn leases_of_a_process_that_is_gone_are_void() {
    let world = World::new(fresh().await).await;
    let claimed = world.dispatched("order-1", at(1)).await;

    assert_eq!(world.store.void_leases(at(5)).await.unwrap(), 1);
    assert_eq!(world.store.void_leases(at(6)).await.unwrap(), 0);
    let swept = world.store.sweep(&world.rules, Sweep::LeaseExpired, 10, at(6)).await.unwrap();

    assert_eq!((swept[0].id, swept[0].to), (claimed.id, State::Ambiguous));
    assert_eq!(world.stored(claimed.id).await.delivery.ambiguous_since, Some(at(5)));
}

/// Who waits behind the head of an ordering key is neither due nor claimed, and expires all the same.
#[tokio::test]
async fn a_row_blocked_by_ordering_is_never_due() {
    let world = World::new(fresh().await).await;
    let item = world.email("order-1");
    let expires_at = item.expires_at;
    let id = world.taken(item).await;
    world.sql(&format!("UPDATE queue SET available_at = {}", i64::MAX)).await;

    assert!(world.stored(id).await.delivery.blocked);
    assert!(world.claim(10, at(1_000)).await.is_empty());
    assert_eq!(world.store.next_due().await.unwrap(), []);
    let swept = world.store.sweep(&world.rules, Sweep::PastExpiry, 10, expires_at).await.unwrap();
    assert_eq!(swept[0].to, State::Expired);
}

/// A damaged row keeps its place and is reported; its neighbours go out (S-059).
#[tokio::test]
async fn a_row_that_cannot_be_read_holds_nobody_up() {
    let world = World::new(fresh().await).await;
    let damaged = world.taken(world.email("damaged")).await;
    let mate = world.taken(world.email("order-1")).await;
    world.sql(&format!("UPDATE queue SET no_resend = 'a word of tomorrow' WHERE id = {}", world.db.id(damaged.as_uuid()))).await;

    let claimed = world.claim(10, at(1)).await;

    assert_eq!(claimed.iter().map(|delivery| (delivery.id, delivery.class)).collect::<Vec<_>>(), [(mate, Class::Transactional)]);
    assert!(world.store.notification(world.tenant, tidings_core::words::Mode::Live, damaged.notification()).await.is_err());
}
