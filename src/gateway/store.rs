//! Which store the configuration means, opened and brought up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tidings_core::store::{Store, StoreError};
use tidings_store_postgres::PostgresStore;
use tidings_store_sqlite::SqliteStore;

use crate::config::Settings;

/// An open store, and its way to wake other processes where it has one.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// PostgreSQL: wake-ups between processes.
    pub signals: Option<Arc<PostgresStore>>,
}

/// Opens the store that `store.url` names. PostgreSQL is connected when it is first used.
///
/// # Errors
/// When the URL or the file cannot be used.
pub async fn open(settings: &Settings) -> anyhow::Result<Opened> {
    let url = settings.store.url.reveal();
    if let Some(path) = url.strip_prefix("sqlite://") {
        let store = SqliteStore::open(std::path::Path::new(path)).await?;
        return Ok(Opened { store: Arc::new(store), signals: None });
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let options = tidings_store_postgres::Options {
            max_connections: settings.store.max_connections,
            statement_cache: settings.store.statement_cache,
            listen_url: settings.store.listen_url.as_ref().map(|url| url.reveal().to_owned()),
            migrate_url: settings.store.migrate_url.as_ref().map(|url| url.reveal().to_owned()),
            ..Default::default()
        };
        let store = Arc::new(PostgresStore::connect(url, options).await.context("store.url")?);
        return Ok(Opened { store: store.clone(), signals: Some(store) });
    }
    bail!("store.url must begin with sqlite:// or postgres://")
}

/// Waits for the store at most `patience` and migrates it.
///
/// # Errors
/// When it does not come, or its schema cannot be used.
pub async fn ready(store: &dyn Store, settings: &Settings, patience: Duration) -> anyhow::Result<()> {
    let since = Instant::now();
    loop {
        let tried = if settings.store.migrates() { store.migrate().await } else { store.time().await.map(|_| ()) };
        match tried {
            Ok(()) => return Ok(()),
            Err(error @ (StoreError::Unreachable(_) | StoreError::Busy(_))) if since.elapsed() < patience => {
                tracing::warn!(error = %crate::keeper::chain(&error), "the store is away; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error).context(format!("{} cannot be used", store.describe())),
        }
    }
}
