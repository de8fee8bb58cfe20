//! Addresses that are not written to: added in batches, listed, looked up by digest, taken away; and what changes of
//! deliveries have to do with them. Which of them a message obeys is decided in the core.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::delivery::{Change, EventType};
use tidings_core::ids::{DeliveryId, TenantId};
use tidings_core::operational::Cause;
use tidings_core::store::{Asked, Deed, NewSuppression, StoreError, StoredSuppression, Suppressed, SuppressionFilter};
use tidings_core::suppression::{Hit, Imposed, Note, SuppressionScope};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::audit_log;
use crate::error::{before, committing};
use crate::instant::{At, at};
use crate::operational::{self, Touched};
use crate::rows::{without_nul, word};

/// Adds what is not there yet, in the order of the digests so that two batches with the same ones cannot deadlock.
pub(crate) async fn add(store: &PostgresStore, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
    let Some(now) = items.iter().map(|item| item.created_at).max() else { return Ok(Vec::new()) };
    let causes = vec![Cause { actor: actor.map(str::to_owned), delivery: None }; items.len()];
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let added = add_all(&mut tx, items, &causes, now, &mut 0).await?;
    tx.commit().await.map_err(committing)?;
    Ok(added)
}

/// Adds them and tells of each that was new or changed, with what led to it.
async fn add_all(
    conn: &mut PgConnection,
    items: &[NewSuppression],
    causes: &[Cause],
    now: Timestamp,
    told: &mut i32,
) -> Result<Vec<Suppressed>, StoreError> {
    let tenants: Vec<i32> = items.iter().map(|item| item.tenant.0).collect();
    let modes: Vec<i16> = items.iter().map(|item| item.mode.as_i16()).collect();
    let channels: Vec<&str> = items.iter().map(|item| item.channel.as_str()).collect();
    let digests: Vec<&[u8]> = items.iter().map(|item| item.address_digest.as_slice()).collect();
    let reasons: Vec<&str> = items.iter().map(|item| item.reason.as_str()).collect();
    let scopes: Vec<String> = items.iter().map(|item| item.scope.to_string()).collect();
    let created = sqlx::query_as!(
        Touched,
        r#"INSERT INTO suppressions (tenant_id, mode, channel, address_digest, reason, scope, id, source, note, created_at, address, delivery_id)
         SELECT DISTINCT ON (x.tenant_id, x.mode, x.channel, x.address_digest, x.reason, x.scope)
            x.tenant_id, x.mode, x.channel, x.address_digest, x.reason, x.scope, x.id, x.source, x.note, x.created_at, x.address, x.delivery_id
         FROM unnest($1::int[], $2::smallint[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::text[],
                     $10::timestamptz[], $11::bytea[], $12::uuid[])
            WITH ORDINALITY AS x (tenant_id, mode, channel, address_digest, reason, scope, id, source, note, created_at, address,
                delivery_id, place)
         ORDER BY x.tenant_id, x.mode, x.channel, x.address_digest, x.reason, x.scope, x.place
         ON CONFLICT DO NOTHING
         RETURNING id, tenant_id, mode, channel, reason, scope, source, expires_at AS "expires_at: At""#,
        &tenants[..],
        &modes[..],
        &channels[..] as _,
        &digests[..] as _,
        &reasons[..] as _,
        &scopes[..],
        &items.iter().map(|item| item.id).collect::<Vec<_>>()[..],
        items.iter().map(|item| item.source.as_str()).collect::<Vec<_>>() as _,
        items.iter().map(|item| without_nul(item.note.as_deref())).collect::<Vec<_>>() as _,
        items.iter().map(|item| At(item.created_at)).collect::<Vec<_>>() as _,
        items.iter().map(|item| item.address.as_slice()).collect::<Vec<_>>() as _,
        items.iter().map(|item| item.delivery.map(DeliveryId::as_uuid)).collect::<Vec<_>>() as _,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let updated = sqlx::query_as!(
        Touched,
        r#"UPDATE suppressions s SET expires_at = NULL
         FROM unnest($1::int[], $2::smallint[], $3::text[], $4::bytea[], $5::text[], $6::text[])
            AS x (tenant_id, mode, channel, address_digest, reason, scope)
         WHERE s.tenant_id = x.tenant_id AND s.mode = x.mode AND s.channel = x.channel AND s.address_digest = x.address_digest
            AND s.reason = x.reason AND s.scope = x.scope AND s.expires_at IS NOT NULL
         RETURNING s.id, s.tenant_id, s.mode, s.channel, s.reason, s.scope, s.source, s.expires_at AS "expires_at: At""#,
        &tenants[..],
        &modes[..],
        &channels[..] as _,
        &digests[..] as _,
        &reasons[..] as _,
        &scopes[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let held = sqlx::query_scalar!(
        "SELECT s.id FROM unnest($1::int[], $2::smallint[], $3::text[], $4::bytea[], $5::text[], $6::text[])
            WITH ORDINALITY AS x (tenant_id, mode, channel, address_digest, reason, scope, place)
         JOIN suppressions s ON s.tenant_id = x.tenant_id AND s.mode = x.mode AND s.channel = x.channel
            AND s.address_digest = x.address_digest AND s.reason = x.reason AND s.scope = x.scope
         ORDER BY x.place",
        &tenants[..],
        &modes[..],
        &channels[..] as _,
        &digests[..] as _,
        &reasons[..] as _,
        &scopes[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    if held.len() != items.len() {
        // Somebody took one away while we looked; nothing is written.
        return Err(StoreError::Busy("a suppression was removed meanwhile".into()));
    }
    let causes: HashMap<Uuid, &Cause> = held.iter().copied().zip(causes).rev().collect();
    tell_of(conn, (created, updated), |id| causes.get(&id).copied().cloned().unwrap_or_default(), now, told).await?;
    let outcome = |(item, id): (&NewSuppression, Uuid)| if item.id == id { Suppressed::Added(id) } else { Suppressed::Kept(id) };
    Ok(items.iter().zip(held).map(outcome).collect())
}

/// Tells of suppressions that were made and changed.
async fn tell_of(
    conn: &mut PgConnection,
    (created, updated): (Vec<Touched>, Vec<Touched>),
    cause: impl Fn(Uuid) -> Cause,
    now: Timestamp,
    told: &mut i32,
) -> Result<(), StoreError> {
    let occurrence = |kind| {
        let cause = &cause;
        move |row: Touched| {
            let id = row.id;
            row.told(kind, &cause(id), now)
        }
    };
    let created = created.into_iter().map(occurrence(EventType::SuppressionCreated));
    let all: Vec<_> = created.chain(updated.into_iter().map(occurrence(EventType::SuppressionUpdated))).collect();
    operational::tell(conn, &all, told).await
}

struct Row {
    id: Uuid,
    channel: String,
    reason: String,
    scope: String,
    source: String,
    note: Option<String>,
    created_at: At,
    expires_at: Option<At>,
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
            created_at: self.created_at.0,
            expires_at: self.expires_at.map(|at| at.0),
            address: self.address,
            delivery: self.delivery.map(DeliveryId::from_uuid),
        })
    }
}

pub(crate) async fn page(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    filter: &SuppressionFilter,
) -> Result<Vec<StoredSuppression>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query_as!(
        Row,
        "SELECT id, channel, reason, scope, source, note, created_at, expires_at, address, delivery_id AS delivery
         FROM suppressions
         WHERE tenant_id = $1 AND mode = $2 AND ($3::text IS NULL OR channel = $3) AND ($4::text IS NULL OR reason = $4)
            AND ($5::text IS NULL OR scope = $5) AND ($6::timestamptz IS NULL OR created_at >= $6)
            AND ($7::timestamptz IS NULL OR created_at < $7) AND ($8::uuid IS NULL OR id < $8)
         ORDER BY id DESC LIMIT $9",
        tenant.0,
        mode.as_i16(),
        filter.channel.map(|channel| channel.as_str()),
        filter.reason.as_deref(),
        filter.scope.as_deref(),
        at(filter.since) as _,
        at(filter.until) as _,
        filter.before,
        filter.limit,
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    rows.into_iter().map(Row::stored).collect()
}

pub(crate) async fn of(store: &PostgresStore, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query_as!(
        Row,
        "SELECT id, channel, reason, scope, source, note, created_at, expires_at, address, delivery_id AS delivery
         FROM suppressions WHERE tenant_id = $1 AND mode = $2 AND channel = $3 AND address_digest = ANY($4) ORDER BY id",
        asked.tenant.0,
        asked.mode.as_i16(),
        asked.channel.as_str(),
        &asked.digests[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    rows.into_iter().map(Row::stored).collect()
}

pub(crate) async fn hits(store: &PostgresStore, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        "SELECT address_digest, id, scope FROM suppressions
         WHERE tenant_id = $1 AND mode = $2 AND channel = $3 AND address_digest = ANY($4) AND (expires_at IS NULL OR expires_at > $5)",
        asked.tenant.0,
        asked.mode.as_i16(),
        asked.channel.as_str(),
        &asked.digests[..],
        At(now),
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().map(|row| (row.address_digest, Hit { id: row.id, scope: reach(&row.scope) })).collect())
}

pub(crate) async fn remove(store: &PostgresStore, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let mode = mode.as_i16();
    let removed = sqlx::query_as!(
        Touched,
        r#"DELETE FROM suppressions WHERE id = $1 AND tenant_id = $2 AND mode = $3
         RETURNING id, tenant_id, mode, channel, reason, scope, source, expires_at AS "expires_at: At""#,
        id,
        tenant.0,
        mode,
    );
    let Some(removed) = removed.fetch_optional(&mut *tx).await.map_err(before)? else { return Ok(false) };
    let by = Cause { actor: Some(entry.actor.clone()), delivery: None };
    operational::tell(&mut tx, &[removed.told(EventType::SuppressionRemoved, &by, entry.at)], &mut 0).await?;
    audit_log::record(&mut tx, &[entry.row()], entry.at).await?;
    tx.commit().await.map_err(committing)?;
    Ok(true)
}

/// Writes what changes have to do with suppressions, in the transaction of the changes, which has told `told` events so far.
pub(crate) async fn note(conn: &mut PgConnection, changes: &[&Change], now: Timestamp, told: &mut i32) -> Result<(), StoreError> {
    let (mut stopped, mut imposed) = (HashMap::new(), Vec::new());
    for change in changes {
        match &change.suppression {
            None => {}
            Some(Note::StoppedBy(id)) => {
                stopped.insert(change.after.id.as_uuid(), *id);
            }
            Some(Note::Imposes(new)) => imposed.push((change.after.id.as_uuid(), new)),
        }
    }
    if !stopped.is_empty() {
        let (ids, by): (Vec<Uuid>, Vec<Uuid>) = stopped.into_iter().unzip();
        sqlx::query!(
            "UPDATE deliveries d SET suppression_id = x.suppression_id FROM unnest($1::uuid[], $2::uuid[]) AS x (id, suppression_id)
             WHERE d.id = x.id AND d.id = ANY($1)",
            &ids[..],
            &by[..],
        )
        .execute(&mut *conn)
        .await
        .map_err(before)?;
    }
    if !imposed.is_empty() {
        impose(&mut *conn, &imposed, now, told).await?;
    }
    let of_copies = changes.iter().flat_map(|change| change.of_copies.iter().map(|copy| (copy.clone(), Cause::of(change.after.id))));
    let (of_copies, causes): (Vec<NewSuppression>, Vec<Cause>) = of_copies.unzip();
    if of_copies.is_empty() { Ok(()) } else { add_all(conn, &of_copies, &causes, now, told).await.map(|_| ()) }
}

/// Address and digest are those of the delivery's record. One that is there already is in force again, for good.
async fn impose(conn: &mut PgConnection, imposed: &[(Uuid, &Imposed)], now: Timestamp, told: &mut i32) -> Result<(), StoreError> {
    let deliveries: Vec<Uuid> = imposed.iter().map(|(delivery, _)| *delivery).collect();
    let reasons: Vec<&str> = imposed.iter().map(|(_, new)| new.reason.as_str()).collect();
    let scopes: Vec<String> = imposed.iter().map(|(_, new)| new.scope.to_string()).collect();
    let created = sqlx::query_as!(
        Touched,
        r#"INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at, delivery_id, address)
         SELECT x.id, d.tenant_id, d.mode, d.channel, d.address_digest, x.reason, x.scope, 'provider', $5, d.id, d.address
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) AS x (delivery_id, reason, scope, id)
         JOIN deliveries d ON d.id = x.delivery_id AND d.id = ANY($1)
         ORDER BY d.tenant_id, d.mode, d.channel, d.address_digest, x.reason
         ON CONFLICT DO NOTHING
         RETURNING id, tenant_id, mode, channel, reason, scope, source, expires_at AS "expires_at: At""#,
        &deliveries[..],
        &reasons[..] as _,
        &scopes[..],
        &imposed.iter().map(|(_, new)| new.id).collect::<Vec<_>>()[..],
        At(now),
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let updated = sqlx::query_as!(
        Touched,
        r#"UPDATE suppressions s SET expires_at = NULL
         FROM unnest($1::uuid[], $2::text[], $3::text[]) AS x (delivery_id, reason, scope)
         JOIN deliveries d ON d.id = x.delivery_id AND d.id = ANY($1)
         WHERE s.tenant_id = d.tenant_id AND s.mode = d.mode AND s.channel = d.channel AND s.address_digest = d.address_digest
            AND s.reason = x.reason AND s.scope = x.scope AND s.expires_at IS NOT NULL
         RETURNING s.id, s.tenant_id, s.mode, s.channel, s.reason, s.scope, s.source, s.expires_at AS "expires_at: At""#,
        &deliveries[..],
        &reasons[..] as _,
        &scopes[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let named = sqlx::query!(
        r#"UPDATE deliveries d SET suppression_id = s.id
         FROM unnest($1::uuid[], $2::text[], $3::text[]) AS x (delivery_id, reason, scope), suppressions s
         WHERE d.id = x.delivery_id AND d.id = ANY($1) AND s.tenant_id = d.tenant_id AND s.mode = d.mode AND s.channel = d.channel
            AND s.address_digest = d.address_digest AND s.reason = x.reason AND s.scope = x.scope
         RETURNING d.id, s.id AS "suppression!""#,
        &deliveries[..],
        &reasons[..] as _,
        &scopes[..],
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    let made = imposed.iter().map(|(delivery, new)| (new.id, DeliveryId::from_uuid(*delivery)));
    let by: HashMap<Uuid, DeliveryId> = named.into_iter().map(|row| (row.suppression, DeliveryId::from_uuid(row.id))).chain(made).collect();
    tell_of(conn, (created, updated), |id| by.get(&id).copied().map_or_else(Cause::default, Cause::of), now, told).await
}

/// How far a suppression reaches.
pub(crate) fn reach(scope: &str) -> SuppressionScope {
    let Ok(scope) = scope.parse();
    scope
}
