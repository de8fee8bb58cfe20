//! A database of its own for each promise, and statements past the port over a second connection.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tidings_core::store::Store;
use tidings_core::time::Timestamp;
use tidings_store_postgres::{Options, PostgresStore};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::postgres::TestPostgres;
use crate::store_suite::Database;

/// Stores on one database.
pub(crate) struct PostgresDatabase {
    stores: Vec<Arc<PostgresStore>>,
    prompt: Mutex<PgConnection>,
    url: String,
}

/// An empty, migrated database with one process on it; `None` where there is no PostgreSQL.
pub(crate) async fn one_store() -> Option<Arc<dyn Database>> {
    Some(Arc::new(database(1).await?))
}

/// An empty, migrated database with four processes on it; `None` where there is no PostgreSQL.
pub(crate) async fn four_stores() -> Option<Arc<dyn Database>> {
    Some(Arc::new(database(4).await?))
}

/// An empty, migrated database with this many processes on it; `None` where there is no PostgreSQL.
pub(crate) async fn database(processes: usize) -> Option<PostgresDatabase> {
    let url = TestPostgres::get()?.fresh_database().await;
    let mut stores = Vec::with_capacity(processes);
    for _ in 0..processes {
        stores.push(Arc::new(store(&url).await));
    }
    let prompt = Mutex::new(PgConnection::connect(&url).await.expect("a second connection"));
    Some(PostgresDatabase { stores, prompt, url })
}

/// One more process on a database.
pub(crate) async fn store(url: &str) -> PostgresStore {
    PostgresStore::connect(url, Options { max_connections: 8, ..Options::default() }).await.expect("a URL of ours")
}

impl PostgresDatabase {
    /// The handles, as what they are.
    pub(crate) fn handles(&self) -> &[Arc<PostgresStore>] {
        &self.stores
    }

    /// Another session at the prompt.
    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("another connection")
    }

    /// Where the database is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

#[async_trait]
impl Database for PostgresDatabase {
    fn stores(&self) -> Vec<Arc<dyn Store>> {
        self.stores.iter().map(|store| Arc::clone(store) as Arc<dyn Store>).collect()
    }

    async fn execute(&self, sql: &str) -> Result<u64, String> {
        let done = sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut *self.prompt.lock().await).await;
        done.map(|done| done.rows_affected()).map_err(|err| err.to_string())
    }

    async fn number(&self, sql: &str) -> i64 {
        let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut *self.prompt.lock().await).await;
        number.expect("a statement that selects one number")
    }

    async fn another(&self) -> Arc<dyn Store> {
        let url = TestPostgres::get().expect("there is one").fresh_database().await;
        Arc::new(store(&url).await)
    }

    async fn columns(&self) -> Vec<(String, String)> {
        let columns = "SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
                AND a.attnum > 0 AND NOT a.attisdropped";
        sqlx::query_as(columns).fetch_all(&mut *self.prompt.lock().await).await.expect("a schema")
    }

    async fn allow_any_scope(&self) {
        self.execute("ALTER TABLE suppressions DROP CONSTRAINT suppressions_scope_check").await.expect("the constraint is there");
    }

    fn id(&self, id: Uuid) -> String {
        format!("'{id}'::uuid")
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        bytes.iter().fold("'\\x".to_owned(), |text, byte| format!("{text}{byte:02x}")) + "'::bytea"
    }

    fn instant(&self, at: Timestamp) -> String {
        format!("(timestamptz 'epoch' + interval '1 microsecond' * {})", at.as_micros())
    }
}
