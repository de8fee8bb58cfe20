//! Lists of notifications, one delivery by its id, and the content that was given.

use std::collections::HashMap;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{query, query_as};
use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::listing::{Seen, SeenDelivery};
use tidings_core::store::{Scan, StoreError, StoredContent, StoredDelivery, StoredNotification, Window};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::error::store_error;
use crate::read::{deliveries, gather};
use crate::rows::{Hex, ids_json, json, mode, number, word};

/// The ids of all deliveries of a notification.
pub(crate) fn ids_of(id: Uuid, delivery_count: i64) -> impl Iterator<Item = DeliveryId> {
    let id = NotificationId::from_uuid(id);
    (1..=u16::try_from(delivery_count).unwrap_or_default()).map(move |ordinal| id.delivery(ordinal))
}

/// The newest rows of a window, by the primary key.
pub(crate) async fn scan(readers: &SqlitePool, window: &Window) -> Result<Scan, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let limit = i64::try_from(window.rows).unwrap_or(i64::MAX);
    let rows = query!(
        r#"SELECT id AS "id!: Uuid", mode, category, tags, ref_digest, iif(?5, metadata, NULL) AS "metadata?: Vec<u8>", delivery_count
           FROM notifications WHERE tenant_id = ?1 AND id >= ?2 AND id < ?3 ORDER BY id DESC LIMIT ?4"#,
        window.tenant.0,
        window.from,
        window.before,
        limit,
        window.with_metadata
    );
    let mut rows = rows.fetch_all(&mut *snapshot).await.map_err(store_error)?;
    let is_full = rows.len() == window.rows;
    let mut fitting = rows.len();
    let mut facts = HashMap::new();
    if window.with_deliveries && !rows.is_empty() {
        fitting = Scan::fitting(rows.iter().map(|row| usize::try_from(row.delivery_count).unwrap_or_default()));
        let ids: Vec<DeliveryId> = rows[..fitting].iter().flat_map(|row| ids_of(row.id, row.delivery_count)).collect();
        facts = delivery_facts(&mut snapshot, &ids).await?;
    }
    snapshot.commit().await.map_err(store_error)?;
    let has_more = is_full || fitting < rows.len();
    rows.truncate(fitting);
    let reached = rows.last().map(|row| row.id).filter(|_| has_more);
    let seen = rows.into_iter().filter_map(|row| {
        let id = NotificationId::from_uuid(row.id);
        let deliveries = facts.remove(&id).unwrap_or_else(|| Ok(Vec::new()));
        let seen = deliveries.and_then(|deliveries| {
            Ok(Seen {
                id,
                mode: mode(row.mode)?,
                category: row.category,
                tags: tags(&row.tags)?,
                ref_digest: row.ref_digest,
                metadata: row.metadata,
                delivery_count: number(row.delivery_count)?,
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

fn tags(raw: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(raw).map_err(|err| StoreError::Unreadable(format!("tags: {err}")))
}

type Facts = HashMap<NotificationId, Result<Vec<SeenDelivery>, StoreError>>;

async fn delivery_facts(connection: &mut SqliteConnection, ids: &[DeliveryId]) -> Result<Facts, StoreError> {
    let ids = ids_json(ids.iter().copied());
    let rows = query!(
        r#"SELECT d.id AS "id!: Uuid", d.channel AS "channel!", coalesce(q.state, d.state) AS "state!: String", d.address_digest AS "digest!"
           FROM json_each(?1) x CROSS JOIN deliveries d ON d.id = unhex(x.value) LEFT JOIN queue q ON q.id = d.id ORDER BY d.id"#,
        ids
    );
    let mut facts = Facts::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let delivery =
            word(&row.channel).and_then(|channel| Ok(SeenDelivery { channel, state: word(&row.state)?, address_digest: row.digest }));
        gather(facts.entry(DeliveryId::from_uuid(row.id).notification()).or_insert_with(|| Ok(Vec::new())), delivery);
    }
    Ok(facts)
}

/// Several notifications of one moment, newest first.
pub(crate) async fn notifications(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    ids: &[NotificationId],
) -> Result<Vec<StoredNotification>, StoreError> {
    read(readers, tenant, mode, ids, None).await
}

/// A notification with this one of its deliveries alone.
pub(crate) async fn delivery(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    id: DeliveryId,
) -> Result<Option<StoredNotification>, StoreError> {
    let found = read(readers, tenant, mode, &[id.notification()], Some(id)).await?.pop();
    Ok(found.filter(|notification| !notification.deliveries.is_empty()))
}

async fn read(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    ids: &[NotificationId],
    only: Option<DeliveryId>,
) -> Result<Vec<StoredNotification>, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let (ids, mode_number) = (json(&ids.iter().map(|id| Hex::uuid(id.as_uuid())).collect::<Vec<_>>()), mode.as_i16());
    let rows = query_as!(
        NotificationRow,
        r#"SELECT n.id AS "id!: Uuid", n.idempotency_key AS "idempotency_key!", n.category AS "category!", n.class AS "class!",
            n.tags AS "tags!", n.metadata AS "metadata?", n.send_at AS "send_at?", n.expires_at AS "expires_at!",
            n.delivery_count AS "delivery_count!"
           FROM json_each(?2) x CROSS JOIN notifications n ON n.tenant_id = ?1 AND n.id = unhex(x.value) AND n.mode = ?3
           ORDER BY n.id DESC"#,
        tenant.0,
        ids,
        mode_number
    );
    let rows = rows.fetch_all(&mut *snapshot).await.map_err(store_error)?;
    let wanted: Vec<DeliveryId> = match only {
        Some(id) => vec![id],
        None => rows.iter().flat_map(|row| ids_of(row.id, row.delivery_count)).collect(),
    };
    let mut by_notification = deliveries(&mut snapshot, &wanted).await?;
    snapshot.commit().await.map_err(store_error)?;
    let stored = rows.into_iter().filter_map(|row| {
        let id = NotificationId::from_uuid(row.id);
        let deliveries = by_notification.remove(&id).unwrap_or_else(|| Ok(Vec::new()));
        readable(id, deliveries.and_then(|deliveries| row.into_notification(tenant, mode, deliveries)))
    });
    Ok(stored.collect())
}

/// The content of a notification, as long as it is kept.
pub(crate) async fn content(
    readers: &SqlitePool,
    tenant: TenantId,
    mode: Mode,
    id: NotificationId,
) -> Result<Option<StoredContent>, StoreError> {
    let (id, mode_number) = (id.as_uuid(), mode.as_i16());
    let row =
        query!("SELECT schema_version, body FROM notifications WHERE tenant_id = ?1 AND id = ?2 AND mode = ?3", tenant.0, id, mode_number);
    let row = row.fetch_optional(readers).await.map_err(store_error)?;
    row.map(|row| Ok(StoredContent { schema_version: number(row.schema_version)?, body: row.body })).transpose()
}

/// A row of `notifications`.
pub(crate) struct NotificationRow {
    pub(crate) id: Uuid,
    pub(crate) idempotency_key: String,
    pub(crate) category: String,
    pub(crate) class: String,
    pub(crate) tags: String,
    pub(crate) metadata: Option<Vec<u8>>,
    pub(crate) send_at: Option<i64>,
    pub(crate) expires_at: i64,
    pub(crate) delivery_count: i64,
}

impl NotificationRow {
    pub(crate) fn into_notification(
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
            tags: tags(&self.tags)?,
            metadata: self.metadata,
            send_at: self.send_at.map(Timestamp::from_micros),
            expires_at: Timestamp::from_micros(self.expires_at),
            deliveries,
        })
    }
}
