//! Acts: what is known of the deliveries they are about, the core's decision, the write with its audit rows, in one
//! transaction; and the list of dead letters.

use std::collections::HashMap;

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tidings_core::acts::{self, Act, ActFacts, Acting, AuditEntry, Target};
use tidings_core::crash::fail_point;
use tidings_core::delivery::{AttemptRecord, Change, Delivery};
use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::policy::Rules;
use tidings_core::store::{Acted, DeadLetter, DeadLetterFilter, StoreError, StoredDelivery};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::SqliteStore;
use crate::apply::apply;
use crate::audit_log;
use crate::commit::{Parts, end_part};
use crate::error::{copy_of, store_error};
use crate::finish;
use crate::rows::{AttemptRow, Hex, ids_json, json, number, open_rows};
use crate::writer::Writer;

/// Carries out acts; one whose rows cannot be read does not hold up the others.
pub(crate) async fn act(store: &SqliteStore, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
    match act_all(store, rules, acts, now).await {
        Ok(acted) => acted,
        Err(err) => acts.iter().map(|_| Err(copy_of(&err))).collect(),
    }
}

async fn act_all(store: &SqliteStore, rules: &Rules, acts: &[Act], now: Timestamp) -> Result<Vec<Result<Acted, StoreError>>, StoreError> {
    let mut writer = store.writer().await?;
    writer.begin().await?;
    let acted = act_in_parts(&mut writer, rules, acts, now).await;
    fail_point("act.before_commit");
    let acted = writer.end(acted).await?;
    fail_point("act.after_commit");
    Ok(acted)
}

async fn act_in_parts(
    writer: &mut Writer,
    rules: &Rules,
    acts: &[Act],
    now: Timestamp,
) -> Result<Vec<Result<Acted, StoreError>>, StoreError> {
    let mut results: Vec<Option<Result<Acted, StoreError>>> = acts.iter().map(|_| None).collect();
    for round in acts::rounds(acts) {
        let mut parts = Parts::of(round.len());
        while let Some(part) = parts.next() {
            let batch: Vec<&Act> = round[part.clone()].iter().map(|index| &acts[*index]).collect();
            writer.savepoint().await?;
            let acted = act_part(writer.connection(), rules, &batch, now).await;
            match end_part(writer, acted).await? {
                Ok(acted) => {
                    for (index, result) in round[part].iter().zip(acted) {
                        results[*index] = Some(Ok(result));
                    }
                }
                Err(_) if parts.halve(&part) => {}
                Err(err) => results[round[part.start]] = Some(Err(err)),
            }
        }
    }
    Ok(results.into_iter().flatten().collect())
}

async fn act_part(connection: &mut SqliteConnection, rules: &Rules, acts: &[&Act], now: Timestamp) -> Result<Vec<Acted>, StoreError> {
    let targets = targets(connection, acts).await?;
    let mut facts = facts(connection, targets.iter().flatten().copied().collect()).await?;
    let (mut acted, mut actings, mut entries) = (Vec::with_capacity(acts.len()), Vec::new(), Vec::new());
    for (act, ids) in acts.iter().zip(targets) {
        let known: Vec<ActFacts> = ids.into_iter().filter_map(|id| facts.remove(&id)).collect();
        let decision = acts::decide(rules, act, &known, now);
        entries.extend(AuditEntry::of(act, &decision));
        acted.push(Acted { answer: decision.answer, changed: decision.changes.iter().map(|acting| acting.change.after.clone()).collect() });
        actings.extend(decision.changes);
    }
    let changes: Vec<Change> = actings.iter().map(|acting| acting.change.clone()).collect();
    apply(connection, &changes, now).await?;
    write_beside(connection, &actings, now).await?;
    settle_attempts(connection, &actings).await?;
    audit_log::record(connection, &entries, now).await?;
    Ok(acted)
}

/// The deliveries of each act, in order of their ids; none for what is somebody else's.
async fn targets(connection: &mut SqliteConnection, acts: &[&Act]) -> Result<Vec<Vec<DeliveryId>>, StoreError> {
    let ends = |act: &Act| match act.target {
        Target::Delivery(id) => (id, id),
        Target::Notification(id) => (id.delivery(1), id.last_delivery()),
    };
    let rows: Vec<_> = acts
        .iter()
        .enumerate()
        .map(|(place, act)| (place, act.tenant.0, act.mode.as_i16(), Hex::of(ends(act).0), Hex::of(ends(act).1)))
        .collect();
    let rows = json(&rows);
    let rows = query!(
        r#"SELECT x.value->>0 AS "place!: i64", d.id AS "id!: Uuid" FROM json_each(?1) x
            CROSS JOIN deliveries d ON d.id >= unhex(x.value->>3) AND d.id <= unhex(x.value->>4)
           WHERE d.tenant_id = x.value->>1 AND d.mode = x.value->>2 ORDER BY d.id"#,
        rows
    );
    let mut targets = vec![Vec::new(); acts.len()];
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        targets[number::<usize>(row.place)?].push(DeliveryId::from_uuid(row.id));
    }
    Ok(targets)
}

/// What is known of deliveries; the transaction began IMMEDIATE, so that nobody else moves them.
async fn facts(connection: &mut SqliteConnection, ids: Vec<DeliveryId>) -> Result<HashMap<DeliveryId, ActFacts>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let mut deliveries = deliveries(connection, &ids).await?;
    let mut attempts = attempts(connection, &ids).await?;
    let pairs: Vec<_> = ids.iter().map(|id| (Hex::of(*id), Hex::uuid(id.notification().as_uuid()))).collect();
    let pairs = json(&pairs);
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.message_id AS "message_id?", d.replays AS "replays!", n.category AS "category!",
            n.send_at AS "send_at?", n.expires_at AS "expires_at!",
            (d.address IS NOT NULL AND n.body IS NOT NULL) AS "has_content!: bool"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0)
            CROSS JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = unhex(x.value->>1)"#,
        pairs
    );
    let mut facts = HashMap::with_capacity(ids.len());
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let id = DeliveryId::from_uuid(row.id);
        let Some(mut delivery) = deliveries.remove(&id) else { continue };
        delivery.category = row.category;
        let known = ActFacts {
            delivery,
            attempts: attempts.remove(&id).unwrap_or_default(),
            message_id: row.message_id,
            has_content: row.has_content,
            replays: number(row.replays)?,
            send_at: row.send_at.map(Timestamp::from_micros),
            expires_at: Timestamp::from_micros(row.expires_at),
        };
        facts.insert(id, known);
    }
    Ok(facts)
}

async fn deliveries(connection: &mut SqliteConnection, ids: &[DeliveryId]) -> Result<HashMap<DeliveryId, Delivery>, StoreError> {
    let asked = ids_json(ids.iter().copied());
    let open = open_rows!("FROM json_each(?1) x CROSS JOIN queue q ON q.id = unhex(x.value) CROSS JOIN lanes l ON l.id = q.lane", asked);
    let mut found = HashMap::with_capacity(ids.len());
    for row in open.fetch_all(&mut *connection).await.map_err(store_error)? {
        let delivery = row.into_delivery()?;
        found.insert(delivery.id, delivery);
    }
    if found.len() < ids.len() {
        let missing = ids_json(ids.iter().copied().filter(|id| !found.contains_key(id)));
        for row in finish::records(connection, missing).await? {
            let delivery = row.into_delivery()?;
            found.insert(delivery.id, delivery);
        }
    }
    Ok(found)
}

async fn attempts(connection: &mut SqliteConnection, ids: &[DeliveryId]) -> Result<HashMap<DeliveryId, Vec<AttemptRecord>>, StoreError> {
    let ids = ids_json(ids.iter().copied());
    let rows = sqlx::query_as!(
        AttemptRow,
        r#"SELECT a.delivery_id AS "delivery_id!: Uuid", a.number AS "number!", a.generation AS "generation!", a.account_id AS "account_id?",
            a.started_at AS "started_at!", a.finished_at AS "finished_at?", a.outcome AS "outcome!", a.accepted_at AS "accepted_at?",
            a.late AS "late!", a.provider_code AS "provider_code?", a.provider_message_id AS "provider_message_id?",
            a.match_key AS "match_key?", a.detail AS "detail?"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value) ORDER BY a.delivery_id, a.number"#,
        ids
    );
    let mut attempts: HashMap<DeliveryId, Vec<AttemptRecord>> = HashMap::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        attempts.entry(DeliveryId::from_uuid(row.delivery_id)).or_default().push(row.into_record()?);
    }
    Ok(attempts)
}

/// What acts write into the record beside the state.
async fn write_beside(connection: &mut SqliteConnection, actings: &[Acting], now: Timestamp) -> Result<(), StoreError> {
    let has_more = |acting: &&Acting| acting.send_at.is_some() || acting.message_id.is_some() || acting.replayed || acting.forgets_receipts;
    let rows: Vec<_> = actings
        .iter()
        .filter(has_more)
        .map(|row| (Hex::of(row.change.after.id), row.send_at, row.message_id.as_deref(), row.replayed, row.forgets_receipts))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let (rows, now) = (json(&rows), now.as_micros());
    query!(
        "UPDATE deliveries SET send_at = coalesce(x.value->>1, send_at), message_id = coalesce(x.value->>2, message_id),
            replays = replays + (x.value->>3), updated_at = ?2, receipt_rank = iif(x.value->>4, NULL, receipt_rank),
            receipt_at = iif(x.value->>4, NULL, receipt_at), receipt_key = iif(x.value->>4, NULL, receipt_key)
         FROM json_each(?1) AS x WHERE deliveries.id = unhex(x.value->>0)",
        rows,
        now
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// An operator's word settles every attempt that nobody answered for: `late` beside such an outcome says so.
async fn settle_attempts(connection: &mut SqliteConnection, actings: &[Acting]) -> Result<(), StoreError> {
    let ids: Vec<_> = actings.iter().filter(|acting| acting.settles_attempts).map(|acting| acting.change.after.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let ids = ids_json(ids);
    query!(
        "UPDATE attempts SET late = 1 FROM json_each(?1) AS x
         WHERE attempts.delivery_id = unhex(x.value) AND attempts.outcome IN ('ambiguous', 'lost')",
        ids
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// Dead letters, newest first: one range of the index `deliveries_dead`.
pub(crate) async fn dead_letters(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let first = filter.since.map_or(Uuid::nil(), NotificationId::first_at);
    let until = filter.until.map_or(Uuid::max(), NotificationId::first_at);
    let end = filter.before.map_or(until, |before| before.min(until));
    let mode = mode.as_i16();
    let (state, reason) = (filter.state.map(|state| state.as_str()), filter.reason.map(|reason| reason.as_str()));
    let (channel, class) = (filter.channel.map(|channel| channel.as_str()), filter.class.map(|class| class.as_str()));
    let category = filter.category.as_deref();
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.address AS "address?", d.ref AS "reference?", d.copies AS "copies?", d.message_id AS "message_id?",
            d.send_at AS "send_at?", d.updated_at AS "updated_at!", d.replays AS "replays!", n.idempotency_key AS "idempotency_key!",
            n.category AS "category!", n.schema_version AS "schema_version!: i16",
            (d.address IS NOT NULL AND n.body IS NOT NULL) AS "has_content!: bool"
           FROM deliveries d INDEXED BY deliveries_dead CROSS JOIN notifications n
            ON n.tenant_id = d.tenant_id AND n.id = unhex(substr(hex(d.id), 1, 29) || '000')
           WHERE d.tenant_id = ?1 AND d.attention IS NOT NULL AND d.id >= ?2 AND d.id < ?3 AND d.mode = ?4
            AND (?5 IS NULL OR d.state = ?5) AND (?6 IS NULL OR d.reason = ?6) AND (?7 IS NULL OR d.channel = ?7)
            AND (?8 IS NULL OR d.class = ?8) AND (?9 IS NULL OR n.category = ?9)
           ORDER BY d.id DESC LIMIT ?10"#,
        tenant.0,
        first,
        end,
        mode,
        state,
        reason,
        channel,
        class,
        category,
        filter.limit
    );
    let rows = rows.fetch_all(&mut *snapshot).await.map_err(store_error)?;
    let ids: Vec<DeliveryId> = rows.iter().map(|row| DeliveryId::from_uuid(row.id)).collect();
    let mut deliveries = deliveries(&mut snapshot, &ids).await?;
    let mut attempts = attempts(&mut snapshot, &ids).await?;
    snapshot.commit().await.map_err(store_error)?;
    let mut letters = Vec::with_capacity(rows.len());
    for row in rows {
        let id = DeliveryId::from_uuid(row.id);
        let Some(delivery) = deliveries.remove(&id) else { continue };
        let stored = StoredDelivery {
            delivery,
            address: row.address,
            reference: row.reference,
            copies: row.copies,
            message_id: row.message_id,
            // These ends do not come from an entry that could be named.
            suppression: None,
            send_at: row.send_at.map(Timestamp::from_micros),
            updated_at: Timestamp::from_micros(row.updated_at),
            attempts: attempts.remove(&id).unwrap_or_default(),
        };
        letters.push(DeadLetter {
            stored,
            idempotency_key: row.idempotency_key,
            category: row.category,
            schema_version: row.schema_version,
            has_content: row.has_content,
            replays: number(row.replays)?,
        });
    }
    Ok(letters)
}
