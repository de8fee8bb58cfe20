//! Claims what is due as far as accounts have room, and hands it to `dispatch`. One pump per process.
//! It is woken by hints and polls regardless (S-024); which candidates go out is core's decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tidings_core::ids::{AccountId, InstanceId, LaneId, TenantId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::policy::LEASE;
use tidings_core::store::Claimed;
use tidings_core::time::Clock as _;
use tidings_core::words::Class;

use crate::app::App;
use crate::dispatch::Dispatch;
use crate::metrics::Hop;
use crate::routing::{Route, Routing};
use crate::setup::Setup;

/// Rows that one claim takes of a lane, at most.
const CLAIM_ROWS: u16 = 50;
/// How long to wait after a claim that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

struct Lane {
    route: Route,
    cursor: Option<TenantId>,
    /// How many tenants with waiting rows the ring found last time.
    tenants: usize,
    is_dirty: bool,
    /// Other processes were asked to look at it since it became dirty.
    is_offered: bool,
    /// Busy accounts that rows of the last page may have been kept for: room there makes it dirty.
    kept_for: Vec<AccountId>,
    next_poll: Instant,
}

/// See the module.
pub struct Pump {
    app: Arc<App>,
    dispatch: Arc<Dispatch>,
    instance: InstanceId,
    /// By which it plans: one claim goes by one configuration from its plan to its calls.
    setup: Arc<Setup>,
    lanes: Vec<Lane>,
    paused: Arc<AtomicBool>,
}

impl Pump {
    /// A pump over all lanes of this process. While `paused` is set it claims nothing.
    pub fn new(app: Arc<App>, dispatch: Arc<Dispatch>, instance: InstanceId, paused: Arc<AtomicBool>) -> Self {
        let setup = app.setup();
        let lanes = lanes(&setup.routing, &[]);
        Self { app, dispatch, instance, setup, lanes, paused }
    }

    /// Runs until the process stops claiming.
    pub async fn run(mut self) {
        while !self.dispatch.is_stopping() {
            self.follow();
            let until_next = self.mark_due();
            match self.plan() {
                Some(plan) => self.claim(plan).await,
                None => {
                    let wait = self.token_wait().map_or(until_next, |wait| wait.min(until_next));
                    tokio::select! {
                        () = self.app.wake.hinted() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Goes by the configuration in force.
    fn follow(&mut self) {
        let setup = self.app.setup();
        if !Arc::ptr_eq(&setup, &self.setup) {
            self.lanes = lanes(&setup.routing, &self.lanes);
            self.setup = setup;
        }
    }

    /// Marks the lanes that hints or the poll say are due; returns how long nothing else will be.
    fn mark_due(&mut self) -> Duration {
        let (clock_now, now) = (self.app.clock.now(), Instant::now());
        let (hinted, next) = self.app.wake.take_due(clock_now);
        let mut wait = next.map_or(Duration::from_secs(1), |at| self.app.clock.real(at.since(clock_now)));
        for lane in &mut self.lanes {
            if hinted.contains(&lane.route.lane) {
                lane.is_dirty = true;
            }
            if lane.next_poll <= now {
                lane.is_dirty = true;
                lane.next_poll = now + self.app.clock.real(poll_interval(lane.route.class));
            }
            wait = wait.min(lane.next_poll.saturating_duration_since(now));
        }
        wait.max(Duration::from_millis(1))
    }

    /// What to claim now; `None` where nothing is due or nobody has room.
    fn plan(&mut self) -> Option<ClaimPlan> {
        if self.paused.load(Ordering::Relaxed) {
            return None;
        }
        let now = self.app.clock.now();
        let mut wanted: Vec<AccountId> = Vec::new();
        for account in self.lanes.iter().filter(|lane| lane.has_work()).flat_map(|lane| &lane.route.accounts) {
            if !wanted.contains(&account.id) {
                wanted.push(account.id);
            }
        }
        if wanted.is_empty() {
            return None;
        }
        let accounts = self.dispatch.slots.capacity(&wanted, now);
        let free = |id: AccountId, class: Class| {
            accounts.iter().find(|capacity| capacity.account == id).map_or(0, |capacity| capacity.free_for(class))
        };
        for lane in &mut self.lanes {
            lane.is_dirty |= lane.kept_for.iter().any(|account| free(*account, lane.route.class) > 0);
        }
        let dirty: Vec<&Lane> = self.lanes.iter().filter(|lane| lane.is_dirty).collect();
        let room = |lane: &Lane| -> u16 {
            let of_each = lane.route.accounts.iter().map(|account| free(account.id, lane.route.class));
            of_each.fold(0, u16::saturating_add).min(CLAIM_ROWS)
        };
        let full: Vec<LaneId> = dirty.iter().filter(|lane| room(lane) == 0 && !lane.is_offered).map(|lane| lane.route.lane).collect();
        let mut lanes: Vec<LanePlan> = dirty.into_iter().filter(|lane| room(lane) > 0).map(|lane| plan_lane(lane, room(lane))).collect();
        if self.dispatch.slots.has_trial(&wanted, now) {
            // What tries a parked account is never a login code while anything else waits.
            lanes.reverse();
        }
        self.offer(&full);
        let paused = self.app.pauses.at(now, &self.setup.routing);
        // A lane that is paused as a whole is not even looked at.
        lanes.retain(|plan| {
            !self.lanes.iter().any(|lane| lane.route.lane == plan.lane && paused.stops(lane.route.channel, lane.route.class))
        });
        let (instance, sends_as, owners) = (self.instance, self.setup.sends_as.clone(), self.setup.routing.owners());
        (!lanes.is_empty()).then(|| ClaimPlan { instance, lease_until: now.plus(LEASE), lanes, accounts, sends_as, owners, paused })
    }

    /// Lets other processes know of lanes that this one has no room for, once.
    fn offer(&mut self, full: &[LaneId]) {
        if full.is_empty() {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| full.contains(&lane.route.lane)) {
            lane.is_offered = true;
        }
        self.app.wake.others(full);
    }

    async fn claim(&mut self, plan: ClaimPlan) {
        let asked: Vec<(LaneId, u16)> = plan.lanes.iter().map(|lane| (lane.lane, lane.limit)).collect();
        let rooms = plan.accounts.clone();
        match self.app.writer.claim(plan, self.setup.rules.clone()).await {
            Ok(claimed) => self.take(claimed, &asked, rooms),
            Err(error) => {
                // The keeper reports the store's state; the rows are found again by the poll, or by the reaper.
                tracing::debug!(error = %error, "claim failed");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }

    fn take(&mut self, claimed: Claimed, asked: &[(LaneId, u16)], mut rooms: Vec<AccountCapacity>) {
        for delivery in &claimed.dispatched {
            if let Some(room) = rooms.iter_mut().find(|room| Some(room.account) == delivery.account) {
                room.take(delivery.class);
            }
        }
        let mut kept = Vec::new();
        for seen in &claimed.lanes {
            let Some(lane) = self.lanes.iter_mut().find(|lane| lane.route.lane == seen.lane) else { continue };
            let limit = asked.iter().find(|(lane, _)| *lane == seen.lane).map_or(0, |(_, limit)| *limit);
            lane.cursor = seen.cursor;
            lane.tenants = seen.tenants;
            // Fewer than were asked for: nothing else is due. With several tenants each was capped, so look again. A page
            // of rows that all have to wait is left to the poll, which goes on behind it.
            let is_drained = seen.candidates < usize::from(limit) && seen.tenants <= 1;
            let has_moved = claimed.ended > 0 || claimed.dispatched.iter().any(|delivery| delivery.lane == seen.lane);
            lane.is_dirty = !is_drained && has_moved;
            lane.is_offered &= lane.is_dirty;
            let went = claimed.dispatched.iter().filter(|delivery| delivery.lane == seen.lane).count();
            if seen.candidates > went && !lane.is_dirty && lane.kept_for.is_empty() {
                kept.push(seen.lane);
            }
            lane.kept_for = if seen.candidates > went { lane.busy(&rooms) } else { Vec::new() };
        }
        // Rows that are kept for an account which is busy here: elsewhere it may have room.
        kept.retain(|kept| self.lanes.iter().any(|lane| lane.route.lane == *kept && !lane.kept_for.is_empty()));
        self.offer(&kept);
        self.measure(&claimed);
        if !claimed.dispatched.is_empty() {
            self.dispatch.begin(claimed.dispatched, &self.setup);
        }
    }

    fn measure(&self, claimed: &Claimed) {
        let metrics = &self.app.metrics;
        for (hop, count) in [("claim", claimed.suppressed.0), ("retry", claimed.suppressed.1)] {
            if count > 0 {
                metrics.suppressed_at.get_or_create(&Hop { hop }).inc_by(count);
            }
        }
        for (delivery, due) in claimed.dispatched.iter().zip(&claimed.due).filter(|(delivery, _)| delivery.attempt_number == 1) {
            if let (Some(route), Some(started_at)) = (self.setup.routing.of_lane(delivery.lane), delivery.attempt_started_at) {
                metrics.start_seconds.get_or_create(&route.labels()).observe(started_at.since(*due).as_secs_f64());
            }
        }
    }

    /// How long until an account with work has another token.
    fn token_wait(&self) -> Option<Duration> {
        let dirty = self.lanes.iter().filter(|lane| lane.is_dirty).flat_map(|lane| &lane.route.accounts);
        let kept_for = self.lanes.iter().flat_map(|lane| &lane.kept_for);
        self.dispatch.slots.token_wait(dirty.map(|account| account.id).chain(kept_for.copied()))
    }
}

impl Lane {
    /// Whether room at one of its accounts is of use to it.
    fn has_work(&self) -> bool {
        self.is_dirty || !self.kept_for.is_empty()
    }

    /// Those of its accounts that messages may have been drawn for and that had no room left in a claim.
    fn busy(&self, rooms: &[AccountCapacity]) -> Vec<AccountId> {
        let sharing = self.route.accounts.iter().zip(&self.route.weights).map(|(account, _)| account.id);
        let is_busy = |id: &AccountId| rooms.iter().any(|room| room.account == *id && room.is_merely_busy(self.route.class));
        sharing.filter(is_busy).collect()
    }
}

/// The lanes that somebody carries. All of them are looked at; what was known of their rings stays known.
fn lanes(routing: &Routing, known: &[Lane]) -> Vec<Lane> {
    let lane = |route: &Route| {
        let known = known.iter().find(|lane| lane.route.lane == route.lane);
        Lane {
            route: route.clone(),
            cursor: known.and_then(|lane| lane.cursor),
            tenants: known.map_or(1, |lane| lane.tenants),
            is_dirty: true,
            is_offered: false,
            kept_for: Vec::new(),
            next_poll: Instant::now(),
        }
    };
    routing.routes.iter().filter(|route| !route.accounts.is_empty()).map(lane).collect()
}

fn plan_lane(lane: &Lane, room: u16) -> LanePlan {
    // With weights, those in front may have to wait for an account that is busy while others find room.
    let limit = if lane.route.weights.is_empty() { room } else { CLAIM_ROWS };
    // One tenant alone may have it all; several share, and the ring goes on next time.
    let tenant_limit = if lane.tenants <= 1 { limit } else { (limit / 8).max(1) };
    LanePlan {
        lane: lane.route.lane,
        class: lane.route.class,
        route: lane.route.members(),
        limit,
        tenant_limit,
        cursor: lane.cursor,
        low: None,
    }
}

/// 1 s for critical, 2 s for others, each with 20% jitter.
fn poll_interval(class: Class) -> Duration {
    let base = match class {
        Class::Critical => Duration::from_secs(1),
        Class::Transactional | Class::Bulk => Duration::from_secs(2),
    };
    base.mul_f64(rand::rng().random_range(0.9..1.1))
}
