//! A feed whose database counts its transactions anew.

use sqlx::Connection as _;

use super::world;
use crate::store_suite::at;

/// A copy that counts its transactions anew tells its events behind those that it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_leap_where_a_database_counts_anew() {
    let Some((world, database)) = world(1).await else { return };
    let moving = world.store.moving();
    assert!(!moving.settle_feed().await.unwrap(), "a new database has nothing to leap over");
    // Somebody on the server is at work for long: what ends meanwhile has places behind his.
    let mut other = database.session().await;
    let mut slow = other.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut *slow).await.unwrap();
    let delivery = world.dispatched("a", at(1)).await;
    world.moved(&delivery, crate::store_suite::accepted(), at(2)).await;
    let end = world.store.feed().end().await.unwrap();
    assert!(!moving.settle_feed().await.unwrap(), "nor has one that is as it was");
    slow.rollback().await.unwrap();
    let end = world.store.feed().end().await.unwrap().max(end);

    // As after pg_resetwal: the base is what it was, and the numbers of transactions begin again.
    world.sql("UPDATE settings SET value = int8send(-pg_current_xact_id()::text::bigint) WHERE key = 'feed_base'").await;
    assert!(world.store.feed().end().await.unwrap() < end);
    assert!(moving.settle_feed().await.unwrap());
    assert!(world.store.feed().end().await.unwrap() > end);
    assert!(!moving.settle_feed().await.unwrap());

    // As after a restore into another cluster: a reader may stand behind the newest event.
    let end = world.store.feed().end().await.unwrap();
    world.sql("UPDATE settings SET value = '1/1/1' WHERE key = 'feed_home'").await;
    assert!(moving.settle_feed().await.unwrap());
    assert!(world.store.feed().end().await.unwrap().pos >= end.pos + tidings_core::moving::FEED_LEAP);
}
