//! A database of its own for each promise, and statements past the port over a second connection.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tempfile::TempDir;
use tidings_core::store::Store;
use tidings_core::time::Timestamp;
use tidings_store_sqlite::{FILE_NAME, SqliteStore};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::store_suite::Database;

/// A store in a directory that goes with it.
pub(crate) struct SqliteDatabase {
    store: Arc<dyn Store>,
    prompt: Mutex<SqliteConnection>,
    directory: TempDir,
}

/// An empty, migrated database.
pub(crate) async fn fresh() -> Arc<dyn Database> {
    Arc::new(database().await)
}

/// The same, as what it is.
pub(crate) async fn database() -> SqliteDatabase {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open_in(directory.path()).await.expect("a new database");
    store.migrate().await.expect("the migrations apply");
    let options = SqliteConnectOptions::new().filename(directory.path().join(FILE_NAME)).busy_timeout(std::time::Duration::from_secs(5));
    let prompt = Mutex::new(options.connect().await.expect("a second connection"));
    SqliteDatabase { store: Arc::new(store), prompt, directory }
}

impl SqliteDatabase {
    /// How a statement would be run now.
    pub(crate) async fn plan(&self, sql: &str) -> Vec<String> {
        super::plans::plan(&mut *self.prompt.lock().await, sql).await
    }
}

#[async_trait]
impl Database for SqliteDatabase {
    fn stores(&self) -> Vec<Arc<dyn Store>> {
        vec![self.store.clone()]
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
        let store = SqliteStore::open_in(&self.directory.path().join("another")).await.expect("a new database");
        store.migrate().await.expect("the migrations apply");
        Arc::new(store)
    }

    async fn columns(&self) -> Vec<(String, String)> {
        let columns = "SELECT t.name, c.name FROM sqlite_schema t CROSS JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";
        sqlx::query_as(columns).fetch_all(&mut *self.prompt.lock().await).await.expect("a schema")
    }

    async fn allow_any_scope(&self) {
        self.execute("PRAGMA ignore_check_constraints = ON").await.expect("the prompt's own setting");
    }

    fn id(&self, id: Uuid) -> String {
        format!("x'{}'", id.simple())
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        bytes.iter().fold("x'".to_owned(), |text, byte| format!("{text}{byte:02x}")) + "'"
    }

    fn instant(&self, at: Timestamp) -> String {
        at.as_micros().to_string()
    }
}
