//! Rates that processes share: whoever draws, and whoever dies with what it drew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidings_core::slices::{Ask, Slice};
use tidings_core::store::Store;

use super::World;

/// Long enough that the rate counts for more than the burst.
const LONG: Duration = Duration::from_millis(1_500);

fn ask(key: &str, per_second: f64, burst: f64, least: u32, wanted: u32) -> Ask {
    Ask { key: key.to_owned(), per_second, burst, ahead: 0.0, least, wanted }
}

async fn draw(store: &Arc<dyn Store>, ask: &Ask) -> Slice {
    store.rates().draw(std::slice::from_ref(ask)).await.unwrap()[0]
}

/// S-085: of any number of callers at once so many are admitted as burst and rate allow.
pub async fn callers_at_once_are_given_burst_and_rate(world: &World) {
    let (burst, rate, begun) = (40.0, 50.0, Instant::now());
    // From here on it fills.
    let granted = Arc::new(AtomicU32::new(draw(&world.store, &ask("tenant:1", rate, burst, 1, 1)).await.granted));
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..64 {
        let (stores, granted) = (world.stores(), granted.clone());
        let store = stores[caller % stores.len()].clone();
        callers.spawn(async move {
            while start.elapsed() < LONG {
                let slice = draw(&store, &ask("tenant:1", rate, burst, 1, 1)).await;
                granted.fetch_add(slice.granted, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    while callers.join_next().await.is_some() {}
    // What came in while the last of them stopped.
    let least = burst + rate * start.elapsed().as_secs_f64() - 1.0;
    while draw(&world.store, &ask("tenant:1", rate, burst, 1, 1)).await.granted > 0 {
        granted.fetch_add(1, Ordering::Relaxed);
    }
    let (most, granted) = (burst + rate * begun.elapsed().as_secs_f64(), f64::from(granted.load(Ordering::Relaxed)));
    assert!(granted >= least && granted <= most, "{granted} of {least} to {most}");
}

/// S-086: processes that draw slices, and die with them at any moment, never have more than the rate in all.
pub async fn slices_add_up_to_the_rate_whoever_dies_with_them(world: &World) {
    let (rate, ahead, start) = (60.0, 60.0, Instant::now());
    let (granted, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut processes = tokio::task::JoinSet::new();
    for process in 0..4_u32 {
        let stores = world.stores();
        let store = stores[process as usize % stores.len()].clone();
        let (granted, lost) = (granted.clone(), lost.clone());
        processes.spawn(async move {
            let mut draws = 0;
            while start.elapsed() < LONG {
                let pace = Ask { ahead, ..ask("account:1", rate, 1.0, 1, 7 + process) };
                let store = store.clone();
                let drawing = tokio::spawn(async move { draw(&store, &pace).await });
                draws += 1;
                if draws % 5 == process % 5 {
                    // It dies while it draws.
                    drawing.abort();
                    lost.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(40)).await;
                } else if let Ok(slice) = drawing.await {
                    granted.fetch_add(slice.granted, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(8)).await;
            }
        });
    }
    while processes.join_next().await.is_some() {}
    assert!(lost.load(Ordering::Relaxed) > 4);
    let granted = f64::from(granted.load(Ordering::Relaxed));
    let most = 1.0 + ahead + rate * start.elapsed().as_secs_f64();
    assert!(granted <= most, "{granted} of {most}");
    assert!(granted >= 0.5 * most, "{granted} of {most}: what is lost with a process is a slice");
}

/// Slices come in the order of the asks, each from its own bucket; what does not suffice brings nothing.
pub async fn buckets_are_drawn_from_apart_and_all_or_nothing(world: &World) {
    let asks = [ask("tenant:2", 1.0, 100.0, 1, 10), ask("account:2", 1.0, 1.0, 1, 10), ask("tenant:1", 1.0, 30.0, 20, 20)];
    let granted = |slices: Vec<Slice>| slices.iter().map(|slice| slice.granted).collect::<Vec<_>>();
    assert_eq!(granted(world.store.rates().draw(&asks).await.unwrap()), [10, 1, 20]);
    assert_eq!(granted(world.store.rates().draw(&asks).await.unwrap()), [10, 0, 0]);
    assert_eq!(draw(&world.store, &ask("tenant:1", 1.0, 30.0, 5, 8)).await.granted, 5);
    assert!(world.store.rates().draw(&[]).await.unwrap().is_empty());
}

/// A rate that is changed holds from the next draw on, and gives nobody a new burst.
pub async fn a_changed_rate_holds_from_the_next_draw(world: &World) {
    assert_eq!(draw(&world.store, &ask("account:3", 1.0, 10.0, 10, 10)).await.granted, 10);
    let slice = draw(&world.store, &ask("account:3", 1_000.0, 10.0, 10, 10)).await;
    assert_eq!(slice.granted, 0, "until now it filled by one in a second");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(draw(&world.store, &ask("account:3", 1_000.0, 10.0, 10, 10)).await.granted, 10);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let lower = draw(&world.store, &ask("account:3", 1_000.0, 2.0, 2, 10)).await;
    assert_eq!(lower.granted, 2, "a bucket that became smaller holds no more than it can");
}
