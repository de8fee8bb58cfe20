//! Moving: every row out in one snapshot, and into an empty file in one transaction. What moves is described in
//! `tidings_core::moving`; this says how each column stands in SQLite.
//!
//! The statements are put together from that description and from the constants of this file, so that the two lists of
//! columns cannot drift apart; no text from outside becomes part of one.

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, Row as _, query, query_scalar};
use tidings_core::ids::{InstanceId, NotificationId};
use tidings_core::moving::{Chunk, FROZEN, Header, Kind, Row, TABLES, Table, Value};
use tidings_core::store::{ExportError, ImportError, Origin, Owned, Sink, Source, StoreError};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::error::{commit_error, store_error};
use crate::moved_feed::Moved;
use crate::rows::number;
use crate::schema;
use crate::writer::Writer;

/// Rows of one statement: with the columns of the widest table far below SQLite's 32,766 arguments.
const GROUP: usize = 50;

pub(crate) async fn unfreeze(connection: &mut SqliteConnection) -> Result<bool, StoreError> {
    let done = query!("DELETE FROM settings WHERE key = ?1", FROZEN).execute(connection).await.map_err(commit_error)?;
    Ok(done.rows_affected() > 0)
}

pub(crate) async fn seen_since(readers: &SqlitePool, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
    let since = since.as_micros();
    let ids = query_scalar!("SELECT id FROM instances WHERE seen_at >= ?1 ORDER BY id", since).fetch_all(readers).await;
    ids.map_err(store_error)?.into_iter().map(|id| Ok(InstanceId(number(id)?))).collect()
}

pub(crate) async fn under_way(readers: &SqlitePool) -> Result<Vec<Owned>, StoreError> {
    let rows = query!(
        r#"SELECT lease_owner AS "owner!", count(*) AS "calls!: i64", max(coalesce(attempt_started_at, 0)) AS "newest!: i64"
           FROM queue WHERE lease_expires_at IS NOT NULL GROUP BY lease_owner ORDER BY lease_owner"#
    );
    let rows = rows.fetch_all(readers).await.map_err(store_error)?;
    rows.into_iter()
        .map(|row| Ok(Owned { owner: InstanceId(number(row.owner)?), calls: row.calls, newest: Timestamp::from_micros(row.newest) }))
        .collect()
}

/// The column of this schema that holds a neutral one.
fn own(table: &Table, column: &'static str) -> &'static str {
    match (table.name, column) {
        ("notifications", "holds_key") => "key_freed",
        ("quota_pools", "period_start") => "window_start",
        _ => column,
    }
}

fn select(table: &Table) -> String {
    let read = |column: &'static str| match (table.name, column) {
        ("notifications", "holds_key") => "key_freed IS NULL".to_owned(),
        // Positions are enough to tell events apart; what stands there is about a store before this one.
        ("events", "n") => "0".to_owned(),
        _ => format!("\"{}\"", own(table, column)),
    };
    let columns: Vec<String> = table.columns.iter().map(|column| read(column.name)).collect();
    // Rows of one transaction follow each other in the order of their numbers anyway; events must.
    let order = if table.name == "events" { " ORDER BY pos" } else { "" };
    format!("SELECT {} FROM {}{}{order}", columns.join(", "), table.name, table.those_that_move())
}

pub(crate) async fn export(readers: &SqlitePool, sink: &mut dyn Sink) -> Result<(), ExportError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    sink.begin(origin(&mut snapshot).await?).await.map_err(ExportError::Sink)?;
    for table in TABLES {
        let mut rows = query(AssertSqlSafe(select(table))).fetch(&mut *snapshot);
        let mut chunk = Chunk::default();
        while let Some(row) = rows.try_next().await.map_err(store_error)? {
            chunk.add(values(table, &row)?);
            if chunk.is_full() {
                sink.rows(table, chunk.take()).await.map_err(ExportError::Sink)?;
            }
        }
        sink.rows(table, chunk.take()).await.map_err(ExportError::Sink)?;
    }
    Ok(())
}

async fn origin(connection: &mut SqliteConnection) -> Result<Origin, StoreError> {
    let feed_end = query_scalar!(r#"SELECT max(seq) AS "seq?: i64" FROM sqlite_sequence WHERE name = 'events'"#);
    let feed_end = feed_end.fetch_one(&mut *connection).await.map_err(store_error)?.unwrap_or(0);
    let oldest = query_scalar!(r#"SELECT min(id) AS "id?: Uuid" FROM deliveries"#).fetch_one(connection).await.map_err(store_error)?;
    let oldest = oldest.map(|id| NotificationId::from_uuid(id).created_at());
    Ok(Origin { schema: schema::newest(), kind: "SQLite", feed_end, oldest })
}

fn values(table: &Table, row: &SqliteRow) -> Result<Row, StoreError> {
    let value = |(place, kind): (usize, Kind)| {
        let value = match kind {
            Kind::Int | Kind::Flag | Kind::Instant | Kind::Day => row.try_get::<Option<i64>, _>(place).map(|value| value.map(Value::Int)),
            Kind::Text | Kind::Words | Kind::Json => row.try_get::<Option<String>, _>(place).map(|value| value.map(Value::Text)),
            Kind::Id => row.try_get::<Option<Uuid>, _>(place).map(|value| value.map(|id| Value::Text(id.to_string()))),
            Kind::Bytes => row.try_get::<Option<Vec<u8>>, _>(place).map(|value| value.map(Value::Bytes)),
        };
        value.map(|value| value.unwrap_or(Value::Null)).map_err(store_error)
    };
    table.columns.iter().map(|column| column.kind).enumerate().map(value).collect()
}

pub(crate) async fn import(writer: &mut Writer, source: &mut dyn Source) -> Result<(), ImportError> {
    writer.begin_whole().await?;
    match import_in(writer.connection(), source).await {
        Ok(()) => writer.end(Ok(())).await?,
        Err(error) => {
            // What it returns is the error that it was given.
            let _ = writer.end::<()>(Err(StoreError::Refused("the import was given up".into()))).await;
            return Err(error);
        }
    }
    // The log has grown by everything that was written.
    query("PRAGMA wal_checkpoint(TRUNCATE)").execute(writer.connection()).await.map(|_| ()).map_err(store_error)?;
    Ok(())
}

async fn import_in(connection: &mut SqliteConnection, source: &mut dyn Source) -> Result<(), ImportError> {
    let (dump, own) = (source.header().schema, schema::newest());
    if dump > own {
        return Err(ImportError::Newer { dump, own });
    }
    let mut found = Vec::new();
    for table in TABLES {
        let count = format!("SELECT count(*) FROM {}{}", table.name, table.those_that_move());
        match query_scalar(AssertSqlSafe(count)).fetch_one(&mut *connection).await.map_err(store_error)? {
            0 => {}
            rows => found.push((table.name, rows)),
        }
    }
    if !found.is_empty() {
        return Err(ImportError::NotEmpty(found));
    }
    let mut feed = Moved::behind(source.header().feed_end);
    while let Some((table, mut rows)) = source.next().await? {
        if table.name == "events" {
            feed.give(table, &mut rows);
        }
        write(connection, table, rows).await.map_err(|source| ImportError::Rows { table: table.name, source })?;
    }
    Ok(complete(connection, source.header(), &feed).await?)
}

/// Writes a chunk in groups of a fixed size, so that a table needs one statement, and what is left over by another.
async fn write(connection: &mut SqliteConnection, table: &'static Table, rows: Vec<Row>) -> Result<(), StoreError> {
    let mut rows = rows.into_iter();
    while !rows.as_slice().is_empty() {
        let group = rows.len().min(GROUP);
        let mut arguments = SqliteArguments::default();
        for row in rows.by_ref().take(group) {
            add(&mut arguments, table, row)?;
        }
        let statement = sqlx::query_with(AssertSqlSafe(insert(table, group)), arguments).persistent(group == GROUP);
        statement.execute(&mut *connection).await.map_err(store_error)?;
    }
    Ok(())
}

/// The statement that writes so many rows.
fn insert(table: &Table, rows: usize) -> String {
    let columns: Vec<String> = table.columns.iter().map(|column| format!("\"{}\"", own(table, column.name))).collect();
    let places = format!("({})", vec!["?"; columns.len()].join(", "));
    format!("INSERT INTO {} ({}) VALUES {}", table.name, columns.join(", "), vec![places; rows].join(", "))
}

fn add(arguments: &mut SqliteArguments, table: &Table, mut row: Row) -> Result<(), StoreError> {
    if let (Some(holds), Some(expires)) = (table.place("holds_key"), table.place("expires_at")) {
        // When the key went on to another one is told nowhere else; that it did is what counts.
        row[holds] = if row[holds] == Value::Int(1) { Value::Null } else { row[expires].clone() };
    }
    for (column, value) in table.columns.iter().zip(row) {
        let added = match value {
            Value::Null => arguments.add(None::<i64>),
            Value::Int(number) => arguments.add(number),
            Value::Text(text) if column.kind == Kind::Id => {
                let id: Uuid = text.parse().map_err(|_| StoreError::Refused(format!("{} is not an id", column.name).into()))?;
                arguments.add(id)
            }
            Value::Text(text) => arguments.add(text),
            Value::Bytes(bytes) => arguments.add(bytes),
        };
        added.map_err(StoreError::Refused)?;
    }
    Ok(())
}

/// What follows from all rows together.
async fn complete(connection: &mut SqliteConnection, header: &Header, feed: &Moved) -> Result<(), StoreError> {
    let frozen = header.frozen_at.as_micros();
    query!("UPDATE queue SET lease_expires_at = ?1 WHERE lease_expires_at > ?1", frozen)
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    feed.note(connection).await
}
