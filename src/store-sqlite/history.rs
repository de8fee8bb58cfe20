//! What is written beside a change and stays: the attempt it records, the events it tells. Called by `apply` alone.

use serde::Serialize;
use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::delivery::Change;
use tidings_core::events::EventRow;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::batch::Batch;
use crate::error::store_error;

/// What attempts have in common.
#[derive(PartialEq, Serialize)]
struct AttemptShape<'a> {
    number: u16,
    generation: u16,
    account: Option<i32>,
    outcome: &'a str,
    late: bool,
    code: Option<&'a str>,
    detail: Option<&'a str>,
}

/// New attempts, and what became known late of recorded ones. An acceptance is never unset (S-112).
pub(crate) async fn write_attempts(connection: &mut SqliteConnection, changes: &[Change]) -> Result<(), StoreError> {
    let mut rows = Batch::new();
    for (id, attempt) in changes.iter().filter_map(|change| Some((change.after.id, change.attempt.as_ref()?))) {
        let shape = AttemptShape {
            number: attempt.number,
            generation: attempt.generation,
            account: attempt.account.map(|account| account.0),
            outcome: attempt.outcome.as_str(),
            late: attempt.late,
            code: attempt.provider_code.as_deref(),
            detail: attempt.detail.as_deref(),
        };
        let place = rows.bytes(id.as_uuid().as_bytes());
        let texts = (attempt.provider_message_id.as_deref(), attempt.match_key.as_deref());
        rows.add(shape, (place, attempt.started_at, attempt.finished_at, attempt.accepted_at, texts.0, texts.1));
    }
    if rows.len() == 0 {
        return Ok(());
    }
    let (rows, bytes) = rows.into_arguments();
    // Late evidence completes a row; an acceptance is never unset, and the index one_acceptance stands behind it (S-112).
    query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].number' AS number, value->>'$[0].generation' AS generation, value->>'$[0].account' AS account,
                value->>'$[0].outcome' AS outcome, value->>'$[0].late' AS late, value->>'$[0].code' AS code,
                value->>'$[0].detail' AS detail, jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1))
         INSERT OR FAIL INTO attempts (delivery_id, number, generation, account_id, started_at, finished_at, outcome, accepted_at, late, provider_code,
            provider_message_id, match_key, detail)
         SELECT substr(?2, r.value->>0, 16), shape.number, shape.generation, account, r.value->>1, r.value->>2, shape.outcome, r.value->>3,
            shape.late, code, r.value->>4, r.value->>5, shape.detail
         FROM shape CROSS JOIN jsonb_each(shape.rows) r WHERE true
         ON CONFLICT (delivery_id, number) DO UPDATE SET finished_at = excluded.finished_at, outcome = excluded.outcome,
            accepted_at = coalesce(attempts.accepted_at, excluded.accepted_at), late = excluded.late,
            provider_code = coalesce(excluded.provider_code, attempts.provider_code),
            provider_message_id = coalesce(excluded.provider_message_id, attempts.provider_message_id),
            match_key = coalesce(excluded.match_key, attempts.match_key), detail = excluded.detail",
        rows,
        bytes
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// What events have in common.
#[derive(PartialEq, Serialize)]
struct EventShape<'a> {
    tenant: i32,
    mode: i16,
    version: i32,
    kind: &'a str,
    previous: Option<&'a str>,
    state: &'a str,
    reason: Option<&'a str>,
    certainty: &'a str,
    account: Option<i32>,
    generation: u16,
    count: u16,
    flags: i32,
    smtp_code: Option<i16>,
    enhanced_code: Option<&'a str>,
}

/// Events, in the order in which they are told.
pub(crate) async fn write_events(connection: &mut SqliteConnection, events: &[EventRow<'_>], now: Timestamp) -> Result<(), StoreError> {
    let mut rows = Batch::in_order();
    for event in events {
        let place = rows.bytes(event.change.after.id.as_uuid().as_bytes());
        rows.add(event_shape(event), (place, event.occurred_at));
    }
    if rows.len() == 0 {
        return Ok(());
    }
    let ((rows, bytes), now) = (rows.into_arguments(), now.as_micros());
    query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].tenant' AS tenant, value->>'$[0].mode' AS mode, value->>'$[0].version' AS version,
                value->>'$[0].kind' AS kind, value->>'$[0].previous' AS previous, value->>'$[0].state' AS state,
                value->>'$[0].reason' AS reason, value->>'$[0].certainty' AS certainty, value->>'$[0].account' AS account,
                value->>'$[0].generation' AS generation, value->>'$[0].count' AS count, value->>'$[0].flags' AS flags,
                value->>'$[0].smtp_code' AS smtp_code, value->>'$[0].enhanced_code' AS enhanced_code, jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1))
         INSERT OR FAIL INTO events (tenant_id, mode, at, delivery_id, version, type, previous_state, state, reason, certainty, account_id, generation,
            attempt_count, flags, smtp_code, enhanced_code, occurred_at)
         SELECT tenant, mode, ?2, substr(?3, r.value->>0, 16), version, kind, previous, state, reason, certainty, account, generation, count,
            flags, smtp_code, enhanced_code, r.value->>1
         FROM shape CROSS JOIN jsonb_each(shape.rows) r",
        rows,
        now,
        bytes
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

fn event_shape<'a>(event: &EventRow<'a>) -> EventShape<'a> {
    let after = &event.change.after;
    EventShape {
        tenant: after.tenant.0,
        mode: after.mode.as_i16(),
        version: event.version,
        kind: event.kind.as_str(),
        previous: event.previous.map(|state| state.as_str()),
        state: event.state,
        reason: event.reason.map(|reason| reason.as_str()),
        certainty: after.certainty().as_str(),
        account: after.account.map(|account| account.0),
        generation: after.generation,
        count: after.attempt_count,
        flags: after.flags.0,
        smtp_code: event.smtp_code,
        enhanced_code: event.enhanced_code,
    }
}
