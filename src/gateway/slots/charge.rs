//! A call of a capped account costs a unit of the account's day: it waits for one, uses it when it starts, and gives it back
//! when it found nobody. Where units come from is the business of `capping`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_core::ids::AccountId;
use tidings_core::outcome::{NotSent, Outcome};
use tidings_core::pool::Unit;
use tidings_core::time::Clock as _;
use tidings_core::words::Class;
use tokio::time::timeout_at;

use super::Slots;
use crate::clock::StoreClock;

/// How long a claimed call waits for its unit before it is handed back.
const PATIENCE: Duration = Duration::from_millis(800);

/// What a call of a capped account costs: a unit that it has or waits for.
pub struct Charge {
    slots: Arc<Slots>,
    clock: Arc<StoreClock>,
    account: AccountId,
    class: Class,
    unit: Option<Unit>,
    is_waiting: bool,
    is_spent: bool,
}

impl Charge {
    /// Waits until there is a unit for the call. There is none when the class's part of the day is used up, or nobody can
    /// tell in time.
    pub async fn came(&mut self) -> bool {
        let (slots, patience) = (self.slots.clone(), Instant::now() + PATIENCE);
        loop {
            let arrived = slots.bells.came.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if self.find() {
                return true;
            }
            if self.is_in_vain() || timeout_at(patience.into(), arrived).await.is_err() {
                return false;
            }
        }
    }

    /// The call starts now, and its unit is used; it may not where the unit is over.
    pub fn spend(&mut self) -> bool {
        self.is_spent = self.find();
        self.is_spent
    }

    /// Whatever became of the call: who certainly found nobody costs nothing.
    pub fn settle(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::NotStarted | Outcome::BuildFailed | Outcome::NotSent { why: NotSent::Unreachable, .. } => self.is_spent = false,
            Outcome::NotSent { .. } | Outcome::Throttled { .. } | Outcome::Credential | Outcome::Ambiguous => {}
            Outcome::Accepted { .. } | Outcome::Refused { .. } => {}
        }
    }

    /// A unit that is there and good; without a cap any more, nobody needs one.
    fn find(&mut self) -> bool {
        let (now, class) = (self.clock.now(), self.class);
        let unit = self.unit.take();
        let found = self.slots.with_pool(self.account, |pool| {
            let good = match unit {
                Some(unit) if pool.is_good(&unit, now) => Some(unit),
                Some(over) => {
                    pool.give_back(&over, now);
                    None
                }
                None => None,
            };
            good.or_else(|| pool.take(class, now))
        });
        let is_free = found.is_none();
        self.unit = found.flatten();
        let is_found = is_free || self.unit.is_some();
        self.wait(!is_found);
        is_found
    }

    fn is_in_vain(&self) -> bool {
        self.slots.is_out_of_calls(self.account, self.class, self.clock.now())
    }

    fn wait(&mut self, is_waiting: bool) {
        if self.is_waiting != is_waiting {
            self.is_waiting = is_waiting;
            self.slots.with_pool(self.account, |pool| pool.wait(self.class, is_waiting));
        }
        if is_waiting {
            self.slots.bells.wanted.notify_one();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.wait(false);
        if let Some(unit) = self.unit.take().filter(|_| !self.is_spent) {
            let now = self.clock.now();
            self.slots.with_pool(self.account, |pool| pool.give_back(&unit, now));
        }
    }
}

impl Slots {
    /// What a call that was just claimed costs; `None` where its account has no cap.
    pub fn charge(self: &Arc<Self>, account: AccountId, class: Class, clock: &Arc<StoreClock>) -> Option<Charge> {
        self.with_pool(account, |_| ())?;
        let (slots, clock) = (self.clone(), clock.clone());
        let mut charge = Charge { slots, clock, account, class, unit: None, is_waiting: false, is_spent: false };
        charge.find();
        Some(charge)
    }
}
