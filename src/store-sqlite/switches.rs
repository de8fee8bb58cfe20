//! What operators have paused, and what each account has open.

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Connection as _, query, query_scalar};
use tidings_core::ids::{AccountId, TenantId};
use tidings_core::operational::{Setting, of_switch};
use tidings_core::store::{OpenCalls, StoreError, SwitchedBy};
use tidings_core::switches::{Scope, Switch};
use tidings_core::time::Timestamp;

use crate::error::{commit_error, store_error};
use crate::operational;

pub(crate) async fn switches(readers: &SqlitePool) -> Result<Vec<Switch>, StoreError> {
    let rows = query!(r#"SELECT scope, paused AS "paused: bool", until, reason, actor, version FROM switches ORDER BY scope"#);
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    // A scope of a newer binary stops what this one does not know.
    let switches = rows.into_iter().filter_map(|row| {
        Some(Switch {
            scope: row.scope.parse().ok()?,
            paused: row.paused,
            until: row.until.map(Timestamp::from_micros),
            reason: row.reason,
            actor: row.actor.unwrap_or_default(),
            version: row.version,
        })
    });
    Ok(switches.collect())
}

pub(crate) async fn set_switch(
    connection: &mut SqliteConnection,
    scope: &Scope,
    paused: bool,
    until: Option<Timestamp>,
    by: &SwitchedBy,
) -> Result<(), StoreError> {
    let (name, at) = (scope.to_string(), until.map(Timestamp::as_micros));
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(store_error)?;
    let earlier = setting(&mut tx, &name).await?;
    let written = query!(
        "INSERT INTO switches (scope, paused, until, reason, actor, version)
         VALUES (?1, ?2, ?3, ?4, ?5, (SELECT COALESCE(max(version), 0) + 1 FROM switches))
         ON CONFLICT (scope) DO UPDATE SET paused = excluded.paused, until = excluded.until, reason = excluded.reason,
            actor = excluded.actor, version = excluded.version
         WHERE switches.paused <> excluded.paused OR switches.until IS NOT excluded.until OR switches.reason IS NOT excluded.reason",
        name,
        paused,
        at,
        by.reason,
        by.actor
    )
    .execute(&mut *tx)
    .await
    .map_err(store_error)?;
    if written.rows_affected() > 0 {
        note(&mut tx, if paused { "switch.paused" } else { "switch.resumed" }, &name, by).await?;
        operational::tell(&mut tx, of_switch(scope, earlier, Some(Setting { paused, until }), by).as_slice()).await?;
    }
    tx.commit().await.map_err(commit_error)
}

async fn setting(connection: &mut SqliteConnection, scope: &str) -> Result<Option<Setting>, StoreError> {
    let row = query!(r#"SELECT paused AS "paused: bool", until AS "until?: i64" FROM switches WHERE scope = ?1"#, scope);
    let row = row.fetch_optional(connection).await.map_err(store_error)?;
    Ok(row.map(|row| Setting { paused: row.paused, until: row.until.map(Timestamp::from_micros) }))
}

pub(crate) async fn clear_switch(connection: &mut SqliteConnection, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
    let name = scope.to_string();
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(store_error)?;
    let earlier = setting(&mut tx, &name).await?;
    let removed = query!("DELETE FROM switches WHERE scope = ?1", name).execute(&mut *tx).await.map_err(store_error)?;
    let was_there = removed.rows_affected() > 0;
    if was_there {
        note(&mut tx, "switch.removed", &name, by).await?;
        operational::tell(&mut tx, of_switch(scope, earlier, None, by).as_slice()).await?;
    }
    tx.commit().await.map_err(commit_error)?;
    Ok(was_there)
}

pub(crate) async fn disabled_tenants(readers: &SqlitePool) -> Result<Vec<TenantId>, StoreError> {
    let rows = query_scalar!(r#"SELECT id AS "id!: i32" FROM tenants WHERE state = 'disabled'"#);
    Ok(rows.fetch_all(readers).await.map_err(store_error)?.into_iter().map(TenantId).collect())
}

pub(crate) async fn note(connection: &mut SqliteConnection, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
    let at = by.at.as_micros();
    query!(
        "INSERT INTO audit_log (at, actor, action, subject, detail) VALUES (?1, ?2, ?3, ?4, json_object('reason', ?5))",
        at,
        by.actor,
        action,
        subject,
        by.reason
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(commit_error)
}

pub(crate) async fn open_calls(readers: &SqlitePool) -> Result<Vec<OpenCalls>, StoreError> {
    let rows = query!(
        r#"SELECT account_id AS "account!: i32", sum(is_running) AS "in_flight!: i64", sum(1 - is_running) AS "ambiguous!: i64" FROM (
            SELECT account_id, 1 AS is_running FROM queue WHERE lease_expires_at IS NOT NULL
            UNION ALL SELECT account_id, 0 FROM queue WHERE check_at IS NOT NULL)
           WHERE account_id IS NOT NULL GROUP BY account_id ORDER BY account_id"#
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    Ok(rows
        .into_iter()
        .map(|row| OpenCalls { account: AccountId(row.account), in_flight: row.in_flight, ambiguous: row.ambiguous })
        .collect())
}
