//! Timers of rows: leases that end, deadlines that pass, holds that are over; and the renewal of leases.
//! What a timer does to a row is the core's decision.

use std::collections::{HashMap, HashSet};

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};
use tidings_core::crash::fail_point;
use tidings_core::delivery::Delivery;
use tidings_core::ids::{DeliveryId, InstanceId};
use tidings_core::policy::Rules;
use tidings_core::store::{StoreError, Sweep, Swept};
use tidings_core::time::Timestamp;
use tidings_core::transition;
use uuid::Uuid;

use crate::apply::apply;
use crate::error::{commit_error, store_error};
use crate::rows::{DeliveryRow, Hex, ids_json, json, number, open_rows};
use crate::writer::Writer;

pub(crate) async fn sweep(writer: &mut Writer, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
    writer.begin().await?;
    let swept = sweep_in(writer.connection(), rules, sweep, limit, now).await;
    fail_point("sweep.before_commit");
    writer.end(swept).await
}

async fn sweep_in(
    connection: &mut SqliteConnection,
    rules: &Rules,
    sweep: Sweep,
    limit: i64,
    now: Timestamp,
) -> Result<Vec<Swept>, StoreError> {
    let due = due(connection, sweep, limit, now).await?;
    let accepted = accepted(connection, &due).await?;
    let decide = |delivery: &Delivery| match sweep {
        Sweep::LeaseExpired => transition::reap(rules, delivery, accepted.contains(&delivery.id), now),
        Sweep::PastExpiry => transition::expire(rules, delivery, now),
        Sweep::ChecksDue => transition::check(rules, delivery, accepted.contains(&delivery.id), now),
    };
    let changes: Vec<_> = due.iter().filter_map(decide).collect();
    apply(connection, &changes, now).await?;
    let swept = changes.into_iter().map(|change| Swept {
        id: change.after.id,
        lane: change.after.lane,
        from: change.before.state,
        to: change.after.state,
    });
    Ok(swept.collect())
}

/// Rows that a timer has reached; those that this binary cannot read stay where they are.
async fn due(connection: &mut SqliteConnection, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Delivery>, StoreError> {
    let now = now.as_micros();
    let rows = match sweep {
        Sweep::LeaseExpired => {
            let rows = open_rows!(
                "FROM queue q CROSS JOIN lanes l ON l.id = q.lane WHERE q.lease_expires_at <= ?1 ORDER BY q.lease_expires_at LIMIT ?2",
                now,
                limit
            );
            rows.fetch_all(connection).await
        }
        Sweep::PastExpiry => {
            let rows = open_rows!(
                "FROM queue q CROSS JOIN lanes l ON l.id = q.lane
                 WHERE q.expires_at <= ?1 AND q.available_at IS NOT NULL ORDER BY q.expires_at LIMIT ?2",
                now,
                limit
            );
            rows.fetch_all(connection).await
        }
        Sweep::ChecksDue => {
            let rows = open_rows!(
                "FROM queue q CROSS JOIN lanes l ON l.id = q.lane WHERE q.check_at <= ?1 ORDER BY q.check_at LIMIT ?2",
                now,
                limit
            );
            rows.fetch_all(connection).await
        }
    };
    Ok(rows.map_err(store_error)?.into_iter().filter_map(DeliveryRow::readable).collect())
}

/// Which of these have a recorded acceptance that is their answer.
async fn accepted(connection: &mut SqliteConnection, due: &[Delivery]) -> Result<HashSet<DeliveryId>, StoreError> {
    if due.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = ids_json(due.iter().map(|delivery| delivery.id));
    let rows = query!(
        r#"SELECT a.delivery_id AS "id!: Uuid", a.generation AS "generation!" FROM json_each(?1) x
            CROSS JOIN attempts a ON a.delivery_id = unhex(x.value) WHERE a.accepted_at IS NOT NULL"#,
        ids
    );
    let mut accepted: HashMap<DeliveryId, Vec<u16>> = HashMap::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        accepted.entry(DeliveryId::from_uuid(row.id)).or_default().push(number(row.generation)?);
    }
    let is_answered = |delivery: &&Delivery| {
        let generations = accepted.get(&delivery.id);
        generations.is_some_and(|all| all.iter().any(|generation| transition::acceptance_stops(delivery, *generation)))
    };
    Ok(due.iter().filter(is_answered).map(|delivery| delivery.id).collect())
}

pub(crate) async fn renew(
    connection: &mut SqliteConnection,
    instance: InstanceId,
    running: &[(DeliveryId, u16)],
    until: Timestamp,
) -> Result<Vec<DeliveryId>, StoreError> {
    if running.is_empty() {
        return Ok(Vec::new());
    }
    let rows = json(&running.iter().map(|(id, epoch)| (Hex::of(*id), epoch)).collect::<Vec<_>>());
    let until = until.as_micros();
    let renewed = query_scalar!(
        r#"UPDATE queue SET lease_expires_at = ?2 FROM jsonb_each(?1) AS x
           WHERE queue.id = unhex(x.value->>0) AND queue.attempt_number = x.value->>1 AND queue.lease_expires_at IS NOT NULL
            AND queue.lease_owner = ?3
           RETURNING queue.id AS "id!: Uuid""#,
        rows,
        until,
        instance.0
    );
    let renewed: HashSet<_> = renewed.fetch_all(connection).await.map_err(commit_error)?.into_iter().map(DeliveryId::from_uuid).collect();
    Ok(running.iter().map(|(id, _)| *id).filter(|id| !renewed.contains(id)).collect())
}

/// The lock file proves that no owner lives; the sweep then judges the rows as it judges every lost lease.
pub(crate) async fn void_leases(connection: &mut SqliteConnection, now: Timestamp) -> Result<u64, StoreError> {
    let now = now.as_micros();
    let voided = query!("UPDATE queue SET lease_expires_at = ?1 WHERE lease_expires_at > ?1", now);
    Ok(voided.execute(connection).await.map_err(commit_error)?.rows_affected())
}
