//! Lists of notifications, one delivery by its id, and the content that was given.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::listing::{Seen, SeenDelivery};
use tidings_core::store::{Scan, StoreError, StoredContent, StoredDelivery, StoredNotification, Window};
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::before;
use crate::instant::At;
use crate::read::{deliveries, gather};
use crate::rows::{count, word};

/// The ids of all deliveries of a notification.
pub(crate) fn ids_of(id: Uuid, delivery_count: i16) -> impl Iterator<Item = Uuid> {
    let id = NotificationId::from_uuid(id);
    (1..=u16::try_from(delivery_count).unwrap_or_default()).map(move |ordinal| id.delivery(ordinal).as_uuid())
}

/// The newest rows of a window, by the primary key.
pub(crate) async fn scan(store: &PostgresStore, window: &Window) -> Result<Scan, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(before)?;
    let mut rows = sqlx::query!(
        "SELECT id, mode, category, tags, ref_digest, CASE WHEN $5 THEN metadata END AS metadata, delivery_count FROM notifications
         WHERE tenant_id = $1 AND id >= $2 AND id < $3 ORDER BY id DESC LIMIT $4",
        window.tenant.0,
        window.from,
        window.before,
        i64::try_from(window.rows).unwrap_or(i64::MAX),
        window.with_metadata,
    )
    .fetch_all(&mut *tx)
    .await
    .map_err(before)?;
    let is_full = rows.len() == window.rows;
    let mut fitting = rows.len();
    let mut facts = HashMap::new();
    if window.with_deliveries && !rows.is_empty() {
        fitting = Scan::fitting(rows.iter().map(|row| usize::from(row.delivery_count.unsigned_abs())));
        let ids: Vec<Uuid> = rows[..fitting].iter().flat_map(|row| ids_of(row.id, row.delivery_count)).collect();
        facts = delivery_facts(&mut tx, &ids).await?;
    }
    tx.commit().await.map_err(before)?;
    let has_more = is_full || fitting < rows.len();
    rows.truncate(fitting);
    let reached = rows.last().map(|row| row.id).filter(|_| has_more);
    let seen = rows.into_iter().filter_map(|row| {
        let id = NotificationId::from_uuid(row.id);
        let deliveries = facts.remove(&id).unwrap_or_else(|| Ok(Vec::new()));
        let seen = deliveries.and_then(|deliveries| {
            Ok(Seen {
                id,
                mode: Mode::from_i16(row.mode),
                category: row.category,
                tags: row.tags,
                ref_digest: row.ref_digest,
                metadata: row.metadata,
                delivery_count: count(row.delivery_count)?,
                deliveries,
            })
        });
        readable(id, seen)
    });
    Ok(Scan { seen: seen.collect(), reached })
}

/// What cannot be read is told to the operator and holds nobody up (S-059, S-231).
fn readable<T>(id: NotificationId, row: Result<T, StoreError>) -> Option<T> {
    row.inspect_err(|err| tracing::error!(notification_id = %id, error = %err, "a notification cannot be read")).ok()
}

type Facts = HashMap<NotificationId, Result<Vec<SeenDelivery>, StoreError>>;

async fn delivery_facts(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Facts, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT d.id, d.channel, COALESCE(q.state, d.state) AS "state!", d.address_digest
         FROM deliveries d LEFT JOIN queue q ON q.id = d.id AND q.id = ANY($1) WHERE d.id = ANY($1) ORDER BY d.id"#,
        ids,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut facts = Facts::new();
    for row in rows {
        let delivery = word(&row.channel)
            .and_then(|channel| Ok(SeenDelivery { channel, state: word(&row.state)?, address_digest: row.address_digest }));
        gather(facts.entry(DeliveryId::from_uuid(row.id).notification()).or_insert_with(|| Ok(Vec::new())), delivery);
    }
    Ok(facts)
}

/// Several notifications of one moment, newest first.
pub(crate) async fn notifications(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    ids: &[NotificationId],
) -> Result<Vec<StoredNotification>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    read(store, tenant, mode, &ids, None).await
}

/// A notification with this one of its deliveries alone.
pub(crate) async fn delivery(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    id: DeliveryId,
) -> Result<Option<StoredNotification>, StoreError> {
    let found = read(store, tenant, mode, &[id.notification().as_uuid()], Some(id)).await?.pop();
    Ok(found.filter(|notification| !notification.deliveries.is_empty()))
}

async fn read(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    ids: &[Uuid],
    only: Option<DeliveryId>,
) -> Result<Vec<StoredNotification>, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(before)?;
    let mut rows = sqlx::query_as!(
        NotificationRow,
        "SELECT id, idempotency_key, category, class, tags, metadata, send_at, expires_at, delivery_count FROM notifications
         WHERE tenant_id = $1 AND id = ANY($2) AND mode = $3",
        tenant.0,
        ids,
        mode.as_i16(),
    )
    .fetch_all(&mut *tx)
    .await
    .map_err(before)?;
    // Sorted here: the planner would walk all of a tenant's rows in order rather than sort a few.
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.id));
    let wanted: Vec<Uuid> = match only {
        Some(id) => vec![id.as_uuid()],
        None => rows.iter().flat_map(|row| ids_of(row.id, row.delivery_count)).collect(),
    };
    let mut by_notification = deliveries(&mut tx, &wanted).await?;
    tx.commit().await.map_err(before)?;
    let stored = rows.into_iter().filter_map(|row| {
        let id = NotificationId::from_uuid(row.id);
        let deliveries = by_notification.remove(&id).unwrap_or_else(|| Ok(Vec::new()));
        readable(id, deliveries.and_then(|deliveries| row.notification(tenant, mode, deliveries)))
    });
    Ok(stored.collect())
}

/// The content of a notification, as long as it is kept.
pub(crate) async fn content(
    store: &PostgresStore,
    tenant: TenantId,
    mode: Mode,
    id: NotificationId,
) -> Result<Option<StoredContent>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query!(
        r#"SELECT n.schema_version, c.body AS "body?" FROM notifications n LEFT JOIN contents c ON c.id = n.id AND c.id = $2
         WHERE n.tenant_id = $1 AND n.id = $2 AND n.mode = $3"#,
        tenant.0,
        id.as_uuid(),
        mode.as_i16(),
    )
    .fetch_optional(&mut *conn)
    .await
    .map_err(before)?;
    Ok(row.map(|row| StoredContent { schema_version: row.schema_version, body: row.body }))
}

/// A row of `notifications`.
pub(crate) struct NotificationRow {
    pub(crate) id: Uuid,
    pub(crate) idempotency_key: String,
    pub(crate) category: String,
    pub(crate) class: String,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Option<Vec<u8>>,
    pub(crate) send_at: Option<At>,
    pub(crate) expires_at: At,
    pub(crate) delivery_count: i16,
}

impl NotificationRow {
    pub(crate) fn notification(
        self,
        tenant: TenantId,
        mode: Mode,
        deliveries: Vec<StoredDelivery>,
    ) -> Result<StoredNotification, StoreError> {
        Ok(StoredNotification {
            tenant,
            id: NotificationId::from_uuid(self.id),
            mode,
            idempotency_key: self.idempotency_key,
            category: self.category,
            class: word(&self.class)?,
            tags: self.tags,
            metadata: self.metadata,
            send_at: self.send_at.map(|at| at.0),
            expires_at: self.expires_at.0,
            deliveries,
        })
    }
}
