//! Lines of deliveries with one `ordering_key`, and what a `collapse_key` makes of older rows. What follows from either is
//! decided in core's `order`, and changes of state go through `apply`. That the turn of a row has come is no change of state:
//! its instant is written here, and only where the row still waits without one.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};
use tidings_core::crash::fail_point;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::ids::{DeliveryId, LaneId, TenantId};
use tidings_core::order::{self, LEAST_PATIENCE, Line, LineName};
use tidings_core::state::State;
use tidings_core::store::{NewNotification, StoreError, Swept};
use tidings_core::time::Timestamp;
use tidings_core::words::Class;
use uuid::Uuid;

use crate::apply::apply;
use crate::error::store_error;
use crate::rows::{DeliveryRow, Hex, NEVER, ids_json, json, number, open_rows, word};
use crate::writer::Writer;

/// The columns of a line's name.
#[derive(Serialize)]
struct NameRow<'a>(i32, i16, &'a str, &'a str);

fn name_row(name: &LineName) -> NameRow<'_> {
    NameRow(name.0.0, name.1, name.2.as_str(), &name.3)
}

/// Seats accepted rows at the ends of their lines, and writes down both keys.
pub(crate) async fn seat(connection: &mut SqliteConnection, accepted: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let mut lines = lines(connection, accepted).await?;
    let seats: HashMap<DeliveryId, _> = order::seat(&mut lines, accepted).into_iter().map(|seat| (seat.id, seat)).collect();
    let keyed = accepted.iter().filter(|item| item.is_keyed());
    let rows: Vec<_> = keyed
        .flat_map(|item| item.deliveries.iter().map(move |delivery| (item, delivery.id)))
        .map(|(item, id)| {
            let seat = seats.get(&id);
            let is_blocked = seat.is_some_and(|seat| seat.is_blocked);
            (Hex::of(id), &item.ordering_key, seat.map(|seat| seat.seq), &item.collapse_key, is_blocked)
        })
        .collect();
    let rows = json(&rows);
    query!(
        "UPDATE queue SET ordering_key = x.value->>1, ordering_seq = x.value->>2, collapse_key = x.value->>3,
            available_at = iif(x.value->>4, ?2, available_at)
         FROM jsonb_each(?1) AS x WHERE queue.id = unhex(x.value->>0)",
        rows,
        NEVER
    )
    .execute(&mut *connection)
    .await
    .map_err(store_error)?;
    write_lines(connection, &lines, now).await
}

/// The lines of these rows as they stand; a new one begins with 1.
async fn lines(connection: &mut SqliteConnection, items: &[&NewNotification]) -> Result<BTreeMap<LineName, Line>, StoreError> {
    let names = order::lines_of(items.iter().copied());
    let asked = json(&names.iter().map(name_row).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT o.tenant_id AS "tenant_id!", o.mode AS "mode!", o.channel AS "channel!", o.ordering_key AS "ordering_key!",
            o.next_seq AS "next_seq!", o.head AS "head?: Uuid"
           FROM jsonb_each(?1) x CROSS JOIN ordering_lanes o ON o.tenant_id = x.value->>0 AND o.mode = x.value->>1
            AND o.channel = x.value->>2 AND o.ordering_key = x.value->>3"#,
        asked
    );
    let new = Line { next_seq: 1, head: None, has_new_head: false };
    let mut lines: BTreeMap<LineName, Line> = names.into_iter().map(|name| (name, new)).collect();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let name = (TenantId(number(row.tenant_id)?), number(row.mode)?, word(&row.channel)?, row.ordering_key);
        lines.insert(name, Line { next_seq: row.next_seq, head: row.head.map(DeliveryId::from_uuid), has_new_head: false });
    }
    Ok(lines)
}

async fn write_lines(connection: &mut SqliteConnection, lines: &BTreeMap<LineName, Line>, now: Timestamp) -> Result<(), StoreError> {
    if lines.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> =
        lines.iter().map(|(name, line)| (name_row(name), line.next_seq, line.head.map(Hex::of), line.has_new_head)).collect();
    let (rows, now) = (json(&rows), now.as_micros());
    query!(
        "INSERT INTO ordering_lanes (tenant_id, mode, channel, ordering_key, next_seq, head, head_since)
         SELECT value->>'$[0][0]', value->>'$[0][1]', value->>'$[0][2]', value->>'$[0][3]', value->>1, unhex(value->>2), ?2
         FROM jsonb_each(?1) WHERE true
         ON CONFLICT (tenant_id, mode, channel, ordering_key) DO UPDATE SET next_seq = excluded.next_seq, head = excluded.head,
            head_since = iif(ordering_lanes.head IS excluded.head, ordering_lanes.head_since, excluded.head_since)",
        rows,
        now
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}

/// Makes way for accepted rows: older ones with the same `collapse_key` end or are not sent again (S-079).
pub(crate) async fn collapse(connection: &mut SqliteConnection, accepted: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let newest: Vec<_> = order::newest(accepted)
        .into_iter()
        .map(|(item, delivery)| {
            let (digest, id) = (Hex::bytes(&delivery.address_digest), Hex::of(delivery.id));
            (item.tenant.0, item.mode.as_i16(), delivery.channel.as_str(), &item.collapse_key, digest, id)
        })
        .collect();
    if newest.is_empty() {
        return Ok(());
    }
    let newest = json(&newest);
    let older = open_rows!(
        "FROM jsonb_each(?1) x CROSS JOIN queue q ON q.tenant_id = x.value->>0 AND q.collapse_key = x.value->>3
            AND q.mode = x.value->>1 AND q.address_digest = unhex(x.value->>4) AND q.id <> unhex(x.value->>5)
         CROSS JOIN lanes l ON l.id = q.lane AND l.channel = x.value->>2",
        newest
    );
    let older = older.fetch_all(&mut *connection).await.map_err(store_error)?;
    let older: Vec<Delivery> = older.into_iter().filter_map(DeliveryRow::readable).collect();
    let changes: Vec<Change> = older.iter().filter_map(|older| order::collapse(older, now)).collect();
    // What makes way may be the head of its line.
    Box::pin(apply(connection, &changes, now)).await
}

/// Which of these rows have a newer sibling with their `collapse_key` in the queue.
pub(crate) async fn collapsed(connection: &mut SqliteConnection, rows: &[DeliveryRow]) -> Result<HashSet<Uuid>, StoreError> {
    let keyed: Vec<DeliveryId> = rows.iter().filter(|row| row.is_collapsible).map(|row| DeliveryId::from_uuid(row.id)).collect();
    if keyed.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = ids_json(keyed);
    let found = query_scalar!(
        r#"SELECT q.id AS "id!: Uuid" FROM json_each(?1) x CROSS JOIN queue q ON q.id = unhex(x.value)
            CROSS JOIN lanes l ON l.id = q.lane
           WHERE EXISTS (SELECT 1 FROM queue n CROSS JOIN lanes m ON m.id = n.lane
            WHERE n.tenant_id = q.tenant_id AND n.collapse_key = q.collapse_key AND n.id > q.id AND n.mode = q.mode
                AND n.address_digest = q.address_digest AND m.channel = l.channel)"#,
        ids
    );
    Ok(found.fetch_all(connection).await.map_err(store_error)?.into_iter().collect())
}

/// Lets the successors of heads that left the queue go. Called by `apply` alone.
pub(crate) async fn advance(connection: &mut SqliteConnection, left: &[&Change], now: Timestamp) -> Result<(), StoreError> {
    let heads: Vec<DeliveryId> =
        left.iter().filter(|change| change.before.is_ordered && !change.before.blocked).map(|change| change.after.id).collect();
    if !heads.is_empty() {
        pass(connection, &heads, now).await?;
    }
    Ok(())
}

/// Gives the lines of these heads their next head; returns those.
async fn pass(connection: &mut SqliteConnection, heads: &[DeliveryId], now: Timestamp) -> Result<Vec<(DeliveryId, LaneId)>, StoreError> {
    let ids = ids_json(heads.iter().copied());
    let lines = query!(
        r#"SELECT o.tenant_id AS "tenant_id!", o.mode AS "mode!", o.channel AS "channel!", o.ordering_key AS "ordering_key!"
           FROM json_each(?1) x CROSS JOIN ordering_lanes o ON o.head = unhex(x.value)"#,
        ids
    );
    let mut passed = Vec::new();
    let micros = now.as_micros();
    for line in lines.fetch_all(&mut *connection).await.map_err(store_error)? {
        let next = query!(
            r#"UPDATE queue SET available_at = ?5, version = version + 1 WHERE id = (
                SELECT q.id FROM queue q CROSS JOIN lanes l ON l.id = q.lane
                WHERE q.tenant_id = ?1 AND q.ordering_key = ?4 AND q.mode = ?2 AND l.channel = ?3 AND q.available_at = ?6
                ORDER BY q.ordering_seq LIMIT 1)
               RETURNING id AS "id!: Uuid", lane AS "lane!: i32""#,
            line.tenant_id,
            line.mode,
            line.channel,
            line.ordering_key,
            micros,
            NEVER
        );
        let next = next.fetch_optional(&mut *connection).await.map_err(store_error)?;
        let head = next.as_ref().map(|next| next.id);
        query!(
            "UPDATE ordering_lanes SET head = ?5, head_since = ?6 WHERE tenant_id = ?1 AND mode = ?2 AND channel = ?3 AND ordering_key = ?4",
            line.tenant_id,
            line.mode,
            line.channel,
            line.ordering_key,
            head,
            micros
        )
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
        passed.extend(next.map(|next| (DeliveryId::from_uuid(next.id), LaneId(next.lane))));
    }
    Ok(passed)
}

/// Lets successors of heads that are stuck, or are not in the queue at all, go.
pub(crate) async fn skip_stuck(writer: &mut Writer, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
    writer.begin().await?;
    let skipped = skip_in(writer.connection(), limit, now).await;
    fail_point("skip.before_commit");
    writer.end(skipped).await
}

async fn skip_in(connection: &mut SqliteConnection, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
    let held_up = held_up(connection, limit, now).await?;
    let first_calls = first_calls(connection, &held_up).await?;
    let decide = |head: &Delivery| order::skip(head, first_calls.get(&head.id).copied(), now);
    let changes: Vec<Change> = held_up.iter().filter_map(decide).collect();
    apply(connection, &changes, now).await?;
    let mut heads: Vec<DeliveryId> = changes.iter().map(|change| change.after.id).collect();
    heads.extend(gone(connection, limit, now).await?);
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    let passed = pass(connection, &heads, now).await?;
    Ok(passed.into_iter().map(|(id, lane)| Swept { id, lane, from: State::Queued, to: State::Queued }).collect())
}

/// Heads that others wait for and that may be stuck, by the age of their first call.
async fn held_up(connection: &mut SqliteConnection, limit: i64, now: Timestamp) -> Result<Vec<Delivery>, StoreError> {
    let critical = now.minus(order::patience(Class::Critical)).as_micros();
    let other = now.minus(order::patience(Class::Bulk)).as_micros();
    let rows = open_rows!(
        "FROM ordering_lanes o CROSS JOIN queue q ON q.id = o.head CROSS JOIN lanes l ON l.id = q.lane
         WHERE o.head IS NOT NULL AND o.head_since <= ?1 AND q.lease_expires_at IS NULL
            AND EXISTS (SELECT 1 FROM queue f CROSS JOIN lanes m ON m.id = f.lane WHERE f.tenant_id = o.tenant_id
                AND f.ordering_key = o.ordering_key AND f.mode = o.mode AND m.channel = o.channel AND f.available_at = ?3)
            AND EXISTS (SELECT 1 FROM attempts a WHERE a.delivery_id = q.id AND a.outcome <> 'not_started'
                AND a.started_at <= iif(l.class = 'critical', ?1, ?2))
         ORDER BY o.head_since LIMIT ?4",
        critical,
        other,
        NEVER,
        limit
    );
    Ok(rows.fetch_all(connection).await.map_err(store_error)?.into_iter().filter_map(DeliveryRow::readable).collect())
}

async fn first_calls(connection: &mut SqliteConnection, heads: &[Delivery]) -> Result<HashMap<DeliveryId, Timestamp>, StoreError> {
    if heads.is_empty() {
        return Ok(HashMap::new());
    }
    let ids = ids_json(heads.iter().map(|head| head.id));
    let rows = query!(
        r#"SELECT a.delivery_id AS "id!: Uuid", min(a.started_at) AS "first!: i64"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value)
           WHERE a.outcome <> 'not_started' GROUP BY a.delivery_id"#,
        ids
    );
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    Ok(rows.into_iter().map(|row| (DeliveryId::from_uuid(row.id), Timestamp::from_micros(row.first))).collect())
}

/// Heads that are not in the queue.
async fn gone(connection: &mut SqliteConnection, limit: i64, now: Timestamp) -> Result<Vec<DeliveryId>, StoreError> {
    let before = now.minus(LEAST_PATIENCE).as_micros();
    let ids = query_scalar!(
        r#"SELECT o.head AS "head!: Uuid" FROM ordering_lanes o
           WHERE o.head IS NOT NULL AND o.head_since <= ?1 AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.id = o.head) LIMIT ?2"#,
        before,
        limit
    );
    Ok(ids.fetch_all(connection).await.map_err(store_error)?.into_iter().map(DeliveryId::from_uuid).collect())
}
