//! Lines of deliveries with one `ordering_key`, and what a `collapse_key` makes of older rows. What follows from either is
//! decided in core's `order`, and changes of state go through `apply`. That the turn of a row has come is no change of state:
//! its instant is written here, and only where the row still waits without one.
//! A line is locked before its next row is looked for, and lines in the order of their names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::ids::{DeliveryId, LaneId, TenantId};
use tidings_core::judge::Candidate;
use tidings_core::order::{self, LEAST_PATIENCE, Line, LineName, Seat};
use tidings_core::state::State;
use tidings_core::store::{NewNotification, StoreError, Swept};
use tidings_core::time::Timestamp;
use tidings_core::words::Class;
use uuid::Uuid;

use crate::PostgresStore;
use crate::apply::{Written, apply};
use crate::error::{before, committing};
use crate::instant::At;
use crate::rows::{OpenRow, open_rows, word};

/// Locks the lines of these rows; those that are not there yet are made.
pub(crate) async fn lock_lines(conn: &mut PgConnection, items: &[Arc<NewNotification>]) -> Result<BTreeMap<LineName, Line>, StoreError> {
    let names: Vec<LineName> = order::lines_of(items.iter().map(|item| &**item)).into_iter().collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows = sqlx::query!(
        "INSERT INTO ordering_lanes AS o (tenant_id, mode, channel, ordering_key, next_seq)
         SELECT x.tenant_id, x.mode, x.channel, x.ordering_key, 1
         FROM unnest($1::int[], $2::smallint[], $3::text[], $4::text[]) WITH ORDINALITY AS x (tenant_id, mode, channel, ordering_key, place)
         ORDER BY x.place
         ON CONFLICT (tenant_id, mode, channel, ordering_key) DO UPDATE SET next_seq = o.next_seq
         RETURNING tenant_id, mode, channel, ordering_key, next_seq, head",
        &names.iter().map(|name| name.0.0).collect::<Vec<_>>()[..],
        &names.iter().map(|name| name.1).collect::<Vec<_>>()[..],
        names.iter().map(|name| name.2.as_str()).collect::<Vec<_>>() as _,
        names.iter().map(|name| name.3.as_str()).collect::<Vec<_>>() as _,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut lines = BTreeMap::new();
    for row in rows {
        let name = (TenantId(row.tenant_id), row.mode, word(&row.channel)?, row.ordering_key);
        lines.insert(name, Line { next_seq: row.next_seq, head: row.head.map(DeliveryId::from_uuid), has_new_head: false });
    }
    Ok(lines)
}

/// Seats accepted rows at the ends of their lines, which are locked, and writes down both keys.
pub(crate) async fn seat(
    conn: &mut PgConnection,
    accepted: &[&NewNotification],
    lines: &mut BTreeMap<LineName, Line>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let seats: HashMap<DeliveryId, Seat> = order::seat(lines, accepted).into_iter().map(|seat| (seat.id, seat)).collect();
    let keyed = accepted.iter().filter(|item| item.is_keyed());
    let rows: Vec<_> = keyed
        .flat_map(|item| item.deliveries.iter().map(move |delivery| (item, delivery.id)))
        .map(|(item, id)| (id.as_uuid(), item.ordering_key.as_deref(), item.collapse_key.as_deref(), seats.get(&id)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE queue q SET ordering_key = x.ordering_key, ordering_seq = x.seq, collapse_key = x.collapse_key,
            available_at = CASE WHEN x.is_blocked THEN 'infinity' ELSE q.available_at END
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bool[]) AS x (id, ordering_key, collapse_key, seq, is_blocked)
         WHERE q.id = x.id",
        &rows.iter().map(|row| row.0).collect::<Vec<_>>()[..],
        rows.iter().map(|row| row.1).collect::<Vec<_>>() as _,
        rows.iter().map(|row| row.2).collect::<Vec<_>>() as _,
        rows.iter().map(|row| row.3.map(|seat| seat.seq)).collect::<Vec<_>>() as _,
        &rows.iter().map(|row| row.3.is_some_and(|seat| seat.is_blocked)).collect::<Vec<_>>()[..],
    )
    .execute(&mut *conn)
    .await
    .map_err(before)?;
    write_lines(conn, lines, now).await
}

async fn write_lines(conn: &mut PgConnection, lines: &BTreeMap<LineName, Line>, now: Timestamp) -> Result<(), StoreError> {
    if lines.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE ordering_lanes o SET next_seq = x.next_seq, head = x.head,
            head_since = CASE WHEN x.has_new_head THEN $7 ELSE o.head_since END
         FROM unnest($1::int[], $2::smallint[], $3::text[], $4::text[], $5::bigint[], $6::uuid[], $8::bool[])
            AS x (tenant_id, mode, channel, ordering_key, next_seq, head, has_new_head)
         WHERE o.tenant_id = x.tenant_id AND o.mode = x.mode AND o.channel = x.channel AND o.ordering_key = x.ordering_key",
        &lines.keys().map(|name| name.0.0).collect::<Vec<_>>()[..],
        &lines.keys().map(|name| name.1).collect::<Vec<_>>()[..],
        lines.keys().map(|name| name.2.as_str()).collect::<Vec<_>>() as _,
        lines.keys().map(|name| name.3.as_str()).collect::<Vec<_>>() as _,
        &lines.values().map(|line| line.next_seq).collect::<Vec<_>>()[..],
        lines.values().map(|line| line.head.map(|head| head.as_uuid())).collect::<Vec<_>>() as _,
        At(now) as _,
        &lines.values().map(|line| line.has_new_head).collect::<Vec<_>>()[..],
    )
    .execute(conn)
    .await
    .map_err(before)?;
    Ok(())
}

/// Makes way for accepted rows: older ones with the same `collapse_key` end or are not sent again (S-079).
pub(crate) async fn collapse(conn: &mut PgConnection, accepted: &[&NewNotification], now: Timestamp) -> Result<(), StoreError> {
    let newest = order::newest(accepted);
    if newest.is_empty() {
        return Ok(());
    }
    let older = open_rows!(
        "FROM unnest($1::int[], $2::smallint[], $3::text[], $4::text[], $5::bytea[], $6::uuid[])
            AS x (tenant_id, mode, channel, collapse_key, address_digest, newest)
         JOIN queue q ON q.tenant_id = x.tenant_id AND q.collapse_key = x.collapse_key AND q.mode = x.mode
            AND q.address_digest = x.address_digest AND q.id <> x.newest
         JOIN lanes l ON l.id = q.lane AND l.channel = x.channel
         ORDER BY q.id FOR UPDATE OF q",
        &newest.iter().map(|(item, _)| item.tenant.0).collect::<Vec<_>>()[..],
        &newest.iter().map(|(item, _)| item.mode.as_i16()).collect::<Vec<_>>()[..],
        newest.iter().map(|(_, delivery)| delivery.channel.as_str()).collect::<Vec<_>>() as _,
        newest.iter().map(|(item, _)| item.collapse_key.as_deref()).collect::<Vec<_>>() as _,
        newest.iter().map(|(_, delivery)| delivery.address_digest.as_slice()).collect::<Vec<_>>() as _,
        &newest.iter().map(|(_, delivery)| delivery.id.as_uuid()).collect::<Vec<_>>()[..],
    );
    let older = older.fetch_all(&mut *conn).await.map_err(before)?;
    let older: Vec<Delivery> = older.into_iter().filter_map(OpenRow::readable).collect();
    let changes: Vec<Change> = older.iter().filter_map(|older| order::collapse(older, now)).collect();
    apply(conn, &changes, now, &mut Written::default()).await
}

/// Finds candidates that have a newer sibling with their `collapse_key` in the queue; asked only of those that have one.
pub(crate) async fn find_collapsed(conn: &mut PgConnection, due: &mut [Candidate]) -> Result<(), StoreError> {
    let keyed: Vec<Uuid> = due.iter().map(|row| &row.delivery).filter(|row| row.is_collapsible).map(|row| row.id.as_uuid()).collect();
    if keyed.is_empty() {
        return Ok(());
    }
    let found = sqlx::query_scalar!(
        "SELECT q.id FROM queue q JOIN lanes l ON l.id = q.lane
         WHERE q.id = ANY($1) AND EXISTS (SELECT FROM queue n JOIN lanes m ON m.id = n.lane
            WHERE n.tenant_id = q.tenant_id AND n.collapse_key = q.collapse_key AND n.id > q.id AND n.mode = q.mode
                AND n.address_digest = q.address_digest AND m.channel = l.channel)",
        &keyed[..],
    );
    let found = found.fetch_all(conn).await.map_err(before)?;
    for candidate in due {
        candidate.is_collapsed = found.contains(&candidate.delivery.id.as_uuid());
    }
    Ok(())
}

/// Lets the successors of heads that left the queue go. Called by `apply` alone.
pub(crate) async fn advance(conn: &mut PgConnection, moved: &[&Change], now: Timestamp) -> Result<(), StoreError> {
    let leaves = |change: &&&Change| {
        let before = &change.before;
        before.is_ordered && !before.blocked && before.state.is_open() && !change.after.state.is_open()
    };
    let heads: Vec<Uuid> = moved.iter().filter(leaves).map(|change| change.after.id.as_uuid()).collect();
    if !heads.is_empty() {
        pass(conn, &heads, now).await?;
    }
    Ok(())
}

/// Gives the lines of these heads their next head; returns those. A row that somebody ends at this moment is stepped over.
async fn pass(conn: &mut PgConnection, heads: &[Uuid], now: Timestamp) -> Result<Vec<(DeliveryId, LaneId)>, StoreError> {
    let lines = sqlx::query!(
        "SELECT tenant_id, mode, channel, ordering_key FROM ordering_lanes WHERE head = ANY($1)
         ORDER BY tenant_id, mode, channel, ordering_key FOR UPDATE",
        heads,
    );
    let mut passed = Vec::new();
    for line in lines.fetch_all(&mut *conn).await.map_err(before)? {
        let next = sqlx::query!(
            "UPDATE queue q SET available_at = $5, version = q.version + 1
             FROM (SELECT f.id FROM queue f JOIN lanes l ON l.id = f.lane
                WHERE f.tenant_id = $1 AND f.ordering_key = $4 AND f.mode = $2 AND l.channel = $3 AND f.available_at = 'infinity'
                ORDER BY f.ordering_seq LIMIT 1 FOR UPDATE OF f) n
             WHERE q.id = n.id RETURNING q.id, q.lane",
            line.tenant_id,
            line.mode,
            line.channel,
            line.ordering_key,
            At(now) as _,
        );
        let next = next.fetch_optional(&mut *conn).await.map_err(before)?;
        sqlx::query!(
            "UPDATE ordering_lanes SET head = $5, head_since = $6
             WHERE tenant_id = $1 AND mode = $2 AND channel = $3 AND ordering_key = $4",
            line.tenant_id,
            line.mode,
            line.channel,
            line.ordering_key,
            next.as_ref().map(|next| next.id),
            At(now) as _,
        )
        .execute(&mut *conn)
        .await
        .map_err(before)?;
        passed.extend(next.map(|next| (DeliveryId::from_uuid(next.id), LaneId(next.lane))));
    }
    Ok(passed)
}

/// Lets successors of heads that are stuck, or are not in the queue at all, go. What somebody else holds is left to them.
pub(crate) async fn skip_stuck(store: &PostgresStore, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let held_up = held_up(&mut tx, limit, now).await?;
    let first_calls = first_calls(&mut tx, &held_up).await?;
    let decide = |head: &Delivery| order::skip(head, first_calls.get(&head.id).copied(), now);
    let changes: Vec<Change> = held_up.iter().filter_map(decide).collect();
    let mut written = Written::default();
    apply(&mut tx, &changes, now, &mut written).await?;
    let mut heads: Vec<Uuid> = changes.iter().filter(|change| written.holds(change)).map(|change| change.after.id.as_uuid()).collect();
    heads.extend(gone(&mut tx, limit, now).await?);
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    let passed = pass(&mut tx, &heads, now).await?;
    fail_point("skip.before_commit");
    tx.commit().await.map_err(committing)?;
    Ok(passed.into_iter().map(|(id, lane)| Swept { id, lane, from: State::Queued, to: State::Queued }).collect())
}

/// Heads that others wait for and that may be stuck, by the age of their first call.
async fn held_up(conn: &mut PgConnection, limit: i64, now: Timestamp) -> Result<Vec<Delivery>, StoreError> {
    let rows = open_rows!(
        "FROM ordering_lanes o JOIN queue q ON q.id = o.head JOIN lanes l ON l.id = q.lane
         WHERE o.head_since <= $1 AND q.lease_expires_at IS NULL
            AND EXISTS (SELECT FROM queue f JOIN lanes m ON m.id = f.lane WHERE f.tenant_id = o.tenant_id
                AND f.ordering_key = o.ordering_key AND f.mode = o.mode AND m.channel = o.channel AND f.available_at = 'infinity')
            AND EXISTS (SELECT FROM attempts a WHERE a.delivery_id = q.id AND a.outcome <> 'not_started'
                AND a.started_at <= CASE l.class WHEN 'critical' THEN $1::timestamptz ELSE $2::timestamptz END)
         ORDER BY o.head_since LIMIT $3 FOR UPDATE OF o, q SKIP LOCKED",
        At(now.minus(order::patience(Class::Critical))) as _,
        At(now.minus(order::patience(Class::Bulk))) as _,
        limit,
    );
    Ok(rows.fetch_all(conn).await.map_err(before)?.into_iter().filter_map(OpenRow::readable).collect())
}

async fn first_calls(conn: &mut PgConnection, heads: &[Delivery]) -> Result<HashMap<DeliveryId, Timestamp>, StoreError> {
    let ids: Vec<Uuid> = heads.iter().map(|head| head.id.as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT delivery_id, min(started_at) AS "first!: At" FROM attempts
         WHERE delivery_id = ANY($1) AND outcome <> 'not_started' GROUP BY delivery_id"#,
        &ids[..],
    );
    let rows = rows.fetch_all(conn).await.map_err(before)?;
    Ok(rows.into_iter().map(|row| (DeliveryId::from_uuid(row.delivery_id), row.first.0)).collect())
}

/// Heads that are not in the queue.
async fn gone(conn: &mut PgConnection, limit: i64, now: Timestamp) -> Result<Vec<Uuid>, StoreError> {
    sqlx::query_scalar!(
        r#"SELECT o.head AS "head!" FROM ordering_lanes o
         WHERE o.head IS NOT NULL AND o.head_since <= $1 AND NOT EXISTS (SELECT FROM queue q WHERE q.id = o.head)
         LIMIT $2 FOR UPDATE OF o SKIP LOCKED"#,
        At(now.minus(LEAST_PATIENCE)) as _,
        limit,
    )
    .fetch_all(conn)
    .await
    .map_err(before)
}
