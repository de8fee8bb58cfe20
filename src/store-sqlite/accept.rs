//! Accepting: notifications, their deliveries and their queue rows, one statement for each table and batch.
//! The unique key decides who wins (S-005); the losers learn who holds it, or take over a key whose time is over (S-010).

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};
use tidings_core::ids::NotificationId;
use tidings_core::key_expiry::{key_is_free, may_be_free};
use tidings_core::store::{Accepted, KeyHolder, NewDelivery, NewNotification, StoreError, group_by_key};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::commit::{Parts, end_part};
use crate::error::store_error;
use crate::many::insert_many;
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

async fn insert_notifications(connection: &mut SqliteConnection, batch: &[&NewNotification]) -> Result<u64, StoreError> {
    Ok(insert_many!(
        connection,
        batch => item: &NewNotification,
        "INSERT OR FAIL INTO notifications (id, tenant_id, mode, idempotency_key, fingerprint, fingerprint_version,
            schema_version, category, class, tags, metadata, trace_context, send_at, expires_at, delivery_count, ref_digest, body)
         SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL
         ON CONFLICT (tenant_id, mode, idempotency_key) WHERE key_freed IS NULL DO NOTHING",
        item.id.as_uuid(),
        item.tenant.0,
        item.mode.as_i16(),
        item.idempotency_key.as_str(),
        item.fingerprint.as_slice(),
        item.fingerprint_version,
        item.schema_version,
        item.category.as_str(),
        item.class.as_str(),
        json(&item.tags),
        item.metadata.as_deref(),
        item.trace_context.as_deref(),
        item.send_at.map(Timestamp::as_micros),
        item.expires_at.as_micros(),
        count(item.deliveries.len()),
        item.ref_digest.as_deref(),
        item.body.as_slice(),
    ))
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

async fn insert_deliveries(connection: &mut SqliteConnection, taken: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let rows: Vec<(&NewNotification, &NewDelivery)> =
        taken.iter().flat_map(|item| item.deliveries.iter().map(move |delivery| (*item, delivery))).collect();
    insert_many!(
        connection,
        rows => row: (&NewNotification, &NewDelivery),
        "INSERT OR FAIL INTO deliveries (id, tenant_id, mode, channel, class, lane, address_digest, ref,
            message_id, send_at, expires_at, updated_at, address)
         SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL",
        row.1.id.as_uuid(),
        row.0.tenant.0,
        row.0.mode.as_i16(),
        row.1.channel.as_str(),
        row.0.class.as_str(),
        row.1.lane.0,
        row.1.address_digest.as_slice(),
        row.1.reference.as_deref(),
        row.1.message_id.as_deref(),
        row.0.send_at.map(Timestamp::as_micros),
        row.0.expires_at.as_micros(),
        now.as_micros(),
        row.1.address.as_slice(),
    );
    insert_many!(
        connection,
        rows => row: (&NewNotification, &NewDelivery),
        "INSERT OR FAIL INTO queue (id, tenant_id, mode, lane, category, state, available_at, attempt_limit,
            expires_at, address_digest, sender, schema_version, flags, siblings)
         SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL",
        row.1.id.as_uuid(),
        row.0.tenant.0,
        row.0.mode.as_i16(),
        row.1.lane.0,
        row.0.category.as_str(),
        row.1.state.as_str(),
        row.1.available_at.as_micros(),
        row.1.attempt_limit,
        row.0.expires_at.as_micros(),
        row.1.address_digest.as_slice(),
        row.1.sender.as_deref(),
        row.0.schema_version,
        row.0.first_flags().0,
        count(row.0.deliveries.len()),
    );
    Ok(())
}

fn count(deliveries: usize) -> i64 {
    i64::try_from(deliveries).unwrap_or(i64::MAX)
}
