//! The audit log: rows are added in the transaction of what they tell, and never changed (S-217).

use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::acts::AuditEntry;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::error::store_error;
use crate::rows::json;

/// Adds rows in the caller's transaction.
pub(crate) async fn record(connection: &mut SqliteConnection, entries: &[AuditEntry], now: Timestamp) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| (entry.tenant.map(|tenant| tenant.0), &entry.actor, &entry.action, &entry.subject, &entry.detail))
        .collect();
    let (rows, now) = (json(&rows), now.as_micros());
    query!(
        "INSERT INTO audit_log (at, tenant_id, actor, action, subject, detail)
         SELECT ?2, x.value->>0, x.value->>1, x.value->>2, x.value->>3, x.value->>4 FROM json_each(?1) x",
        rows,
        now
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}
