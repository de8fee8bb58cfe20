//! Token buckets: refill and take are one step, and time comes in as an argument (S-085). Who has which bucket, and where
//! it is kept, is the caller's business.

use std::time::Duration;

use crate::time::Timestamp;

/// How fast a bucket fills, and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come in a second; at least one.
    pub per_second: u32,
    /// The most that it holds; at least one.
    pub burst: u32,
}

impl Rate {
    /// How long an empty bucket takes to fill.
    pub fn window(&self) -> Duration {
        self.time_for(f64::from(self.burst))
    }

    fn time_for(&self, tokens: f64) -> Duration {
        Duration::from_secs_f64((tokens / f64::from(self.per_second.max(1))).max(0.0))
    }
}

/// Why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There will be enough after this long, if nobody else takes any.
    For(Duration),
    /// It is more than the bucket holds.
    TooMuch,
}

/// One bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    level: f64,
    at: Timestamp,
}

impl Bucket {
    /// A bucket that nobody has taken from yet.
    pub fn full(rate: &Rate, now: Timestamp) -> Self {
        Self { level: f64::from(rate.burst), at: now }
    }

    /// A bucket that has to fill first.
    pub const fn empty(now: Timestamp) -> Self {
        Self { level: 0.0, at: now }
    }

    /// Takes all of `tokens` or none.
    ///
    /// # Errors
    /// When there are not enough.
    pub fn take(&mut self, rate: &Rate, tokens: u32, now: Timestamp) -> Result<(), Refused> {
        self.refill(rate, now);
        let wanted = f64::from(tokens);
        if tokens > rate.burst {
            return Err(Refused::TooMuch);
        }
        if self.level < wanted {
            return Err(Refused::For(rate.time_for(wanted - self.level)));
        }
        self.level -= wanted;
        Ok(())
    }

    /// How many whole tokens there are, and how long until it is full.
    pub fn state(&mut self, rate: &Rate, now: Timestamp) -> (u32, Duration) {
        self.refill(rate, now);
        // Not negative and not above `burst`.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by refill")]
        let whole = self.level.floor() as u32;
        (whole, rate.time_for(f64::from(rate.burst) - self.level))
    }

    fn refill(&mut self, rate: &Rate, now: Timestamp) {
        let passed = now.since(self.at);
        self.at = self.at.max(now);
        self.level = passed.as_secs_f64().mul_add(f64::from(rate.per_second), self.level).clamp(0.0, f64::from(rate.burst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate { per_second: 10, burst: 20 };

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + millis)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::full(&RATE, at(0));
        assert_eq!((0..30).filter(|_| bucket.take(&RATE, 1, at(0)).is_ok()).count(), 20);
        assert_eq!(bucket.take(&RATE, 5, at(0)), Err(Refused::For(Duration::from_millis(500))));
        assert_eq!(bucket.take(&RATE, 5, at(500)), Ok(()));
        assert_eq!(bucket.state(&RATE, at(500)), (0, Duration::from_secs(2)));
        assert_eq!(bucket.state(&RATE, at(60_000)), (20, Duration::ZERO));
    }

    #[test]
    fn more_than_it_holds_is_never_given_and_costs_nothing() {
        let mut bucket = Bucket::full(&RATE, at(0));
        assert_eq!(bucket.take(&RATE, 21, at(0)), Err(Refused::TooMuch));
        assert_eq!(bucket.state(&RATE, at(0)).0, 20);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_gives_nothing() {
        let mut bucket = Bucket::empty(at(1_000));
        assert_eq!(bucket.state(&RATE, at(0)).0, 0);
        assert_eq!(bucket.state(&RATE, at(1_000)).0, 0);
        assert_eq!(bucket.state(&RATE, at(1_100)).0, 1);
    }

    proptest! {
        #[test]
        fn what_is_given_never_exceeds_burst_and_refill(steps in proptest::collection::vec((0_i64..400, 1_u32..6), 1..200)) {
            let (mut bucket, mut now, mut given) = (Bucket::full(&RATE, at(0)), 0, 0);
            for (pause, tokens) in steps {
                now += pause;
                given += if bucket.take(&RATE, tokens, at(now)).is_ok() { tokens } else { 0 };
                let allowed = f64::from(RATE.burst) + f64::from(RATE.per_second) * now as f64 / 1_000.0;
                prop_assert!(f64::from(given) <= allowed + 1e-6);
            }
        }

        #[test]
        fn who_waits_as_long_as_told_is_served(taken in 1_u32..=20, wanted in 1_u32..=20) {
            let mut bucket = Bucket::full(&RATE, at(0));
            bucket.take(&RATE, taken, at(0)).unwrap();
            if let Err(Refused::For(wait)) = bucket.take(&RATE, wanted, at(0)) {
                let later = at(i64::try_from(wait.as_millis()).unwrap() + 1);
                prop_assert!(bucket.take(&RATE, wanted, later).is_ok());
            }
        }
    }
}
