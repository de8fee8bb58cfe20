//! What has to happen regularly: leases renewed, timers of rows reached, the clock anchored, readiness proven.
//! Each job is safe to run at any time and on any number of instances (S-068); what a row becomes is core's decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidings_core::ids::InstanceId;
use tidings_core::policy::{HEARTBEAT, LEASE};
use tidings_core::state::State;
use tidings_core::store::{StoreError, Sweep, Swept};
use tidings_core::time::Clock as _;
use tokio_util::sync::CancellationToken;

use crate::accounts;
use crate::app::App;
use crate::clock::SKEW_LIMIT;
use crate::config::Role;
use crate::dispatch::Dispatch;
use crate::metrics::{By, Kind};
use crate::retention;
use crate::slots::news;

/// Rows of one sweep transaction; larger chunks would hold up the live path.
const SWEEP_ROWS: i64 = 100;
/// How often timers of rows are looked at: the reaper and the expiry of waiting rows.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How often holds are looked at; the shortest hold is 20 s.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How often it is seen that this process runs; a gap above `STOPPED` means that it was stopped for a while.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// A longer gap between two ticks is taken for a stop (SIGSTOP, a suspended machine).
const STOPPED: Duration = Duration::from_secs(5);
/// How often it is proven that the store can be written; a broken store shows within 5 s (S-228).
const PROVE_EVERY: Duration = Duration::from_secs(4);
/// How often open rows are counted; what is accepted in between is added.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// How often the auditor looks; each time at what was accepted since the last.
const AUDIT_EVERY: Duration = Duration::from_secs(3_600);
/// What one question of the auditor covers, so that none takes long.
const AUDIT_SLICE: Duration = Duration::from_secs(600);
/// Rows younger than this may be on their way; timers older than this should have been reached.
const AUDIT_MARGIN: Duration = Duration::from_secs(180);
/// How often it is seen whether the database's log has to be carried over.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// How often it is read what operators have paused: in force within two seconds everywhere (S-118).
const PAUSES_EVERY: Duration = Duration::from_secs(1);
/// How often it is seen whether another process made a lane, as one with another configuration does.
const LANES_EVERY: Duration = Duration::from_secs(5);
/// How often the clock is anchored to the database's.
const ANCHOR_EVERY: Duration = Duration::from_secs(60);

/// Runs all regular work of a process until it is cancelled.
pub struct Keeper {
    app: Arc<App>,
    dispatch: Arc<Dispatch>,
    instance: InstanceId,
    /// Stops the pump while leases cannot be renewed (S-032).
    pump_paused: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Keeper {
    /// A keeper that runs until `stop`.
    pub fn new(
        app: Arc<App>,
        dispatch: Arc<Dispatch>,
        instance: InstanceId,
        pump_paused: Arc<AtomicBool>,
        stop: CancellationToken,
    ) -> Self {
        Self { app, dispatch, instance, pump_paused, stop }
    }

    /// Starts every job that belongs to a role of this process.
    pub fn start(self) {
        let keeper = Arc::new(self);
        let job = |every: Duration, run: fn(Arc<Self>) -> futures_util::future::BoxFuture<'static, ()>| {
            let keeper = keeper.clone();
            tokio::spawn(async move {
                loop {
                    run(keeper.clone()).await;
                    tokio::select! {
                        () = keeper.app.clock.sleep(every) => {}
                        () = keeper.stop.cancelled() => return,
                    }
                }
            });
        };
        // What a process needs for itself, whatever else it does.
        tokio::spawn(keeper.clone().tick());
        job(PROVE_EVERY, |keeper| Box::pin(async move { keeper.prove().await }));
        job(LOG_EVERY, |keeper| Box::pin(async move { keeper.carry_log_over().await }));
        job(PAUSES_EVERY, |keeper| Box::pin(async move { keeper.see_pauses().await }));
        job(LANES_EVERY, |keeper| Box::pin(async move { keeper.see_lanes().await }));
        job(ANCHOR_EVERY, |keeper| Box::pin(async move { keeper.anchor().await }));
        let setup = keeper.app.setup();
        let roles = &setup.settings.server.roles;
        if roles.has(Role::Intake) {
            job(COUNT_EVERY, |keeper| Box::pin(async move { keeper.count_open().await }));
        }
        if roles.has(Role::Workers) {
            job(HEARTBEAT, |keeper| Box::pin(async move { keeper.renew().await }));
            tokio::spawn(news::run(keeper.app.clone(), keeper.instance, keeper.stop.clone()));
        }
        if roles.has(Role::Sweeps) {
            job(SWEEP_EVERY, |keeper| Box::pin(async move { keeper.sweep(&[Sweep::LeaseExpired, Sweep::PastExpiry]).await }));
            job(CHECK_EVERY, |keeper| Box::pin(async move { keeper.sweep(&[Sweep::ChecksDue]).await }));
            job(SWEEP_EVERY, |keeper| Box::pin(async move { keeper.skip_stuck().await }));
            job(AUDIT_EVERY, |keeper| Box::pin(async move { keeper.audit().await }));
            let (app, instance, stop) = (keeper.app.clone(), keeper.instance, keeper.stop.clone());
            tokio::spawn(retention::run(app, instance, stop));
        }
    }

    /// Renews the leases of running calls; a process that cannot makes no new ones.
    async fn renew(&self) {
        let running = self.dispatch.running();
        if running.is_empty() {
            // No lease is in danger: whether the store takes a claim is for the claim to find out.
            self.pump_paused.store(false, Ordering::Relaxed);
            return;
        }
        let now = self.app.clock.now();
        match self.app.store.renew(self.instance, &running, now.plus(LEASE), now).await {
            Ok(lost) => {
                self.pump_paused.store(false, Ordering::Relaxed);
                for id in lost {
                    self.app.metrics.fenced_writes.inc();
                    // Its outcome is still written when it comes, as late evidence (S-034).
                    tracing::warn!(delivery_id = %id, "the lease of a running call was lost");
                }
            }
            Err(error) => {
                if !self.pump_paused.swap(true, Ordering::Relaxed) {
                    tracing::error!(error = %error, "leases could not be renewed; no new calls are made");
                }
            }
        }
    }

    /// Sees that the process was stopped: its clock is anchored anew. Claims from before hand themselves back, since no
    /// first byte leaves later than a lease allows.
    async fn tick(self: Arc<Self>) {
        let mut last = Instant::now();
        while !self.stop.is_cancelled() {
            tokio::time::sleep(TICK_EVERY).await;
            let gap = last.elapsed();
            last = Instant::now();
            if gap > STOPPED {
                tracing::warn!(gap_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX), "the process was stopped for a while");
                self.anchor().await;
            }
        }
    }

    async fn sweep(&self, sweeps: &[Sweep]) {
        if self.app.pauses.is_frozen() {
            return;
        }
        for sweep in sweeps {
            loop {
                let now = self.app.clock.now();
                let swept = match self.app.store.sweep(&self.app.setup().rules, *sweep, SWEEP_ROWS, now).await {
                    Ok(swept) => swept,
                    Err(error) => {
                        tracing::debug!(sweep = ?sweep, error = %error, "sweep failed and is repeated");
                        break;
                    }
                };
                if !swept.is_empty() {
                    self.app.wake.arrived();
                }
                for moved in &swept {
                    self.count(*sweep, moved);
                    if moved.to.is_waiting() {
                        self.app.wake.lane(moved.lane, now);
                    }
                    if *sweep == Sweep::LeaseExpired || moved.to == State::Unknown {
                        tracing::warn!(delivery_id = %moved.id, from = %moved.from, to = %moved.to, "delivery moved without an answer from its provider");
                    }
                }
                if i64::try_from(swept.len()).unwrap_or(i64::MAX) < SWEEP_ROWS {
                    break;
                }
            }
        }
    }

    /// Counts what is open, for the limit on the queue's depth.
    async fn count_open(&self) {
        if let Ok(rows) = self.app.store.open_count().await {
            self.app.writer.count_open(rows);
        }
    }

    fn count(&self, sweep: Sweep, moved: &Swept) {
        let metrics = &self.app.metrics;
        match sweep {
            Sweep::LeaseExpired => {
                metrics.lease_expired.inc();
            }
            Sweep::ChecksDue if moved.from == State::Ambiguous && moved.to != State::Ambiguous => {
                let by = match moved.to {
                    State::Unknown => "hold",
                    State::Accepted | State::Delivered => "evidence",
                    _ => "resend",
                };
                metrics.ambiguous_resolved.get_or_create(&By { by }).inc();
            }
            Sweep::ChecksDue | Sweep::PastExpiry => {}
        }
    }

    async fn carry_log_over(&self) {
        if let Err(error) = self.app.store.keeping().carry_log_over().await {
            tracing::debug!(error = %chain(&error), "the log was not carried over; a commit does it when it has grown");
        }
    }

    async fn see_pauses(&self) {
        if let Err(error) = self.app.pauses.refresh(self.app.store.as_ref()).await {
            tracing::debug!(error = %error, "the switches could not be read and stay as they are");
        }
        // A tenant may be made by another process.
        if let Err(error) = accounts::learn_owners(&self.app.setup().routing, self.app.store.as_ref()).await {
            tracing::debug!(error = %error, "the tenants of accounts could not be read; it is tried again");
        }
    }

    /// Learns lanes that were made elsewhere: should nobody else be left, this process carries them as its configuration says.
    async fn see_lanes(&self) {
        let setup = self.app.setup();
        match accounts::learn_lanes(&setup, self.app.store.as_ref()).await {
            Ok(Some(learned)) => {
                // Should a reload have come in between, the next look is by that.
                self.app.in_force.compare_and_swap(&setup, Arc::new(learned));
                self.app.wake.look();
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(error = %error, "the lanes could not be read; it is tried again"),
        }
    }

    /// Lets successors of heads that are stuck go (S-078).
    async fn skip_stuck(&self) {
        if self.app.pauses.is_frozen() {
            return;
        }
        loop {
            let now = self.app.clock.now();
            let passed = match self.app.store.ordering().skip_stuck(SWEEP_ROWS, now).await {
                Ok(passed) => passed,
                Err(error) => {
                    tracing::debug!(error = %error, "stuck heads could not be passed; it is tried again");
                    return;
                }
            };
            if !passed.is_empty() {
                self.app.wake.arrived();
            }
            for next in &passed {
                tracing::warn!(delivery_id = %next.id, "delivery goes before an older one with its ordering_key, which is held up");
                self.app.wake.lane(next.lane, now);
            }
            if i64::try_from(passed.len()).unwrap_or(i64::MAX) < SWEEP_ROWS {
                return;
            }
        }
    }

    async fn prove(&self) {
        // After a reload the row follows with the next heartbeat.
        let digest = self.app.setup().settings.digest();
        let proven = self.app.store.prove_writable(self.instance, &digest, self.app.clock.now()).await;
        let was_down = self.app.readiness.store_down.swap(proven.is_err(), Ordering::Relaxed);
        match proven {
            Err(error) if !was_down => tracing::error!(error = %chain(&error), "the store cannot be written; not ready"),
            Err(_) => {}
            Ok(()) if was_down => {
                tracing::info!("the store can be written again");
                self.pump_paused.store(false, Ordering::Relaxed);
                self.anchor().await;
            }
            Ok(()) => {}
        }
    }

    /// Names every relation between rows that does not hold (S-031). Never repairs by itself: what broke it is not known.
    async fn audit(&self) {
        let until = self.app.clock.now().minus(AUDIT_MARGIN);
        let mut since = until.minus(AUDIT_EVERY + AUDIT_SLICE);
        while since < until && !self.stop.is_cancelled() {
            let end = since.plus(AUDIT_SLICE).min(until);
            match self.app.store.audit(since, end, until).await {
                Ok(findings) => {
                    for finding in findings {
                        let (violation, count) = (finding.violation.as_str(), finding.count);
                        self.app.metrics.invariant_violations.get_or_create(&Kind { kind: violation }).inc_by(count.unsigned_abs());
                        tracing::error!(violation, count, sample = %finding.sample.simple(), "stored rows contradict each other");
                    }
                }
                Err(error) => tracing::warn!(error = %chain(&error), "the audit could not be made"),
            }
            since = end;
        }
    }

    async fn anchor(&self) {
        if let Ok(Some(database)) = self.app.store.time().await {
            let skew = self.app.clock.anchor(database);
            let was_skewed = self.app.readiness.clock_skewed.swap(skew > SKEW_LIMIT, Ordering::Relaxed);
            if skew > SKEW_LIMIT && !was_skewed {
                tracing::warn!(skew_ms = u64::try_from(skew.as_millis()).unwrap_or(u64::MAX), "the clock was corrected to the database's");
            }
        }
    }
}

/// An error with its causes, for the one place that logs it.
pub fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
