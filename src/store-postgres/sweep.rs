//! Timers: leases that ended, rows past their expiry, holds that are over; and the renewal of leases.
//! What follows from each is decided in `transition`.

use std::collections::{HashMap, HashSet};

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::delivery::Delivery;
use tidings_core::ids::{DeliveryId, InstanceId};
use tidings_core::policy::Rules;
use tidings_core::store::{StoreError, Sweep, Swept};
use tidings_core::time::Timestamp;
use tidings_core::transition;
use uuid::Uuid;

use crate::PostgresStore;
use crate::apply::{Written, apply};
use crate::error::{before, committing};
use crate::instant::At;
use crate::rows::{OpenRow, count, open_rows, small};

/// Moves rows whose time has come; those that somebody else holds are left to them.
pub(crate) async fn sweep(
    store: &PostgresStore,
    rules: &Rules,
    sweep: Sweep,
    limit: i64,
    now: Timestamp,
) -> Result<Vec<Swept>, StoreError> {
    let mut conn = store.mover().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let due = lock_due(&mut tx, sweep, limit, now).await?;
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let accepted = match sweep {
        Sweep::LeaseExpired | Sweep::ChecksDue => accepted_before(&mut tx, &due).await?,
        Sweep::PastExpiry => HashSet::new(),
    };
    let decide = |delivery: &Delivery| {
        let was_accepted = accepted.contains(&delivery.id.as_uuid());
        match sweep {
            Sweep::LeaseExpired => transition::reap(rules, delivery, was_accepted, now),
            Sweep::PastExpiry => transition::expire(rules, delivery, now),
            Sweep::ChecksDue => transition::check(rules, delivery, was_accepted, now),
        }
    };
    let changes: Vec<_> = due.iter().filter_map(decide).collect();
    let mut written = Written::default();
    apply(&mut tx, &changes, now, &mut written).await?;
    fail_point("sweep.before_commit");
    tx.commit().await.map_err(committing)?;
    let swept = changes.iter().filter(|change| written.holds(change));
    Ok(swept.map(|c| Swept { id: c.after.id, lane: c.after.lane, from: c.before.state, to: c.after.state }).collect())
}

async fn lock_due(conn: &mut PgConnection, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Delivery>, StoreError> {
    let now = At(now);
    let rows = match sweep {
        Sweep::LeaseExpired => {
            open_rows!(
                "FROM queue q JOIN lanes l ON l.id = q.lane WHERE q.lease_expires_at <= $1
             ORDER BY q.lease_expires_at LIMIT $2 FOR UPDATE OF q SKIP LOCKED",
                now,
                limit,
            )
            .fetch_all(conn)
            .await
        }
        Sweep::PastExpiry => {
            open_rows!(
                "FROM queue q JOIN lanes l ON l.id = q.lane WHERE q.expires_at <= $1 AND q.available_at IS NOT NULL
             ORDER BY q.expires_at LIMIT $2 FOR UPDATE OF q SKIP LOCKED",
                now,
                limit,
            )
            .fetch_all(conn)
            .await
        }
        Sweep::ChecksDue => {
            open_rows!(
                "FROM queue q JOIN lanes l ON l.id = q.lane WHERE q.check_at <= $1
             ORDER BY q.check_at LIMIT $2 FOR UPDATE OF q SKIP LOCKED",
                now,
                limit,
            )
            .fetch_all(conn)
            .await
        }
    };
    Ok(rows.map_err(before)?.into_iter().filter_map(OpenRow::readable).collect())
}

/// Which of these have an acceptance on record that is their answer.
async fn accepted_before(conn: &mut PgConnection, due: &[Delivery]) -> Result<HashSet<Uuid>, StoreError> {
    let called: Vec<Uuid> = due.iter().map(|delivery| delivery.id.as_uuid()).collect();
    let rows =
        sqlx::query!("SELECT delivery_id, generation FROM attempts WHERE delivery_id = ANY($1) AND accepted_at IS NOT NULL", &called[..])
            .fetch_all(conn)
            .await
            .map_err(before)?;
    let mut accepted: HashMap<Uuid, Vec<u16>> = HashMap::new();
    for row in rows {
        accepted.entry(row.delivery_id).or_default().push(count(row.generation)?);
    }
    let is_answered = |delivery: &&Delivery| {
        let generations = accepted.get(&delivery.id.as_uuid());
        generations.is_some_and(|all| all.iter().any(|generation| transition::acceptance_stops(delivery, *generation)))
    };
    Ok(due.iter().filter(is_answered).map(|delivery| delivery.id.as_uuid()).collect())
}

/// Renews leases that are still ours, and says which are not.
pub(crate) async fn renew(
    store: &PostgresStore,
    instance: InstanceId,
    running: &[(DeliveryId, u16)],
    until: Timestamp,
    now: Timestamp,
) -> Result<Vec<DeliveryId>, StoreError> {
    let mut conn = store.mover().await?;
    let ids: Vec<Uuid> = running.iter().map(|(id, _)| id.as_uuid()).collect();
    // Locked in the order of ids, as `finish` does.
    let renewed = sqlx::query_scalar!(
        "WITH seen AS (UPDATE instances SET seen_at = GREATEST(seen_at, $5) WHERE id = $4),
         ours AS (
            SELECT q.id FROM queue q JOIN unnest($1::uuid[], $2::smallint[]) AS x (id, epoch) ON q.id = x.id AND q.attempt_number = x.epoch
            WHERE q.lease_owner = $4 AND q.state = 'dispatching' ORDER BY q.id FOR UPDATE OF q)
         UPDATE queue q SET lease_expires_at = GREATEST(q.lease_expires_at, $3) FROM ours WHERE q.id = ours.id RETURNING q.id",
        &ids[..],
        &running.iter().map(|(_, epoch)| small(*epoch)).collect::<Vec<_>>()[..],
        At(until),
        instance.0,
        At(now),
    )
    .fetch_all(&mut *conn)
    .await
    // Renewing again does no harm, so it does not matter whether this one was committed.
    .map_err(before)?;
    let renewed: HashSet<Uuid> = renewed.into_iter().collect();
    Ok(running.iter().map(|(id, _)| *id).filter(|id| !renewed.contains(&id.as_uuid())).collect())
}
