//! Claims beside a million waiting rows, and purging beside intake, on PostgreSQL.
//!
//! `cargo test --release -p tidings-store-postgres --test suite scale -- --ignored --nocapture`

use super::{plans, world};
use crate::store_suite::scale::{Dialect, claims_at_scale, purging_at_scale};

const DIALECT: Dialect = Dialect {
    id: |prefix| format!("('{prefix}' || lpad(to_hex(i), 16, '0'))::uuid"),
    before: |instant| format!("{instant}::timestamptz - i * interval '1 millisecond'"),
    numbers: |after, up_to| format!("SELECT generate_series({after} + 1, {up_to}) AS i"),
    settle: "ANALYZE",
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "fills a million rows"]
async fn a_claim_costs_the_same_beside_a_million_waiting_rows() {
    let Some((world, database)) = world(1).await else { return };
    let ratio = claims_at_scale(&world, &DIALECT).await;
    let plan = plans::plan_of_due_rows(&mut database.session().await, &world).await;
    println!("{plan}");
    assert!(plan.contains("Index Scan using claim on queue") && !plan.contains("Seq Scan on queue"), "{plan}");
    assert!(ratio < 1.5, "{ratio:.2}");
}

/// S-022, S-200: also while partitions are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "erases fifty thousand notifications"]
async fn purging_outruns_intake() {
    let Some((world, _database)) = world(1).await else { return };
    let (rate, longest) = purging_at_scale(&world, 50_000).await;
    println!("{rate:.0} notifications a second through all three steps");
    assert!(rate > 1_200.0, "{rate:.0}");
    assert!(longest < std::time::Duration::from_millis(100), "{longest:?}");
}
