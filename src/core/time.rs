//! Instants and durations as the product writes them. Nothing here reads a clock: `Clock` is a port.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// An instant in microseconds since 1970-01-01T00:00:00Z, the unit both databases store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the epoch, never negative.
    pub const fn as_millis(self) -> u64 {
        if self.0 < 0 { 0 } else { (self.0 / 1_000) as u64 }
    }

    /// This instant cut to the millisecond, as answers show it.
    pub const fn to_millisecond(self) -> Self {
        Self(self.0.div_euclid(1_000) * 1_000)
    }

    /// The instant `by` later; the end of time stays where it is.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The instant `by` earlier.
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero where it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// RFC 3339 in UTC with milliseconds and `Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => f.write_str("9999-12-31T23:59:59.999Z"),
        }
    }
}

/// Why a text is not an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// A local time: which instant it means is anybody's guess.
    #[error("a time needs an offset, such as 2027-03-01T09:00:00Z or 2027-03-01T09:00:00+01:00")]
    NoOffset,
    /// Not RFC 3339 at all.
    #[error("not an RFC 3339 time, such as 2027-03-01T09:00:00Z")]
    NotATime,
}

/// RFC 3339 with any offset, never without one.
impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(raw: &str) -> Result<Self, TimestampError> {
        // jiff takes more than RFC 3339 does (week dates, bracketed zones): hold the text to the plain form first.
        let plain = raw.len() >= 16 && raw.is_ascii() && matches!(raw.as_bytes()[10], b'T' | b't' | b' ') && !raw.contains('[');
        if !plain {
            return Err(TimestampError::NotATime);
        }
        match raw.parse::<jiff::Timestamp>() {
            Ok(instant) => Ok(Self(instant.as_microsecond())),
            Err(_) if raw.parse::<jiff::civil::DateTime>().is_ok() => Err(TimestampError::NoOffset),
            Err(_) => Err(TimestampError::NotATime),
        }
    }
}

/// A text that is not a duration such as `90s`, `10m`, `24h` or `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a duration such as \"500ms\", \"90s\", \"10m\", \"24h\" or \"7d\"")]
pub struct NotADuration;

/// Reads `500ms`, `90s`, `10m`, `24h` or `7d`: one whole number and one unit.
pub fn parse_duration(raw: &str) -> Result<Duration, NotADuration> {
    let unit_at = raw.find(|c: char| !c.is_ascii_digit()).ok_or(NotADuration)?;
    let (digits, unit) = raw.split_at(unit_at);
    let millis_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(NotADuration),
    };
    let number: u64 = digits.parse().map_err(|_| NotADuration)?;
    // A thousand years are enough; the bound keeps all later sums far from overflow.
    number.checked_mul(millis_per_unit).filter(|ms| *ms <= 365_000 * 86_400_000).map(Duration::from_millis).ok_or(NotADuration)
}

/// The time that decisions and stores go by, and how long a wait takes in real time.
///
/// `now` is the store's time at the last anchor plus monotonic time since; it never goes backwards (S-047).
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Timestamp;

    /// How long `span` of this clock takes in real time: the same, but for debug builds with a scaled clock.
    fn real(&self, span: Duration) -> Duration {
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_with_any_offset_and_written_in_utc() {
        let at = |raw: &str| raw.parse::<Timestamp>().map(|t| t.to_string());
        assert_eq!(at("2027-03-01T09:00:00+01:00").as_deref(), Ok("2027-03-01T08:00:00.000Z"));
        assert_eq!(at("2027-03-01T08:00:00.1239Z").as_deref(), Ok("2027-03-01T08:00:00.123Z"));
        assert_eq!(at("2027-03-01T08:00:00"), Err(TimestampError::NoOffset));
        for wrong in ["", "tomorrow", "2027-13-01T00:00:00Z", "2027-03-01", "1767225600", "2027-03-01T09:00:00+01:00[Europe/Berlin]"] {
            assert_eq!(at(wrong), Err(TimestampError::NotATime), "{wrong}");
        }
    }

    #[test]
    fn durations_are_one_number_and_one_unit() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "90", "s", "1.5h", "-1s", "1h30m", "10 m", "99999999999999999999d", "18446744073709551615d"] {
            assert_eq!(parse_duration(wrong), Err(NotADuration), "{wrong}");
        }
    }
}
