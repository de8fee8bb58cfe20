//! Partitions that are past: emptied ones go, what must stay moves, and nobody waits long for either.

use std::time::{Duration, Instant};

use sqlx::Connection as _;
use tidings_core::acts::Verb;
use tidings_core::ids::DeliveryId;
use tidings_core::retention::{Kept, Retention};
use tidings_core::store::{NewNotification, Sweep};
use tidings_core::time::Timestamp;

use super::world;
use crate::store_suite::{Database as _, World, accepted, answered, at, unique_id};

const DAY: Duration = Duration::from_secs(86_400);

/// An email that was accepted so many days after the world's beginning, and is due then.
fn email_of_day(world: &World, day: u32, key: &str) -> NewNotification {
    let now = at(0).plus(DAY * day);
    let mut item = world.email(key);
    item.id = unique_id(now);
    item.deliveries[0].id = item.id.delivery(1);
    item.deliveries[0].available_at = now;
    item.expires_at = now.plus(DAY * 300);
    item
}

async fn sent_on(world: &World, day: u32, key: &str) -> DeliveryId {
    let now = at(0).plus(DAY * day);
    let id = world.taken(email_of_day(world, day, key)).await;
    let claimed = world.claim(1, now).await.remove(0);
    assert_eq!(world.moved(&claimed, accepted(), now).await.id, id);
    id
}

async fn erase(world: &World, kept: Kept, now: Timestamp) {
    let (keep, keeping) = (Retention::default(), world.store.keeping());
    let due = keeping.due(kept, &keep, None, now).await.unwrap();
    for chunk in due.chunks(keeping.rows_at_once()) {
        keeping.erase(kept, &keep, chunk, now).await.unwrap();
    }
}

/// Gives back until nothing is left; returns how often something was.
async fn give_back(world: &World, now: Timestamp) -> u32 {
    let mut given = 0;
    while world.store.keeping().give_back(&Retention::default(), now).await.unwrap() {
        given += 1;
    }
    given
}

fn partitions(parent: &str) -> String {
    format!(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = '{parent}'::regclass AND inhrelid::regclass::text < '{parent}_20270301' \
            AND inhrelid::regclass::text ~ '\\d{{8}}$'"
    )
}

/// S-215: where nothing is left, nothing stays; a dead letter and a message that waits are found as before, and go in their
/// own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_partitions_are_dropped_and_what_must_stay_is_found() {
    let Some((world, database)) = world(1).await else { return };
    for day in [0, 1, 9, 20, 40] {
        sent_on(&world, day, &format!("sent-{day}")).await;
    }
    let mut letter = email_of_day(&world, 1, "dead");
    letter.deliveries[0].attempt_limit = 1;
    let dead = world.taken(letter).await;
    let claimed = world.claim(1, at(0).plus(DAY)).await.remove(0);
    world.moved(&claimed, answered(None), at(0).plus(DAY)).await;
    let mut later = email_of_day(&world, 9, "waits");
    later.deliveries[0].available_at = at(0).plus(DAY * 250);
    let waits = world.taken(later).await;

    let now = at(0).plus(DAY * 200);
    for kept in [Kept::Content, Kept::Destinations, Kept::Records] {
        erase(&world, kept, now).await;
    }
    assert!(give_back(&world, now).await > 10);

    for parent in ["notifications", "deliveries", "attempts", "contents", "envelopes"] {
        assert_eq!(database.number(&partitions(parent)).await, 0, "{parent}");
    }
    assert_eq!(world.stored(dead).await.attempts.len(), 1);
    assert!(world.stored(waits).await.delivery.state.is_waiting());
    assert!(world.store.outgoing(&[waits]).await.unwrap()[0].body.is_some());
    assert_eq!(world.count("deliveries", "true").await, 2);
    assert_eq!(world.store.audit(at(-3_600), at(0).plus(DAY * 60), at(0)).await.unwrap(), []);

    let discard = crate::store_suite::acting::on(world.tenant, dead, Verb::Discard);
    world.store.acts().act(&world.rules, &[discard], now).await.remove(0).unwrap().answer.unwrap();
    erase(&world, Kept::Records, at(0).plus(DAY * 600)).await;
    assert_eq!(world.count("deliveries_default", "true").await, 1);
    let claimed = world.claim(1, at(0).plus(DAY * 250)).await.remove(0);
    world.moved(&claimed, accepted(), at(0).plus(DAY * 250)).await;
    erase(&world, Kept::Records, at(0).plus(DAY * 340)).await;
    for table in ["notifications", "deliveries", "attempts", "contents", "idempotency"] {
        assert_eq!(world.count(table, "true").await, 0, "{table}");
    }
}

/// S-022, S-200: whoever uses the table is waited for only briefly, and so those who come after us wait only briefly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_in_use_is_left_to_the_next_run() {
    let Some((world, database)) = world(1).await else { return };
    let id = sent_on(&world, 0, "sent").await;
    let now = at(0).plus(DAY * 200);
    erase(&world, Kept::Records, now).await;
    let mut other = database.session().await;
    let mut open = other.begin().await.unwrap();
    for parent in ["notifications", "deliveries", "attempts", "contents", "envelopes"] {
        sqlx::query(sqlx::AssertSqlSafe(format!("SELECT FROM {parent} LIMIT 1"))).fetch_all(&mut *open).await.unwrap();
    }
    let before = database.number(&partitions("deliveries")).await;

    let refused = tokio::spawn({
        let store = world.store.clone();
        async move { store.keeping().give_back(&Retention::default(), now).await }
    });
    // Whoever comes behind the lock that is asked for goes on as soon as it is given up.
    let mut longest = Duration::ZERO;
    while !refused.is_finished() {
        let began = Instant::now();
        world.taken(email_of_day(&world, 1, &unique_id(at(0)).to_string())).await;
        longest = longest.max(began.elapsed());
    }
    assert!(!refused.await.unwrap().unwrap(), "nothing was dropped");
    assert_eq!(database.number(&partitions("deliveries")).await, before);
    assert!(longest < Duration::from_secs(1), "{longest:?}: the statements behind it were let go");

    open.rollback().await.unwrap();
    assert!(give_back(&world, now).await > 0);
    assert!(database.number(&partitions("deliveries")).await < before);
    assert!(world.store.listing().delivery(world.tenant, tidings_core::words::Mode::Live, id).await.unwrap().is_none());
}

/// In a hundred days of which a process sees each, no row lands in a default partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_many_days_have_partitions_of_their_own() {
    let Some((world, _)) = world(1).await else { return };
    for day in (0..100).step_by(2) {
        world.store.sweep(&world.rules, Sweep::LeaseExpired, 10, at(0).plus(DAY * day)).await.unwrap();
        sent_on(&world, day, &format!("sent-{day}")).await;
    }
    for table in ["notifications", "deliveries", "attempts", "contents", "events"] {
        assert_eq!(world.count(&format!("{table}_default"), "true").await, 0, "{table}");
        assert!(world.count(table, "true").await >= 50, "{table}");
    }
}
