//! Carries claimed deliveries to their adapters and their outcomes to the writer. No connection is held while a
//! provider is called; an outcome stays in memory, with its slot held, until it is committed (S-039).

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use rand::RngExt as _;
use tidings_core::adapter::{Crossing, Outgoing};
use tidings_core::content::Content;
use tidings_core::delivery::Delivery;
use tidings_core::ids::{AccountId, DeliveryId, Handle};
use tidings_core::outcome::{Outcome, Refusal, Report};
use tidings_core::policy::{LEASE, START_MARGIN};
use tidings_core::state::State;
use tidings_core::store::{StoreError, StoredOutgoing};
use tidings_core::time::{Clock as _, Timestamp};
use tidings_core::transition::{Finish, Found, Landed, RoutePosition};
use tidings_core::words::{Class, Reason};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::copies;
use crate::metrics::{Attempt, By, Cause, Hop};
use crate::routing::{Account, SANDBOX_ROUTE};
use crate::sealed::{self, Copies};
use crate::setup::Setup;
use crate::slots::{Charge, Slots, Turn};
use crate::writer::WriteError;

/// Why a call does not start whose account has no call left.
const USED_UP: &str = "the account's calls of the day left none for it";

/// The calls of this process.
pub struct Dispatch {
    app: Arc<App>,
    /// How busy and well the accounts are.
    pub slots: Arc<Slots>,
    running: Mutex<HashMap<DeliveryId, u16>>,
    tasks: TaskTracker,
    stop_claiming: AtomicBool,
    cut_off: CancellationToken,
    ambiguous_at_stop: AtomicU64,
}

/// One claimed delivery on its way.
struct Call {
    delivery: Delivery,
    /// By which it was claimed, whatever is in force when it ends.
    setup: Arc<Setup>,
    account: Arc<Account>,
    position: RoutePosition,
    /// The other accounts of the route that may send it.
    others: Vec<AccountId>,
    is_sandbox: bool,
    started_at: Timestamp,
    /// When it may start, where its account has a rate.
    turn: Option<Turn>,
    /// What it costs, where its account has a daily cap.
    charge: Option<Charge>,
}

impl Dispatch {
    /// Nothing is running yet.
    pub fn new(app: Arc<App>) -> Self {
        let slots = app.slots.clone();
        Self {
            app,
            slots,
            running: Mutex::default(),
            tasks: TaskTracker::new(),
            stop_claiming: AtomicBool::new(false),
            cut_off: CancellationToken::new(),
            ambiguous_at_stop: AtomicU64::new(0),
        }
    }

    /// Whether the pump is to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop_claiming.load(Ordering::Relaxed)
    }

    /// Starts a call for each of these rows, which are `dispatching` in our name and were claimed by `setup`.
    pub fn begin(self: &Arc<Self>, dispatched: Vec<Delivery>, setup: &Arc<Setup>) {
        let mut calls = Vec::with_capacity(dispatched.len());
        for delivery in dispatched {
            let Some(mut call) = self.resolve(delivery, setup) else { continue };
            call.turn = self.slots.begin(call.account.id, call.delivery.class);
            call.charge = self.slots.charge(call.account.id, call.delivery.class, &self.app.clock);
            self.lock().insert(call.delivery.id, call.delivery.attempt_number);
            calls.push(call);
        }
        let dispatch = self.clone();
        self.tasks.spawn(async move { dispatch.load(calls).await });
    }

    /// The calls that are running, for the renewal of their leases.
    pub fn running(&self) -> Vec<(DeliveryId, u16)> {
        self.lock().iter().map(|(id, epoch)| (*id, *epoch)).collect()
    }

    /// Stops claiming, gives running calls `grace`, cuts off the rest: what the provider cannot have taken is handed
    /// back, what it may have taken becomes `ambiguous`. Returns how many did (S-046).
    pub async fn stop(&self, grace: Duration) -> u64 {
        self.stop_claiming.store(true, Ordering::Relaxed);
        self.app.wake.look();
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            self.cut_off.cancel();
            // What is left has only its commit to wait for.
            let _ = tokio::time::timeout(Duration::from_secs(5), self.tasks.wait()).await;
        }
        self.ambiguous_at_stop.load(Ordering::Relaxed)
    }

    fn resolve(&self, delivery: Delivery, setup: &Arc<Setup>) -> Option<Call> {
        let route = setup.routing.of_lane(delivery.lane)?;
        let order = route.order(&delivery);
        let at = order.iter().position(|account| Some(account.id) == delivery.account)?;
        let may = |account: &&&Arc<Account>| account.is_on && account.may_carry(&delivery);
        let is_failover = order[..at].iter().any(|account| account.may_carry(&delivery));
        let (before, behind) = (&order[..at], &order[at + 1..]);
        let others: Vec<AccountId> = behind.iter().chain(before).filter(may).map(|account| account.id).collect();
        let has_later = behind.iter().filter(may).count() > 0;
        let position = RoutePosition { is_failover, has_other: !others.is_empty(), has_later };
        let started_at = delivery.attempt_started_at.unwrap_or_else(|| self.app.clock.now());
        let (account, is_sandbox) = (order[at].clone(), route.name == SANDBOX_ROUTE);
        Some(Call { setup: setup.clone(), account, position, others, is_sandbox, started_at, delivery, turn: None, charge: None })
    }

    /// Reads what the calls need, in one go, and starts them.
    async fn load(self: Arc<Self>, calls: Vec<Call>) {
        tidings_core::crash::fail_point("dispatch.before_call");
        let ids: Vec<DeliveryId> = calls.iter().map(|call| call.delivery.id).collect();
        let stored = self.app.store.outgoing(&ids).await;
        match stored {
            Ok(stored) => {
                let mut by_id: HashMap<DeliveryId, StoredOutgoing> = stored.into_iter().map(|stored| (stored.id, stored)).collect();
                for call in calls {
                    let stored = by_id.remove(&call.delivery.id);
                    let dispatch = self.clone();
                    self.tasks.spawn(async move { dispatch.call(call, stored).await });
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, rows = calls.len(), "claimed messages could not be read and are handed back");
                for call in calls {
                    let dispatch = self.clone();
                    self.tasks.spawn(async move { dispatch.finish(&call, Report::new(Outcome::NotStarted), None).await });
                }
            }
        }
    }

    /// One call from first to last: build, send, write.
    async fn call(self: Arc<Self>, mut call: Call, stored: Option<StoredOutgoing>) {
        let Some((mut outgoing, known)) = stored.as_ref().and_then(|stored| self.build(&call, stored)) else {
            let report = Report::new(Outcome::BuildFailed).with_detail("the stored message could not be read");
            return self.finish(&call, report, None).await;
        };
        if !may_send(&call.account, &outgoing) {
            // The row did not tell its author: what the judgement could not see is seen here.
            let refused = Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused };
            let report = Report::new(refused).with_detail("the account may not send as this author (sends_as)");
            return self.finish(&call, report, None).await;
        }
        let suppressed = match copies::suppressed(&self.app, &call.delivery, &outgoing.content).await {
            Ok(suppressed) => suppressed,
            Err(error) => {
                tracing::warn!(delivery_id = %call.delivery.id, error = %error, "suppressions of copies could not be read; the message is handed back");
                return self.finish(&call, Report::new(Outcome::NotStarted), None).await;
            }
        };
        if !suppressed.is_empty() {
            self.app.metrics.suppressed_at.get_or_create(&Hop { hop: "copy" }).inc_by(suppressed.len() as u64);
        }
        outgoing.left_out.extend_from_slice(&suppressed);
        if let Some(why) = self.waits_in_vain(&mut call).await {
            return self.finish(&call, Report::new(Outcome::NotStarted).with_detail(why), None).await;
        }
        let report = self.send(&call, outgoing).await;
        if let Some(charge) = &mut call.charge {
            charge.settle(&report.outcome);
        }
        let copies = Copies { suppressed, ..known.clone() }.after(&report);
        let changed = (copies != known).then(|| sealed::seal_copies(&self.app.keyring, call.delivery.id, &copies));
        self.finish(&call, report, changed).await;
    }

    /// Waits for the call's unit of the day and for its turn, unless we end before; why it may not start, if it may not.
    async fn waits_in_vain(&self, call: &mut Call) -> Option<&'static str> {
        let (mut charge, turn) = (call.charge.as_mut(), call.turn.take());
        let waiting = async {
            if let Some(charge) = &mut charge
                && !charge.came().await
            {
                return Some(USED_UP);
            }
            if let Some(turn) = turn
                && !turn.came().await
            {
                return Some("the account's rate had no room for it in time");
            }
            // The day may have ended, or the cap have been changed, meanwhile.
            charge.is_some_and(|charge| !charge.spend()).then_some(USED_UP)
        };
        tokio::select! {
            why = waiting => why,
            () = self.cut_off.cancelled() => Some("the process stopped before the message was sent"),
        }
    }

    fn build(&self, call: &Call, stored: &StoredOutgoing) -> Option<(Outgoing, Copies)> {
        let (app, delivery) = (&self.app, &call.delivery);
        let content = sealed::open_content(&app.keyring, delivery.id.notification(), stored.body.as_deref()?).ok()?;
        let address = sealed::open_address(&app.keyring, delivery.id, &stored.address).ok()?;
        let copies = match &stored.copies {
            Some(copies) => sealed::open_copies(&app.keyring, delivery.id, copies).ok()?,
            None => Copies::default(),
        };
        let outgoing = Outgoing {
            handle: Handle { delivery: delivery.id, generation: delivery.generation },
            tenant: delivery.tenant,
            mode: delivery.mode,
            notification: delivery.id.notification(),
            idempotency_key: stored.idempotency_key.clone(),
            class: delivery.class,
            to: address.mailbox,
            content: Arc::new(content),
            message_id: stored.message_id.clone()?,
            date: call.started_at,
            left_out: copies.left_out(),
            expires_at: delivery.expires_at,
            patience: call.setup.rules.of(delivery.class).ambiguity.patience,
            start_before: call.started_at.plus(LEASE).minus(START_MARGIN),
            crossing: Crossing::default(),
        };
        Some((outgoing, copies))
    }

    /// Calls the adapter. A panic in it, or our own end, yields an outcome too: which one depends on whether the provider
    /// may have taken the message by then (S-040, S-102).
    async fn send(&self, call: &Call, outgoing: Outgoing) -> Report {
        let sending = AssertUnwindSafe(call.account.adapter.send(&outgoing)).catch_unwind();
        let ended = tokio::select! {
            ended = sending => Some(ended),
            () = self.cut_off.cancelled() => None,
        };
        let may_be_taken = outgoing.crossing.is_passed();
        match ended {
            Some(Ok(report)) => report,
            Some(Err(_)) => {
                tracing::error!(delivery_id = %call.delivery.id, account = call.account.name, "the adapter panicked");
                let outcome = if may_be_taken { Outcome::Ambiguous } else { Outcome::BuildFailed };
                Report::new(outcome).with_detail("the adapter panicked")
            }
            None if may_be_taken => {
                self.ambiguous_at_stop.fetch_add(1, Ordering::Relaxed);
                Report::new(Outcome::Ambiguous).with_detail("the process stopped before the provider answered")
            }
            None => Report::new(Outcome::NotStarted).with_detail("the process stopped before the message was sent"),
        }
    }

    /// Writes the outcome, however long the store takes; then the slot is free.
    async fn finish(&self, call: &Call, report: Report, copies: Option<Vec<u8>>) {
        let (app, delivery, account) = (&self.app, &call.delivery, &call.account);
        let now = app.clock.now();
        tidings_core::crash::fail_point("dispatch.before_finish");
        self.slots.learn(account.id, &report.outcome, now);
        log_outcome(call, &report);
        self.count(call, &report, now);
        let finish = Finish {
            id: delivery.id,
            number: delivery.attempt_number,
            generation: delivery.generation,
            account: account.id,
            started_at: call.started_at,
            finished_at: now,
            copies,
            of_copies: copies::suppressed_by(app, delivery, &report),
            report,
            jitter: rand::rng().random_range(0.0..1.0),
            position: call.position,
            others: call.others.clone(),
            receipt_window: None,
            sandbox: call.is_sandbox,
            match_key: None,
        };
        self.write(finish, account.id, delivery.class).await;
        self.lock().remove(&delivery.id);
        self.slots.end(account.id, delivery.class);
        app.wake.look();
    }

    async fn write(&self, finish: Finish, account: AccountId, class: Class) {
        let app = &self.app;
        let mut pause = Duration::from_millis(100);
        loop {
            match app.writer.finish(finish.clone()).await {
                Ok(Landed::Moved(after, found)) => {
                    self.count_found(found);
                    if let Some(at) = after.available_at.filter(|_| after.state != State::Dispatching) {
                        app.wake.lane(after.lane, at);
                    } else if after.is_ordered && !after.state.is_open() {
                        // Its successor may go now, most likely in the same lane.
                        app.wake.lane(after.lane, app.clock.now());
                    }
                    return;
                }
                Ok(Landed::Already) => return,
                Ok(Landed::Gone) => {
                    tracing::warn!(delivery_id = %finish.id, "the outcome of a purged delivery came in");
                    return;
                }
                Ok(Landed::Fenced) => {
                    app.metrics.fenced_writes.inc();
                }
                Err(WriteError::Stopped) => return,
                Err(WriteError::Store(error @ (StoreError::Refused(_) | StoreError::Unreadable(_)))) => {
                    // Nobody can mend this by waiting: the reaper will call the row ambiguous.
                    tracing::error!(delivery_id = %finish.id, attempt = finish.number, error = %error, "an outcome could not be written");
                    return;
                }
                Err(error) => {
                    tracing::debug!(delivery_id = %finish.id, error = %error, account = account.0, class = %class, "outcome kept until the store is back")
                }
            }
            app.clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    fn count(&self, call: &Call, report: &Report, now: Timestamp) {
        let metrics = &self.app.metrics;
        let (account, class) = (call.account.name.clone(), call.delivery.class.as_str());
        let kind = if call.delivery.attempt_count == 0 { "first" } else { "retry" };
        metrics.attempts.get_or_create(&Attempt { account, class, outcome: report.outcome.word().as_str(), kind }).inc();
        let is_accepted = matches!(report.outcome, Outcome::Accepted { .. });
        if let Some(route) = call.setup.routing.of_lane(call.delivery.lane).filter(|_| is_accepted) {
            metrics.send_seconds.get_or_create(&route.labels()).observe(now.since(call.started_at).as_secs_f64());
        }
    }

    fn count_found(&self, found: Found) {
        let metrics = &self.app.metrics;
        if found.is_late {
            metrics.late_results.inc();
        }
        if found.resolves {
            metrics.ambiguous_resolved.get_or_create(&By { by: "late_result" }).inc();
        }
        if found.is_duplicate {
            let cause = if found.is_late { "late_acceptance" } else { "second_acceptance" };
            metrics.duplicate_sent.get_or_create(&Cause { cause }).inc();
        }
        if found.is_listed {
            metrics.suppressed_at.get_or_create(&Hop { hop: "provider" }).inc();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<DeliveryId, u16>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_send(account: &Account, outgoing: &Outgoing) -> bool {
    match &*outgoing.content {
        Content::Email(email) => account.may_send_as(&email.from.email),
    }
}

/// One line per outcome, never with an address or content: `info` for what went as it should or will be tried again.
fn log_outcome(call: &Call, report: &Report) {
    let (delivery, outcome) = (&call.delivery, report.outcome.word());
    let (code, detail) = (report.code.as_deref().unwrap_or_default(), report.detail.as_deref().unwrap_or_default());
    match &report.outcome {
        Outcome::Accepted { .. } => {
            tracing::info!(delivery_id = %delivery.id, attempt = delivery.attempt_number, account = call.account.name, code, "delivery accepted");
        }
        Outcome::Credential => {
            tracing::error!(delivery_id = %delivery.id, account = call.account.name, code, detail, "the account's credential was refused; the account is parked");
        }
        Outcome::Ambiguous => {
            tracing::warn!(delivery_id = %delivery.id, attempt = delivery.attempt_number, account = call.account.name, code, detail, "delivery ambiguous");
        }
        _ => {
            tracing::info!(delivery_id = %delivery.id, attempt = delivery.attempt_number, account = call.account.name, outcome = %outcome, code, detail, "delivery not taken");
        }
    }
}
