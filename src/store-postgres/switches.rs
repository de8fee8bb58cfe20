//! What operators have paused, and what each account has open.

use sqlx::{Connection as _, PgConnection};
use tidings_core::ids::{AccountId, TenantId};
use tidings_core::operational::{Setting, of_switch};
use tidings_core::store::{OpenCalls, StoreError, SwitchedBy};
use tidings_core::switches::{Scope, Switch};
use tidings_core::time::Timestamp;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::{At, at};
use crate::operational;

/// Every switch.
pub(crate) async fn switches(store: &PostgresStore) -> Result<Vec<Switch>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"SELECT scope AS "scope!", paused AS "paused!", until AS "until: At", reason, actor AS "actor!", version AS "version!"
         FROM switches ORDER BY scope COLLATE "C""#
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    // A scope of a newer binary stops what this one does not know.
    let switches = rows.into_iter().filter_map(|row| {
        Some(Switch {
            scope: row.scope.parse().ok()?,
            paused: row.paused,
            until: row.until.map(|until| until.0),
            reason: row.reason,
            actor: row.actor,
            version: row.version,
        })
    });
    Ok(switches.collect())
}

/// Sets the switch of a scope.
pub(crate) async fn set_switch(
    store: &PostgresStore,
    scope: &Scope,
    paused: bool,
    until: Option<Timestamp>,
    by: &SwitchedBy,
) -> Result<(), StoreError> {
    let name = scope.to_string();
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let earlier = setting(&mut tx, &name).await?;
    let written = sqlx::query!(
        "INSERT INTO switches AS s (scope, paused, until, reason, actor, version)
         VALUES ($1, $2, $3, $4, $5, (SELECT COALESCE(max(version), 0) + 1 FROM switches))
         ON CONFLICT (scope) DO UPDATE SET paused = excluded.paused, until = excluded.until, reason = excluded.reason,
            actor = excluded.actor, version = excluded.version
         WHERE (s.paused, s.until, s.reason) IS DISTINCT FROM (excluded.paused, excluded.until, excluded.reason)",
        name,
        paused,
        at(until) as _,
        by.reason,
        by.actor,
    )
    .execute(&mut *tx)
    .await
    .map_err(before)?;
    if written.rows_affected() > 0 {
        note_in(&mut tx, if paused { "switch.paused" } else { "switch.resumed" }, &name, by).await?;
        operational::tell(&mut tx, of_switch(scope, earlier, Some(Setting { paused, until }), by).as_slice(), &mut 0).await?;
    }
    tx.commit().await.map_err(committing)
}

/// How the switch stands, as whoever changes it sees it: one after the other, also where there is none yet. Readers go on.
async fn setting(conn: &mut PgConnection, scope: &str) -> Result<Option<Setting>, StoreError> {
    sqlx::query!("LOCK TABLE switches IN SHARE ROW EXCLUSIVE MODE").execute(&mut *conn).await.map_err(before)?;
    let row = sqlx::query!(r#"SELECT paused, until AS "until: At" FROM switches WHERE scope = $1"#, scope);
    let row = row.fetch_optional(conn).await.map_err(before)?;
    Ok(row.map(|row| Setting { paused: row.paused, until: row.until.map(|until| until.0) }))
}

/// Removes the switch of a scope.
pub(crate) async fn clear_switch(store: &PostgresStore, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
    let name = scope.to_string();
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let earlier = setting(&mut tx, &name).await?;
    let removed = sqlx::query!("DELETE FROM switches WHERE scope = $1", name).execute(&mut *tx).await.map_err(before)?;
    let was_there = removed.rows_affected() > 0;
    if was_there {
        note_in(&mut tx, "switch.removed", &name, by).await?;
        operational::tell(&mut tx, of_switch(scope, earlier, None, by).as_slice(), &mut 0).await?;
    }
    tx.commit().await.map_err(committing)?;
    Ok(was_there)
}

/// The tenants that are disabled.
pub(crate) async fn disabled_tenants(store: &PostgresStore) -> Result<Vec<TenantId>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query_scalar!("SELECT id FROM tenants WHERE state = 'disabled'").fetch_all(&mut *conn).await.map_err(before)?;
    Ok(rows.into_iter().map(TenantId).collect())
}

/// Notes an act.
pub(crate) async fn note(store: &PostgresStore, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
    note_in(&mut *store.connection().await?, action, subject, by).await
}

async fn note_in(conn: &mut PgConnection, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO audit_log (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, jsonb_build_object('reason', $5::text))",
        At(by.at),
        by.actor,
        action,
        subject,
        by.reason,
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(committing)
}

/// What the accounts have open.
pub(crate) async fn open_calls(store: &PostgresStore) -> Result<Vec<OpenCalls>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"SELECT account_id AS "account!", sum(is_running) AS "in_flight!", sum(1 - is_running) AS "ambiguous!" FROM (
            SELECT account_id, 1 AS is_running FROM queue WHERE lease_expires_at IS NOT NULL
            UNION ALL SELECT account_id, 0 FROM queue WHERE check_at IS NOT NULL) q
         WHERE account_id IS NOT NULL GROUP BY account_id ORDER BY account_id"#
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(before)?;
    Ok(rows
        .into_iter()
        .map(|row| OpenCalls { account: AccountId(row.account), in_flight: row.in_flight, ambiguous: row.ambiguous })
        .collect())
}
