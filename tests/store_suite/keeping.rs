//! Promises about what is kept and for how long: each kind to its bound, nothing that is open, and everything in its time.

use std::time::Duration;

use tidings_core::acts::Verb;
use tidings_core::ids::DeliveryId;
use tidings_core::outcome::Outcome;
use tidings_core::retention::{Kept, Retention};
use tidings_core::state::State;
use tidings_core::store::{Accepted, Asked, FeedPosition, FeedQuery, Sweep, Window};
use tidings_core::words::{Channel, Class, Mode};
use uuid::Uuid;

use super::World;
use super::acting::{again, dead, done, unknown};
use super::suppressing::refused;
use super::telling::told;
use super::world::{accept_at, accepted, at, destination};

pub(super) const DAY: i64 = 86_400;

/// Walks over everything once; returns of how many something was erased.
pub(super) async fn erase(world: &World, kept: Kept, now: i64) -> u64 {
    let (keep, keeping) = (Retention::default(), world.store.keeping());
    let (mut after, mut erased) = (None, 0);
    loop {
        let due = keeping.due(kept, &keep, after, at(now)).await.expect("a step");
        for chunk in due.chunks(keeping.rows_at_once()) {
            erased += keeping.erase(kept, &keep, chunk, at(now)).await.expect("a chunk");
        }
        after = due.next;
        if after.is_none() {
            return erased;
        }
    }
}

/// Whether there is content that could be sent.
pub(super) async fn has_body(world: &World, id: DeliveryId) -> bool {
    let content = world.store.listing().content(world.tenant, Mode::Live, id.notification()).await.expect("a read");
    content.expect("the notification is there").body.is_some()
}

async fn is_there(world: &World, id: DeliveryId) -> bool {
    world.store.notification(world.tenant, Mode::Live, id.notification()).await.expect("a read").is_some()
}

/// S-031: whatever went, what is left holds together.
async fn holds_together(world: &World) {
    assert_eq!(world.store.audit(at(-3_600), at(3_600), at(0)).await.unwrap(), []);
}

/// One email that was accepted at `at(2)`.
async fn sent(world: &World, key: &str) -> DeliveryId {
    let delivery = world.dispatched(key, at(1)).await;
    world.moved(&delivery, accepted(), at(2)).await.id
}

/// S-215, S-025: content goes some time after the end, later where somebody may have to judge it, and never before an end.
pub async fn content_goes_when_its_time_is_over(world: &World) {
    let sent = sent(world, "sent").await;
    let doubtful = world.dispatched("doubtful", at(1)).await;
    world.moved(&doubtful, Outcome::Ambiguous, at(2)).await;
    let mut waits = world.email("waits");
    waits.deliveries[0].available_at = at(60 * DAY);
    waits.expires_at = at(90 * DAY);
    let waits = world.taken(waits).await;

    assert_eq!(erase(world, Kept::Content, 7 * DAY + 1).await, 0);
    assert_eq!(erase(world, Kept::Content, 7 * DAY + 2).await, 1);
    assert!(!has_body(world, sent).await && has_body(world, doubtful.id).await && has_body(world, waits).await);
    erase(world, Kept::Content, 40 * DAY).await;
    assert!(has_body(world, doubtful.id).await, "an open delivery keeps its content");

    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(40 * DAY)).await.unwrap();
    world.store.sweep(&world.rules, Sweep::PastExpiry, 100, at(40 * DAY)).await.unwrap();
    assert!(!world.state(doubtful.id).await.is_open());
    erase(world, Kept::Content, 54 * DAY - 1).await;
    assert!(has_body(world, doubtful.id).await, "nobody has judged it yet");
    erase(world, Kept::Content, 54 * DAY).await;
    assert!(!has_body(world, doubtful.id).await && has_body(world, waits).await);
    assert!(world.store.by_key(world.tenant, Mode::Live, "sent").await.unwrap().is_some(), "the record stays");
    assert!(world.stored(sent).await.address.is_some());
}

/// A walk over more than one chunk reaches everything, and whole notifications alone.
pub async fn everything_is_reached_chunk_by_chunk(world: &World) {
    for n in 0..4 {
        let mut items: Vec<_> = (0..90).map(|m| world.email(&format!("{n}-{m}"))).collect();
        let id = items[0].id;
        let many = (2..=200).map(|ordinal| destination(id, ordinal, world.lane(Class::Transactional)));
        items[0].deliveries.extend(many);
        assert!(world.accept(items).await.iter().all(Result::is_ok));
        loop {
            let claimed = world.claim(100, at(1)).await;
            if claimed.is_empty() {
                break;
            }
            let reports = claimed.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
            world.finish_all(reports, at(2)).await;
        }
    }
    assert_eq!(erase(world, Kept::Content, 8 * DAY).await, 360);
    assert_eq!(world.count("deliveries", "address IS NULL").await, 0);
    erase(world, Kept::Destinations, 31 * DAY).await;
    assert_eq!(world.count("deliveries", "address IS NOT NULL OR ref IS NOT NULL OR copies IS NOT NULL").await, 0);
    assert_eq!(erase(world, Kept::Records, 91 * DAY).await, 360);
    for table in ["notifications", "deliveries", "attempts"] {
        assert_eq!(world.count(table, "true").await, 0, "{table}");
    }
}

/// S-009, S-215: to the second, with the last of its deliveries; the key is free with it, and the record stays.
pub async fn addresses_go_when_the_key_is_free(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries.push(destination(item.id, 2, world.lane(Class::Transactional)));
    world.taken(item.clone()).await;
    let claimed = world.claim(100, at(1)).await;
    world.moved(&claimed[0], accepted(), at(2)).await;
    let with_copies =
        tidings_core::transition::Finish { copies: Some(b"0sealed".to_vec()), ..world.report(&claimed[1], accepted(), at(50)) };
    world.finish_all(vec![with_copies], at(50)).await;
    let stored = |ordinal: u16| world.stored(item.id.delivery(ordinal));

    assert_eq!(erase(world, Kept::Destinations, 30 * DAY + 49).await, 0);
    assert!(stored(1).await.address.is_some() && stored(1).await.reference.is_some());
    assert_eq!(world.store.by_key(world.tenant, Mode::Live, "order-1").await.unwrap(), Some(item.as_holder()));

    assert_eq!(erase(world, Kept::Destinations, 30 * DAY + 50).await, 1);
    for ordinal in [1, 2] {
        let stored = stored(ordinal).await;
        assert_eq!((stored.address, stored.reference, stored.copies), (None, None, None));
        assert_eq!((stored.delivery.state, stored.attempts.len()), (State::Accepted, 1));
    }
    assert_eq!(world.store.by_key(world.tenant, Mode::Live, "order-1").await.unwrap(), None);
    let new = world.email("order-1");
    assert_eq!(accept_at(&world.store, &world.rules, vec![new.clone()], at(30 * DAY + 50)).await.remove(0).unwrap(), Accepted::Taken);

    erase(world, Kept::Destinations, 60 * DAY).await;
    let holder = world.store.by_key(world.tenant, Mode::Live, "order-1").await.unwrap();
    assert_eq!(holder, Some(new.as_holder()), "the key is the next one's now");
    assert!(world.stored(new.deliveries[0].id).await.address.is_some());
    holds_together(world).await;
}

/// S-215, S-025, S-157: the record goes as a whole and alone; what is open, younger by its last end, or waits for somebody's
/// judgement stays, and so does what was learnt from it.
pub async fn records_go_when_nothing_is_expected_of_them(world: &World) {
    let unknown = unknown(world, "unknown").await;
    let dead = dead(world, "dead").await;
    let gone = sent(world, "gone").await;
    let bounced = world.dispatched("bounced", at(1)).await;
    world.moved(&bounced, refused(true, false), at(2)).await;
    // The suite's addresses are matched by the ids of their deliveries.
    let digest = bounced.id.as_uuid().as_bytes().to_vec();
    let resent = sent(world, "resent").await;
    done(world, resent, again(Some(2)), at(13 * DAY)).await;
    let claimed = world.claim(10, at(13 * DAY)).await;
    world.moved(&claimed[0], accepted(), at(13 * DAY)).await;
    let mut half = world.email("half");
    half.deliveries.push(destination(half.id, 2, world.lane(Class::Transactional)));
    half.deliveries[1].available_at = at(200 * DAY);
    half.expires_at = at(300 * DAY);
    let half = world.taken(half).await;
    let claimed = world.claim(10, at(1)).await;
    world.moved(&claimed[0], accepted(), at(2)).await;
    let before = told(world).await;

    assert_eq!(erase(world, Kept::Records, 90 * DAY + 1).await, 0);
    assert_eq!(erase(world, Kept::Records, 90 * DAY + 2).await, 2);
    for (id, stays) in [(gone, false), (bounced.id, false), (resent, true), (half, true), (dead, true), (unknown, true)] {
        assert_eq!(is_there(world, id).await, stays, "{id}");
    }
    let (id, row) = (world.db.id(gone.as_uuid()), world.db.id(gone.notification().as_uuid()));
    for (table, condition) in
        [("deliveries", format!("id = {id}")), ("attempts", format!("delivery_id = {id}")), ("notifications", format!("id = {row}"))]
    {
        assert_eq!(world.count(table, &condition).await, 0, "{table}");
    }
    let listing = world.store.listing();
    assert!(listing.delivery(world.tenant, Mode::Live, gone).await.unwrap().is_none());
    assert!(listing.content(world.tenant, Mode::Live, gone.notification()).await.unwrap().is_none());
    let asked = Asked { tenant: world.tenant, mode: Mode::Live, channel: Channel::Email, digests: vec![digest] };
    let suppressed = world.store.suppressions().of(&asked).await.unwrap();
    assert_eq!(suppressed.iter().map(|row| row.delivery).collect::<Vec<_>>(), [Some(bounced.id)]);
    assert!(suppressed[0].address.is_some(), "it has its own");

    // A place in a list or in the feed is no row: both go on from where their reader stood.
    let window = |before| Window { tenant: world.tenant, from: Uuid::nil(), before, rows: 100, with_deliveries: true, with_metadata: true };
    let scan = listing.scan(&window(gone.notification().as_uuid())).await.unwrap();
    assert!(scan.seen.iter().all(|seen| seen.id < gone.notification()) && !scan.seen.is_empty());
    assert_eq!(listing.scan(&window(Uuid::max())).await.unwrap().seen.len(), 4);
    let after = told(world).await;
    assert_eq!(after.iter().map(|event| event.position).collect::<Vec<_>>(), before.iter().map(|event| event.position).collect::<Vec<_>>());
    assert!(after.iter().filter(|event| event.delivery == gone).all(|event| event.subject.is_none()));

    assert_eq!(erase(world, Kept::Records, 103 * DAY - 1).await, 0);
    assert_eq!(erase(world, Kept::Records, 103 * DAY).await, 1);
    for id in [dead, unknown] {
        done(world, id, Verb::Discard, at(103 * DAY)).await;
    }
    erase(world, Kept::Records, 400 * DAY).await;
    assert!(!is_there(world, dead).await && !is_there(world, unknown).await && is_there(world, half).await);
    let new = accept_at(&world.store, &world.rules, vec![world.email("gone")], at(90 * DAY + 2)).await.remove(0).unwrap();
    assert_eq!(new, Accepted::Taken, "its key was freed with it");
    holds_together(world).await;
}

/// S-206: who stands before what was purged is told so; who stands behind it goes on.
pub async fn purged_events_are_never_stepped_over_silently(world: &World) {
    let first = world.dispatched("first", at(1)).await;
    world.moved(&first, accepted(), at(2)).await;
    let query = |after| FeedQuery { tenant: world.tenant, mode: Mode::Live, with_installation: false, types: Vec::new(), after, limit: 10 };
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
