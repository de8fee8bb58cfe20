//! A small world for one promise: a tenant, an account, a lane for each class, and short names for the commands.
//! It checks nothing but what no promise can do without; judging what came out is the promises' business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidings_core::delivery::Delivery;
use tidings_core::ids::{AccountId, DeliveryId, InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::outcome::{NotSent, Outcome, Report};
use tidings_core::policy::{LEASE, Rules};
use tidings_core::secrets::DIGEST_LEN;
use tidings_core::state::State;
use tidings_core::store::{
    Accepted, Claimed, NewDelivery, NewNotification, Store, StoreError, StoredDelivery, StoredNotification, WriteBatch,
};
use tidings_core::time::Timestamp;
use tidings_core::transition::{Finish, Landed, RoutePosition};
use tidings_core::words::{Channel, Class, Mode};

use super::Database;

/// An instant of the suite's own time: its hours are nobody's wall clock.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

/// An id that no other promise has; later calls make greater ones.
pub fn unique_id(now: Timestamp) -> NotificationId {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let mut random = [0; 10];
    random[3..7].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    NotificationId::new(now, random)
}

/// What a promise works with.
pub struct World {
    /// The database under it.
    pub db: Arc<dyn Database>,
    /// The first handle on it.
    pub store: Arc<dyn Store>,
    /// The default rules.
    pub rules: Rules,
    /// The tenant `default`.
    pub tenant: TenantId,
    /// An account named `relay`.
    pub account: AccountId,
    /// Email lanes of the route `email`, in the order of `Class::ALL`.
    pub lanes: Vec<LaneId>,
    /// The process that claims.
    pub instance: InstanceId,
}

impl World {
    /// A world on a fresh database.
    pub async fn new(db: Arc<dyn Database>) -> Self {
        let store = db.stores().into_iter().next().expect("a database has at least one handle");
        let tenant = store.ensure_tenant("default").await.expect("a tenant").id;
        let account = store.ensure_accounts(&[("relay".to_owned(), "smtp".to_owned())]).await.expect("an account")[0];
        let lanes: Vec<_> = Class::ALL.iter().map(|class| (Channel::Email, *class, "email".to_owned())).collect();
        let lanes = store.ensure_lanes(&lanes).await.expect("three lanes");
        let instance = store.register_instance(at(0), b"digest").await.expect("an instance");
        Self { db, store, rules: Rules::default(), tenant, account, lanes, instance }
    }

    /// Every handle on the database; the first is `store`.
    pub fn stores(&self) -> Vec<Arc<dyn Store>> {
        self.db.stores()
    }

    /// The lane of a class.
    pub fn lane(&self, class: Class) -> LaneId {
        let place = Class::ALL.iter().position(|other| *other == class).expect("every class has a lane");
        self.lanes[place]
    }

    /// A transactional email of the world's tenant, due at `at(0)`.
    pub fn email(&self, key: &str) -> NewNotification {
        email(self.tenant, self.lane(Class::Transactional), Class::Transactional, key)
    }

    /// An email of another tenant, class or both.
    pub fn email_of(&self, tenant: TenantId, class: Class, key: &str) -> NewNotification {
        email(tenant, self.lane(class), class, key)
    }

    /// Accepts a batch at `at(0)`.
    pub async fn accept(&self, items: Vec<NewNotification>) -> Vec<Result<Accepted, StoreError>> {
        accept_on(&self.store, &self.rules, items).await
    }

    /// Accepts one notification that must be taken; returns its first delivery.
    pub async fn taken(&self, item: NewNotification) -> DeliveryId {
        let id = item.deliveries[0].id;
        let results = self.accept(vec![item]).await;
        assert!(matches!(results[..], [Ok(Accepted::Taken)]), "{results:?}");
        id
    }

    /// A plan for all lanes in class order, with `free` slots of the one account for everybody.
    pub fn plan(&self, free: u16, now: Timestamp) -> ClaimPlan {
        let lanes = Class::ALL.iter().map(|class| self.lane_plan(*class, free)).collect();
        let account = AccountCapacity {
            account: self.account,
            free,
            free_for_others: free,
            free_for_bulk: free,
            is_well: true,
            is_well_for_bulk: true,
        };
        let (instance, sends_as, owners, paused) = (self.instance, Arc::default(), Default::default(), Default::default());
        ClaimPlan { instance, lease_until: now.plus(LEASE), lanes, accounts: vec![account], sends_as, owners, paused }
    }

    /// The plan of one lane, from the ring's start.
    pub fn lane_plan(&self, class: Class, limit: u16) -> LanePlan {
        let route = vec![self.account.into()];
        LanePlan { lane: self.lane(class), class, route, limit, tenant_limit: limit, cursor: None, low: None }
    }

    /// Claims by a plan.
    pub async fn claim_by(&self, plan: ClaimPlan, now: Timestamp) -> Claimed {
        claim_on(&self.store, &self.rules, plan, now).await.expect("a claim")
    }

    /// Claims at most `free` rows of any lane.
    pub async fn claim(&self, free: u16, now: Timestamp) -> Vec<Delivery> {
        self.claim_by(self.plan(free, now), now).await.dispatched
    }

    /// Accepts one email and claims it.
    pub async fn dispatched(&self, key: &str, now: Timestamp) -> Delivery {
        let id = self.taken(self.email(key)).await;
        let claimed = self.claim(100, now).await;
        claimed.into_iter().find(|delivery| delivery.id == id).expect("the email is due")
    }

    /// The report of an attempt of `delivery` as it stood when it was claimed.
    pub fn report(&self, delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Finish {
        finish_of(delivery, outcome, now)
    }

    /// Writes outcomes in one batch.
    pub async fn finish_all(&self, items: Vec<Finish>, now: Timestamp) -> Vec<Landed> {
        let batch = WriteBatch { finish: items, ..WriteBatch::default() };
        let results = self.store.commit(&self.rules, batch, now).await.finish;
        results.into_iter().map(|landed| landed.expect("an outcome is written")).collect()
    }

    /// Writes the outcome of one attempt.
    pub async fn finish(&self, delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Landed {
        self.finish_all(vec![self.report(delivery, outcome, now)], now).await.remove(0)
    }

    /// Writes the outcome of one attempt that must move the row; returns it as it is then.
    pub async fn moved(&self, delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Delivery {
        match self.finish(delivery, outcome, now).await {
            Landed::Moved(delivery, _) => *delivery,
            other => panic!("the row did not move: {other:?}"),
        }
    }

    /// The notification of a delivery, live.
    pub async fn read(&self, id: DeliveryId) -> StoredNotification {
        let read = self.store.notification(self.tenant, Mode::Live, id.notification()).await.expect("a read");
        read.expect("the notification is there")
    }

    /// One delivery as it is read back.
    pub async fn stored(&self, id: DeliveryId) -> StoredDelivery {
        let found = self.read(id).await.deliveries.into_iter().find(|stored| stored.delivery.id == id);
        found.expect("the delivery is there")
    }

    /// The state of one delivery.
    pub async fn state(&self, id: DeliveryId) -> State {
        self.stored(id).await.delivery.state
    }

    /// How many rows of a table meet a condition.
    pub async fn count(&self, table: &str, condition: &str) -> i64 {
        self.db.number(&format!("SELECT count(*) FROM {table} WHERE {condition}")).await
    }

    /// Runs a statement past the port that must work.
    pub async fn sql(&self, sql: &str) -> u64 {
        self.db.execute(sql).await.expect("the statement works")
    }

    /// Writes a word of a newer binary into a queue row, past the port.
    pub async fn write_unknown_word(&self, id: DeliveryId) {
        let id = self.db.id(id.as_uuid());
        assert_eq!(self.sql(&format!("UPDATE queue SET no_resend = 'future_word' WHERE id = {id}")).await, 1);
    }

    /// Suppresses an address for all classes, as its digest stands in `delivery`.
    pub async fn suppress(&self, address_digest: &[u8], scope: &str, expires_at: Option<Timestamp>) {
        let db = &self.db;
        let expires_at = expires_at.map_or("NULL".to_owned(), |at| db.instant(at));
        self.sql(&format!(
            "INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at, expires_at) \
             VALUES ({}, {}, 0, 'email', {}, 'hard_bounce', '{scope}', 'operator', {}, {expires_at})",
            db.id(unique_id(at(0)).as_uuid()),
            self.tenant,
            db.bytes(address_digest),
            db.instant(at(0)),
        ))
        .await;
    }
}

/// Accepts a batch at `at(0)` through one handle.
pub async fn accept_on(store: &Arc<dyn Store>, rules: &Rules, items: Vec<NewNotification>) -> Vec<Result<Accepted, StoreError>> {
    accept_at(store, rules, items, at(0)).await
}

/// Accepts a batch through one handle.
pub(super) async fn accept_at(
    store: &Arc<dyn Store>,
    rules: &Rules,
    items: Vec<NewNotification>,
    now: Timestamp,
) -> Vec<Result<Accepted, StoreError>> {
    let accept = items.into_iter().map(Arc::new).collect();
    store.commit(rules, WriteBatch { accept, ..WriteBatch::default() }, now).await.accept
}

/// Claims by a plan through one handle.
pub async fn claim_on(store: &Arc<dyn Store>, rules: &Rules, plan: ClaimPlan, now: Timestamp) -> Result<Claimed, StoreError> {
    let batch = WriteBatch { claim: Some(plan), ..WriteBatch::default() };
    store.commit(rules, batch, now).await.claim.expect("a claim was asked for")
}

/// An email with one delivery, due at `at(0)`.
pub fn email(tenant: TenantId, lane: LaneId, class: Class, key: &str) -> NewNotification {
    let id = unique_id(at(0));
    NewNotification {
        tenant,
        id,
        mode: Mode::Live,
        idempotency_key: key.to_owned(),
        fingerprint: format!("fingerprint of {key}").into_bytes(),
        fingerprint_version: 1,
        schema_version: 1,
        category: "receipt".to_owned(),
        class,
        ref_digest: Some([[1; DIGEST_LEN], [2; DIGEST_LEN]].concat()),
        tags: vec!["blue".to_owned(), "grün \"quoted\"".to_owned()],
        metadata: Some(vec![0, 1, 2, 255]),
        trace_context: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        send_at: None,
        expires_at: at(0).plus(Rules::default().of(class).retry.deadline),
        body: format!("0body of {key}\0").into_bytes(),
        is_sensitive: false,
        ordering_key: None,
        collapse_key: None,
        deliveries: vec![destination(id, 1, lane)],
    }
}

/// One more destination of a notification.
pub fn destination(notification: NotificationId, ordinal: u16, lane: LaneId) -> NewDelivery {
    let id = notification.delivery(ordinal);
    NewDelivery {
        id,
        channel: Channel::Email,
        lane,
        state: State::Queued,
        available_at: at(0),
        address_digest: id.as_uuid().as_bytes().to_vec(),
        address: format!("0address {ordinal}\0").into_bytes(),
        reference: Some(vec![0, 7]),
        sender: Some("shop@example.org".to_owned()),
        message_id: Some(format!("{id}@mail.example.org")),
        attempt_limit: 10,
    }
}

/// The provider took it.
pub fn accepted() -> Outcome {
    Outcome::Accepted { message_id: Some("4F1A".to_owned()), refused_copies: Vec::new() }
}

/// The provider answered with a temporary refusal.
pub const fn answered(retry_after: Option<Duration>) -> Outcome {
    Outcome::NotSent { why: NotSent::Answered, retry_after }
}

/// The report of an attempt of `delivery` as it stood when it was claimed.
pub(super) fn finish_of(delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Finish {
    Finish {
        id: delivery.id,
        number: delivery.attempt_number,
        generation: delivery.generation,
        account: delivery.account.unwrap_or(AccountId(1)),
        started_at: delivery.attempt_started_at.unwrap_or(now),
        finished_at: now,
        report: Report::new(outcome),
        jitter: 0.5,
        position: RoutePosition { is_failover: false, has_other: false, has_later: false },
        others: Vec::new(),
        receipt_window: None,
        sandbox: false,
        match_key: None,
        copies: None,
        of_copies: Vec::new(),
    }
}
