//! The one place that writes decided changes: one statement for each table, whatever the size of the batch.
//! What changes is decided in core; the caller has locked the rows, and the guards prove it.

use std::collections::HashSet;

use sqlx::PgConnection;
use tidings_core::crash::fail_point;
use tidings_core::delivery::Change;
use tidings_core::events;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::completing;
use crate::error::before;
use crate::history::{write_attempts, write_events};
use crate::instant::{At, at};
use crate::order;
use crate::rows::small;
use crate::suppressions;

/// What one transaction has written so far: which rows moved, and how many events it told.
#[derive(Debug, Default)]
pub(crate) struct Written {
    moved: HashSet<Uuid>,
    events: i32,
}

impl Written {
    /// Whether this change was written; it was not when its row had moved since it was decided (S-033).
    pub(crate) fn holds(&self, change: &Change) -> bool {
        self.moved.contains(&change.after.id.as_uuid())
    }
}

/// Writes changes inside the caller's transaction. At most one change for each delivery in one call.
pub(crate) async fn apply(conn: &mut PgConnection, changes: &[Change], now: Timestamp, written: &mut Written) -> Result<(), StoreError> {
    let is_open = |change: &Change| (change.before.state.is_open(), change.after.state.is_open());
    let stay = select(changes, |change| is_open(change) == (true, true));
    let leave = select(changes, |change| is_open(change) == (true, false));
    written.moved.clear();
    if !stay.is_empty() {
        written.moved.extend(update_queue(conn, &stay).await?);
        let with_copies = select(changes, |change| change.copies.is_some() && written.holds(change));
        update_copies(conn, &with_copies).await?;
    }
    let left: HashSet<Uuid> = if leave.is_empty() { HashSet::new() } else { delete_from_queue(conn, &leave).await?.into_iter().collect() };
    let records = select(changes, |change| match is_open(change) {
        (true, true) => false,
        (true, false) => left.contains(&change.after.id.as_uuid()),
        (false, _) => true,
    });
    if !records.is_empty() {
        let moved = update_records(conn, &records, now).await?;
        if left.iter().any(|id| !moved.contains(id)) {
            return Err(StoreError::Unreadable("a queue row has no open record".to_owned()));
        }
        let back = select(changes, |change| is_open(change) == (false, true) && moved.contains(&change.after.id.as_uuid()));
        written.moved.extend(moved);
        if !back.is_empty() {
            return_to_queue(conn, &back).await?;
        }
    }
    let moved = select(changes, |change| written.holds(change));
    suppressions::note(conn, &moved, now, &mut written.events).await?;
    order::advance(conn, &moved, now).await?;
    write_attempts(conn, &moved).await?;
    if moved.iter().any(|change| !change.events.is_empty()) {
        fail_point("finish.before_events");
    }
    let completed = completing::completed(conn, &moved).await?;
    let rows = events::rows(moved.iter().copied(), &completed, now);
    written.events += write_events(conn, &rows, now, written.events).await?;
    completing::erase_sensitive(conn, &completed).await
}

fn select(changes: &[Change], wanted: impl Fn(&Change) -> bool) -> Vec<&Change> {
    changes.iter().filter(|change| wanted(change)).collect()
}

/// One column of a batch.
fn column<'a, T>(changes: &[&'a Change], value: impl Fn(&'a Change) -> T) -> Vec<T> {
    changes.iter().copied().map(value).collect()
}

async fn update_queue(conn: &mut PgConnection, changes: &[&Change]) -> Result<Vec<Uuid>, StoreError> {
    sqlx::query_scalar!(
        "UPDATE queue q SET state = x.state, available_at = x.available_at, lease_expires_at = x.lease_expires_at,
            lease_owner = x.lease_owner, account_id = x.account_id, attempt_number = x.attempt_number,
            attempt_started_at = x.attempt_started_at, generation = x.generation, attempt_count = x.attempt_count,
            attempts_used = x.attempts_used, attempt_limit = x.attempt_limit, lost_count = x.lost_count,
            build_failures = x.build_failures, unresolved = x.unresolved, flags = x.flags, no_resend = x.no_resend,
            version = x.version, ambiguous_since = x.ambiguous_since, check_at = x.check_at, rung = x.rung,
            expires_at = x.expires_at
         FROM unnest($1::uuid[], $2::int[], $3::smallint[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::int[],
                     $8::int[], $9::smallint[], $10::timestamptz[], $11::smallint[], $12::smallint[], $13::smallint[],
                     $14::smallint[], $15::smallint[], $16::smallint[], $17::smallint[], $18::int[], $19::text[],
                     $20::int[], $21::timestamptz[], $22::timestamptz[], $23::smallint[], $24::timestamptz[])
            AS x (id, before_version, before_epoch, state, available_at, lease_expires_at, lease_owner, account_id,
                  attempt_number, attempt_started_at, generation, attempt_count, attempts_used, attempt_limit, lost_count,
                  build_failures, unresolved, flags, no_resend, version, ambiguous_since, check_at, rung, expires_at)
         WHERE q.id = x.id AND q.version = x.before_version AND q.attempt_number = x.before_epoch
         RETURNING q.id",
        &column(changes, |c| c.after.id.as_uuid())[..],
        &column(changes, |c| c.before.version)[..],
        &column(changes, |c| small(c.before.attempt_number))[..],
        column(changes, |c| c.after.state.as_str()) as _,
        column(changes, available_at) as _,
        column(changes, |c| at(c.after.lease_expires_at)) as _,
        column(changes, |c| c.after.lease_owner.map(|owner| owner.0)) as _,
        column(changes, |c| c.after.account.map(|account| account.0)) as _,
        &column(changes, |c| small(c.after.attempt_number))[..],
        column(changes, |c| at(c.after.attempt_started_at)) as _,
        &column(changes, |c| small(c.after.generation))[..],
        &column(changes, |c| small(c.after.attempt_count))[..],
        &column(changes, |c| small(c.after.attempts_used))[..],
        &column(changes, |c| small(c.after.attempt_limit))[..],
        &column(changes, |c| small(c.after.lost_count))[..],
        &column(changes, |c| small(c.after.build_failures))[..],
        &column(changes, |c| small(c.after.unresolved))[..],
        &column(changes, |c| c.after.flags.0)[..],
        column(changes, |c| c.after.no_resend.map(|reason| reason.as_str())) as _,
        &column(changes, |c| c.after.version)[..],
        column(changes, |c| at(c.after.ambiguous_since)) as _,
        column(changes, |c| at(c.after.check_at)) as _,
        &column(changes, |c| small(c.after.rung))[..],
        column(changes, |c| At(c.after.expires_at)) as _,
    )
    .fetch_all(conn)
    .await
    .map_err(before)
}

fn available_at(change: &Change) -> Option<At> {
    if change.after.blocked { Some(At::NEVER) } else { at(change.after.available_at) }
}

async fn delete_from_queue(conn: &mut PgConnection, changes: &[&Change]) -> Result<Vec<Uuid>, StoreError> {
    sqlx::query_scalar!(
        "DELETE FROM queue q USING unnest($1::uuid[], $2::int[], $3::smallint[]) AS x (id, before_version, before_epoch)
         WHERE q.id = x.id AND q.version = x.before_version AND q.attempt_number = x.before_epoch
         RETURNING q.id",
        &column(changes, |c| c.after.id.as_uuid())[..],
        &column(changes, |c| c.before.version)[..],
        &column(changes, |c| small(c.before.attempt_number))[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)
}

/// Rows that come out of the queue, go back into it, or stay out. `id = ANY` lets the planner leave out partitions.
async fn update_records(conn: &mut PgConnection, changes: &[&Change], now: Timestamp) -> Result<HashSet<Uuid>, StoreError> {
    let closed = |c: &Change| !c.after.state.is_open();
    let moved = sqlx::query_scalar!(
        "UPDATE deliveries d SET state = x.state, reason = x.reason, version = x.version, generation = x.generation,
            attempt_number = x.attempt_number, attempt_count = x.attempt_count, unresolved = x.unresolved, flags = x.flags,
            account_id = x.account_id, expires_at = x.expires_at, attention = x.attention, updated_at = $16,
            settled_at = x.settled_at, copies = COALESCE(x.copies, d.copies), sender = COALESCE(x.sender, d.sender)
         FROM unnest($1::uuid[], $2::bool[], $3::int[], $4::text[], $5::text[], $6::int[], $7::smallint[], $8::smallint[],
                     $9::smallint[], $10::smallint[], $11::int[], $12::int[], $13::timestamptz[], $14::bool[],
                     $15::timestamptz[], $17::bytea[], $18::text[])
            AS x (id, was_open, before_version, state, reason, version, generation, attempt_number, attempt_count, unresolved,
                  flags, account_id, expires_at, attention, settled_at, copies, sender)
         WHERE d.id = x.id AND d.id = ANY($1)
            AND ((x.was_open AND d.state IS NULL) OR (NOT x.was_open AND d.state IS NOT NULL AND d.version = x.before_version))
         RETURNING d.id",
        &column(changes, |c| c.after.id.as_uuid())[..],
        &column(changes, |c| c.before.state.is_open())[..],
        &column(changes, |c| c.before.version)[..],
        column(changes, |c| closed(c).then(|| c.after.state.as_str())) as _,
        column(changes, |c| c.after.reason.map(|reason| reason.as_str())) as _,
        &column(changes, |c| c.after.version)[..],
        &column(changes, |c| small(c.after.generation))[..],
        &column(changes, |c| small(c.after.attempt_number))[..],
        &column(changes, |c| small(c.after.attempt_count))[..],
        &column(changes, |c| small(c.after.unresolved))[..],
        &column(changes, |c| c.after.flags.0)[..],
        column(changes, |c| c.after.account.map(|account| account.0)) as _,
        column(changes, |c| At(c.after.expires_at)) as _,
        column(changes, |c| c.after.needs_attention().then_some(true)) as _,
        column(changes, |c| at(c.after.settled_at)) as _,
        At(now),
        column(changes, |c| c.copies.as_deref()) as _,
        column(changes, |c| c.after.sender.as_deref()) as _,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    Ok(moved.into_iter().collect())
}

/// What became of copies while the row stays in the queue; those that leave it have theirs in `update_records`.
async fn update_copies(conn: &mut PgConnection, changes: &[&Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE deliveries d SET copies = x.copies FROM unnest($1::uuid[], $2::bytea[]) AS x (id, copies)
         WHERE d.id = x.id AND d.id = ANY($1)",
        &column(changes, |c| c.after.id.as_uuid())[..],
        column(changes, |c| c.copies.as_deref()) as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}

/// Rows that are open again, such as resends. What neither the record nor the change holds comes from the notification.
async fn return_to_queue(conn: &mut PgConnection, changes: &[&Change]) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, account_id, attempt_number, generation,
            attempt_count, attempts_used, attempt_limit, unresolved, flags, version, ambiguous_since, check_at, expires_at,
            address_digest, sender, schema_version, siblings)
         SELECT d.id, d.tenant_id, d.mode, d.lane, n.category, x.state, x.available_at, x.account_id, x.attempt_number,
            x.generation, x.attempt_count, x.attempts_used, x.attempt_limit, x.unresolved, x.flags, x.version,
            x.ambiguous_since, x.check_at, x.expires_at, d.address_digest, d.sender, n.schema_version, n.delivery_count
         FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::int[], $6::smallint[], $7::smallint[],
                     $8::smallint[], $9::smallint[], $10::smallint[], $11::smallint[], $12::int[], $13::int[],
                     $14::timestamptz[], $15::timestamptz[], $16::timestamptz[])
            AS x (id, notification_id, state, available_at, account_id, attempt_number, generation, attempt_count, attempts_used,
                  attempt_limit, unresolved, flags, version, ambiguous_since, check_at, expires_at)
         JOIN deliveries d ON d.id = x.id AND d.id = ANY($1)
         JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = x.notification_id AND n.id = ANY($2)",
        &column(changes, |c| c.after.id.as_uuid())[..],
        &column(changes, |c| c.after.id.notification().as_uuid())[..],
        column(changes, |c| c.after.state.as_str()) as _,
        column(changes, available_at) as _,
        column(changes, |c| c.after.account.map(|account| account.0)) as _,
        &column(changes, |c| small(c.after.attempt_number))[..],
        &column(changes, |c| small(c.after.generation))[..],
        &column(changes, |c| small(c.after.attempt_count))[..],
        &column(changes, |c| small(c.after.attempts_used))[..],
        &column(changes, |c| small(c.after.attempt_limit))[..],
        &column(changes, |c| small(c.after.unresolved))[..],
        &column(changes, |c| c.after.flags.0)[..],
        &column(changes, |c| c.after.version)[..],
        column(changes, |c| at(c.after.ambiguous_since)) as _,
        column(changes, |c| at(c.after.check_at)) as _,
        column(changes, |c| At(c.after.expires_at)) as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}
