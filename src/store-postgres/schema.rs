//! Opening: how sessions are set up, the schema's version, partitions ahead, and proofs that the database can be used.

use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tidings_core::ids::InstanceId;
use tidings_core::store::{STATEMENT_LIMIT, StoreError};
use tidings_core::time::Timestamp;

use crate::error::{before, committing, silent};
use crate::instant::At;
use crate::wake::Wake;
use crate::{Options, PostgresStore};

/// Migrations may take long on a large table, and wait for another process that makes them.
const MIGRATION_LIMIT: Duration = Duration::from_secs(15 * 60);
/// How often partitions are made ahead.
const PARTITIONS_EVERY: Duration = Duration::from_secs(86_400);

/// The setting in which a schema says that only binaries with a migration of this number may use it.
const REQUIRES: &str = "schema_requires";

/// Sets up the pool; connections are made when they are needed.
pub(crate) fn connect(url: &str, options: &Options) -> Result<PostgresStore, StoreError> {
    let base = parse(url)?;
    let session = base
        .clone()
        .application_name("tidings")
        .statement_cache_capacity(if options.statement_cache { 128 } else { 0 })
        .options([
            ("statement_timeout", "2s"),
            ("lock_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
            // Statements are short; compiling them never pays.
            ("jit", "off"),
            // A plan that was made once for an empty table, or for all partitions, would be kept.
            ("plan_cache_mode", "force_custom_plan"),
        ])
        .disable_statement_logging();
    // The statement that accepts only inserts: it has one plan whatever the tables hold, and making that anew for each batch
    // costs as much as running it.
    let accepting = session.clone().options([("plan_cache_mode", "force_generic_plan")]);
    // What moves deliveries looks up rows by key or walks an index, whatever the tables hold: one plan that is kept, and that
    // no statistics of an empty or freshly filled table can turn into scans.
    let moving = accepting.clone().options([
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ]);
    let connections = options.max_connections.max(3);
    // Two, so that one batch gathers while the other commits. More would share the same work out in smaller transactions,
    // and on PostgreSQL a transaction costs as much as ten of its rows.
    let committers = 2;
    let accepters = committers.min(connections / 3);
    let movers = (2 * committers).min((connections - accepters) / 2);
    let pool = |size, session| PgPoolOptions::new().max_connections(size).acquire_timeout(STATEMENT_LIMIT).connect_lazy_with(session);
    let migrate_options = options.migrate_url.as_deref().map_or_else(|| Ok(base.clone()), parse)?;
    let listen_options = options.listen_url.as_deref().map_or_else(|| Ok(base.clone()), parse)?;
    Ok(PostgresStore {
        describe: describe(&base),
        committers: committers as usize,
        wake: Wake::new(listen_options.clone()),
        accepting: pool(accepters, accepting),
        moving: pool(movers, moving),
        pool: pool(connections - accepters - movers, session),
        migrate_options,
        listen_options,
        relaxed_durability: options.relaxed_durability,
        partitions_due: i64::MIN.into(),
    })
}

fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    // The error of the parser may quote the URL, and with it a password.
    let options = PgConnectOptions::from_str(url).map_err(|_| StoreError::Refused("the URL of the database cannot be read".into()))?;
    Ok(options.application_name("tidings").disable_statement_logging())
}

fn describe(options: &PgConnectOptions) -> String {
    let place = options.get_socket().map_or_else(|| options.get_host().to_owned(), |socket| socket.display().to_string());
    let port = if options.get_port() == 5432 { String::new() } else { format!(":{}", options.get_port()) };
    format!("PostgreSQL at {place}{port}/{}", options.get_database().unwrap_or(options.get_username()))
}

/// Refuses a database that answers a commit before it is on the disk, unless told that this is wanted (S-002).
fn refuse_weak(store: &PostgresStore, synchronous_commit: &str) -> Result<(), StoreError> {
    if store.relaxed_durability || matches!(synchronous_commit, "on" | "remote_apply") {
        return Ok(());
    }
    let why = format!("synchronous_commit is {synchronous_commit}: a power failure would lose what was accepted");
    Err(StoreError::Refused(why.into()))
}

/// The number of the newest migration of this binary.
pub(crate) fn newest() -> i64 {
    sqlx::migrate!().iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// What `migrate` would apply.
pub(crate) async fn pending(store: &PostgresStore) -> Result<Vec<String>, StoreError> {
    let mut conn = store.connection().await?;
    let is_new: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NULL").fetch_one(&mut *conn).await.map_err(before)?;
    let applied: i64 = if is_new {
        0
    } else {
        let newest = "SELECT COALESCE(max(version), 0) FROM _sqlx_migrations WHERE success";
        sqlx::query_scalar(newest).fetch_one(&mut *conn).await.map_err(before)?
    };
    let migrator = sqlx::migrate!();
    let missing = migrator.iter().filter(|migration| migration.version > applied);
    Ok(missing.map(|migration| format!("{:04} {}", migration.version, migration.description)).collect())
}

/// Brings the schema up, on a connection of its own and under one lock, which sqlx takes.
pub(crate) async fn migrate(store: &PostgresStore) -> Result<(), StoreError> {
    let options = store.migrate_options.clone().options([("lock_timeout", "10min"), ("statement_timeout", "10min")]);
    let connecting = PgConnection::connect_with(&options);
    let mut conn = tokio::time::timeout(STATEMENT_LIMIT * 5, connecting).await.map_err(|_| silent())?.map_err(before)?;
    let server = sqlx::query!(
        r#"SELECT current_setting('synchronous_commit') AS "synchronous_commit!", current_setting('server_version_num')::int AS "version!""#
    );
    let server = server.fetch_one(&mut conn).await.map_err(before)?;
    if server.version < 130_000 {
        return Err(StoreError::Refused("PostgreSQL 13 or newer is needed".into()));
    }
    refuse_weak(store, &server.synchronous_commit)?;
    let mut migrator = sqlx::migrate!();
    let newest = migrator.iter().map(|migration| migration.version).max().unwrap_or(0);
    refuse_newer(&mut conn, newest).await?;
    // A schema that is merely newer is worked on: what this binary does not know of is left alone (S-232).
    migrator.set_ignore_missing(true);
    let run = migrator.run_direct(None, &mut conn, false);
    tokio::time::timeout(MIGRATION_LIMIT, run).await.map_err(|_| silent())?.map_err(migration_error)?;
    // While we waited for the lock, a newer binary may have been at work.
    refuse_newer(&mut conn, newest).await?;
    conn.close().await.map_err(before)
}

fn migration_error(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => before(error),
        other => StoreError::Refused(other.into()),
    }
}

/// Refuses a schema that says that it needs a newer binary.
async fn refuse_newer(conn: &mut PgConnection, newest: i64) -> Result<(), StoreError> {
    let exists = sqlx::query_scalar!(r#"SELECT to_regclass('settings') IS NOT NULL AS "exists!""#).fetch_one(&mut *conn).await;
    if !exists.map_err(before)? {
        return Ok(());
    }
    let required = sqlx::query_scalar!("SELECT value FROM settings WHERE key = $1", REQUIRES).fetch_optional(conn).await.map_err(before)?;
    let Some(required) = required else { return Ok(()) };
    let required = String::from_utf8_lossy(&required);
    match required.parse::<i64>() {
        Ok(version) if version <= newest => Ok(()),
        _ => Err(StoreError::Unreadable(format!("the schema needs a binary with migration {required}, this one has {newest}"))),
    }
}

/// The database's own time; asked often enough to notice when the database became less durable.
pub(crate) async fn time(store: &PostgresStore) -> Result<Option<Timestamp>, StoreError> {
    let mut conn = store.connection().await?;
    let row = sqlx::query!(r#"SELECT clock_timestamp() AS "now!", current_setting('synchronous_commit') AS "synchronous_commit!""#);
    let row = row.fetch_one(&mut *conn).await.map_err(before)?;
    refuse_weak(store, &row.synchronous_commit)?;
    Ok(Some(row.now.0))
}

/// Writes the heartbeat of this process, which proves that something can be written.
pub(crate) async fn prove_writable(
    store: &PostgresStore,
    instance: InstanceId,
    config_digest: &[u8],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query!(
        "INSERT INTO instances AS i (id, started_at, seen_at, config_digest) VALUES ($1, $2, $2, $3)
         ON CONFLICT (id) DO UPDATE SET seen_at = GREATEST(i.seen_at, excluded.seen_at), config_digest = excluded.config_digest",
        instance.0,
        At(now),
        config_digest,
    )
    .execute(&mut *conn)
    .await
    .map_err(committing)?;
    Ok(())
}

/// Makes the partitions of the next two months, once a day in each process. What has none goes into the default ones,
/// so a failure is told and nothing else.
pub(crate) async fn partitions_ahead(store: &PostgresStore, now: Timestamp) {
    let due = store.partitions_due.load(Ordering::Relaxed);
    let next = now.plus(PARTITIONS_EVERY).as_micros();
    if now.as_micros() < due || store.partitions_due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    if let Err(error) = ensure_partitions(store, now).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "partitions could not be made ahead; rows go into the default ones");
    }
}

async fn ensure_partitions(store: &PostgresStore, now: Timestamp) -> Result<(), StoreError> {
    let mut conn = store.connection().await?;
    sqlx::query!("SELECT ensure_partitions($1)", At(now)).execute(&mut *conn).await.map_err(before)?;
    Ok(())
}
