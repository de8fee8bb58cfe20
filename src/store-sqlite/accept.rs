//! Accepting: notifications, their deliveries and their queue rows, one statement for each table and batch.
//! The unique key decides who wins (S-005); the losers learn who holds it.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::store::{Accepted, KeyHolder, NewNotification, StoreError, group_by_key};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::commit::{Parts, end_part};
use crate::error::store_error;
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
    let results = if inserted == batch.len() as u64 { vec![Accepted::Taken; batch.len()] } else { losers(connection, batch).await? };
    let taken: Vec<&NewNotification> =
        batch.iter().zip(&results).filter(|(_, result)| **result == Accepted::Taken).map(|(item, _)| *item).collect();
    if !taken.is_empty() {
        insert_deliveries(connection, &taken, now).await?;
    }
    Ok(results)
}

fn has_nul(item: &NewNotification) -> bool {
    let mut own = [item.idempotency_key.as_str(), item.category.as_str()].into_iter().chain(item.trace_context.as_deref());
    let mut tags = item.tags.iter().map(String::as_str);
    let mut deliveries =
        item.deliveries.iter().flat_map(|delivery| delivery.sender.as_deref().into_iter().chain(delivery.message_id.as_deref()));
    let holds_nul = |text: &str| text.contains('\0');
    own.any(holds_nul) || tags.any(holds_nul) || deliveries.any(holds_nul)
}

/// Blobs of a batch end to end: one argument, read back by place and length.
#[derive(Default)]
struct Blobs(Vec<u8>);

impl Blobs {
    /// Adds a blob; the place counts from 1, as `substr` does.
    fn add(&mut self, blob: &[u8]) -> (usize, usize) {
        let place = (self.0.len() + 1, blob.len());
        self.0.extend_from_slice(blob);
        place
    }
}

#[derive(Serialize)]
struct NotificationRow<'a> {
    tenant: i32,
    id: Hex<uuid::Bytes>,
    mode: i16,
    key: &'a str,
    fingerprint: Hex<&'a [u8]>,
    fingerprint_version: i16,
    schema_version: i16,
    category: &'a str,
    class: &'a str,
    tags: &'a [String],
    metadata: Option<(usize, usize)>,
    trace: Option<&'a str>,
    send_at: Option<Timestamp>,
    expires_at: Timestamp,
    count: usize,
    body: (usize, usize),
}

async fn insert_notifications(connection: &mut SqliteConnection, batch: &[&NewNotification]) -> Result<u64, StoreError> {
    let mut blobs = Blobs::default();
    let mut row = |item| notification_row(item, &mut blobs);
    let rows = json(&batch.iter().map(|item| row(item)).collect::<Vec<_>>());
    let blobs = blobs.0;
    let done = query!(
        "INSERT INTO notifications (tenant_id, id, mode, idempotency_key, fingerprint, fingerprint_version, schema_version, category, class,
            tags, metadata, trace_context, send_at, expires_at, delivery_count, body)
         SELECT value->>'tenant', unhex(value->>'id'), value->>'mode', value->>'key', unhex(value->>'fingerprint'),
            value->>'fingerprint_version', value->>'schema_version', value->>'category', value->>'class', value->'tags',
            substr(?2, value->>'$.metadata[0]', value->>'$.metadata[1]'), value->>'trace', value->>'send_at', value->>'expires_at',
            value->>'count', substr(?2, value->>'$.body[0]', value->>'$.body[1]')
         FROM jsonb_each(?1) WHERE true
         ON CONFLICT (tenant_id, mode, idempotency_key) DO NOTHING",
        rows,
        blobs
    );
    Ok(done.execute(connection).await.map_err(store_error)?.rows_affected())
}

fn notification_row<'a>(item: &'a NewNotification, blobs: &mut Blobs) -> NotificationRow<'a> {
    NotificationRow {
        tenant: item.tenant.0,
        id: Hex::uuid(item.id.as_uuid()),
        mode: item.mode.as_i16(),
        key: &item.idempotency_key,
        fingerprint: Hex::bytes(&item.fingerprint),
        fingerprint_version: item.fingerprint_version,
        schema_version: item.schema_version,
        category: &item.category,
        class: item.class.as_str(),
        tags: &item.tags,
        metadata: item.metadata.as_deref().map(|metadata| blobs.add(metadata)),
        trace: item.trace_context.as_deref(),
        send_at: item.send_at,
        expires_at: item.expires_at,
        count: item.deliveries.len(),
        body: blobs.add(&item.body),
    }
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
           ON n.tenant_id = j.value->>0 AND n.mode = j.value->>1 AND n.idempotency_key = j.value->>2"#,
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

#[derive(Serialize)]
struct NewDeliveryRow<'a> {
    id: Hex<uuid::Bytes>,
    tenant: i32,
    mode: i16,
    channel: &'a str,
    class: &'a str,
    lane: i32,
    category: &'a str,
    state: &'a str,
    available_at: Timestamp,
    attempt_limit: u16,
    schema_version: i16,
    digest: Hex<&'a [u8]>,
    address: (usize, usize),
    reference: Option<(usize, usize)>,
    sender: Option<&'a str>,
    message_id: Option<&'a str>,
    send_at: Option<Timestamp>,
    expires_at: Timestamp,
}

async fn insert_deliveries(connection: &mut SqliteConnection, taken: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let mut blobs = Blobs::default();
    let rows: Vec<_> = taken.iter().flat_map(|item| delivery_rows(item, &mut blobs)).collect();
    let (rows, blobs, now) = (json(&rows), blobs.0, now.as_micros());
    query!(
        "INSERT INTO deliveries (id, tenant_id, mode, channel, class, lane, address_digest, ref, message_id, send_at, expires_at, updated_at, address)
         SELECT unhex(value->>'id'), value->>'tenant', value->>'mode', value->>'channel', value->>'class', value->>'lane',
            unhex(value->>'digest'), substr(?2, value->>'$.reference[0]', value->>'$.reference[1]'), value->>'message_id', value->>'send_at',
            value->>'expires_at', ?3, substr(?2, value->>'$.address[0]', value->>'$.address[1]')
         FROM jsonb_each(?1)",
        rows,
        blobs,
        now
    )
    .execute(&mut *connection)
    .await
    .map_err(store_error)?;
    query!(
        "INSERT INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit, expires_at, address_digest, sender, schema_version)
         SELECT unhex(value->>'id'), value->>'tenant', value->>'mode', value->>'lane', value->>'category', value->>'state',
            value->>'available_at', value->>'attempt_limit', value->>'expires_at', unhex(value->>'digest'), value->>'sender',
            value->>'schema_version'
         FROM jsonb_each(?1)",
        rows
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

fn delivery_rows<'a>(item: &'a NewNotification, blobs: &mut Blobs) -> Vec<NewDeliveryRow<'a>> {
    let row = |delivery: &'a tidings_core::store::NewDelivery| NewDeliveryRow {
        id: Hex::uuid(DeliveryId::as_uuid(delivery.id)),
        tenant: item.tenant.0,
        mode: item.mode.as_i16(),
        channel: delivery.channel.as_str(),
        class: item.class.as_str(),
        lane: delivery.lane.0,
        category: &item.category,
        state: delivery.state.as_str(),
        available_at: delivery.available_at,
        attempt_limit: delivery.attempt_limit,
        schema_version: item.schema_version,
        digest: Hex::bytes(&delivery.address_digest),
        address: blobs.add(&delivery.address),
        reference: delivery.reference.as_deref().map(|reference| blobs.add(reference)),
        sender: delivery.sender.as_deref(),
        message_id: delivery.message_id.as_deref(),
        send_at: item.send_at,
        expires_at: item.expires_at,
    };
    item.deliveries.iter().map(row).collect()
}
