//! Deleting what has been kept for long enough, in chunks that hold nobody up (S-025, S-215).

use async_trait::async_trait;

use super::StoreError;
use crate::ids::{InstanceId, NotificationId};
use crate::retention::Retention;
use crate::time::Timestamp;

/// How far one chunk of a walk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walked {
    /// The last notification that was looked at; `None` at the end of the walk.
    pub next: Option<NotificationId>,
    /// How many rows were erased.
    pub erased: u64,
}

/// Retention.
#[async_trait]
pub trait Keeping: Send + Sync {
    /// Takes the run of a job in a window of time; false where another process has taken it (S-068).
    ///
    /// # Errors
    /// When it cannot be written.
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError>;

    /// Looks at the next notifications after `after`, oldest first, and erases the content of those that are due by
    /// `Retention::content_is_due`.
    ///
    /// # Errors
    /// When it cannot be read or written.
    async fn erase_content(&self, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Walked, StoreError>;

    /// Deletes a chunk of the events told before `before`, and notes how far: readers who stand before that have missed
    /// some. Returns how many chunks like this may be left: 0 means that nothing is.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Gives a little free space back to the file system; true where there is more to give.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn give_back(&self) -> Result<bool, StoreError>;
}
