//! When the calls of one account may start in this process: tokens with instants, drawn in advance from the account's
//! shared rate (S-086). While the account may be free, a process claims one call first and draws for it then, so that those
//! with nothing to send draw nothing; otherwise it draws ahead, as far as it used what it drew before.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::slices::{Ask, Slice};

/// A token that is used later than this after its instant counts for nothing: another one is needed.
pub const LATE: Duration = Duration::from_millis(50);
/// Rows are claimed this long before their tokens are good, so that the way through the store costs no time.
pub const LEAD: Duration = Duration::from_millis(100);
/// Of the rate of an account this much is used: with tokens that are used up to `LATE` after their instant the provider
/// still sees no more than the rate in any second.
const SHARE: f64 = 0.95;
/// After a draw that brought nothing or failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long this process is taken for one that has something to send.
const BUSY: Duration = Duration::from_secs(1);

/// The tokens of one account.
#[derive(Debug)]
pub struct Pace {
    per_second: f64,
    due: VecDeque<Instant>,
    /// Calls that wait for a token.
    waiting: u32,
    /// How many to draw ahead.
    ahead: u32,
    used: u32,
    lapsed: u32,
    last_used: Option<Instant>,
    last_looked: Option<Instant>,
    /// What the bucket held after the last draw, and when.
    level: Option<(f64, Instant)>,
    /// No draw before this.
    next_draw: Option<Instant>,
    is_down: bool,
}

impl Pace {
    /// Nothing drawn yet.
    pub fn new(rate: NonZeroU32) -> Self {
        Self {
            per_second: f64::from(rate.get()) * SHARE,
            due: VecDeque::new(),
            waiting: 0,
            ahead: 0,
            used: 0,
            lapsed: 0,
            last_used: None,
            last_looked: None,
            level: None,
            next_draw: None,
            is_down: false,
        }
    }

    /// Goes by another rate from now on: what was drawn of the old one is given up.
    pub fn adopt(&mut self, rate: NonZeroU32) {
        let per_second = f64::from(rate.get()) * SHARE;
        if per_second != self.per_second {
            self.per_second = per_second;
            self.due.clear();
        }
    }

    /// How many more calls may be claimed. Without any token one may, as far as the account may be free.
    pub fn room(&mut self, now: Instant) -> u32 {
        self.last_looked = Some(now);
        self.near(now)
    }

    fn near(&mut self, now: Instant) -> u32 {
        self.drop_late(now);
        if self.due.is_empty() {
            return u32::from(self.waiting == 0 && !self.is_down && self.may_be_free(now));
        }
        let near = self.due.iter().take_while(|due| **due <= now + LEAD).count();
        u32::try_from(near).unwrap_or(u32::MAX).saturating_sub(self.waiting)
    }

    /// Whether a call could start at once, if nobody else has drawn since.
    fn may_be_free(&self, now: Instant) -> bool {
        let filled = |(level, at)| now.saturating_duration_since(at).as_secs_f64().mul_add(self.per_second, level);
        self.level.is_none_or(|known| filled(known) >= 1.0)
    }

    /// The next token for a call: it may start at this instant. `None` where there is none yet.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        self.drop_late(now);
        self.last_used = Some(now);
        let token = self.due.pop_front()?;
        self.used += 1;
        Some(token)
    }

    /// A token that was taken is not used after all.
    pub fn give_back(&mut self, token: Instant) {
        self.used = self.used.saturating_sub(1);
        self.due.push_front(token);
    }

    /// A call waits for a token, or no longer does.
    pub fn wait(&mut self, begins: bool) {
        self.waiting = if begins { self.waiting.saturating_add(1) } else { self.waiting.saturating_sub(1) };
    }

    /// What is to be drawn now, if anything, for the bucket `key`.
    pub fn ask(&mut self, key: &str, now: Instant) -> Option<Ask> {
        self.drop_late(now);
        if self.next_draw.is_some_and(|at| at > now) {
            return None;
        }
        let held = u32::try_from(self.due.len()).unwrap_or(u32::MAX);
        let is_lately = |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < BUSY);
        let is_needed = is_lately(self.last_looked) && (self.is_down || !self.may_be_free(now));
        let ahead = if is_lately(self.last_used) { self.ahead } else { 0 }.max(u32::from(is_needed));
        let missing = self.waiting.saturating_add(ahead).saturating_sub(held);
        // Half of what is drawn ahead is waited for, so that slices stay few.
        (missing > 0 && missing >= ahead.div_ceil(2)).then(|| Ask {
            key: key.to_owned(),
            per_second: self.per_second,
            burst: 1.0,
            ahead: self.per_second.max(1.0),
            least: 1,
            wanted: missing,
        })
    }

    /// When it may be worth to ask again, where the last draw brought nothing.
    pub fn next_draw(&self, now: Instant) -> Option<Instant> {
        self.next_draw.filter(|at| *at > now)
    }

    /// A slice came; `now` is the instant at which it arrived. Whether draws had failed until then.
    pub fn add(&mut self, slice: Slice, now: Instant) -> bool {
        let was_down = std::mem::take(&mut self.is_down);
        self.next_draw = None;
        self.level = Some((slice.level, now));
        if slice.granted == 0 {
            // Others have all of the next second: there is one more token when one has come in.
            let missing = 1.0 - (slice.level + self.per_second.max(1.0));
            let wait = Duration::try_from_secs_f64((missing / self.per_second).max(0.001)).unwrap_or(AFTER_FAILURE);
            self.next_draw = Some(now + wait);
        }
        self.due.extend((1..=slice.granted).map(|nth| now + slice.due_in(self.per_second, nth)));
        self.learn();
        was_down
    }

    /// The draw failed: what is there is used up, and then nothing starts (S-088). Whether that is news.
    pub fn fail(&mut self, now: Instant) -> bool {
        self.next_draw = Some(now + AFTER_FAILURE);
        !std::mem::replace(&mut self.is_down, true)
    }

    /// Whether calls wait for a token.
    pub const fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// How long until a token comes into reach; `None` where none is on its way.
    pub fn next(&self, now: Instant) -> Option<Duration> {
        let reach = now + LEAD;
        self.due.iter().find(|due| **due > reach).map(|due| due.saturating_duration_since(reach))
    }

    /// Whether the rate is what calls wait for.
    pub fn is_short(&mut self, now: Instant) -> bool {
        self.near(now) == 0
    }

    /// Draws more ahead where all of it is used, and less where it is not.
    fn learn(&mut self) {
        let most = (self.per_second / 2.0).max(1.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is a u32")]
        let most = most as u32;
        if self.lapsed > 0 {
            self.ahead /= 2;
        } else if self.used > 0 && self.used >= self.ahead.div_ceil(2) {
            self.ahead = (self.ahead * 2).clamp(1, most);
        }
        (self.used, self.lapsed) = (0, 0);
    }

    fn drop_late(&mut self, now: Instant) {
        while self.due.front().is_some_and(|due| *due + LATE < now) {
            self.due.pop_front();
            self.lapsed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::Level;

    fn pace(rate: u32) -> Pace {
        Pace::new(NonZeroU32::new(rate).unwrap())
    }

    #[test]
    fn nothing_is_drawn_before_there_is_a_call() {
        let (mut pace, now) = (pace(10), Instant::now());
        assert_eq!((pace.room(now), pace.ask("a", now)), (1, None));
        assert_eq!(pace.take(now), None);
        pace.wait(true);
        assert_eq!(pace.room(now), 0, "one at a time until it is known that there are tokens");
        assert_eq!(pace.ask("a", now).unwrap().wanted, 1);
    }

    #[test]
    fn a_token_that_is_late_counts_for_nothing() {
        let (mut pace, now) = (pace(10), Instant::now());
        pace.add(Slice { granted: 2, level: -1.0 }, now);
        assert_eq!(pace.room(now), 1);
        assert!(pace.take(now + LATE * 2).is_some_and(|token| token > now + LATE * 2), "the first is over");
        assert_eq!(pace.take(now + LATE * 2), None);
    }

    #[test]
    fn without_its_store_it_uses_what_it_has_and_then_stops() {
        let (mut pace, now) = (pace(10), Instant::now());
        pace.add(Slice { granted: 1, level: 0.0 }, now);
        assert!(pace.fail(now) && !pace.fail(now));
        assert!(pace.room(now) == 1 && pace.take(now).is_some());
        assert_eq!((pace.room(now), pace.is_short(now)), (0, true), "and nothing is claimed on trust");
        let later = now + AFTER_FAILURE;
        assert_eq!((pace.ask("a", now), pace.room(later)), (None, 0));
        assert!(pace.ask("a", later).is_some(), "it is tried again where somebody looks, though no call waits");
        assert!(pace.add(Slice { granted: 1, level: 0.0 }, now + AFTER_FAILURE));
    }

    /// Four processes with all the work they can have, on a store that takes its time: nobody starts a call more than the
    /// rate allows in any second, most of the rate is used, and everybody gets some of it.
    #[test]
    fn processes_that_share_a_rate_use_most_of_it_and_never_more() {
        const RATE: u32 = 20;
        let start = Instant::now();
        let mut paces = [pace(RATE), pace(RATE), pace(RATE), pace(RATE)];
        let mut level: Option<Level> = None;
        let mut starts: Vec<(Duration, usize)> = Vec::new();
        let mut waits: [Vec<(u32, Option<Instant>)>; 4] = Default::default();
        let mut given_up = 0;
        for step in 0..20_000_u32 {
            let now = start + Duration::from_millis(step.into());
            for (who, pace) in paces.iter_mut().enumerate() {
                // Each claims when its turn in the store comes.
                if step % 7 == u32::try_from(who).unwrap() {
                    for _ in 0..pace.room(now) {
                        let token = pace.take(now);
                        if token.is_none() {
                            pace.wait(true);
                        }
                        waits[who].push((step, token));
                    }
                }
                if step % 5 == 0
                    && let Some(ask) = pace.ask("a", now)
                {
                    let slice = level.get_or_insert_with(|| Level::full(&ask, now)).draw(&ask, now);
                    pace.add(slice, now);
                }
                waits[who].retain_mut(|(since, token)| {
                    if token.is_none() && step - *since > 800 {
                        pace.wait(false);
                        given_up += 1;
                        return false;
                    }
                    if token.is_some_and(|at| at + LATE < now) {
                        *token = None;
                        pace.wait(true);
                    }
                    if token.is_none() {
                        *token = pace.take(now);
                        if token.is_some() {
                            pace.wait(false);
                        }
                    }
                    let starts_now = token.is_some_and(|at| at <= now);
                    if starts_now {
                        starts.push((now - start, who));
                    }
                    !starts_now
                });
            }
        }
        for (place, (since, _)) in starts.iter().enumerate() {
            let within = starts[place..].iter().take_while(|(at, _)| *at < *since + Duration::from_secs(1)).count();
            assert!(within <= RATE as usize + 1, "{within} in the second from {since:?}");
        }
        assert!(starts.len() >= 20 * 18, "{} of 400", starts.len());
        assert!(given_up <= 8, "{given_up} calls were claimed for nothing");
        for who in 0..4 {
            assert!(starts.iter().filter(|(_, by)| *by == who).count() >= 20, "everybody has a share");
        }
    }
}
