//! The plans of the statements as they are compiled in, read from the cache that the macros are checked against.
//! A plan that scans a table which grows is found here, not in production (S-029).

use std::path::Path;

use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};
use tempfile::TempDir;
use tidings_core::store::Store;
use tidings_store_sqlite::{FILE_NAME, SqliteStore};

/// Tables that grow with the traffic.
const GROWING: &[&str] =
    &["notifications", "deliveries", "queue", "attempts", "events", "suppressions", "sandbox_messages", "audit_log", "ordering_lanes"];

/// Hot statements by a piece of their text.
const HOT: &[(&str, &str)] = &[
    ("the ring of tenants", "WITH RECURSIVE ring (tenant_id, i)"),
    ("due rows of a tenant", "q.schema_version <= ?5"),
    ("suppressions of candidates", "CROSS JOIN suppressions s"),
    ("leases that ended", "q.lease_expires_at <= ?1"),
    ("deadlines that passed", "q.expires_at <= ?1"),
    ("checks that are due", "q.check_at <= ?1"),
    ("rows of outcomes", "json_each(?1) x CROSS JOIN queue q ON q.id = unhex(x.value) CROSS JOIN lanes l ON l.id = q.lane"),
    ("attempts of outcomes", "a.accepted_at IS NOT NULL AS"),
    ("changes of open rows", "UPDATE OR FAIL queue SET version"),
    ("rows that leave", "DELETE FROM queue"),
    ("records", "UPDATE OR FAIL deliveries SET state"),
    ("renewals", "UPDATE queue SET lease_expires_at = ?2"),
    ("the holder of a key", "tenant_id = ?1 AND mode = ?2 AND idempotency_key = ?3"),
    ("deliveries of notifications", "d.suppression_id AS \"suppression_id?: Uuid\""),
    ("attempts of deliveries", "a ON a.delivery_id = unhex(x.value) ORDER BY a.delivery_id"),
    ("a window of a list", "ORDER BY id DESC LIMIT ?4"),
    ("facts of deliveries", "d.address_digest AS \"digest!\""),
    ("notifications of a list", "ORDER BY n.id DESC"),
    ("what is due next", "WITH RECURSIVE ring (lane, tenant_id)"),
    ("lanes with waiting rows", "WHERE EXISTS (SELECT 1 FROM queue q WHERE q.lane = l.id"),
    ("purge: records that are old", "d.id > ?1 AND d.id < ?2 ORDER BY d.id LIMIT ?3"),
    ("purge: how they stand now", "deliveries d ON d.id = unhex(x.value) ORDER BY d.id"),
    ("purge: contents", "SET body = NULL FROM json_each"),
    ("purge: keys", "SET key_freed = ?2 FROM json_each"),
    ("purge: addresses", "SET address = NULL"),
    ("purge: attempts", "DELETE FROM attempts"),
    ("purge: deliveries", "DELETE FROM deliveries"),
    ("purge: notifications", "DELETE FROM notifications"),
    ("purge: sandbox", "DELETE FROM sandbox_messages WHERE id IN"),
    ("purge: audit log", "DELETE FROM audit_log"),
    ("purge: suppressions", "DELETE FROM suppressions WHERE id IN"),
    ("purge: lines", "DELETE FROM ordering_lanes"),
    ("purge: events that are old", "FROM (SELECT pos, at FROM events WHERE pos > 0"),
    ("purge: floors of readers", "INSERT INTO feed_floors"),
    ("purge: events", "DELETE FROM events"),
    ("purge: instances", "DELETE FROM instances"),
    ("purge: runs", "DELETE FROM sweep_runs"),
    ("a reader of before", "pos > ?3 AND pos <= ?4\n               ORDER BY pos LIMIT 1"),
];

#[tokio::test]
async fn hot_statements_use_their_indexes() {
    let (mut connection, _directory) = migrated().await;
    let statements = statements();
    let mut plans = String::new();
    for (what, piece) in HOT {
        let found: Vec<_> = statements.iter().filter(|sql| sql.contains(piece)).collect();
        assert!(!found.is_empty(), "no statement holds {piece:?}");
        plans += &format!("{what}\n");
        for line in plan(&mut connection, found[0]).await {
            plans += &format!("    {line}\n");
        }
    }
    insta::assert_snapshot!(plans);
}

#[tokio::test]
async fn no_statement_scans_a_table_that_grows() {
    let (mut connection, _directory) = migrated().await;
    // Plans flip when the statistics know of rows: look at both.
    for stage in ["empty", "analyzed"] {
        for sql in statements() {
            // What is counted as a whole, every few seconds at most.
            let counts_all = sql.trim() == "SELECT count(*) FROM queue" || sql.contains("FROM queue GROUP BY lane, state");
            let scans: Vec<_> = plan(&mut connection, &sql).await.into_iter().filter(|line| scans_growing(line)).collect();
            assert!(scans.is_empty() || counts_all, "{stage}: {scans:?} in {sql}");
        }
        pretend_to_be_large(&mut connection).await;
    }
}

fn scans_growing(line: &str) -> bool {
    let Some(rest) = line.trim().strip_prefix("SCAN ") else { return false };
    let alias = rest.split_whitespace().next().unwrap_or_default();
    GROWING.contains(&alias) || ["n", "d", "q", "a", "s"].contains(&alias)
}

/// Statistics of a large store, without the rows.
async fn pretend_to_be_large(connection: &mut SqliteConnection) {
    sqlx::query("ANALYZE").execute(&mut *connection).await.unwrap();
    sqlx::query("DELETE FROM sqlite_stat1").execute(&mut *connection).await.unwrap();
    for (table, index, numbers) in [
        ("queue", "queue_claim", "1000000 300000 100 2"),
        ("queue", "queue_lease", "200 2"),
        ("queue", "queue_checks", "50 2"),
        ("queue", "queue_expiry", "1000000 3"),
        ("queue", "sqlite_autoindex_queue_1", "1000000 1"),
        ("deliveries", "sqlite_autoindex_deliveries_1", "4000000 1"),
        ("attempts", "sqlite_autoindex_attempts_1", "4000000 2 1"),
        ("attempts", "one_acceptance", "3000000 1 1"),
        ("notifications", "notifications_by_key", "4000000 400 400 1"),
        ("lanes", "sqlite_autoindex_lanes_1", "9 3 1 1"),
    ] {
        let insert = sqlx::query("INSERT INTO sqlite_stat1 VALUES (?1, ?2, ?3)").bind(table).bind(index).bind(numbers);
        insert.execute(&mut *connection).await.unwrap();
    }
    sqlx::query("ANALYZE sqlite_schema").execute(connection).await.unwrap();
}

async fn migrated() -> (SqliteConnection, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let options = SqliteConnectOptions::new().filename(directory.path().join(FILE_NAME));
    (options.connect().await.unwrap(), directory)
}

pub(super) async fn plan(connection: &mut SqliteConnection, sql: &str) -> Vec<String> {
    let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"))).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail")).collect()
}

/// Every statement of the crate.
pub(super) fn statements() -> Vec<String> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let mut statements: Vec<_> = std::fs::read_dir(cache)
        .unwrap()
        .map(|entry| {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let query: serde_json::Value = serde_json::from_str(&text).unwrap();
            query["query"].as_str().unwrap().to_owned()
        })
        .collect();
    statements.sort();
    statements
}
