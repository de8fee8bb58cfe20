//! Writing outcomes: lock the rows, decide by `transition::finish`, write, in one short transaction (S-033, S-038).

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::delivery::Delivery;
use tidings_core::ids::{AccountId, DeliveryId};
use tidings_core::policy::Rules;
use tidings_core::state::State;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tidings_core::transition::{self, Finish, FinishFacts, Found, Landed};
use tidings_core::words::AttemptOutcome;
use uuid::Uuid;

use crate::PostgresStore;
use crate::apply::{Written, apply};
use crate::error::{before, committing};
use crate::rows::{open_rows, records, word};

/// Writes a batch of outcomes. Several of one delivery are applied one after the other.
pub(crate) async fn finish(store: &PostgresStore, rules: &Rules, items: &[Finish], now: Timestamp) -> Result<Vec<Landed>, StoreError> {
    let mut conn = store.mover().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let mut landed: Vec<Landed> = items.iter().map(|_| Landed::Gone).collect();
    let mut written = Written::default();
    for round in rounds(items) {
        finish_round(&mut tx, rules, items, &round, now, &mut written, &mut landed).await?;
    }
    fail_point("finish.before_commit");
    tx.commit().await.map_err(committing)?;
    fail_point("finish.after_commit");
    Ok(landed)
}

/// Indexes in rounds that hold every delivery at most once, in the order given.
fn rounds(items: &[Finish]) -> Vec<Vec<usize>> {
    let mut seen: HashMap<DeliveryId, usize> = HashMap::with_capacity(items.len());
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let round = seen.entry(item.id).and_modify(|round| *round += 1).or_insert(0);
        if rounds.len() <= *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push(index);
    }
    rounds
}

async fn finish_round(
    conn: &mut PgConnection,
    rules: &Rules,
    items: &[Finish],
    round: &[usize],
    now: Timestamp,
    written: &mut Written,
    landed: &mut [Landed],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = round.iter().map(|index| items[*index].id.as_uuid()).collect();
    let mut deliveries = lock(conn, &ids).await?;
    let is_plain = |item: &Finish| deliveries.get(&item.id).is_none_or(|found| found.as_ref().is_none_or(|row| is_first_call(row, item)));
    let unclear: Vec<Uuid> =
        round.iter().map(|index| &items[*index]).filter(|item| !is_plain(item)).map(|item| item.id.as_uuid()).collect();
    let known = known_attempts(conn, &unclear).await?;

    let mut changes = Vec::with_capacity(round.len());
    let mut changed = Vec::with_capacity(round.len());
    for &index in round {
        let item = &items[index];
        landed[index] = match deliveries.remove(&item.id) {
            None => Landed::Gone,
            Some(None) => Landed::Fenced,
            Some(Some(delivery)) => {
                let facts = facts(delivery, known.get(&item.id.as_uuid()), item);
                match transition::finish(rules, &facts, item, now) {
                    None => Landed::Already,
                    Some(change) => {
                        changes.push(change);
                        changed.push(index);
                        Landed::Fenced
                    }
                }
            }
        };
    }
    apply(conn, &changes, now, written).await?;
    for (change, index) in changes.into_iter().zip(changed) {
        if written.holds(&change) {
            let found = Found::of(&change);
            landed[index] = Landed::Moved(Box::new(change.after), found);
        }
    }
    Ok(())
}

/// Nothing can be recorded of the only call of a delivery while it runs.
fn is_first_call(delivery: &Delivery, item: &Finish) -> bool {
    delivery.state == State::Dispatching && delivery.attempt_number == 1 && item.number == 1 && item.generation == 1
}

/// The deliveries, locked in the order of their ids: queue rows, and records of those that left. `None` for one that
/// came back into the queue between the two looks.
pub(crate) async fn lock(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<DeliveryId, Option<Delivery>>, StoreError> {
    let open = open_rows!("FROM queue q JOIN lanes l ON l.id = q.lane WHERE q.id = ANY($1) ORDER BY q.id FOR UPDATE OF q", ids)
        .fetch_all(&mut *conn)
        .await
        .map_err(before)?;
    let mut deliveries = HashMap::with_capacity(ids.len());
    for row in open {
        let delivery = row.delivery()?;
        deliveries.insert(delivery.id, Some(delivery));
    }
    let missing: Vec<Uuid> = ids.iter().copied().filter(|id| !deliveries.contains_key(&DeliveryId::from_uuid(*id))).collect();
    if missing.is_empty() {
        return Ok(deliveries);
    }
    let ended = records!("FROM deliveries d WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE OF d", &missing[..])
        .fetch_all(conn)
        .await
        .map_err(before)?;
    for row in ended {
        deliveries.insert(DeliveryId::from_uuid(row.id), row.delivery()?);
    }
    Ok(deliveries)
}

/// Number, generation, outcome, whether it carries the acceptance of its generation, by which account, and whether it is `late`.
type KnownAttempt = (i16, i16, AttemptOutcome, bool, Option<i32>, bool);

async fn known_attempts(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<KnownAttempt>>, StoreError> {
    let mut known: HashMap<Uuid, Vec<KnownAttempt>> = HashMap::new();
    if ids.is_empty() {
        return Ok(known);
    }
    let rows = sqlx::query!(
        r#"SELECT delivery_id, number, generation, outcome, accepted_at IS NOT NULL AS "is_acceptance!", account_id, late FROM attempts
         WHERE delivery_id = ANY($1)"#,
        ids,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    for row in rows {
        let known = known.entry(row.delivery_id).or_default();
        known.push((row.number, row.generation, word(&row.outcome)?, row.is_acceptance, row.account_id, row.late));
    }
    Ok(known)
}

fn facts(delivery: Delivery, known: Option<&Vec<KnownAttempt>>, item: &Finish) -> FinishFacts {
    let known = known.map(Vec::as_slice).unwrap_or_default();
    let this = known.iter().find(|attempt| u16::try_from(attempt.0) == Ok(item.number));
    let (recorded, settled) = (this.map(|attempt| attempt.2), this.is_some_and(|attempt| attempt.5));
    let accepted_generations = known.iter().filter(|attempt| attempt.3).filter_map(|attempt| u16::try_from(attempt.1).ok()).collect();
    let others =
        known.iter().filter(|attempt| u16::try_from(attempt.1) == Ok(item.generation) && u16::try_from(attempt.0) != Ok(item.number));
    let tried = others.filter_map(|attempt| Some((AccountId(attempt.4?), attempt.2))).collect();
    FinishFacts { delivery, recorded, settled, accepted_generations, tried }
}
