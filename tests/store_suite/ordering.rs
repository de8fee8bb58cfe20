//! Promises about `ordering_key` and `collapse_key`: one after the other, and the newest alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidings_core::delivery::Delivery;
use tidings_core::ids::DeliveryId;
use tidings_core::outcome::Outcome;
use tidings_core::state::State;
use tidings_core::store::{NewNotification, Sweep, WriteBatch};
use tidings_core::transition::Landed;
use tidings_core::words::{Class, Mode, Reason};

use super::World;
use super::world::{accept_on, accepted, answered, at, claim_on, finish_of};

fn ordered(world: &World, key: &str, line: &str) -> NewNotification {
    NewNotification { ordering_key: Some(line.to_owned()), ..world.email(key) }
}

fn code(world: &World, key: &str) -> NewNotification {
    let mut item = world.email_of(world.tenant, Class::Critical, key);
    item.collapse_key = Some("login-code".to_owned());
    item.deliveries[0].address_digest = b"ada".to_vec();
    item
}

fn ids(claimed: &[Delivery]) -> Vec<DeliveryId> {
    claimed.iter().map(|delivery| delivery.id).collect()
}

/// S-076, S-077: only the head of a key goes out, over retries, until it is accepted or over; other keys do not wait.
pub async fn deliveries_of_one_key_go_out_one_after_the_other(world: &World) {
    let mut line = Vec::new();
    for n in 0..3 {
        line.push(world.taken(ordered(world, &format!("line-{n}"), "order-7")).await);
    }
    let other = world.taken(ordered(world, "other", "order-8")).await;
    let plain = world.taken(world.email("plain")).await;

    let first = world.claim(10, at(1)).await;
    let mut claimed = ids(&first);
    claimed.sort_unstable();
    assert_eq!(claimed, [line[0], other, plain]);
    assert!(world.stored(line[1]).await.delivery.blocked && world.stored(line[2]).await.delivery.blocked);
    let head = first.iter().find(|delivery| delivery.id == line[0]).unwrap();
    let waits = world.moved(head, answered(None), at(2)).await;
    assert_eq!(ids(&world.claim(10, at(2)).await), []);
    let again = world.claim(10, waits.available_at.unwrap()).await;
    assert_eq!(ids(&again), [line[0]]);
    world.moved(&again[0], accepted(), at(700)).await;
    let second = world.claim(10, at(700)).await;
    assert_eq!(ids(&second), [line[1]]);
    world
        .moved(&second[0], Outcome::Refused { by: tidings_core::outcome::Refusal::Content, reason: Reason::ContentRefused }, at(701))
        .await;
    assert_eq!(ids(&world.claim(10, at(701)).await), [line[2]]);
}

/// S-076: the same key of another mode is another line.
pub async fn a_line_belongs_to_its_mode(world: &World) {
    let live = world.taken(ordered(world, "live", "order-7")).await;
    let mut test = ordered(world, "test", "order-7");
    test.mode = Mode::Test;
    let test = world.taken(test).await;
    assert_eq!(ids(&world.claim(10, at(1)).await), [live, test]);
}

/// S-077: intakes of one key at the same moment get numbers without gap or double, and one head.
pub async fn intakes_of_one_key_at_once_are_numbered_without_gap(world: &World) {
    let stores = world.stores();
    let mut running = Vec::new();
    for n in 0..40 {
        let (store, rules, item) = (Arc::clone(&stores[n % stores.len()]), world.rules.clone(), ordered(world, &format!("n-{n}"), "key"));
        running.push(tokio::spawn(async move { accept_on(&store, &rules, vec![item]).await.remove(0) }));
    }
    for task in running {
        task.await.unwrap().unwrap();
    }
    // A key that is held takes no number.
    world.accept(vec![ordered(world, "n-0", "key"), ordered(world, "n-40", "key")]).await;
    assert_eq!(world.count("queue", "ordering_seq IS NOT NULL").await, 41);
    assert_eq!(world.db.number("SELECT count(DISTINCT ordering_seq) FROM queue").await, 41);
    assert_eq!(world.db.number("SELECT CAST(max(ordering_seq) AS bigint) FROM queue").await, 41);
    assert_eq!(world.claim(100, at(1)).await.len(), 1);
}

/// S-077: claimers at once, retries and lost leases do not change the order in which a key is accepted by providers.
pub async fn order_is_kept_by_any_number_of_claimers(world: &World) {
    const LINES: usize = 5;
    const LENGTH: usize = 6;
    let mut expected: HashMap<String, Vec<DeliveryId>> = HashMap::new();
    for n in 0..LENGTH {
        let batch: Vec<_> = (0..LINES).map(|line| ordered(world, &format!("{line}-{n}"), &format!("line-{line}"))).collect();
        for item in &batch {
            expected.entry(item.ordering_key.clone().unwrap()).or_default().push(item.deliveries[0].id);
        }
        assert!(world.accept(batch).await.iter().all(Result::is_ok));
    }
    let sent: Arc<std::sync::Mutex<Vec<DeliveryId>>> = Arc::default();
    let stores = world.stores();
    let mut running = Vec::new();
    for claimer in 0..4 {
        let (store, rules, plan) = (Arc::clone(&stores[claimer % stores.len()]), world.rules.clone(), world.plan(3, at(1)));
        let sent = Arc::clone(&sent);
        running.push(tokio::spawn(async move {
            let mut idle = 0;
            let mut now = at(1);
            while idle < 60 {
                now = now.plus(Duration::from_secs(1));
                let claimed = claim_on(&store, &rules, plan.clone(), now).await.unwrap().dispatched;
                idle = if claimed.is_empty() { idle + 1 } else { 0 };
                for delivery in claimed {
                    let is_taken = !rand::random::<u8>().is_multiple_of(3);
                    // The first retry comes soon; later ones would outlast the test.
                    let failure = if delivery.attempts_used == 0 { answered(None) } else { Outcome::NotStarted };
                    let outcome = if is_taken { accepted() } else { failure };
                    if is_taken {
                        sent.lock().unwrap().push(delivery.id);
                    }
                    let batch = WriteBatch { finish: vec![finish_of(&delivery, outcome, now)], ..WriteBatch::default() };
                    let landed = store.commit(&rules, batch, now).await.finish.remove(0).unwrap();
                    assert!(matches!(landed, Landed::Moved(..)), "{landed:?}");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                now = now.plus(Duration::from_secs(30));
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    let sent = sent.lock().unwrap();
    for (line, ids) in expected {
        let order: Vec<_> = sent.iter().filter(|id| ids.contains(id)).copied().collect();
        assert_eq!(order, ids, "{line}");
    }
}

/// S-077: what ends while it waits behind the head is stepped over; so is a head that ends without a call.
pub async fn a_follower_that_ends_is_stepped_over(world: &World) {
    let mut short = ordered(world, "short", "key");
    short.expires_at = at(50);
    let head = world.taken(ordered(world, "head", "key")).await;
    let gone = world.taken(short).await;
    let mut suppressed = ordered(world, "suppressed", "key");
    suppressed.deliveries[0].address_digest = b"blocked".to_vec();
    let blocked = world.taken(suppressed).await;
    let last = world.taken(ordered(world, "last", "key")).await;
    let claimed = world.claim(10, at(1)).await;
    assert_eq!(ids(&claimed), [head]);
    world.store.sweep(&world.rules, Sweep::PastExpiry, 100, at(60)).await.unwrap();
    assert_eq!(world.state(gone).await, State::Expired);
    assert!(world.stored(blocked).await.delivery.blocked);
    world.suppress(b"blocked", "all", None).await;
    world.moved(&claimed[0], accepted(), at(61)).await;
    assert_eq!(ids(&world.claim(10, at(62)).await), []);
    assert_eq!(world.state(blocked).await, State::Suppressed);
    assert_eq!(ids(&world.claim(10, at(62)).await), [last]);
}

/// S-077: a process that dies with the head holds the line no longer than the head itself is in doubt.
pub async fn a_lost_head_holds_its_line_until_it_ends(world: &World) {
    let head = world.taken(ordered(world, "head", "key")).await;
    let next = world.taken(ordered(world, "next", "key")).await;
    world.claim(10, at(1)).await;
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 100, at(100)).await.unwrap();
    assert_eq!(world.state(head).await, State::Ambiguous);
    assert_eq!(ids(&world.claim(10, at(100)).await), []);
    // The hold ends in a resend, which still goes before its successor.
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(3_000)).await.unwrap();
    let again = world.claim(10, at(3_000)).await;
    assert_eq!(ids(&again), [head]);
    world.moved(&again[0], accepted(), at(3_001)).await;
    assert_eq!(ids(&world.claim(10, at(3_001)).await), [next]);
}

/// S-078: a head that is held up lets one successor pass after 15 minutes, critical after 30 s, and it is told.
pub async fn a_stuck_head_lets_its_successor_pass_once(world: &World) {
    let critical = |key: &str| {
        let item = world.email_of(world.tenant, Class::Critical, key);
        NewNotification { ordering_key: Some("codes".to_owned()), ..item }
    };
    let fast_head = world.taken(critical("fast-head")).await;
    let fast_next = world.taken(critical("fast-next")).await;
    let head = world.taken(ordered(world, "head", "key")).await;
    let next = world.taken(ordered(world, "next", "key")).await;
    let third = world.taken(ordered(world, "third", "key")).await;
    let lone = world.taken(ordered(world, "lone", "lonely")).await;
    for delivery in world.claim(10, at(1)).await {
        world.moved(&delivery, Outcome::Ambiguous, at(2)).await;
    }
    let skip = async |now| {
        let mut skipped: Vec<_> = world.store.ordering().skip_stuck(100, now).await.unwrap().iter().map(|swept| swept.id).collect();
        skipped.sort_unstable();
        skipped
    };
    assert_eq!(skip(at(30)).await, []);
    assert_eq!(skip(at(32)).await, [fast_next]);
    assert_eq!(skip(at(800)).await, []);
    assert_eq!(skip(at(901)).await, [next]);
    assert_eq!(skip(at(901)).await, []);
    assert!(world.stored(third).await.delivery.blocked);
    assert_eq!(world.count("events", "type = 'lane_skipped' AND state = 'ambiguous'").await, 2);
    assert_eq!(
        (world.state(fast_head).await, world.state(head).await, world.state(lone).await),
        (State::Ambiguous, State::Ambiguous, State::Ambiguous)
    );

    // The one that passed is the head now: the old one's end frees nobody.
    let claimed = world.claim(10, at(901)).await;
    let mut passed = ids(&claimed);
    passed.sort_unstable();
    assert!(passed.contains(&next) && !passed.contains(&third), "{passed:?}");
    world.store.sweep(&world.rules, Sweep::ChecksDue, 100, at(20_000)).await.unwrap();
    assert!(world.stored(third).await.delivery.blocked);
    let moved = claimed.iter().find(|delivery| delivery.id == next).unwrap();
    world.moved(moved, accepted(), at(20_001)).await;
    assert!(!world.stored(third).await.delivery.blocked);
}

/// S-078: a head that nobody has called is not stuck, and one that is gone from the queue is passed.
pub async fn a_head_that_was_never_called_keeps_its_place(world: &World) {
    let head = world.taken(ordered(world, "head", "key")).await;
    let next = world.taken(ordered(world, "next", "key")).await;
    assert_eq!(world.store.ordering().skip_stuck(100, at(5_000)).await.unwrap(), []);
    // As a binary would leave it that does not know of order.
    let id = world.db.id(head.as_uuid());
    world.sql(&format!("DELETE FROM queue WHERE id = {id}")).await;
    let passed = world.store.ordering().skip_stuck(100, at(5_000)).await.unwrap();
    assert_eq!(passed.iter().map(|swept| swept.id).collect::<Vec<_>>(), [next]);
    assert_eq!(ids(&world.claim(10, at(5_000)).await), [next]);
}

/// S-079: three codes during a stall: the last one alone is sent.
pub async fn of_codes_in_a_stall_the_last_alone_is_sent(world: &World) {
    let first = world.taken(code(world, "code-1")).await;
    let second = world.taken(code(world, "code-2")).await;
    let mut elsewhere = code(world, "code-bob");
    elsewhere.deliveries[0].address_digest = b"bob".to_vec();
    let bob = world.taken(elsewhere).await;
    let third = world.taken(code(world, "code-3")).await;

    for older in [first, second] {
        let delivery = world.stored(older).await.delivery;
        assert_eq!((delivery.state, delivery.reason), (State::Superseded, Some(Reason::Collapsed)));
    }
    let mut claimed = ids(&world.claim(10, at(1)).await);
    claimed.sort_unstable();
    assert_eq!(claimed, [bob, third]);
    assert_eq!(world.count("events", "type = 'superseded'").await, 2);
    assert_eq!(world.count("events", "type = 'completed' AND state = 'superseded'").await, 2);
}

/// S-079: in one batch too.
pub async fn of_codes_in_one_batch_the_last_alone_is_sent(world: &World) {
    let items: Vec<_> = (0..3).map(|n| code(world, &format!("code-{}", 9 - n))).collect();
    let last = items[2].deliveries[0].id;
    assert!(world.accept(items).await.iter().all(Result::is_ok));
    assert_eq!(ids(&world.claim(10, at(1)).await), [last]);
}

/// S-079: what may be on its way already is not sent again.
pub async fn a_newer_code_stops_the_resend_of_a_running_one(world: &World) {
    let first = world.taken(code(world, "code-1")).await;
    let running = world.claim(10, at(1)).await;
    assert_eq!(ids(&running), [first]);
    let second = world.taken(code(world, "code-2")).await;
    assert_eq!(world.state(first).await, State::Dispatching);
    world.moved(&running[0], answered(None), at(2)).await;
    // Back in the queue, it makes way when it is judged again.
    let claimed = world.claim(10, at(5_000)).await;
    assert!(!ids(&claimed).contains(&first), "{claimed:?}");
    let over = world.stored(first).await.delivery;
    assert_eq!((over.state, over.reason), (State::Superseded, Some(Reason::Collapsed)));
    assert_ne!(world.state(second).await, State::Superseded);
}

/// S-079: two that were accepted at the same moment in two processes are told apart when they are judged.
pub async fn a_claim_looks_once_more_for_a_newer_one(world: &World) {
    let older = world.taken(code(world, "code-1")).await;
    let mut unkeyed = code(world, "code-2");
    unkeyed.collapse_key = None;
    let newer = world.taken(unkeyed).await;
    // As if neither had seen the other.
    let id = world.db.id(newer.as_uuid());
    world.sql(&format!("UPDATE queue SET collapse_key = 'login-code' WHERE id = {id}")).await;
    assert_eq!(ids(&world.claim(10, at(1)).await), [newer]);
    assert_eq!(world.state(older).await, State::Superseded);
}
