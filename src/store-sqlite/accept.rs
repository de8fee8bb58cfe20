//! Accepting: notifications, their deliveries and their queue rows, one statement for each table and batch.
//! The unique key decides who wins (S-005); the losers learn who holds it, or take over a key whose time is over (S-010).

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};
use tidings_core::ids::NotificationId;
use tidings_core::key_expiry::{key_is_free, may_be_free};
use tidings_core::store::{Accepted, KeyHolder, NewDelivery, NewNotification, StoreError, group_by_key};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::batch::Batch;
use crate::commit::{Parts, end_part};
use crate::error::store_error;
use crate::order;
use crate::rows::{Hex, json, number};
use crate::writer::Writer;

type Item = Arc<NewNotification>;

pub(crate) async fn accept(writer: &mut Writer, items: &[Item], now: Timestamp) -> Result<Vec<Result<Accepted, StoreError>>, StoreError> {
    let grouped = group_by_key(items);
    let mut results: Vec<Option<Result<Accepted, StoreError>>> = items.iter().map(|_| None).collect();
    // A first item that is refused never held the key: the next one with it takes its place.
    let mut riders = grouped.riders;
    let mut round = grouped.first;
    while !round.is_empty() {
        write_round(writer, items, &round, &mut results, now).await?;
        (round, riders) = seat_riders(items, riders, &mut results);
    }
    Ok(results.into_iter().map(|result| result.expect("every item was first or rode on a first")).collect())
}

/// Answers riders whose first item holds the key; of those whose first was refused one stands up for each key.
fn seat_riders(
    items: &[Item],
    riders: Vec<(usize, usize)>,
    results: &mut [Option<Result<Accepted, StoreError>>],
) -> (Vec<usize>, Vec<(usize, usize)>) {
    let (mut next, mut seated) = (Vec::new(), Vec::new());
    let mut stands_for = HashMap::new();
    for (rider, first) in riders {
        match &results[first] {
            Some(Ok(Accepted::Taken)) => results[rider] = Some(Ok(Accepted::KeyHeld(items[first].as_holder()))),
            Some(Ok(other)) => results[rider] = Some(Ok(other.clone())),
            Some(Err(_)) | None => match stands_for.get(&first) {
                Some(standing) => seated.push((rider, *standing)),
                None => {
                    stands_for.insert(first, rider);
                    next.push(rider);
                }
            },
        }
    }
    (next, seated)
}

async fn write_round(
    writer: &mut Writer,
    items: &[Item],
    round: &[usize],
    results: &mut [Option<Result<Accepted, StoreError>>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut parts = Parts::of(round.len());
    while let Some(part) = parts.next() {
        let batch: Vec<&NewNotification> = round[part.clone()].iter().map(|index| &*items[*index]).collect();
        writer.savepoint().await?;
        let written = write(writer.connection(), &batch, now).await;
        match end_part(writer, written).await? {
            Ok(written) => {
                for (index, accepted) in round[part].iter().zip(written) {
                    results[*index] = Some(Ok(accepted));
                }
            }
            Err(_) if parts.halve(&part) => {}
            Err(err) => results[round[part.start]] = Some(Err(err)),
        }
    }
    Ok(())
}

async fn write(connection: &mut SqliteConnection, batch: &[&NewNotification], now: Timestamp) -> Result<Vec<Accepted>, StoreError> {
    if batch.iter().any(|item| has_nul(item)) {
        // SQLite would cut the text there and PostgreSQL refuses it; a cut key would be somebody else's.
        return Err(StoreError::Refused("a text holds a NUL".into()));
    }
    let inserted = insert_notifications(connection, batch).await?;
    let results = match inserted == batch.len() as u64 {
        true => vec![Accepted::Taken; batch.len()],
        false => {
            let mut results = losers(connection, batch).await?;
            take_over(connection, batch, &mut results, now).await?;
            results
        }
    };
    let taken: Vec<&NewNotification> =
        batch.iter().zip(&results).filter(|(_, result)| **result == Accepted::Taken).map(|(item, _)| *item).collect();
    if !taken.is_empty() {
        insert_deliveries(connection, &taken, now).await?;
        if taken.iter().any(|item| item.is_keyed()) {
            order::seat(connection, &taken, now).await?;
            order::collapse(connection, &taken, now).await?;
        }
    }
    Ok(results)
}

fn has_nul(item: &NewNotification) -> bool {
    let mut own = [item.idempotency_key.as_str(), item.category.as_str()]
        .into_iter()
        .chain(item.trace_context.as_deref())
        .chain(item.ordering_key.as_deref())
        .chain(item.collapse_key.as_deref());
    let mut tags = item.tags.iter().map(String::as_str);
    let mut deliveries =
        item.deliveries.iter().flat_map(|delivery| delivery.sender.as_deref().into_iter().chain(delivery.message_id.as_deref()));
    let holds_nul = |text: &str| text.contains('\0');
    own.any(holds_nul) || tags.any(holds_nul) || deliveries.any(holds_nul)
}

/// What notifications of a batch have in common.
#[derive(PartialEq, Serialize)]
struct NotificationShape<'a> {
    tenant: i32,
    mode: i16,
    fingerprint_version: i16,
    schema_version: i16,
    category: &'a str,
    class: &'a str,
    send_at: Option<Timestamp>,
    count: usize,
}

async fn insert_notifications(connection: &mut SqliteConnection, batch: &[&NewNotification]) -> Result<u64, StoreError> {
    let mut rows = Batch::new();
    for item in batch {
        let shape = NotificationShape {
            tenant: item.tenant.0,
            mode: item.mode.as_i16(),
            fingerprint_version: item.fingerprint_version,
            schema_version: item.schema_version,
            category: &item.category,
            class: item.class.as_str(),
            send_at: item.send_at,
            count: item.deliveries.len(),
        };
        let place = rows.bytes(item.id.as_uuid().as_bytes());
        let fingerprint = rows.more(Some(&item.fingerprint));
        let body = rows.more(Some(&item.body));
        let metadata = rows.more(item.metadata.as_deref());
        let ref_digest = rows.more(item.ref_digest.as_deref());
        let texts = (&item.idempotency_key, item.expires_at, &item.tags, item.trace_context.as_deref());
        rows.add(shape, (place, fingerprint, body, metadata, texts.0, texts.1, texts.2, texts.3, ref_digest));
    }
    let (rows, bytes) = rows.into_arguments();
    let done = query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].tenant' AS tenant, value->>'$[0].mode' AS mode, value->>'$[0].fingerprint_version' AS fingerprint_version,
                value->>'$[0].schema_version' AS schema_version, value->>'$[0].category' AS category, value->>'$[0].class' AS class,
                value->>'$[0].send_at' AS send_at, value->>'$[0].count' AS count, jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1))
         INSERT OR FAIL INTO notifications (tenant_id, id, mode, idempotency_key, fingerprint, fingerprint_version, schema_version, category, class,
            tags, metadata, trace_context, send_at, expires_at, delivery_count, ref_digest, body)
         SELECT tenant, substr(?2, r.value->>0, 16), mode, r.value->>4, substr(?2, r.value->>0 + 16, r.value->>1), fingerprint_version,
            schema_version, category, class, r.value->6, substr(?2, r.value->>0 + 16 + r.value->>1 + r.value->>2, r.value->>3),
            r.value->>7, send_at, r.value->>5, count,
            substr(?2, r.value->>0 + 16 + r.value->>1 + r.value->>2 + coalesce(r.value->>3, 0), r.value->>8), substr(?2, r.value->>0 + 16 + r.value->>1, r.value->>2)
         FROM shape CROSS JOIN jsonb_each(shape.rows) r WHERE true
         ON CONFLICT (tenant_id, mode, idempotency_key) WHERE key_freed IS NULL DO NOTHING",
        rows,
        bytes
    );
    Ok(done.execute(connection).await.map_err(store_error)?.rows_affected())
}

/// Who of a batch holds its key, after an insert that stepped over some.
async fn losers(connection: &mut SqliteConnection, batch: &[&NewNotification]) -> Result<Vec<Accepted>, StoreError> {
    let keys: Vec<_> = batch
        .iter()
        .map(|item| {
            let first = item.deliveries.first().map_or_else(|| item.id.delivery(1), |delivery| delivery.id);
            (item.tenant.0, item.mode.as_i16(), &item.idempotency_key, Hex::uuid(first.as_uuid()))
        })
        .collect();
    let keys = json(&keys);
    // A delivery that is there already tells that this very notification was committed before, and not a moment ago.
    let rows = query!(
        r#"SELECT CAST(j.key AS INTEGER) AS "index!: i64", n.id AS "id!: Uuid", n.fingerprint AS "fingerprint!", n.fingerprint_version AS "version!",
            EXISTS (SELECT 1 FROM deliveries d WHERE d.id = unhex(j.value->>3)) AS "is_old!: bool"
         FROM jsonb_each(?1) j CROSS JOIN notifications n
           ON n.tenant_id = j.value->>0 AND n.mode = j.value->>1 AND n.idempotency_key = j.value->>2 AND n.key_freed IS NULL"#,
        keys
    );
    let mut results = vec![None; batch.len()];
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let index: usize = number(row.index)?;
        let id = NotificationId::from_uuid(row.id);
        let is_new = id == batch[index].id && !row.is_old;
        let holder = KeyHolder { id, fingerprint: row.fingerprint, fingerprint_version: number(row.version)? };
        results[index] = Some(if is_new { Accepted::Taken } else { Accepted::KeyHeld(holder) });
    }
    let unheld = || StoreError::Refused("the key was neither taken nor held".into());
    results.into_iter().map(|result| result.ok_or_else(unheld)).collect()
}

/// Gives keys whose time is over to the items that were turned away by them. Nobody writes between look and take: there
/// is one writer, and this is its transaction.
async fn take_over(
    connection: &mut SqliteConnection,
    batch: &[&NewNotification],
    results: &mut [Accepted],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut freed = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let Accepted::KeyHeld(holder) = result else { continue };
        if may_be_free(holder.id, now) && key_is_free(settled(connection, holder.id).await?, now) {
            free_key(connection, batch[index].tenant.0, holder.id, now).await?;
            freed.push(index);
        }
    }
    if freed.is_empty() {
        return Ok(());
    }
    let taken: Vec<&NewNotification> = freed.iter().map(|index| batch[*index]).collect();
    if insert_notifications(connection, &taken).await? != taken.len() as u64 {
        return Err(StoreError::Refused("a key that was freed was not taken".into()));
    }
    for index in freed {
        results[index] = Accepted::Taken;
    }
    Ok(())
}

/// When the deliveries of a notification were settled.
async fn settled(connection: &mut SqliteConnection, id: NotificationId) -> Result<Vec<Option<Timestamp>>, StoreError> {
    let (first, last) = (id.as_uuid(), id.last_delivery().as_uuid());
    let rows = query_scalar!("SELECT settled_at FROM deliveries WHERE id > ?1 AND id <= ?2", first, last);
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    Ok(rows.into_iter().map(|settled| settled.map(Timestamp::from_micros)).collect())
}

async fn free_key(connection: &mut SqliteConnection, tenant: i32, id: NotificationId, now: Timestamp) -> Result<(), StoreError> {
    let (id, now) = (id.as_uuid(), now.as_micros());
    query!("UPDATE notifications SET key_freed = ?3 WHERE tenant_id = ?1 AND id = ?2 AND key_freed IS NULL", tenant, id, now)
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(store_error)
}

/// What deliveries of a batch have in common.
#[derive(PartialEq, Serialize)]
struct DeliveryShape<'a> {
    tenant: i32,
    mode: i16,
    channel: &'a str,
    class: &'a str,
    lane: i32,
    category: &'a str,
    state: &'a str,
    attempt_limit: u16,
    schema_version: i16,
    sender: Option<&'a str>,
    send_at: Option<Timestamp>,
    flags: i32,
    siblings: usize,
}

async fn insert_deliveries(connection: &mut SqliteConnection, taken: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let mut rows = Batch::new();
    for item in taken {
        for delivery in &item.deliveries {
            let place = rows.bytes(delivery.id.as_uuid().as_bytes());
            let digest = rows.more(Some(&delivery.address_digest));
            let address = rows.more(Some(&delivery.address));
            let reference = rows.more(delivery.reference.as_deref());
            let row = (place, digest, address, reference, delivery.available_at, item.expires_at, delivery.message_id.as_deref());
            rows.add(delivery_shape(item, delivery), row);
        }
    }
    let (rows, bytes) = rows.into_arguments();
    let now = now.as_micros();
    query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].tenant' AS tenant, value->>'$[0].mode' AS mode, value->>'$[0].channel' AS channel,
                value->>'$[0].class' AS class, value->>'$[0].lane' AS lane, value->>'$[0].send_at' AS send_at,
                jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1))
         INSERT OR FAIL INTO deliveries (id, tenant_id, mode, channel, class, lane, address_digest, ref, message_id, send_at, expires_at, updated_at,
            address)
         SELECT substr(?2, r.value->>0, 16), tenant, mode, channel, class, lane, substr(?2, r.value->>0 + 16, r.value->>1),
            substr(?2, r.value->>0 + 16 + r.value->>1 + r.value->>2, r.value->>3), r.value->>6, send_at, r.value->>5, ?3,
            substr(?2, r.value->>0 + 16 + r.value->>1, r.value->>2)
         FROM shape CROSS JOIN jsonb_each(shape.rows) r",
        rows,
        bytes,
        now
    )
    .execute(&mut *connection)
    .await
    .map_err(store_error)?;
    query!(
        "WITH shape AS MATERIALIZED (
            SELECT value->>'$[0].tenant' AS tenant, value->>'$[0].mode' AS mode, value->>'$[0].lane' AS lane,
                value->>'$[0].category' AS category, value->>'$[0].state' AS state, value->>'$[0].attempt_limit' AS attempt_limit,
                value->>'$[0].sender' AS sender, value->>'$[0].schema_version' AS schema_version, value->>'$[0].flags' AS flags,
                value->>'$[0].siblings' AS siblings, jsonb_extract(value, '$[1]') AS rows
            FROM jsonb_each(?1))
         INSERT OR FAIL INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at, address_digest, sender,
            schema_version, flags, siblings)
         SELECT substr(?2, r.value->>0, 16), tenant, mode, lane, category, state, r.value->>4, attempt_limit, r.value->>5,
            substr(?2, r.value->>0 + 16, r.value->>1), sender, schema_version, flags, siblings
         FROM shape CROSS JOIN jsonb_each(shape.rows) r",
        rows,
        bytes
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

fn delivery_shape<'a>(item: &'a NewNotification, delivery: &'a NewDelivery) -> DeliveryShape<'a> {
    DeliveryShape {
        tenant: item.tenant.0,
        mode: item.mode.as_i16(),
        channel: delivery.channel.as_str(),
        class: item.class.as_str(),
        lane: delivery.lane.0,
        category: &item.category,
        state: delivery.state.as_str(),
        attempt_limit: delivery.attempt_limit,
        schema_version: item.schema_version,
        sender: delivery.sender.as_deref(),
        send_at: item.send_at,
        flags: item.first_flags().0,
        siblings: item.deliveries.len(),
    }
}
