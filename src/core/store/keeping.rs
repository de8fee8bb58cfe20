//! Deleting what has been kept for long enough, in chunks that hold nobody up (S-025, S-215).

use async_trait::async_trait;

use super::StoreError;
use crate::ids::{DeliveryId, InstanceId, NotificationId, TenantId};
use crate::retention::{Kept, Retention, Standing};
use crate::time::Timestamp;

/// A notification of which something is due to be erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueNotification {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: NotificationId,
    /// How many deliveries it has; their ordinals count from 1.
    pub deliveries: u16,
}

impl DueNotification {
    /// All its deliveries.
    pub fn delivery_ids(&self) -> impl Iterator<Item = DeliveryId> + use<> {
        let id = self.id;
        (1..=self.deliveries).map(move |ordinal| id.delivery(ordinal))
    }
}

/// What one step of a walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// What is due.
    pub found: Vec<DueNotification>,
    /// The last notification that was looked at; `None` at the end of the walk.
    pub next: Option<NotificationId>,
}

impl Due {
    /// From deliveries in the order of their ids, of whom the last notification may have more where `is_cut`.
    pub fn of(
        rows: impl IntoIterator<Item = (DeliveryId, TenantId, Standing)>,
        is_cut: bool,
        is_due: impl Fn(&[Standing]) -> bool,
    ) -> Self {
        let mut looked_at: Vec<(DueNotification, Vec<Standing>)> = Vec::new();
        for (delivery, tenant, standing) in rows {
            let id = delivery.notification();
            match looked_at.last_mut() {
                Some((last, standings)) if last.id == id => {
                    last.deliveries += 1;
                    standings.push(standing);
                }
                _ => looked_at.push((DueNotification { tenant, id, deliveries: 1 }, vec![standing])),
            }
        }
        if is_cut {
            looked_at.pop();
        }
        let next = looked_at.last().map(|(last, _)| last.id).filter(|_| is_cut);
        let found = looked_at.into_iter().filter(|(_, standings)| is_due(standings)).map(|(found, _)| found).collect();
        Self { found, next }
    }

    /// What was found in pieces of no more than `most` deliveries, or of one notification.
    pub fn chunks(&self, most: usize) -> Vec<&[DueNotification]> {
        let (mut chunks, mut from, mut rows) = (Vec::new(), 0, 0);
        for (place, found) in self.found.iter().enumerate() {
            let more = usize::from(found.deliveries);
            if place > from && rows + more > most {
                chunks.push(&self.found[from..place]);
                (from, rows) = (place, 0);
            }
            rows += more;
        }
        if from < self.found.len() {
            chunks.push(&self.found[from..]);
        }
        chunks
    }
}

/// Retention.
#[async_trait]
pub trait Keeping: Send + Sync {
    /// Takes the run of a job in a window of time; false where another process has taken it (S-068).
    ///
    /// # Errors
    /// When it cannot be written.
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError>;

    /// Looks at the next notifications after `after`, oldest first, for what is due by `Retention::is_due`.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn due(&self, kept: Kept, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Due, StoreError>;

    /// Deliveries that one call of `erase` is given at most, beyond those of one notification: as many as hold nobody up.
    fn rows_at_once(&self) -> usize;

    /// Erases this of a chunk that `due` found, in one transaction. Each notification is looked at once more under its
    /// lock: what somebody moves at this moment, or has moved since, keeps everything. Returns of how many it was erased.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn erase(&self, kept: Kept, keep: &Retention, chunk: &[DueNotification], now: Timestamp) -> Result<u64, StoreError>;

    /// Deletes a chunk of the events told before `before`, and notes how far: readers who stand before that have missed
    /// some. Returns how many chunks like this may be left: 0 means that nothing is.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Deletes a chunk of what else grows: old messages of the sandbox, entries of the audit log, suppressions that
    /// expired, idle lines, processes that are gone. Returns how many rows went; 0 means that nothing is left.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn purge_rest(&self, keep: &Retention, now: Timestamp) -> Result<u64, StoreError>;

    /// Carries what the database keeps in its log over into its tables, beside everybody else, so that no commit has to.
    /// Returns how many pages were waiting.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn carry_log_over(&self) -> Result<i64, StoreError>;

    /// Gives a little of the space that was freed back; true where there may be more to give.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn give_back(&self, keep: &Retention, now: Timestamp) -> Result<bool, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;

    fn rows(counts: &[u16]) -> Vec<(DeliveryId, TenantId, Standing)> {
        let id = |n: usize| NotificationId::new(Timestamp::from_millis(1_800_000_000_000 + n as i64), [0; 10]);
        let standing = Standing { state: Some(State::Accepted), settled_at: None, needs_attention: false };
        let deliveries = |(n, count): (usize, &u16)| (1..=*count).map(move |ordinal| (id(n).delivery(ordinal), TenantId(1), standing));
        counts.iter().enumerate().flat_map(deliveries).collect()
    }

    #[test]
    fn a_notification_that_was_cut_is_left_to_the_next_step() {
        let whole = Due::of(rows(&[1, 3, 2]), false, |_| true);
        assert_eq!(whole.found.iter().map(|found| found.deliveries).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(whole.next, None);
        let cut = Due::of(rows(&[1, 3, 2]), true, |standings| standings.len() == 3);
        assert_eq!(cut.found.iter().map(|found| found.deliveries).collect::<Vec<_>>(), [3]);
        assert_eq!(cut.next, Some(cut.found[0].id));
    }

    #[test]
    fn chunks_hold_whole_notifications_and_no_more_than_their_rows() {
        let due = Due::of(rows(&[60, 40, 1, 500, 99, 1, 1]), false, |_| true);
        let sizes: Vec<Vec<u16>> = due.chunks(100).iter().map(|chunk| chunk.iter().map(|found| found.deliveries).collect()).collect();
        assert_eq!(sizes, [vec![60, 40], vec![1], vec![500], vec![99, 1], vec![1]]);
        assert!(Due::default().chunks(100).is_empty());
    }
}
