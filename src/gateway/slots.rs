//! How busy and how well each account is, in this process: slots in use, tokens of its rate, calls of its day, pauses,
//! parking. All of it may vanish (S-030). Who gets a free slot is `judge`'s decision.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tidings_core::ids::AccountId;
use tidings_core::judge::AccountCapacity;
use tidings_core::operational::Health;
use tidings_core::outcome::Outcome;
use tidings_core::pace::Pace;
use tidings_core::pool::Pool;
use tidings_core::time::Timestamp;
use tidings_core::words::{Class, WaitReason};
use tokio::sync::Notify;

use crate::routing::Account;
pub use capping::Capped;
pub use charge::Charge;
use news::{AccountNews, News};
pub use pacing::Turn;

pub mod capping;
mod charge;
pub mod news;
pub mod pacing;

/// After how long a parked account tries one waiting message again.
const PARKED: [Duration; 4] = [Duration::from_secs(60), Duration::from_secs(120), Duration::from_secs(300), Duration::from_secs(600)];

/// An account in which nothing has come free for so long hangs, and nobody waits for it: what was drawn for it would soon stand
/// before everything else of its lane.
const STALLED: Duration = Duration::from_secs(8);

/// The slots of every account of this process.
pub struct Slots {
    accounts: Mutex<HashMap<AccountId, AccountSlots>>,
    /// Tokens came.
    tokens: Notify,
    /// Tokens are missing.
    needs: Notify,
    bells: capping::Bells,
    /// What is to be told of their health.
    pub news: AccountNews,
}

struct AccountSlots {
    account: Arc<Account>,
    used: HashMap<Class, u16>,
    pace: Option<Pace>,
    /// Whatever the store grants, this process alone starts no more calls than the account's rate.
    guard: Option<DefaultDirectRateLimiter>,
    /// Calls of its day, where it has a cap.
    pool: Option<Pool>,
    paused_until: Option<Timestamp>,
    parked: Option<Parked>,
    /// When it last had room for anything but critical, and for bulk.
    had_room: [Timestamp; 2],
}

struct Parked {
    tries: usize,
    next_try: Timestamp,
    trying: bool,
}

impl Parked {
    fn is_due(&self, now: Timestamp) -> bool {
        !self.trying && self.next_try <= now
    }
}

/// Why an account takes nothing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// The provider asked for silence until then.
    Paused(Timestamp),
    /// Its credential was refused; it tries again then.
    Parked(Timestamp),
    /// Its calls of the day are used up; the next day begins then.
    Capped(Timestamp),
}

impl Slots {
    /// All slots free, all accounts well.
    pub fn new(accounts: &[Arc<Account>], now: Timestamp) -> Self {
        let slots = accounts.iter().map(|account| (account.id, AccountSlots::new(account.clone(), now)));
        let (bells, news) = (capping::Bells::default(), AccountNews::default());
        Self { accounts: Mutex::new(slots.collect()), tokens: Notify::new(), needs: Notify::new(), bells, news }
    }

    /// Goes by these accounts from now on. What runs keeps its slot, also by accounts that are gone: they may come back.
    /// Tokens are drawn from the store, so that no reload adds some; those of another rate are given up, and calls of another
    /// cap go back.
    pub fn adopt(&self, accounts: &[Arc<Account>], now: Timestamp) {
        let mut slots = self.lock();
        for account in accounts {
            match slots.get_mut(&account.id) {
                Some(known) => known.adopt(account.clone(), now),
                None => drop(slots.insert(account.id, AccountSlots::new(account.clone(), now))),
            }
        }
    }

    /// What the accounts in `wanted` can take now.
    pub fn capacity(&self, wanted: &[AccountId], now: Timestamp) -> Vec<AccountCapacity> {
        let mut accounts = self.lock();
        let capacities = wanted.iter().filter_map(|id| Some(accounts.get_mut(id)?.capacity(now))).collect();
        if wanted.iter().any(|id| accounts.get(id).is_some_and(|slots| slots.pace.is_some())) {
            self.needs.notify_one();
        }
        if wanted.iter().any(|id| accounts.get(id).is_some_and(|slots| slots.pool.is_some())) {
            self.bells.wanted.notify_one();
        }
        capacities
    }

    /// Whether one of these accounts is parked and about to try one message.
    pub fn has_trial(&self, wanted: &[AccountId], now: Timestamp) -> bool {
        let accounts = self.lock();
        let is_due = |id: &AccountId| accounts.get(id).and_then(|slots| slots.parked.as_ref()).is_some_and(|parked| parked.is_due(now));
        wanted.iter().any(is_due)
    }

    /// A call by this account begins, in its turn where the account has a rate.
    pub fn begin(self: &Arc<Self>, id: AccountId, class: Class) -> Option<Turn> {
        if let Some(slots) = self.lock().get_mut(&id) {
            *slots.used.entry(class).or_default() += 1;
            if let Some(parked) = &mut slots.parked {
                parked.trying = true;
            }
        }
        self.turn(id)
    }

    /// Learns from an outcome; the slot stays in use until `end`. That the account is parked or recovered by it is news: once
    /// for each time, whatever other calls come to the same, and under the lock, so that it is told in order.
    pub fn learn(&self, id: AccountId, outcome: &Outcome, now: Timestamp) {
        if let Some(slots) = self.lock().get_mut(&id) {
            let was_parked = slots.parked.is_some();
            slots.learn(outcome, now);
            let health = match (&slots.parked, was_parked) {
                (Some(parked), false) => Health::Parked(parked.next_try),
                (None, true) => Health::Recovered,
                (Some(_), true) | (None, false) => return,
            };
            self.news.put(News { account: slots.account.name.clone(), health, at: now });
        }
    }

    /// The outcome of a call is committed: its slot is free.
    pub fn end(&self, id: AccountId, class: Class) {
        if let Some(used) = self.lock().get_mut(&id).and_then(|slots| slots.used.get_mut(&class)) {
            *used = used.saturating_sub(1);
        }
    }

    /// Why the account takes nothing now, if it does not.
    pub fn hindrance(&self, id: AccountId, now: Timestamp) -> Option<Hindrance> {
        let accounts = self.lock();
        let slots = accounts.get(&id)?;
        let parked = slots.parked.as_ref().map(|parked| Hindrance::Parked(parked.next_try));
        let paused = || slots.paused_until.filter(|until| *until > now).map(Hindrance::Paused);
        let capped =
            || slots.pool.as_ref().filter(|pool| pool.is_used_up(Class::Critical, now)).map(|pool| Hindrance::Capped(pool.day().end));
        parked.or_else(paused).or_else(capped)
    }

    /// What a message of a class waits for that this account is to carry, as far as this process knows.
    pub fn wait_reason(&self, id: AccountId, class: Class, now: Timestamp) -> Option<WaitReason> {
        match self.hindrance(id, now) {
            Some(Hindrance::Parked(_)) => Some(WaitReason::Credential),
            Some(Hindrance::Paused(_)) => Some(WaitReason::Rate),
            Some(Hindrance::Capped(_)) => Some(WaitReason::DailyCap),
            None if self.is_out_of_calls(id, class, now) => Some(WaitReason::DailyCap),
            None => self.lock().get_mut(&id).is_some_and(AccountSlots::is_out_of_tokens).then_some(WaitReason::Rate),
        }
    }

    /// Whether calls wait for a token.
    fn is_waited_for(&self) -> bool {
        self.lock().values().any(|slots| slots.pace.as_ref().is_some_and(Pace::is_waited_for))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<AccountId, AccountSlots>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccountSlots {
    fn new(account: Arc<Account>, now: Timestamp) -> Self {
        let (pace, guard) = (account.rate.map(Pace::new), account.rate.map(guard));
        let pool = account.daily_cap.clone().map(|cap| Pool::new(cap, now));
        Self { account, used: HashMap::new(), pace, guard, pool, paused_until: None, parked: None, had_room: [now; 2] }
    }

    fn adopt(&mut self, account: Arc<Account>, now: Timestamp) {
        if account.rate != self.account.rate {
            self.guard = account.rate.map(guard);
        }
        match (&mut self.pace, account.rate) {
            (Some(pace), Some(rate)) => pace.adopt(rate),
            (pace, rate) => *pace = rate.map(Pace::new),
        }
        match (&mut self.pool, &account.daily_cap) {
            (Some(pool), Some(cap)) => pool.adopt(cap, now),
            (pool, cap) => *pool = cap.clone().map(|cap| Pool::new(cap, now)),
        }
        if !Arc::ptr_eq(&account.adapter, &self.account.adapter)
            && let Some(parked) = &mut self.parked
        {
            // Perhaps with another credential: one message may try at once.
            parked.next_try = now;
        }
        self.account = account;
    }

    fn capacity(&mut self, now: Timestamp) -> AccountCapacity {
        let room = self.room(now);
        let Some(pool) = &mut self.pool else { return room };
        let [free, for_others, for_bulk] = pool.room(now).map(|units| u16::try_from(units).unwrap_or(u16::MAX));
        AccountCapacity {
            account: room.account,
            free: room.free.min(free),
            free_for_others: room.free_for_others.min(for_others),
            free_for_bulk: room.free_for_bulk.min(for_bulk),
            is_well: room.is_well && !pool.is_used_up(Class::Transactional, now),
            is_well_for_bulk: room.is_well_for_bulk && !pool.is_used_up(Class::Bulk, now),
        }
    }

    fn room(&mut self, now: Timestamp) -> AccountCapacity {
        let id = self.account.id;
        let none = AccountCapacity { account: id, free: 0, free_for_others: 0, free_for_bulk: 0, is_well: false, is_well_for_bulk: false };
        if !self.account.is_on || self.paused_until.is_some_and(|until| until > now) {
            return none;
        }
        self.paused_until = None;
        if let Some(parked) = &self.parked {
            // One message tries whether the credential works again.
            let tries = u16::from(parked.is_due(now));
            return AccountCapacity { free: tries, free_for_others: tries, free_for_bulk: tries, ..none };
        }
        let used = |class: Class| self.used.get(&class).copied().unwrap_or_default();
        let (bulk, others) = (used(Class::Bulk), used(Class::Bulk) + used(Class::Transactional));
        let slots = self.account.concurrency.max(1);
        let (for_others, for_bulk) = reserved(slots);
        let mut free = slots.saturating_sub(others + used(Class::Critical));
        if let Some(pace) = &mut self.pace {
            free = free.min(u16::try_from(pace.room(Instant::now())).unwrap_or(u16::MAX));
        }
        let (free_for_others, free_for_bulk) = (free.min(for_others.saturating_sub(others)), free.min(for_bulk.saturating_sub(bulk)));
        for (had_room, free) in self.had_room.iter_mut().zip([free_for_others, free_for_bulk]) {
            if free > 0 {
                *had_room = now;
            }
        }
        let [is_well, is_well_for_bulk] = self.had_room.map(|at| now.since(at) < STALLED);
        AccountCapacity { account: id, free, free_for_others, free_for_bulk, is_well, is_well_for_bulk }
    }

    fn is_out_of_tokens(&mut self) -> bool {
        self.pace.as_mut().is_some_and(|pace| pace.is_short(Instant::now()))
    }

    fn learn(&mut self, outcome: &Outcome, now: Timestamp) {
        match outcome {
            Outcome::Throttled { retry_after } => {
                let until = now.plus(retry_after.unwrap_or(Duration::from_secs(1)));
                self.paused_until = Some(self.paused_until.map_or(until, |earlier| earlier.max(until)));
            }
            Outcome::Credential => {
                // Calls that were already running do not count as further tries.
                let tries = match &self.parked {
                    Some(parked) if parked.trying => parked.tries + 1,
                    Some(parked) => parked.tries,
                    None => 0,
                };
                let wait = PARKED[tries.min(PARKED.len() - 1)];
                self.parked = Some(Parked { tries, next_try: now.plus(wait), trying: false });
            }
            Outcome::Accepted { .. } | Outcome::Refused { .. } => self.parked = None,
            Outcome::NotSent { .. } | Outcome::Ambiguous | Outcome::NotStarted | Outcome::BuildFailed => {
                // Says nothing about the credential: the next try decides.
                if let Some(parked) = &mut self.parked {
                    parked.trying = false;
                    parked.next_try = now.plus(PARKED[parked.tries.min(PARKED.len() - 1)]);
                }
            }
        }
    }
}

/// How many of `slots` may be used by anything but critical, and by bulk. Reserved slots are never lent (S-081).
fn reserved(slots: u16) -> (u16, u16) {
    if slots < 2 {
        return (slots, slots);
    }
    let critical = slots.div_ceil(5).max(1);
    let bulk = u16::try_from(u32::from(slots) * 7 / 10).unwrap_or(slots).max(1);
    (slots - critical, bulk.min(slots - critical))
}

fn guard(rate: NonZeroU32) -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(rate))
}

#[cfg(test)]
mod tests;
