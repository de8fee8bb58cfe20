//! The one place that writes changes of deliveries: one statement for each table, whatever the batch holds.
//! Whether a row is in `queue` follows from its state alone. The transaction began IMMEDIATE and read the rows before it
//! decided, so the guards cannot fail inside it; where one does all the same, the whole batch starts over.
//! Hot statements end OR FAIL: what they wrote before a constraint stopped them is taken back by the transaction or savepoint
//! around them, so that SQLite need not keep a copy of each page for the statement alone.

use serde::Serialize;
use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::events;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::batch::Batch;
use crate::completing;
use crate::error::store_error;
use crate::history::{write_attempts, write_events};
use crate::order;
use crate::rows::{Hex, NEVER, json};
use crate::suppressions;

/// Writes changes completely. Each delivery stands in `changes` once.
pub(crate) async fn apply(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    write_states(connection, changes, now).await?;
    write_history(connection, changes, now).await
}

/// Writes where the deliveries stand.
pub(crate) async fn write_states(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    let is_open = |delivery: &Delivery| delivery.state.is_open();
    let stay: Vec<_> = changes.iter().filter(|change| is_open(&change.before) && is_open(&change.after)).collect();
    let leave: Vec<_> = changes.iter().filter(|change| is_open(&change.before) && !is_open(&change.after)).collect();
    let come_back: Vec<_> = changes.iter().filter(|change| !is_open(&change.before) && is_open(&change.after)).collect();
    let recorded: Vec<_> = changes.iter().filter(|change| !is_open(&change.before) || !is_open(&change.after)).collect();
    let with_copies: Vec<_> = stay.iter().copied().filter(|change| change.copies.is_some()).collect();
    update_queue(connection, &stay).await?;
    delete_from_queue(connection, &leave).await?;
    update_records(connection, &recorded, now).await?;
    insert_into_queue(connection, &come_back).await?;
    update_copies(connection, &with_copies).await?;
    order::advance(connection, &leave, now).await?;
    suppressions::note(connection, changes, now).await
}

/// Writes what is told of the changes: attempts and events.
pub(crate) async fn write_history(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    write_attempts(connection, changes).await?;
    let completed = completing::completed(connection, changes).await?;
    write_events(connection, &events::rows(changes, &completed, now), now).await?;
    completing::erase_sensitive(connection, &completed).await
}

/// The columns of `queue` that change, with the guard that finds the row; rows that move the same way have them in common.
#[derive(PartialEq, Serialize)]
struct QueueShape<'a> {
    before_version: i32,
    before_epoch: u16,
    version: i32,
    state: &'a str,
    lease_expires_at: Option<Timestamp>,
    lease_owner: Option<i32>,
    account: Option<i32>,
    number: u16,
    started_at: Option<Timestamp>,
    generation: u16,
    count: u16,
    used: u16,
    limit: u16,
    lost: u16,
    builds: u16,
    unresolved: u16,
    no_resend: Option<&'a str>,
    flags: i32,
    since: Option<Timestamp>,
    check_at: Option<Timestamp>,
    rung: u16,
}

fn queue_shape(change: &Change) -> QueueShape<'_> {
    let after = &change.after;
    QueueShape {
        before_version: change.before.version,
        before_epoch: change.before.attempt_number,
        version: after.version,
        state: after.state.as_str(),
        lease_expires_at: after.lease_expires_at,
        lease_owner: after.lease_owner.map(|owner| owner.0),
        account: after.account.map(|account| account.0),
        number: after.attempt_number,
        started_at: after.attempt_started_at,
        generation: after.generation,
        count: after.attempt_count,
        used: after.attempts_used,
        limit: after.attempt_limit,
        lost: after.lost_count,
        builds: after.build_failures,
        unresolved: after.unresolved,
        no_resend: after.no_resend.map(|reason| reason.as_str()),
        flags: after.flags.0,
        since: after.ambiguous_since,
        check_at: after.check_at,
        rung: after.rung,
    }
}

/// Queue rows as arguments: `[place of id and notification id, available_at, expires_at]`.
fn queue_rows(changes: &[&Change]) -> (String, Vec<u8>) {
    let mut rows = Batch::new();
    for change in changes {
        let after = &change.after;
        let place = rows.bytes(after.id.as_uuid().as_bytes());
        rows.bytes(after.id.notification().as_uuid().as_bytes());
        let available_at = if after.blocked { Some(NEVER) } else { after.available_at.map(Timestamp::as_micros) };
        rows.add(queue_shape(change), (place, available_at, after.expires_at));
    }
    rows.into_arguments()
}

async fn update_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let (rows, bytes) = queue_rows(changes);
    // `x` is MATERIALIZED too: joined with its parts, the table would be scanned for each shape.
    let done = query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].before_version' AS before_version, value->>'$[0].before_epoch' AS before_epoch,
                value->>'$[0].version' AS version, value->>'$[0].state' AS state, value->>'$[0].lease_expires_at' AS lease_expires_at,
                value->>'$[0].lease_owner' AS lease_owner, value->>'$[0].account' AS account, value->>'$[0].number' AS number,
                value->>'$[0].started_at' AS started_at, value->>'$[0].generation' AS generation, value->>'$[0].count' AS count,
                value->>'$[0].used' AS used, value->>'$[0].lost' AS lost, value->>'$[0].builds' AS builds,
                value->>'$[0].unresolved' AS unresolved, value->>'$[0].no_resend' AS no_resend, value->>'$[0].flags' AS flags,
                value->>'$[0].since' AS since, value->>'$[0].check_at' AS check_at, value->>'$[0].rung' AS rung,
                jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1)),
         x AS MATERIALIZED (
            SELECT shape.*, substr(?2, r.value->>0, 16) AS id, r.value->>1 AS available_at, r.value->>2 AS expires_at
            FROM shape CROSS JOIN jsonb_each(shape.rows) r)
         UPDATE OR FAIL queue SET version = x.version, state = x.state, available_at = x.available_at,
            lease_expires_at = x.lease_expires_at, lease_owner = x.lease_owner, account_id = x.account,
            attempt_number = x.number, attempt_started_at = x.started_at, generation = x.generation,
            attempt_count = x.count, attempts_used = x.used, lost_count = x.lost, build_failures = x.builds,
            unresolved = x.unresolved, no_resend = x.no_resend, flags = x.flags, ambiguous_since = x.since,
            check_at = x.check_at, rung = x.rung, expires_at = x.expires_at
         FROM x WHERE queue.id = x.id AND queue.version = x.before_version AND queue.attempt_number = x.before_epoch",
        rows,
        bytes
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

async fn delete_from_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut rows = Batch::new();
    for change in changes {
        let place = rows.bytes(change.before.id.as_uuid().as_bytes());
        rows.add((change.before.version, change.before.attempt_number), place);
    }
    let (rows, bytes) = rows.into_arguments();
    let done = query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0][0]' AS version, value->>'$[0][1]' AS epoch, jsonb_extract(value, '$[1]') AS rows FROM jsonb_each(?1))
         DELETE FROM queue WHERE rowid IN
            (SELECT q.rowid FROM shape CROSS JOIN json_each(shape.rows) r CROSS JOIN queue q
             ON q.id = substr(?2, r.value, 16) AND q.version = shape.version AND q.attempt_number = shape.epoch)",
        rows,
        bytes
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

/// The columns of `deliveries` that change, as far as records have them in common.
#[derive(PartialEq, Serialize)]
struct RecordShape<'a> {
    was_open: bool,
    before_version: i32,
    state: Option<&'a str>,
    reason: Option<&'a str>,
    version: i32,
    generation: u16,
    number: u16,
    count: u16,
    unresolved: u16,
    flags: i32,
    account: Option<i32>,
    attention: Option<u8>,
    sender: Option<&'a str>,
}

fn record_shape(change: &Change) -> RecordShape<'_> {
    let after = &change.after;
    RecordShape {
        was_open: change.before.state.is_open(),
        before_version: change.before.version,
        state: (!after.state.is_open()).then(|| after.state.as_str()),
        reason: after.reason.map(|reason| reason.as_str()),
        version: after.version,
        generation: after.generation,
        number: after.attempt_number,
        count: after.attempt_count,
        unresolved: after.unresolved,
        flags: after.flags.0,
        account: after.account.map(|account| account.0),
        attention: after.needs_attention().then_some(1),
        sender: after.sender.as_deref(),
    }
}

async fn update_records(connection: &mut SqliteConnection, changes: &[&Change], now: Timestamp) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut rows = Batch::new();
    for change in changes {
        let place = rows.bytes(change.after.id.as_uuid().as_bytes());
        let copies = rows.more(change.copies.as_deref());
        rows.add(record_shape(change), (place, change.after.expires_at, change.after.settled_at, copies));
    }
    let ((rows, bytes), now) = (rows.into_arguments(), now.as_micros());
    // While a row is open its record is stale, so the version guards closed rows alone.
    let done = query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].was_open' AS was_open, value->>'$[0].before_version' AS before_version, value->>'$[0].state' AS state,
                value->>'$[0].reason' AS reason, value->>'$[0].version' AS version, value->>'$[0].generation' AS generation,
                value->>'$[0].number' AS number, value->>'$[0].count' AS count, value->>'$[0].unresolved' AS unresolved,
                value->>'$[0].flags' AS flags, value->>'$[0].account' AS account, value->>'$[0].attention' AS attention,
                value->>'$[0].sender' AS author, jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1)),
         x AS MATERIALIZED (
            SELECT shape.*, substr(?3, r.value->>0, 16) AS id, r.value->>1 AS expires_at, r.value->>2 AS settled_at,
                substr(?3, r.value->>0 + 16, r.value->>3) AS new_copies
            FROM shape CROSS JOIN jsonb_each(shape.rows) r)
         UPDATE OR FAIL deliveries SET state = x.state, reason = x.reason, version = x.version, generation = x.generation,
            attempt_number = x.number, attempt_count = x.count, unresolved = x.unresolved, flags = x.flags,
            account_id = x.account, attention = x.attention, expires_at = x.expires_at, settled_at = x.settled_at,
            copies = coalesce(x.new_copies, copies), sender = coalesce(x.author, sender), updated_at = ?2
         FROM x
         WHERE deliveries.id = x.id AND (deliveries.state IS NULL) = x.was_open AND (x.was_open OR deliveries.version = x.before_version)",
        rows,
        now,
        bytes
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

/// What a row that comes back had in the queue before is taken from its record and its notification.
async fn insert_into_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let (rows, bytes) = queue_rows(changes);
    let done = query!(
        "INSERT OR FAIL INTO queue (id, tenant_id, mode, lane, category, state, available_at, lease_expires_at, lease_owner, account_id, attempt_number,
            attempt_started_at, generation, attempt_count, attempts_used, attempt_limit, lost_count, build_failures, unresolved, no_resend,
            flags, version, ambiguous_since, check_at, rung, expires_at, address_digest, sender, schema_version, siblings)
         SELECT d.id, d.tenant_id, d.mode, d.lane, n.category, x.value->>'$[0].state', r.value->>1,
            x.value->>'$[0].lease_expires_at', x.value->>'$[0].lease_owner', x.value->>'$[0].account', x.value->>'$[0].number',
            x.value->>'$[0].started_at', x.value->>'$[0].generation', x.value->>'$[0].count', x.value->>'$[0].used', x.value->>'$[0].limit',
            x.value->>'$[0].lost', x.value->>'$[0].builds', x.value->>'$[0].unresolved', x.value->>'$[0].no_resend', x.value->>'$[0].flags',
            x.value->>'$[0].version', x.value->>'$[0].since', x.value->>'$[0].check_at', x.value->>'$[0].rung', r.value->>2,
            d.address_digest, d.sender, n.schema_version, n.delivery_count
         FROM jsonb_each(?1) x CROSS JOIN jsonb_each(x.value, '$[1]') r CROSS JOIN deliveries d ON d.id = substr(?2, r.value->>0, 16)
            CROSS JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = substr(?2, r.value->>0 + 16, 16)",
        rows,
        bytes
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

async fn update_copies(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = changes.iter().map(|change| (Hex::of(change.after.id), change.copies.as_deref().map(Hex::bytes))).collect();
    let rows = json(&rows);
    query!("UPDATE deliveries SET copies = unhex(x.value->>1) FROM jsonb_each(?1) AS x WHERE deliveries.id = unhex(x.value->>0)", rows)
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(store_error)
}

fn expect(changes: usize, written: u64) -> Result<(), StoreError> {
    if written == changes as u64 {
        return Ok(());
    }
    Err(StoreError::Busy(format!("{changes} rows were to change and {written} were as they were read").into()))
}
