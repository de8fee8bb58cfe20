//! How much each tenant may still ask for: slices of its shared bucket, drawn ahead while it sends, so that a request of a
//! tenant under its rate waits for no database (S-085, S-086). A bucket that cannot be drawn from leaves each process half
//! the rate (S-088).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tidings_core::ids::TenantId;
use tidings_core::rate::{Rate, Refused};
use tidings_core::slices::{Ask, Held, Level};
use tidings_core::store::Store;
use tokio::runtime::Handle;

use crate::app::App;
use crate::metrics::{Limiter, Metrics};

/// A draw that takes longer has failed.
const DRAW_LIMIT: Duration = Duration::from_millis(250);
/// How long none is tried after one that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How often slices of tenants that send are filled up.
const FILL_EVERY: Duration = Duration::from_millis(400);
/// A tenant sends while its last request is not older.
const LATELY: Duration = Duration::from_secs(5);
/// Buckets that one statement draws from.
const MOST_ASKS: usize = 500;

/// The tenants that this process has heard of.
pub(super) struct Allowances {
    tenants: Mutex<HashMap<TenantId, Allowance>>,
    /// Since the last draw failed: when the next is tried.
    down: Mutex<Option<Instant>>,
    is_filling: AtomicBool,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    runtime: Handle,
}

struct Allowance {
    /// What held for its last request.
    rate: Rate,
    held: Held,
    /// What this process gives while nothing can be drawn.
    fallback: Level,
    last_asked: Instant,
    /// One draws, the others wait for what it brings.
    drawing: Arc<tokio::sync::Mutex<()>>,
}

impl Allowances {
    /// Those of a process; draws run on the present runtime.
    pub(super) fn new(app: &App) -> Arc<Self> {
        let (store, metrics) = (app.store.clone(), app.metrics.clone());
        let (tenants, down, is_filling) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { tenants, down, is_filling, store, metrics, runtime: Handle::current() })
    }

    /// Takes what a request costs, all of it or nothing.
    ///
    /// # Errors
    /// When there is not enough.
    pub(super) async fn charge(self: &Arc<Self>, tenant: TenantId, rate: Rate, cost: u32) -> Result<(), Refused> {
        self.keep_filled();
        if self.take(tenant, rate, cost) {
            return Ok(());
        }
        let drawing = self.of(tenant, rate, |allowance, _| allowance.drawing.clone());
        let _turn = drawing.lock().await;
        if self.take(tenant, rate, cost) {
            return Ok(());
        }
        if self.may_draw() {
            let is_down = self.is_down();
            let missing = self.of(tenant, rate, |allowance, now| {
                let is_there = is_down || allowance.held.all(&rate, now) >= f64::from(cost);
                is_there.then(|| cost - allowance.held.good(&rate, now).min(cost))
            });
            match missing {
                Some(missing) if self.draw(vec![(tenant, rate, missing.max(1))], cost).await => return Ok(()),
                Some(_) => {}
                // Even if nobody else has drawn, there is not enough.
                None => return Err(self.refusal(tenant, rate, cost)),
            }
        }
        if self.take(tenant, rate, cost) || (self.is_down() && self.fall_back(tenant, rate, cost)) {
            return Ok(());
        }
        Err(self.refusal(tenant, rate, cost))
    }

    /// What is left for a tenant in whole tokens, and how long until it is all there is.
    pub(super) fn state(&self, tenant: TenantId, rate: Rate) -> (u32, Duration) {
        let is_down = self.is_down();
        let all = self.of(tenant, rate, |allowance, now| match is_down {
            true => allowance.fallback.tokens(&half(rate, 1), now) + f64::from(allowance.held.good(&rate, now)),
            false => allowance.held.all(&rate, now),
        });
        let all = all.clamp(0.0, f64::from(rate.burst));
        let full_in = (f64::from(rate.burst) - all) / f64::from(rate.per_second.max(1));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the burst")]
        let whole = (all + 1e-9).floor() as u32;
        (whole, Duration::try_from_secs_f64(full_in).unwrap_or_default())
    }

    fn take(&self, tenant: TenantId, rate: Rate, cost: u32) -> bool {
        self.of(tenant, rate, |allowance, now| {
            (allowance.last_asked, allowance.rate) = (now, rate);
            allowance.held.take(&rate, cost, now)
        })
    }

    fn fall_back(&self, tenant: TenantId, rate: Rate, cost: u32) -> bool {
        self.of(tenant, rate, |allowance, now| allowance.fallback.draw(&half(rate, cost), now).granted == cost)
    }

    fn refusal(&self, tenant: TenantId, rate: Rate, cost: u32) -> Refused {
        if !self.is_down() || cost > rate.burst {
            return self.of(tenant, rate, |allowance, now| allowance.held.refusal(&rate, cost, now));
        }
        let half = half(rate, cost);
        let missing = self.of(tenant, rate, |allowance, now| f64::from(cost) - allowance.fallback.tokens(&half, now));
        Refused::For(Duration::try_from_secs_f64((missing / half.per_second).max(0.0)).unwrap_or_default())
    }

    fn of<T>(&self, tenant: TenantId, rate: Rate, look: impl FnOnce(&mut Allowance, Instant) -> T) -> T {
        let mut tenants = lock(&self.tenants);
        let now = Instant::now();
        let fresh = || Allowance {
            rate,
            held: Held::nothing(&rate, now),
            fallback: Level::full(&Ask { burst: f64::from(rate.burst) / 2.0, ..half(rate, 1) }, now),
            last_asked: now,
            drawing: Arc::default(),
        };
        look(tenants.entry(tenant).or_insert_with(fresh), now)
    }

    fn is_down(&self) -> bool {
        lock(&self.down).is_some()
    }

    fn may_draw(&self) -> bool {
        lock(&self.down).is_none_or(|next| next <= Instant::now())
    }

    /// Draws for these tenants at least so much each, and up to a second's worth more. Takes what a request of the first
    /// one costs, as of the instant of the draw, before anybody else does; whether it could.
    async fn draw(&self, missing: Vec<(TenantId, Rate, u32)>, cost: u32) -> bool {
        let ask = |(tenant, rate, least): &(TenantId, Rate, u32)| Ask {
            key: format!("tenant:{}", tenant.0),
            per_second: f64::from(rate.per_second),
            burst: f64::from(rate.burst),
            ahead: 0.0,
            least: *least,
            wanted: least.saturating_add(rate.per_second),
        };
        let asks: Vec<Ask> = missing.iter().map(ask).collect();
        let (store, since) = (self.store.clone(), Instant::now());
        // On the process's runtime: a connection that is opened for it outlives the request.
        let task = self.runtime.spawn(async move { store.rates().draw(&asks).await });
        match tokio::time::timeout(DRAW_LIMIT, task).await {
            Ok(Ok(Ok(slices))) => {
                let mut is_taken = false;
                for (place, ((tenant, rate, _), slice)) in missing.iter().zip(slices).enumerate() {
                    self.of(*tenant, *rate, |allowance, _| {
                        allowance.held.add(rate, slice, since);
                        is_taken |= place == 0 && allowance.held.take(rate, cost, since);
                    });
                }
                if lock(&self.down).take().is_some() {
                    tracing::info!("the rates of tenants can be drawn from again");
                }
                return is_taken;
            }
            Ok(Ok(Err(error))) => self.failed(&crate::keeper::chain(&error)),
            Ok(Err(_)) => self.failed("the draw panicked"),
            Err(_) => self.failed("no answer in time"),
        }
        false
    }

    fn failed(&self, error: &str) {
        self.metrics.limiter_failures.get_or_create(&Limiter { limiter: "intake" }).inc();
        if lock(&self.down).replace(Instant::now() + AFTER_FAILURE).is_none() {
            tracing::error!(error, "the rates of tenants cannot be drawn from: each process gives half of them by itself");
        }
    }

    /// Sees that the slices of tenants that send are filled up in time.
    fn keep_filled(self: &Arc<Self>) {
        if !self.is_filling.swap(true, Ordering::AcqRel) {
            self.runtime.spawn(fill(Arc::downgrade(self)));
        }
    }

    /// The tenants that sent lately and have used half of a second's worth; `None` where nobody sent.
    fn low(&self) -> Option<Vec<(TenantId, Rate, u32)>> {
        let (now, mut is_anybody, mut low) = (Instant::now(), false, Vec::new());
        for (tenant, allowance) in lock(&self.tenants).iter() {
            if now.saturating_duration_since(allowance.last_asked) < LATELY {
                is_anybody = true;
                let rate = allowance.rate;
                let is_low = allowance.held.good(&rate, now) <= rate.per_second / 2;
                if is_low && low.len() < MOST_ASKS && allowance.held.all(&rate, now) >= 1.0 {
                    low.push((*tenant, rate, 1));
                }
            }
        }
        is_anybody.then_some(low)
    }
}

/// What a process gives of a rate by itself.
fn half(rate: Rate, cost: u32) -> Ask {
    let (per_second, burst) = (f64::from(rate.per_second) / 2.0, f64::from(rate.burst));
    Ask { key: String::new(), per_second, burst, ahead: 0.0, least: cost, wanted: cost }
}

/// Ends when nobody has sent for a while, or the process is gone.
async fn fill(allowances: Weak<Allowances>) {
    loop {
        tokio::time::sleep(FILL_EVERY).await;
        let Some(allowances) = allowances.upgrade() else { return };
        match allowances.low() {
            Some(low) if !low.is_empty() && allowances.may_draw() => {
                allowances.draw(low, 0).await;
            }
            Some(_) => {}
            None => {
                allowances.is_filling.store(false, Ordering::Release);
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
