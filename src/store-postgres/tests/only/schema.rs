//! Opening: migrations by many at once, newer schemas, partitions, durability.

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::migrate::Migrator;
use tidings_core::store::{FeedQuery, Registry as _, Store as _, StoreError, SwitchedBy};
use tidings_core::switches::Scope;
use tidings_core::words::Mode;
use tidings_store_postgres::{Options, PostgresStore};

use super::{accept_on, world};
use crate::fresh::store;
use crate::postgres::TestPostgres;
use crate::store_suite::{Database as _, at, unique_id};

const DAY: Duration = Duration::from_secs(86_400);

/// S-232: any number of processes may start at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_migrate_an_empty_database_at_once() {
    let Some(postgres) = TestPostgres::get() else { return };
    let url = postgres.empty_database().await;
    let stores = [store(&url).await, store(&url).await, store(&url).await, store(&url).await];

    let (a, b, c, d) = tokio::join!(stores[0].migrate(), stores[1].migrate(), stores[2].migrate(), stores[3].migrate());

    for migrated in [a, b, c, d] {
        migrated.unwrap();
    }
    let mut prompt = sqlx::PgConnection::connect(&url).await.unwrap();
    let (applied, tables): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM _sqlx_migrations WHERE success), (SELECT count(*) FROM pg_class WHERE relname = 'queue')",
    )
    .fetch_one(&mut prompt)
    .await
    .unwrap();
    let migrations = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres")).unwrap().count();
    assert_eq!((usize::try_from(applied), tables), (Ok(migrations), 1));
    assert!(stores[3].ensure_tenant("default").await.is_ok());
}

/// S-231, S-232: a schema that is merely newer is worked on, one that says that it needs a newer binary is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merely_newer_schema_works_and_one_that_needs_a_newer_binary_is_refused() {
    let Some((world, database)) = world(1).await else { return };
    world
        .sql("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', true, '', 0)")
        .await;
    world.sql("ALTER TABLE queue ADD COLUMN later text").await;
    world.sql("ALTER TABLE deliveries ADD COLUMN later text").await;

    let older = store(database.url()).await;
    older.migrate().await.unwrap();
    assert!(accept_on(&older, &world, vec![world.email("order-1")]).await[0].is_ok());
    assert_eq!(world.claim(10, at(1)).await.len(), 1);

    world.sql("INSERT INTO settings (key, value) VALUES ('schema_requires', '9999')").await;
    let refused = older.migrate().await;
    assert!(matches!(&refused, Err(StoreError::Unreadable(why)) if why.contains("9999")), "{refused:?}");
}

/// S-231: what an older binary told is still read, and what is told of anything but deliveries follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_an_older_schema_are_read_and_others_follow_them() {
    let Some(postgres) = TestPostgres::get() else { return };
    let url = postgres.empty_database().await;
    let mut prompt = sqlx::PgConnection::connect(&url).await.unwrap();
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres"));
    let known = Migrator::new(folder).await.unwrap();
    Migrator::with_migrations(known.iter().filter(|migration| migration.version <= 6).cloned().collect()).run(&mut prompt).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO tenants (public_id, name, state) VALUES (gen_random_uuid(), 'default', 'active');
         INSERT INTO events (tenant_id, mode, pos, n, at, delivery_id, version, type, state, certainty, generation, attempt_count, flags,
            occurred_at)
         SELECT id, 0, feed_position(), 1, now(), gen_random_uuid(), 3, 'accepted', 'accepted', 'unconfirmed', 1, 1, 0, now() FROM tenants",
    )
    .execute(&mut prompt)
    .await
    .unwrap();

    let store = store(&url).await;
    store.migrate().await.unwrap();
    let tenant = store.ensure_tenant("default").await.unwrap().id;
    let by = SwitchedBy { actor: "key_1".to_owned(), reason: None, at: at(0) };
    store.pauses().set_switch(&Scope::All, true, None, &by).await.unwrap();
    let asked = FeedQuery { tenant, mode: Mode::Live, with_installation: true, types: Vec::new(), after: None, limit: 10 };
    let told = loop {
        let page = store.feed().events(&asked).await.unwrap().unwrap();
        if page.events.len() >= 2 {
            break page.events;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let told: Vec<_> = told.iter().map(|event| (event.kind.as_str(), event.detail.is_some())).collect();
    assert_eq!(told, [("accepted", false), ("switch.paused", true)]);
}

/// Partitions are there for the time in use and ahead of it; what has none lands in the default ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_made_ahead_and_a_missing_one_costs_nothing() {
    let Some((world, database)) = world(1).await else { return };
    let item_at = |days: u32, key: &str| {
        let (mut item, id) = (world.email(key), unique_id(at(0).plus(DAY * days)));
        item.id = id;
        item.deliveries[0].id = id.delivery(1);
        item
    };

    for (days, key) in [(0, "now"), (13, "in two weeks"), (59, "in two months")] {
        world.taken(item_at(days, key)).await;
    }
    for table in ["notifications", "deliveries"] {
        assert_eq!(world.count(&format!("{table}_default"), "true").await, 0, "{table}");
    }
    assert_eq!(world.count("contents_default", "true").await, 1);

    let far = world.taken(item_at(400, "much later")).await;
    assert_eq!(world.count("deliveries_default", "true").await, 1);
    // The default partition holds a row of that week already: it stays there and is found there.
    let later = store(database.url()).await;
    later.register_instance(at(0).plus(DAY * 400), b"").await.unwrap();
    assert_eq!(world.stored(far).await.delivery.id, far);
    world.taken(item_at(408, "a week after that")).await;
    assert_eq!(world.count("deliveries_default", "true").await, 1);
}

/// Processes that have run for long make partitions too: a sweep does, once a day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_for_months_goes_on_making_partitions() {
    let Some((world, database)) = world(1).await else { return };
    let count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'deliveries'::regclass";
    let before = database.number(count).await;

    let later = at(0).plus(DAY * 28);
    world.store.sweep(&world.rules, tidings_core::store::Sweep::LeaseExpired, 10, later).await.unwrap();

    assert_eq!(database.number(count).await, before + 4);
}

/// S-002: a database that answers before a commit is on the disk is refused, unless that is wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_wait_for_the_disk_is_refused_unless_told() {
    let Some((world, database)) = world(1).await else { return };
    let name: i64 = database.number("SELECT oid::bigint FROM pg_database WHERE datname = current_database()").await;
    world.sql(&format!("DO $$ BEGIN EXECUTE (SELECT format('ALTER DATABASE %I SET synchronous_commit = off', datname) FROM pg_database WHERE oid = {name}); END $$")).await;

    let strict = store(database.url()).await;
    let relaxed = PostgresStore::connect(database.url(), Options { relaxed_durability: true, ..Options::default() }).await.unwrap();

    assert!(matches!(strict.time().await, Err(StoreError::Refused(_))));
    assert!(matches!(strict.migrate().await, Err(StoreError::Refused(_))));
    assert!(relaxed.time().await.unwrap().is_some());
    relaxed.migrate().await.unwrap();
}

/// What is said about a database never holds its password.
#[tokio::test]
async fn credentials_are_shown_nowhere() {
    let store = PostgresStore::connect("postgres://tidings:hunter2@db.example:6432/mail", Options::default()).await.unwrap();
    assert_eq!(store.describe(), "PostgreSQL at db.example:6432/mail");
    let refused = PostgresStore::connect("postgres://tidings:hunter2@db.example:notaport/mail", Options::default()).await.unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));
}
