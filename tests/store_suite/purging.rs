//! Promises about purging beside everybody else: nothing that is still needed goes, whoever works at that moment; and
//! everything that grows has its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidings_core::acts::Refusal;
use tidings_core::ids::{Handle, NotificationId};
use tidings_core::outcome::Outcome;
use tidings_core::policy::REPLAY_WINDOW;
use tidings_core::pool::Ask;
use tidings_core::retention::{AUDIT_KEPT, IDLE_LINES_KEPT, INSTANCES_KEPT, Kept, QUOTAS_KEPT, Retention};
use tidings_core::sandbox::SandboxMessage;
use tidings_core::state::State;
use tidings_core::store::{Store, WriteBatch};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode};
use tokio::sync::Barrier;

use super::World;
use super::acting::{again, ask, dead, done, on, unknown};
use super::keeping::{DAY, erase, has_body};
use super::world::{accepted, answered, at, destination};

const KINDS: [Kept; 3] = [Kept::Content, Kept::Destinations, Kept::Records];

/// One walk through one handle, whatever else goes on.
async fn walk(store: &Arc<dyn Store>, kept: Kept, now: Timestamp) {
    let keep = Retention::default();
    let mut after = None;
    loop {
        let due = store.keeping().due(kept, &keep, after, now).await.expect("a step");
        for chunk in due.chunks(store.keeping().rows_at_once()) {
            store.keeping().erase(kept, &keep, chunk, now).await.expect("a chunk");
        }
        after = due.next;
        if after.is_none() {
            return;
        }
    }
}

/// S-025: far after every bound, over and over, beside workers: what is leased, ambiguous, waiting or half open keeps all
/// that it needs, dead letters keep their record, and what has ended goes as a whole or not at all.
pub async fn nothing_that_is_needed_goes_however_often_it_is_purged(world: &World) {
    let unknown = unknown(world, "unknown").await;
    let dead = dead(world, "dead").await;
    let doubtful = world.dispatched("ambiguous", at(1)).await;
    world.moved(&doubtful, Outcome::Ambiguous, at(2)).await;
    let retried = world.dispatched("retried", at(1)).await;
    world.moved(&retried, answered(Some(Duration::from_secs(3_600))), at(2)).await;
    let mut half = world.email("half");
    half.deliveries.push(destination(half.id, 2, world.lane(Class::Transactional)));
    half.deliveries[1].available_at = at(50 * DAY);
    let half = world.taken(half).await;
    let first = world.claim(1, at(1)).await.remove(0);
    world.moved(&first, accepted(), at(2)).await;
    let mut scheduled = world.email("scheduled");
    scheduled.deliveries[0].available_at = at(50 * DAY);
    let scheduled = world.taken(scheduled).await;
    let leased = world.dispatched("leased", at(1)).await.id;

    let stop = Arc::new(AtomicBool::new(false));
    let purgers: Vec<_> = world
        .stores()
        .into_iter()
        .map(|store| {
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut walks = 0;
                while !stop.load(Ordering::Relaxed) || walks == 0 {
                    for kept in KINDS {
                        walk(&store, kept, at(9_000 * DAY)).await;
                    }
                    walks += 1;
                }
            })
        })
        .collect();
    for n in 0..25 {
        let items = (0..4).map(|m| world.email(&format!("work-{n}-{m}"))).collect();
        assert!(world.accept(items).await.iter().all(Result::is_ok));
        let claimed = world.claim(4, at(1)).await;
        assert_eq!(claimed.len(), 4);
        for delivery in &claimed {
            assert!(has_body(world, delivery.id).await, "a call that runs has what it sends");
        }
        let reports = claimed.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
        world.finish_all(reports, at(2)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for purger in purgers {
        purger.await.unwrap();
    }

    for (id, state) in [
        (doubtful.id, State::Ambiguous),
        (retried.id, State::RetryWait),
        (half, State::Accepted),
        (scheduled, State::Queued),
        (leased, State::Dispatching),
    ] {
        let stored = world.stored(id).await;
        assert_eq!(stored.delivery.state, state);
        assert!(stored.address.is_some() && stored.reference.is_some() && has_body(world, id).await, "{state}");
    }
    assert_eq!(world.read(half).await.deliveries.len(), 2);
    for (id, state) in [(dead, State::Dead), (unknown, State::Unknown)] {
        let stored = world.stored(id).await;
        assert_eq!((stored.delivery.state, stored.address), (state, None), "its record alone");
        assert!(!stored.attempts.is_empty());
    }
    for kept in KINDS {
        erase(world, kept, 9_000 * DAY).await;
    }
    assert_eq!(world.count("notifications", "true").await, 7);
    assert_eq!(world.count("deliveries", "true").await, 8);
    assert_eq!(world.store.audit(at(-3_600), at(3_600), at(0)).await.unwrap(), []);
}

/// S-025: found to be due, opened again, and then it is its turn to be erased: it keeps what it is sent from.
pub async fn what_is_opened_again_before_it_is_erased_keeps_its_content(world: &World) {
    let (id, ended) = (dead(world, "opened").await, dead(world, "ended").await);
    let (keep, keeping) = (Retention::default(), world.store.keeping());
    let last = at(2).plus(REPLAY_WINDOW);
    let due = keeping.due(Kept::Content, &keep, None, last).await.unwrap();
    assert_eq!(due.found.len(), 2);

    done(world, id, again(None), last).await;
    done(world, ended, again(None), last).await;
    let claimed = world.claim(2, last).await;
    let ends = claimed.iter().find(|delivery| delivery.id == ended).expect("it is due");
    world.moved(ends, accepted(), last).await;
    for chunk in due.chunks(keeping.rows_at_once()) {
        assert_eq!(keeping.erase(Kept::Content, &keep, chunk, last).await.unwrap(), 0);
    }

    assert!(has_body(world, id).await && has_body(world, ended).await, "its new end has its own time");
    let outgoing = world.store.outgoing(&[id]).await.unwrap();
    assert!(outgoing[0].body.is_some());
}

/// S-025: a resend and the wipe at the same moment have one winner: what is open has its content.
pub async fn a_resend_and_the_wipe_at_once_have_one_winner(world: &World) {
    let stores = world.stores();
    let last = at(2).plus(REPLAY_WINDOW);
    let (mut opened, mut erased) = (0, 0);
    for round in 0..30 {
        let id = dead(world, &format!("race-{round}")).await;
        let barrier = Arc::new(Barrier::new(2));
        let (store, rules, act, both) = (stores[0].clone(), world.rules.clone(), on(world.tenant, id, again(None)), barrier.clone());
        let resend = tokio::spawn(async move {
            both.wait().await;
            store.acts().act(&rules, &[act], last).await.remove(0).expect("an act").answer
        });
        let store = stores[1 % stores.len()].clone();
        let wipe = tokio::spawn(async move {
            let due = store.keeping().due(Kept::Content, &Retention::default(), None, last).await.expect("a step");
            barrier.wait().await;
            for chunk in due.chunks(store.keeping().rows_at_once()) {
                store.keeping().erase(Kept::Content, &Retention::default(), chunk, last).await.expect("a chunk");
            }
        });
        wipe.await.unwrap();
        match resend.await.unwrap() {
            Ok(()) => {
                assert!(world.state(id).await.is_open() && has_body(world, id).await, "round {round}");
                opened += 1;
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::ContentErased);
                assert!(world.state(id).await == State::Dead && !has_body(world, id).await, "round {round}");
                erased += 1;
            }
        }
        world.claim(10, last).await;
    }
    assert_eq!(opened + erased, 30);
}

/// What else grows has a bound: one second before it is there, then it goes.
pub async fn everything_else_that_grows_has_a_bound(world: &World) {
    let keep = Retention::default();
    let notification = NotificationId::new(at(0), [9; 10]);
    let message = SandboxMessage {
        id: NotificationId::new(at(10), [1; 10]).as_uuid(),
        tenant: world.tenant,
        mode: Mode::Test,
        received_at: at(10),
        channel: Channel::Email,
        notification,
        handle: Handle { delivery: notification.delivery(1), generation: 1 },
        idempotency_key: "order-1".to_owned(),
        envelope_to: Vec::new(),
        body: vec![1],
    };
    let batch = WriteBatch { sandbox: vec![message], ..WriteBatch::default() };
    world.store.commit(&world.rules, batch, at(10)).await.sandbox.remove(0).unwrap();
    let cancelled = world.taken(world.email("cancelled")).await;
    assert_eq!(ask(world, cancelled, super::acting::CANCEL, at(10)).await.answer, Ok(()));
    world.suppress(b"ended", "all", Some(at(10))).await;
    world.suppress(b"for good", "all", None).await;
    let mut lined = world.email("lined");
    lined.ordering_key = Some("order-7".to_owned());
    world.taken(lined).await;
    let head = world.claim(10, at(5)).await.remove(0);
    world.moved(&head, accepted(), at(10)).await;
    let ask = Ask { key: "account:1".to_owned(), day: at(10), cap: 9, bound: 9, wanted: 1 };
    world.store.quotas().draw_calls(&[ask]).await.unwrap();
    let mut waits = world.email("waits");
    waits.ordering_key = Some("order-8".to_owned());
    world.taken(waits).await;

    for (table, condition, kept) in [
        ("ordering_lanes", "ordering_key = 'order-7'", IDLE_LINES_KEPT),
        ("sandbox_messages", "true", keep.content),
        ("quota_pools", "true", QUOTAS_KEPT),
        ("suppressions", "expires_at IS NOT NULL", keep.metadata),
        ("audit_log", "true", AUDIT_KEPT),
    ] {
        let over = at(10).plus(kept);
        while world.store.keeping().purge_rest(&keep, over.minus(Duration::from_secs(1))).await.unwrap() > 0 {}
        assert_eq!(world.count(table, condition).await, 1, "{table} before its time");
        while world.store.keeping().purge_rest(&keep, over.plus(Duration::from_secs(1))).await.unwrap() > 0 {}
        assert_eq!(world.count(table, condition).await, 0, "{table} after its time");
    }
    assert_eq!(world.count("ordering_lanes", "head IS NOT NULL").await, 1, "somebody stands in it");
    assert_eq!(world.count("suppressions", "true").await, 1, "it has no end");

    let next = world.store.register_instance(at(0).plus(INSTANCES_KEPT).plus(Duration::from_secs(5)), b"").await.unwrap();
    while world.store.keeping().purge_rest(&keep, at(1).plus(INSTANCES_KEPT)).await.unwrap() > 0 {}
    assert_eq!(world.count("instances", "true").await, 1, "who is gone is forgotten");
    assert_eq!(world.count("instances", &format!("id = {next}")).await, 1);
    // A line that comes to life again begins anew.
    let mut again = world.email("again");
    again.ordering_key = Some("order-7".to_owned());
    let again = world.taken(again).await;
    assert!(world.claim(10, at(20)).await.iter().any(|delivery| delivery.id == again));
}
