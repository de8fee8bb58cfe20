//! What lists promise: every row once, in order, in bounded steps, and nothing of others.

use std::collections::BTreeSet;

use tidings_core::ids::NotificationId;
use tidings_core::listing::SeenDelivery;
use tidings_core::state::State;
use tidings_core::store::{NewNotification, Scan, StoredContent, Window};
use tidings_core::words::{Channel, Class, Mode};
use uuid::Uuid;

use super::World;
use super::world::{accepted, at, destination, unique_id};

fn window(world: &World, before: Uuid, rows: usize) -> Window {
    Window { tenant: world.tenant, from: Uuid::nil(), before, rows, with_deliveries: false, with_metadata: false }
}

fn ids(scan: &Scan) -> Vec<NotificationId> {
    scan.seen.iter().map(|seen| seen.id).collect()
}

/// Accepts `count` emails; their ids, newest first.
async fn filled(world: &World, count: usize) -> Vec<NotificationId> {
    let items: Vec<NewNotification> = (0..count).map(|n| world.email(&format!("order-{}-{n}", unique_id(at(0))))).collect();
    let mut ids: Vec<NotificationId> = items.iter().map(|item| item.id).collect();
    world.accept(items).await;
    ids.sort();
    ids.reverse();
    ids
}

/// S-199: newest first; `reached` only where there may be more.
pub async fn a_window_is_looked_at_newest_first_and_says_where_it_ended(world: &World) {
    let all = filled(world, 5).await;
    let listing = world.store.listing();

    let first = listing.scan(&window(world, Uuid::max(), 2)).await.unwrap();
    assert_eq!((ids(&first), first.reached), (all[..2].to_vec(), Some(all[1].as_uuid())));
    let rest = listing.scan(&window(world, all[1].as_uuid(), 10)).await.unwrap();
    assert_eq!((ids(&rest), rest.reached), (all[2..].to_vec(), None));

    let part = Window { from: all[3].as_uuid(), ..window(world, all[1].as_uuid(), 10) };
    assert_eq!(ids(&listing.scan(&part).await.unwrap()), all[2..=3]);
    let seen = &rest.seen[0];
    assert_eq!((seen.category.as_str(), seen.tags.len(), seen.delivery_count), ("receipt", 2, 1));
    assert_eq!((seen.metadata.as_ref(), seen.deliveries.len()), (None, 0), "what was not asked for is not read");
    assert_eq!(seen.ref_digest.as_ref().map(Vec::len), Some(34));
}

/// S-199: each row that was there from the start comes exactly once, and none twice.
pub async fn pages_hold_each_row_once_while_others_are_accepted(world: &World) {
    let there = filled(world, 40).await;
    let (mut before, mut walked) = (Uuid::max(), Vec::new());
    for page in 1.. {
        let scan = world.store.listing().scan(&window(world, before, 1 + page % 4)).await.unwrap();
        walked.extend(ids(&scan));
        filled(world, 3).await;
        match scan.reached {
            Some(reached) => before = reached,
            None => break,
        }
    }
    assert_eq!(walked.iter().collect::<BTreeSet<_>>().len(), walked.len(), "none twice");
    assert!(walked.is_sorted_by(|earlier, later| earlier > later), "newest first");
    assert!(there.iter().all(|id| walked.contains(id)), "none left out");
}

/// S-003: other tenants are not there; both modes are looked at, so that rows of the other one cost no extra look.
pub async fn a_window_is_of_its_tenant_and_tells_the_modes_apart(world: &World) {
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    let test = NewNotification { mode: Mode::Test, ..world.email("order-1") };
    let live = world.email("order-1");
    world.accept(vec![test.clone(), live.clone(), world.email_of(other, Class::Transactional, "order-1")]).await;

    let scan = world.store.listing().scan(&window(world, Uuid::max(), 10)).await.unwrap();
    let mut seen: Vec<_> = scan.seen.iter().map(|seen| (seen.id, seen.mode)).collect();
    seen.sort();
    assert_eq!(seen, [(test.id, Mode::Test), (live.id, Mode::Live)]);
    let listing = world.store.listing();
    assert_eq!(listing.notifications(world.tenant, Mode::Test, &[live.id]).await.unwrap().len(), 0);
    assert_eq!(listing.notifications(other, Mode::Live, &[live.id]).await.unwrap().len(), 0);
    assert!(listing.delivery(other, Mode::Live, live.id.delivery(1)).await.unwrap().is_none());
    assert!(listing.delivery(world.tenant, Mode::Test, live.id.delivery(1)).await.unwrap().is_none());
    assert!(listing.content(world.tenant, Mode::Test, live.id).await.unwrap().is_none());
}

/// An open delivery is what its queue row says, an ended one what its record does.
pub async fn facts_for_filters_are_those_of_the_moment(world: &World) {
    let ended = world.dispatched("ended", at(1)).await;
    world.moved(&ended, accepted(), at(2)).await;
    let waiting = world.email("waiting");
    world.taken(waiting.clone()).await;

    let asked = Window { with_deliveries: true, with_metadata: true, ..window(world, Uuid::max(), 10) };
    let scan = world.store.listing().scan(&asked).await.unwrap();
    let of = |id: NotificationId| scan.seen.iter().find(|seen| seen.id == id).unwrap();
    let digest = waiting.deliveries[0].address_digest.clone();
    assert_eq!(of(waiting.id).deliveries, [SeenDelivery { channel: Channel::Email, state: State::Queued, address_digest: digest }]);
    assert_eq!(of(waiting.id).metadata, waiting.metadata);
    assert_eq!(of(ended.id.notification()).deliveries[0].state, State::Accepted);
}

/// A list of huge notifications is looked at in smaller steps.
pub async fn a_scan_ends_before_it_holds_too_many_deliveries(world: &World) {
    let mut items = Vec::new();
    for n in 0..5 {
        let mut item = world.email(&format!("order-{n}"));
        let lane = item.deliveries[0].lane;
        item.deliveries = (1..=500).map(|ordinal| destination(item.id, ordinal, lane)).collect();
        items.push(item);
    }
    let (last, fourth) = (items[0].id, items[1].id);
    world.accept(items).await;

    let asked = Window { with_deliveries: true, ..window(world, Uuid::max(), 10) };
    let scan = world.store.listing().scan(&asked).await.unwrap();
    assert_eq!((scan.seen.len(), scan.reached), (4, Some(fourth.as_uuid())));
    assert!(scan.seen.iter().all(|seen| seen.deliveries.len() == 500));
    let rest = world.store.listing().scan(&Window { before: fourth.as_uuid(), ..asked }).await.unwrap();
    assert_eq!((ids(&rest), rest.reached), (vec![last], None));
}

/// The same facts as a read by id, newest first.
pub async fn several_notifications_are_read_as_one_is(world: &World) {
    let mut wide = world.email("wide");
    wide.deliveries.push(destination(wide.id, 2, wide.deliveries[0].lane));
    world.taken(wide.clone()).await;
    let narrow = world.dispatched("narrow", at(1)).await;
    world.moved(&narrow, accepted(), at(2)).await;

    let asked = [wide.id, narrow.id.notification(), unique_id(at(0))];
    let read = world.store.listing().notifications(world.tenant, Mode::Live, &asked).await.unwrap();
    assert_eq!(read.iter().map(|read| read.id).collect::<Vec<_>>(), [narrow.id.notification(), wide.id]);
    for several in read {
        let one = world.read(several.id.delivery(1)).await;
        assert_eq!(format!("{several:?}"), format!("{one:?}"));
    }
}

/// Its notification with this one alone.
pub async fn one_delivery_is_read_by_its_id(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries.push(destination(item.id, 2, item.deliveries[0].lane));
    world.taken(item.clone()).await;

    let listing = world.store.listing();
    let read = listing.delivery(world.tenant, Mode::Live, item.id.delivery(2)).await.unwrap().expect("it is there");
    assert_eq!(read.deliveries.iter().map(|stored| stored.delivery.id).collect::<Vec<_>>(), [item.id.delivery(2)]);
    assert_eq!((read.id, read.idempotency_key), (item.id, item.idempotency_key));
    assert!(listing.delivery(world.tenant, Mode::Live, item.id.delivery(3)).await.unwrap().is_none());
}

/// Erased content is told apart from what never was.
pub async fn content_is_read_until_it_is_erased(world: &World) {
    let item = world.email("order-1");
    world.taken(item.clone()).await;
    let listing = world.store.listing();
    let kept = listing.content(world.tenant, Mode::Live, item.id).await.unwrap();
    assert_eq!(kept, Some(StoredContent { schema_version: 1, body: Some(item.body) }));

    let id = world.db.id(item.id.as_uuid());
    let erased = world.db.execute(&format!("DELETE FROM contents WHERE id = {id}")).await.is_ok();
    if !erased {
        world.sql(&format!("UPDATE notifications SET body = NULL WHERE id = {id}")).await;
    }
    let gone = listing.content(world.tenant, Mode::Live, item.id).await.unwrap();
    assert_eq!(gone, Some(StoredContent { schema_version: 1, body: None }));
    assert_eq!(listing.content(world.tenant, Mode::Live, unique_id(at(0))).await.unwrap(), None);
}

/// As long as the entry is there.
pub async fn a_suppressed_delivery_names_the_entry(world: &World) {
    let item = world.email("order-1");
    let id = world.taken(item.clone()).await;
    world.suppress(&item.deliveries[0].address_digest, "all", None).await;
    world.claim(10, at(1)).await;
    assert_eq!(world.state(id).await, State::Suppressed);
    world.sql("UPDATE deliveries SET suppression_id = (SELECT id FROM suppressions)").await;

    let suppression = world.stored(id).await.suppression.expect("the entry is there");
    let told = (suppression.reason.as_deref(), suppression.scope.as_deref(), suppression.created_at);
    assert_eq!(told, (Some("hard_bounce"), Some("all"), Some(at(0))));
    world.sql("DELETE FROM suppressions").await;
    assert_eq!(world.stored(id).await.suppression.map(|behind| behind.reason), Some(None), "its id alone");
}

/// S-231: a row of a newer binary hides itself, not the page.
pub async fn a_row_with_an_unknown_word_is_left_out_of_lists(world: &World) {
    let all = filled(world, 3).await;
    world.write_unknown_word(all[1].delivery(1)).await;
    let read = world.store.listing().notifications(world.tenant, Mode::Live, &all).await.unwrap();
    assert_eq!(read.iter().map(|read| read.id).collect::<Vec<_>>(), [all[0], all[2]]);
}
