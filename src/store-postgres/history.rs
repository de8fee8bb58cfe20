//! What is written beside a change and stays: the attempt it records, the events it tells. Called by `apply` alone.

use sqlx::PgConnection;
use tidings_core::delivery::Change;
use tidings_core::events::EventRow;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::error::before;
use crate::instant::{At, at};
use crate::rows::{small, without_nul};

/// New attempts, and what became known late of recorded ones. An acceptance is never unset (S-112).
pub(crate) async fn write_attempts(conn: &mut PgConnection, changes: &[&Change]) -> Result<(), StoreError> {
    let attempts: Vec<_> = changes.iter().filter_map(|c| c.attempt.as_ref().map(|attempt| (c.after.id.as_uuid(), attempt))).collect();
    if attempts.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO attempts AS a (delivery_id, number, generation, account_id, started_at, finished_at, outcome, accepted_at, late,
            provider_code, provider_message_id, match_key, detail)
         SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::int[], $5::timestamptz[], $6::timestamptz[],
            $7::text[], $8::timestamptz[], $9::bool[], $10::text[], $11::text[], $12::text[], $13::text[])
         ON CONFLICT (delivery_id, number) DO UPDATE SET
            account_id = COALESCE(excluded.account_id, a.account_id), finished_at = COALESCE(excluded.finished_at, a.finished_at),
            outcome = excluded.outcome, accepted_at = COALESCE(a.accepted_at, excluded.accepted_at), late = excluded.late,
            provider_code = COALESCE(excluded.provider_code, a.provider_code),
            provider_message_id = COALESCE(excluded.provider_message_id, a.provider_message_id),
            match_key = COALESCE(excluded.match_key, a.match_key), detail = excluded.detail",
        &attempts.iter().map(|(id, _)| *id).collect::<Vec<_>>()[..],
        &attempts.iter().map(|(_, a)| small(a.number)).collect::<Vec<_>>()[..],
        &attempts.iter().map(|(_, a)| small(a.generation)).collect::<Vec<_>>()[..],
        attempts.iter().map(|(_, a)| a.account.map(|account| account.0)).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| At(a.started_at)).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| at(a.finished_at)).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| a.outcome.as_str()).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| at(a.accepted_at)).collect::<Vec<_>>() as _,
        &attempts.iter().map(|(_, a)| a.late).collect::<Vec<_>>()[..],
        attempts.iter().map(|(_, a)| without_nul(a.provider_code.as_deref())).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| without_nul(a.provider_message_id.as_deref())).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| without_nul(a.match_key.as_deref())).collect::<Vec<_>>() as _,
        attempts.iter().map(|(_, a)| without_nul(a.detail.as_deref())).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}

/// Events, numbered on from `first`; returns how many.
pub(crate) async fn write_events(conn: &mut PgConnection, events: &[EventRow<'_>], now: Timestamp, first: i32) -> Result<i32, StoreError> {
    let Ok(count) = i32::try_from(events.len()) else { return Err(StoreError::Unreadable("too many events at once".to_owned())) };
    if count == 0 {
        return Ok(0);
    }
    sqlx::query!(
        "INSERT INTO events (tenant_id, mode, pos, n, at, delivery_id, version, type, previous_state, state, reason, certainty,
            account_id, generation, attempt_count, flags, smtp_code, enhanced_code, occurred_at)
         SELECT x.tenant_id, x.mode, (SELECT feed_position()), $1 + x.n::int, $2, x.delivery_id, x.version, x.type,
            x.previous_state, x.state, x.reason, x.certainty, x.account_id, x.generation, x.attempt_count, x.flags, x.smtp_code,
            x.enhanced_code, x.occurred_at
         FROM unnest($3::int[], $4::smallint[], $5::uuid[], $6::int[], $7::text[], $8::text[], $9::text[], $10::text[],
                     $11::text[], $12::int[], $13::smallint[], $14::smallint[], $15::int[], $16::smallint[], $17::text[],
                     $18::timestamptz[]) WITH ORDINALITY
            AS x (tenant_id, mode, delivery_id, version, type, previous_state, state, reason, certainty, account_id, generation,
                  attempt_count, flags, smtp_code, enhanced_code, occurred_at, n)",
        first,
        At(now),
        &events.iter().map(|event| event.change.after.tenant.0).collect::<Vec<_>>()[..],
        &events.iter().map(|event| event.change.after.mode.as_i16()).collect::<Vec<_>>()[..],
        &events.iter().map(|event| event.change.after.id.as_uuid()).collect::<Vec<_>>()[..],
        &events.iter().map(|event| event.version).collect::<Vec<_>>()[..],
        events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>() as _,
        events.iter().map(|event| event.previous.map(|state| state.as_str())).collect::<Vec<_>>() as _,
        events.iter().map(|event| event.state).collect::<Vec<_>>() as _,
        events.iter().map(|event| event.reason.map(|reason| reason.as_str())).collect::<Vec<_>>() as _,
        events.iter().map(|event| event.change.after.certainty().as_str()).collect::<Vec<_>>() as _,
        events.iter().map(|event| event.change.after.account.map(|account| account.0)).collect::<Vec<_>>() as _,
        &events.iter().map(|event| small(event.change.after.generation)).collect::<Vec<_>>()[..],
        &events.iter().map(|event| small(event.change.after.attempt_count)).collect::<Vec<_>>()[..],
        &events.iter().map(|event| event.change.after.flags.0).collect::<Vec<_>>()[..],
        events.iter().map(|event| event.smtp_code).collect::<Vec<_>>() as _,
        events.iter().map(|event| without_nul(event.enhanced_code)).collect::<Vec<_>>() as _,
        events.iter().map(|event| At(event.occurred_at)).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(count)
}
