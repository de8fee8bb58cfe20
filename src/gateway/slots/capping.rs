//! The calls of a capped account's day are drawn from the count that all processes share, apart from the calls that need them
//! (S-086, S-090). When how much is drawn is decided in `core::pool`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidings_core::daily::Day;
use tidings_core::ids::AccountId;
use tidings_core::pool::{Ask, Need, Pool, Rest};
use tidings_core::store::{Store, StoreError};
use tidings_core::time::Timestamp;
use tidings_core::words::Class;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Slots;
use crate::app::App;
use crate::metrics::Limiter;
use crate::routing::Account;

/// A draw that takes longer has failed.
const DRAW_LIMIT: Duration = Duration::from_secs(1);
/// How often it is looked whether units are missing, whatever wakes the drawer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The bells of drawer and calls.
#[derive(Default)]
pub(super) struct Bells {
    /// Units came, or it is known that there are none.
    pub(super) came: Notify,
    /// Units are missing.
    pub(super) wanted: Notify,
}

/// How much of its day an account has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capped {
    /// Whose day.
    pub account: AccountId,
    /// Calls in a day.
    pub cap: i64,
    /// The present day.
    pub day: Day,
    /// How many are used. What other processes hold counts as used.
    pub used: i64,
    /// What this process holds and has not used, though the count says so.
    held: i64,
}

impl Capped {
    /// The same, with what the store counts of these days.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn counted(mut capped: Vec<Self>, store: &dyn Store) -> Result<Vec<Self>, StoreError> {
        let days: Vec<(String, Timestamp)> = capped.iter().map(|capped| (key(capped.account), capped.day.start)).collect();
        let counts = if days.is_empty() { Vec::new() } else { store.quotas().calls_used(&days).await? };
        for (capped, count) in capped.iter_mut().zip(counts) {
            capped.used = (count - capped.held).max(0);
        }
        Ok(capped)
    }
}

impl Slots {
    /// The days of those of these accounts that have a cap.
    pub fn capped<'a>(&self, accounts: impl Iterator<Item = &'a Arc<Account>>, now: Timestamp) -> Vec<Capped> {
        let capped = |account: &Arc<Account>| {
            self.with_pool(account.id, |pool| {
                let day = pool.cap().day(now);
                let held = if day == pool.day() { pool.held() } else { 0 };
                Capped { account: account.id, cap: i64::from(pool.cap().calls.get()), day, held, used: 0 }
            })
        };
        accounts.filter_map(capped).collect()
    }

    /// Whether a class's part of an account's day is used up; when the next day begins.
    pub fn used_up(&self, account: AccountId, class: Class, now: Timestamp) -> Option<Timestamp> {
        self.with_pool(account, |pool| pool.is_used_up(class, now).then(|| pool.day().end))?
    }

    /// Whether a class can get none of an account's calls now.
    pub(super) fn is_out_of_calls(&self, account: AccountId, class: Class, now: Timestamp) -> bool {
        self.with_pool(account, |pool| pool.is_short(class, now)).unwrap_or(false)
    }

    pub(super) fn with_pool<T>(&self, account: AccountId, look: impl FnOnce(&mut Pool) -> T) -> Option<T> {
        Some(look(self.lock().get_mut(&account)?.pool.as_mut()?))
    }

    fn is_unit_waited_for(&self) -> bool {
        self.lock().values().any(|slots| slots.pool.as_ref().is_some_and(Pool::is_waited_for))
    }

    /// What is needed of the store now, and what goes back to it.
    fn needs(&self, now: Timestamp) -> Needs {
        let mut needs = Needs::default();
        for (id, slots) in self.lock().iter_mut() {
            let Some(pool) = &mut slots.pool else { continue };
            let key = key(*id);
            needs.rests.extend(pool.rest(&key));
            match pool.need(&key, now) {
                Some(Need::Look(day)) => needs.looks.push((*id, (key, day))),
                Some(Need::Draw(class, ask)) => needs.draws.push((*id, class, ask)),
                None => {}
            }
        }
        needs
    }

    fn close_pools(&self) {
        self.lock().values_mut().filter_map(|slots| slots.pool.as_mut()).for_each(Pool::close);
    }

    fn told(&self, account: AccountId, is_up_again: Option<bool>) {
        if is_up_again == Some(true) {
            tracing::info!(account = account.0, "the account's calls of the day can be drawn again");
        }
    }

    fn not_drawn(&self, accounts: impl Iterator<Item = AccountId>, error: &str, app: &App) {
        app.metrics.limiter_failures.get_or_create(&Limiter { limiter: "daily" }).inc();
        let now = app.now();
        for id in accounts {
            if self.with_pool(id, |pool| pool.fail(now)) == Some(true) {
                tracing::error!(
                    account = id.0,
                    error,
                    "the account's calls of the day could not be drawn: it sends what it has, and then nothing"
                );
            }
        }
    }
}

/// The name of an account's counts in the store.
fn key(account: AccountId) -> String {
    format!("account:{}", account.0)
}

#[derive(Default)]
struct Needs {
    rests: Vec<Rest>,
    looks: Vec<(AccountId, (String, Timestamp))>,
    draws: Vec<(AccountId, Class, Ask)>,
}

/// Draws for all accounts until the process stops claiming and no call waits; then what is left goes back.
pub async fn run(app: Arc<App>) {
    let slots = &app.slots;
    while !app.readiness.stopping.load(Ordering::Relaxed) || slots.is_unit_waited_for() {
        let needs = slots.needs(app.now());
        give_back(&app, &needs.rests).await;
        if needs.looks.is_empty() && needs.draws.is_empty() {
            let _ = timeout(LOOK_EVERY, slots.bells.wanted.notified()).await;
            continue;
        }
        look(&app, needs.looks).await;
        draw(&app, needs.draws).await;
        slots.bells.came.notify_waiters();
        app.wake.look();
    }
    slots.close_pools();
    give_back(&app, &slots.needs(app.now()).rests).await;
}

async fn look(app: &App, looks: Vec<(AccountId, (String, Timestamp))>) {
    if looks.is_empty() {
        return;
    }
    let (ids, days): (Vec<AccountId>, Vec<(String, Timestamp)>) = looks.into_iter().unzip();
    match timeout(DRAW_LIMIT, app.store.quotas().calls_used(&days)).await {
        Ok(Ok(counts)) => {
            let now = app.now();
            for ((id, (_, day)), used) in ids.into_iter().zip(days).zip(counts) {
                app.slots.told(id, app.slots.with_pool(id, |pool| pool.know(day, used, now)));
            }
        }
        Ok(Err(error)) => app.slots.not_drawn(ids.into_iter(), &crate::keeper::chain(&error), app),
        Err(_) => app.slots.not_drawn(ids.into_iter(), "no answer in time", app),
    }
}

async fn draw(app: &App, draws: Vec<(AccountId, Class, Ask)>) {
    if draws.is_empty() {
        return;
    }
    let asks: Vec<Ask> = draws.iter().map(|(_, _, ask)| ask.clone()).collect();
    let ids = draws.iter().map(|(id, _, _)| *id);
    match timeout(DRAW_LIMIT, app.store.quotas().draw_calls(&asks)).await {
        Ok(Ok(drawn)) => {
            let now = app.now();
            for ((id, class, ask), drawn) in draws.iter().zip(drawn) {
                app.slots.told(*id, app.slots.with_pool(*id, |pool| pool.add(*class, ask, drawn, now)));
            }
        }
        Ok(Err(error)) => app.slots.not_drawn(ids, &crate::keeper::chain(&error), app),
        Err(_) => app.slots.not_drawn(ids, "no answer in time", app),
    }
}

/// Tried once: what may have been given back must not be given back again.
async fn give_back(app: &App, rests: &[Rest]) {
    if rests.is_empty() {
        return;
    }
    if !matches!(timeout(DRAW_LIMIT, app.store.quotas().give_calls_back(rests)).await, Ok(Ok(()))) {
        let units: i64 = rests.iter().map(|rest| rest.units).sum();
        tracing::warn!(units, "calls that were drawn and not used could not be given back: they count as used today");
    }
}
