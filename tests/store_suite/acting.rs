//! Acts on deliveries that exist: what each does to the rows, what a race leaves, what the audit log hears.

use std::sync::Arc;
use std::time::Duration;

use tidings_core::acts::{Act, Finding, Refusal, Resend, Target, Verb};
use tidings_core::delivery::{Delivery, Flags};
use tidings_core::ids::{DeliveryId, TenantId};
use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::store::{Acted, NewNotification, Sweep};
use tidings_core::time::Timestamp;
use tidings_core::words::{AttemptOutcome, Class, Mode, Reason};
use tokio::sync::Barrier;

use super::World;
use super::world::{accepted, answered, at, destination};

pub(super) const CANCEL: Verb = Verb::Cancel(Reason::CancelledByRequest);

pub(super) const fn again(generation: Option<u16>) -> Verb {
    Verb::Resend(Resend { generation, expires_in: None, replay: None })
}

/// An act of the world's tenant on one delivery.
pub fn on(tenant: TenantId, id: DeliveryId, verb: Verb) -> Act {
    let target = Target::Delivery(id);
    Act { tenant, mode: Mode::Live, target, verb, if_version: None, actor: "key_1 (ops)".to_owned(), note: Some("because".to_owned()) }
}

pub(super) async fn act(world: &World, act: Act, now: Timestamp) -> Acted {
    world.store.acts().act(&world.rules, &[act], now).await.remove(0).expect("an act is carried out")
}

pub(super) async fn ask(world: &World, id: DeliveryId, verb: Verb, now: Timestamp) -> Acted {
    act(world, on(world.tenant, id, verb), now).await
}

/// Asks for what must be done to one delivery; returns it as it is then.
pub(super) async fn done(world: &World, id: DeliveryId, verb: Verb, now: Timestamp) -> Delivery {
    let mut acted = ask(world, id, verb, now).await;
    assert_eq!((acted.answer, acted.changed.len()), (Ok(()), 1));
    acted.changed.remove(0)
}

/// One delivery whose tries are used up.
pub(super) async fn dead(world: &World, key: &str) -> DeliveryId {
    let mut item = world.email(key);
    item.deliveries[0].attempt_limit = 1;
    let id = world.taken(item).await;
    let claimed = world.claim(100, at(1)).await.into_iter().find(|row| row.id == id).expect("it is due");
    assert_eq!(world.moved(&claimed, answered(None), at(2)).await.state, State::Dead);
    id
}

/// One delivery of which nobody knows, after both generations that policy allows.
pub(super) async fn unknown(world: &World, key: &str) -> DeliveryId {
    let first = world.dispatched(key, at(1)).await;
    world.moved(&first, Outcome::Ambiguous, at(2)).await;
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(4_000)).await.unwrap();
    let second = world.claim(100, at(4_000)).await.into_iter().find(|row| row.id == first.id).expect("a resend");
    world.moved(&second, Outcome::Ambiguous, at(4_001)).await;
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(9_000)).await.unwrap();
    assert_eq!(world.state(first.id).await, State::Unknown);
    first.id
}

/// Row 25, S-065: what waits is stopped for good; asked for twice, it is so already.
pub async fn a_cancel_stops_what_waits(world: &World) {
    let id = world.taken(world.email("order-1")).await;

    let cancelled = done(world, id, CANCEL, at(1)).await;

    assert_eq!((cancelled.state, cancelled.reason), (State::Cancelled, Some(Reason::CancelledByRequest)));
    assert!(world.claim(10, at(2)).await.is_empty());
    assert_eq!(ask(world, id, CANCEL, at(3)).await, Acted { answer: Ok(()), changed: Vec::new() });
    assert_eq!(world.count("events", "type = 'cancelled'").await, 1);
    assert_eq!(world.stored(id).await.delivery.version, 2);
}

/// Row 25: the call goes on and is the last one; its end is not hidden, and a try that would follow never comes.
pub async fn a_cancel_beside_a_running_call_forbids_the_next(world: &World) {
    let refused = world.dispatched("refused", at(1)).await;
    let taken = world.dispatched("taken", at(1)).await;
    for claimed in [&refused, &taken] {
        let acted = ask(world, claimed.id, CANCEL, at(2)).await;
        assert_eq!(acted.answer, Err(Refusal::AlreadyDispatched(State::Dispatching)));
    }

    // The acts raised the versions of both rows, not their epochs: the outcomes land.
    world.moved(&refused, answered(Some(Duration::from_secs(3_600))), at(3)).await;
    world.moved(&taken, accepted(), at(3)).await;

    assert!(world.claim(10, at(4)).await.is_empty());
    let stopped = world.stored(refused.id).await.delivery;
    assert_eq!((stopped.state, stopped.reason), (State::Cancelled, Some(Reason::CancelledByRequest)));
    assert_eq!(world.state(taken.id).await, State::Accepted);
}

/// S-065: the row lock decides; there is a call or a cancellation, never both and never neither.
pub async fn a_cancel_and_a_claim_at_once_have_one_winner(world: &World) {
    let stores = world.stores();
    let (mut cancelled, mut called) = (0, 0);
    for round in 0..40 {
        let id = world.taken(world.email(&format!("race-{round}"))).await;
        let barrier = Arc::new(Barrier::new(2));
        let claim = {
            let (store, rules, plan, barrier) = (stores[0].clone(), world.rules.clone(), world.plan(10, at(1)), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                super::claim_on(&store, &rules, plan, at(1)).await.expect("a claim").dispatched
            })
        };
        let cancel = {
            let (store, rules, act) = (stores[1 % stores.len()].clone(), world.rules.clone(), on(world.tenant, id, CANCEL));
            tokio::spawn(async move {
                barrier.wait().await;
                store.acts().act(&rules, &[act], at(1)).await.remove(0).expect("an act")
            })
        };
        let (claimed, acted) = (claim.await.unwrap(), cancel.await.unwrap());
        match acted.answer {
            Ok(()) => {
                assert!(claimed.is_empty(), "cancelled and called");
                assert_eq!(world.state(id).await, State::Cancelled);
                cancelled += 1;
            }
            Err(refusal) => {
                assert_eq!((refusal, claimed.len()), (Refusal::AlreadyDispatched(State::Dispatching), 1));
                assert_eq!(world.stored(id).await.delivery.no_resend, Some(Reason::CancelledByRequest));
                world.moved(&claimed[0], accepted(), at(2)).await;
                called += 1;
            }
        }
        assert_eq!(claimed.len(), usize::from(acted.answer.is_err()));
    }
    assert_eq!(cancelled + called, 40);
    assert_eq!(world.count("attempts", "true").await, called);
}

/// S-065: of a notification, what can be stopped is stopped, and nothing of somebody else's.
pub async fn a_notification_is_cancelled_as_a_whole(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries.push(destination(item.id, 2, world.lane(Class::Transactional)));
    item.deliveries.push(destination(item.id, 3, world.lane(Class::Transactional)));
    item.deliveries[2].available_at = at(500);
    let notification = item.id;
    let bystander = world.taken(world.email("order-2")).await;
    let first = world.taken(item).await;
    let claimed = world.claim(10, at(1)).await.into_iter().find(|row| row.id == first).expect("it is due");
    world.moved(&claimed, accepted(), at(2)).await;
    let cancel = |tenant, mode| Act { target: Target::Notification(notification), tenant, mode, ..on(world.tenant, first, CANCEL) };

    for (tenant, mode) in [(TenantId(world.tenant.0 + 1), Mode::Live), (world.tenant, Mode::Test)] {
        assert_eq!(act(world, cancel(tenant, mode), at(3)).await.answer, Err(Refusal::NotFound));
    }
    let acted = act(world, cancel(world.tenant, Mode::Live), at(3)).await;

    assert_eq!(acted.answer, Ok(()));
    assert!(acted.changed.iter().any(|delivery| delivery.id.ordinal() == 3 && delivery.state == State::Cancelled));
    assert_eq!(world.state(first).await, State::Accepted);
    assert_ne!(world.state(bystander).await, State::Cancelled);
}

/// S-077: what goes out in its turn has no time of its own; "now" is what it waits for already.
pub async fn a_message_of_a_line_is_not_moved(world: &World) {
    let ordered = |key: &str| NewNotification { ordering_key: Some("order-7".to_owned()), ..world.email(key) };
    let (head, follower) = (world.taken(ordered("head")).await, world.taken(ordered("follower")).await);
    for id in [head, follower] {
        assert_eq!(ask(world, id, Verb::Reschedule(Some(at(500))), at(1)).await.answer, Err(Refusal::Ordered));
        assert_eq!(ask(world, id, Verb::Reschedule(None), at(1)).await.answer, Ok(()));
    }
    assert!(world.stored(follower).await.delivery.blocked);
    assert_eq!(world.claim(10, at(1)).await.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [head]);
}

/// S-065: of two that saw the same version, one wins.
pub async fn of_two_reschedules_of_one_version_one_wins(world: &World) {
    let stores = world.stores();
    let id = world.taken(world.email("order-1")).await;
    let moves = |seconds| Act { if_version: Some(1), ..on(world.tenant, id, Verb::Reschedule(Some(at(seconds)))) };
    let (one, other) = ([moves(500)], [moves(600)]);
    let (one, other) =
        tokio::join!(stores[0].acts().act(&world.rules, &one, at(1)), stores[1 % stores.len()].acts().act(&world.rules, &other, at(1)),);
    let answers = [one[0].as_ref().unwrap().answer, other[0].as_ref().unwrap().answer];
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    assert!(answers.contains(&Err(Refusal::StaleVersion)));
}

/// Row 31: the new time is a column like the old one, and the usual deadline moves along.
pub async fn a_rescheduled_message_waits_for_its_new_time(world: &World) {
    let id = world.taken(world.email("order-1")).await;

    let moved = done(world, id, Verb::Reschedule(Some(at(200_000))), at(1)).await;

    assert_eq!((moved.state, moved.expires_at), (State::Scheduled, at(200_000 + 86_400)));
    assert!(world.claim(10, at(199_999)).await.is_empty());
    let stored = world.stored(id).await;
    assert_eq!((stored.send_at, stored.delivery.available_at), (Some(at(200_000)), Some(at(200_000))));
    assert_eq!(world.read(id).await.send_at, None, "what was accepted stays as it was, for replays of the answer");

    done(world, id, Verb::Reschedule(None), at(2)).await;
    assert_eq!(world.claim(10, at(2)).await.len(), 1);
    assert_eq!(ask(world, id, Verb::Reschedule(None), at(3)).await.answer, Err(Refusal::AlreadyDispatched(State::Dispatching)));
}

/// Row 28, S-130: an operator's word ends the doubt; it is recorded, and evidence against it is still taken.
pub async fn an_operator_settles_an_ambiguous_delivery(world: &World) {
    let (sent, lost) = (world.dispatched("sent", at(1)).await, world.dispatched("lost", at(1)).await);
    assert_eq!(ask(world, sent.id, Verb::Resolve(Finding::Sent), at(2)).await.answer, Err(Refusal::OutcomeUnresolved(State::Dispatching)));
    for claimed in [&sent, &lost] {
        world.moved(claimed, Outcome::Ambiguous, at(2)).await;
    }

    done(world, sent.id, Verb::Resolve(Finding::Sent), at(3)).await;
    let back = done(world, lost.id, Verb::Resolve(Finding::NotSent), at(3)).await;

    let stored = world.stored(sent.id).await;
    assert_eq!((stored.delivery.state, stored.delivery.unresolved), (State::Accepted, 0));
    assert!(stored.delivery.flags.has(Flags::CONFIRMED));
    assert_eq!((stored.attempts[0].outcome, stored.attempts[0].accepted_at), (AttemptOutcome::Accepted, Some(at(3))));
    // The provider's answer comes in after all: it says the same, and doubles nothing.
    world.finish(&sent, accepted(), at(4)).await;
    assert!(!world.stored(sent.id).await.delivery.flags.has(Flags::DUPLICATE_SENT));

    assert_eq!((back.state, back.generation, back.unresolved), (State::RetryWait, 1, 0));
    let second = world.claim(10, at(4)).await.remove(0);
    world.moved(&second, Outcome::Ambiguous, at(5)).await;
    // A late denial of the settled call leaves the doubt about the new one.
    world.finish(&lost, answered(None), at(6)).await;
    let stored = world.stored(lost.id).await.delivery;
    assert_eq!((stored.state, stored.unresolved), (State::Ambiguous, 1));
}

/// A row whose process died is nobody's: it can be stopped and settled without anybody at the database's prompt.
pub async fn cancel_and_resolve_work_on_orphans(world: &World) {
    let (stopped, settled) = (world.dispatched("stopped", at(1)).await, world.dispatched("settled", at(1)).await);
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 100, at(100)).await.unwrap();

    assert_eq!(ask(world, stopped.id, CANCEL, at(101)).await.answer, Err(Refusal::AlreadyDispatched(State::Ambiguous)));
    done(world, settled.id, Verb::Resolve(Finding::Sent), at(101)).await;

    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(4_000)).await.unwrap();
    assert!(world.claim(10, at(4_000)).await.is_empty(), "a cancelled one is not sent again by policy");
    let end = world.stored(stopped.id).await.delivery;
    assert_eq!((end.state, end.reason), (State::Unknown, Some(Reason::Cancelled)));
    let stored = world.stored(settled.id).await;
    assert_eq!((stored.delivery.state, stored.attempts[0].outcome), (State::Accepted, AttemptOutcome::Accepted));
}

/// Row 28: from `unknown` the delivery fails, and may be sent again as if it had never left.
pub async fn an_operator_settles_an_unknown_delivery(world: &World) {
    let id = unknown(world, "order-1").await;

    let failed = done(world, id, Verb::Resolve(Finding::NotSent), at(9_001)).await;

    assert_eq!((failed.state, failed.reason, failed.unresolved), (State::Failed, Some(Reason::ResolvedNotSent), 0));
    assert_eq!(ask(world, id, Verb::Resolve(Finding::NotSent), at(9_002)).await, Acted { answer: Ok(()), changed: Vec::new() });
    assert_eq!(ask(world, id, Verb::Resolve(Finding::Sent), at(9_002)).await.answer, Err(Refusal::OutcomeKnown(State::Failed)));
    let open = done(world, id, again(None), at(9_003)).await;
    assert_eq!((open.state, open.generation), (State::Queued, 2));
}

/// S-059: many acts in one commit, each with its own answer, also two on one delivery.
pub async fn each_act_of_a_batch_has_its_own_answer(world: &World) {
    let (one, two) = (dead(world, "one").await, dead(world, "two").await);
    let foreign = Act { tenant: TenantId(world.tenant.0 + 1), ..on(world.tenant, two, again(None)) };
    let acts = [
        on(world.tenant, one, again(None)),
        foreign,
        on(world.tenant, one, CANCEL),
        on(world.tenant, two, Verb::Discard),
        on(world.tenant, super::unique_id(at(0)).delivery(1), CANCEL),
    ];

    let acted = world.store.acts().act(&world.rules, &acts, at(10)).await;

    let answers: Vec<_> = acted.into_iter().map(|acted| acted.expect("an act").answer).collect();
    assert_eq!(answers, [Ok(()), Err(Refusal::NotFound), Ok(()), Ok(()), Err(Refusal::NotFound)]);
    assert_eq!((world.state(one).await, world.state(two).await), (State::Cancelled, State::Dead));
}

/// S-217: what was done stands in the audit log with who did it and why; what was not is not told.
pub async fn the_audit_log_tells_who_did_what(world: &World) {
    let id = dead(world, "order-1").await;
    done(world, id, again(None), at(10)).await;
    done(world, id, CANCEL, at(11)).await;
    ask(world, id, CANCEL, at(12)).await;
    ask(world, id, again(None), at(12)).await;

    assert_eq!(world.count("audit_log", "true").await, 2);
    for action in ["delivery.resend", "delivery.cancel"] {
        let told = format!("action = '{action}' AND subject = '{id}' AND actor = 'key_1 (ops)' AND tenant_id = {}", world.tenant);
        assert_eq!(world.count("audit_log", &told).await, 1, "{action}");
    }
    assert_eq!(world.count("audit_log", "detail->>'reason' = 'because'").await, 2);
}
