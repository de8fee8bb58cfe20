//! Addresses that are not written to: added in batches, listed, looked up by digest, taken away; and what changes of
//! deliveries have to do with them. Which of them a message obeys is decided in the core.

use std::collections::HashMap;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_as};
use tidings_core::delivery::{Change, EventType};
use tidings_core::ids::{DeliveryId, TenantId};
use tidings_core::operational::Cause;
use tidings_core::store::{Asked, Deed, NewSuppression, StoreError, StoredSuppression, Suppressed, SuppressionFilter};
use tidings_core::suppression::{Hit, Note, SuppressionScope};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::audit_log;
use crate::error::store_error;
use crate::operational::{self, Touched};
use crate::rows::{Hex, json, word};
use crate::writer::Writer;

pub(crate) async fn add(writer: &mut Writer, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
    let Some(now) = items.iter().map(|item| item.created_at).max() else { return Ok(Vec::new()) };
    let causes = vec![Cause { actor: actor.map(str::to_owned), delivery: None }; items.len()];
    writer.begin().await?;
    let added = add_all(writer.connection(), items, &causes, now).await;
    writer.end(added).await
}

/// Adds them and tells of each that was new or changed, with what led to it.
async fn add_all(
    connection: &mut SqliteConnection,
    items: &[NewSuppression],
    causes: &[Cause],
    now: Timestamp,
) -> Result<Vec<Suppressed>, StoreError> {
    let key = |item: &NewSuppression| {
        let who = (item.tenant.0, item.mode.as_i16(), item.channel.as_str());
        (who.0, who.1, who.2, hex::encode(&item.address_digest), item.reason.as_str(), item.scope.to_string())
    };
    let rest = |item: &NewSuppression| {
        (
            hex::encode(item.id),
            item.source.clone(),
            item.note.clone(),
            item.created_at.as_micros(),
            hex::encode(&item.address),
            item.delivery.map(Hex::of),
        )
    };
    let rows = json(&items.iter().map(|item| (key(item), rest(item))).collect::<Vec<_>>());
    let created = query_as!(
        Touched,
        r#"INSERT INTO suppressions (tenant_id, mode, channel, address_digest, reason, scope, id, source, note, created_at, address, delivery_id)
         SELECT x.value->>'$[0][0]', x.value->>'$[0][1]', x.value->>'$[0][2]', unhex(x.value->>'$[0][3]'), x.value->>'$[0][4]',
            x.value->>'$[0][5]', unhex(x.value->>'$[1][0]'), x.value->>'$[1][1]', x.value->>'$[1][2]', x.value->>'$[1][3]',
            unhex(x.value->>'$[1][4]'), unhex(x.value->>'$[1][5]')
         FROM json_each(?1) x WHERE true ON CONFLICT DO NOTHING
         RETURNING id AS "id!: Uuid", tenant_id AS "tenant_id!", mode AS "mode!", channel AS "channel!", reason AS "reason!", scope AS "scope!",
            source AS "source!", expires_at AS "expires_at?: i64""#,
        rows
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(store_error)?;
    let updated = query_as!(
        Touched,
        r#"UPDATE suppressions SET expires_at = NULL WHERE expires_at IS NOT NULL AND rowid IN
            (SELECT s.rowid FROM json_each(?1) x CROSS JOIN suppressions s
             ON s.tenant_id = x.value->>'$[0][0]' AND s.mode = x.value->>'$[0][1]' AND s.channel = x.value->>'$[0][2]'
                AND s.address_digest = unhex(x.value->>'$[0][3]') AND s.reason = x.value->>'$[0][4]' AND s.scope = x.value->>'$[0][5]')
         RETURNING id AS "id!: Uuid", tenant_id AS "tenant_id!", mode AS "mode!", channel AS "channel!", reason AS "reason!", scope AS "scope!",
            source AS "source!", expires_at AS "expires_at?: i64""#,
        rows
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(store_error)?;
    let held = query!(
        r#"SELECT s.id AS "id!: Uuid" FROM json_each(?1) x CROSS JOIN suppressions s
             ON s.tenant_id = x.value->>'$[0][0]' AND s.mode = x.value->>'$[0][1]' AND s.channel = x.value->>'$[0][2]'
                AND s.address_digest = unhex(x.value->>'$[0][3]') AND s.reason = x.value->>'$[0][4]' AND s.scope = x.value->>'$[0][5]'
           ORDER BY x.key"#,
        rows
    );
    let held = held.fetch_all(&mut *connection).await.map_err(store_error)?;
    if held.len() != items.len() {
        return Err(StoreError::Refused("an id of a suppression is taken".into()));
    }
    let causes: HashMap<Uuid, &Cause> = held.iter().map(|row| row.id).zip(causes).rev().collect();
    tell_of(connection, (created, updated), |id| causes.get(&id).copied().cloned().unwrap_or_default(), now).await?;
    let outcome = |(item, id): (&NewSuppression, Uuid)| if item.id == id { Suppressed::Added(id) } else { Suppressed::Kept(id) };
    Ok(items.iter().zip(held.into_iter().map(|row| row.id)).map(outcome).collect())
}

/// Tells of suppressions that were made and changed.
async fn tell_of(
    connection: &mut SqliteConnection,
    (created, updated): (Vec<Touched>, Vec<Touched>),
    cause: impl Fn(Uuid) -> Cause,
    now: Timestamp,
) -> Result<(), StoreError> {
    let told = |kind| {
        let cause = &cause;
        move |row: Touched| {
            let id = row.id;
            row.told(kind, &cause(id), now)
        }
    };
    let created = created.into_iter().map(told(EventType::SuppressionCreated));
    let all = created.chain(updated.into_iter().map(told(EventType::SuppressionUpdated))).collect::<Result<Vec<_>, _>>()?;
    operational::tell(connection, &all).await
}

struct Row {
    id: Uuid,
    channel: String,
    reason: String,
    scope: String,
    source: String,
    note: Option<String>,
    created_at: i64,
    expires_at: Option<i64>,
    address: Option<Vec<u8>>,
    delivery: Option<Uuid>,
}

impl Row {
    fn stored(self) -> Result<StoredSuppression, StoreError> {
        Ok(StoredSuppression {
            id: self.id,
            channel: word(&self.channel)?,
            reason: self.reason,
            scope: self.scope,
            source: self.source,
            note: self.note,
            created_at: Timestamp::from_micros(self.created_at),
            expires_at: self.expires_at.map(Timestamp::from_micros),
            address: self.address,
            delivery: self.delivery.map(DeliveryId::from_uuid),
        })
    }
}

pub(crate) async fn page(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    filter: &SuppressionFilter,
) -> Result<Vec<StoredSuppression>, StoreError> {
    let (mode, channel) = (mode.as_i16(), filter.channel.map(|channel| channel.as_str()));
    let (since, until) = (filter.since.map(Timestamp::as_micros), filter.until.map(Timestamp::as_micros));
    let rows = query_as!(
        Row,
        r#"SELECT id AS "id!: Uuid", channel, reason, scope, source, note, created_at, expires_at, address, delivery_id AS "delivery?: Uuid"
           FROM suppressions
           WHERE tenant_id = ?1 AND mode = ?2 AND (?3 IS NULL OR channel = ?3) AND (?4 IS NULL OR reason = ?4)
            AND (?5 IS NULL OR scope = ?5) AND (?6 IS NULL OR created_at >= ?6) AND (?7 IS NULL OR created_at < ?7)
            AND id < coalesce(?8, x'ffffffffffffffffffffffffffffffff')
           ORDER BY id DESC LIMIT ?9"#,
        tenant.0,
        mode,
        channel,
        filter.reason,
        filter.scope,
        since,
        until,
        filter.before,
        filter.limit
    );
    rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(Row::stored).collect()
}

pub(crate) async fn of(readers: &SqlitePool, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
    let (mode, channel) = (asked.mode.as_i16(), asked.channel.as_str());
    let digests = json(&asked.digests.iter().map(|digest| Hex::bytes(digest)).collect::<Vec<_>>());
    let rows = query_as!(
        Row,
        r#"SELECT id AS "id!: Uuid", channel, reason, scope, source, note, created_at, expires_at, address, delivery_id AS "delivery?: Uuid"
           FROM suppressions
           WHERE tenant_id = ?1 AND mode = ?2 AND channel = ?3 AND address_digest IN (SELECT unhex(x.value) FROM json_each(?4) x)
           ORDER BY id"#,
        asked.tenant.0,
        mode,
        channel,
        digests
    );
    rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(Row::stored).collect()
}

pub(crate) async fn hits(readers: &SqlitePool, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
    let (mode, channel, now) = (asked.mode.as_i16(), asked.channel.as_str(), now.as_micros());
    let digests = json(&asked.digests.iter().map(|digest| Hex::bytes(digest)).collect::<Vec<_>>());
    let rows = query!(
        r#"SELECT address_digest, id AS "id!: Uuid", scope FROM suppressions
           WHERE tenant_id = ?1 AND mode = ?2 AND channel = ?3 AND address_digest IN (SELECT unhex(x.value) FROM json_each(?4) x)
            AND (expires_at IS NULL OR expires_at > ?5)"#,
        asked.tenant.0,
        mode,
        channel,
        digests,
        now
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    Ok(rows.into_iter().map(|row| (row.address_digest, Hit { id: row.id, scope: reach(&row.scope) })).collect())
}

pub(crate) async fn remove(writer: &mut Writer, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    writer.begin().await?;
    let removed = remove_one(writer.connection(), tenant, mode, id, entry).await;
    writer.end(removed).await
}

async fn remove_one(connection: &mut SqliteConnection, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    let mode = mode.as_i16();
    let removed = query_as!(
        Touched,
        r#"DELETE FROM suppressions WHERE id = ?1 AND tenant_id = ?2 AND mode = ?3
           RETURNING id AS "id!: Uuid", tenant_id AS "tenant_id!", mode AS "mode!", channel AS "channel!", reason AS "reason!", scope AS "scope!",
            source AS "source!", expires_at AS "expires_at?: i64""#,
        id,
        tenant.0,
        mode
    );
    let Some(removed) = removed.fetch_optional(&mut *connection).await.map_err(store_error)? else { return Ok(false) };
    let by = Cause { actor: Some(entry.actor.clone()), delivery: None };
    operational::tell(connection, &[removed.told(EventType::SuppressionRemoved, &by, entry.at)?]).await?;
    audit_log::record(connection, &[entry.row()], entry.at).await.map(|()| true)
}

/// Writes what changes have to do with suppressions, in the transaction of the changes.
pub(crate) async fn note(connection: &mut SqliteConnection, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    let (mut stopped, mut imposed, mut by) = (Vec::new(), Vec::new(), HashMap::new());
    for change in changes {
        match &change.suppression {
            None => {}
            Some(Note::StoppedBy(id)) => stopped.push((Hex::of(change.after.id), Hex::uuid(*id))),
            Some(Note::Imposes(new)) => {
                imposed.push((Hex::of(change.after.id), Hex::uuid(new.id), new.reason.as_str(), new.scope.to_string()));
                by.insert(new.id, change.after.id);
            }
        }
    }
    if !stopped.is_empty() {
        let rows = json(&stopped);
        query!(
            "UPDATE deliveries SET suppression_id = unhex(x.value->>1) FROM json_each(?1) AS x WHERE deliveries.id = unhex(x.value->>0)",
            rows
        )
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    }
    if !imposed.is_empty() {
        impose(&mut *connection, json(&imposed), by, now).await?;
    }
    let of_copies = changes.iter().flat_map(|change| change.of_copies.iter().map(move |copy| (copy.clone(), Cause::of(change.after.id))));
    let (of_copies, causes): (Vec<NewSuppression>, Vec<Cause>) = of_copies.unzip();
    if of_copies.is_empty() { Ok(()) } else { add_all(connection, &of_copies, &causes, now).await.map(|_| ()) }
}

/// Address and digest are those of the delivery's record. One that is there already is in force again, for good. `by` are
/// the deliveries by the ids of new ones.
async fn impose(
    connection: &mut SqliteConnection,
    rows: String,
    mut by: HashMap<Uuid, DeliveryId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let at = now.as_micros();
    let created = query_as!(
        Touched,
        r#"INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at, delivery_id, address)
         SELECT unhex(x.value->>1), d.tenant_id, d.mode, d.channel, d.address_digest, x.value->>2, x.value->>3, 'provider', ?2, d.id, d.address
         FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0) WHERE true ON CONFLICT DO NOTHING
         RETURNING id AS "id!: Uuid", tenant_id AS "tenant_id!", mode AS "mode!", channel AS "channel!", reason AS "reason!", scope AS "scope!",
            source AS "source!", expires_at AS "expires_at?: i64""#,
        rows,
        at
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(store_error)?;
    let updated = query_as!(
        Touched,
        r#"UPDATE suppressions SET expires_at = NULL WHERE expires_at IS NOT NULL AND rowid IN
            (SELECT s.rowid FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0)
                CROSS JOIN suppressions s ON s.tenant_id = d.tenant_id AND s.mode = d.mode AND s.channel = d.channel
                    AND s.address_digest = d.address_digest AND s.reason = x.value->>2 AND s.scope = x.value->>3)
         RETURNING id AS "id!: Uuid", tenant_id AS "tenant_id!", mode AS "mode!", channel AS "channel!", reason AS "reason!", scope AS "scope!",
            source AS "source!", expires_at AS "expires_at?: i64""#,
        rows
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(store_error)?;
    query!(
        "UPDATE deliveries SET suppression_id = (SELECT s.id FROM suppressions s
            WHERE s.tenant_id = deliveries.tenant_id AND s.mode = deliveries.mode AND s.channel = deliveries.channel
                AND s.address_digest = deliveries.address_digest AND s.reason = x.value->>2 AND s.scope = x.value->>3)
         FROM json_each(?1) AS x WHERE deliveries.id = unhex(x.value->>0)",
        rows
    )
    .execute(&mut *connection)
    .await
    .map_err(store_error)?;
    if !updated.is_empty() {
        let named = query!(
            r#"SELECT d.id AS "id!: Uuid", d.suppression_id AS "suppression!: Uuid"
               FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value->>0)"#,
            rows
        );
        let named = named.fetch_all(&mut *connection).await.map_err(store_error)?;
        for row in named {
            by.entry(row.suppression).or_insert(DeliveryId::from_uuid(row.id));
        }
    }
    tell_of(connection, (created, updated), |id| by.get(&id).copied().map_or_else(Cause::default, Cause::of), now).await
}

/// How far a suppression reaches.
pub(crate) fn reach(scope: &str) -> SuppressionScope {
    let Ok(scope) = scope.parse();
    scope
}
