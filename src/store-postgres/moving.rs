//! Moving: every row out in one snapshot, and into an empty database in one transaction. What moves is described in
//! `tidings_core::moving`; this says how each column stands in PostgreSQL.
//!
//! The statements are put together from that description and from the constants of this file, so that the two lists of
//! columns cannot drift apart; no text from outside becomes part of one. They run on a connection of their own, without the
//! limits of statements that somebody waits for.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tidings_core::ids::{InstanceId, NotificationId};
use tidings_core::moving::{Chunk, Column, FEED_LEAP, FROZEN, Header, Kind, Row, TABLES, Table, Value};
use tidings_core::store::{ExportError, ImportError, Origin, Owned, STATEMENT_LIMIT, Sink, Source, StoreError};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing, silent};
use crate::instant::At;
use crate::schema;

/// Tables that number their rows by themselves.
const NUMBERED: &[&str] = &["tenants", "accounts", "lanes", "audit_log"];
/// How far apart the instants are for which partitions are made: less than what one call makes ahead.
const PARTITIONS_STEP: Duration = Duration::from_secs(13 * 86_400);
/// Partitions older than this hold nothing that is still kept.
const OLDEST_PARTITION: Duration = Duration::from_secs(400 * 86_400);

pub(crate) async fn unfreeze(store: &PostgresStore) -> Result<bool, StoreError> {
    let mut conn = store.connection().await?;
    let done = sqlx::query!("DELETE FROM settings WHERE key = $1", FROZEN).execute(&mut *conn).await.map_err(committing)?;
    Ok(done.rows_affected() > 0)
}

pub(crate) async fn seen_since(store: &PostgresStore, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
    let mut conn = store.connection().await?;
    let ids = sqlx::query_scalar!("SELECT id FROM instances WHERE seen_at >= $1 ORDER BY id", At(since));
    Ok(ids.fetch_all(&mut *conn).await.map_err(before)?.into_iter().map(InstanceId).collect())
}

pub(crate) async fn under_way(store: &PostgresStore) -> Result<Vec<Owned>, StoreError> {
    let mut conn = store.connection().await?;
    let rows = sqlx::query!(
        r#"SELECT lease_owner AS "owner!", count(*) AS "calls!", max(coalesce(attempt_started_at, '-infinity')) AS "newest!: At"
         FROM queue WHERE lease_expires_at IS NOT NULL AND lease_owner IS NOT NULL GROUP BY lease_owner ORDER BY lease_owner"#
    );
    let rows = rows.fetch_all(&mut *conn).await.map_err(before)?;
    Ok(rows.into_iter().map(|row| Owned { owner: InstanceId(row.owner), calls: row.calls, newest: row.newest.0 }).collect())
}

/// A connection without limits on time.
async fn patient(store: &PostgresStore) -> Result<PgConnection, StoreError> {
    let limits = [("statement_timeout", "0"), ("idle_in_transaction_session_timeout", "0"), ("lock_timeout", "10s"), ("jit", "off")];
    let options = store.migrate_options.clone().options(limits);
    let connecting = PgConnection::connect_with(&options);
    tokio::time::timeout(STATEMENT_LIMIT * 5, connecting).await.map_err(|_| silent())?.map_err(before)
}

fn select(table: &Table) -> String {
    let columns: Vec<String> = table.columns.iter().map(|column| read(table, column)).collect();
    // Events must come in their order.
    let order = if table.name == "events" { " ORDER BY pos, n" } else { "" };
    format!("SELECT {} FROM {} AS t{}{order}", columns.join(", "), table.name, table.those_that_move())
}

/// The expression that reads a column in the type by which its kind is fetched.
fn read(table: &Table, column: &Column) -> String {
    match (table.name, column.name) {
        ("notifications", "body") => return "(SELECT c.body FROM contents c WHERE c.id = t.id)".to_owned(),
        ("notifications", "holds_key") => {
            let holder = "i.tenant_id = t.tenant_id AND i.mode = t.mode AND i.idempotency_key = t.idempotency_key";
            return format!("(EXISTS (SELECT FROM idempotency i WHERE {holder} AND i.notification_id = t.id))::int::bigint");
        }
        ("sandbox_messages", "handle") => return "'dlv_' || replace(t.delivery_id::text, '-', '') || '_' || t.generation".to_owned(),
        _ => {}
    }
    let name = format!("t.\"{}\"", column.name);
    match column.kind {
        Kind::Int => format!("{name}::bigint"),
        Kind::Flag => format!("{name}::int::bigint"),
        Kind::Day => format!("({name} - date '1970-01-01')::bigint"),
        Kind::Text | Kind::Id | Kind::Json => format!("{name}::text"),
        Kind::Words => format!("to_json({name})::text"),
        Kind::Instant | Kind::Bytes => name,
    }
}

pub(crate) async fn export(store: &PostgresStore, sink: &mut dyn Sink) -> Result<(), ExportError> {
    let mut conn = patient(store).await?;
    let seen = look(&mut conn).await?;
    let mut snapshot = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(before)?;
    sink.begin(origin(&mut snapshot).await?).await.map_err(ExportError::Sink)?;
    for table in TABLES {
        let mut rows = sqlx::query(AssertSqlSafe(select(table))).fetch(&mut *snapshot);
        let mut chunk = Chunk::default();
        while let Some(row) = rows.try_next().await.map_err(before)? {
            chunk.add(values(table, &row)?);
            if chunk.is_full() {
                sink.rows(table, chunk.take()).await.map_err(ExportError::Sink)?;
            }
        }
        sink.rows(table, chunk.take()).await.map_err(ExportError::Sink)?;
    }
    snapshot.rollback().await.map_err(before)?;
    if look(&mut conn).await? != seen {
        return Err(ExportError::WrittenMeanwhile);
    }
    conn.close().await.map_err(before)?;
    Ok(())
}

/// What every accept, claim and end changes: another process that does not know of the freeze shows in it.
async fn look(conn: &mut PgConnection) -> Result<(Option<Uuid>, i64, i64, Option<i64>), StoreError> {
    let row = sqlx::query!(
        r#"SELECT (SELECT id FROM deliveries ORDER BY id DESC LIMIT 1) AS newest, (SELECT count(*) FROM queue) AS "open!",
            (SELECT coalesce(sum(version), 0)::bigint FROM queue) AS "moves!", (SELECT max(pos) FROM events) AS told"#
    );
    let row = row.fetch_one(conn).await.map_err(before)?;
    Ok((row.newest, row.open, row.moves, row.told))
}

async fn origin(conn: &mut PgConnection) -> Result<Origin, StoreError> {
    let row = sqlx::query!(r#"SELECT feed_horizon() AS "end!", (SELECT id FROM deliveries ORDER BY id LIMIT 1) AS oldest"#);
    let row = row.fetch_one(conn).await.map_err(before)?;
    let oldest = row.oldest.map(|id| NotificationId::from_uuid(id).created_at());
    Ok(Origin { schema: schema::newest(), kind: "PostgreSQL", feed_end: row.end, oldest })
}

fn values(table: &Table, row: &PgRow) -> Result<Row, StoreError> {
    let value = |(place, kind): (usize, Kind)| {
        let value = match kind {
            Kind::Int | Kind::Flag | Kind::Day => row.try_get::<Option<i64>, _>(place).map(|value| value.map(Value::Int)),
            Kind::Instant => row.try_get::<Option<At>, _>(place).map(|value| value.map(|at| Value::Int(at.0.as_micros()))),
            Kind::Text | Kind::Id | Kind::Words | Kind::Json => row.try_get::<Option<String>, _>(place).map(|value| value.map(Value::Text)),
            Kind::Bytes => row.try_get::<Option<Vec<u8>>, _>(place).map(|value| value.map(Value::Bytes)),
        };
        value.map(|value| value.unwrap_or(Value::Null)).map_err(before)
    };
    table.columns.iter().map(|column| column.kind).enumerate().map(value).collect()
}

pub(crate) async fn import(store: &PostgresStore, source: &mut dyn Source) -> Result<(), ImportError> {
    let mut conn = patient(store).await?;
    let mut tx = conn.begin().await.map_err(before)?;
    // Of two imports at once the second one finds the store filled.
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended('tidings.import', 0))").execute(&mut *tx).await.map_err(before)?;
    let (dump, own) = (source.header().schema, schema::newest());
    if dump > own {
        return Err(ImportError::Newer { dump, own });
    }
    let mut found = Vec::new();
    for table in TABLES {
        let count = format!("SELECT count(*) FROM {}{}", table.name, table.those_that_move());
        match sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut *tx).await.map_err(before)? {
            0 => {}
            rows => found.push((table.name, rows)),
        }
    }
    if !found.is_empty() {
        return Err(ImportError::NotEmpty(found));
    }
    make_partitions(&mut tx, source.header()).await?;
    while let Some((table, rows)) = source.next().await? {
        write(&mut tx, table, rows).await.map_err(|source| ImportError::Rows { table: table.name, source })?;
    }
    complete(&mut tx, source.header()).await?;
    tx.commit().await.map_err(committing)?;
    // Fresh tables without statistics have other plans than full ones.
    sqlx::query("ANALYZE").execute(&mut conn).await.map_err(before)?;
    conn.close().await.map_err(before)?;
    Ok(())
}

/// Rows of weeks that have no partition would lie in the default ones, where retention removes them one by one.
async fn make_partitions(conn: &mut PgConnection, header: &Header) -> Result<(), StoreError> {
    let Some(oldest) = header.oldest else { return Ok(()) };
    let mut around = oldest.max(header.frozen_at.minus(OLDEST_PARTITION));
    while around < header.frozen_at {
        sqlx::query!("SELECT ensure_partitions($1)", At(around)).execute(&mut *conn).await.map_err(before)?;
        around = around.plus(PARTITIONS_STEP);
    }
    Ok(())
}

async fn write(conn: &mut PgConnection, table: &'static Table, rows: Vec<Row>) -> Result<(), StoreError> {
    let mut arguments = PgArguments::default();
    for (place, column) in table.columns.iter().enumerate() {
        let added = match column.kind {
            Kind::Int | Kind::Flag | Kind::Day => arguments.add(rows.iter().map(|row| whole(&row[place])).collect::<Vec<_>>()),
            Kind::Instant => {
                let instants = rows.iter().map(|row| whole(&row[place]).map(|micros| At(Timestamp::from_micros(micros))));
                arguments.add(instants.collect::<Vec<_>>())
            }
            Kind::Text | Kind::Id | Kind::Words | Kind::Json => arguments.add(rows.iter().map(|row| text(&row[place])).collect::<Vec<_>>()),
            Kind::Bytes => arguments.add(rows.iter().map(|row| bytes(&row[place])).collect::<Vec<_>>()),
        };
        added.map_err(StoreError::Refused)?;
    }
    sqlx::query_with(AssertSqlSafe(insert(table)), arguments).execute(conn).await.map(|_| ()).map_err(before)
}

const fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::Null | Value::Text(_) | Value::Bytes(_) => None,
    }
}

const fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text.as_str()),
        Value::Null | Value::Int(_) | Value::Bytes(_) => None,
    }
}

const fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Bytes(bytes) => Some(bytes.as_slice()),
        Value::Null | Value::Int(_) | Value::Text(_) => None,
    }
}

/// The statement that writes a chunk: one array for each column.
fn insert(table: &Table) -> String {
    let arrays = table.columns.iter().zip(1..).map(|(column, number)| match column.kind {
        Kind::Int | Kind::Flag | Kind::Day => format!("${number}::bigint[]"),
        Kind::Instant => format!("${number}::timestamptz[]"),
        Kind::Text | Kind::Id | Kind::Words | Kind::Json => format!("${number}::text[]"),
        Kind::Bytes => format!("${number}::bytea[]"),
    });
    let names: Vec<String> = table.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
    let rows = format!("unnest({}) AS x ({})", arrays.collect::<Vec<_>>().join(", "), names.join(", "));
    let stored = table.columns.iter().flat_map(|column| stored(table, column));
    let (into, values): (Vec<String>, Vec<String>) = stored.map(|(into, value)| (format!("\"{into}\""), value)).unzip();
    let (into, values) = (into.join(", "), values.join(", "));
    if table.name != "notifications" {
        return format!("INSERT INTO {} ({into}) SELECT {values} FROM {rows}", table.name);
    }
    format!(
        "WITH x AS MATERIALIZED (SELECT * FROM {rows}),
         k AS (INSERT INTO idempotency (tenant_id, mode, idempotency_key, notification_id, fingerprint, fingerprint_version)
            SELECT tenant_id, mode, idempotency_key, id::uuid, fingerprint, fingerprint_version FROM x WHERE holds_key = 1),
         c AS (INSERT INTO contents (id, body) SELECT id::uuid, body FROM x WHERE body IS NOT NULL)
         INSERT INTO notifications ({into}) SELECT {values} FROM x"
    )
}

/// Which columns of this schema a neutral one is stored in, and what is stored there.
fn stored(table: &Table, column: &Column) -> Vec<(&'static str, String)> {
    match (table.name, column.name) {
        ("notifications", "body" | "holds_key") => return Vec::new(),
        ("sandbox_messages", "handle") => {
            let generation = "split_part(x.handle, '_', 3)::smallint".to_owned();
            return vec![("delivery_id", "split_part(x.handle, '_', 2)::uuid".to_owned()), ("generation", generation)];
        }
        _ => {}
    }
    let name = format!("x.\"{}\"", column.name);
    let value = match column.kind {
        Kind::Int | Kind::Text | Kind::Instant | Kind::Bytes => name,
        Kind::Flag => format!("{name} <> 0"),
        Kind::Day => format!("date '1970-01-01' + {name}::int"),
        Kind::Id => format!("{name}::uuid"),
        Kind::Words => format!("ARRAY(SELECT json_array_elements_text({name}::json))"),
        Kind::Json => format!("coalesce({name}, '{{}}')::jsonb"),
    };
    vec![(column.name, value)]
}

/// What follows from all rows together.
async fn complete(conn: &mut PgConnection, header: &Header) -> Result<(), StoreError> {
    let frozen = At(header.frozen_at);
    sqlx::query!("UPDATE queue SET lease_expires_at = $1 WHERE lease_expires_at > $1", frozen).execute(&mut *conn).await.map_err(before)?;
    for table in NUMBERED {
        let next = format!("SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM {table}), false)");
        sqlx::query(AssertSqlSafe(next)).execute(&mut *conn).await.map_err(before)?;
    }
    raise_feed_base(conn, header.feed_end).await
}

/// Puts new events behind everything that was told and behind `given`, the place that a reader may have been given.
async fn raise_feed_base(conn: &mut PgConnection, given: i64) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE settings SET value = int8send(GREATEST($1, feed_horizon(), (SELECT max(pos) FROM events), (SELECT max(pos) FROM feed_floors))
            + $2::bigint)
         WHERE key = 'feed_base'",
        given,
        FEED_LEAP,
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(before)
}

/// Where the database counts its transactions: a restored copy and a promoted standby are other places.
async fn home(conn: &mut PgConnection) -> Option<String> {
    let home = sqlx::query_scalar(
        "SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), (SELECT timeline_id FROM pg_control_checkpoint()),
            (SELECT oid FROM pg_database WHERE datname = current_database()))",
    );
    // Where these may not be asked, the positions alone tell.
    home.fetch_one(conn).await.ok()
}

pub(crate) async fn settle_feed(store: &PostgresStore) -> Result<bool, StoreError> {
    let mut conn = patient(store).await?;
    let home = home(&mut conn).await;
    let known =
        sqlx::query_scalar!("SELECT value FROM settings WHERE key = 'feed_home'").fetch_optional(&mut conn).await.map_err(before)?;
    let has_moved = known.is_some() && home.as_ref().is_some_and(|home| known.as_deref() != Some(home.as_bytes()));
    let leaps = has_moved || is_behind(&mut conn).await?;
    if leaps {
        let mut tx = conn.begin().await.map_err(before)?;
        // Who tells events at this moment ends first, at the old base; who comes later sees the new one.
        sqlx::query!("LOCK TABLE events IN EXCLUSIVE MODE").execute(&mut *tx).await.map_err(before)?;
        raise_feed_base(&mut tx, 0).await?;
        remember(&mut tx, home.as_deref()).await?;
        tx.commit().await.map_err(committing)?;
    } else if known.is_none() {
        remember(&mut conn, home.as_deref()).await?;
    }
    conn.close().await.map_err(before)?;
    Ok(leaps)
}

async fn remember(conn: &mut PgConnection, home: Option<&str>) -> Result<(), StoreError> {
    let Some(home) = home else { return Ok(()) };
    sqlx::query!(
        "INSERT INTO settings (key, value) VALUES ('feed_home', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        home.as_bytes(),
    )
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(committing)
}

/// Whether events stand where new ones could come: at or behind the place of the next transaction, which lies behind every
/// event that is committed, however long others on the server have been at work. The newest event of each tenant and mode
/// is found by the primary key.
async fn is_behind(conn: &mut PgConnection) -> Result<bool, StoreError> {
    let behind = sqlx::query_scalar!(
        r#"SELECT ('x' || encode(value, 'hex'))::bit(64)::bigint + pg_snapshot_xmax(pg_current_snapshot())::text::bigint
            <= GREATEST((SELECT max(pos) FROM feed_floors), (
                SELECT max(e.pos) FROM (SELECT id FROM tenants UNION ALL SELECT 0) t (id) CROSS JOIN (VALUES (0::smallint), (1::smallint)) AS m (mode)
                CROSS JOIN LATERAL (SELECT pos FROM events WHERE tenant_id = t.id AND mode = m.mode ORDER BY pos DESC LIMIT 1) e), 0)
            AS "behind!" FROM settings WHERE key = 'feed_base'"#
    );
    behind.fetch_one(conn).await.map_err(before)
}
