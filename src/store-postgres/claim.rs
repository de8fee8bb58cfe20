//! Claiming: due rows of each lane in the plan, tenants in turn, locked and judged in one transaction (S-032, S-043).
//! Which of them go out is `judge`'s decision.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use tidings_core::crash::fail_point;
use tidings_core::ids::{AccountId, TenantId};
use tidings_core::judge::{Candidate, ClaimPlan, LanePlan, judge};
use tidings_core::policy::Rules;
use tidings_core::store::{Claimed, LaneSeen, StoreError};
use tidings_core::suppression::Hit;
use tidings_core::switches::Paused;
use tidings_core::time::Timestamp;
use tidings_core::words::AttemptOutcome;
use uuid::Uuid;

use crate::apply::{Written, apply};
use crate::error::{before, committing};
use crate::instant::At;
use crate::order;
use crate::rows::{OpenRow, open_rows, word};
use crate::suppressions::reach;
use crate::{PostgresStore, SCHEMA_VERSION};

/// How many tenants with due rows one look at the ring finds.
const RING: usize = 16;
/// How many tenants one look steps over, most of which have nothing due.
const RING_STEPS: i32 = 512;
/// How many looks one claim takes at a lane.
const RING_LOOKS: usize = 8;

/// Claims what the plan asks for and the judge clears.
pub(crate) async fn claim(store: &PostgresStore, rules: &Rules, plan: &ClaimPlan, now: Timestamp) -> Result<Claimed, StoreError> {
    let mut conn = store.mover().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    let mut due: Vec<Candidate> = Vec::new();
    let mut lanes = Vec::with_capacity(plan.lanes.len());
    for lane in &plan.lanes {
        lanes.push(look_at_lane(&mut tx, lane, &plan.paused, now, &mut due).await?);
    }
    if due.is_empty() {
        return Ok(Claimed { lanes, ..Claimed::default() });
    }
    ask_who_refused(&mut tx, plan, &mut due).await?;
    order::find_collapsed(&mut tx, &mut due).await?;
    let changes = judge(rules, plan, &due, now);
    let mut written = Written::default();
    apply(&mut tx, &changes, now, &mut written).await?;
    if !changes.is_empty() {
        fail_point("claim.before_commit");
    }
    tx.commit().await.map_err(committing)?;
    if !changes.is_empty() {
        fail_point("claim.after_commit");
    }
    Ok(Claimed::of(changes.into_iter().filter(|change| written.holds(change)), lanes, now))
}

/// Goes around the ring of tenants from the plan's cursor until the lane's limit is reached or everybody was seen: a few
/// rows of each tenant first, then more of those that have more.
async fn look_at_lane(
    conn: &mut PgConnection,
    lane: &LanePlan,
    paused: &Paused,
    now: Timestamp,
    due: &mut Vec<Candidate>,
) -> Result<LaneSeen, StoreError> {
    let limit = usize::from(lane.limit);
    let start = lane.cursor.map_or(i32::MIN, |tenant| tenant.0);
    let (mut after, mut until) = (start, i32::MAX);
    let mut seen = LaneSeen { lane: lane.lane, candidates: 0, tenants: 0, cursor: lane.cursor };
    let mut all: Vec<i32> = Vec::new();
    let mut found: Vec<Candidate> = Vec::new();
    let mut share = 0;
    for _ in 0..RING_LOOKS {
        let ring = ring(conn, lane, (after, until), now).await?;
        let tenants: Vec<i32> = ring
            .iter()
            .filter(|(tenant, is_due)| *is_due && !paused.tenants.contains(&TenantId(*tenant)))
            .map(|(tenant, _)| *tenant)
            .collect();
        let is_end = tenants.len() < RING && ring.len() < RING_STEPS as usize;
        let has_wrapped = until != i32::MAX || start == i32::MIN;
        let is_alone = all.is_empty() && tenants.len() == 1 && is_end && has_wrapped;
        share = if is_alone { lane.limit } else { (lane.limit / 8).max(1) }.min(lane.tenant_limit);
        let some = candidates(conn, lane, paused, &tenants, (share, limit - found.len()), &found, now).await?;
        found.extend(some);
        all.extend(tenants);
        seen.cursor =
            if is_end { found.last().map(|candidate| candidate.delivery.tenant) } else { ring.last().map(|(tenant, _)| TenantId(*tenant)) };
        if found.len() >= limit || (is_end && has_wrapped) {
            break;
        }
        // Past the end of the ring: on from its beginning, up to where we came in.
        (after, until) = if is_end { (i32::MIN, start) } else { (ring.last().map_or(after, |(tenant, _)| *tenant), until) };
    }
    if found.len() >= limit {
        seen.cursor = found.last().map(|candidate| candidate.delivery.tenant);
    } else if !found.is_empty() && share < lane.tenant_limit {
        let more = candidates(conn, lane, paused, &all, (lane.tenant_limit - share, limit - found.len()), &found, now).await?;
        found.extend(more);
    }
    seen.tenants = RING.min(all.len());
    seen.candidates = found.len();
    due.append(&mut found);
    Ok(seen)
}

/// The next tenants with waiting rows, in order, and whether their first row is due: one index probe for each.
async fn ring(
    conn: &mut PgConnection,
    lane: &LanePlan,
    (after, until): (i32, i32),
    now: Timestamp,
) -> Result<Vec<(i32, bool)>, StoreError> {
    let rows = sqlx::query!(
        r#"WITH RECURSIVE t (tenant_id, is_due, found, step) AS (
            SELECT $2::int, false, 0, 0
            UNION ALL
            SELECT n.tenant_id, n.is_due, t.found + n.is_due::int, t.step + 1
            FROM t CROSS JOIN LATERAL (
                SELECT q.tenant_id, q.available_at <= $4 AS is_due FROM queue q
                WHERE q.lane = $1 AND q.available_at IS NOT NULL AND q.tenant_id > t.tenant_id AND q.tenant_id <= $3
                ORDER BY q.tenant_id, q.available_at LIMIT 1) n
            WHERE t.found < $5 AND t.step < $6)
         SELECT tenant_id AS "tenant_id!", is_due AS "is_due!" FROM t WHERE step > 0 ORDER BY step"#,
        lane.lane.0,
        after,
        until,
        At(now),
        RING as i32,
        RING_STEPS,
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.is_due)).collect())
}

/// Due rows of these tenants that nobody else holds, `share` of each and `room` of all, locked; without those that we
/// have. Rows of a newer shape are left alone (S-231). With each come the facts that decide beside the row itself: the
/// suppressions of its address, and whether its tenant may send. Each is looked up by an equality, so that no plan reads
/// more than the rows that it finds.
async fn candidates(
    conn: &mut PgConnection,
    lane: &LanePlan,
    paused: &Paused,
    tenants: &[i32],
    (share, room): (u16, usize),
    found: &[Candidate],
    now: Timestamp,
) -> Result<Vec<Candidate>, StoreError> {
    if tenants.is_empty() || room == 0 {
        return Ok(Vec::new());
    }
    let found: Vec<Uuid> = found.iter().map(|candidate| candidate.delivery.id.as_uuid()).collect();
    let rows = open_rows!(
        "(SELECT t.state = 'active' FROM tenants t WHERE t.id = q.tenant_id) AS tenant_active, ARRAY(
            SELECT s.id::text || ' ' || s.scope FROM suppressions s
            WHERE s.tenant_id = q.tenant_id AND s.mode = q.mode AND s.channel = l.channel AND s.address_digest = q.address_digest
                AND (s.expires_at IS NULL OR s.expires_at > $4)
            UNION ALL
            SELECT s.id::text || ' ' || s.scope FROM suppressions s
            WHERE s.tenant_id = q.tenant_id AND s.mode = q.mode AND s.channel = l.channel AND s.address_digest = q.old_digest
                AND (s.expires_at IS NULL OR s.expires_at > $4)) AS suppressed ";
        "FROM unnest($2::int[]) AS t (tenant_id)
         CROSS JOIN LATERAL (
            SELECT * FROM queue q
            WHERE q.lane = $1 AND q.tenant_id = t.tenant_id AND q.available_at >= $3 AND q.available_at <= $4 AND q.schema_version <= $5
                AND q.id <> ALL($8) AND q.category <> ALL($9) AND q.attempt_count <= $10
            ORDER BY q.available_at, q.id LIMIT $6 FOR UPDATE SKIP LOCKED) q
         JOIN lanes l ON l.id = q.lane
         LIMIT $7",
        lane.lane.0,
        tenants,
        lane.low.map_or(At::ALWAYS, At),
        At(now),
        SCHEMA_VERSION,
        i64::from(share),
        room as i64,
        &found[..],
        &paused.categories[..],
        if paused.retries { 0 } else { i16::MAX },
    )
    .fetch_all(conn)
    .await
    .map_err(before)?;
    Ok(rows.into_iter().filter_map(candidate).collect())
}

fn candidate(mut row: OpenRow) -> Option<Candidate> {
    let suppressions = row.suppressed.take().unwrap_or_default().iter().map(|hit| read_hit(hit)).collect();
    // What is not known does not go out (S-220).
    let tenant_active = row.tenant_active.unwrap_or(false);
    row.readable().map(|delivery| Candidate { delivery, suppressions, tenant_active, refused_by: Vec::new(), is_collapsed: false })
}

/// Who refused candidates in their generation; asked only of those that were tried before and could go elsewhere.
async fn ask_who_refused(conn: &mut PgConnection, plan: &ClaimPlan, due: &mut [Candidate]) -> Result<(), StoreError> {
    let mut tried: HashMap<Uuid, &mut Candidate> = due
        .iter_mut()
        .filter(|candidate| candidate.delivery.attempt_count > 0 && plan.has_choice(candidate.delivery.lane))
        .map(|candidate| (candidate.delivery.id.as_uuid(), candidate))
        .collect();
    if tried.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = tried.keys().copied().collect();
    let rows = sqlx::query!(
        r#"SELECT delivery_id, generation, account_id AS "account_id!", outcome FROM attempts
         WHERE delivery_id = ANY($1) AND account_id IS NOT NULL"#,
        &ids[..],
    );
    for row in rows.fetch_all(conn).await.map_err(before)? {
        let Some(candidate) = tried.get_mut(&row.delivery_id) else { continue };
        let is_same = Ok(candidate.delivery.generation) == u16::try_from(row.generation);
        if is_same && word::<AttemptOutcome>(&row.outcome)?.refused_here() {
            candidate.refused_by.push(AccountId(row.account_id));
        }
    }
    Ok(())
}

/// `id scope`, as one text because the database has no arrays of pairs. What cannot be read reaches everybody (S-220).
fn read_hit(hit: &str) -> Hit {
    let (id, scope) = hit.split_once(' ').unwrap_or((hit, "all"));
    Hit { id: id.parse().unwrap_or_default(), scope: reach(scope) }
}
