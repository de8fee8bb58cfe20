//! What the writing connection is set to, and what happens when it cannot write or its caller goes away.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use sqlx::{query, query_scalar};
use tempfile::TempDir;
use tidings_core::delivery::{Change, Delivery};
use tidings_core::ids::{LaneId, NotificationId, TenantId};
use tidings_core::policy::Rules;
use tidings_core::state::State;
use tidings_core::store::{
    NewDelivery, NewNotification, Outbox as _, Reading as _, Registry as _, Store, StoreError, WriteBatch, WriteResults,
};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode, Reason};

use crate::SqliteStore;
use crate::apply::apply;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

async fn fresh() -> (SqliteStore, TenantId, LaneId, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    let tenant = store.ensure_tenant("default").await.unwrap().id;
    let lane = store.ensure_lanes(&[(Channel::Email, Class::Transactional, "email".into())]).await.unwrap()[0];
    (store, tenant, lane, directory)
}

fn email(tenant: TenantId, lane: LaneId, n: u8, body: usize) -> Arc<NewNotification> {
    let id = NotificationId::new(NOW, [n; 10]);
    let delivery = NewDelivery {
        id: id.delivery(1),
        channel: Channel::Email,
        lane,
        state: State::Queued,
        available_at: NOW,
        address_digest: vec![n],
        address: vec![n],
        reference: None,
        sender: None,
        message_id: None,
        attempt_limit: 3,
    };
    Arc::new(NewNotification {
        tenant,
        id,
        mode: Mode::Live,
        idempotency_key: format!("order-{n}"),
        fingerprint: vec![n],
        fingerprint_version: 1,
        schema_version: 1,
        category: "receipt".into(),
        class: Class::Transactional,
        ref_digest: None,
        tags: Vec::new(),
        metadata: None,
        trace_context: None,
        send_at: None,
        expires_at: NOW.plus(std::time::Duration::from_secs(60)),
        body: vec![0; body],
        is_sensitive: false,
        ordering_key: None,
        collapse_key: None,
        deliveries: vec![delivery],
    })
}

async fn accept(store: &SqliteStore, item: Arc<NewNotification>) -> WriteResults {
    store.commit(&Rules::default(), WriteBatch { accept: vec![item], ..WriteBatch::default() }, NOW).await
}

/// S-002: an answer survives power loss, whatever was compiled or configured.
#[tokio::test]
async fn the_writer_is_set_to_survive_power_loss() {
    let (store, ..) = fresh().await;
    let mut writer = store.writer().await.unwrap();
    let mut settings = Vec::new();
    for pragma in [
        "PRAGMA synchronous",
        "PRAGMA auto_vacuum",
        "PRAGMA busy_timeout",
        "PRAGMA wal_autocheckpoint",
        "PRAGMA journal_size_limit",
        "PRAGMA foreign_keys",
    ] {
        settings.push(query_scalar::<_, i64>(pragma).fetch_one(writer.connection()).await.unwrap());
    }
    assert_eq!(settings, [2, 2, 5_000, 16_000, -1, 1]);
    assert_eq!(query_scalar::<_, String>("PRAGMA journal_mode").fetch_one(writer.connection()).await.unwrap(), "wal");
}

#[tokio::test]
async fn a_full_disk_refuses_the_batch_and_later_ones_are_taken() {
    let (store, tenant, lane, _directory) = fresh().await;
    let pages: i64 = query_scalar("PRAGMA page_count").fetch_one(store.writer().await.unwrap().connection()).await.unwrap();
    let limit = format!("PRAGMA max_page_count = {}", pages + 4);
    query(sqlx::AssertSqlSafe(limit)).execute(store.writer().await.unwrap().connection()).await.unwrap();

    for _ in 0..2 {
        let results = accept(&store, email(tenant, lane, 1, 1_000_000)).await;
        assert!(matches!(results.accept[0], Err(StoreError::NotWritable(_))), "{results:?}");
    }
    assert!(matches!(store.settle_setting("large", &vec![0; 1_000_000]).await, Err(StoreError::NotWritable(_))));
    assert_eq!(store.open_count().await.unwrap(), 0);

    query("PRAGMA max_page_count = 1000000").execute(store.writer().await.unwrap().connection()).await.unwrap();
    assert!(accept(&store, email(tenant, lane, 1, 1_000_000)).await.accept[0].is_ok());
}

#[tokio::test]
async fn a_read_only_database_is_read_and_not_written() {
    let (store, tenant, lane, _directory) = fresh().await;
    assert!(accept(&store, email(tenant, lane, 1, 10)).await.accept[0].is_ok());
    query("PRAGMA query_only = ON").execute(store.writer().await.unwrap().connection()).await.unwrap();

    let results = accept(&store, email(tenant, lane, 2, 10)).await;
    assert!(matches!(results.accept[0], Err(StoreError::NotWritable(_))), "{results:?}");
    assert!(matches!(store.settle_setting("key", b"value").await, Err(StoreError::NotWritable(_))));
    assert!(store.by_key(tenant, Mode::Live, "order-1").await.unwrap().is_some());
    assert_eq!(store.open_count().await.unwrap(), 1);
}

/// Polls a future so often and no further, as a caller that goes away does.
async fn abandon<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|context| {
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polled == polls => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// S-013: a caller that goes away at any point leaves all or nothing, and no open transaction.
#[tokio::test]
async fn a_dropped_commit_leaves_all_or_nothing() {
    let (store, tenant, lane, _directory) = fresh().await;
    let mut abandoned = 0;
    for polls in 1..=60_u8 {
        let is_done = abandon(accept(&store, email(tenant, lane, polls, 10)), usize::from(polls)).await;
        abandoned += usize::from(!is_done);
        // The next one finds the writer as if nothing had been.
        assert!(accept(&store, email(tenant, lane, 101, 10)).await.accept[0].is_ok());
        let rows: (i64, i64, i64) =
            sqlx::query_as("SELECT (SELECT count(*) FROM notifications), (SELECT count(*) FROM deliveries), (SELECT count(*) FROM queue)")
                .fetch_one(&store.readers)
                .await
                .unwrap();
        assert!(rows.0 == rows.1 && rows.1 == rows.2, "{rows:?}");
    }
    // How far a poll gets depends on the thread behind the connection; the first never gets to the end.
    assert!(abandoned > 0);
}

/// An operator's resend brings a row back into the queue.
#[tokio::test]
async fn a_row_that_comes_back_is_waiting_again() {
    let (store, tenant, lane, _directory) = fresh().await;
    let item = email(tenant, lane, 1, 10);
    accept(&store, item.clone()).await;
    let read = || async { store.notification(tenant, Mode::Live, item.id).await.unwrap().unwrap().deliveries.remove(0).delivery };
    let moved = |before: Delivery, after: Delivery| {
        let after = Delivery { version: before.version + 1, ..after };
        Change { before, after, attempt: None, events: Vec::new(), copies: None, suppression: None, of_copies: Vec::new() }
    };

    let open = read().await;
    let ended =
        Delivery { state: State::Failed, reason: Some(Reason::ContentRefused), available_at: None, settled_at: Some(NOW), ..open.clone() };
    write(&store, moved(open.clone(), ended)).await;
    let ended = read().await;
    assert_eq!((ended.state, store.open_count().await.unwrap()), (State::Failed, 0));

    let back =
        Delivery { state: State::Queued, reason: None, settled_at: None, available_at: Some(NOW), attempt_limit: 3, ..ended.clone() };
    write(&store, moved(ended, back)).await;

    assert_eq!(read().await, Delivery { version: 3, ..open });
    assert_eq!(store.open_count().await.unwrap(), 1);
}

async fn write(store: &SqliteStore, change: Change) {
    let mut writer = store.writer().await.unwrap();
    writer.begin().await.unwrap();
    let applied = apply(writer.connection(), &[change], NOW).await;
    writer.end(applied).await.unwrap();
}
