//! Promises about what is kept and for how long.

use std::time::Duration;

use tidings_core::ids::DeliveryId;
use tidings_core::outcome::Outcome;
use tidings_core::retention::Retention;
use tidings_core::store::{FeedPosition, FeedQuery, Sweep};
use tidings_core::words::Mode;

use super::World;
use super::world::{accepted, at};

const DAY: i64 = 86_400;

/// Walks over everything once; returns how much was erased.
async fn erase(world: &World, now: i64) -> u64 {
    let (mut after, mut erased) = (None, 0);
    loop {
        let walked = world.store.keeping().erase_content(&Retention::default(), after, at(now)).await.expect("a step");
        erased += walked.erased;
        after = walked.next;
        if after.is_none() {
            return erased;
        }
    }
}

async fn has_body(world: &World, id: DeliveryId) -> bool {
    world.store.outgoing(&[id]).await.expect("a read")[0].body.is_some()
}

/// S-215, S-025: content goes some time after the end, later where somebody may have to judge it, and never before an end.
pub async fn content_goes_when_its_time_is_over(world: &World) {
    let sent = world.dispatched("sent", at(1)).await;
    world.moved(&sent, accepted(), at(2)).await;
    let doubtful = world.dispatched("doubtful", at(1)).await;
    world.moved(&doubtful, Outcome::Ambiguous, at(2)).await;
    let mut waits = world.email("waits");
    waits.deliveries[0].available_at = at(60 * DAY);
    waits.expires_at = at(90 * DAY);
    let waits = world.taken(waits).await;

    assert_eq!(erase(world, 7 * DAY).await, 0);
    assert_eq!(erase(world, 7 * DAY + 2).await, 1);
    assert!(!has_body(world, sent.id).await && has_body(world, doubtful.id).await && has_body(world, waits).await);
    assert_eq!(erase(world, 40 * DAY).await, 0, "an open delivery keeps its content");

    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(40 * DAY)).await.unwrap();
    world.store.sweep(&world.rules, Sweep::PastExpiry, 100, at(40 * DAY)).await.unwrap();
    assert!(!world.state(doubtful.id).await.is_open());
    assert_eq!(erase(world, 53 * DAY).await, 0, "nobody has judged it yet");
    assert_eq!(erase(world, 54 * DAY).await, 1);
    assert!(!has_body(world, doubtful.id).await && has_body(world, waits).await);
    assert!(world.store.by_key(world.tenant, Mode::Live, "sent").await.unwrap().is_some(), "the record stays");
    assert!(world.stored(sent.id).await.address.is_some());
}

/// A walk over more than one chunk reaches everything, and does not erase again what is gone.
pub async fn content_is_erased_chunk_by_chunk(world: &World) {
    for n in 0..3 {
        let items = (0..90).map(|m| world.email(&format!("{n}-{m}"))).collect();
        assert!(world.accept(items).await.iter().all(Result::is_ok));
        let reports = world.claim(90, at(1)).await.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
        world.finish_all(reports, at(2)).await;
    }
    assert_eq!(erase(world, 8 * DAY).await, 270);
    assert_eq!(erase(world, 8 * DAY).await, 0);
}

/// S-206: who stands before what was purged is told so; who stands behind it goes on.
pub async fn purged_events_are_never_stepped_over_silently(world: &World) {
    let first = world.dispatched("first", at(1)).await;
    world.moved(&first, accepted(), at(2)).await;
    let query = |after| FeedQuery { tenant: world.tenant, mode: Mode::Live, types: Vec::new(), after, limit: 10 };
    let start = FeedPosition { pos: 0, n: 0 };
    // A week goes as a whole where each has a partition of its own.
    while world.store.keeping().purge_events(at(2)).await.unwrap() > 0 {}
    assert_eq!(world.count("events", "true").await, 2, "what is not older stays");
    while world.store.keeping().purge_events(at(14 * DAY)).await.unwrap() > 0 {}
    assert_eq!(world.count("events", "true").await, 0);
    assert!(world.store.feed().events(&query(Some(start))).await.unwrap().is_none());

    let second = world.dispatched("second", at(10)).await;
    world.moved(&second, accepted(), at(11)).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let page = world.store.feed().events(&query(None)).await.unwrap().expect("the oldest kept is never gone");
        seen = page.events;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(seen.iter().all(|event| event.delivery == second.id));
    assert!(world.store.feed().events(&query(Some(seen[0].position))).await.unwrap().is_some());
}

/// S-068: a window has one run, whoever asks.
pub async fn a_window_has_one_run(world: &World) {
    let mut taken = 0;
    for store in world.stores().iter().chain(&world.stores()) {
        taken += u32::from(store.keeping().take_run("retention", at(0), world.instance, at(1)).await.unwrap());
    }
    assert_eq!(taken, 1);
    assert!(world.store.keeping().take_run("retention", at(3_600), world.instance, at(3_601)).await.unwrap());
    assert!(world.store.keeping().take_run("retention", at(9 * DAY), world.instance, at(9 * DAY)).await.unwrap());
    assert_eq!(world.count("sweep_runs", "true").await, 1, "old runs are forgotten");
}
