//! The pull feed. Readers stop before the oldest transaction that still runs: what they have passed is complete (S-206).

use std::collections::HashMap;

use sqlx::PgConnection;
use tidings_core::delivery::Flags;
use tidings_core::ids::{AccountId, DeliveryId};
use tidings_core::operational::INSTALLATION;
use tidings_core::store::{EventSubject, FeedPage, FeedPosition, FeedQuery, StoreError, StoredEvent};
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::before;
use crate::rows::word;

/// Events that one page looks at, most of which a filter may leave out.
const SCANNED: i64 = 5_000;

/// A page of the feed. Each question has its own snapshot; the horizon belongs to the one that reads the events, and what
/// they need of the record was committed before them.
pub(crate) async fn feed(store: &PostgresStore, asked: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
    let mut conn = store.connection().await?;
    let mut page = page(&mut conn, asked).await?;
    // Asked afterwards: what was purged while we read is then known.
    if let (Some(after), Some(floor)) = (asked.after, floor(&mut conn, asked).await?)
        && after < floor
    {
        return Ok(None);
    }
    if page.events.is_empty() {
        return Ok(Some(page));
    }
    let subjects = subjects(&mut conn, &page.events).await?;
    let ids = provider_ids(&mut conn, &page.events).await?;
    for event in &mut page.events {
        event.subject = subjects.get(&event.delivery).cloned();
        if let Some(subject) = &mut event.subject {
            subject.provider_message_id = ids.get(&(event.delivery, event.generation)).cloned();
        }
    }
    Ok(Some(page))
}

/// The events of a page, without what the record says of them.
async fn page(conn: &mut PgConnection, asked: &FeedQuery) -> Result<FeedPage, StoreError> {
    let after = asked.after.unwrap_or(FeedPosition { pos: i64::MIN, n: 0 });
    let (tenants, modes) = streams(asked);
    let types: Vec<&str> = asked.types.iter().map(|kind| kind.as_str()).collect();
    // One statement, so one snapshot for the horizon and the events before it. The last row tells how far it looked.
    let rows = sqlx::query!(
        r#"WITH horizon AS MATERIALIZED (SELECT feed_horizon() AS pos),
         seen AS MATERIALIZED (
            SELECT e.* FROM horizon CROSS JOIN unnest($1::int[], $2::smallint[]) AS s (tenant_id, mode) CROSS JOIN LATERAL (
                SELECT * FROM events e
                WHERE e.tenant_id = s.tenant_id AND e.mode = s.mode AND (e.pos, e.n) > ($3, $4) AND e.pos < horizon.pos
                ORDER BY e.pos, e.n LIMIT $5) e
            ORDER BY e.pos, e.n LIMIT $5),
         last AS (SELECT pos, n FROM seen ORDER BY pos DESC, n DESC LIMIT 1)
         SELECT h.pos AS "horizon!", (SELECT count(*) FROM seen) AS "scanned!", l.pos AS "last_pos?", l.n AS "last_n?", e.pos AS "pos?",
            e.n AS "n?", e.at AS "at?", e.delivery_id AS "delivery_id?", e.version AS "version?", e.type AS "kind?",
            e.previous_state AS "previous_state?", e.state AS "state?", e.reason AS "reason?", e.certainty AS "certainty?",
            e.account_id AS "account_id?", e.generation AS "generation?", e.attempt_count AS "attempt_count?", e.flags AS "flags?",
            e.bounce_class AS "bounce_class?", e.smtp_code AS "smtp_code?", e.enhanced_code AS "enhanced_code?",
            e.occurred_at AS "occurred_at?", e.detail AS "detail?"
         FROM horizon h LEFT JOIN last l ON true LEFT JOIN LATERAL (
            SELECT * FROM seen WHERE cardinality($6::text[]) = 0 OR seen.type = ANY($6) ORDER BY seen.pos, seen.n LIMIT $7) e ON true
         ORDER BY e.pos, e.n"#,
        &tenants[..],
        &modes[..],
        after.pos,
        after.n,
        SCANNED,
        types as _,
        asked.limit,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let Some(first) = rows.first() else { return Err(StoreError::Unreadable("the feed has no base".to_owned())) };
    let end = FeedPosition { pos: first.horizon.saturating_sub(1), n: i32::MAX };
    let is_all = first.scanned < SCANNED;
    let last_seen = first.last_pos.zip(first.last_n).map(|(pos, n)| FeedPosition { pos, n });
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let (Some(pos), Some(n), Some(at), Some(delivery)) = (row.pos, row.n, row.at, row.delivery_id) else { continue };
        let (Some(version), Some(kind), Some(state), Some(certainty)) = (row.version, row.kind, row.state, row.certainty) else { continue };
        let (Some(generation), Some(count), Some(flags), Some(occurred)) = (row.generation, row.attempt_count, row.flags, row.occurred_at)
        else {
            continue;
        };
        events.push(StoredEvent {
            position: FeedPosition { pos, n },
            at: at.0,
            delivery: DeliveryId::from_uuid(delivery),
            version,
            kind,
            previous: row.previous_state,
            state,
            reason: row.reason,
            certainty,
            account: row.account_id.map(AccountId),
            generation: i64::from(generation),
            attempt_count: i64::from(count),
            flags: Flags(flags),
            bounce_class: row.bounce_class,
            smtp_code: row.smtp_code.map(i64::from),
            enhanced_code: row.enhanced_code,
            occurred_at: occurred.0,
            detail: row.detail,
            subject: None,
        });
    }
    let is_full = i64::try_from(events.len()).unwrap_or(i64::MAX) >= asked.limit;
    let next = match (events.last(), last_seen) {
        (Some(last), _) if is_full => last.position,
        (_, Some(seen)) if !is_all => seen,
        _ => after.max(end),
    };
    Ok(FeedPage { events, next, is_end: is_all && !is_full })
}

/// Whose events are read, as tenants and modes: the reader's own, and those of the installation for who may see them. Two
/// events of one transaction have different numbers, whosever they are.
fn streams(asked: &FeedQuery) -> (Vec<i32>, Vec<i16>) {
    let (mut tenants, mut modes) = (vec![asked.tenant.0], vec![asked.mode.as_i16()]);
    if asked.with_installation {
        tenants.push(INSTALLATION.0);
        modes.push(Mode::Live.as_i16());
    }
    (tenants, modes)
}

async fn floor(conn: &mut PgConnection, asked: &FeedQuery) -> Result<Option<FeedPosition>, StoreError> {
    let (tenants, modes) = streams(asked);
    let row = sqlx::query!(
        "SELECT f.pos, f.n FROM unnest($1::int[], $2::smallint[]) AS s (tenant_id, mode)
         JOIN feed_floors f ON f.tenant_id = s.tenant_id AND f.mode = s.mode ORDER BY f.pos DESC, f.n DESC LIMIT 1",
        &tenants[..],
        &modes[..],
    )
    .fetch_optional(conn)
    .await
    .map_err(before)?;
    Ok(row.map(|row| FeedPosition { pos: row.pos, n: row.n }))
}

/// What the record says of the deliveries of these events.
async fn subjects(conn: &mut PgConnection, events: &[StoredEvent]) -> Result<HashMap<DeliveryId, EventSubject>, StoreError> {
    let deliveries: Vec<Uuid> = events.iter().map(|event| event.delivery.as_uuid()).collect();
    let notifications: Vec<Uuid> = events.iter().map(|event| event.delivery.notification().as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT d.id, d.channel, n.class, d.ref AS reference, n.idempotency_key, n.category, n.tags, n.metadata
         FROM (SELECT DISTINCT * FROM unnest($1::uuid[], $2::uuid[]) AS y (id, notification_id)) x
         JOIN deliveries d ON d.id = x.id AND d.id = ANY($1)
         JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = x.notification_id AND n.id = ANY($2)"#,
        &deliveries[..],
        &notifications[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut subjects = HashMap::new();
    for row in rows {
        let subject = EventSubject {
            idempotency_key: row.idempotency_key,
            category: row.category,
            class: word(&row.class)?,
            tags: row.tags,
            metadata: row.metadata,
            channel: word(&row.channel)?,
            reference: row.reference,
            provider_message_id: None,
        };
        subjects.insert(DeliveryId::from_uuid(row.id), subject);
    }
    Ok(subjects)
}

/// The provider's id of the acceptance of each generation.
async fn provider_ids(conn: &mut PgConnection, events: &[StoredEvent]) -> Result<HashMap<(DeliveryId, i64), String>, StoreError> {
    let ids: Vec<Uuid> = events.iter().map(|event| event.delivery.as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT delivery_id, generation, provider_message_id AS "provider_id!" FROM attempts
         WHERE delivery_id = ANY($1) AND accepted_at IS NOT NULL AND provider_message_id IS NOT NULL"#,
        &ids[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().map(|row| ((DeliveryId::from_uuid(row.delivery_id), i64::from(row.generation)), row.provider_id)).collect())
}

/// The end of the feed. Events of transactions that run now come after it.
pub(crate) async fn feed_end(store: &PostgresStore) -> Result<FeedPosition, StoreError> {
    let mut conn = store.connection().await?;
    let horizon = sqlx::query_scalar!(r#"SELECT feed_horizon() AS "pos!""#).fetch_one(&mut *conn).await.map_err(before)?;
    Ok(FeedPosition { pos: horizon.saturating_sub(1), n: i32::MAX })
}
