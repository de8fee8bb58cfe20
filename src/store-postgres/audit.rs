//! The auditor's questions: rows that break a relation which no foreign key holds (S-031). When it asks, and who is told,
//! is the gateway's business.

use sqlx::query;
use tidings_core::ids::NotificationId;
use tidings_core::store::{Finding, StoreError, Violation};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::before;
use crate::instant::At;

pub(crate) async fn audit(
    store: &PostgresStore,
    since: Timestamp,
    until: Timestamp,
    overdue: Timestamp,
) -> Result<Vec<Finding>, StoreError> {
    let mut conn = store.connection().await?;
    let (first, last) = (NotificationId::first_at(since), NotificationId::first_at(until));
    let overdue = At(overdue);
    let mut findings = Vec::new();
    let mut note = |violation: Violation, count: i64, sample: Option<Uuid>| {
        findings.extend(sample.map(|sample| Finding { violation, count, sample }));
    };

    let found = query!(
        r#"SELECT count(*) AS "count!", (array_agg(q.id))[1] AS sample FROM queue q LEFT JOIN deliveries d ON d.id = q.id
           WHERE q.id BETWEEN $1 AND $2 AND (d.id IS NULL OR d.state IS NOT NULL)"#,
        first,
        last,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    note(Violation::OpenWithoutRecord, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!", (array_agg(d.id))[1] AS sample FROM deliveries d
           WHERE d.id BETWEEN $1 AND $2 AND d.state IS NULL AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.id = d.id)"#,
        first,
        last,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    note(Violation::RecordWithoutQueue, found.count, found.sample);

    // The first 29 of 32 digits are the notification's; the last three are the delivery's ordinal.
    let found = query!(
        r#"SELECT count(*) AS "count!", (array_agg(n.id))[1] AS sample FROM notifications n
           LEFT JOIN (SELECT left(replace(d.id::text, '-', ''), 29) AS stem, count(*) AS held FROM deliveries d WHERE d.id BETWEEN $1 AND $2 GROUP BY 1) x
             ON x.stem = left(replace(n.id::text, '-', ''), 29)
           WHERE n.id BETWEEN $1 AND $2 AND n.delivery_count <> COALESCE(x.held, 0)"#,
        first,
        last,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    note(Violation::DeliveriesMissing, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!", (array_agg(id))[1] AS sample FROM queue
           WHERE lease_expires_at IS NOT NULL AND lease_expires_at < $1"#,
        overdue,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    note(Violation::LeaseOverdue, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!", (array_agg(id))[1] AS sample FROM queue WHERE check_at IS NOT NULL AND check_at < $1"#,
        overdue,
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(before)?;
    note(Violation::HoldOverdue, found.count, found.sample);
    Ok(findings)
}
