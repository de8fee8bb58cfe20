//! A throw-away PostgreSQL: one cluster for each test process, one database for each test from a migrated template.
//! Uses the newest installed binaries (or `PG_BIN`), also as root, or the server that `TEST_POSTGRES_URL` names.

#[path = "postgres/cluster.rs"]
mod cluster;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tidings_core::store::Store as _;
use tidings_store_postgres::PostgresStore;
use tokio::sync::OnceCell;

use self::cluster::{binaries, start_cluster};

/// Databases begin so, with the second they were made in behind it.
const DATABASE: &str = "tidings_test_";
/// Databases on a server that is not ours are dropped by a later run, when they are this old.
const LEFT_BEHIND: Duration = Duration::from_secs(6 * 3_600);
/// Tests do not wait for the disk; what is measured does.
const CARELESS: &[&str] = &["fsync=off", "full_page_writes=off"];
const DURABLE: &[&str] = &["shared_buffers=256MB", "max_wal_size=2GB"];

/// A PostgreSQL for tests.
pub struct TestPostgres {
    /// The URL of the database `postgres`.
    url: String,
    /// What makes a database a copy of the migrated one.
    copying: OnceCell<String>,
    next: AtomicU32,
}

impl TestPostgres {
    /// The PostgreSQL of this process, started by the first call; `None`, and a loud word, where there is none.
    ///
    /// # Panics
    /// Without PostgreSQL when `REQUIRE_POSTGRES=1`, and when it does not start.
    pub fn get() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<TestPostgres>> = OnceLock::new();
        let found = SHARED.get_or_init(|| match std::env::var("TEST_POSTGRES_URL") {
            Ok(url) if !url.is_empty() => Some(Self::at(url)),
            _ => Some(Self::at(start_cluster(&binaries()?, CARELESS))),
        });
        if found.is_none() {
            say_skipped();
        }
        found.as_ref()
    }

    /// The URL of an empty database that waits for the disk, for measurements.
    ///
    /// # Panics
    /// When it does not start.
    pub fn durable() -> Option<String> {
        static SHARED: OnceLock<Option<TestPostgres>> = OnceLock::new();
        let found = SHARED.get_or_init(|| match std::env::var("TEST_POSTGRES_URL") {
            Ok(url) if !url.is_empty() => Some(Self::at(url)),
            _ => Some(Self::at(start_cluster(&binaries()?, DURABLE))),
        });
        let postgres = found.as_ref()?;
        Some(on_a_thread(async {
            let name = postgres.unused_name();
            postgres.admin(&format!("CREATE DATABASE {name}")).await;
            postgres.url_of(&name)
        }))
    }

    fn at(url: String) -> Self {
        Self { url, copying: OnceCell::new(), next: AtomicU32::new(1) }
    }

    /// The URL of a migrated database that nobody else uses.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn fresh_database(&self) -> String {
        let copying = self.copying.get_or_init(|| self.make_template()).await;
        let name = self.unused_name();
        self.admin(&format!("CREATE DATABASE {name} {copying}")).await;
        self.url_of(&name)
    }

    /// A migrated database that nobody else uses and that goes with its owner.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn throw_away(&self) -> ThrowAway {
        ThrowAway { url: self.fresh_database().await }
    }

    /// The URL of an empty database that nobody else uses.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn empty_database(&self) -> String {
        let name = self.unused_name();
        self.admin(&format!("CREATE DATABASE {name}")).await;
        self.url_of(&name)
    }

    async fn make_template(&self) -> String {
        self.drop_left_behind().await;
        let name = self.unused_name();
        self.admin(&format!("CREATE DATABASE {name}")).await;
        let store = PostgresStore::connect(&self.url_of(&name), tidings_store_postgres::Options::default()).await.expect("a URL of ours");
        store.migrate().await.expect("the migrations apply");
        store.close().await;
        format!("TEMPLATE {name} {}", self.strategy().await)
    }

    /// Copying files is quickest where nothing waits for the disk; older servers know nothing else.
    async fn strategy(&self) -> &'static str {
        let mut connection = PgConnection::connect(&self.url).await.expect("the test database answers");
        let version: String = sqlx::query_scalar("SHOW server_version_num").fetch_one(&mut connection).await.expect("a version");
        if version.parse::<u32>().is_ok_and(|version| version >= 150_000) { "STRATEGY file_copy" } else { "" }
    }

    async fn drop_left_behind(&self) {
        let before = now().saturating_sub(LEFT_BEHIND.as_secs());
        let mut connection = PgConnection::connect(&self.url).await.expect("the test database answers");
        let names: Vec<String> = sqlx::query_scalar("SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)")
            .bind(DATABASE)
            .fetch_all(&mut connection)
            .await
            .expect("a list of databases");
        for name in names {
            let made: Option<u64> = name[DATABASE.len()..].split('_').next().and_then(|made| made.parse().ok());
            if made.is_some_and(|made| made < before) {
                // Another run may drop it at this moment.
                let _ = sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).execute(&mut connection).await;
            }
        }
    }

    fn unused_name(&self) -> String {
        format!("{DATABASE}{}_{}_{}", now(), std::process::id(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    async fn admin(&self, sql: &str) {
        run(&self.url, sql).await;
    }

    fn url_of(&self, database: &str) -> String {
        in_database(&self.url, database)
    }
}

/// A database that is dropped when this is.
pub struct ThrowAway {
    url: String,
}

impl ThrowAway {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for ThrowAway {
    fn drop(&mut self) {
        let (admin, name) = (in_database(&self.url, "postgres"), database_of(&self.url));
        on_a_thread(async {
            // What cannot be dropped now goes with the cluster, or in a later run.
            if let Ok(mut connection) = PgConnection::connect(&admin).await {
                let _ = sqlx::query(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut connection).await;
            }
        });
    }
}

/// Makes a database read-only, or writable again, for sessions that are open too.
///
/// # Panics
/// When it cannot be done.
pub async fn set_read_only(url: &str, read_only: bool) {
    let name = database_of(url);
    let admin = in_database(url, "postgres");
    run(&admin, &format!("ALTER DATABASE {name} SET default_transaction_read_only = {}", if read_only { "on" } else { "off" })).await;
    // A session keeps what it began with.
    run(&admin, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")).await;
}

/// The Unix socket behind a URL, and the URL of the same database for a proxy in front of that socket.
///
/// # Panics
/// When the server is not reached by a socket.
pub fn through_tcp(url: &str) -> (PathBuf, impl Fn(SocketAddr) -> String + use<>) {
    let options: PgConnectOptions = url.parse().expect("a URL of ours");
    let folder = options.get_socket().expect("a proxy needs a server on a Unix socket: leave TEST_POSTGRES_URL out");
    let (user, name) = (options.get_username().to_owned(), database_of(url));
    let socket = folder.join(format!(".s.PGSQL.{}", options.get_port()));
    (socket, move |addr| format!("postgres://{user}@{addr}/{name}?sslmode=disable"))
}

async fn run(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the test database answers");
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap_or_else(|err| panic!("{sql}: {err}"));
    connection.close().await.expect("the connection closes");
}

fn database_of(url: &str) -> String {
    let options: PgConnectOptions = url.parse().expect("a URL of ours");
    options.get_database().expect("a URL with a database").to_owned()
}

/// The same URL with another database.
fn in_database(url: &str, database: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, String::new()), |(base, query)| (base, format!("?{query}")));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let path = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    format!("{}/{database}{query}", &base[..path])
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs()
}

/// Runs a future to its end from wherever we are, inside a runtime or not.
fn on_a_thread<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future);
        scope.spawn(run).join().expect("the thread comes to its end")
    })
}

/// Says so past the capture of test output, with the name of the test, and fails where a skipped half is a failure.
fn say_skipped() {
    static SKIPPED: AtomicU32 = AtomicU32::new(0);
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let said = format!(
        "\n*** NO POSTGRESQL: {test} ran on SQLite only ({count} so far). Install postgresql, or set PG_BIN or TEST_POSTGRES_URL. ***\n"
    );
    // Not by a macro: the harness would keep it to itself.
    let _ = std::io::stderr().write_all(said.as_bytes());
    assert!(std::env::var("REQUIRE_POSTGRES").as_deref() != Ok("1"), "REQUIRE_POSTGRES=1, and there is no PostgreSQL");
}
