//! What finishing promises: outcomes are fenced, written once, and evidence is never lost.

use std::time::Duration;

use tidings_core::delivery::{Delivery, Flags};
use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::store::{Sweep, WriteBatch};
use tidings_core::transition::Landed;
use tidings_core::words::{AttemptOutcome, Reason};

use super::World;
use super::world::{accepted, answered, at, unique_id};

/// S-038: state, attempt and event in one commit.
pub async fn an_acceptance_ends_the_delivery_and_is_recorded_with_its_attempt(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;

    world.moved(&claimed, accepted(), at(2)).await;

    let stored = world.stored(claimed.id).await;
    assert_eq!(stored.delivery.state, State::Accepted);
    assert_eq!(stored.delivery.settled_at, Some(at(2)));
    assert_eq!(stored.attempts.len(), 1);
    assert_eq!(stored.attempts[0].outcome, AttemptOutcome::Accepted);
    assert_eq!(stored.attempts[0].accepted_at, Some(at(2)));
    assert_eq!(stored.attempts[0].started_at, at(1));
    assert_eq!(stored.attempts[0].provider_message_id.as_deref(), Some("4F1A"));
    assert_eq!(world.count("events", "type = 'accepted' AND state = 'accepted'").await, 1);
    assert_eq!(world.store.open_count().await.unwrap(), 0);
}

/// The queue row of an attempt that is over goes on with its next due time and its count.
pub async fn a_temporary_refusal_waits_for_its_next_try(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;

    let moved = world.moved(&claimed, answered(Some(Duration::from_secs(120))), at(2)).await;

    let stored = world.stored(claimed.id).await;
    assert_eq!(stored.delivery, moved);
    assert_eq!((moved.state, moved.available_at), (State::RetryWait, Some(at(122))));
    assert_eq!((moved.attempts_used, moved.attempt_count, moved.lease_owner), (1, 1, None));
    assert_eq!(stored.attempts[0].outcome, AttemptOutcome::NotSent);
    assert!(world.claim(10, at(121)).await.is_empty());
    let again = world.claim(10, at(122)).await;
    assert_eq!((again[0].attempt_number, again[0].generation), (2, 1));
}

/// S-053: the last try ends it, in the list of dead letters.
pub async fn used_up_tries_end_in_the_list_of_dead_letters(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries[0].attempt_limit = 1;
    world.taken(item).await;
    let claimed = world.claim(10, at(1)).await.remove(0);

    let moved = world.moved(&claimed, answered(None), at(2)).await;

    assert_eq!((moved.state, moved.reason), (State::Dead, Some(Reason::AttemptsExhausted)));
    assert_eq!(world.count("deliveries", "state = 'dead' AND attention IS NOT NULL").await, 1);
    assert_eq!(world.count("queue", "true").await, 0);
}

/// S-038: an outcome that is given twice is written once, in one batch and in two.
pub async fn an_outcome_is_written_once(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    let report = world.report(&claimed, accepted(), at(2));

    let landed = world.finish_all(vec![report.clone(), report.clone()], at(2)).await;
    assert!(matches!(landed[..], [Landed::Moved(..), Landed::Already]), "{landed:?}");
    assert_eq!(world.finish_all(vec![report], at(3)).await, [Landed::Already]);

    assert_eq!(world.count("attempts", "true").await, 1);
    assert_eq!(world.count("events", "type <> 'completed'").await, 1);
    assert_eq!(world.stored(claimed.id).await.delivery.version, 3);
}

/// S-033: two processes report the same attempt at the same moment; one of them writes.
pub async fn reports_of_one_attempt_at_once_are_written_once(world: &World) {
    let stores = world.stores();
    for round in 0..10 {
        let claimed = world.dispatched(&format!("order-{round}"), at(1)).await;
        let report = |outcome| WriteBatch { finish: vec![world.report(&claimed, outcome, at(2))], ..WriteBatch::default() };
        let (one, two) = tokio::join!(
            stores[0].commit(&world.rules, report(accepted()), at(2)),
            stores[1 % stores.len()].commit(&world.rules, report(accepted()), at(2)),
        );
        let mut landed = vec![one.finish.into_iter().next().unwrap().unwrap(), two.finish.into_iter().next().unwrap().unwrap()];
        for landed in &mut landed {
            if *landed == Landed::Fenced {
                *landed = world.finish(&claimed, accepted(), at(3)).await;
            }
        }
        assert_eq!(landed.iter().filter(|landed| matches!(landed, Landed::Moved(..))).count(), 1, "{landed:?}");
        assert_eq!(world.state(claimed.id).await, State::Accepted);
    }
    assert_eq!(world.count("attempts", "true").await, 10);
    assert_eq!(world.count("events", "type <> 'completed'").await, 10);
}

/// Row 17: the lease was lost, nothing was sent since; the late answer is the answer.
pub async fn a_late_result_of_the_same_epoch_still_decides(world: &World) {
    let taken = world.dispatched("taken", at(1)).await;
    let refused = world.dispatched("not-taken", at(1)).await;
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 100, at(100)).await.unwrap();
    assert_eq!(world.state(taken.id).await, State::Ambiguous);

    world.moved(&taken, accepted(), at(110)).await;
    let back = world.moved(&refused, answered(None), at(110)).await;

    let stored = world.stored(taken.id).await;
    assert_eq!((stored.delivery.state, stored.delivery.unresolved), (State::Accepted, 0));
    assert_eq!(stored.attempts.len(), 1, "the reaper's row is completed, not doubled");
    assert_eq!((stored.attempts[0].outcome, stored.attempts[0].late), (AttemptOutcome::Accepted, true));
    assert_eq!(stored.attempts[0].accepted_at, Some(at(110)));
    assert_eq!((back.state, back.unresolved), (State::RetryWait, 0));
}

/// Loses the lease of a first attempt and claims the resend that follows its hold: `(first, second)`.
async fn resent(world: &World, key: &str) -> (Delivery, Delivery) {
    let first = world.dispatched(key, at(1)).await;
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 100, at(100)).await.unwrap();
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(4_000)).await.unwrap();
    let second = world.claim(10, at(4_000)).await.remove(0);
    assert_eq!((second.id, second.attempt_number, second.generation), (first.id, 2, 2));
    (first, second)
}

/// S-033, S-034: a stale writer moves nothing, and what it knows is recorded all the same.
pub async fn a_stale_epoch_moves_nothing_and_is_recorded(world: &World) {
    let (first, second) = resent(world, "order-1").await;
    assert!(second.flags.has(Flags::POSSIBLE_DUPLICATE));

    world.finish(&first, answered(None), at(4_001)).await;

    let stored = world.stored(first.id).await;
    assert_eq!((stored.delivery.state, stored.delivery.lease_expires_at), (State::Dispatching, second.lease_expires_at));
    assert_eq!(stored.delivery.attempt_number, 2);
    assert_eq!(stored.attempts.len(), 1);
    assert_eq!((stored.attempts[0].outcome, stored.attempts[0].late), (AttemptOutcome::NotSent, true));
    world.moved(&second, accepted(), at(4_002)).await;
    assert_eq!(world.state(first.id).await, State::Accepted);
}

/// S-112, S-126: two sends were taken; both ids are kept, and it is told once.
pub async fn a_late_acceptance_beside_a_second_one_is_a_duplicate(world: &World) {
    let (first, second) = resent(world, "order-1").await;

    world.finish(&first, accepted(), at(4_001)).await;
    assert_eq!(world.state(first.id).await, State::Dispatching);
    let moved = world.moved(&second, accepted(), at(4_002)).await;

    assert_eq!(moved.state, State::Accepted);
    assert!(moved.flags.has(Flags::DUPLICATE_SENT));
    let stored = world.stored(first.id).await;
    assert_eq!(stored.attempts.iter().filter(|attempt| attempt.accepted_at.is_some()).count(), 2);
    assert_eq!(world.count("events", "type = 'duplicate_sent'").await, 1);
}

/// S-034: an acceptance that comes while the resend still waits stops it.
pub async fn a_late_acceptance_stops_the_resend_that_waits(world: &World) {
    let first = world.dispatched("order-1", at(1)).await;
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 100, at(100)).await.unwrap();
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(4_000)).await.unwrap();
    assert_eq!(world.state(first.id).await, State::RetryWait);

    world.moved(&first, accepted(), at(4_001)).await;

    assert_eq!(world.state(first.id).await, State::Accepted);
    assert!(world.claim(10, at(5_000)).await.is_empty());
    assert_eq!(world.count("queue", "true").await, 0);
}

/// S-112: the index stands behind the code.
pub async fn the_database_refuses_a_second_acceptance_of_a_generation(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    world.moved(&claimed, accepted(), at(2)).await;
    let insert = |number: u16, generation: u16| {
        let (id, at) = (world.db.id(claimed.id.as_uuid()), world.db.instant(at(3)));
        format!(
            "INSERT INTO attempts (delivery_id, number, generation, started_at, outcome, accepted_at) \
             VALUES ({id}, {number}, {generation}, {at}, 'accepted', {at})"
        )
    };

    assert!(world.db.execute(&insert(2, 1)).await.is_err());
    assert!(world.db.execute(&insert(2, 2)).await.is_ok(), "the next generation has its own");
}

/// An outcome of a delivery that was purged meanwhile is nobody's loss.
pub async fn an_outcome_of_an_unknown_delivery_is_gone(world: &World) {
    let mut claimed = world.dispatched("order-1", at(1)).await;
    let known = world.report(&claimed, accepted(), at(2));
    claimed.id = unique_id(at(0)).delivery(1);

    let landed = world.finish_all(vec![world.report(&claimed, accepted(), at(2)), known], at(2)).await;

    assert!(matches!(landed[..], [Landed::Gone, Landed::Moved(..)]), "{landed:?}");
}

/// S-036: handed back before the first byte: due at once, not counted.
pub async fn a_call_that_was_not_started_is_not_counted(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;

    let moved = world.moved(&claimed, Outcome::NotStarted, at(2)).await;

    assert_eq!((moved.state, moved.available_at, moved.attempt_count), (State::Queued, Some(at(2)), 0));
    let again = world.claim(10, at(2)).await;
    assert_eq!(again[0].attempt_number, 2);
    assert_eq!(world.stored(claimed.id).await.attempts[0].outcome, AttemptOutcome::NotStarted);
}

/// S-039, S-059: what a provider wrote never keeps an outcome from being written.
pub async fn a_nul_in_the_words_of_a_provider_does_not_hold_up_the_outcome(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    let mut report = world.report(&claimed, accepted(), at(2));
    report.report.code = Some("250 2.0.0\0".to_owned());
    report.report.outcome = Outcome::Accepted { message_id: Some("4F\0A".to_owned()), refused_copies: Vec::new() };

    let landed = world.finish_all(vec![report], at(2)).await;

    assert!(matches!(landed[..], [Landed::Moved(..)]), "{landed:?}");
    assert_eq!(world.state(claimed.id).await, State::Accepted);
}

/// What is refused about copies replaces what the record holds, and stays when there is nothing new.
pub async fn the_fate_of_copies_is_kept_over_attempts(world: &World) {
    let claimed = world.dispatched("order-1", at(1)).await;
    let mut report = world.report(&claimed, answered(None), at(2));
    report.copies = Some(vec![1, 0, 2]);
    world.finish_all(vec![report], at(2)).await;
    assert_eq!(world.stored(claimed.id).await.copies, Some(vec![1, 0, 2]));

    let again = world.claim(10, at(10_000)).await.remove(0);
    world.moved(&again, accepted(), at(10_001)).await;
    assert_eq!(world.stored(claimed.id).await.copies, Some(vec![1, 0, 2]));
}
