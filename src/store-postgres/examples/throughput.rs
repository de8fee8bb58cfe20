//! Rates of the store alone on an empty database that waits for the disk: accept, claim, finish, one after the other.
//!
//! `cargo run --release -p tidings-store-postgres --example throughput -- postgres://... [rows] [batch]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_core::ids::{AccountId, LaneId, NotificationId, TenantId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::outcome::{Outcome, Report};
use tidings_core::policy::Rules;
use tidings_core::state::State;
use tidings_core::store::{NewDelivery, NewNotification, Outbox as _, Registry as _, Store, WriteBatch};
use tidings_core::time::Timestamp;
use tidings_core::transition::{Finish, RoutePosition};
use tidings_core::words::{Channel, Class, Mode};
use tidings_store_postgres::{Options, PostgresStore};

type Failed = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the URL of an empty database is missing")?;
    let rows: usize = arguments.next().map_or(Ok(50_000), |rows| rows.parse())?;
    let batch: usize = arguments.next().map_or(Ok(64), |batch| batch.parse())?;

    let store = PostgresStore::connect(&url, Options::default()).await?;
    store.migrate().await?;
    let now = store.time().await?.ok_or("a database has a time")?;
    let tenant = store.ensure_tenant("bench").await?.id;
    let account = store.ensure_accounts(&[("sink".to_owned(), "smtp".to_owned())]).await?[0];
    let lane = store.ensure_lanes(&[(Channel::Email, Class::Transactional, "email".to_owned())]).await?[0];
    let instance = store.register_instance(now, b"").await?;
    let rules = Rules::default();

    let items: Vec<Arc<NewNotification>> = (0..rows).map(|n| Arc::new(email(tenant, lane, now, n))).collect();
    let mut pace = Pace::default();
    for part in items.chunks(batch) {
        let work = WriteBatch { accept: part.to_vec(), ..WriteBatch::default() };
        let results = pace.time(store.commit(&rules, work, now)).await;
        results.accept.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    pace.print("accept", rows);

    let mut pace = Pace::default();
    let mut claimed = Vec::with_capacity(rows);
    let slots = 50;
    let mut low = None;
    while claimed.len() < rows {
        let lane = LanePlan {
            lane,
            class: Class::Transactional,
            route: vec![account.into()],
            limit: slots,
            tenant_limit: slots,
            cursor: None,
            low,
        };
        let capacity =
            AccountCapacity { account, free: slots, free_for_others: slots, free_for_bulk: slots, is_well: true, is_well_for_bulk: true };
        let lease_until = now.plus(Duration::from_secs(600));
        let claim = Some(ClaimPlan {
            instance,
            lease_until,
            lanes: vec![lane],
            accounts: vec![capacity],
            sends_as: Default::default(),
            owners: Default::default(),
            paused: Default::default(),
        });
        let results = pace.time(store.commit(&rules, WriteBatch { claim, ..WriteBatch::default() }, now)).await;
        let dispatched = results.claim.ok_or("a claim was asked for")??.dispatched;
        if dispatched.is_empty() {
            return Err("rows are missing".into());
        }
        low = Some(now.minus(Duration::from_secs(5)));
        claimed.extend(dispatched.into_iter().map(|delivery| delivery.id));
    }
    pace.print("claim of 50", rows);

    let mut pace = Pace::default();
    for part in claimed.chunks(50) {
        pace.time(store.outgoing(part)).await?;
    }
    pace.print("read for sending", rows);

    let mut pace = Pace::default();
    for part in claimed.chunks(batch) {
        let finish = part.iter().map(|id| accepted(*id, account, now)).collect();
        let results = pace.time(store.commit(&rules, WriteBatch { finish, ..WriteBatch::default() }, now)).await;
        results.finish.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    pace.print("finish", rows);
    store.close().await;
    Ok(())
}

/// How long calls took.
#[derive(Default)]
struct Pace(Vec<Duration>);

impl Pace {
    async fn time<T>(&mut self, call: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let result = call.await;
        self.0.push(since.elapsed());
        result
    }

    fn print(mut self, what: &str, rows: usize) {
        self.0.sort();
        let total: Duration = self.0.iter().sum();
        let at = |share: usize| self.0[(self.0.len() - 1) * share / 100];
        println!("{what:<18} {:>8.0} rows/s   p50 {:?}   p99 {:?}", rows as f64 / total.as_secs_f64(), at(50), at(99));
    }
}

fn email(tenant: TenantId, lane: LaneId, now: Timestamp, n: usize) -> NewNotification {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&(n as u64).to_be_bytes());
    let id = NotificationId::new(now.plus(Duration::from_millis(n as u64 / 64)), random);
    let delivery = NewDelivery {
        id: id.delivery(1),
        channel: Channel::Email,
        lane,
        state: State::Queued,
        available_at: now,
        address_digest: id.as_uuid().as_bytes().repeat(2),
        address: vec![7; 60],
        reference: None,
        sender: None,
        message_id: Some(format!("{}@mail.example.org", id.delivery(1))),
        attempt_limit: 10,
    };
    NewNotification {
        tenant,
        id,
        mode: Mode::Live,
        idempotency_key: format!("order-{}-{n}", id.as_uuid().simple()),
        fingerprint: vec![1; 32],
        fingerprint_version: 1,
        schema_version: 1,
        category: "receipt".to_owned(),
        class: Class::Transactional,
        ref_digest: None,
        tags: Vec::new(),
        metadata: None,
        trace_context: None,
        send_at: None,
        expires_at: now.plus(Duration::from_secs(86_400)),
        body: vec![9; 300],
        is_sensitive: false,
        ordering_key: None,
        collapse_key: None,
        deliveries: vec![delivery],
    }
}

fn accepted(id: tidings_core::ids::DeliveryId, account: AccountId, now: Timestamp) -> Finish {
    Finish {
        id,
        number: 1,
        generation: 1,
        account,
        started_at: now,
        finished_at: now,
        report: Report::new(Outcome::Accepted { message_id: Some("4F1A2B3C".to_owned()), refused_copies: Vec::new() }),
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
