//! How the hot queries are planned on a few thousand rows: by indexes, and in the partitions in question alone (S-029).
//! The queries are the committed ones, so none of them is written down twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::types::JsonValue;
use sqlx::{AssertSqlSafe, PgConnection};
use tidings_core::ids::NotificationId;
use tidings_core::words::Class;

use super::world;
use crate::store_suite::{Database as _, World, accepted, at};

/// Name, words that only this query has, arguments.
type Hot = (&'static str, &'static str, &'static str);

/// What is planned anew each time.
const HOT: &[Hot] = &[
    ("accept: who holds the keys", "i.notification_id, i.fingerprint, i.fingerprint_version", "'{1}', '{0}', '{order-1}'"),
    ("by key", "idempotency_key = $3", "1, 0::smallint, 'order-1'"),
    ("status: notification", "WHERE tenant_id = $1 AND id = $2 AND mode = $3", "1, {one}, 0::smallint"),
    ("status: records", "FROM deliveries d WHERE d.id = ANY($1::uuid[]) ORDER BY d.id", "{ended}"),
    ("status: attempts", "FROM attempts WHERE delivery_id = ANY($1) ORDER BY delivery_id, number", "{ended}"),
    ("status: open rows", "WHERE q.id = ANY($1::uuid[])", "{running}"),
    ("status: suppressions", "FROM suppressions WHERE id = ANY($1)", "{ended}"),
    ("list: a window", "AND id < $3 ORDER BY id DESC LIMIT $4", "2, {from}, {before}, 51, false"),
    ("list: facts of deliveries", "AS \"state!\", d.address_digest", "{ended}"),
    ("list: notifications", "AND id = ANY($2) AND mode = $3", "2, {ended}, 0::smallint"),
    ("content", "LEFT JOIN contents c ON c.id = n.id AND c.id = $2", "1, {one}, 0::smallint"),
    ("next due", "SELECT t.lane, n.tenant_id", ""),
    ("lanes with waiting rows", "SELECT l.id FROM lanes l CROSS JOIN LATERAL", ""),
];

/// What moves deliveries, with the plan that is kept whatever the tables hold.
const MOVING: &[Hot] = &[
    ("claim: the ring of tenants", "t.found < $5", "{lane}, 0, 1000, {now}, 16, 512"),
    DUE_ROWS,
    ("finish: lock", "WHERE q.id = ANY($1) ORDER BY q.id FOR UPDATE OF q", "{running}"),
    ("finish: what is on record", "AS \"is_acceptance!\"", "{ended}"),
    ("write: rows that stay", "UPDATE queue q SET state", "{running}, {nulls:23}"),
    ("write: rows that leave", "DELETE FROM queue q USING", "{running}, {nulls:2}"),
    ("write: their records", "UPDATE deliveries d SET state", "{running}, {nulls:17}"),
    ("renew", "WITH seen AS", "{running}, NULL, {now}, 1, {now}"),
    ("sweep: leases", "WHERE q.lease_expires_at <= $1", "{now}, 100"),
    ("sweep: expiry", "WHERE q.expires_at <= $1", "{now}, 100"),
    ("sweep: checks", "WHERE q.check_at <= $1", "{now}, 100"),
    ("sweep: acceptances", "SELECT delivery_id, generation FROM attempts WHERE", "{ended}"),
    ("outgoing", "FROM contents c WHERE", "{running}, {running}"),
    ("purge: content that is old", "SELECT id FROM contents WHERE id > $1 AND id < $2", "{from}, {before}, 1000"),
    (
        "purge: how its deliveries stand",
        "d.settled_at, d.attention FROM deliveries d\n            WHERE d.id > x.first",
        "{ended}, {ended}",
    ),
    ("purge: records that are old", "WHERE d.id > $1 AND d.id < $2 ORDER BY d.id LIMIT $3", "{from}, {before}, 1000"),
    ("purge: lock", "FOR UPDATE OF d SKIP LOCKED", "{ended}"),
    ("purge: keys", "i.notification_id = n.id", "'{1}', {ended}"),
    ("purge: keys go", "DELETE FROM idempotency i USING unnest($1::int[], $2::smallint[], $3::text[])", "'{1}', '{0}', '{order-1}'"),
    ("purge: contents go", "DELETE FROM contents WHERE id = ANY($1)", "{ended}"),
    ("purge: addresses go", "SET address = NULL", "{ended}"),
    ("purge: records go", "WITH d AS (DELETE FROM deliveries d", "{ended}, '{1}', {ended}"),
];

const DUE_ROWS: Hot = (
    "claim: due rows of tenants",
    "FOR UPDATE SKIP LOCKED) q",
    "{lane}, '{1,2,3}', '-infinity', {now}, 1::smallint, 8, 50, '{}', '{digest}', 32767::smallint",
);

/// What an hourly run looks at beside the records. A process has one line in `instances`, and a job one an hour in
/// `sweep_runs`: those are read from one end to the other.
const SMALL_PURGES: &[Hot] = &[
    ("purge: sandbox", "FROM sandbox_messages WHERE id < $1", "{old}, 100"),
    ("purge: audit log", "DELETE FROM audit_log WHERE id = ANY", "{long_ago}, 100"),
    ("purge: suppressions", "DELETE FROM suppressions WHERE id = ANY", "{long_ago}, 100"),
    ("purge: lines", "DELETE FROM ordering_lanes WHERE ctid", "{long_ago}, 100"),
];

/// How the sessions are set up that run them.
const KEPT_PLANS: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_hashjoin = off; SET enable_mergejoin = off";

/// Tables that grow; a scan of all of one is never right.
const GROWING: &[&str] = &["queue", "deliveries", "notifications", "contents", "attempts", "idempotency", "events", "suppressions"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_queries_use_their_indexes() {
    let Some((world, database)) = world(1).await else { return };
    fill(&world).await;
    let mut session = database.session().await;
    sqlx::raw_sql("SET jit = off; ANALYZE").execute(&mut session).await.unwrap();
    let arguments = arguments(&world).await;

    let mut plans = String::new();
    for (name, words, list) in HOT {
        let plan = plan(&mut session, &query_with(words), &fill_in(list, &arguments)).await;
        for line in plan.lines().filter(|line| line.contains("Seq Scan on ")) {
            let scanned = line.split("Seq Scan on ").nth(1).unwrap_or_default();
            assert!(!GROWING.iter().any(|table| scanned.starts_with(table)), "{name}:\n{plan}");
        }
        writeln!(plans, "--- {name}\n{plan}").unwrap();
    }
    // Other versions use the same indexes and write it differently.
    let version = database.number("SELECT current_setting('server_version_num')::bigint / 10000").await;
    if version == 15 {
        insta::assert_snapshot!("hot_queries", without_dates(&plans));
    }
}

/// Every table that grows is entered by the key or by a condition of an index, and never read from one end to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_that_are_kept_enter_each_table_by_a_condition() {
    let Some((world, database)) = world(1).await else { return };
    let mut session = database.session().await;
    // The plans are made for empty tables, as those of a process that is started with a new database.
    let empty = BTreeMap::from([("lane", "1".to_owned()), ("now", world.db.instant(at(3)))]);
    sqlx::raw_sql(KEPT_PLANS).execute(&mut session).await.unwrap();
    for stage in ["empty", "filled"] {
        let mut arguments = empty.clone();
        if stage == "filled" {
            fill(&world).await;
            sqlx::raw_sql("ANALYZE").execute(&mut session).await.unwrap();
            arguments = self::arguments(&world).await;
        }
        for name in ["running", "ended", "waiting", "one", "end", "from", "before"] {
            arguments.entry(name).or_insert_with(|| "NULL".to_owned());
        }
        for (name, words, list) in MOVING {
            let plan = plan(&mut session, &query_with(words), &fill_in(list, &arguments)).await;
            let lines: Vec<&str> = plan.lines().map(str::trim).collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                let scanned = line.split(" on ").nth(1).filter(|_| line.contains("Scan ")).unwrap_or_default();
                let grows = GROWING.iter().any(|table| scanned.starts_with(table));
                assert!(!grows || next.starts_with("Index Cond"), "{stage}, {name}: {line}\n{plan}");
                // By the tenant alone would be by all that it ever sent.
                assert!(!scanned.starts_with("notifications") || next.contains("(id = "), "{stage}, {name}: {line}\n{plan}");
            }
        }
    }
}

/// With nothing due as with much of it, in sessions that plan anew and in those that keep their plans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smaller_purges_enter_by_an_index() {
    let Some((world, database)) = world(1).await else { return };
    for fill in [
        "INSERT INTO sandbox_messages (id, tenant_id, mode, received_at, channel, notification_id, delivery_id, generation, idempotency_key, envelope_to, body)
            SELECT md5(n::text)::uuid, 1, 1, now(), 'email', md5(n::text)::uuid, md5(n::text)::uuid, 1, 'a', '{}', '' FROM generate_series(1, 5000) n",
        "INSERT INTO audit_log (at, actor, action, subject) SELECT now() - n * interval '1 hour', 'a', 'b', 'c' FROM generate_series(1, 20000) n",
        "INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at, expires_at)
            SELECT gen_random_uuid(), 1, 0, 'email', decode(md5(n::text), 'hex'), 'manual', 'all', 'api', 'epoch',
                CASE WHEN n % 3 = 0 THEN now() + n * interval '1 hour' END FROM generate_series(1, 20000) n",
        "INSERT INTO ordering_lanes (tenant_id, mode, channel, ordering_key, next_seq, head, head_since)
            SELECT 1, 0, 'email', n, 1, CASE WHEN n % 2 = 0 THEN gen_random_uuid() END, now() - n * interval '1 minute' FROM generate_series(1, 20000) n",
        "ANALYZE",
    ] {
        world.sql(fill).await;
    }
    for (when, old) in
        [("'1999-01-01'", "'00000001-0000-7000-8000-000000000000'"), ("'2999-01-01'", "'ffffffff-0000-7000-8000-000000000000'")]
    {
        for kept in ["force_custom_plan", "force_generic_plan"] {
            let mut session = database.session().await;
            sqlx::raw_sql(AssertSqlSafe(format!("SET jit = off; SET plan_cache_mode = {kept}"))).execute(&mut session).await.unwrap();
            let arguments = BTreeMap::from([("long_ago", when.to_owned()), ("old", old.to_owned())]);
            for (name, words, list) in SMALL_PURGES {
                let plan = plan(&mut session, &query_with(words), &fill_in(list, &arguments)).await;
                assert!(!plan.contains("Seq Scan on"), "{name}, before {when}, {kept}:\n{plan}");
            }
        }
    }
}

/// How the due rows of tenants are found, in a session that keeps its plans.
pub(super) async fn plan_of_due_rows(session: &mut PgConnection, world: &World) -> String {
    sqlx::raw_sql(KEPT_PLANS).execute(&mut *session).await.unwrap();
    let arguments = BTreeMap::from([("lane", world.lane(Class::Transactional).to_string()), ("now", world.db.instant(at(3)))]);
    plan(session, &query_with(DUE_ROWS.1), &fill_in(DUE_ROWS.2, &arguments)).await
}

/// Three tenants, 3,000 rows that wait, some running, some ended, some suppressions.
async fn fill(world: &World) {
    for n in 0..3 {
        let tenant = world.store.ensure_tenant(&format!("tenant-{n}")).await.unwrap().id;
        for batch in 0..10 {
            let item = |row| world.email_of(tenant, Class::Transactional, &format!("order-{batch}-{row}"));
            assert!(world.accept((0..100).map(item).collect()).await.iter().all(Result::is_ok));
        }
    }
    let claimed = world.claim(300, at(1)).await;
    let reports = claimed[..200].iter().map(|delivery| world.report(delivery, accepted(), at(2))).collect();
    world.finish_all(reports, at(2)).await;
    world
        .sql(
            "INSERT INTO attempts (delivery_id, number, generation, started_at, outcome) \
             SELECT id, n, 1, 'epoch', 'not_sent' FROM deliveries CROSS JOIN generate_series(2, 4) n",
        )
        .await;
    world
        .sql(
            "INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at) \
             SELECT gen_random_uuid(), 1, 0, 'email', decode(md5(n::text), 'hex'), 'hard_bounce', 'all', 'receipt', 'epoch' \
             FROM generate_series(1, 3000) n",
        )
        .await;
}

/// Literals by name.
async fn arguments(world: &World) -> BTreeMap<&'static str, String> {
    let read = |condition: &'static str| async move {
        let database = &world.db;
        let sql = format!(
            "SELECT count(*) FROM settings WHERE key = 'picked'; DELETE FROM settings WHERE key = 'picked'; \
             INSERT INTO settings SELECT 'picked', convert_to(string_agg(id::text, ','), 'UTF8') FROM (SELECT id FROM {condition} ORDER BY id LIMIT 8) x"
        );
        for statement in sql.split("; ").skip(1) {
            database.execute(statement).await.unwrap();
        }
        let picked = world.store.setting("picked").await.unwrap().unwrap();
        format!("'{{{}}}'", String::from_utf8(picked).unwrap())
    };
    let waiting = read("queue WHERE state = 'queued'").await;
    let one = format!("'{}000'", &waiting[2..35]);
    BTreeMap::from([
        ("lane", world.lane(Class::Transactional).to_string()),
        ("now", world.db.instant(at(3))),
        ("running", read("queue WHERE state = 'dispatching'").await),
        ("ended", read("deliveries WHERE state = 'accepted'").await),
        // Within one week: a partition without rows is rightly scanned.
        ("from", format!("'{}'", NotificationId::first_at(at(-3_600)))),
        ("before", format!("'{}'", NotificationId::first_at(at(3_600)))),
        ("one", one),
        ("waiting", waiting),
    ])
}

fn fill_in(list: &str, arguments: &BTreeMap<&'static str, String>) -> String {
    let mut filled = list.to_owned();
    for (name, literal) in arguments {
        filled = filled.replace(&format!("{{{name}}}"), literal);
    }
    match filled.split_once("{nulls:") {
        Some((before, count)) => {
            let count: usize = count.trim_end_matches('}').parse().unwrap();
            format!("{before}{}", vec!["NULL"; count].join(", "))
        }
        None => filled,
    }
}

/// The one committed query with these words.
fn query_with(words: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/.sqlx");
    let files = std::fs::read_dir(folder).expect("the queries are committed: run .ci/sqlx prepare");
    let queries = files.flatten().map(|file| std::fs::read_to_string(file.path()).unwrap());
    let queries = queries.map(|text| text.parse::<JsonValue>().unwrap()["query"].as_str().unwrap().to_owned());
    let mut found: Vec<String> = queries.filter(|query| query.contains(words)).collect();
    assert_eq!(found.len(), 1, "{words:?} names one query: {found:#?}");
    found.remove(0)
}

async fn plan(session: &mut PgConnection, query: &str, arguments: &str) -> String {
    sqlx::raw_sql(AssertSqlSafe(format!("PREPARE hot AS {query}"))).execute(&mut *session).await.unwrap();
    let call = if arguments.is_empty() { String::new() } else { format!("({arguments})") };
    let rows: Vec<sqlx::postgres::PgRow> =
        sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE hot{call}"))).fetch_all(&mut *session).await.unwrap();
    sqlx::raw_sql("DEALLOCATE hot").execute(session).await.unwrap();
    use sqlx::Row as _;
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

/// Without what changes from run to run: quoted ids and instants, and the dates in the names of partitions.
fn without_dates(plans: &str) -> String {
    plans.lines().map(|line| undated(&unquoted(line))).collect::<Vec<_>>().join("\n")
}

fn unquoted(line: &str) -> String {
    let parts = line.split('\'').enumerate();
    parts.map(|(n, part)| if n % 2 == 1 && part.len() > 12 { "..." } else { part }).collect::<Vec<_>>().join("'")
}

fn undated(line: &str) -> String {
    let parts = line.split('_').map(|part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 8 { format!("DATE{}", &part[8..]) } else { part.to_owned() }
    });
    parts.collect::<Vec<_>>().join("_")
}
