//! What timers and leases promise: a lost call is never forgotten and never repeated blindly, a deadline holds.

use std::collections::HashSet;

use tidings_core::ids::InstanceId;
use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::store::{Sweep, Swept};
use tidings_core::time::Timestamp;
use tidings_core::words::{AttemptOutcome, Class, Reason};

use super::World;
use super::world::{accepted, at};

async fn sweep(world: &World, sweep: Sweep, now: Timestamp) -> Vec<Swept> {
    world.store.sweep(&world.rules, sweep, 100, now).await.unwrap()
}

/// S-036: an expired lease is perhaps sent, and nothing before it is over.
pub async fn an_expired_lease_is_perhaps_sent(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;

    assert_eq!(sweep(world, Sweep::LeaseExpired, at(60)).await, []);
    let swept = sweep(world, Sweep::LeaseExpired, at(61)).await;

    let lane = world.lane(Class::Transactional);
    assert_eq!(swept, [Swept { id: claimed.id, lane, from: State::Dispatching, to: State::Ambiguous }]);
    let stored = world.stored(claimed.id).await;
    assert_eq!((stored.delivery.unresolved, stored.delivery.lost_count, stored.delivery.attempt_count), (1, 1, 1));
    assert_eq!(stored.attempts[0].outcome, AttemptOutcome::Lost);
    assert_eq!(world.count("events", "type = 'ambiguous'").await, 1);
    assert_eq!(sweep(world, Sweep::LeaseExpired, at(61)).await, [], "once");
}

/// The heartbeat keeps a lease; what is no longer ours is named.
pub async fn a_renewed_lease_holds_and_lost_ones_are_named(world: &World) {
    let held = world.dispatched("held", at(1)).await;
    let done = world.dispatched("done", at(1)).await;
    world.moved(&done, accepted(), at(2)).await;
    let handed_back = world.dispatched("handed-back", at(1)).await;
    world.moved(&handed_back, Outcome::NotStarted, at(2)).await;
    let again = world.claim(10, at(2)).await.remove(0);

    let lost = world.store.renew(world.instance, &[(held.id, 1), (done.id, 1), (again.id, 2)], at(80), at(20)).await.unwrap();
    assert_eq!(lost, [done.id]);
    let stale = world.store.renew(world.instance, &[(handed_back.id, 1)], at(900), at(20)).await.unwrap();
    assert_eq!(stale, [handed_back.id], "another epoch is another lease");
    assert_eq!(sweep(world, Sweep::LeaseExpired, at(79)).await, []);
    let foreign = world.store.renew(InstanceId(world.instance.0 + 1), &[(held.id, 1)], at(900), at(79)).await.unwrap();
    assert_eq!(foreign, [held.id], "only the owner renews");
    assert_eq!(sweep(world, Sweep::LeaseExpired, at(80)).await.len(), 2);
}

/// S-048: rows that nobody can claim expire too.
pub async fn a_waiting_row_expires_at_its_deadline(world: &World) {
    let mut item = world.email("order-1");
    item.expires_at = at(500);
    item.deliveries[0].available_at = at(400);
    let id = world.taken(item).await;
    let running = world.dispatched("running", at(1)).await;

    assert_eq!(sweep(world, Sweep::PastExpiry, at(499)).await, []);
    let swept = sweep(world, Sweep::PastExpiry, at(500)).await;

    assert_eq!(swept.iter().map(|swept| (swept.id, swept.to)).collect::<Vec<_>>(), [(id, State::Expired)]);
    assert_eq!(world.stored(id).await.delivery.reason, Some(Reason::Deadline));
    assert_eq!(world.state(running.id).await, State::Dispatching);
}

/// Row 3 with an open call behind it: nobody may say that it was not sent.
pub async fn a_row_with_an_unresolved_call_expires_into_unknown(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    sweep(world, Sweep::LeaseExpired, at(100)).await;
    sweep(world, Sweep::ChecksDue, at(4_000)).await;
    assert_eq!(world.state(claimed.id).await, State::RetryWait);

    let day = at(2 * 86_400);
    sweep(world, Sweep::PastExpiry, day).await;

    let stored = world.stored(claimed.id).await.delivery;
    assert_eq!((stored.state, stored.reason, stored.unresolved), (State::Unknown, Some(Reason::Expired), 1));
    assert_eq!(world.count("deliveries", "attention IS NOT NULL").await, 1);
}

/// Rows 19 and 20: the hold's end resends by policy, or says that nobody knows.
pub async fn the_end_of_a_hold_resends_once_and_then_gives_up(world: &World) {
    let first = world.dispatched("order-1", at(1)).await;
    world.moved(&first, Outcome::Ambiguous, at(10)).await;
    assert_eq!(sweep(world, Sweep::ChecksDue, at(10 + 1_799)).await, [], "the hold is not over");

    let swept = sweep(world, Sweep::ChecksDue, at(10 + 1_800)).await;
    assert_eq!((swept[0].from, swept[0].to), (State::Ambiguous, State::RetryWait));
    let second = world.claim(10, at(2_000)).await.remove(0);
    assert_eq!(second.generation, 2);
    world.moved(&second, Outcome::Ambiguous, at(2_001)).await;
    sweep(world, Sweep::ChecksDue, at(9_000)).await;

    let stored = world.stored(first.id).await;
    assert_eq!((stored.delivery.state, stored.delivery.reason), (State::Unknown, Some(Reason::HoldOver)));
    assert_eq!(stored.attempts.iter().map(|attempt| attempt.generation).collect::<Vec<_>>(), [1, 2]);
}

/// Row 15: an acceptance of an earlier generation that came while a call ran is applied when its lease is lost.
pub async fn a_lost_lease_with_a_recorded_acceptance_is_accepted(world: &World) {
    let first = world.dispatched("order-1", at(1)).await;
    sweep(world, Sweep::LeaseExpired, at(100)).await;
    sweep(world, Sweep::ChecksDue, at(4_000)).await;
    world.claim(10, at(4_000)).await;
    world.finish(&first, accepted(), at(4_001)).await;
    assert_eq!(world.state(first.id).await, State::Dispatching);

    let swept = sweep(world, Sweep::LeaseExpired, at(5_000)).await;

    assert_eq!((swept[0].from, swept[0].to), (State::Dispatching, State::Accepted));
    assert_eq!(world.count("attempts", "outcome = 'lost'").await, 1);
}

/// S-059, S-231: a row that only a newer binary can read keeps its place and holds up no timer.
pub async fn a_row_with_an_unknown_word_is_stepped_over_by_every_sweep(world: &World) {
    for (n, kind) in [Sweep::LeaseExpired, Sweep::ChecksDue, Sweep::PastExpiry].into_iter().enumerate() {
        let (unknown, mate) = (world.email(&format!("unknown-{n}")), world.email(&format!("order-{n}")));
        let (unknown, mate) = (world.taken(unknown).await, world.taken(mate).await);
        if kind != Sweep::PastExpiry {
            assert_eq!(world.claim(10, at(1)).await.len(), 2);
        }
        if kind == Sweep::ChecksDue {
            assert_eq!(sweep(world, Sweep::LeaseExpired, at(100)).await.len(), 2);
        }
        world.write_unknown_word(unknown).await;

        let swept = sweep(world, kind, at(1_000_000)).await;

        assert_eq!(swept.iter().map(|swept| swept.id).collect::<Vec<_>>(), [mate], "{kind:?}");
        world.sql("DELETE FROM queue").await;
    }
}

/// A sweep is bounded, and goes on where it stopped.
pub async fn a_sweep_moves_no_more_than_its_limit(world: &World) {
    world.accept((0..25).map(|n| world.email(&format!("order-{n}"))).collect()).await;
    world.claim(100, at(1)).await;

    let mut moved = Vec::new();
    for _ in 0..4 {
        moved.push(world.store.sweep(&world.rules, Sweep::LeaseExpired, 10, at(100)).await.unwrap().len());
    }
    assert_eq!(moved, [10, 10, 5, 0]);
}

/// Every process sweeps; each row is moved once.
pub async fn sweepers_at_once_move_each_row_once(world: &World) {
    world.accept((0..60).map(|n| world.email(&format!("order-{n}"))).collect()).await;
    world.claim(100, at(1)).await;

    let stores = world.stores();
    let mut sweepers = tokio::task::JoinSet::new();
    for n in 0..4 {
        let (store, rules) = (stores[n % stores.len()].clone(), world.rules.clone());
        sweepers.spawn(async move {
            let mut moved = Vec::new();
            for _ in 0..3 {
                moved.extend(store.sweep(&rules, Sweep::LeaseExpired, 20, at(100)).await.unwrap());
            }
            moved
        });
    }
    let mut moved = sweepers.join_all().await.concat();
    moved.extend(sweep(world, Sweep::LeaseExpired, at(100)).await);

    assert_eq!(moved.len(), 60);
    assert_eq!(moved.iter().map(|swept| swept.id).collect::<HashSet<_>>().len(), 60);
    assert_eq!(world.count("attempts", "outcome = 'lost'").await, 60);
}
