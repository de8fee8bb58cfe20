//! How many rows a second the store takes, claims, reads for sending and finishes on this machine, and what one costs in
//! CPU time of all threads; every batch is one durable commit.
//!
//! `cargo run --release -p tidings-store-sqlite --example throughput [rows] [batch] [body bytes]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_core::delivery::Delivery;
use tidings_core::ids::{AccountId, InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::outcome::{Outcome, Report};
use tidings_core::policy::Rules;
use tidings_core::state::State;
use tidings_core::store::{NewDelivery, NewNotification, Outbox as _, Registry as _, Store, WriteBatch};
use tidings_core::time::Timestamp;
use tidings_core::transition::{Finish, RoutePosition};
use tidings_core::words::{Channel, Class, Mode};
use tidings_store_sqlite::SqliteStore;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|raw| raw.parse::<usize>());
    let mut argument = |default| arguments.next().unwrap_or(Ok(default));
    let (rows, batch, body) = (argument(50_000)?, argument(64)?, argument(200)?);

    let directory = tempfile::tempdir_in(".")?;
    let store = SqliteStore::open_in(directory.path()).await?;
    store.migrate().await?;
    let tenant = store.ensure_tenant("bench").await?.id;
    let account = store.ensure_accounts(&[("relay".into(), "smtp".into())]).await?[0];
    let lane = store.ensure_lanes(&[(Channel::Email, Class::Transactional, "email".into())]).await?[0];
    let instance = store.register_instance(NOW, b"").await?;
    let rules = Rules::default();
    println!("{rows} rows, {batch} in a batch, {body} bytes of content");

    let items: Vec<_> = (0..rows).map(|n| Arc::new(email(tenant, lane, n, body))).collect();
    let begun = Begun::now();
    for accept in items.chunks(batch) {
        let accept = WriteBatch { accept: accept.to_vec(), ..WriteBatch::default() };
        store.commit(&rules, accept, NOW).await.accept.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    begun.report("accept", rows, rows.div_ceil(batch));

    let mut claimed = Vec::new();
    let begun = Begun::now();
    let mut claims = 0;
    loop {
        let claim = Some(plan(instance, lane, account, 50));
        let taken = store.commit(&rules, WriteBatch { claim, ..WriteBatch::default() }, NOW).await.claim.ok_or("no claim")??.dispatched;
        claims += 1;
        if taken.is_empty() {
            break;
        }
        claimed.extend(taken);
    }
    begun.report("claim", claimed.len(), claims);

    let begun = Begun::now();
    let ids: Vec<_> = claimed.iter().map(|delivery| delivery.id).collect();
    for part in ids.chunks(50) {
        store.outgoing(part).await?;
    }
    begun.report("read", claimed.len(), claimed.len().div_ceil(50));

    let begun = Begun::now();
    for part in claimed.chunks(batch) {
        let finish = part.iter().map(|delivery| acceptance(delivery, account)).collect();
        let finish = WriteBatch { finish, ..WriteBatch::default() };
        store.commit(&rules, finish, NOW).await.finish.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    begun.report("finish", claimed.len(), claimed.len().div_ceil(batch));
    store.close().await;
    Ok(())
}

/// A stretch of work that is measured.
struct Begun {
    at: Instant,
    cpu: f64,
}

impl Begun {
    fn now() -> Self {
        Self { at: Instant::now(), cpu: cpu_micros() }
    }

    fn report(&self, what: &str, rows: usize, calls: usize) {
        let took = self.at.elapsed().as_secs_f64();
        let (rate, cpu) = (rows as f64 / took, (cpu_micros() - self.cpu) / rows as f64);
        println!("{what:7} {rate:8.0} rows/s   {:6.2} ms a call   {cpu:6.1} us of CPU a row", took * 1_000.0 / calls as f64);
    }
}

/// CPU time of all threads that live, as Linux counts it; 0 elsewhere.
fn cpu_micros() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let spent = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    spent.sum::<f64>() / 1_000.0
}

fn plan(instance: InstanceId, lane: LaneId, account: AccountId, limit: u16) -> ClaimPlan {
    let route = vec![account.into()];
    let lane = LanePlan { lane, class: Class::Transactional, route, limit, tenant_limit: limit, cursor: None, low: None };
    let accounts =
        vec![AccountCapacity { account, free: limit, free_for_others: limit, free_for_bulk: limit, is_well: true, is_well_for_bulk: true }];
    ClaimPlan {
        instance,
        lease_until: NOW.plus(Duration::from_secs(60)),
        lanes: vec![lane],
        accounts,
        sends_as: Default::default(),
        owners: Default::default(),
        paused: Default::default(),
    }
}

fn acceptance(delivery: &Delivery, account: AccountId) -> Finish {
    Finish {
        id: delivery.id,
        number: delivery.attempt_number,
        generation: delivery.generation,
        account,
        started_at: NOW,
        finished_at: NOW,
        report: Report::new(Outcome::Accepted { message_id: Some("4F1A".into()), refused_copies: Vec::new() }).with_code("250 2.0.0"),
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

fn email(tenant: TenantId, lane: LaneId, n: usize, body: usize) -> NewNotification {
    let mut random = [0x5a; 10];
    random[3..8].copy_from_slice(&n.to_be_bytes()[3..]);
    // Millions fit between the fixed bits of one millisecond; a new one every thousand keeps the order of real ids.
    let id = NotificationId::new(NOW.plus(Duration::from_millis(n as u64 / 1_000)), random);
    let delivery = NewDelivery {
        id: id.delivery(1),
        channel: Channel::Email,
        lane,
        state: State::Queued,
        available_at: NOW,
        address_digest: vec![n as u8; 32],
        address: vec![b'a'; 60],
        reference: None,
        sender: Some("shop@example.org".into()),
        message_id: Some(format!("{}@example.org", id.as_uuid().simple())),
        attempt_limit: 10,
    };
    NewNotification {
        tenant,
        id,
        mode: Mode::Live,
        idempotency_key: format!("order-{n}-{:x}", n.wrapping_mul(0x9e37_79b9)),
        fingerprint: vec![n as u8; 32],
        fingerprint_version: 1,
        schema_version: 1,
        category: "receipt".into(),
        class: Class::Transactional,
        ref_digest: None,
        tags: Vec::new(),
        metadata: None,
        trace_context: None,
        send_at: None,
        expires_at: NOW.plus(Duration::from_secs(86_400)),
        body: vec![b'x'; body],
        is_sensitive: false,
        ordering_key: None,
        collapse_key: None,
        deliveries: vec![delivery],
    }
}
