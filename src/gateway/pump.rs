//! Claims what is due as far as accounts have room, and hands it to `dispatch`. One pump per process.
//! It is woken by hints and polls regardless (S-024); which candidates go out is core's decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tidings_core::ids::{AccountId, InstanceId, LaneId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::policy::LEASE;
use tidings_core::store::Claimed;
use tidings_core::time::Clock as _;
use tidings_core::words::Class;

use crate::app::App;
use crate::dispatch::Dispatch;
use crate::metrics::Hop;
use crate::setup::Setup;
use lanes::{CLAIM_ROWS, Lane, group, lanes, turn};

mod lanes;

/// How long it may take to see which lanes have something that waits; then all are looked at.
const LOOK_LIMIT: Duration = Duration::from_millis(250);
/// How long to wait after a claim that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// See the module.
pub struct Pump {
    app: Arc<App>,
    dispatch: Arc<Dispatch>,
    instance: InstanceId,
    /// By which it plans: one claim goes by one configuration from its plan to its calls.
    setup: Arc<Setup>,
    /// Critical ones first.
    lanes: Vec<Lane>,
    /// When critical lanes are polled next, and the others.
    next_polls: [Instant; 2],
    claims: u64,
    paused: Arc<AtomicBool>,
}

impl Pump {
    /// A pump over all lanes of this process. While `paused` is set it claims nothing.
    pub fn new(app: Arc<App>, dispatch: Arc<Dispatch>, instance: InstanceId, paused: Arc<AtomicBool>) -> Self {
        let setup = app.setup();
        let lanes = lanes(&setup.routing, &[]);
        Self { app, dispatch, instance, setup, lanes, next_polls: [Instant::now(); 2], claims: 0, paused }
    }

    /// Runs until the process stops claiming.
    pub async fn run(mut self) {
        while !self.dispatch.is_stopping() {
            self.follow();
            self.poll().await;
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
            self.next_polls = [Instant::now(); 2];
            self.setup = setup;
        }
    }

    /// Marks, when it is time, the lanes in which something waits: one read tells which, so that lanes without cost no claim.
    async fn poll(&mut self) {
        let now = Instant::now();
        let is_due = self.next_polls.map(|at| at <= now);
        if is_due == [false; 2] {
            return;
        }
        let waiting = match tokio::time::timeout(LOOK_LIMIT, self.app.store.waiting_lanes()).await {
            Ok(Ok(waiting)) => Some(waiting),
            Ok(Err(_)) | Err(_) => None,
        };
        for lane in self.lanes.iter_mut().filter(|lane| is_due[group(lane.route.class)]) {
            lane.is_dirty |= waiting.as_ref().is_none_or(|waiting| waiting.contains(&lane.route.lane));
        }
        for (class, next) in [Class::Critical, Class::Bulk].into_iter().zip(&mut self.next_polls) {
            if is_due[group(class)] {
                *next = now + self.app.clock.real(poll_interval(class));
            }
        }
    }

    /// Marks the lanes that hints say are due; returns how long nothing else will be.
    fn mark_due(&mut self) -> Duration {
        let (clock_now, now) = (self.app.clock.now(), Instant::now());
        let (hinted, next) = self.app.wake.take_due(clock_now);
        for lane in self.lanes.iter_mut().filter(|lane| hinted.contains(&lane.route.lane)) {
            lane.is_dirty = true;
        }
        let until_hint = next.map_or(Duration::from_secs(1), |at| self.app.clock.real(at.since(clock_now)));
        let until_poll = self.next_polls.map(|at| at.saturating_duration_since(now));
        until_hint.min(until_poll[0]).min(until_poll[1]).max(Duration::from_millis(1))
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
        let paused = self.app.pauses.at(now, &self.setup.routing);
        let full: Vec<LaneId> = dirty.iter().filter(|lane| room(lane) == 0 && !lane.is_offered).map(|lane| lane.route.lane).collect();
        // A lane that is paused as a whole is not even looked at.
        let open = dirty.into_iter().filter(|lane| room(lane) > 0 && !paused.stops(lane.route.channel, lane.route.class)).collect();
        let mut lanes: Vec<LanePlan> = turn(open).into_iter().map(|lane| lane.plan(room(lane))).collect();
        if self.dispatch.slots.has_trial(&wanted, now) {
            // What tries a parked account is never a login code while anything else waits.
            lanes.reverse();
        }
        self.offer(&full);
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
        self.claims += 1;
        for lane in self.lanes.iter_mut().filter(|lane| asked.iter().any(|(asked, _)| *asked == lane.route.lane)) {
            lane.looked_at = self.claims;
        }
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

/// 1 s for critical, 2 s for others, each with 20% jitter.
fn poll_interval(class: Class) -> Duration {
    let base = match class {
        Class::Critical => Duration::from_secs(1),
        Class::Transactional | Class::Bulk => Duration::from_secs(2),
    };
    base.mul_f64(rand::rng().random_range(0.9..1.1))
}
