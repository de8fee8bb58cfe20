//! Readers that come from another store's feed.

use tidings_core::ids::{DeliveryId, NotificationId, TenantId};
use tidings_core::moving::TABLES;
use tidings_core::store::{Feed as _, FeedQuery, Registry as _, Store as _};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;

use super::*;
use crate::SqliteStore;

const OLD_END: i64 = 3_000;

fn delivery(number: usize) -> DeliveryId {
    let number = u64::try_from(number).unwrap();
    NotificationId::new(Timestamp::from_millis(1_800_000_000_000), [&[0, 0], number.to_be_bytes().as_slice()].concat().try_into().unwrap())
        .delivery(1)
}

/// As PostgreSQL told them: many events in one transaction, gaps between transactions and in them, and one far away.
fn old_places() -> Vec<(i64, i32)> {
    let commits = [(10, 0..1), (11, 0..70), (12, 0..70), (13, 5..9), (14, 0..2), (900, 0..3), (901, 0..40), (OLD_END, 0..2)];
    commits.into_iter().flat_map(|(pos, numbers)| numbers.map(move |n| (pos, n))).collect()
}

async fn imported(places: &[(i64, i32)]) -> (SqliteStore, tempfile::TempDir, TenantId) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    let tenant = store.ensure_tenant("default").await.unwrap().id;
    let table = TABLES.iter().find(|table| table.name == "events").unwrap();
    let (pos, n) = (table.place("pos").unwrap(), table.place("n").unwrap());
    let mut rows: Vec<Row> = places.iter().map(|_| vec![Value::Null; table.columns.len()]).collect();
    for (row, place) in rows.iter_mut().zip(places) {
        (row[pos], row[n]) = (Value::Int(place.0), Value::Int(place.1.into()));
    }
    let mut moved = Moved::behind(OLD_END);
    // In chunks, as they come.
    rows.chunks_mut(7).for_each(|chunk| moved.give(table, chunk));
    let mut writer = store.writer().await.unwrap();
    for (number, row) in rows.iter().enumerate() {
        let (Value::Int(pos), Value::Int(n)) = (&row[pos], &row[n]) else { panic!("{row:?}") };
        let insert = "INSERT INTO events (pos, n, tenant_id, mode, at, delivery_id, version, type, state, certainty, generation,
            attempt_count, flags, occurred_at) VALUES (?1, ?2, ?3, 0, 0, ?4, 1, 'accepted', 'accepted', 'unconfirmed', 1, 1, 0, 0)";
        let insert = sqlx::query(insert).bind(pos).bind(n).bind(tenant.0).bind(delivery(number).as_uuid());
        insert.execute(writer.connection()).await.unwrap();
    }
    moved.note(writer.connection()).await.unwrap();
    drop(writer);
    (store, directory, tenant)
}

/// How many events a reader is told that stands there, all of them the last ones; none where it missed some.
async fn told(store: &SqliteStore, tenant: TenantId, pos: i64, n: i32) -> Option<usize> {
    let after = Some(FeedPosition { pos, n });
    let query = FeedQuery { tenant, mode: Mode::Live, types: Vec::new(), with_installation: false, after, limit: 1_000 };
    let page = store.events(&query).await.unwrap()?;
    let all = old_places().len();
    let left: Vec<_> = page.events.iter().map(|event| event.delivery).collect();
    assert_eq!(left, (all - left.len()..all).map(delivery).collect::<Vec<_>>());
    // What it is given then is a place of this store.
    assert_eq!(told_after(store, &query, page.next).await, 0);
    for event in page.events.iter().step_by(50) {
        let rest = page.events.iter().filter(|other| other.position > event.position).count();
        assert_eq!(told_after(store, &query, event.position).await, rest);
    }
    Some(left.len())
}

async fn told_after(store: &SqliteStore, query: &FeedQuery, after: FeedPosition) -> usize {
    store.events(&FeedQuery { after: Some(after), ..query.clone() }).await.unwrap().unwrap().events.len()
}

/// Wherever a reader stood, in the middle of a transaction as well, it is told the next event, and none twice.
#[tokio::test]
async fn a_reader_goes_on_at_the_event_that_comes_next() {
    let places = old_places();
    let (store, _directory, tenant) = imported(&places).await;
    for (number, (pos, n)) in places.iter().enumerate() {
        assert_eq!(told(&store, tenant, *pos, *n).await, Some(places.len() - number - 1), "{pos}, {n}");
    }
    for (pos, n) in [(0, i32::MAX), (9, 3), (11, i32::MAX), (500, i32::MAX), (901, 20), (OLD_END - 1, i32::MAX), (OLD_END, i32::MAX)] {
        let left = places.iter().filter(|place| **place > (pos, n)).count();
        assert_eq!(told(&store, tenant, pos, n).await, Some(left), "{pos}, {n}");
    }
}

/// Who missed what was purged is told so, whichever of the two stores purged it.
#[tokio::test]
async fn what_was_purged_before_or_after_the_move_is_missed_by_whom_it_is_missed() {
    let places = old_places();
    let (store, _directory, tenant) = imported(&places).await;
    let floor = async |pos: i64, n: i64| {
        let set = sqlx::query("INSERT OR REPLACE INTO feed_floors (tenant_id, mode, pos, n) VALUES (?1, 0, ?2, ?3)");
        set.bind(tenant.0).bind(pos).bind(n).execute(store.writer().await.unwrap().connection()).await.unwrap();
    };
    floor(11, 5).await;
    assert_eq!(told(&store, tenant, 11, 4).await, None);
    assert_eq!(told(&store, tenant, 11, 5).await, Some(places.len() - 7));
    let here = Moved::behind(OLD_END).base + 72;
    floor(here, 5).await;
    sqlx::query("DELETE FROM events WHERE pos < ?1").bind(here).execute(store.writer().await.unwrap().connection()).await.unwrap();
    assert_eq!(told(&store, tenant, 11, i32::MAX).await, None);
    assert_eq!(told(&store, tenant, 12, 0).await, Some(places.len() - 72));
}

/// What cannot be told apart is told again.
#[test]
fn a_place_that_does_not_fit_is_never_taken_for_read() {
    assert!(pack(1, LAST + 5) > stood_at(1, i32::try_from(LAST).unwrap() + 7));
    assert_eq!(pack(1, LAST + 5), stood_at(1, i32::MAX));
    assert!(pack(FURTHEST + 2, 0) > stood_at(FURTHEST + 2, i32::MAX));
    assert!(pack(FURTHEST, LAST) < pack(FURTHEST + 1, 0));
    assert!(stood_at(-1, i32::MAX) < pack(0, 0));
}
