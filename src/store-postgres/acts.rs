//! Acts: lock the deliveries they are about, decide by `acts::decide`, write with their audit rows, in one short
//! transaction; and the list of dead letters.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::acts::{self, Act, ActFacts, Acting, AuditEntry, Target};
use tidings_core::crash::fail_point;
use tidings_core::delivery::{AttemptRecord, Change, Delivery};
use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::policy::Rules;
use tidings_core::store::{Acted, DeadLetter, DeadLetterFilter, StoreError, StoredDelivery};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::apply::{Written, apply};
use crate::audit_log;
use crate::commit::in_parts;
use crate::error::{before, committing, is_about_items};
use crate::finish::lock;
use crate::instant::{At, at};
use crate::rows::{AttemptRow, count, records};

/// How often rows that moved between two looks are looked at again.
const LOOKS: usize = 3;

/// Carries out acts; one whose rows cannot be read does not hold up the others.
pub(crate) async fn act(store: &PostgresStore, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
    in_parts(acts, is_about_items, |part| Box::pin(act_part(store, rules, part, now))).await
}

async fn act_part(store: &PostgresStore, rules: &Rules, acts: &[Act], now: Timestamp) -> Result<Vec<Acted>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let mut acted: Vec<Option<Acted>> = acts.iter().map(|_| None).collect();
    let mut written = Written::default();
    for round in acts::rounds(acts) {
        let batch: Vec<&Act> = round.iter().map(|index| &acts[*index]).collect();
        for (index, result) in round.iter().zip(act_round(&mut tx, rules, &batch, now, &mut written).await?) {
            acted[*index] = Some(result);
        }
    }
    fail_point("act.before_commit");
    tx.commit().await.map_err(committing)?;
    fail_point("act.after_commit");
    Ok(acted.into_iter().flatten().collect())
}

async fn act_round(
    conn: &mut PgConnection,
    rules: &Rules,
    acts: &[&Act],
    now: Timestamp,
    written: &mut Written,
) -> Result<Vec<Acted>, StoreError> {
    let targets = targets(conn, acts).await?;
    let mut facts = facts(conn, targets.iter().flatten().copied().collect()).await?;
    let (mut acted, mut actings, mut entries) = (Vec::with_capacity(acts.len()), Vec::new(), Vec::new());
    for (act, ids) in acts.iter().zip(targets) {
        let known: Vec<ActFacts> = ids.into_iter().filter_map(|id| facts.remove(&id)).collect();
        let decision = acts::decide(rules, act, &known, now);
        entries.extend(AuditEntry::of(act, &decision));
        acted.push(Acted { answer: decision.answer, changed: decision.changes.iter().map(|acting| acting.change.after.clone()).collect() });
        actings.extend(decision.changes);
    }
    let changes: Vec<Change> = actings.iter().map(|acting| acting.change.clone()).collect();
    apply(conn, &changes, now, written).await?;
    if changes.iter().any(|change| !written.holds(change)) {
        return Err(StoreError::Busy("a locked row is not as it was read".into()));
    }
    write_beside(conn, &actings, now).await?;
    settle_attempts(conn, &actings).await?;
    audit_log::record(conn, &entries, now).await?;
    Ok(acted)
}

/// The deliveries of each act, in order of their ids; none for what is somebody else's.
async fn targets(conn: &mut PgConnection, acts: &[&Act]) -> Result<Vec<Vec<Uuid>>, StoreError> {
    let ends = |act: &Act| match act.target {
        Target::Delivery(id) => (id.as_uuid(), id.as_uuid()),
        Target::Notification(id) => (id.delivery(1).as_uuid(), id.last_delivery().as_uuid()),
    };
    let rows = sqlx::query!(
        r#"SELECT x.place AS "place!", d.id FROM unnest($1::int[], $2::smallint[], $3::uuid[], $4::uuid[]) WITH ORDINALITY
            AS x (tenant_id, mode, first_id, last_id, place)
         JOIN deliveries d ON d.id >= x.first_id AND d.id <= x.last_id
         WHERE d.tenant_id = x.tenant_id AND d.mode = x.mode ORDER BY x.place, d.id"#,
        &acts.iter().map(|act| act.tenant.0).collect::<Vec<_>>()[..],
        &acts.iter().map(|act| act.mode.as_i16()).collect::<Vec<_>>()[..],
        &acts.iter().map(|act| ends(act).0).collect::<Vec<_>>()[..],
        &acts.iter().map(|act| ends(act).1).collect::<Vec<_>>()[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut targets = vec![Vec::new(); acts.len()];
    for row in rows {
        let place = usize::try_from(row.place - 1).map_err(|_| StoreError::Unreadable("a place that was not given".to_owned()))?;
        targets[place].push(row.id);
    }
    Ok(targets)
}

/// What is known of deliveries, all of it read under their locks.
async fn facts(conn: &mut PgConnection, ids: Vec<Uuid>) -> Result<HashMap<Uuid, ActFacts>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let mut deliveries = locked(conn, &ids).await?;
    let mut attempts = attempts(conn, &ids).await?;
    let notifications: Vec<Uuid> = ids.iter().map(|id| NotificationId::from_uuid(*id).as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT d.id, d.message_id, d.replays, n.category, n.send_at AS "send_at: At", n.expires_at AS "expires_at: At",
            (d.address IS NOT NULL AND c.id IS NOT NULL) AS "has_content!"
         FROM unnest($1::uuid[], $2::uuid[]) AS x (id, notification_id)
         JOIN deliveries d ON d.id = x.id AND d.id = ANY($1)
         JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = x.notification_id AND n.id = ANY($2)
         LEFT JOIN contents c ON c.id = x.notification_id AND c.id = ANY($2)"#,
        &ids[..],
        &notifications[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut facts = HashMap::with_capacity(rows.len());
    for row in rows {
        let Some(mut delivery) = deliveries.remove(&row.id) else { continue };
        delivery.category = row.category;
        let attempts = attempts.remove(&row.id).unwrap_or_default();
        let known = ActFacts {
            delivery,
            attempts,
            message_id: row.message_id,
            has_content: row.has_content,
            replays: count(row.replays)?,
            send_at: row.send_at.map(|at| at.0),
            expires_at: row.expires_at.0,
        };
        facts.insert(row.id, known);
    }
    Ok(facts)
}

/// The deliveries, locked; one that moved between queue and record meanwhile is looked at again.
async fn locked(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Delivery>, StoreError> {
    let mut found = HashMap::with_capacity(ids.len());
    let mut asked = ids.to_vec();
    for _ in 0..LOOKS {
        let mut moving = Vec::new();
        for (id, delivery) in lock(conn, &asked).await? {
            match delivery {
                Some(delivery) => drop(found.insert(id.as_uuid(), delivery)),
                None => moving.push(id.as_uuid()),
            }
        }
        if moving.is_empty() {
            return Ok(found);
        }
        moving.sort_unstable();
        asked = moving;
    }
    Err(StoreError::Busy("a delivery does not stand still".into()))
}

async fn attempts(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<AttemptRecord>>, StoreError> {
    let rows = sqlx::query_as!(
        AttemptRow,
        "SELECT delivery_id, number, generation, account_id, started_at, finished_at, outcome, accepted_at, late, provider_code,
            provider_message_id, match_key, detail
         FROM attempts WHERE delivery_id = ANY($1) ORDER BY delivery_id, number",
        ids,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut attempts: HashMap<Uuid, Vec<AttemptRecord>> = HashMap::new();
    for row in rows {
        attempts.entry(row.delivery_id).or_default().push(row.record()?);
    }
    Ok(attempts)
}

/// What acts write into the record beside the state.
async fn write_beside(conn: &mut PgConnection, actings: &[Acting], now: Timestamp) -> Result<(), StoreError> {
    let has_more = |acting: &&Acting| acting.send_at.is_some() || acting.message_id.is_some() || acting.replayed || acting.forgets_receipts;
    let rows: Vec<&Acting> = actings.iter().filter(has_more).collect();
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE deliveries d SET send_at = COALESCE(x.send_at, d.send_at), message_id = COALESCE(x.message_id, d.message_id),
            replays = d.replays + x.replayed::int, updated_at = $6,
            receipt_rank = CASE WHEN x.forgets THEN NULL ELSE d.receipt_rank END,
            receipt_at = CASE WHEN x.forgets THEN NULL ELSE d.receipt_at END,
            receipt_key = CASE WHEN x.forgets THEN NULL ELSE d.receipt_key END
         FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::bool[], $5::bool[]) AS x (id, send_at, message_id, replayed, forgets)
         WHERE d.id = x.id AND d.id = ANY($1)",
        &rows.iter().map(|row| row.change.after.id.as_uuid()).collect::<Vec<_>>()[..],
        rows.iter().map(|row| at(row.send_at)).collect::<Vec<_>>() as _,
        rows.iter().map(|row| row.message_id.as_deref()).collect::<Vec<_>>() as _,
        &rows.iter().map(|row| row.replayed).collect::<Vec<_>>()[..],
        &rows.iter().map(|row| row.forgets_receipts).collect::<Vec<_>>()[..],
        At(now),
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}

/// An operator's word settles every attempt that nobody answered for: `late` beside such an outcome says so.
async fn settle_attempts(conn: &mut PgConnection, actings: &[Acting]) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = actings.iter().filter(|acting| acting.settles_attempts).map(|acting| acting.change.after.id.as_uuid()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!("UPDATE attempts SET late = true WHERE delivery_id = ANY($1) AND outcome IN ('ambiguous', 'lost')", &ids[..])
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(before)
}

/// Dead letters, newest first: one range of the index `dead`.
pub(crate) async fn dead_letters(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(before)?;
    let first = filter.since.map_or(Uuid::nil(), NotificationId::first_at);
    let until = filter.until.map_or(Uuid::max(), NotificationId::first_at);
    let end = filter.before.map_or(until, |before| before.min(until));
    let records = records!(
        "FROM deliveries d WHERE d.tenant_id = $1 AND d.attention IS NOT NULL AND d.id >= $2 AND d.id < $3 AND d.mode = $4
            AND d.state = COALESCE($5, d.state) AND ($6::text IS NULL OR d.reason = $6) AND d.channel = COALESCE($7, d.channel)
            AND d.class = COALESCE($8, d.class)
            AND ($9::text IS NULL OR EXISTS (SELECT 1 FROM notifications n WHERE n.tenant_id = d.tenant_id AND n.category = $9
                AND n.id = (left(d.id::text, 33) || '000')::uuid))
         ORDER BY d.id DESC LIMIT $10",
        tenant.0,
        first,
        end,
        mode.as_i16(),
        filter.state.map(|state| state.as_str()),
        filter.reason.map(|reason| reason.as_str()),
        filter.channel.map(|channel| channel.as_str()),
        filter.class.map(|class| class.as_str()),
        filter.category.as_deref(),
        filter.limit,
    )
    .fetch_all(&mut *tx)
    .await
    .map_err(before)?;
    let ids: Vec<Uuid> = records.iter().map(|record| record.id).collect();
    let mut attempts = attempts(&mut tx, &ids).await?;
    let mut around = surroundings(&mut tx, &ids).await?;
    tx.commit().await.map_err(before)?;
    let mut letters = Vec::with_capacity(records.len());
    for record in records {
        let (Some(delivery), Some(letter)) = (record.delivery()?, around.remove(&record.id)) else { continue };
        let stored = StoredDelivery {
            attempts: attempts.remove(&record.id).unwrap_or_default(),
            delivery,
            address: record.address,
            reference: record.reference,
            copies: record.copies,
            message_id: record.message_id,
            // These ends do not come from an entry that could be named.
            suppression: None,
            send_at: record.send_at.map(|at| at.0),
            updated_at: record.updated_at.0,
        };
        letters.push(letter(stored));
    }
    Ok(letters)
}

type Around = Box<dyn FnOnce(StoredDelivery) -> DeadLetter + Send>;

/// What notification and content add to each of these deliveries.
async fn surroundings(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Around>, StoreError> {
    let notifications: Vec<Uuid> = ids.iter().map(|id| DeliveryId::from_uuid(*id).notification().as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT d.id, d.replays, n.idempotency_key, n.category, n.schema_version,
            (d.address IS NOT NULL AND c.id IS NOT NULL) AS "has_content!"
         FROM unnest($1::uuid[], $2::uuid[]) AS x (id, notification_id)
         JOIN deliveries d ON d.id = x.id AND d.id = ANY($1)
         JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = x.notification_id AND n.id = ANY($2)
         LEFT JOIN contents c ON c.id = x.notification_id AND c.id = ANY($2)"#,
        ids,
        &notifications[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut around: HashMap<Uuid, Around> = HashMap::with_capacity(rows.len());
    for row in rows {
        let replays = count(row.replays)?;
        let letter = move |stored| DeadLetter {
            stored,
            idempotency_key: row.idempotency_key,
            category: row.category,
            schema_version: row.schema_version,
            has_content: row.has_content,
            replays,
        };
        around.insert(row.id, Box::new(letter));
    }
    Ok(around)
}
