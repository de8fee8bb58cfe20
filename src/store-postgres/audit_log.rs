//! The audit log: rows are added in the transaction of what they tell, and never changed (S-217).

use sqlx::PgConnection;
use tidings_core::acts::AuditEntry;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;

use crate::error::before;
use crate::instant::At;

/// Adds rows in the caller's transaction.
pub(crate) async fn record(conn: &mut PgConnection, entries: &[AuditEntry], now: Timestamp) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO audit_log (at, tenant_id, actor, action, subject, detail)
         SELECT $1, x.tenant_id, x.actor, x.action, x.subject, x.detail::jsonb
         FROM unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::text[]) AS x (tenant_id, actor, action, subject, detail)",
        At(now),
        entries.iter().map(|entry| entry.tenant.map(|tenant| tenant.0)).collect::<Vec<_>>() as _,
        entries.iter().map(|entry| entry.actor.as_str()).collect::<Vec<_>>() as _,
        entries.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>() as _,
        entries.iter().map(|entry| entry.subject.as_str()).collect::<Vec<_>>() as _,
        entries.iter().map(|entry| entry.detail.as_str()).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}
