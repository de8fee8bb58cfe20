//! The calls of an account's day in this process: units drawn in advance from the one count that all processes share
//! (S-086, S-090). A unit that was drawn is counted as used, so that whatever dies with its process is never used twice;
//! what a process gives back, the next one may have. Where the count is kept is the store's business.

use crate::daily::{DailyCap, Day};
use crate::time::Timestamp;
use crate::words::Class;
use std::time::Duration;

/// Of a cap so much is held for one class at most, be it the hundredth part of the cap.
const MOST: u32 = 256;
/// A slice is at most this part of what is left, so that others get something too and little dies with a process.
const PART: i64 = 8;
/// After a draw or a look that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How often it is looked whether something came back to a pool that was used up.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What one process asks of the count of one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Whose count.
    pub key: String,
    /// When its day began.
    pub day: Timestamp,
    /// The cap, for whoever looks at the row.
    pub cap: i64,
    /// How far the count may go.
    pub bound: i64,
    /// What would be welcome.
    pub wanted: i64,
}

impl Ask {
    /// What is granted where `used` are gone.
    pub fn grant(&self, used: i64) -> i64 {
        let room = (self.bound - used).max(0);
        self.wanted.min((room / PART).max(1)).min(room).max(0)
    }
}

/// What was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// So many units.
    pub granted: i64,
    /// The count afterwards.
    pub used: i64,
}

/// Units that nobody here will use: they go back to their count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// Whose count.
    pub key: String,
    /// When its day began.
    pub day: Timestamp,
    /// How many.
    pub units: i64,
}

/// What a pool needs of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The count of the day that began then.
    Look(Timestamp),
    /// Units for a class.
    Draw(Class, Ask),
}

/// Leave for one call to start.
#[derive(Debug)]
pub struct Unit {
    place: usize,
    era: u64,
    day: Timestamp,
}

/// See the module.
#[derive(Debug)]
pub struct Pool {
    cap: DailyCap,
    day: Day,
    /// Rises with whatever makes useless what was drawn before: a new day, another cap, the end.
    era: u64,
    /// The count as it was told last; nothing is claimed before it is known.
    used: Option<i64>,
    /// By class, critical first. A unit serves its class and those before it.
    lines: [Line; 3],
    given_up: i64,
    is_watched: bool,
    next_look: Option<Timestamp>,
    next_try: Option<Timestamp>,
    is_down: bool,
    is_closed: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Line {
    held: u32,
    /// Calls that wait for a unit.
    waiting: u32,
    /// How many to draw in advance.
    ahead: u32,
    /// How many were taken since the last draw.
    taken: u32,
}

const fn place(class: Class) -> usize {
    match class {
        Class::Critical => 0,
        Class::Transactional => 1,
        Class::Bulk => 2,
    }
}

impl Pool {
    /// Nothing drawn yet.
    pub fn new(cap: DailyCap, now: Timestamp) -> Self {
        Self {
            day: cap.day(now),
            cap,
            era: 0,
            used: None,
            lines: [Line::default(); 3],
            given_up: 0,
            is_watched: false,
            next_look: None,
            next_try: None,
            is_down: false,
            is_closed: false,
        }
    }

    /// Goes by another cap from now on: what was drawn by the old one is given back first.
    pub fn adopt(&mut self, cap: &DailyCap, now: Timestamp) {
        self.roll(now);
        if *cap != self.cap {
            self.give_up();
            self.cap = cap.clone();
            let day = self.cap.day(now);
            if day != self.day {
                (self.day, self.given_up) = (day, 0);
            }
        }
    }

    /// Gives back what is held and starts nothing any more.
    pub fn close(&mut self) {
        self.give_up();
        self.is_closed = true;
    }

    /// The present day.
    pub const fn day(&self) -> Day {
        self.day
    }

    /// How many calls the day has.
    pub const fn cap(&self) -> &DailyCap {
        &self.cap
    }

    /// Units that are held and not used.
    pub fn held(&self) -> i64 {
        self.lines.iter().map(|line| i64::from(line.held)).sum::<i64>() + self.given_up
    }

    /// How many more calls each class may claim, critical first; each number includes those behind it. Without a unit one
    /// may, as far as there may be one for it: who has nothing to send draws nothing.
    pub fn room(&mut self, now: Timestamp) -> [u32; 3] {
        self.roll(now);
        self.is_watched = true;
        if !self.day.is_open(now) || self.is_closed {
            return [0; 3];
        }
        let waiting: u32 = self.lines.iter().map(|line| line.waiting).sum();
        [Class::Critical, Class::Transactional, Class::Bulk].map(|class| match self.held_for(class) {
            0 => u32::from(self.lines[place(class)].waiting == 0 && !self.is_down && self.has_left(class)),
            held => held.saturating_sub(waiting),
        })
    }

    /// The next unit for a call, those first that serve the fewest classes.
    pub fn take(&mut self, class: Class, now: Timestamp) -> Option<Unit> {
        self.roll(now);
        if !self.day.is_open(now) || self.is_closed {
            return None;
        }
        let own = place(class);
        let place = (own..self.lines.len()).find(|place| self.lines[*place].held > 0)?;
        self.lines[place].held -= 1;
        self.lines[own].taken = self.lines[own].taken.saturating_add(1);
        Some(Unit { place, era: self.era, day: self.day.start })
    }

    /// Whether a call may start with this unit.
    pub fn is_good(&mut self, unit: &Unit, now: Timestamp) -> bool {
        self.roll(now);
        unit.era == self.era && self.day.is_open(now)
    }

    /// A unit is not used after all.
    pub fn give_back(&mut self, unit: &Unit, now: Timestamp) {
        self.roll(now);
        if unit.era == self.era {
            self.lines[unit.place].held += 1;
        } else if unit.day == self.day.start {
            self.given_up += 1;
        }
    }

    /// A call waits for a unit, or no longer does.
    pub fn wait(&mut self, class: Class, begins: bool) {
        let waiting = &mut self.lines[place(class)].waiting;
        *waiting = if begins { waiting.saturating_add(1) } else { waiting.saturating_sub(1) };
    }

    /// Whether calls wait for a unit.
    pub fn is_waited_for(&self) -> bool {
        self.lines.iter().any(|line| line.waiting > 0)
    }

    /// Whether there is nothing for a class now: its part of the day is used up, or nobody can tell.
    pub fn is_short(&self, class: Class, now: Timestamp) -> bool {
        self.is_used_up(class, now) || (self.is_down && self.held_for(class) == 0)
    }

    /// Whether a class's part of the day is used up, as far as is known here.
    pub fn is_used_up(&self, class: Class, now: Timestamp) -> bool {
        let is_gone = self.held_for(class) == 0 && self.used.is_some() && !self.has_left(class);
        self.day.holds(now) && (is_gone || !self.day.is_open(now))
    }

    /// What is needed of the store now, for the count `key`. Nothing is, unless somebody wants to send.
    pub fn need(&mut self, key: &str, now: Timestamp) -> Option<Need> {
        self.roll(now);
        let is_wanted = self.is_watched || self.is_waited_for();
        if self.is_closed || !is_wanted || !self.day.is_open(now) || self.next_try.is_some_and(|at| at > now) {
            return None;
        }
        if self.used.is_none() || self.is_down || self.next_look.is_some_and(|at| at <= now) {
            return Some(Need::Look(self.day.start));
        }
        [Class::Critical, Class::Transactional, Class::Bulk].into_iter().find_map(|class| Some(Need::Draw(class, self.ask(key, class)?)))
    }

    fn ask(&self, key: &str, class: Class) -> Option<Ask> {
        let line = &self.lines[place(class)];
        // Half of what is drawn in advance is waited for, so that slices stay few; who uses nothing draws nothing.
        let ahead = if line.taken > 0 { line.ahead } else { 0 };
        let missing = line.waiting.saturating_add(ahead).saturating_sub(self.held_for(class));
        if missing == 0 || missing < ahead.div_ceil(2) || !self.has_left(class) {
            return None;
        }
        let (cap, bound) = (i64::from(self.cap.calls.get()), self.cap.bound(class));
        Some(Ask { key: key.to_owned(), day: self.day.start, cap, bound, wanted: i64::from(missing) })
    }

    /// The count of the day that began then is known.
    pub fn know(&mut self, day: Timestamp, used: i64, now: Timestamp) -> bool {
        self.roll(now);
        if day == self.day.start {
            self.is_watched = false;
            self.used = Some(used);
            self.plan_look(now);
        }
        self.is_up_again()
    }

    /// A slice came for a class, by this ask; whether draws had failed until then.
    pub fn add(&mut self, class: Class, ask: &Ask, drawn: Drawn, now: Timestamp) -> bool {
        self.roll(now);
        let is_of_now = ask.day == self.day.start && ask.bound == self.cap.bound(class) && !self.is_closed;
        if is_of_now {
            let most = (self.cap.calls.get() / 100).clamp(1, MOST);
            let line = &mut self.lines[place(class)];
            line.held = line.held.saturating_add(u32::try_from(drawn.granted).unwrap_or_default());
            if line.taken > 0 && line.taken >= line.ahead.div_ceil(2) {
                line.ahead = (line.ahead * 2).clamp(1, most);
            }
            line.taken = 0;
            self.used = Some(drawn.used);
            self.plan_look(now);
        } else if ask.day == self.day.start {
            self.given_up += drawn.granted;
        }
        self.is_up_again()
    }

    /// The store did not answer: what is held is used, and then nothing starts (S-088). Whether that is news.
    pub fn fail(&mut self, now: Timestamp) -> bool {
        self.next_try = Some(now.plus(AFTER_FAILURE));
        !std::mem::replace(&mut self.is_down, true)
    }

    /// What goes back to the count `key`: it is told once.
    pub fn rest(&mut self, key: &str) -> Option<Rest> {
        let units = std::mem::take(&mut self.given_up);
        (units > 0).then(|| Rest { key: key.to_owned(), day: self.day.start, units })
    }

    fn is_up_again(&mut self) -> bool {
        self.next_try = None;
        std::mem::take(&mut self.is_down)
    }

    fn plan_look(&mut self, now: Timestamp) {
        let is_used_up = !self.has_left(Class::Bulk);
        self.next_look = is_used_up.then(|| now.plus(LOOK_AGAIN));
    }

    fn held_for(&self, class: Class) -> u32 {
        self.lines[place(class)..].iter().map(|line| line.held).sum()
    }

    fn has_left(&self, class: Class) -> bool {
        self.used.is_some_and(|used| used < self.cap.bound(class))
    }

    fn give_up(&mut self) {
        self.given_up = self.held();
        self.forget();
    }

    /// A new day begins with nothing: what was drawn for the last one is over.
    fn roll(&mut self, now: Timestamp) {
        if !self.day.holds(now) {
            self.day = self.cap.day(now);
            self.given_up = 0;
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.era += 1;
        (self.used, self.next_look) = (None, None);
        for line in &mut self.lines {
            *line = Line { waiting: line.waiting, ..Line::default() };
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
