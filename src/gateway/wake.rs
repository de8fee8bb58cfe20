//! Wake-up hints: for the pump, which lanes have something due; for calls that are held open, that something they may
//! wait for was committed. Hints only; polling is what guarantees progress (S-024).

use std::sync::{Arc, Mutex, PoisonError};

use tidings_core::ids::LaneId;
use tidings_core::time::Timestamp;
use tidings_store_postgres::PostgresStore;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Lanes to look at, soon or at an instant.
#[derive(Default)]
pub struct Wake {
    due: Mutex<Vec<(LaneId, Timestamp)>>,
    notify: Notify,
    arrivals: Notify,
    others: Option<Arc<PostgresStore>>,
}

impl Wake {
    /// Hints within this process, and to others where the store carries them.
    pub fn new(others: Option<Arc<PostgresStore>>) -> Self {
        Self { others, ..Self::default() }
    }

    /// Something is due in these lanes that this process has no room for: others may. Sent at most every few
    /// milliseconds, on a connection of its own.
    pub fn others(&self, lanes: &[LaneId]) {
        if let Some(others) = &self.others {
            others.notify(lanes);
        }
    }

    /// Something in `lane` is due at `at`, which may be now. Only the earliest instant of a lane is kept: the poll
    /// finds the others.
    pub fn lane(&self, lane: LaneId, at: Timestamp) {
        if tidings_core::crash::is_dropped("wake") {
            return;
        }
        {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            match due.iter_mut().find(|(known, _)| *known == lane) {
                Some((_, earliest)) => *earliest = at.min(*earliest),
                None => due.push((lane, at)),
            }
        }
        self.notify.notify_one();
    }

    /// A slot came free, or the process is stopping: look again.
    pub fn look(&self) {
        self.notify.notify_one();
    }

    /// Takes the lanes that are due at `now`, and says when the next one will be.
    pub fn take_due(&self, now: Timestamp) -> (Vec<LaneId>, Option<Timestamp>) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let ripe = due.iter().filter(|(_, at)| *at <= now).map(|(lane, _)| *lane).collect();
        due.retain(|(_, at)| *at > now);
        (ripe, due.iter().map(|(_, at)| *at).min())
    }

    /// Something was committed that held calls may wait for: all of them look again.
    pub fn arrived(&self) {
        self.arrivals.notify_waiters();
    }

    /// Ready at the next `arrived`; one that comes between this call and the first poll counts.
    pub fn arrival(&self) -> Notified<'_> {
        self.arrivals.notified()
    }

    /// Waits for the next hint.
    pub async fn hinted(&self) {
        self.notify.notified().await;
    }
}
