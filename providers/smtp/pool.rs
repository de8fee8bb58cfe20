//! Connections kept for the next message: how many, how long, and whether one still works.
//! Opening one is `connection`'s business, sending over it `transaction`'s.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tidings_core::outcome::Report;
use tidings_core::time::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::connection::Connection;
use super::opening::Target;

/// The connections of one account. There are never more than slots.
pub(super) struct Pool {
    target: Arc<Target>,
    slots: Semaphore,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    connections: Vec<Connection>,
    /// A task is about to look for connections that have been idle too long.
    is_watched: bool,
}

impl Pool {
    pub(super) fn new(target: Arc<Target>, slots: usize) -> Arc<Self> {
        Arc::new(Self { target, slots: Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)), idle: Mutex::default() })
    }

    /// A slot, needed as long as a connection is in use; `None` where none becomes free within `limit`.
    pub(super) async fn slot(&self, limit: Duration) -> Option<SemaphorePermit<'_>> {
        timeout(limit, self.slots.acquire()).await.ok()?.ok()
    }

    /// A kept connection that has just proven itself. Those that do not are dropped.
    pub(super) async fn kept(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle().connections.pop()?;
            let fresh = self.target.clock.now().since(connection.used_at) < self.target.settings.idle_timeout;
            if fresh && connection.is_ready(&self.target).await {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    pub(super) async fn open(&self, until: Timestamp) -> Result<Connection, Report> {
        Box::pin(Connection::open(&self.target, until)).await
    }

    /// Keeps the connection for the next message, unless it has carried enough.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection) {
        if connection.messages >= self.target.settings.max_messages_per_connection {
            let target = self.target.clone();
            tokio::spawn(async move { connection.quit(&*target.clock).await });
            return;
        }
        connection.used_at = self.target.clock.now();
        let mut idle = self.idle();
        idle.connections.push(connection);
        if !std::mem::replace(&mut idle.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(self), self.target.clone()));
        }
    }

    /// Closes the idle connections.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut self.idle().connections);
        for connection in idle {
            connection.quit(&*self.target.clock).await;
        }
    }

    /// Takes out what has been idle too long; `false` where nothing is left to watch.
    fn take_overdue(&self, overdue: &mut Vec<Connection>) -> bool {
        let (now, limit) = (self.target.clock.now(), self.target.settings.idle_timeout);
        let mut idle = self.idle();
        overdue.extend(idle.connections.extract_if(.., |connection| now.since(connection.used_at) >= limit));
        idle.is_watched = !idle.connections.is_empty();
        idle.is_watched
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that nobody needed for too long, until none is left.
async fn watch(pool: Weak<Pool>, target: Arc<Target>) {
    loop {
        tokio::time::sleep(target.clock.real(target.settings.idle_timeout.max(Duration::from_millis(100)))).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut overdue = Vec::new();
        let goes_on = pool.take_overdue(&mut overdue);
        drop(pool);
        for connection in overdue {
            connection.quit(&*target.clock).await;
        }
        if !goes_on {
            return;
        }
    }
}
