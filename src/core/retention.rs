//! How long what is kept is kept, counted from when nothing more is expected of it (S-215). What is gone by then is the
//! stores' business to delete; when they look, the gateway's.

use std::time::Duration;

use crate::key_expiry::KEY_RETENTION;
use crate::policy::REPLAY_WINDOW;
use crate::state::State;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(86_400);

/// How long the audit log is kept.
pub const AUDIT_KEPT: Duration = DAY.saturating_mul(400);
/// How long a process that was not seen any more is remembered: far longer than any lease that names it.
pub const INSTANCES_KEPT: Duration = DAY.saturating_mul(30);
/// How long a line of one `ordering_key` in which nothing stands is remembered.
pub const IDLE_LINES_KEPT: Duration = DAY;
/// How long the counts of accounts' days are kept.
pub const QUOTAS_KEPT: Duration = DAY.saturating_mul(8);
/// Raw webhooks go before this; until then their partitions are left alone.
pub const ENVELOPES_KEPT: Duration = DAY.saturating_mul(60);
/// The least that a record is kept: the longest wait for a receipt, and a month for a bounce that comes late (S-157).
pub const LEAST_METADATA: Duration = DAY.saturating_mul(33);

// Nobody can open again what is past both: a resend needs content, and is allowed for the shorter one alone.
const _: () = assert!(KEY_RETENTION.as_secs() > REPLAY_WINDOW.as_secs());

/// What goes at its own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// What was said.
    Content,
    /// To whom: sealed addresses and references, also of copies; and with them the key, which is free by then.
    Destinations,
    /// That it was said at all: the notification with its deliveries and attempts.
    Records,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its end; `None` while it is open, or where the word for it is a newer binary's.
    pub state: Option<State>,
    /// When it is settled.
    pub settled_at: Option<Timestamp>,
    /// Whether it waits among the dead letters for somebody to judge it.
    pub needs_attention: bool,
}

/// How long each kind of data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Content, after the last delivery is settled; messages of the sandbox, after they came.
    pub content: Duration,
    /// Content of what ended `dead` or `unknown`: whoever judges it needs to see it, or to send it again.
    pub content_dead: Duration,
    /// Addresses and references, after the last delivery is settled.
    pub destination: Duration,
    /// Records, after the last delivery is settled.
    pub metadata: Duration,
    /// Events, after they were told.
    pub events: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { content: DAY * 7, content_dead: DAY * 14, destination: KEY_RETENTION, metadata: DAY * 90, events: DAY * 30 }
    }
}

impl Retention {
    /// What was accepted at this instant or later cannot be due yet: nothing settles before it is accepted.
    pub fn youngest(&self, kept: Kept, now: Timestamp) -> Timestamp {
        now.minus(match kept {
            Kept::Content => self.content.min(self.content_dead),
            Kept::Destinations => self.destination,
            Kept::Records => self.metadata,
        })
    }

    /// Whether this of a notification is due to be erased, given how all its deliveries stand (S-025). While one is open it
    /// never is.
    pub fn is_due(&self, kept: Kept, deliveries: &[Standing], now: Timestamp) -> bool {
        let is_over = |delivery: &Standing| {
            let (Some(state), Some(settled)) = (delivery.state, delivery.settled_at) else { return false };
            match kept {
                Kept::Content if matches!(state, State::Dead | State::Unknown) => settled.plus(self.content_dead) <= now,
                Kept::Content => settled.plus(self.content) <= now,
                Kept::Destinations => settled.plus(self.destination) <= now,
                Kept::Records => settled.plus(self.metadata) <= now && !delivery.needs_attention,
            }
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

    fn ended(state: State, days: i64) -> Standing {
        Standing { state: Some(state), settled_at: Some(at(days)), needs_attention: matches!(state, State::Dead | State::Unknown) }
    }

    const OPEN: Standing = Standing { state: None, settled_at: None, needs_attention: false };

    #[test]
    fn each_kind_goes_when_the_last_delivery_has_been_settled_long_enough() {
        let keep = Retention::default();
        let discarded = Standing { needs_attention: false, ..ended(State::Dead, 0) };
        for (kept, deliveries, last_kept, gone) in [
            (Kept::Content, vec![ended(State::Accepted, 0)], 6, 7),
            (Kept::Content, vec![ended(State::Accepted, 0), ended(State::Bounced, 3)], 9, 10),
            (Kept::Content, vec![ended(State::Dead, 0)], 13, 14),
            (Kept::Content, vec![ended(State::Accepted, 3), ended(State::Unknown, 0)], 13, 14),
            (Kept::Destinations, vec![ended(State::Accepted, 0), ended(State::Dead, 2)], 31, 32),
            (Kept::Records, vec![ended(State::Accepted, 0), ended(State::Failed, 2)], 91, 92),
            (Kept::Records, vec![discarded], 89, 90),
        ] {
            assert!(!keep.is_due(kept, &deliveries, at(last_kept)), "{kept:?} {deliveries:?}");
            assert!(keep.is_due(kept, &deliveries, at(gone)), "{kept:?} {deliveries:?}");
            assert!(keep.youngest(kept, at(gone)) >= at(0), "{kept:?} {deliveries:?}");
        }
    }

    #[test]
    fn what_is_open_or_waits_for_a_judgement_never_goes() {
        let keep = Retention::default();
        for kept in [Kept::Content, Kept::Destinations, Kept::Records] {
            assert!(!keep.is_due(kept, &[ended(State::Accepted, 0), OPEN], at(9_000)), "{kept:?}");
            assert!(!keep.is_due(kept, &[], at(9_000)), "{kept:?}");
        }
        assert!(!keep.is_due(Kept::Records, &[ended(State::Accepted, 0), ended(State::Unknown, 0)], at(9_000)));
    }
}
