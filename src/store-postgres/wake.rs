//! Wake-ups between processes: hints after a commit, on connections of their own. Polling is what guarantees progress
//! (S-024), so everything here may fail in silence.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tidings_core::ids::LaneId;
use tidings_core::store::{STATEMENT_LIMIT, StoreError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::error::before;

const CHANNEL: &str = "tidings_wake";
/// The least time between two notifications of one process.
const INTERVAL: Duration = Duration::from_millis(5);
/// The least time between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);
/// A notification carries less than 8,000 bytes; with more lanes than this it names none.
const MOST_LANES: usize = 512;

/// Something may wait to be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Woken {
    /// In these lanes.
    Lanes(Vec<LaneId>),
    /// Anywhere: notifications may have been missed, so poll at once.
    Everything,
}

/// Sends notifications from a task of its own, which starts with the first one.
#[derive(Debug)]
pub(crate) struct Wake {
    options: PgConnectOptions,
    pending: Arc<Pending>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct Pending {
    lanes: Mutex<BTreeSet<LaneId>>,
    arrived: Notify,
}

impl Pending {
    fn take(&self) -> BTreeSet<LaneId> {
        std::mem::take(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wake {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        Self { options, pending: Arc::default(), task: OnceLock::new() }
    }

    /// Tells other processes about rows in these lanes, soon and once for many calls. Must be called inside a runtime.
    pub(crate) fn notify(&self, lanes: &[LaneId]) {
        if lanes.is_empty() {
            return;
        }
        self.pending.lanes.lock().unwrap_or_else(PoisonError::into_inner).extend(lanes);
        self.pending.arrived.notify_one();
        self.task.get_or_init(|| tokio::spawn(send_all(self.options.clone(), Arc::clone(&self.pending))).abort_handle());
    }

    pub(crate) fn close(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.close();
    }
}

async fn send_all(options: PgConnectOptions, pending: Arc<Pending>) {
    let mut connection: Option<PgConnection> = None;
    loop {
        pending.arrived.notified().await;
        let lanes = pending.take();
        if lanes.is_empty() {
            continue;
        }
        let payload = payload(&lanes);
        let sending = send(&options, connection.take(), &payload);
        let pause = match tokio::time::timeout(STATEMENT_LIMIT, sending).await {
            Ok(Ok(kept)) => {
                connection = Some(kept);
                INTERVAL
            }
            Ok(Err(_)) | Err(_) => {
                tracing::debug!("other processes could not be woken; they poll");
                RECONNECT
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn send(options: &PgConnectOptions, connection: Option<PgConnection>, payload: &str) -> Result<PgConnection, sqlx::Error> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => PgConnection::connect_with(options).await?,
    };
    sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(payload).execute(&mut connection).await?;
    Ok(connection)
}

fn payload(lanes: &BTreeSet<LaneId>) -> String {
    if lanes.len() > MOST_LANES {
        return String::new();
    }
    lanes.iter().map(LaneId::to_string).collect::<Vec<_>>().join(",")
}

fn woken(payload: &str) -> Woken {
    let lanes: Option<Vec<LaneId>> = payload.split(',').map(|lane| lane.parse().ok().map(LaneId)).collect();
    lanes.map_or(Woken::Everything, Woken::Lanes)
}

/// Hears the notifications of all processes, its own included.
#[derive(Debug)]
pub struct WakeListener {
    listener: PgListener,
}

impl WakeListener {
    pub(crate) async fn listen(options: PgConnectOptions) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(STATEMENT_LIMIT)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await.map_err(before)?;
        listener.ignore_pool_close_event(true);
        listener.listen(CHANNEL).await.map_err(before)?;
        Ok(Self { listener })
    }

    /// Waits for the next notification. A lost connection is made anew, as often as it takes, and answers `Everything`.
    pub async fn next(&mut self) -> Woken {
        match self.listener.try_recv().await {
            Ok(Some(notification)) => woken(notification.payload()),
            Ok(None) => Woken::Everything,
            Err(_) => {
                tracing::debug!("no wake-ups from other processes; polling goes on");
                tokio::time::sleep(RECONNECT).await;
                Woken::Everything
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_travel_as_numbers_and_too_many_as_none() {
        let lanes: BTreeSet<LaneId> = [LaneId(3), LaneId(12)].into();
        assert_eq!(woken(&payload(&lanes)), Woken::Lanes(vec![LaneId(3), LaneId(12)]));
        let many: BTreeSet<LaneId> = (0..1_000).map(LaneId).collect();
        assert_eq!(woken(&payload(&many)), Woken::Everything);
        assert!(payload(&(0..512).map(|n| LaneId(i32::MAX - n)).collect()).len() < 8_000);
    }
}
