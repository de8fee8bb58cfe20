//! The process's clock: the database's time at the last anchor plus monotonic time since, never backwards (S-047).
//! When to anchor is the keeper's decision.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use tidings_core::time::{Clock, Timestamp};

/// A skew between two anchors above this means that this process is not ready (S-228).
pub const SKEW_LIMIT: Duration = Duration::from_secs(2);

/// See the module.
pub struct StoreClock {
    anchor: ArcSwap<(Timestamp, Instant)>,
    newest: AtomicI64,
    scale: Scale,
}

impl StoreClock {
    /// A clock that starts at the wall clock's time; `anchor` corrects it.
    pub fn start() -> Self {
        let scale = Scale::from_environment();
        let now = scale.apply(wall_clock());
        Self { anchor: ArcSwap::from_pointee((now, Instant::now())), newest: AtomicI64::new(now.as_micros()), scale }
    }

    /// Takes over the database's time and returns by how much this clock was off.
    pub fn anchor(&self, database: Timestamp) -> Duration {
        let database = self.scale.apply(database);
        let here = self.now();
        self.anchor.store(std::sync::Arc::new((database, Instant::now())));
        database.since(here).max(here.since(database))
    }

    /// Sleeps for `span` of this clock.
    pub async fn sleep(&self, span: Duration) {
        tokio::time::sleep(self.real(span)).await;
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        let anchor = self.anchor.load();
        let now = anchor.0.plus(anchor.1.elapsed().saturating_mul(self.scale.factor));
        let newest = self.newest.fetch_max(now.as_micros(), Ordering::Relaxed);
        Timestamp::from_micros(newest.max(now.as_micros()))
    }

    fn real(&self, span: Duration) -> Duration {
        span / self.scale.factor
    }
}

/// The wall clock, which only `StoreClock` may read.
fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// How much faster than real time a debug build runs, so that crash stories take seconds with all ratios kept.
/// `TIDINGS_TIME_SCALE=60@1800000000`: sixty times, counted from that unix second, so that restarts and several
/// processes agree.
struct Scale {
    factor: u32,
    origin: Timestamp,
}

impl Scale {
    fn from_environment() -> Self {
        let none = Self { factor: 1, origin: Timestamp::from_micros(0) };
        if !cfg!(debug_assertions) {
            return none;
        }
        let Ok(raw) = std::env::var("TIDINGS_TIME_SCALE") else { return none };
        let (factor, origin) = raw.split_once('@').unwrap_or((&raw, ""));
        let origin = origin.parse().map_or_else(|_| wall_clock(), |seconds: i64| Timestamp::from_millis(seconds.saturating_mul(1_000)));
        Self { factor: factor.parse().unwrap_or(1).max(1), origin }
    }

    fn apply(&self, real: Timestamp) -> Timestamp {
        if self.factor == 1 { real } else { self.origin.plus(real.since(self.origin).saturating_mul(self.factor)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_in_the_past_holds_the_clock_but_never_turns_it_back() {
        let clock = StoreClock::start();
        let before = clock.now();
        let skew = clock.anchor(before.minus(Duration::from_secs(600)));
        assert!(skew >= Duration::from_secs(599));
        assert!(clock.now() >= before);
        clock.anchor(before.plus(Duration::from_secs(600)));
        assert!(clock.now() >= before.plus(Duration::from_secs(600)));
    }
}
