//! Transactions side by side, held open where it matters: nothing is skipped, nothing is taken twice.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tidings_core::state::State;
use tidings_core::store::{Accepted, FeedQuery, Outbox as _, StoreError, WriteBatch};
use tidings_core::transition::Landed;
use tidings_core::words::Mode;

use super::{accept_on, world};
use crate::store_suite::{Database as _, World, accepted, at};

async fn run(session: &mut PgConnection, sql: &str) {
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap();
}

/// S-023: a lower id that commits last is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_transactions_the_lower_id_that_commits_last_is_claimed_too() {
    let Some((world, database)) = world(1).await else { return };
    let lower = world.email("lower").deliveries[0].id;
    let mut slow = database.session().await;
    let mut open = slow.begin().await.unwrap();
    run(
        &mut open,
        &format!(
            "WITH d AS (INSERT INTO deliveries (id, tenant_id, mode, channel, class, lane, version, generation, address_digest, expires_at, \
                updated_at) VALUES ('{id}', {tenant}, 0, 'email', 'transactional', {lane}, 1, 1, '', 'infinity', 'epoch')) \
             INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at, address_digest, \
                schema_version) VALUES ('{id}', {tenant}, 0, {lane}, 'receipt', 'queued', 'epoch', 10, 'infinity', '', 1)",
            id = lower.as_uuid(),
            tenant = world.tenant,
            lane = world.lanes[1],
        ),
    )
    .await;
    let higher = world.taken(world.email("higher")).await;
    assert!(lower < higher);

    let first = world.claim(10, at(1)).await;
    open.commit().await.unwrap();
    let second = world.claim(10, at(1)).await;

    assert_eq!(first.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [higher]);
    assert_eq!(second.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [lower]);
}

/// S-032: what another transaction holds is stepped over at once, and is there again when it lets go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_another_claim_holds_are_stepped_over() {
    let Some((world, database)) = world(1).await else { return };
    let accepted = world.accept((0..200).map(|n| world.email(&format!("order-{n}"))).collect()).await;
    assert_eq!(accepted.len(), 200);
    let mut other = database.session().await;
    let mut open = other.begin().await.unwrap();
    let held: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM queue ORDER BY available_at, id LIMIT 100 FOR UPDATE").fetch_all(&mut *open).await.unwrap();
    let held: HashSet<_> = held.into_iter().collect();

    let taken = world.claim(200, at(1)).await;
    assert_eq!(taken.len(), 100);
    assert!(taken.iter().all(|delivery| !held.contains(&delivery.id.as_uuid())));

    open.rollback().await.unwrap();
    let rest = world.claim(200, at(1)).await;
    assert_eq!(rest.iter().map(|delivery| delivery.id.as_uuid()).collect::<HashSet<_>>(), held);
}

/// S-006: a holder that does not commit is waited for, but not long, and batch-mates are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_holder_of_a_key_is_in_progress_and_hurts_nobody_else() {
    let Some((world, database)) = world(1).await else { return };
    let holder = world.email("slow");
    let mut slow = database.session().await;
    let mut open = slow.begin().await.unwrap();
    run(
        &mut open,
        &format!(
            "INSERT INTO idempotency (tenant_id, mode, idempotency_key, notification_id, fingerprint, fingerprint_version) \
             VALUES ({}, 0, 'slow', '{}', 'fingerprint of slow', 1)",
            world.tenant,
            holder.id.as_uuid(),
        ),
    )
    .await;
    let mut items: Vec<_> = (0..15).map(|n| world.email(&format!("order-{n}"))).collect();
    items.insert(7, world.email("slow"));

    let since = Instant::now();
    let results = world.accept(items).await;
    let alone = world.accept(vec![world.email("slow")]).await;

    assert!(since.elapsed() < 2 * Duration::from_millis(2_500), "{:?}", since.elapsed());
    assert_eq!(results[7].as_ref().unwrap(), &Accepted::InProgress);
    assert_eq!(results.iter().filter(|result| matches!(result, Ok(Accepted::Taken))).count(), 15);
    assert_eq!(alone[0].as_ref().unwrap(), &Accepted::InProgress);

    open.commit().await.unwrap();
    let after = world.accept(vec![world.email("slow")]).await;
    assert_eq!(after[0].as_ref().unwrap(), &Accepted::KeyHeld(holder.as_holder()));
}

/// Lets inserts into a table fail so often with an SQLSTATE. A sequence counts, as it is not rolled back.
async fn lose_races(world: &World, table: &str, sqlstate: &str, times: u32) {
    world.sql("CREATE SEQUENCE races").await;
    world
        .sql(&format!(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                IF nextval('races') <= {times} THEN RAISE EXCEPTION 'lost' USING ERRCODE = '{sqlstate}'; END IF; RETURN NEW; END $$"
        ))
        .await;
    world.sql(&format!("CREATE TRIGGER lose BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION lose()")).await;
}

/// S-027: a lost race is repeated from fresh reads, and the result is that of one run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_loses_a_race_is_written_all_the_same() {
    for sqlstate in ["40001", "40P01"] {
        let Some((world, _)) = world(1).await else { return };
        let claimed = world.dispatched("order-1", at(1)).await;
        lose_races(&world, "attempts", sqlstate, 3).await;

        let delivery = world.moved(&claimed, accepted(), at(2)).await;

        assert_eq!((delivery.state, delivery.version), (State::Accepted, claimed.version + 1));
        assert_eq!(world.count("attempts", "true").await, 1);
        assert_eq!(world.count("events", "type = 'accepted'").await, 1);
        assert_eq!(world.count("events", "type = 'completed'").await, 1);
    }
}

/// S-027: the same for an accept and for a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accept_that_loses_a_race_is_taken_once() {
    let Some((world, _)) = world(1).await else { return };
    lose_races(&world, "idempotency", "40P01", 2).await;

    world.taken(world.email("order-1")).await;

    assert_eq!(world.count("notifications", "true").await, 1);
    assert_eq!(world.claim(10, at(1)).await.len(), 1);
}

/// S-027: there is an end to repeating; nothing was written then, and the caller may come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_that_is_always_lost_is_busy() {
    let Some((world, _)) = world(1).await else { return };
    let claimed = world.dispatched("order-1", at(1)).await;
    lose_races(&world, "attempts", "40001", 4).await;

    let batch = WriteBatch { finish: vec![world.report(&claimed, accepted(), at(2))], ..WriteBatch::default() };
    let results = world.store.commit(&world.rules, batch, at(2)).await.finish;

    assert!(matches!(results[..], [Err(StoreError::Busy(_))]), "{results:?}");
    assert_eq!(world.state(claimed.id).await, State::Dispatching);
    assert!(matches!(world.finish(&claimed, accepted(), at(3)).await, Landed::Moved(..)));
}

/// S-027: two batches that lock the same rows in opposite order both land.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finishes_sweeps_and_renewals_of_the_same_rows_do_not_hang() {
    let Some((world, database)) = world(4).await else { return };
    world.accept((0..60).map(|n| world.email(&format!("order-{n}"))).collect()).await;
    let claimed = world.claim(60, at(1)).await;
    assert_eq!(claimed.len(), 60);
    let reports: Vec<_> = claimed.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
    let backwards = reports.iter().rev().cloned().collect();
    let running: Vec<_> = claimed.iter().rev().map(|delivery| (delivery.id, delivery.attempt_number)).collect();
    let stores = database.handles();
    use tidings_core::store::Outbox as _;

    let (forwards, backwards, lost) = tokio::join!(
        stores[0].commit(&world.rules, WriteBatch { finish: reports, ..WriteBatch::default() }, at(2)),
        stores[1].commit(&world.rules, WriteBatch { finish: backwards, ..WriteBatch::default() }, at(2)),
        stores[2].renew(world.instance, &running, at(100), at(2)),
    );

    lost.unwrap();
    let landed: Vec<_> = forwards.finish.into_iter().chain(backwards.finish).map(Result::unwrap).collect();
    assert_eq!(landed.iter().filter(|landed| matches!(landed, Landed::Moved(..))).count(), 60);
    assert_eq!(landed.iter().filter(|landed| matches!(landed, Landed::Already)).count(), 60);
    assert_eq!(world.count("attempts", "true").await, 60);
}

/// S-005: four processes, one key: one winner, and the others learn its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_four_processes_wins_a_key() {
    let Some((world, database)) = world(4).await else { return };
    let stores = database.handles();
    for round in 0..10 {
        let key = format!("order-{round}");
        let (a, b, c, d) = tokio::join!(
            accept_on(&stores[0], &world, vec![world.email(&key)]),
            accept_on(&stores[1], &world, vec![world.email(&key)]),
            accept_on(&stores[2], &world, vec![world.email(&key)]),
            accept_on(&stores[3], &world, vec![world.email(&key)]),
        );
        let results: Vec<_> = [a, b, c, d].into_iter().flatten().map(Result::unwrap).collect();
        assert_eq!(results.iter().filter(|result| **result == Accepted::Taken).count(), 1, "{results:?}");
        assert_eq!(world.count("notifications", &format!("idempotency_key = '{key}'")).await, 1);
    }
}

/// How many wait for the advisory lock of a test.
const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
/// Who waits for a row, or for the end of whoever has it.
const WAITING_FOR_ROWS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
    AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')";

/// S-010: a key whose time is over is the next request's, wherever the purge of its holder stands at that moment: it has
/// deleted the key and not committed; it has locked it, and the request that wants to take it over waits; or it comes between
/// the request's insert, which the holder turned away, and its look at who that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_purged_at_this_moment_is_taken_at_every_point() {
    use tidings_core::retention::{Kept, Retention};

    let keep = Retention::default();
    let now = at(2).plus(keep.destination);
    for (held, condition, is_purge_held) in [
        ("UPDATE ON deliveries", "true", true),
        ("DELETE ON idempotency", "true", true),
        ("INSERT ON notifications", "NEW.idempotency_key = 'other'", false),
    ] {
        let Some((world, database)) = world(2).await else { return };
        let old = world.dispatched("key", at(1)).await;
        world.moved(&old, accepted(), at(2)).await;
        let row = if held.starts_with("DELETE") { "OLD" } else { "NEW" };
        world
            .sql(&format!(
                "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                    IF {condition} THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN {row}; END $$"
            ))
            .await;
        world.sql(&format!("CREATE TRIGGER hold BEFORE {held} FOR EACH ROW EXECUTE FUNCTION hold()")).await;
        let mut holding = database.session().await;
        run(&mut holding, "SELECT pg_advisory_lock(7)").await;
        let until = async |waiting: &'static str| {
            while database.number(waiting).await == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let due = world.store.keeping().due(Kept::Destinations, &keep, None, now).await.unwrap().found;
        let purging = tokio::spawn({
            let (store, due) = (world.stores()[1].clone(), due.clone());
            let held = is_purge_held;
            async move { if held { Some(store.keeping().erase(Kept::Destinations, &keep, &due, now).await.unwrap()) } else { None } }
        });
        if is_purge_held {
            until(WAITING).await;
        }
        let (key, other) = (world.email("key"), world.email("other"));
        let taking = tokio::spawn({
            let (store, rules, items) = (world.store.clone(), world.rules.clone(), vec![key.clone(), other]);
            let batch = WriteBatch { accept: items.into_iter().map(Into::into).collect(), ..WriteBatch::default() };
            async move { store.commit(&rules, batch, now).await.accept }
        });
        if is_purge_held {
            until(WAITING_FOR_ROWS).await;
        } else {
            until(WAITING).await;
            assert_eq!(world.stores()[1].keeping().erase(Kept::Destinations, &keep, &due, now).await.unwrap(), 1);
        }
        run(&mut holding, "SELECT pg_advisory_unlock(7)").await;

        let taken = taking.await.unwrap();
        assert!(taken.iter().all(|taken| matches!(taken, Ok(Accepted::Taken))), "{held}: {taken:?}");
        assert_eq!(purging.await.unwrap(), is_purge_held.then_some(1));
        let holder = world.store.by_key(world.tenant, Mode::Live, "key").await.unwrap();
        assert_eq!(holder, Some(key.as_holder()), "{held}");
    }
}

/// S-206: an event that is written first and committed last is not stepped over: the feed waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_commits_late_is_not_stepped_over() {
    let Some((world, database)) = world(4).await else { return };
    let (stores, feed) = (database.handles(), world.store.feed());
    let asked = |after| FeedQuery { tenant: world.tenant, mode: Mode::Live, with_installation: false, types: Vec::new(), after, limit: 50 };
    let late = world.email("late").deliveries[0].id;
    let mut slow = database.session().await;
    let mut open = slow.begin().await.unwrap();
    run(
        &mut open,
        &format!(
            "INSERT INTO events (tenant_id, mode, pos, n, at, delivery_id, version, type, state, certainty, generation, attempt_count, \
                flags, occurred_at) VALUES ({}, 0, feed_position(), 1, 'epoch', '{}', 2, 'accepted', 'accepted', 'unconfirmed', 1, 1, 0, 'epoch')",
            world.tenant,
            late.as_uuid(),
        ),
    )
    .await;
    let first = feed.end().await.unwrap();
    let (mut written, mut reached) = (Vec::new(), first);
    for (place, key) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let delivery = world.dispatched(key, at(1)).await;
        let batch = WriteBatch { finish: vec![world.report(&delivery, accepted(), at(2))], ..WriteBatch::default() };
        assert!(matches!(stores[place].commit(&world.rules, batch, at(2)).await.finish[..], [Ok(Landed::Moved(..))]));
        written.push(delivery.id);
        // The end may still rise up to the open transaction: those of other databases held it back.
        let page = feed.events(&asked(Some(reached))).await.unwrap().unwrap();
        assert_eq!(page.events.len(), 0, "nothing behind the open transaction is shown");
        reached = page.next;
    }
    open.commit().await.unwrap();

    let mut seen = Vec::new();
    let mut after = Some(reached);
    while seen.len() < 9 {
        let page = feed.events(&asked(after)).await.unwrap().unwrap();
        after = Some(page.next);
        seen.extend(page.events.into_iter().map(|event| (event.position, event.delivery)));
    }
    assert!(seen.is_sorted_by_key(|(position, _)| *position));
    assert_eq!(seen[0].1, late);
    assert_eq!(seen[1..].iter().map(|(_, id)| *id).collect::<HashSet<_>>(), written.into_iter().collect());
    assert!(feed.events(&asked(after)).await.unwrap().unwrap().events.is_empty());
}

/// S-025: a resend that has seen the content and is about to commit is not robbed of it. Its last write waits for us, so that
/// the wipe falls between its look and its commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wipe_beside_a_resend_that_is_about_to_commit_takes_nothing() {
    use tidings_core::acts::{Act, Resend, Target, Verb};
    use tidings_core::policy::REPLAY_WINDOW;
    use tidings_core::retention::{Kept, Retention};

    let Some((world, database)) = world(2).await else { return };
    let mut item = world.email("order-1");
    item.deliveries[0].attempt_limit = 1;
    let id = world.taken(item).await;
    let claimed = world.claim(1, at(1)).await.remove(0);
    world.moved(&claimed, crate::store_suite::answered(None), at(2)).await;
    let (last, keep) = (at(2).plus(REPLAY_WINDOW), Retention::default());

    let mut other = database.session().await;
    let mut open = other.begin().await.unwrap();
    run(&mut open, "LOCK TABLE audit_log IN EXCLUSIVE MODE").await;
    let resend = tokio::spawn({
        let (store, rules, tenant) = (world.store.clone(), world.rules.clone(), world.tenant);
        let verb = Verb::Resend(Resend::default());
        let act = Act { tenant, mode: Mode::Live, target: Target::Delivery(id), verb, if_version: None, actor: "a".to_owned(), note: None };
        async move { store.acts().act(&rules, &[act], last).await.remove(0).unwrap().answer }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'audit_log'::regclass AND NOT granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while database.number(waiting).await == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let wiper = &world.stores()[1];
    let due = wiper.keeping().due(Kept::Content, &keep, None, last).await.unwrap();
    assert_eq!(due.found.len(), 1, "what is not committed is not seen");
    assert_eq!(wiper.keeping().erase(Kept::Content, &keep, &due.found, last).await.unwrap(), 0);
    open.rollback().await.unwrap();

    assert_eq!(resend.await.unwrap(), Ok(()));
    assert_eq!(world.state(id).await, State::Queued);
    assert!(world.store.outgoing(&[id]).await.unwrap()[0].body.is_some());
}
