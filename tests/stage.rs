//! A story's stage: a folder and a database of its own, and how a gateway is started on them.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;

use crate::postgres::TestPostgres;
use crate::process::Launch;
use crate::smtp_peer::ScriptedSmtp;

/// See the module.
pub struct Stage {
    directory: TempDir,
    store_url: Option<String>,
    scale: Option<(u32, u64)>,
}

impl Stage {
    /// A stage on SQLite.
    pub fn sqlite() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory"), store_url: None, scale: None }
    }

    /// A stage on a database of its own in PostgreSQL, where there is one.
    pub async fn postgres() -> Option<Self> {
        let url = TestPostgres::get()?.fresh_database().await;
        Some(Self { store_url: Some(url), ..Self::sqlite() })
    }

    /// Lets the clock of debug builds run faster from now on, on every start alike.
    #[must_use]
    pub fn faster(mut self, factor: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
        self.scale = Some((factor, now));
        self
    }

    /// Whether the store is PostgreSQL.
    pub fn is_postgres(&self) -> bool {
        self.store_url.is_some()
    }

    /// The database's URL on PostgreSQL.
    pub fn store_url(&self) -> Option<&str> {
        self.store_url.as_deref()
    }

    /// The folder with configuration and data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file of the database on SQLite.
    pub fn store_file(&self) -> PathBuf {
        self.directory().join("data/tidings.db")
    }

    /// Runs a statement past the gateway, as somebody at a prompt would; returns the number of rows.
    ///
    /// # Panics
    /// When it does not work.
    pub async fn execute(&self, sql: &str) -> u64 {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let done = match &self.store_url {
            Some(url) => {
                let mut connection = PgConnection::connect(url).await.expect("the database answers");
                statement.execute(&mut connection).await.map(|done| done.rows_affected())
            }
            None => {
                let url = format!("sqlite://{}", self.store_file().display());
                let mut connection = SqliteConnection::connect(&url).await.expect("the file can be opened");
                statement.execute(&mut connection).await.map(|done| done.rows_affected())
            }
        };
        done.unwrap_or_else(|err| panic!("{sql}: {err}"))
    }

    /// Lets no notification be written until the stall is released or given up; reading goes on.
    ///
    /// # Panics
    /// When the lock is not had.
    pub async fn stall_accepts(&self) -> Stall {
        match &self.store_url {
            Some(url) => {
                let mut connection = PgConnection::connect(url).await.expect("the database answers");
                let lock = "BEGIN; LOCK TABLE notifications IN EXCLUSIVE MODE";
                sqlx::raw_sql(lock).execute(&mut connection).await.expect("the table can be locked");
                Stall::Postgres(connection)
            }
            None => {
                let url = format!("sqlite://{}", self.store_file().display());
                let mut connection = SqliteConnection::connect(&url).await.expect("the file can be opened");
                sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.expect("the file can be locked");
                Stall::Sqlite(connection)
            }
        }
    }

    /// Everything that the database holds, as text in which bytes stand as they are (SQLite) or in hexadecimal (PostgreSQL).
    ///
    /// # Panics
    /// When it cannot be read.
    pub async fn everything_stored(&self) -> String {
        let mut text = String::new();
        let Some(url) = &self.store_url else {
            for ending in ["", "-wal", "-shm"] {
                let bytes = std::fs::read(format!("{}{ending}", self.store_file().display())).unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
            return text;
        };
        let mut connection = PgConnection::connect(url).await.expect("the database answers");
        let tables = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.expect("a list of tables");
        for table in tables {
            let rows = AssertSqlSafe(format!("SELECT t::text FROM {table} t"));
            let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&mut connection).await.expect("rows have a text form");
            text.push_str(&rows.join("\n"));
        }
        text
    }

    /// A gateway of this binary on this stage.
    pub fn launch(&self, binary: &str) -> Launch {
        let mut launch = Launch::new(std::env::var("TIDINGS_BINARY").unwrap_or_else(|_| binary.to_owned()), self.directory());
        if let Some(url) = &self.store_url {
            launch = launch.env("TIDINGS__STORE__URL", url);
        }
        if let Some((factor, origin)) = self.scale {
            launch = launch.env("TIDINGS_TIME_SCALE", &format!("{factor}@{origin}"));
        }
        launch
    }
}

/// A lock that keeps notifications from being written.
pub enum Stall {
    /// On the table.
    Postgres(PgConnection),
    /// On the file.
    Sqlite(SqliteConnection),
}

impl Stall {
    /// Lets writing go on.
    ///
    /// # Panics
    /// When the lock was lost meanwhile.
    pub async fn release(self) {
        match self {
            Self::Postgres(mut connection) => sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.map(drop),
            Self::Sqlite(mut connection) => sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.map(drop),
        }
        .expect("the lock was held to the end");
    }
}

/// The configuration of an SMTP account that talks to `peer`.
pub fn smtp_account(name: &str, peer: &ScriptedSmtp) -> String {
    format!(
        "[accounts.{name}]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {}\ntls = \"none\"\nfrom = \"Shop <shop@example.com>\"\n",
        peer.addr().port()
    )
}

/// How often the peer took a message of this delivery.
pub fn sends_of(peer: &ScriptedSmtp, delivery_id: &str) -> usize {
    peer.ledger().iter().filter(|taken| String::from_utf8_lossy(&taken.message).contains(delivery_id)).count()
}

/// Makes a test of each story on each database.
#[macro_export]
macro_rules! on_both_databases {
    ($($(#[$meta:meta])* $story:ident),+ $(,)?) => {$(
        mod $story {
            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$story($crate::stage::Stage::sqlite()).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                if let Some(stage) = $crate::stage::Stage::postgres().await {
                    super::$story(stage).await;
                }
            }
        }
    )+};
}
