//! What a claim costs while a million rows wait (S-029): as much as with ten thousand. Filled past the port, in minutes; run
//! by hand, as the times mean something on a quiet machine alone.

use std::time::{Duration, Instant};

use tidings_core::words::Class;

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
