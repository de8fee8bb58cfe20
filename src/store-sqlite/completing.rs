//! Notifications of which nothing is open any more: found after the rows were written, told once. Called by `apply` alone.

use std::collections::HashMap;

use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::delivery::Change;
use tidings_core::events::{Completion, Ended, completion};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::state::State;
use tidings_core::store::StoreError;
use uuid::Uuid;

use crate::error::store_error;
use crate::rows::{Hex, json, number, word};

/// What these changes complete. One writer writes, so nobody can end another delivery meanwhile.
pub(crate) async fn completed<'a>(connection: &mut SqliteConnection, changes: &'a [Change]) -> Result<Vec<Completion<'a>>, StoreError> {
    let ended = Ended::of(changes);
    let mut completed = ended.alone;
    if ended.among_others.is_empty() {
        return Ok(completed);
    }
    let states = states(connection, ended.among_others.keys().copied()).await?;
    completed.extend(ended.among_others.into_iter().filter_map(|(id, last)| completion(last, states.get(&id)?)));
    Ok(completed)
}

/// How all deliveries of these notifications stand, of those that have none in the queue.
async fn states(
    connection: &mut SqliteConnection,
    ids: impl Iterator<Item = NotificationId>,
) -> Result<HashMap<NotificationId, Vec<(State, i32)>>, StoreError> {
    let ranges = json(&ids.map(|id| (Hex::uuid(id.as_uuid()), Hex::uuid(id.last_delivery().as_uuid()))).collect::<Vec<_>>());
    let rows = query!(
        r#"WITH x AS MATERIALIZED (SELECT unhex(value->>0) AS first, unhex(value->>1) AS last FROM jsonb_each(?1)),
           over AS MATERIALIZED (SELECT x.* FROM x WHERE NOT EXISTS (SELECT 1 FROM queue q WHERE q.id > x.first AND q.id <= x.last))
           SELECT d.id AS "id!: Uuid", d.state AS "state?: String", d.version AS "version!: i64"
           FROM over CROSS JOIN deliveries d ON d.id > over.first AND d.id <= over.last"#,
        ranges
    );
    let mut states: HashMap<NotificationId, Vec<(State, i32)>> = HashMap::new();
    for row in rows.fetch_all(connection).await.map_err(store_error)? {
        let Some(state) = row.state else { return Err(StoreError::Unreadable("an open record has no queue row".to_owned())) };
        let id = DeliveryId::from_uuid(row.id).notification();
        states.entry(id).or_default().push((word(&state)?, number(row.version)?));
    }
    Ok(states)
}

/// Erases the content that is not to outlive its notification (S-214).
pub(crate) async fn erase_sensitive(connection: &mut SqliteConnection, completed: &[Completion<'_>]) -> Result<(), StoreError> {
    let sensitive: Vec<_> = completed
        .iter()
        .filter(|completion| completion.erases_content())
        .map(|completion| (completion.last.after.tenant.0, Hex::uuid(completion.notification().as_uuid())))
        .collect();
    if sensitive.is_empty() {
        return Ok(());
    }
    let sensitive = json(&sensitive);
    query!(
        "UPDATE notifications SET body = NULL
         FROM jsonb_each(?1) AS x WHERE notifications.tenant_id = x.value->>0 AND notifications.id = unhex(x.value->>1)",
        sensitive
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}
