//! A key whose time is over changes hands (S-010): one transaction for each, which locks the holder, has core decide, and
//! puts the new notification in its place. Only those who were turned away come here, and of them only those whose
//! holder is old enough.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, PgConnection, Postgres, Transaction};
use tidings_core::ids::NotificationId;
use tidings_core::key_expiry::key_is_free;
use tidings_core::store::{Accepted, KeyHolder, NewNotification, StoreError};
use tidings_core::time::Timestamp;

use crate::PostgresStore;
use crate::accept::{holders, insert_keyed};
use crate::error::{before, committing};
use crate::instant::At;

/// Accepts `item` where the key of `holder` is free again; otherwise tells who holds it.
pub(crate) async fn take_over(
    store: &PostgresStore,
    item: &Arc<NewNotification>,
    holder: KeyHolder,
    patience: Duration,
    now: Timestamp,
) -> Result<Accepted, StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    if !remove_holder(&mut tx, item, holder.id).await? {
        // Somebody was quicker: the key has another holder now, or none where it was purged at this moment.
        let now_held = holders(&mut tx, &[item]).await?;
        if let Some(holder) = now_held.into_values().next() {
            return Ok(Accepted::KeyHeld(holder));
        }
    } else if !key_is_free(settled(&mut tx, holder.id).await?, now) {
        return Ok(Accepted::KeyHeld(holder));
    }
    insert_last(tx, item, patience, now).await
}

/// Accepts `item`, which was turned away, where the holder of its key was purged before it could be read.
pub(crate) async fn take_purged(
    store: &PostgresStore,
    item: &Arc<NewNotification>,
    patience: Duration,
    now: Timestamp,
) -> Result<Accepted, StoreError> {
    let mut conn = store.connection().await?;
    insert_last(conn.begin().await.map_err(before)?, item, patience, now).await
}

/// Inserts and commits; who comes in between has the key.
async fn insert_last(
    mut tx: Transaction<'_, Postgres>,
    item: &Arc<NewNotification>,
    patience: Duration,
    now: Timestamp,
) -> Result<Accepted, StoreError> {
    if insert_keyed(&mut tx, std::slice::from_ref(item), patience, now).await?.is_empty() {
        let holder = holders(&mut tx, &[item]).await?.into_values().next();
        return Ok(holder.map_or(Accepted::InProgress, Accepted::KeyHeld));
    }
    tx.commit().await.map_err(committing)?;
    Ok(Accepted::Taken)
}

/// Takes the key from this very holder: compare and swap. Of several at once one does; the others wait for its end.
async fn remove_holder(conn: &mut PgConnection, item: &NewNotification, holder: NotificationId) -> Result<bool, StoreError> {
    let removed = sqlx::query!(
        "DELETE FROM idempotency WHERE notification_id = $1 AND tenant_id = $2 AND mode = $3 AND idempotency_key = $4",
        holder.as_uuid(),
        item.tenant.0,
        item.mode.as_i16(),
        item.idempotency_key,
    );
    Ok(removed.execute(conn).await.map_err(before)?.rows_affected() == 1)
}

/// When the deliveries of a notification were settled; none of them is opened again while we look.
async fn settled(conn: &mut PgConnection, id: NotificationId) -> Result<Vec<Option<Timestamp>>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT settled_at AS "settled_at: At" FROM deliveries WHERE id > $1 AND id <= $2 FOR SHARE"#,
        id.as_uuid(),
        id.last_delivery().as_uuid(),
    );
    let rows = rows.fetch_all(conn).await.map_err(before)?;
    Ok(rows.into_iter().map(|row| row.settled_at.map(|at| at.0)).collect())
}
