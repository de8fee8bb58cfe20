//! Claiming: a ring of tenants for each lane, due rows of each, the facts that decide about them; one judgement for all.
//! Who goes out by which account is the core's decision; this module is fair about who is looked at.

use std::collections::{HashMap, HashSet};

use sqlx::sqlite::SqliteConnection;
use sqlx::{query, query_scalar};
use tidings_core::ids::{AccountId, DeliveryId, LaneId, TenantId};
use tidings_core::judge::{Candidate, ClaimPlan, LanePlan, judge};
use tidings_core::policy::Rules;
use tidings_core::store::{Claimed, LaneSeen, StoreError};
use tidings_core::suppression::Hit;
use tidings_core::switches::Paused;
use tidings_core::time::Timestamp;
use tidings_core::words::AttemptOutcome;
use uuid::Uuid;

use crate::SCHEMA_VERSION;
use crate::apply::apply;
use crate::error::store_error;
use crate::order;
use crate::rows::{DeliveryRow, ids_json, json, number, open_rows, word};
use crate::suppressions::reach;

/// Tenants that one step of the ring finds.
const RING: usize = 16;
/// Steps of the ring in one claim, where tenants have nothing that is due yet.
const STEPS: usize = 8;

pub(crate) async fn claim(
    connection: &mut SqliteConnection,
    rules: &Rules,
    plan: &ClaimPlan,
    now: Timestamp,
) -> Result<Claimed, StoreError> {
    let mut rows = Vec::new();
    let mut lanes = Vec::with_capacity(plan.lanes.len());
    for lane in &plan.lanes {
        let (found, seen) = look(connection, lane, &plan.paused, now).await?;
        rows.extend(found);
        lanes.push(seen);
    }
    let candidates = with_facts(connection, plan, rows, now).await?;
    let changes = judge(rules, plan, &candidates, now);
    apply(connection, &changes, now).await?;

    Ok(Claimed::of(changes, lanes, now))
}

/// Due rows of one lane: a few of each tenant first, then more of those that have more.
async fn look(
    connection: &mut SqliteConnection,
    lane: &LanePlan,
    paused: &Paused,
    now: Timestamp,
) -> Result<(Vec<DeliveryRow>, LaneSeen), StoreError> {
    let limit = usize::from(lane.limit);
    let mut tenants = Vec::new();
    let mut more = Vec::new();
    let mut rows = Vec::new();
    let mut seen = LaneSeen { lane: lane.lane, candidates: 0, tenants: 0, cursor: lane.cursor };
    for _ in 0..STEPS {
        let found = ring(connection, lane, &tenants).await?;
        let share = match (tenants.len(), found.len()) {
            (0, 1) => limit,
            _ => (limit / 8).max(1),
        };
        for tenant in found.iter().filter(|tenant| !paused.tenants.contains(tenant)) {
            let cap = share.min(usize::from(lane.tenant_limit)).min(limit - rows.len());
            if cap == 0 {
                break;
            }
            let due = due_rows(connection, lane, paused, *tenant, (0, cap), now).await?;
            if due.len() == cap {
                more.push((*tenant, cap));
            }
            rows.extend(due);
            seen.cursor = Some(*tenant);
        }
        let is_round_complete = found.len() < RING;
        tenants.extend(found);
        if is_round_complete || rows.len() >= limit {
            break;
        }
    }
    for (tenant, had) in more {
        let cap = usize::from(lane.tenant_limit).saturating_sub(had).min(limit - rows.len());
        if cap > 0 {
            rows.extend(due_rows(connection, lane, paused, tenant, (had, cap), now).await?);
        }
    }
    seen.candidates = rows.len();
    seen.tenants = tenants.len().min(RING);
    Ok((rows, seen))
}

/// The next tenants with waiting rows after the last one looked at, round the ring's end, each once in a claim.
async fn ring(connection: &mut SqliteConnection, lane: &LanePlan, looked_at: &[TenantId]) -> Result<Vec<TenantId>, StoreError> {
    let start = lane.cursor.map_or(i32::MIN, |tenant| tenant.0);
    let last = looked_at.last().map_or(start, |tenant| tenant.0);
    let has_wrapped = !looked_at.is_empty() && last <= start;
    let mut found = Vec::new();
    if !has_wrapped {
        found = tenants_between(connection, lane, last, i32::MAX, RING).await?;
    }
    if found.len() < RING && lane.cursor.is_some() {
        let after = if has_wrapped { last } else { i32::MIN };
        found.extend(tenants_between(connection, lane, after, start, RING - found.len()).await?);
    }
    Ok(found)
}

/// Tenants with waiting rows in a lane, by jumping through the index from one to the next.
async fn tenants_between(
    connection: &mut SqliteConnection,
    lane: &LanePlan,
    after: i32,
    up_to: i32,
    limit: usize,
) -> Result<Vec<TenantId>, StoreError> {
    let limit = limit as i64;
    let tenants = query_scalar!(
        r#"WITH RECURSIVE ring (tenant_id, i) AS (
            SELECT (SELECT min(q.tenant_id) FROM queue q WHERE q.lane = ?1 AND q.available_at IS NOT NULL AND q.tenant_id > ?2), 1
            UNION ALL
            SELECT (SELECT min(q.tenant_id) FROM queue q WHERE q.lane = ?1 AND q.available_at IS NOT NULL AND q.tenant_id > ring.tenant_id), i + 1
            FROM ring WHERE ring.tenant_id IS NOT NULL AND i < ?4)
           SELECT tenant_id AS "tenant_id!: i32" FROM ring WHERE tenant_id <= ?3"#,
        lane.lane.0,
        after,
        up_to,
        limit
    );
    Ok(tenants.fetch_all(connection).await.map_err(store_error)?.into_iter().map(TenantId).collect())
}

/// Due rows of one tenant, oldest first. Rows are found by state and time alone, so one that was committed late is
/// found as well (S-023). Ties go by the order of arrival, as the index holds them.
async fn due_rows(
    connection: &mut SqliteConnection,
    lane: &LanePlan,
    paused: &Paused,
    tenant: TenantId,
    (skip, limit): (usize, usize),
    now: Timestamp,
) -> Result<Vec<DeliveryRow>, StoreError> {
    let (skip, limit) = (skip as i64, limit as i64);
    let categories = json(&paused.categories);
    let most_attempts = if paused.retries { 0 } else { i64::MAX };
    let (low, now) = (lane.low.map_or(i64::MIN, Timestamp::as_micros), now.as_micros());
    open_rows!(
        "FROM queue q CROSS JOIN lanes l ON l.id = q.lane
         WHERE q.lane = ?1 AND q.tenant_id = ?2 AND q.available_at >= ?3 AND q.available_at <= ?4 AND q.schema_version <= ?5
            AND q.attempt_count <= ?8 AND q.category NOT IN (SELECT value FROM json_each(?9))
         ORDER BY q.available_at, q.rowid LIMIT ?6 OFFSET ?7",
        lane.lane.0,
        tenant.0,
        low,
        now,
        SCHEMA_VERSION,
        limit,
        skip,
        most_attempts,
        categories
    )
    .fetch_all(connection)
    .await
    .map_err(store_error)
}

async fn with_facts(
    connection: &mut SqliteConnection,
    plan: &ClaimPlan,
    rows: Vec<DeliveryRow>,
    now: Timestamp,
) -> Result<Vec<Candidate>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut suppressed = suppressions(connection, &rows, now).await?;
    let inactive = inactive_tenants(connection, &rows).await?;
    let mut refusals = refusals(connection, plan, &rows).await?;
    let collapsed = order::collapsed(connection, &rows).await?;
    let mut candidates = Vec::with_capacity(rows.len());
    for row in rows {
        let id = row.id;
        if let Some(delivery) = row.readable() {
            candidates.push(Candidate {
                suppressions: suppressed.remove(&id).unwrap_or_default(),
                tenant_active: !inactive.contains(&delivery.tenant.0),
                refused_by: refusals.remove(&id).unwrap_or_default(),
                is_collapsed: collapsed.contains(&id),
                delivery,
            });
        }
    }
    Ok(candidates)
}

/// The suppressions of those that have some.
async fn suppressions(
    connection: &mut SqliteConnection,
    rows: &[DeliveryRow],
    now: Timestamp,
) -> Result<HashMap<Uuid, Vec<Hit>>, StoreError> {
    let (ids, now) = (ids_json(rows.iter().map(|row| DeliveryId::from_uuid(row.id))), now.as_micros());
    let found = query!(
        r#"SELECT q.id AS "id!: Uuid", s.id AS "suppression!: Uuid", s.scope AS "scope!"
           FROM json_each(?1) x CROSS JOIN queue q ON unhex(x.value) = q.id CROSS JOIN lanes l ON l.id = q.lane
            CROSS JOIN suppressions s ON s.tenant_id = q.tenant_id AND s.mode = q.mode AND s.channel = l.channel
                AND s.address_digest IN (q.address_digest, q.old_digest)
           WHERE s.expires_at IS NULL OR s.expires_at > ?2"#,
        ids,
        now
    );
    let mut suppressed: HashMap<Uuid, Vec<Hit>> = HashMap::new();
    for row in found.fetch_all(connection).await.map_err(store_error)? {
        suppressed.entry(row.id).or_default().push(Hit { id: row.suppression, scope: reach(&row.scope) });
    }
    Ok(suppressed)
}

/// Who refused candidates in their generation; asked only of those that were tried before and could go elsewhere.
async fn refusals(
    connection: &mut SqliteConnection,
    plan: &ClaimPlan,
    rows: &[DeliveryRow],
) -> Result<HashMap<Uuid, Vec<AccountId>>, StoreError> {
    let mut refusals: HashMap<Uuid, Vec<AccountId>> = HashMap::new();
    let is_choice = |row: &DeliveryRow| i32::try_from(row.lane).is_ok_and(|lane| plan.has_choice(LaneId(lane)));
    let tried: Vec<&DeliveryRow> = rows.iter().filter(|row| row.attempt_count > 0 && is_choice(row)).collect();
    if tried.is_empty() {
        return Ok(refusals);
    }
    let ids = ids_json(tried.iter().map(|row| DeliveryId::from_uuid(row.id)));
    let found = query!(
        r#"SELECT a.delivery_id AS "delivery_id!: Uuid", a.generation AS "generation!", a.account_id AS "account_id!", a.outcome AS "outcome!"
           FROM json_each(?1) x CROSS JOIN attempts a ON a.delivery_id = unhex(x.value) WHERE a.account_id IS NOT NULL"#,
        ids
    );
    for row in found.fetch_all(connection).await.map_err(store_error)? {
        let is_same = tried.iter().any(|tried| tried.id == row.delivery_id && tried.generation == row.generation);
        if is_same && word::<AttemptOutcome>(&row.outcome)?.refused_here() {
            refusals.entry(row.delivery_id).or_default().push(AccountId(number(row.account_id)?));
        }
    }
    Ok(refusals)
}

async fn inactive_tenants(connection: &mut SqliteConnection, rows: &[DeliveryRow]) -> Result<HashSet<i32>, StoreError> {
    let ids = json(&rows.iter().map(|row| row.tenant_id).collect::<HashSet<_>>());
    let found = query_scalar!(
        r#"SELECT t.id AS "id!: i32" FROM json_each(?1) x CROSS JOIN tenants t ON t.id = x.value WHERE t.state <> 'active'"#,
        ids
    );
    Ok(found.fetch_all(connection).await.map_err(store_error)?.into_iter().collect())
}
