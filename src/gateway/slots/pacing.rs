//! The calls of an account start at the instants of tokens that are drawn from its shared rate, in advance and apart from the
//! calls (S-086). When how much is drawn is decided in `core::pace`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidings_core::ids::AccountId;
use tidings_core::pace::{LATE, Pace};
use tidings_core::slices::{Ask, Slice};
use tokio::time::{sleep_until, timeout_at};

use super::Slots;
use crate::app::App;
use crate::metrics::Limiter;

/// How long a claimed call waits for its instant before it is handed back: a switch is in force within two seconds (S-118).
const PATIENCE: Duration = Duration::from_millis(800);
/// A draw that takes longer has failed.
const DRAW_LIMIT: Duration = Duration::from_secs(1);
/// How often it is looked whether tokens are missing, whatever wakes the drawer.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A call's turn: the token that it has or waits for.
pub struct Turn {
    slots: Arc<Slots>,
    account: AccountId,
    token: Option<Instant>,
    is_waiting: bool,
}

impl Turn {
    /// Waits until the call may start. It may not when its instant lies too far ahead, or is not known in time.
    pub async fn came(mut self) -> bool {
        let (slots, patience) = (self.slots.clone(), Instant::now() + PATIENCE);
        loop {
            let arrived = slots.tokens.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let Some(due) = self.find() else {
                if timeout_at(patience.into(), arrived).await.is_err() {
                    return false;
                }
                continue;
            };
            if due > patience {
                self.slots.with_pace(self.account, |pace, _| pace.give_back(due));
                self.token = None;
                return false;
            }
            sleep_until(due.into()).await;
            if Instant::now() <= due + LATE && slots.is_admitted(self.account) {
                return true;
            }
            self.token = None;
        }
    }

    /// The token that is there and not too late.
    fn find(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.token = self.token.filter(|due| *due + LATE >= now);
        if self.token.is_none() {
            // Without a rate any more, nobody has to wait.
            self.token = self.slots.with_pace(self.account, Pace::take).unwrap_or(Some(now));
        }
        self.wait(self.token.is_none());
        self.token
    }

    fn wait(&mut self, is_waiting: bool) {
        if self.is_waiting != is_waiting {
            self.is_waiting = is_waiting;
            self.slots.with_pace(self.account, |pace, _| pace.wait(is_waiting));
        }
        if is_waiting {
            self.slots.needs.notify_one();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.wait(false);
    }
}

impl Slots {
    /// Whether the account's guard lets one more call start.
    pub(super) fn is_admitted(&self, account: AccountId) -> bool {
        self.lock().get(&account).and_then(|slots| slots.guard.as_ref()).is_none_or(|guard| guard.check().is_ok())
    }

    /// The turn of a call that was just claimed; `None` where its account has no rate.
    pub(super) fn turn(self: &Arc<Self>, account: AccountId) -> Option<Turn> {
        let token = self.with_pace(account, Pace::take)?;
        let mut turn = Turn { slots: self.clone(), account, token, is_waiting: false };
        turn.wait(turn.token.is_none());
        Some(turn)
    }

    /// How long until a token of one of these accounts comes into reach.
    pub fn token_wait(&self, accounts: impl Iterator<Item = AccountId>) -> Option<Duration> {
        let next = accounts.filter_map(|id| self.with_pace(id, |pace, now| pace.next(now)).flatten()).min();
        next.map(|wait| wait.max(Duration::from_millis(1)))
    }

    fn with_pace<T>(&self, account: AccountId, look: impl FnOnce(&mut Pace, Instant) -> T) -> Option<T> {
        let mut accounts = self.lock();
        let pace = accounts.get_mut(&account)?.pace.as_mut()?;
        Some(look(pace, Instant::now()))
    }

    /// What is to be drawn now, and when to look again if nothing wakes the drawer.
    fn asks(&self) -> (Vec<(AccountId, Ask)>, Duration) {
        let (mut asks, mut wait, now) = (Vec::new(), LOOK_EVERY, Instant::now());
        for (id, slots) in self.lock().iter_mut() {
            let Some(pace) = &mut slots.pace else { continue };
            match pace.ask(&format!("account:{}", id.0), now) {
                Some(ask) => asks.push((*id, ask)),
                None => wait = pace.next_draw(now).map_or(wait, |at| wait.min(at.saturating_duration_since(now))),
            }
        }
        (asks, wait.max(Duration::from_millis(1)))
    }

    fn came(&self, asks: &[(AccountId, Ask)], slices: &[Slice]) {
        for ((id, _), slice) in asks.iter().zip(slices) {
            if self.with_pace(*id, |pace, now| pace.add(*slice, now)) == Some(true) {
                tracing::info!(account = id.0, "the account's rate can be drawn from again");
            }
        }
        self.tokens.notify_waiters();
    }

    fn failed(&self, asks: &[(AccountId, Ask)], error: &str, app: &App) {
        app.metrics.limiter_failures.get_or_create(&Limiter { limiter: "send" }).inc();
        for (id, _) in asks {
            if self.with_pace(*id, Pace::fail) == Some(true) {
                tracing::error!(
                    account = id.0,
                    error,
                    "the account's rate could not be drawn from: it sends what it has, and then nothing"
                );
            }
        }
    }
}

/// Draws for all accounts until the process stops claiming and no call waits.
pub async fn run(app: Arc<App>) {
    let slots = &app.slots;
    while !app.readiness.stopping.load(Ordering::Relaxed) || slots.is_waited_for() {
        let (asks, wait) = slots.asks();
        if asks.is_empty() {
            let _ = tokio::time::timeout(wait, slots.needs.notified()).await;
            continue;
        }
        let wanted: Vec<Ask> = asks.iter().map(|(_, ask)| ask.clone()).collect();
        match tokio::time::timeout(DRAW_LIMIT, app.store.rates().draw(&wanted)).await {
            Ok(Ok(slices)) => {
                slots.came(&asks, &slices);
                app.wake.look();
            }
            Ok(Err(error)) => slots.failed(&asks, &crate::keeper::chain(&error), &app),
            Err(_) => slots.failed(&asks, "no answer in time", &app),
        }
    }
}
