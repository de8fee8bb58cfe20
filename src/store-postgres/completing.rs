//! Notifications of which nothing is open any more: found after the rows were written, told once. Called by `apply` alone.

use std::collections::HashMap;

use sqlx::PgConnection;
use tidings_core::delivery::Change;
use tidings_core::events::{Completion, Ended, completion};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::state::State;
use tidings_core::store::StoreError;
use uuid::Uuid;

use crate::error::before;
use crate::rows::word;

/// What these changes complete. Two transactions that end the last two deliveries of a notification at once would not see
/// each other: both lock its row first, and the second one then sees what the first did.
pub(crate) async fn completed<'a>(conn: &mut PgConnection, changes: &[&'a Change]) -> Result<Vec<Completion<'a>>, StoreError> {
    let ended = Ended::of(changes.iter().copied());
    let mut completed = ended.alone;
    if ended.among_others.is_empty() {
        return Ok(completed);
    }
    let ids: Vec<NotificationId> = ended.among_others.keys().copied().collect();
    lock(conn, &ids, &ended.among_others.values().map(|change| change.after.tenant.0).collect::<Vec<_>>()).await?;
    let states = states(conn, &ids).await?;
    completed.extend(ended.among_others.into_iter().filter_map(|(id, last)| completion(last, states.get(&id)?)));
    Ok(completed)
}

/// Locks notifications in the order of their ids.
async fn lock(conn: &mut PgConnection, ids: &[NotificationId], tenants: &[i32]) -> Result<(), StoreError> {
    sqlx::query_scalar!(
        "SELECT n.id FROM unnest($1::int[], $2::uuid[]) AS x (tenant_id, id)
         JOIN notifications n ON n.tenant_id = x.tenant_id AND n.id = x.id AND n.id = ANY($2)
         ORDER BY n.id FOR NO KEY UPDATE OF n",
        tenants,
        &ids.iter().map(|id| id.as_uuid()).collect::<Vec<_>>()[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    Ok(())
}

/// How all deliveries of these notifications stand, of those that have none in the queue: one range of the key for each,
/// whatever plan is kept.
async fn states(conn: &mut PgConnection, ids: &[NotificationId]) -> Result<HashMap<NotificationId, Vec<(State, i32)>>, StoreError> {
    let first: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let last: Vec<Uuid> = ids.iter().map(|id| id.last_delivery().as_uuid()).collect();
    let rows = sqlx::query!(
        r#"WITH over AS MATERIALIZED (
            SELECT x.first, x.last FROM unnest($1::uuid[], $2::uuid[]) AS x (first, last)
            WHERE NOT EXISTS (SELECT FROM queue q WHERE q.id > x.first AND q.id <= x.last))
         SELECT d.id, d.state, d.version FROM over CROSS JOIN LATERAL (
            SELECT d.id, d.state, d.version FROM deliveries d WHERE d.id > over.first AND d.id <= over.last OFFSET 0) d"#,
        &first[..],
        &last[..],
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    let mut states: HashMap<NotificationId, Vec<(State, i32)>> = HashMap::new();
    for row in rows {
        let Some(state) = row.state else { return Err(StoreError::Unreadable("an open record has no queue row".to_owned())) };
        states.entry(DeliveryId::from_uuid(row.id).notification()).or_default().push((word(&state)?, row.version));
    }
    Ok(states)
}

/// Erases the content that is not to outlive its notification (S-214).
pub(crate) async fn erase_sensitive(conn: &mut PgConnection, completed: &[Completion<'_>]) -> Result<(), StoreError> {
    let sensitive: Vec<Uuid> =
        completed.iter().filter(|completion| completion.erases_content()).map(|completion| completion.notification().as_uuid()).collect();
    if sensitive.is_empty() {
        return Ok(());
    }
    sqlx::query!("DELETE FROM contents WHERE id = ANY($1)", &sensitive[..]).execute(conn).await.map_err(before)?;
    Ok(())
}
