//! Promises that only PostgreSQL has to keep.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod faults;
mod moving;
mod partitions;
mod plans;
mod races;
mod scale;
mod schema;
mod wake;

use std::sync::Arc;

use tidings_core::store::{Accepted, NewNotification, StoreError, WriteBatch};
use tidings_store_postgres::PostgresStore;

use crate::fresh::{self, PostgresDatabase};
use crate::store_suite::{World, at};

/// A world, and the database under it; `None` where there is no PostgreSQL.
async fn world(processes: usize) -> Option<(World, Arc<PostgresDatabase>)> {
    let database = Arc::new(fresh::database(processes).await?);
    Some((World::new(Arc::clone(&database) as Arc<dyn crate::store_suite::Database>).await, database))
}

/// Accepts through one of the processes.
async fn accept_on(store: &PostgresStore, world: &World, items: Vec<NewNotification>) -> Vec<Result<Accepted, StoreError>> {
    use tidings_core::store::Outbox as _;
    let accept = items.into_iter().map(Arc::new).collect();
    store.commit(&world.rules, WriteBatch { accept, ..WriteBatch::default() }, at(0)).await.accept
}
