//! Wake-ups between processes: they come, they are bundled, and a gap in them is told.

use std::time::Duration;

use tidings_core::ids::LaneId;
use tidings_store_postgres::{WakeListener, Woken};

use super::world;

async fn next(listener: &mut WakeListener) -> Woken {
    tokio::time::timeout(Duration::from_secs(10), listener.next()).await.expect("a wake-up comes")
}

/// Other processes hear of lanes with work, and many calls make few notifications.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_hears_of_every_lane() {
    let Some((_world, database)) = world(2).await else { return };
    let [here, there] = database.handles() else { panic!("two processes") };
    let mut listener = there.listen().await.unwrap();

    for n in 0..1_000 {
        here.notify(&[LaneId(n % 5)]);
    }

    let (mut heard, mut notifications) = (std::collections::BTreeSet::new(), 0);
    while heard.len() < 5 {
        let Woken::Lanes(lanes) = next(&mut listener).await else { panic!("nothing was missed") };
        heard.extend(lanes);
        notifications += 1;
    }
    assert!(notifications < 200, "{notifications} notifications for 1,000 calls");
}

/// S-024: what may have been missed is told, so that the listener polls at once; then it hears again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_lost_its_connection_says_so_and_hears_again() {
    let Some((world, database)) = world(1).await else { return };
    let store = &database.handles()[0];
    let mut listener = store.listen().await.unwrap();
    world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'").await;

    assert_eq!(next(&mut listener).await, Woken::Everything);
    store.notify(&[LaneId(7)]);
    loop {
        match next(&mut listener).await {
            Woken::Everything => {}
            Woken::Lanes(lanes) => break assert_eq!(lanes, [LaneId(7)]),
        }
    }
}
