//! The pull feed. One writer commits in the order of `pos`, so what a reader has passed is complete (S-206). The events of
//! the installation are those of the tenant 0; who may see them reads both by their places.

use std::collections::HashMap;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_scalar};
use tidings_core::delivery::Flags;
use tidings_core::ids::{AccountId, DeliveryId};
use tidings_core::store::{EventSubject, FeedPage, FeedPosition, FeedQuery, StoreError, StoredEvent};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::error::store_error;
use crate::moved_feed;
use crate::rows::{Hex, json, number, word};

/// Events that one page looks at, most of which a filter may leave out.
const SCANNED: i64 = 5_000;

pub(crate) async fn feed(readers: &SqlitePool, asked: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let Some(mut page) = page(&mut snapshot, asked).await? else { return Ok(None) };
    let subjects = subjects(&mut snapshot, &page.events).await?;
    let ids = provider_ids(&mut snapshot, &page.events).await?;
    snapshot.commit().await.map_err(store_error)?;
    for event in &mut page.events {
        event.subject = subjects.get(&event.delivery).cloned();
        if let Some(subject) = &mut event.subject {
            subject.provider_message_id = ids.get(&(event.delivery, event.generation)).cloned();
        }
    }
    Ok(Some(page))
}

/// Where a reader stands: as far as it has read of every stream that it asks for. None where some of one was purged unread.
async fn stands(connection: &mut SqliteConnection, asked: &FeedQuery, after: FeedPosition) -> Result<Option<i64>, StoreError> {
    let own = (asked.tenant.0, asked.mode.as_i16());
    let installation = asked.with_installation.then_some((0, Mode::Live.as_i16()));
    let mut here = i64::MIN;
    for (tenant, mode) in [Some(own), installation].into_iter().flatten() {
        let floor = query!("SELECT pos, n FROM feed_floors WHERE tenant_id = ?1 AND mode = ?2", tenant, mode);
        let floor = floor.fetch_optional(&mut *connection).await.map_err(store_error)?;
        let floor = floor.map(|row| Ok(FeedPosition { pos: row.pos, n: number(row.n)? })).transpose()?;
        match moved_feed::place(connection, (tenant, mode), after, floor).await? {
            // Places rise with positions through all streams: what one has read up to there, it has read of the others too.
            Some(place) => here = here.max(place),
            None => return Ok(None),
        }
    }
    Ok(Some(here))
}

/// The events of a page, without what the record says of them.
async fn page(connection: &mut SqliteConnection, asked: &FeedQuery) -> Result<Option<FeedPage>, StoreError> {
    let (tenant, mode, installation) = (asked.tenant.0, asked.mode.as_i16(), asked.with_installation);
    let after = match asked.after {
        None => i64::MIN,
        Some(after) => match stands(connection, asked, after).await? {
            Some(here) => here,
            None => return Ok(None),
        },
    };
    let end = end(connection).await?;
    let scanned = query!(
        r#"SELECT count(*) AS "count!: i64", max(pos) AS "last?: i64"
           FROM (SELECT pos FROM (SELECT pos FROM events WHERE tenant_id = ?1 AND mode = ?2 AND pos > ?3 AND pos <= ?4 ORDER BY pos LIMIT ?5)
            UNION ALL
            SELECT pos FROM (SELECT pos FROM events WHERE ?6 AND tenant_id = 0 AND mode = 0 AND pos > ?3 AND pos <= ?4 ORDER BY pos LIMIT ?5)
            ORDER BY pos LIMIT ?5)"#,
        tenant,
        mode,
        after,
        end.pos,
        SCANNED,
        installation
    );
    let scanned = scanned.fetch_one(&mut *connection).await.map_err(store_error)?;
    let is_all = scanned.count < SCANNED;
    let up_to = scanned.last.unwrap_or(end.pos);
    let types = json(&asked.types.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT pos AS "pos!", at AS "at!", delivery_id AS "delivery_id!: Uuid", version AS "version!", type AS "kind!",
            previous_state AS "previous_state?: String", state AS "state!", reason AS "reason?: String", certainty AS "certainty!",
            account_id AS "account_id?: i64", generation AS "generation!", attempt_count AS "attempt_count!", flags AS "flags!",
            bounce_class AS "bounce_class?: String", smtp_code AS "smtp_code?: i64", enhanced_code AS "enhanced_code?: String",
            occurred_at AS "occurred_at!", detail AS "detail?: String"
           FROM (SELECT * FROM (SELECT * FROM events WHERE tenant_id = ?1 AND mode = ?2 AND pos > ?3 AND pos <= ?4
                AND (?5 = '[]' OR type IN (SELECT value FROM json_each(?5))) ORDER BY pos LIMIT ?6)
            UNION ALL
            SELECT * FROM (SELECT * FROM events WHERE ?7 AND tenant_id = 0 AND mode = 0 AND pos > ?3 AND pos <= ?4
                AND (?5 = '[]' OR type IN (SELECT value FROM json_each(?5))) ORDER BY pos LIMIT ?6)
            ORDER BY pos LIMIT ?6)"#,
        tenant,
        mode,
        after,
        up_to,
        types,
        asked.limit,
        installation
    );
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    let is_full = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= asked.limit;
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        events.push(StoredEvent {
            position: FeedPosition { pos: row.pos, n: 0 },
            at: Timestamp::from_micros(row.at),
            delivery: DeliveryId::from_uuid(row.delivery_id),
            version: number(row.version)?,
            kind: row.kind,
            previous: row.previous_state,
            state: row.state,
            reason: row.reason,
            certainty: row.certainty,
            account: row.account_id.map(number).transpose()?.map(AccountId),
            generation: row.generation,
            attempt_count: row.attempt_count,
            flags: Flags(number(row.flags)?),
            bounce_class: row.bounce_class,
            smtp_code: row.smtp_code,
            enhanced_code: row.enhanced_code,
            occurred_at: Timestamp::from_micros(row.occurred_at),
            detail: row.detail,
            subject: None,
        });
    }
    let next = match events.last() {
        Some(last) if is_full => last.position,
        _ if is_all => FeedPosition { pos: after.max(end.pos), n: i32::MAX },
        _ => FeedPosition { pos: up_to, n: i32::MAX },
    };
    Ok(Some(FeedPage { events, next, is_end: is_all && !is_full }))
}

/// What the record says of the deliveries of these events.
async fn subjects(connection: &mut SqliteConnection, events: &[StoredEvent]) -> Result<HashMap<DeliveryId, EventSubject>, StoreError> {
    let ids =
        json(&events.iter().map(|event| (Hex::of(event.delivery), Hex::uuid(event.delivery.notification().as_uuid()))).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.channel AS "channel!", n.class AS "class!", d.ref AS "reference?", n.idempotency_key AS "key!",
            n.category AS "category!", n.tags AS "tags!", n.metadata AS "metadata?"
           FROM jsonb_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0)
            CROSS JOIN notifications n ON n.tenant_id = d.tenant_id AND n.id = unhex(x.value->>1)"#,
        ids
    );
    let mut subjects = HashMap::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let subject = EventSubject {
            idempotency_key: row.key,
            category: row.category,
            class: word(&row.class)?,
            tags: serde_json::from_str(&row.tags).map_err(|err| StoreError::Unreadable(format!("tags: {err}")))?,
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
async fn provider_ids(connection: &mut SqliteConnection, events: &[StoredEvent]) -> Result<HashMap<(DeliveryId, i64), String>, StoreError> {
    let ids = json(&events.iter().map(|event| Hex::of(event.delivery)).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT a.delivery_id AS "id!: Uuid", a.generation AS "generation!", a.provider_message_id AS "provider_id!"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value)
           WHERE a.accepted_at IS NOT NULL AND a.provider_message_id IS NOT NULL"#,
        ids
    );
    let rows = rows.fetch_all(connection).await.map_err(store_error)?;
    Ok(rows.into_iter().map(|row| ((DeliveryId::from_uuid(row.id), row.generation), row.provider_id)).collect())
}

pub(crate) async fn feed_end(readers: &SqlitePool) -> Result<FeedPosition, StoreError> {
    end(&mut *readers.acquire().await.map_err(store_error)?).await
}

/// The highest position ever given; it stays when its event is purged.
async fn end(connection: &mut SqliteConnection) -> Result<FeedPosition, StoreError> {
    let pos = query_scalar!(r#"SELECT max(seq) AS "seq?: i64" FROM sqlite_sequence WHERE name = 'events'"#);
    let pos = pos.fetch_one(connection).await.map_err(store_error)?.unwrap_or(0);
    Ok(FeedPosition { pos, n: i32::MAX })
}
