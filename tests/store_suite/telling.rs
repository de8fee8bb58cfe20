//! Promises about events: what is told, once, and read without gap.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidings_core::delivery::EventType;
use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::outcome::{Outcome, Refusal};
use tidings_core::store::{FeedPage, FeedPosition, FeedQuery, NewNotification, Store, StoredEvent, Sweep, WriteBatch};
use tidings_core::words::{Class, Mode, Reason};

use super::World;
use super::world::{accept_on, accepted, answered, at, claim_on, destination};

/// What a reader of the world's tenant asks for.
pub(super) fn query(world: &World, after: Option<FeedPosition>, limit: i64) -> FeedQuery {
    FeedQuery { tenant: world.tenant, mode: Mode::Live, with_installation: false, types: Vec::new(), after, limit }
}

pub(super) async fn page(store: &Arc<dyn Store>, query: &FeedQuery) -> FeedPage {
    store.feed().events(query).await.expect("a page").expect("nothing was purged")
}

/// Waits until the feed has reached the last event. Transactions of others on the same server, of other tests too, may
/// still run; the feed does not go beyond them.
pub(super) async fn caught_up(world: &World) -> i64 {
    let last = world.db.number("SELECT CAST(coalesce(max(pos), 0) AS bigint) FROM events").await;
    while world.store.feed().end().await.expect("an end").pos < last {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    last
}

/// Everything that was told, in order.
pub(super) async fn told(world: &World) -> Vec<StoredEvent> {
    caught_up(world).await;
    let mut events = Vec::new();
    let mut asked = query(world, None, 200);
    loop {
        let page = page(&world.store, &asked).await;
        asked.after = Some(page.next);
        events.extend(page.events);
        if page.is_end {
            return events;
        }
    }
}

async fn types_of(world: &World, id: DeliveryId) -> Vec<String> {
    told(world).await.into_iter().filter(|event| event.delivery == id).map(|event| event.kind).collect()
}

fn several(world: &World, key: &str, count: u16) -> NewNotification {
    let mut item = world.email(key);
    item.deliveries = (1..=count).map(|ordinal| destination(item.id, ordinal, world.lane(Class::Transactional))).collect();
    item
}

fn refused() -> Outcome {
    Outcome::Refused { by: Refusal::Recipient { listed: false, hard: false }, reason: Reason::RecipientRefused }
}

/// S-201: an event stands beside the change that it tells of, with what it needs of the record.
pub async fn an_end_is_told_and_completes_its_notification(world: &World) {
    let delivery = world.dispatched("order-1", at(1)).await;
    let after = world.moved(&delivery, accepted(), at(2)).await;

    let events = told(world).await;
    let [ended, completed] = &events[..] else { panic!("{events:?}") };
    assert_eq!((ended.kind.as_str(), ended.previous.as_deref(), ended.state.as_str()), ("accepted", Some("dispatching"), "accepted"));
    assert_eq!((ended.version, ended.certainty.as_str(), ended.account), (after.version, "unconfirmed", Some(world.account)));
    assert_eq!((completed.kind.as_str(), completed.state.as_str(), completed.previous.as_deref()), ("completed", "accepted", None));
    assert!(events.iter().all(|event| event.delivery == delivery.id && event.at == at(2)));
    let subject = ended.subject.as_ref().unwrap();
    assert_eq!((subject.idempotency_key.as_str(), subject.category.as_str()), ("order-1", "receipt"));
    assert_eq!((subject.metadata.as_deref(), subject.reference.as_deref()), (Some(&[0, 1, 2, 255][..]), Some(&[0, 7][..])));
    assert_eq!((subject.provider_message_id.as_deref(), subject.tags.len()), (Some("4F1A"), 2));
}

/// Acceptance of a request, calls and waiting tell nothing.
pub async fn what_is_still_open_completes_nothing(world: &World) {
    let delivery = world.dispatched("order-1", at(1)).await;
    world.moved(&delivery, answered(None), at(2)).await;
    assert_eq!(told(world).await.len(), 0);
    let again = world.claim(10, at(10_000)).await.remove(0);
    world.moved(&again, Outcome::Ambiguous, at(10_001)).await;
    assert_eq!(types_of(world, delivery.id).await, ["ambiguous"]);
}

/// S-201: whichever way the last delivery ends, the notification completes then, with the status of all.
pub async fn a_notification_completes_with_its_last_delivery_alone(world: &World) {
    let item = several(world, "order-1", 4);
    let (id, digest) = (item.id, item.deliveries[2].address_digest.clone());
    world.taken(item).await;
    let two = world.claim(2, at(1)).await;
    world.moved(&two[0], accepted(), at(2)).await;
    world.moved(&two[1], refused(), at(2)).await;
    world.suppress(&digest, "all", None).await;
    let claimed = world.claim(1, at(3)).await;
    assert_eq!(told(world).await.iter().filter(|event| event.kind == "completed").count(), 0);
    let rest = if claimed.is_empty() { world.claim(10, at(4)).await } else { claimed };
    world.moved(&rest[0], answered(None), at(5)).await;
    world.store.sweep(&world.rules, Sweep::PastExpiry, 100, at(10_000_000)).await.unwrap();

    let events = told(world).await;
    let completed: Vec<_> = events.iter().filter(|event| event.kind == "completed").collect();
    assert_eq!(completed.len(), 1, "{events:?}");
    assert_eq!((completed[0].delivery.notification(), completed[0].state.as_str()), (id, "partially_failed"));
    assert_eq!(events.last().map(|event| event.kind.as_str()), Some("completed"));
    let sum: i32 = world.read(rest[0].id).await.deliveries.iter().map(|stored| stored.delivery.version).sum();
    assert_eq!(completed[0].version, sum);
}

/// S-201: deliveries of one notification that end at the same moment in different processes complete it once.
pub async fn deliveries_that_end_at_once_complete_once(world: &World) {
    let items: Vec<_> = (0..20).map(|n| several(world, &format!("order-{n}"), 4)).collect();
    let ids: HashSet<NotificationId> = items.iter().map(|item| item.id).collect();
    world.accept(items).await;
    let mut claimed = world.claim(200, at(1)).await;
    assert_eq!(claimed.len(), 80);
    claimed.sort_by_key(|delivery| std::cmp::Reverse((delivery.id.as_uuid().as_u128() & 0xfff, delivery.id)));
    let stores = world.stores();
    let mut running = Vec::new();
    for (place, part) in claimed.chunks(20).enumerate() {
        let (store, rules) = (Arc::clone(&stores[place % stores.len()]), world.rules.clone());
        let finish: Vec<_> = part.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
        running.push(tokio::spawn(async move {
            for item in finish {
                let batch = WriteBatch { finish: vec![item], ..WriteBatch::default() };
                assert!(store.commit(&rules, batch, at(2)).await.finish.iter().all(Result::is_ok));
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    let mut completed: HashMap<NotificationId, usize> = HashMap::new();
    for event in told(world).await.iter().filter(|event| event.kind == "completed") {
        *completed.entry(event.delivery.notification()).or_default() += 1;
    }
    assert_eq!(completed, ids.into_iter().map(|id| (id, 1)).collect());
}

/// S-199, S-206: pages follow each other; a filter leaves out, and `next` leads past what it left out.
pub async fn the_feed_is_read_page_by_page(world: &World) {
    let items = (0..7).map(|n| world.email(&format!("order-{n}"))).collect();
    world.accept(items).await;
    for delivery in world.claim(10, at(1)).await {
        world.moved(&delivery, accepted(), at(2)).await;
    }
    let all: Vec<_> = told(world).await.iter().map(|event| event.position).collect();
    assert_eq!(all.len(), 14);
    assert!(all.is_sorted_by(|a, b| a < b));
    let mut asked = query(world, None, 4);
    let mut seen = Vec::new();
    for expected in [4, 4, 4, 2, 0, 0] {
        let page = page(&world.store, &asked).await;
        assert_eq!((page.events.len(), page.is_end), (expected, expected < 4));
        assert!(asked.after.is_none_or(|after| page.next >= after));
        asked.after = Some(page.next);
        seen.extend(page.events.iter().map(|event| event.position));
    }
    assert_eq!(seen, all);

    let completed = FeedQuery { types: vec![EventType::Completed, EventType::Bounced], ..query(world, Some(all[3]), 200) };
    assert_eq!(page(&world.store, &completed).await.events.len(), 5);
    let none = FeedQuery { types: vec![EventType::Bounced], ..query(world, None, 200) };
    let empty = page(&world.store, &none).await;
    assert_eq!((empty.events.len(), empty.is_end), (0, true));
    assert!(empty.next > all[13]);
    assert_eq!(page(&world.store, &query(world, Some(world.store.feed().end().await.unwrap()), 10)).await.events.len(), 0);
}

/// S-210: events belong to their tenant and mode.
pub async fn others_see_no_events(world: &World) {
    let delivery = world.dispatched("order-1", at(1)).await;
    world.moved(&delivery, accepted(), at(2)).await;
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    for (tenant, mode) in [(other, Mode::Live), (world.tenant, Mode::Test), (TenantId(9_999), Mode::Live)] {
        let foreign = FeedQuery { tenant, mode, ..query(world, None, 10) };
        assert_eq!(page(&world.store, &foreign).await.events.len(), 0);
    }
}

/// A place before what was purged is told, never stepped over.
pub async fn a_place_before_the_floor_has_expired(world: &World) {
    let delivery = world.dispatched("order-1", at(1)).await;
    world.moved(&delivery, accepted(), at(2)).await;
    let events = told(world).await;
    let floor = events[1].position;
    world.sql(&format!("INSERT INTO feed_floors (tenant_id, mode, pos, n) VALUES ({}, 0, {}, {})", world.tenant, floor.pos, floor.n)).await;
    let before = FeedPosition { pos: events[0].position.pos - 1, n: 0 };
    assert!(world.store.feed().events(&query(world, Some(before), 10)).await.unwrap().is_none());
    assert!(world.store.feed().events(&query(world, Some(floor), 10)).await.unwrap().is_some());
    assert!(world.store.feed().events(&query(world, None, 10)).await.unwrap().is_some());
}

/// S-206: a reader that pages while every process commits, in whatever order, skips nothing and sees nothing twice.
pub async fn a_reader_that_pages_while_others_write_misses_nothing(world: &World) {
    const EACH: usize = 25;
    let stores = world.stores();
    let last = Arc::new(AtomicI64::new(i64::MAX));
    let reading = {
        let (store, last, mut asked) = (Arc::clone(&world.store), Arc::clone(&last), query(world, None, 7));
        tokio::spawn(async move {
            let mut seen: Vec<FeedPosition> = Vec::new();
            loop {
                let page = page(&store, &asked).await;
                asked.after = Some(page.next);
                seen.extend(page.events.iter().map(|event| event.position));
                if page.is_end && page.next.pos >= last.load(Ordering::SeqCst) {
                    return seen;
                }
            }
        })
    };
    let mut writing = Vec::new();
    for number in 0..4 {
        let store = Arc::clone(&stores[number % stores.len()]);
        let (rules, plan) = (world.rules.clone(), world.plan(8, at(1)));
        let items: Vec<_> = (0..EACH).map(|n| world.email(&format!("w{number}-{n}"))).collect();
        writing.push(tokio::spawn(async move {
            let mut claimed = Vec::new();
            for item in items {
                assert!(accept_on(&store, &rules, vec![item]).await.iter().all(Result::is_ok));
                claimed.extend(claim_on(&store, &rules, plan.clone(), at(1)).await.unwrap().dispatched);
                tokio::time::sleep(Duration::from_millis(u64::from(rand::random::<u8>() % 4))).await;
                let Some(delivery) = claimed.pop() else { continue };
                write_outcome(&store, &rules, &delivery).await;
            }
            for delivery in claimed {
                write_outcome(&store, &rules, &delivery).await;
            }
        }));
    }
    for task in writing {
        task.await.unwrap();
    }
    for delivery in world.claim(200, at(1)).await {
        world.moved(&delivery, accepted(), at(2)).await;
    }
    last.store(caught_up(world).await, Ordering::SeqCst);
    let seen = reading.await.unwrap();
    let all: Vec<_> = told(world).await.iter().map(|event| event.position).collect();
    assert_eq!(all.len(), 2 * 4 * EACH);
    assert_eq!(seen, all);
}

async fn write_outcome(store: &Arc<dyn Store>, rules: &tidings_core::policy::Rules, delivery: &tidings_core::delivery::Delivery) {
    let finish = super::world::finish_of(delivery, accepted(), at(2));
    let batch = WriteBatch { finish: vec![finish], ..WriteBatch::default() };
    assert!(store.commit(rules, batch, at(2)).await.finish.iter().all(Result::is_ok));
}

/// S-214: content of a sensitive kind goes in the transaction that ends the last delivery; its key still finds it.
pub async fn sensitive_content_ends_with_its_notification(world: &World) {
    let mut code = several(world, "code", 2);
    code.is_sensitive = true;
    let mut plain = world.email("plain");
    plain.is_sensitive = false;
    let (first, other) = (code.deliveries[0].id, plain.deliveries[0].id);
    world.accept(vec![code, plain]).await;
    let claimed = world.claim(10, at(1)).await;
    let has_body = async |id: DeliveryId| world.store.outgoing(&[id]).await.unwrap()[0].body.is_some();
    let of_code: Vec<_> = claimed.iter().filter(|delivery| delivery.id.notification() == first.notification()).collect();
    world.moved(of_code[0], accepted(), at(2)).await;
    assert!(has_body(first).await, "another delivery still needs it");
    world.moved(of_code[1], Outcome::Ambiguous, at(2)).await;
    assert!(has_body(first).await, "it may be sent again");
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(100_000)).await.unwrap();
    let again = world.claim(10, at(100_000)).await;
    for delivery in claimed.iter().filter(|delivery| delivery.id == other) {
        world.moved(delivery, accepted(), at(2)).await;
    }
    for delivery in &again {
        world.moved(delivery, accepted(), at(100_001)).await;
    }
    assert!(!world.state(of_code[1].id).await.is_open());
    assert!(!has_body(first).await);
    assert!(has_body(other).await);
    assert!(world.store.by_key(world.tenant, Mode::Live, "code").await.unwrap().is_some());
    assert!(world.stored(first).await.address.is_some(), "a replay repeats it");
}
