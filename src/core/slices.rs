//! Rates that several processes share: each draws slices of tokens in advance from one bucket (S-085, S-086). What a slice
//! grants, how long tokens that were drawn and not used stay good, and what is left are decided here; where the bucket is
//! kept is the store's business. A process that dies takes its tokens with it: less is used then, never more.

use std::time::{Duration, Instant};

use crate::rate::{Rate, Refused};

/// What one process asks of one bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Whose bucket.
    pub key: String,
    /// Tokens that come in a second; more than none.
    pub per_second: f64,
    /// The most that it holds.
    pub burst: f64,
    /// How many tokens may be drawn before they have come in: they are good from the instant at which they do.
    pub ahead: f64,
    /// What is needed at once: all of it is granted or nothing.
    pub least: u32,
    /// What would be welcome.
    pub wanted: u32,
}

impl Ask {
    /// What is granted of a bucket that holds `level`. Near exhaustion a slice is half of what is left, so that others get
    /// something too.
    pub fn grant(&self, level: f64) -> u32 {
        let room = level + self.ahead;
        let least = f64::from(self.least);
        if room < least.max(1.0) {
            return 0;
        }
        whole(f64::from(self.wanted).min((room / 2.0).max(least)).min(room).max(least))
    }
}

/// What was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    /// So many tokens.
    pub granted: u32,
    /// What the bucket holds afterwards; below zero where tokens were drawn that have yet to come in.
    pub level: f64,
}

impl Slice {
    /// How long after the draw the `nth` token of the slice is good, counted from 1.
    pub fn due_in(&self, per_second: f64, nth: u32) -> Duration {
        let before = self.level + f64::from(self.granted);
        seconds((f64::from(nth) - before) / per_second)
    }
}

/// A bucket that one process has for itself.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    tokens: f64,
    per_second: f64,
    at: Instant,
}

impl Level {
    /// A bucket that nobody has drawn from yet.
    pub const fn full(ask: &Ask, now: Instant) -> Self {
        Self { tokens: ask.burst, per_second: ask.per_second, at: now }
    }

    /// What it holds.
    pub fn tokens(&self, ask: &Ask, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        passed.mul_add(self.per_second, self.tokens).min(ask.burst)
    }

    /// Draws from it. Until now it filled as fast as was said last.
    pub fn draw(&mut self, ask: &Ask, now: Instant) -> Slice {
        let level = self.tokens(ask, now);
        let granted = ask.grant(level);
        *self = Self { tokens: level - f64::from(granted), per_second: ask.per_second, at: self.at.max(now) };
        Slice { granted, level: self.tokens }
    }
}

/// Tokens of a bucket that were drawn and are not used yet, and what is known of the bucket.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    tokens: f64,
    level: f64,
    at: Instant,
}

impl Held {
    /// Nothing was drawn; the bucket may be full.
    pub fn nothing(rate: &Rate, now: Instant) -> Self {
        Self { tokens: 0.0, level: f64::from(rate.burst), at: now }
    }

    /// How many tokens are good. Once the bucket may have been full without them, they would have flowed over: they go as
    /// fast as it fills, so that nobody is ever admitted more than burst and rate allow.
    pub fn good(&self, rate: &Rate, now: Instant) -> u32 {
        whole(self.exactly_good(rate, now))
    }

    fn exactly_good(&self, rate: &Rate, now: Instant) -> f64 {
        (f64::from(rate.burst) - self.filled(rate, now)).clamp(0.0, self.tokens)
    }

    /// What is there in all, if nobody else has drawn since.
    pub fn all(&self, rate: &Rate, now: Instant) -> f64 {
        self.level(rate, now) + self.exactly_good(rate, now)
    }

    /// Uses tokens that are good, all of them or none; whether it did.
    pub fn take(&mut self, rate: &Rate, tokens: u32, now: Instant) -> bool {
        if self.good(rate, now) < tokens {
            return false;
        }
        let tokens = (self.exactly_good(rate, now) - f64::from(tokens)).max(0.0);
        *self = Self { tokens, level: self.level(rate, now), at: self.at.max(now) };
        true
    }

    /// Puts a slice to what is good. `now` is the instant at which it was asked for: who waited for it takes from it as of then.
    pub fn add(&mut self, rate: &Rate, slice: Slice, now: Instant) {
        let tokens = self.exactly_good(rate, now) + f64::from(slice.granted);
        *self = Self { tokens, level: slice.level, at: self.at.max(now) };
    }

    /// Why so many tokens are not there.
    pub fn refusal(&self, rate: &Rate, tokens: u32, now: Instant) -> Refused {
        if tokens > rate.burst {
            return Refused::TooMuch;
        }
        Refused::For(seconds((f64::from(tokens) - self.all(rate, now)) / f64::from(rate.per_second.max(1))))
    }

    fn filled(&self, rate: &Rate, now: Instant) -> f64 {
        now.saturating_duration_since(self.at).as_secs_f64().mul_add(f64::from(rate.per_second), self.level)
    }

    fn level(&self, rate: &Rate, now: Instant) -> f64 {
        self.filled(rate, now).min(f64::from(rate.burst))
    }
}

fn whole(tokens: f64) -> u32 {
    // A hair below a whole token is one: the sum of tenths is not exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates at both ends")]
    let whole = (tokens + 1e-9).floor() as u32;
    whole
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
