//! The counts of accounts' days: whoever draws, and whoever dies with what it drew.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidings_core::pool::{Ask, Drawn, Rest};
use tidings_core::store::Store;
use tidings_core::time::Timestamp;

use super::{World, at};

const HOUR: Duration = Duration::from_secs(3_600);

fn ask(key: &str, day: Timestamp, bound: i64, wanted: i64) -> Ask {
    Ask { key: key.to_owned(), day, cap: 100, bound, wanted }
}

async fn draw(store: &Arc<dyn Store>, ask: &Ask) -> Drawn {
    store.quotas().draw_calls(std::slice::from_ref(ask)).await.unwrap()[0]
}

async fn used(world: &World, key: &str, day: Timestamp) -> i64 {
    world.store.quotas().calls_used(&[(key.to_owned(), day)]).await.unwrap()[0]
}

/// S-086, S-090: of any number of processes that draw, give back and die at any moment, all together get no more than the
/// count allows, and what nobody died with is to be had.
pub async fn units_add_up_to_the_cap_whoever_dies_with_them(world: &World) {
    const CAP: i64 = 700;
    let (kept, lost) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut processes = tokio::task::JoinSet::new();
    for process in 0..8_usize {
        let stores = world.stores();
        let store = stores[process % stores.len()].clone();
        let (kept, lost) = (kept.clone(), lost.clone());
        processes.spawn(async move {
            let mut turns: VecDeque<usize> = (0..30).collect();
            while let Some(turn) = turns.pop_front() {
                let asked = ask("account:1", at(0), CAP, 3 + (turn % 7) as i64);
                let (store_of_draw, lost_of_draw) = (store.clone(), lost.clone());
                let drawing = tokio::spawn(async move {
                    let drawn = draw(&store_of_draw, &asked).await.granted;
                    lost_of_draw.fetch_add(drawn, Ordering::Relaxed);
                    drawn
                });
                if turn % 9 == process {
                    // It dies while it draws, or with what it drew.
                    drawing.abort();
                    let _ = drawing.await;
                    continue;
                }
                let drawn = drawing.await.unwrap();
                lost.fetch_sub(drawn, Ordering::Relaxed);
                let rest = if turn % 5 == 4 { drawn / 2 } else { 0 };
                if rest > 0 {
                    let rest = Rest { key: "account:1".to_owned(), day: at(0), units: rest };
                    store.quotas().give_calls_back(&[rest]).await.unwrap();
                }
                kept.fetch_add(drawn - rest, Ordering::Relaxed);
            }
        });
    }
    while let Some(ended) = processes.join_next().await {
        ended.unwrap();
    }
    loop {
        let drawn = draw(&world.store, &ask("account:1", at(0), CAP, 50)).await;
        assert!(drawn.used <= CAP);
        if drawn.granted == 0 {
            break;
        }
        kept.fetch_add(drawn.granted, Ordering::Relaxed);
    }
    let (kept, lost) = (kept.load(Ordering::Relaxed), lost.load(Ordering::Relaxed));
    assert!(kept + lost <= CAP, "{kept} and {lost} lost of {CAP}");
    assert!(kept >= CAP / 2, "{kept} of {CAP}: what is lost with a process is a slice");
    assert_eq!(used(world, "account:1", at(0)).await, CAP);
}

/// S-090: each class has its bound on the one count, and slices shrink towards it, as `Ask::grant` says.
pub async fn a_draw_goes_as_far_as_its_bound(world: &World) {
    let mut gone = 0;
    for (bound, wanted) in [(70, 50), (70, 50), (70, 3), (90, 1_000), (70, 0), (100, 2), (60, 9), (100, 1_000), (100, -1)] {
        let ask = ask("account:1", at(0), bound, wanted);
        let drawn = draw(&world.store, &ask).await;
        assert_eq!(drawn.granted, ask.grant(gone), "{bound} {wanted} of {gone}");
        gone += drawn.granted;
        assert_eq!(drawn.used, gone);
    }
    while draw(&world.store, &ask("account:1", at(0), 100, 1_000)).await.granted > 0 {}
    assert_eq!(draw(&world.store, &ask("account:1", at(0), 100, 5)).await, Drawn { granted: 0, used: 100 });
    // A cap that was raised holds from the next draw on, one that was lowered too.
    assert_eq!(draw(&world.store, &ask("account:1", at(0), 200, 5)).await.granted, 5);
    assert_eq!(draw(&world.store, &ask("account:1", at(0), 50, 5)).await.granted, 0);
}

/// S-085: days and accounts are counted apart, and answers come in the order of the asks.
pub async fn days_are_counted_apart_and_read_in_order(world: &World) {
    let next = at(0).plus(24 * HOUR);
    let asks = [ask("account:2", at(0), 70, 3), ask("account:1", at(0), 70, 2), ask("account:3", next, 70, 1)];
    for round in 1..=2 {
        let drawn = world.store.quotas().draw_calls(&asks).await.unwrap();
        assert_eq!(drawn.iter().map(|drawn| (drawn.granted, drawn.used)).collect::<Vec<_>>(), [(3, 3 * round), (2, 2 * round), (1, round)]);
    }
    assert_eq!(draw(&world.store, &ask("account:2", next, 70, 5)).await.used, 5, "a new day has everything again");
    let days = [("account:2", next), ("account:9", at(0)), ("account:2", at(0)), ("account:1", at(0))];
    let days = days.map(|(key, day)| (key.to_owned(), day));
    assert_eq!(world.store.quotas().calls_used(&days).await.unwrap(), [5, 0, 6, 4]);
    assert!(world.store.quotas().draw_calls(&[]).await.unwrap().is_empty());
    assert!(world.store.quotas().calls_used(&[]).await.unwrap().is_empty());
    world.store.quotas().give_calls_back(&[]).await.unwrap();
}

/// What comes back may be drawn again; more than was drawn never comes back.
pub async fn what_is_given_back_may_be_drawn_again(world: &World) {
    assert_eq!(draw(&world.store, &ask("account:1", at(0), 70, 8)).await.used, 8);
    let rest = |units| Rest { key: "account:1".to_owned(), day: at(0), units };
    let unknown = Rest { key: "account:9".to_owned(), day: at(0), units: 3 };
    world.store.quotas().give_calls_back(&[rest(5), unknown]).await.unwrap();
    assert_eq!((used(world, "account:1", at(0)).await, used(world, "account:9", at(0)).await), (3, 0));
    world.store.quotas().give_calls_back(&[rest(5)]).await.unwrap();
    assert_eq!(used(world, "account:1", at(0)).await, 0);
}

/// Where the zone of an account changes, its day begins at another instant: what was used of the one counts for the other.
pub async fn a_day_of_another_zone_is_the_same_day(world: &World) {
    assert_eq!(draw(&world.store, &ask("account:1", at(0), 70, 8)).await.used, 8);
    for (hours, expected) in [(2, 9), (21, 18), (24, 19)] {
        let drawn = draw(&world.store, &ask("account:1", at(0).plus(hours * HOUR), 70, 1)).await;
        assert_eq!(drawn, Drawn { granted: 1, used: expected }, "{hours} hours later");
    }
    assert_eq!(draw(&world.store, &ask("account:1", at(0).minus(24 * HOUR), 70, 1)).await.used, 1);
}
