//! Opening the file with the settings that durability rests on, and bringing its schema up to this binary's.
//! The schema itself is the migrations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, query, query_scalar};
use tidings_core::store::{STATEMENT_LIMIT, StoreError};

use crate::error::{OpenError, store_error};
use crate::files::{beside, lock, narrow, private};
use crate::writer::Writer;

/// Readers beside the writer.
const READERS: u32 = 4;

/// The setting in which a schema says that only binaries with a migration of this number may use it.
const REQUIRES: &str = "schema_requires";

static MIGRATIONS: Migrator = sqlx::migrate!();

pub(crate) async fn open(path: &Path) -> Result<(Writer, SqlitePool), OpenError> {
    let lock = lock(path)?;
    private(path)?;
    narrow(path);
    let database = |err: sqlx::Error| OpenError::Database { path: path.to_owned(), source: err.into() };
    let connection = writer_options(path).connect().await.map_err(database)?;
    let readers =
        SqlitePoolOptions::new().max_connections(READERS).acquire_timeout(STATEMENT_LIMIT).connect_lazy_with(options(path).read_only(true));
    Ok((Writer::new(connection, lock), readers))
}

pub(crate) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(5))
        .foreign_keys(true)
        .statement_cache_capacity(256)
        .pragma("temp_store", "memory")
        .pragma("cache_size", "-16000")
}

/// S-002: the settings stand in the code, so no start-up can be weaker. FULL survives power loss, not only a crash.
fn writer_options(path: &Path) -> SqliteConnectOptions {
    options(path)
        .create_if_missing(true)
        .auto_vacuum(SqliteAutoVacuum::Incremental) // holds only when it is set before the first table
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // The log is kept grown: giving its space back after each checkpoint would cost every commit.
        .pragma("journal_size_limit", "-1")
        .pragma("wal_autocheckpoint", "16000")
}

/// `SQLite in ./data`.
pub(crate) fn describe(path: &Path) -> String {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let is_plain = directory.is_relative() && !directory.starts_with(".") && !directory.starts_with("..");
    format!("SQLite in {}{}", if is_plain { "./" } else { "" }, directory.display())
}

/// Applies what is missing, after a copy of a database that holds something already.
pub(crate) async fn migrate(writer: &mut Writer, path: &Path) -> Result<(), StoreError> {
    let connection = writer.connection();
    let newest = newest();
    let tables: i64 =
        query_scalar("SELECT count(*) FROM sqlite_schema WHERE type = 'table'").fetch_one(&mut *connection).await.map_err(store_error)?;
    let applied = if tables == 0 { 0 } else { applied(connection).await? };
    if tables > 0 && applied < newest {
        let copy = copy_before(connection, path, applied).await?;
        tracing::info!(path = %copy.display(), "the database was copied before its migration");
    }
    if applied > 0 {
        refuse_newer(connection, newest).await?;
    }
    // A schema that is merely newer is worked on: what this binary does not know of is left alone (S-232).
    let mut migrations = Migrator::with_migrations(MIGRATIONS.iter().cloned().collect());
    migrations.set_ignore_missing(true);
    migrations.run_direct(None, connection, false).await.map_err(|err| StoreError::Refused(err.into()))?;
    query("PRAGMA optimize").execute(connection).await.map(|_| ()).map_err(store_error)
}

/// The number of the newest migration of this binary.
pub(crate) fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// What `migrate` would apply.
pub(crate) async fn pending(connection: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
    let applied = applied(connection).await?;
    let missing = MIGRATIONS.iter().filter(|migration| migration.version > applied);
    Ok(missing.map(|migration| format!("{:04} {}", migration.version, migration.description)).collect())
}

/// The number of the newest migration that this database has.
async fn applied(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    let known: i64 = query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
        .fetch_one(&mut *connection)
        .await
        .map_err(store_error)?;
    if known == 0 {
        return Ok(0);
    }
    query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations").fetch_one(connection).await.map_err(store_error)
}

async fn refuse_newer(connection: &mut SqliteConnection, newest: i64) -> Result<(), StoreError> {
    let required: Option<Vec<u8>> =
        query_scalar("SELECT value FROM settings WHERE key = ?1").bind(REQUIRES).fetch_optional(connection).await.map_err(store_error)?;
    let Some(required) = required else { return Ok(()) };
    let required = String::from_utf8_lossy(&required);
    match required.parse::<i64>() {
        Ok(version) if version <= newest => Ok(()),
        _ => Err(StoreError::Unreadable(format!("the schema needs a binary with migration {required}, this one has {newest}"))),
    }
}

/// A copy that was opened and checked before anything changes.
async fn copy_before(connection: &mut SqliteConnection, path: &Path, applied: i64) -> Result<PathBuf, StoreError> {
    let copy = beside(path, &format!(".before-{}", applied + 1));
    if copy.exists() {
        // Of an earlier start that did not come to its end: what it copied may be half.
        std::fs::remove_file(&copy).map_err(|err| StoreError::NotWritable(err.into()))?;
    }
    private(&copy).map_err(|err| StoreError::NotWritable(err.into()))?;
    let quoted = copy.display().to_string().replace('\'', "''");
    query(AssertSqlSafe(format!("VACUUM INTO '{quoted}'"))).execute(connection).await.map_err(store_error)?;
    let mut opened = SqliteConnectOptions::new().filename(&copy).read_only(true).connect().await.map_err(store_error)?;
    let verdict: String = query_scalar("PRAGMA quick_check(1)").fetch_one(&mut opened).await.map_err(store_error)?;
    opened.close().await.map_err(store_error)?;
    if verdict != "ok" {
        return Err(StoreError::Unreadable(format!("the copy {} is damaged: {verdict}", copy.display())));
    }
    Ok(copy)
}
