//! When an idempotency key is free again (S-009, S-010). It is derived from what its notification came to and stored
//! nowhere; how a free key changes hands is the stores' business.

use std::time::Duration;

use crate::ids::NotificationId;
use crate::time::Timestamp;

/// How long a key is kept after the last delivery of its notification is settled.
pub const KEY_RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// Whether the key of this notification can be free at all: nothing settles before it is accepted, so that a younger
/// one need not be looked into.
pub fn may_be_free(holder: NotificationId, now: Timestamp) -> bool {
    holder.created_at().plus(KEY_RETENTION) <= now
}

/// Whether a key is free again: every delivery is settled, the last of them for as long as keys are kept. While one is
/// open (`None`) it never is; a notification of which nothing is left holds nothing.
pub fn key_is_free(settled_at: impl IntoIterator<Item = Option<Timestamp>>, now: Timestamp) -> bool {
    settled_at.into_iter().all(|settled| settled.is_some_and(|settled| settled.plus(KEY_RETENTION) <= now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    const MONTH: i64 = 30 * 86_400;

    #[test]
    fn a_key_is_free_30_days_after_the_last_delivery_is_settled_and_not_a_second_sooner() {
        let settled = [Some(at(5)), Some(at(100)), Some(at(20))];
        assert!(!key_is_free(settled, at(100 + MONTH - 1)));
        assert!(key_is_free(settled, at(100 + MONTH)));
    }

    #[test]
    fn the_key_of_an_open_notification_is_never_free() {
        assert!(!key_is_free([Some(at(0)), None], at(1_000 * MONTH)));
    }

    #[test]
    fn a_key_whose_notification_is_gone_is_free() {
        assert!(key_is_free([], at(0)));
    }

    #[test]
    fn a_young_notification_need_not_be_looked_into() {
        let id = NotificationId::new(at(0), [1; 10]);
        assert!(!may_be_free(id, at(MONTH - 1)));
        assert!(may_be_free(id, at(MONTH)));
    }
}
