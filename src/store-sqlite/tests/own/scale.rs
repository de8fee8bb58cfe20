//! Claims beside a million waiting rows, and purging beside intake, on SQLite.
//!
//! `cargo test --release -p tidings-store-sqlite --test suite scale -- --ignored --nocapture`

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{fresh, plans};
use crate::store_suite::World;
use crate::store_suite::scale::{Dialect, claims_at_scale, purging_at_scale};

const DIALECT: Dialect = Dialect {
    id: |prefix| format!("unhex('{prefix}' || printf('%016x', i))"),
    before: |instant| format!("{instant} - i * 1000"),
    numbers: |after, up_to| {
        format!("WITH RECURSIVE n (i) AS (SELECT {after} + 1 UNION ALL SELECT i + 1 FROM n WHERE i < {up_to}) SELECT i FROM n")
    },
    settle: "ANALYZE",
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "fills a million rows"]
async fn a_claim_costs_the_same_beside_a_million_waiting_rows() {
    let database = Arc::new(fresh::database().await);
    let world = World::new(database.clone()).await;
    let ratio = claims_at_scale(&world, &DIALECT).await;
    let due_rows = plans::statements().into_iter().find(|sql| sql.contains("q.schema_version <= ?5")).unwrap();
    let plan = database.plan(&due_rows).await.join("\n");
    println!("{plan}");
    assert!(plan.contains("SEARCH q USING INDEX queue_claim (lane=? AND tenant_id=? AND available_at>? AND available_at<?)"), "{plan}");
    assert!(ratio < 1.5, "{ratio:.2}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "erases fifty thousand notifications"]
async fn purging_outruns_intake() {
    let world = World::new(Arc::new(fresh::database().await)).await;
    let (rate, _) = purging_at_scale(&world, 50_000).await;
    println!("{rate:.0} notifications a second through all three steps");
    assert!(rate > 1_200.0, "{rate:.0}");
}

/// What a commit of 64 messages takes at worst, for some seconds of nothing else.
async fn longest_commit(world: &World, name: &str) -> Duration {
    let mut times = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(15) {
        let batch = times.len();
        let mut items: Vec<_> = (0..64).map(|n| world.email(&format!("{name}-{batch}-{n}"))).collect();
        items.iter_mut().for_each(|item| item.body = vec![7; 1_200]);
        let started = Instant::now();
        assert!(world.accept(items).await.iter().all(Result::is_ok));
        times.push(started.elapsed());
        // As the writer of the gateway does between two batches under load that it can bear.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.sort();
    let longest = times[times.len() - 1];
    println!(
        "{name}: {} commits, p50 {:?}, p99 {:?}, longest {longest:?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes for half a minute"]
async fn no_commit_carries_the_log_over() {
    let world = World::new(Arc::new(fresh::database().await)).await;
    let alone = longest_commit(&world, "commits that carry the log over").await;
    let store = world.store.clone();
    let carrier = tokio::spawn(async move {
        let mut most = 0;
        loop {
            most = most.max(store.keeping().carry_log_over().await.expect("the log is carried over"));
            println!("  most pages waiting so far: {most}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let beside = longest_commit(&world, "the log is carried over beside them").await;
    carrier.abort();
    println!("longest commit {alone:?} and {beside:?}");
}
