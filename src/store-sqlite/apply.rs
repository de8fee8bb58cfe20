//! The one place that writes changes of deliveries: one statement for each table, whatever the batch holds.
//! Whether a row is in `queue` follows from its state alone. The transaction began IMMEDIATE and read the rows before it
//! decided, so the guards cannot fail inside it; where one does all the same, the whole batch starts over.

use serde::Serialize;
use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::error::store_error;
use crate::rows::{Hex, NEVER, json};

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
    update_copies(connection, &with_copies).await
}

/// Writes what is told of the changes: attempts and events.
pub(crate) async fn write_history(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    upsert_attempts(connection, changes).await?;
    insert_events(connection, changes, now).await
}

/// The columns of `queue` that change, with the guard that finds the row.
#[derive(Serialize)]
struct QueueRow<'a> {
    id: Hex<uuid::Bytes>,
    before_version: i32,
    before_epoch: u16,
    version: i32,
    state: &'a str,
    available_at: Option<i64>,
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
    expires_at: Timestamp,
}

fn queue_row(change: &Change) -> QueueRow<'_> {
    let after = &change.after;
    QueueRow {
        id: Hex::of(after.id),
        before_version: change.before.version,
        before_epoch: change.before.attempt_number,
        version: after.version,
        state: after.state.as_str(),
        available_at: if after.blocked { Some(NEVER) } else { after.available_at.map(Timestamp::as_micros) },
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
        expires_at: after.expires_at,
    }
}

async fn update_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows = json(&changes.iter().map(|change| queue_row(change)).collect::<Vec<_>>());
    let done = query!(
        "UPDATE queue SET version = x.value->>'version', state = x.value->>'state', available_at = x.value->>'available_at',
            lease_expires_at = x.value->>'lease_expires_at', lease_owner = x.value->>'lease_owner', account_id = x.value->>'account',
            attempt_number = x.value->>'number', attempt_started_at = x.value->>'started_at', generation = x.value->>'generation',
            attempt_count = x.value->>'count', attempts_used = x.value->>'used', lost_count = x.value->>'lost',
            build_failures = x.value->>'builds', unresolved = x.value->>'unresolved', no_resend = x.value->>'no_resend',
            flags = x.value->>'flags', ambiguous_since = x.value->>'since', check_at = x.value->>'check_at', rung = x.value->>'rung',
            expires_at = x.value->>'expires_at'
         FROM jsonb_each(?1) AS x
         WHERE queue.id = unhex(x.value->>'id') AND queue.version = x.value->>'before_version'
            AND queue.attempt_number = x.value->>'before_epoch'",
        rows
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

async fn delete_from_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> =
        changes.iter().map(|change| (Hex::of(change.before.id), change.before.version, change.before.attempt_number)).collect();
    let rows = json(&rows);
    let done = query!(
        "DELETE FROM queue WHERE rowid IN
            (SELECT q.rowid FROM jsonb_each(?1) x CROSS JOIN queue q
             ON q.id = unhex(x.value->>0) AND q.version = x.value->>1 AND q.attempt_number = x.value->>2)",
        rows
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

/// The columns of `deliveries` that change.
#[derive(Serialize)]
struct RecordRow<'a> {
    id: Hex<uuid::Bytes>,
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
    expires_at: Timestamp,
    settled_at: Option<Timestamp>,
    copies: Option<Hex<&'a [u8]>>,
}

fn record_row(change: &Change) -> RecordRow<'_> {
    let after = &change.after;
    RecordRow {
        id: Hex::of(after.id),
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
        expires_at: after.expires_at,
        settled_at: after.settled_at,
        copies: change.copies.as_deref().map(Hex::bytes),
    }
}

async fn update_records(connection: &mut SqliteConnection, changes: &[&Change], now: Timestamp) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows = json(&changes.iter().map(|change| record_row(change)).collect::<Vec<_>>());
    let now = now.as_micros();
    // While a row is open its record is stale, so the version guards closed rows alone.
    let done = query!(
        "UPDATE deliveries SET state = x.value->>'state', reason = x.value->>'reason', version = x.value->>'version',
            generation = x.value->>'generation', attempt_number = x.value->>'number', attempt_count = x.value->>'count',
            unresolved = x.value->>'unresolved', flags = x.value->>'flags', account_id = x.value->>'account',
            attention = x.value->>'attention', expires_at = x.value->>'expires_at', settled_at = x.value->>'settled_at',
            copies = coalesce(unhex(x.value->>'copies'), copies), updated_at = ?2
         FROM jsonb_each(?1) AS x
         WHERE deliveries.id = unhex(x.value->>'id') AND (deliveries.state IS NULL) = x.value->>'was_open'
            AND (x.value->>'was_open' OR deliveries.version = x.value->>'before_version')",
        rows,
        now
    );
    expect(changes.len(), done.execute(connection).await.map_err(store_error)?.rows_affected())
}

/// What a row that comes back had in the queue before is taken from its record and its notification.
async fn insert_into_queue(connection: &mut SqliteConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = changes.iter().map(|change| (Hex::uuid(change.after.id.notification().as_uuid()), queue_row(change))).collect();
    let rows = json(&rows);
    let done = query!(
        "INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, lease_expires_at, lease_owner, account_id, attempt_number,
            attempt_started_at, generation, attempt_count, attempts_used, attempt_limit, lost_count, build_failures, unresolved, no_resend,
            flags, version, ambiguous_since, check_at, rung, expires_at, address_digest, schema_version)
         SELECT d.id, d.tenant_id, d.mode, d.lane, n.category, x.value->>'$[1].state', x.value->>'$[1].available_at',
            x.value->>'$[1].lease_expires_at', x.value->>'$[1].lease_owner', x.value->>'$[1].account', x.value->>'$[1].number',
            x.value->>'$[1].started_at', x.value->>'$[1].generation', x.value->>'$[1].count', x.value->>'$[1].used', x.value->>'$[1].limit',
            x.value->>'$[1].lost', x.value->>'$[1].builds', x.value->>'$[1].unresolved', x.value->>'$[1].no_resend', x.value->>'$[1].flags',
            x.value->>'$[1].version', x.value->>'$[1].since', x.value->>'$[1].check_at', x.value->>'$[1].rung', x.value->>'$[1].expires_at',
            d.address_digest, n.schema_version
         FROM jsonb_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>'$[1].id')
            CROSS JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = unhex(x.value->>'$[0]')",
        rows
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

#[derive(Serialize)]
struct AttemptRow<'a> {
    id: Hex<uuid::Bytes>,
    number: u16,
    generation: u16,
    account: Option<i32>,
    started_at: Timestamp,
    finished_at: Option<Timestamp>,
    outcome: &'a str,
    accepted_at: Option<Timestamp>,
    late: bool,
    code: Option<&'a str>,
    message_id: Option<&'a str>,
    match_key: Option<&'a str>,
    detail: Option<&'a str>,
}

async fn upsert_attempts(connection: &mut SqliteConnection, changes: &[Change]) -> Result<(), StoreError> {
    let rows: Vec<_> = changes
        .iter()
        .filter_map(|change| {
            let attempt = change.attempt.as_ref()?;
            Some(AttemptRow {
                id: Hex::of(change.after.id),
                number: attempt.number,
                generation: attempt.generation,
                account: attempt.account.map(|account| account.0),
                started_at: attempt.started_at,
                finished_at: attempt.finished_at,
                outcome: attempt.outcome.as_str(),
                accepted_at: attempt.accepted_at,
                late: attempt.late,
                code: attempt.provider_code.as_deref(),
                message_id: attempt.provider_message_id.as_deref(),
                match_key: attempt.match_key.as_deref(),
                detail: attempt.detail.as_deref(),
            })
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let rows = json(&rows);
    // Late evidence completes a row; an acceptance is never unset, and the index one_acceptance stands behind it (S-112).
    query!(
        "INSERT INTO attempts (delivery_id, number, generation, account_id, started_at, finished_at, outcome, accepted_at, late, provider_code,
            provider_message_id, match_key, detail)
         SELECT unhex(value->>'id'), value->>'number', value->>'generation', value->>'account', value->>'started_at', value->>'finished_at',
            value->>'outcome', value->>'accepted_at', value->>'late', value->>'code', value->>'message_id', value->>'match_key',
            value->>'detail'
         FROM jsonb_each(?1) WHERE true
         ON CONFLICT (delivery_id, number) DO UPDATE SET finished_at = excluded.finished_at, outcome = excluded.outcome,
            accepted_at = coalesce(attempts.accepted_at, excluded.accepted_at), late = excluded.late,
            provider_code = coalesce(excluded.provider_code, attempts.provider_code),
            provider_message_id = coalesce(excluded.provider_message_id, attempts.provider_message_id),
            match_key = coalesce(excluded.match_key, attempts.match_key), detail = excluded.detail",
        rows
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

#[derive(Serialize)]
struct EventRow<'a> {
    tenant: i32,
    mode: i16,
    id: Hex<uuid::Bytes>,
    version: i32,
    kind: &'a str,
    previous: &'a str,
    state: &'a str,
    reason: Option<&'a str>,
    certainty: &'a str,
    account: Option<i32>,
    generation: u16,
    count: u16,
    flags: i32,
    smtp_code: Option<i16>,
    enhanced_code: Option<&'a str>,
    occurred_at: Timestamp,
}

async fn insert_events(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    let rows: Vec<_> = changes.iter().flat_map(event_rows).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let (rows, now) = (json(&rows), now.as_micros());
    query!(
        "INSERT INTO events (tenant_id, mode, at, delivery_id, version, type, previous_state, state, reason, certainty, account_id, generation,
            attempt_count, flags, smtp_code, enhanced_code, occurred_at)
         SELECT value->>'tenant', value->>'mode', ?2, unhex(value->>'id'), value->>'version', value->>'kind', value->>'previous',
            value->>'state', value->>'reason', value->>'certainty', value->>'account', value->>'generation', value->>'count', value->>'flags',
            value->>'smtp_code', value->>'enhanced_code', value->>'occurred_at'
         FROM jsonb_each(?1)",
        rows,
        now
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

fn event_rows(change: &Change) -> impl Iterator<Item = EventRow<'_>> {
    let after = &change.after;
    change.events.iter().map(|event| EventRow {
        tenant: after.tenant.0,
        mode: after.mode.as_i16(),
        id: Hex::of(after.id),
        version: after.version,
        kind: event.kind.as_str(),
        previous: change.before.state.as_str(),
        state: after.state.as_str(),
        reason: after.reason.map(|reason| reason.as_str()),
        certainty: after.certainty().as_str(),
        account: after.account.map(|account| account.0),
        generation: after.generation,
        count: after.attempt_count,
        flags: after.flags.0,
        smtp_code: event.smtp_code,
        enhanced_code: event.enhanced_code.as_deref(),
        occurred_at: event.occurred_at,
    })
}

fn expect(changes: usize, written: u64) -> Result<(), StoreError> {
    if written == changes as u64 {
        return Ok(());
    }
    Err(StoreError::Busy(format!("{changes} rows were to change and {written} were as they were read").into()))
}
