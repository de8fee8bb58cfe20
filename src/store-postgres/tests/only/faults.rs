//! Connections that break and databases that refuse: what the caller is told, and that work goes on afterwards.

use tidings_core::state::State;
use tidings_core::store::{Accepted, StoreError, WriteBatch};

use super::world;
use crate::postgres::set_read_only;
use crate::store_suite::{World, accepted, at};

/// Every insert into a table ends the session that makes it.
async fn kill_sessions_at(world: &World, table: &str) {
    world
        .sql(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); \
                PERFORM pg_sleep(1); RETURN NEW; END $$",
        )
        .await;
    world.sql(&format!("CREATE TRIGGER die BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION die()")).await;
}

/// S-012, S-039: before the commit nothing happened, and the same outcome can be given again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_killed_before_the_commit_is_unreachable_and_the_pool_recovers() {
    let Some((world, _)) = world(1).await else { return };
    let claimed = world.dispatched("order-1", at(1)).await;
    kill_sessions_at(&world, "attempts").await;

    let batch = WriteBatch { finish: vec![world.report(&claimed, accepted(), at(2))], ..WriteBatch::default() };
    let results = world.store.commit(&world.rules, batch, at(2)).await.finish;
    assert!(matches!(results[..], [Err(StoreError::Unreachable(_))]), "{results:?}");
    assert_eq!(world.state(claimed.id).await, State::Dispatching);

    world.sql("DROP TRIGGER die ON attempts").await;
    assert_eq!(world.moved(&claimed, accepted(), at(3)).await.state, State::Accepted);
}

/// S-012: an accept commits by itself, so nobody can tell what a broken connection means; asking by key can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_killed_during_an_accept_is_unknown_until_asked_by_key() {
    let Some((world, _)) = world(1).await else { return };
    kill_sessions_at(&world, "idempotency").await;

    let item = world.email("order-1");
    let results = world.accept(vec![item.clone()]).await;
    assert!(matches!(results[..], [Err(StoreError::CommitUnknown(_))]), "{results:?}");
    assert_eq!(world.store.by_key(world.tenant, item.mode, "order-1").await.unwrap(), None);

    world.sql("DROP TRIGGER die ON idempotency").await;
    assert_eq!(world.accept(vec![item.clone()]).await[0].as_ref().unwrap(), &Accepted::Taken);
    assert_eq!(world.accept(vec![item.clone()]).await[0].as_ref().unwrap(), &Accepted::KeyHeld(item.as_holder()));
}

/// Sessions that were killed while nobody used them are replaced without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_that_were_killed_are_replaced() {
    let Some((world, _)) = world(1).await else { return };
    world.taken(world.email("order-1")).await;
    world
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        .await;

    world.taken(world.email("order-2")).await;
    assert_eq!(world.store.open_count().await.unwrap(), 2);
}

/// S-228: a read-only database says that it cannot be written; reading goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_not_writable_and_can_be_read() {
    let Some((world, database)) = world(1).await else { return };
    let id = world.taken(world.email("order-1")).await;

    set_read_only(database.url(), true).await;
    let refused = world.accept(vec![world.email("order-2")]).await;
    assert!(matches!(refused[..], [Err(StoreError::NotWritable(_))]), "{refused:?}");
    assert!(matches!(world.store.prove_writable(world.instance, b"digest", at(1)).await, Err(StoreError::NotWritable(_))));
    assert_eq!(world.state(id).await, State::Queued);

    set_read_only(database.url(), false).await;
    world.taken(world.email("order-2")).await;
}
