//! The auditor's questions: rows that break a relation which no foreign key holds (S-031). When it asks, and who is told,
//! is the gateway's business.

use sqlx::{SqlitePool, query};
use tidings_core::ids::NotificationId;
use tidings_core::store::{Finding, StoreError, Violation};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::error::store_error;

pub(crate) async fn audit(
    readers: &SqlitePool,
    since: Timestamp,
    until: Timestamp,
    overdue: Timestamp,
) -> Result<Vec<Finding>, StoreError> {
    let (first, last, overdue) = (NotificationId::first_at(since), NotificationId::first_at(until), overdue.as_micros());
    let mut findings = Vec::new();
    let mut note = |violation: Violation, count: i64, sample: Option<Uuid>| {
        findings.extend(sample.map(|sample| Finding { violation, count, sample }));
    };

    let found = query!(
        r#"SELECT count(*) AS "count!: i64", min(q.id) AS "sample: Uuid" FROM queue q LEFT JOIN deliveries d ON d.id = q.id
           WHERE q.id BETWEEN ?1 AND ?2 AND (d.id IS NULL OR d.state IS NOT NULL)"#,
        first,
        last,
    )
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    note(Violation::OpenWithoutRecord, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!: i64", min(d.id) AS "sample: Uuid" FROM deliveries d
           WHERE d.id BETWEEN ?1 AND ?2 AND d.state IS NULL AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.id = d.id)"#,
        first,
        last,
    )
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    note(Violation::RecordWithoutQueue, found.count, found.sample);

    // The first 29 of 32 digits are the notification's; the last three are the delivery's ordinal. Tenants are those of
    // the notifications themselves, found one by one in the primary key.
    let found = query!(
        r#"WITH RECURSIVE t (id) AS (
             SELECT min(tenant_id) FROM notifications
             UNION ALL SELECT (SELECT min(n.tenant_id) FROM notifications n WHERE n.tenant_id > t.id) FROM t WHERE t.id IS NOT NULL)
           SELECT count(*) AS "count!: i64", min(n.id) AS "sample: Uuid"
           FROM t CROSS JOIN notifications n ON n.tenant_id = t.id AND n.id BETWEEN ?1 AND ?2
           LEFT JOIN (SELECT substr(hex(d.id), 1, 29) AS stem, count(*) AS held FROM deliveries d WHERE d.id BETWEEN ?1 AND ?2 GROUP BY 1) x
             ON x.stem = substr(hex(n.id), 1, 29)
           WHERE n.delivery_count <> COALESCE(x.held, 0)"#,
        first,
        last,
    )
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    note(Violation::DeliveriesMissing, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!: i64", min(id) AS "sample: Uuid" FROM queue
           WHERE lease_expires_at IS NOT NULL AND lease_expires_at < ?1"#,
        overdue,
    )
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    note(Violation::LeaseOverdue, found.count, found.sample);

    let found = query!(
        r#"SELECT count(*) AS "count!: i64", min(id) AS "sample: Uuid" FROM queue WHERE check_at IS NOT NULL AND check_at < ?1"#,
        overdue,
    )
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    note(Violation::HoldOverdue, found.count, found.sample);
    Ok(findings)
}
