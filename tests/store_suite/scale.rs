//! What a claim costs while a million rows wait (S-029): as much as with ten thousand; and how fast what has had its time is
//! erased beside intake (S-200). Filled in minutes; run by hand, as the times mean something on a quiet machine alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidings_core::retention::{Kept, Retention};
use tidings_core::store::{Accepted, StoreError};
use tidings_core::time::Timestamp;
use tidings_core::words::Class;
use tokio::task::JoinHandle;

use super::world::{accept_on, accepted, email};
use super::{World, at};

/// Rows that wait, before and after.
const FEW: u32 = 10_000;
const MANY: u32 = 1_000_000;
/// Rows that have ended beside them.
const ENDED: u32 = 300_000;
/// Half of what waits is the world's own tenant's; these share the other half.
const OTHERS: u32 = 10_000;
const CLAIMS: usize = 60;
/// Rows of one claim.
const ROWS: u16 = 50;

/// How a database writes the id of row `i` and the instant so many microseconds before another.
pub struct Dialect {
    /// An id from sixteen digits and the number `i`.
    pub id: fn(&str) -> String,
    /// An instant `i` milliseconds before this one.
    pub before: fn(&str) -> String,
    /// A recursive table `n (i)` of numbers above the first and up to the second.
    pub numbers: fn(u32, u32) -> String,
    /// What reads the tables anew for the planner and frees what was written.
    pub settle: &'static str,
}

/// Measures claims beside ten thousand and a million waiting rows; prints both medians and returns the second by the first.
pub async fn claims_at_scale(world: &World, dialect: &Dialect) -> f64 {
    tenants(world, dialect).await;
    fill(world, dialect, 0, FEW).await;
    let few = median(world).await;
    fill(world, dialect, FEW, MANY).await;
    ended(world, dialect).await;
    world.sql(dialect.settle).await;
    let waiting = world.count("queue", "available_at IS NOT NULL").await;
    let many = median(world).await;
    println!("a claim of {ROWS} rows: {few:?} with {FEW} waiting rows, {many:?} with {waiting} and {ENDED} ended ones");
    assert!(waiting > i64::from(MANY) - 10_000, "{waiting}");
    many.as_secs_f64() / few.as_secs_f64()
}

async fn tenants(world: &World, dialect: &Dialect) {
    let numbers = (dialect.numbers)(0, OTHERS);
    let id = (dialect.id)("00000000000070ff");
    world.sql(&format!("INSERT INTO tenants (public_id, name) SELECT {id}, 'other-' || i FROM ({numbers}) n")).await;
}

/// Queue rows and their records.
async fn fill(world: &World, dialect: &Dialect, from: u32, to: u32) {
    let (lane, own, now) = (world.lane(Class::Transactional), world.tenant, world.db.instant(at(0)));
    let (deadline, digest) = (world.db.instant(at(86_400)), world.db.bytes(&[7; 17]));
    let (id, available_at, numbers) = ((dialect.id)("01a3185c50007000"), (dialect.before)(&now), (dialect.numbers)(from, to));
    let tenant = format!("CASE WHEN i % 2 = 0 THEN {own} ELSE {own} + 1 + i % {OTHERS} END");
    world
        .sql(&format!(
            "INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at, address_digest, schema_version) \
             SELECT {id}, {tenant}, 0, {lane}, 'receipt', 'queued', {available_at}, 10, {deadline}, {digest}, 1 FROM ({numbers}) n"
        ))
        .await;
    world
        .sql(&format!(
            "INSERT INTO deliveries (id, tenant_id, mode, channel, class, lane, version, generation, address_digest, expires_at, updated_at) \
             SELECT {id}, {tenant}, 0, 'email', 'transactional', {lane}, 1, 1, {digest}, {deadline}, {now} FROM ({numbers}) n"
        ))
        .await;
}

/// Records and attempts of deliveries that were taken.
async fn ended(world: &World, dialect: &Dialect) {
    let (lane, own, now) = (world.lane(Class::Transactional), world.tenant, world.db.instant(at(0)));
    let (digest, id, numbers) = (world.db.bytes(&[7; 17]), (dialect.id)("01a3185c4fff7000"), (dialect.numbers)(0, ENDED));
    world
        .sql(&format!(
            "INSERT INTO deliveries (id, tenant_id, mode, channel, class, lane, version, generation, state, settled_at, address_digest, expires_at, updated_at) \
             SELECT {id}, {own}, 0, 'email', 'transactional', {lane}, 2, 1, 'accepted', {now}, {digest}, {now}, {now} FROM ({numbers}) n"
        ))
        .await;
    world
        .sql(&format!(
            "INSERT INTO attempts (delivery_id, number, generation, started_at, outcome, accepted_at) \
             SELECT {id}, 1, 1, {now}, 'accepted', {now} FROM ({numbers}) n"
        ))
        .await;
}

/// The middle of many claims' times, each a commit; the ring goes on from one to the next, as the pump's does.
async fn median(world: &World) -> Duration {
    let mut plan = world.plan(ROWS, at(1));
    plan.lanes.retain(|lane| lane.class == Class::Transactional);
    let mut times = Vec::with_capacity(CLAIMS);
    for _ in 0..CLAIMS {
        let started = Instant::now();
        let claimed = world.claim_by(plan.clone(), at(1)).await;
        times.push(started.elapsed());
        assert_eq!(claimed.dispatched.len(), usize::from(ROWS));
        plan.lanes[0].cursor = claimed.lanes[0].cursor;
        plan.lanes[0].tenant_limit = ROWS / 8;
    }
    times.sort();
    times[times.len() / 2]
}

/// What is accepted in one request beside a purge.
const INTAKE: usize = 16;

/// Erases `rows` notifications in all three steps and gives the space back, at the gateway's pace, while others are accepted;
/// prints how fast it goes and what intake feels of it. Returns how many a second are erased for good, all steps together,
/// and the longest that an intake took while partitions were dropped.
pub async fn purging_at_scale(world: &World, rows: usize) -> (f64, Duration) {
    for batch in 0..rows.div_ceil(100) {
        let items = (0..100).map(|n| sized(world, &format!("old-{batch}-{n}"))).collect();
        assert!(world.accept(items).await.iter().all(Result::is_ok));
        for _ in 0..2 {
            let claimed = world.claim(50, at(1)).await;
            let reports = claimed.iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
            world.finish_all(reports, at(2)).await;
        }
    }
    world.sql("ANALYZE").await;
    intake(world).stop("without a purge").await;
    let (now, mut spent) = (at(200 * 86_400), Duration::ZERO);
    for kept in [Kept::Content, Kept::Destinations, Kept::Records] {
        let beside = intake(world);
        let began = Instant::now();
        let erased = purge(world, kept, now).await;
        let took = began.elapsed();
        spent += took;
        println!("{kept:?}: {erased} in {took:?}, {:.0} a second", erased as f64 / took.as_secs_f64());
        beside.stop(&format!("beside {kept:?}")).await;
    }
    let beside = intake(world);
    let (began, mut given) = (Instant::now(), 0);
    while world.store.keeping().give_back(&Retention::default(), now).await.expect("space is given back") {
        given += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("gave back {given} times in {:?}", began.elapsed());
    let longest = beside.stop("beside giving back").await;
    (rows as f64 / spent.as_secs_f64(), longest)
}

fn sized(world: &World, key: &str) -> tidings_core::store::NewNotification {
    let mut item = world.email(key);
    item.body = vec![b'x'; 1_200];
    item
}

async fn purge(world: &World, kept: Kept, now: Timestamp) -> u64 {
    let (keep, keeping) = (Retention::default(), world.store.keeping());
    let (mut after, mut erased, mut looking, mut erasing) = (None, 0, Duration::ZERO, Duration::ZERO);
    loop {
        let began = Instant::now();
        let due = keeping.due(kept, &keep, after, now).await.expect("a step");
        looking += began.elapsed();
        for chunk in due.chunks(keeping.rows_at_once()) {
            let began = Instant::now();
            erased += keeping.erase(kept, &keep, chunk, now).await.expect("a chunk");
            erasing += began.elapsed();
            tokio::time::sleep(began.elapsed().max(Duration::from_millis(5))).await;
        }
        after = due.next;
        if after.is_none() {
            println!("  of that {looking:?} looking, {erasing:?} erasing");
            return erased;
        }
    }
}

/// Requests that are accepted one after the other until it is stopped.
struct Intake {
    stop: Arc<AtomicBool>,
    times: JoinHandle<Vec<Duration>>,
}

fn intake(world: &World) -> Intake {
    let (store, rules, tenant, lane) = (world.store.clone(), world.rules.clone(), world.tenant, world.lane(Class::Transactional));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let times = tokio::spawn(async move {
        let mut times = Vec::new();
        while !stopped.load(Ordering::Relaxed) || times.len() < 200 {
            let items = (0..INTAKE).map(|_| email(tenant, lane, Class::Transactional, &super::unique_id(at(0)).to_string())).collect();
            let began = Instant::now();
            let results: Vec<Result<Accepted, StoreError>> = accept_on(&store, &rules, items).await;
            times.push(began.elapsed());
            assert!(results.iter().all(|result| matches!(result, Ok(Accepted::Taken))), "{results:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times
    });
    Intake { stop, times }
}

impl Intake {
    /// Prints what intake took; returns the longest.
    async fn stop(self, when: &str) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.times.await.expect("intake goes on");
        times.sort();
        let at = |share: usize| times[times.len() * share / 100];
        let longest = times[times.len() - 1];
        println!("  {} intakes of {INTAKE} {when}: p50 {:?}, p99 {:?}, longest {longest:?}", times.len(), at(50), at(99));
        longest
    }
}
