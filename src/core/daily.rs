//! How many calls an account may make in its provider's day (`daily_cap`): when that day begins and ends, and how far each
//! class may go into it (S-085, S-090). How processes share the day's calls is decided in `crate::pool`.

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::time::Timestamp;
use crate::words::Class;

/// Around the end of a day no call of a capped account starts for so long on either side: clocks that are this far apart
/// never take a call of one day for one of the next.
pub const MARGIN: Duration = Duration::from_secs(2);
const UTC_DAY: i64 = 86_400_000_000;

/// A cap and the zone in which its day begins at midnight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyCap {
    /// Calls in a day.
    pub calls: NonZeroU32,
    /// Where the provider's midnight is.
    pub zone: TimeZone,
}

/// One day of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Day {
    /// Its midnight, which belongs to it.
    pub start: Timestamp,
    /// The next one, which does not.
    pub end: Timestamp,
}

impl Day {
    /// Whether an instant lies in it.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.start <= now && now < self.end
    }

    /// Whether a call that starts now is one of this day by every clock.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.start.plus(MARGIN) <= now && now < self.end.minus(MARGIN)
    }
}

impl DailyCap {
    /// Up to which of the day's calls a class may go: bulk stops at 70% of the cap, transactional at 90%, and no class
    /// has less than one.
    pub fn bound(&self, class: Class) -> i64 {
        let calls = i64::from(self.calls.get());
        match class {
            Class::Critical => calls,
            Class::Transactional => (calls * 9 / 10).max(1),
            Class::Bulk => (calls * 7 / 10).max(1),
        }
    }

    /// The day that an instant lies in: computed, so that nothing has to run at midnight.
    pub fn day(&self, now: Timestamp) -> Day {
        self.local_day(now).unwrap_or_else(|| {
            // Beyond the calendar no zone has a say.
            let start = now.as_micros().div_euclid(UTC_DAY) * UTC_DAY;
            Day { start: Timestamp::from_micros(start), end: Timestamp::from_micros(start.saturating_add(UTC_DAY)) }
        })
    }

    fn local_day(&self, now: Timestamp) -> Option<Day> {
        let local = jiff::Timestamp::from_microsecond(now.as_micros()).ok()?.to_zoned_datetime(self.zone.clone());
        let midnight = |local: jiff::ZonedDateTime| Some(Timestamp::from_micros(local.start_of_day().ok()?.timestamp().as_microsecond()));
        let end = midnight(local.tomorrow().ok()?)?;
        Some(Day { start: midnight(local)?, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(calls: u32, zone: &str) -> DailyCap {
        DailyCap { calls: NonZeroU32::new(calls).unwrap(), zone: TimeZone::get(zone).unwrap() }
    }

    #[test]
    fn a_day_is_the_zones_own_also_where_clocks_are_changed() {
        for (zone, now, start, end) in [
            ("UTC", "2027-03-01T00:00:00Z", "2027-03-01T00:00:00Z", "2027-03-02T00:00:00Z"),
            ("UTC", "2027-03-01T23:59:59.999Z", "2027-03-01T00:00:00Z", "2027-03-02T00:00:00Z"),
            ("America/Los_Angeles", "2027-03-01T07:59:59Z", "2027-02-28T08:00:00Z", "2027-03-01T08:00:00Z"),
            // 23 and 25 hours long.
            ("Europe/Berlin", "2027-03-28T12:00:00Z", "2027-03-27T23:00:00Z", "2027-03-28T22:00:00Z"),
            ("Europe/Berlin", "2027-10-31T12:00:00Z", "2027-10-30T22:00:00Z", "2027-10-31T23:00:00Z"),
            // There is no midnight on the day that begins an hour late.
            ("America/Santiago", "2027-09-05T12:00:00Z", "2027-09-05T04:00:00Z", "2027-09-06T03:00:00Z"),
        ] {
            let expected = Day { start: start.parse().unwrap(), end: end.parse().unwrap() };
            assert_eq!(cap(1, zone).day(now.parse().unwrap()), expected, "{zone} at {now}");
        }
    }

    #[test]
    fn days_follow_each_other_without_a_gap() {
        let cap = cap(1, "Europe/Berlin");
        let mut day = cap.day("2027-01-01T12:00:00Z".parse().unwrap());
        for _ in 0..800 {
            assert_eq!((cap.day(day.start), cap.day(day.end.minus(Duration::from_micros(1)))), (day, day));
            let next = cap.day(day.end);
            assert_eq!(next.start, day.end);
            day = next;
        }
    }

    #[test]
    fn no_call_starts_where_clocks_may_differ_about_the_day() {
        let cap = cap(1, "UTC");
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        for (now, is_open) in [
            ("2027-03-01T00:00:01.999Z", false),
            ("2027-03-01T00:00:02Z", true),
            ("2027-03-01T23:59:57.999Z", true),
            ("2027-03-01T23:59:58Z", false),
        ] {
            assert_eq!(cap.day(at(now)).is_open(at(now)), is_open, "{now}");
        }
    }

    #[test]
    fn bulk_stops_at_seven_tenths_and_transactional_at_nine() {
        let bounds = |calls| [Class::Critical, Class::Transactional, Class::Bulk].map(|class| cap(calls, "UTC").bound(class));
        assert_eq!([50_000, 10, 3, 1].map(bounds), [[50_000, 45_000, 35_000], [10, 9, 7], [3, 2, 2], [1, 1, 1]]);
    }
}
