//! How long what is kept is kept, counted from when nothing more is expected of it (S-215). What is gone by then is the
//! stores' business to delete; when they look, the gateway's.

use std::time::Duration;

use crate::state::State;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(86_400);

/// Where a delivery stands: its end, `None` while it is open, and when it is settled.
pub type Standing = (Option<State>, Option<Timestamp>);

/// How long each kind of data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Content, after the last delivery is settled.
    pub content: Duration,
    /// Content of what ended `dead` or `unknown`: whoever judges it needs to see it, or to send it again.
    pub content_dead: Duration,
    /// Events, after they were told.
    pub events: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { content: DAY * 7, content_dead: DAY * 14, events: DAY * 30 }
    }
}

impl Retention {
    /// What was accepted at this instant or later cannot be due yet: nothing settles before it is accepted.
    pub fn youngest_content(&self, now: Timestamp) -> Timestamp {
        now.minus(self.content.min(self.content_dead))
    }

    /// Whether the content of a notification is due to be erased, given the state and `settled_at` of all its deliveries.
    /// While one is open it never is.
    pub fn content_is_due(&self, deliveries: &[Standing], now: Timestamp) -> bool {
        let is_over = |&(state, settled): &(Option<State>, Option<Timestamp>)| match (state, settled) {
            (Some(State::Dead | State::Unknown), Some(settled)) => settled.plus(self.content_dead) <= now,
            (Some(_), Some(settled)) => settled.plus(self.content) <= now,
            _ => false,
        };
        !deliveries.is_empty() && deliveries.iter().all(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(days: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + days * 86_400_000)
    }

    #[test]
    fn content_goes_when_the_last_delivery_has_been_settled_long_enough() {
        let keep = Retention::default();
        let ended = |state, days| (Some(state), Some(at(days)));
        for (deliveries, last_kept, gone) in [
            (vec![ended(State::Accepted, 0)], 6, 7),
            (vec![ended(State::Accepted, 0), ended(State::Bounced, 3)], 9, 10),
            (vec![ended(State::Dead, 0)], 13, 14),
            (vec![ended(State::Accepted, 3), ended(State::Unknown, 0)], 13, 14),
        ] {
            assert!(!keep.content_is_due(&deliveries, at(last_kept)), "{deliveries:?}");
            assert!(keep.content_is_due(&deliveries, at(gone)), "{deliveries:?}");
        }
        assert!(!keep.content_is_due(&[ended(State::Accepted, 0), (None, None)], at(9_000)));
        assert!(!keep.content_is_due(&[], at(9_000)));
    }
}
