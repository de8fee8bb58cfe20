//! Finishing: what is known of each delivery and attempt, the core's decision, the guarded write.
//! Several outcomes of one delivery in one batch are written one after another.

use std::collections::{HashMap, HashSet};

use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::crash::fail_point;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::ids::{AccountId, DeliveryId};
use tidings_core::policy::Rules;
use tidings_core::state::State;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tidings_core::transition::{self, Finish, FinishFacts, Found, Landed};
use tidings_core::words::AttemptOutcome;
use uuid::Uuid;

use crate::apply::{write_history, write_states};
use crate::commit::{Parts, end_part};
use crate::error::store_error;
use crate::rows::{DeliveryRow, ids_json, number, open_rows, word};
use crate::writer::Writer;

pub(crate) async fn finish(
    writer: &mut Writer,
    rules: &Rules,
    items: &[Finish],
    now: Timestamp,
) -> Result<Vec<Result<Landed, StoreError>>, StoreError> {
    let mut results: Vec<Option<Result<Landed, StoreError>>> = items.iter().map(|_| None).collect();
    for round in rounds(items) {
        let mut parts = Parts::of(round.len());
        while let Some(part) = parts.next() {
            let batch: Vec<&Finish> = round[part.clone()].iter().map(|index| &items[*index]).collect();
            writer.savepoint().await?;
            let written = write(writer.connection(), rules, &batch, now).await;
            match end_part(writer, written).await? {
                Ok(written) => {
                    for (index, landed) in round[part].iter().zip(written) {
                        results[*index] = Some(Ok(landed));
                    }
                }
                Err(_) if parts.halve(&part) => {}
                Err(err) => results[round[part.start]] = Some(Err(err)),
            }
        }
    }
    Ok(results.into_iter().map(|result| result.expect("every item is in one round")).collect())
}

/// The items in rounds, so that no round holds a delivery twice and each delivery keeps its order.
fn rounds(items: &[Finish]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut earlier: HashMap<DeliveryId, usize> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let round = earlier.entry(item.id).and_modify(|round| *round += 1).or_insert(0);
        if rounds.len() <= *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push(index);
    }
    rounds
}

async fn write(connection: &mut SqliteConnection, rules: &Rules, batch: &[&Finish], now: Timestamp) -> Result<Vec<Landed>, StoreError> {
    let mut known = deliveries(connection, batch).await?;
    let mut history = history(connection, batch, &known).await?;
    let mut landed = Vec::with_capacity(batch.len());
    let mut changes: Vec<Change> = Vec::with_capacity(batch.len());
    for item in batch {
        let Some(delivery) = known.remove(&item.id) else {
            landed.push(Landed::Gone);
            continue;
        };
        let past = history.remove(&item.id).unwrap_or_default();
        let facts = FinishFacts {
            delivery,
            recorded: past.recorded.iter().find(|(number, ..)| *number == item.number).map(|(_, outcome, _)| *outcome),
            settled: past.recorded.iter().any(|(number, _, is_late)| *number == item.number && *is_late),
            tried: past.tried_before(item),
            accepted_generations: past.accepted,
        };
        match transition::finish(rules, &facts, item, now) {
            Some(change) => {
                landed.push(Landed::Moved(Box::new(change.after.clone()), Found::of(&change)));
                changes.push(change);
            }
            None => landed.push(Landed::Already),
        }
    }
    write_states(connection, &changes, now).await?;
    fail_point("finish.before_events");
    write_history(connection, &changes, now).await?;
    Ok(landed)
}

/// The deliveries of a batch: queue rows, and records of those that have left the queue.
async fn deliveries(connection: &mut SqliteConnection, batch: &[&Finish]) -> Result<HashMap<DeliveryId, Delivery>, StoreError> {
    let ids = ids_json(batch.iter().map(|item| item.id));
    let open = open_rows!("FROM json_each(?1) x CROSS JOIN queue q ON q.id = unhex(x.value) CROSS JOIN lanes l ON l.id = q.lane", ids);
    let mut known = HashMap::with_capacity(batch.len());
    for row in open.fetch_all(&mut *connection).await.map_err(store_error)? {
        let delivery = row.into_delivery()?;
        known.insert(delivery.id, delivery);
    }
    if known.len() < batch.len() {
        let missing = ids_json(batch.iter().map(|item| item.id).filter(|id| !known.contains_key(id)));
        for row in records(connection, missing).await? {
            let delivery = row.into_delivery()?;
            known.insert(delivery.id, delivery);
        }
    }
    Ok(known)
}

/// Deliveries that have left the queue; what the record does not keep is neutral.
pub(crate) async fn records(connection: &mut SqliteConnection, ids: String) -> Result<Vec<DeliveryRow>, StoreError> {
    sqlx::query_as!(
        DeliveryRow,
        r#"SELECT d.id AS "id!: Uuid", d.tenant_id AS "tenant_id!", d.mode AS "mode!", d.channel AS "channel!", d.class AS "class!",
            d.lane AS "lane!", '' AS "category!: String", d.state AS "state!", d.version AS "version!", d.generation AS "generation!",
            d.attempt_number AS "attempt_number!", d.attempt_count AS "attempt_count!", 0 AS "attempts_used!: i64",
            0 AS "attempt_limit!: i64", 0 AS "lost_count!: i64", 0 AS "build_failures!: i64", d.unresolved AS "unresolved!",
            NULL AS "no_resend?: String", NULL AS "available_at?: i64", NULL AS "lease_expires_at?: i64", NULL AS "lease_owner?: i64",
            d.account_id AS "account_id?", NULL AS "attempt_started_at?: i64", NULL AS "ambiguous_since?: i64", NULL AS "check_at?: i64",
            0 AS "rung!: i64", d.expires_at AS "expires_at!", NULL AS "sender?: String", d.flags AS "flags!", d.reason AS "reason?", d.settled_at AS "settled_at?",
            0 AS "siblings!: i64", 0 AS "is_ordered!: bool", 0 AS "is_collapsible!: bool"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value) WHERE d.state IS NOT NULL"#,
        ids
    )
    .fetch_all(connection)
    .await
    .map_err(store_error)
}

/// What is recorded of the attempts of one delivery.
#[derive(Default)]
struct Past {
    /// Number, outcome, and whether it is `late`.
    recorded: Vec<(u16, AttemptOutcome, bool)>,
    accepted: Vec<u16>,
    /// Number, generation, account and outcome.
    calls: Vec<(u16, u16, AccountId, AttemptOutcome)>,
}

impl Past {
    /// The other calls of the same generation.
    fn tried_before(&self, item: &Finish) -> Vec<(AccountId, AttemptOutcome)> {
        let others = self.calls.iter().filter(|(number, generation, ..)| *generation == item.generation && *number != item.number);
        others.map(|(_, _, account, outcome)| (*account, *outcome)).collect()
    }
}

/// The recorded attempts of those that have any: all but a first attempt that is still running.
async fn history(
    connection: &mut SqliteConnection,
    batch: &[&Finish],
    known: &HashMap<DeliveryId, Delivery>,
) -> Result<HashMap<DeliveryId, Past>, StoreError> {
    let is_first = |delivery: &Delivery| delivery.state == State::Dispatching && delivery.attempt_number == 1;
    let asked: HashSet<_> =
        batch.iter().map(|item| item.id).filter(|id| known.get(id).is_some_and(|delivery| !is_first(delivery))).collect();
    let mut history: HashMap<DeliveryId, Past> = HashMap::new();
    if asked.is_empty() {
        return Ok(history);
    }
    let ids = ids_json(asked);
    let rows = query!(
        r#"SELECT a.delivery_id AS "delivery_id!: Uuid", a.number AS "number!", a.generation AS "generation!", a.outcome AS "outcome!",
            a.accepted_at IS NOT NULL AS "accepted!: bool", a.account_id, a.late AS "late!"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value)"#,
        ids
    );
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let past = history.entry(DeliveryId::from_uuid(row.delivery_id)).or_default();
        let (attempt, outcome) = (number(row.number)?, word(&row.outcome)?);
        past.recorded.push((attempt, outcome, row.late != 0));
        if let Some(account) = row.account_id {
            past.calls.push((attempt, number(row.generation)?, AccountId(number(account)?), outcome));
        }
        if row.accepted {
            past.accepted.push(number(row.generation)?);
        }
    }
    Ok(history)
}
