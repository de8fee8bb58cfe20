//! The service's parts in this process, around an adapter, a clock and a database that do what no real one does on demand:
//! an adapter that panics or never returns, a clock that runs ahead, a database that takes nothing for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use serde_json::{Value, json};
use tidings_core::adapter::{Abilities, Adapter, ContentFault, Idempotency, Lookup, Outgoing};
use tidings_core::content::Content;
use tidings_core::ids::InstanceId;
use tidings_core::outcome::{NotSent, Outcome, Refusal, Report};
use tidings_core::secrets::Keyring;
use tidings_core::store::Accepted;
use tidings_core::words::{Channel, Class, Mode, Reason};
use tidings_gateway::app::{App, Readiness};
use tidings_gateway::clock::StoreClock;
use tidings_gateway::config::{self, MissingSecrets, Sources};
use tidings_gateway::dispatch::Dispatch;
use tidings_gateway::keeper::Keeper;
use tidings_gateway::metrics::Metrics;
use tidings_gateway::pauses::Pauses;
use tidings_gateway::pump::Pump;
use tidings_gateway::reload::Reloads;
use tidings_gateway::routing::{Account, Route, Routing};
use tidings_gateway::setup::Setup;
use tidings_gateway::slots::Slots;
use tidings_gateway::wake::Wake;
use tidings_gateway::writer::{WriteError, Writer};
use tidings_gateway::{accounts, api, keys, store};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::stage::Stage;
use tidings_tests::store_suite;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[path = "inside/counting.rs"]
mod counting;

const PATIENCE: Duration = Duration::from_secs(20);

on_both_databases!(
    an_adapter_that_panics_before_the_crossing_sent_nothing_and_is_not_asked_for_ever,
    an_adapter_that_panics_after_the_crossing_may_have_sent,
    a_call_that_is_cut_off_is_judged_by_its_crossing,
    more_requests_than_may_wait_are_told_to_come_back_and_nothing_is_taken_twice,
    a_clock_far_from_the_databases_is_not_ready_until_they_agree,
);

/// Does what the subject of a message says.
#[derive(Default)]
struct Obedient {
    calls: AtomicU64,
    released: Notify,
}

#[async_trait]
impl Adapter for Obedient {
    fn abilities(&self) -> Abilities {
        let (idempotency, lookup) = (Idempotency::None, Lookup::None);
        Abilities { channel: Channel::Email, idempotency, lookup, visibility_lag: Duration::ZERO, receipts: false }
    }

    fn check(&self, _: &Content) -> Result<(), Vec<ContentFault>> {
        Ok(())
    }

    async fn send(&self, outgoing: &Outgoing) -> Report {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let Content::Email(email) = outgoing.content.as_ref();
        let (what, when) = email.subject.split_once(' ').unwrap_or((&email.subject, ""));
        if when == "after" {
            outgoing.crossing.pass();
        }
        match what {
            "panic" => panic!("as the message said"),
            "hang" => std::future::pending().await,
            // The first call answers when it is told to.
            "wait" if outgoing.handle.generation == 1 => {
                self.released.notified().await;
                Report::new(Outcome::Accepted { message_id: None, refused_copies: Vec::new() })
            }
            "unsure" => Report::new(Outcome::Ambiguous),
            "later" => Report::new(Outcome::NotSent { why: NotSent::Answered, retry_after: None }),
            "listed" => {
                let by = Refusal::Recipient { listed: true, hard: false };
                Report::new(Outcome::Refused { by, reason: Reason::ProviderSuppressed })
            }
            _ => Report::new(Outcome::Accepted { message_id: None, refused_copies: Vec::new() }),
        }
    }
}

/// One process's parts, wired as `serve` wires them.
struct Inside {
    app: Arc<App>,
    dispatch: Arc<Dispatch>,
    adapter: Arc<Obedient>,
    instance: InstanceId,
    client: Client,
}

impl Inside {
    async fn start(stage: &Stage) -> Self {
        let file = stage.directory().join("tidings.toml");
        std::fs::write(&file, "[accounts.relay]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\n").expect("a file");
        let data = stage.directory().join("data");
        let url = stage.store_url().map_or_else(|| format!("sqlite://{}", stage.store_file().display()), str::to_owned);
        let variables = [("SERVER__DATA_DIR", data.display().to_string()), ("SERVER__BIND", "127.0.0.1:0".to_owned()), ("STORE__URL", url)];
        let sources = Sources {
            config: Some(file),
            directory: stage.directory().to_owned(),
            variables: variables.into_iter().map(|(name, value)| (format!("TIDINGS__{name}").into(), value.into())).collect(),
            missing_secrets: MissingSecrets::AreFaults,
        };
        let settings = config::load(&sources).expect("the configuration has no faults");
        let store = store::open(&settings).await.expect("the store opens").store;
        store::ready(store.as_ref(), &settings, PATIENCE).await.expect("the store is migrated");
        let (clock, rules, keyring) = (Arc::new(StoreClock::start()), Arc::new(settings.rules()), Arc::new(Keyring::derive(&[7; 32])));
        let instance = store.register_instance(clock_now(&clock), b"inside").await.expect("an instance");
        let (wake, readiness) = (Arc::new(Wake::new(None)), Readiness::default());
        let metrics = Arc::new(Metrics::new());
        let writer = Writer::start(store.clone(), clock.clone(), rules, wake.clone(), metrics.clone());
        let workshop = accounts::Workshop { clock: clock.clone(), writer: writer.clone(), keyring: keyring.clone() };
        let adapters = accounts::build(&settings, &workshop, None).expect("adapters");
        let configured = accounts::register(adapters, &settings, store.as_ref());
        let adapter = Arc::new(Obedient::default());
        let routing = with_adapter(configured.await.expect("accounts and routes"), &adapter);
        keys::bootstrap(&settings, store.as_ref(), clock_now(&clock)).await.expect("a first key");
        let key = std::fs::read_to_string(data.join("api-key")).expect("the key's file");
        let (slots, pauses, started) =
            (Arc::new(Slots::new(&routing.accounts, clock_now(&clock))), Pauses::default(), std::time::Instant::now());
        let (in_force, reloads) = (ArcSwap::from_pointee(Setup::new(settings, routing)), Reloads::new(sources));
        let app = App { in_force, reloads, store, clock, keyring, writer, wake, readiness, slots, pauses, metrics, started };
        let app = Arc::new(app);
        let server = api::listen(app.clone()).await.expect("loopback has free ports");
        let client = Client::new(&format!("http://{}", server.address), key.trim());
        Self { dispatch: Arc::new(Dispatch::new(app.clone())), app, adapter, instance, client }
    }

    /// Starts to carry messages.
    fn work(&self) {
        tokio::spawn(Pump::new(self.app.clone(), self.dispatch.clone(), self.instance, Arc::new(AtomicBool::new(false))).run());
    }

    /// Accepts one message that tells the adapter what to do.
    async fn tell(&self, key: &str, what: &str) {
        let answer = self.client.post(key, &email("ada@example.com", what)).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }

    async fn until_state(&self, key: &str, state: &str) -> Value {
        let mut status = self.client.until(key, PATIENCE, |status| status["deliveries"][0]["state"] == state).await;
        status["deliveries"][0].take()
    }
}

fn clock_now(clock: &StoreClock) -> tidings_core::time::Timestamp {
    tidings_core::time::Clock::now(clock)
}

/// The same routes with every account in the hands of this adapter.
fn with_adapter(routing: Routing, adapter: &Arc<Obedient>) -> Routing {
    let swap = |account: &Arc<Account>| {
        Arc::new(Account {
            id: account.id,
            name: account.name.clone(),
            kind: account.kind.clone(),
            adapter: adapter.clone(),
            built_from: account.built_from,
            from: account.from.clone(),
            sends_as: account.sends_as.clone(),
            owner: account.owner.clone(),
            is_on: account.is_on,
            concurrency: account.concurrency,
            rate: account.rate,
            daily_cap: account.daily_cap.clone(),
        })
    };
    let routes = routing.routes.iter().map(|route| Route { accounts: route.accounts.iter().map(swap).collect(), ..route.clone() });
    Routing {
        routes: routes.collect(),
        former: routing.former.clone(),
        accounts: routing.accounts.iter().map(swap).collect(),
        sandbox_only: routing.sandbox_only,
    }
}

/// S-040: uncounted, once more after half a minute, and then never again; nobody else is hurt.
async fn an_adapter_that_panics_before_the_crossing_sent_nothing_and_is_not_asked_for_ever(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("poison", "panic before").await;
    let waiting = inside.until_state("poison", "retry_wait").await;
    assert_eq!((&waiting["attempt_count"], &waiting["attempts"][0]["outcome"]), (&json!(0), &json!("not_started")), "{waiting}");
    assert_eq!(inside.adapter.calls.load(Ordering::SeqCst), 1);
    inside.tell("mate", "accept").await;
    inside.until_state("mate", "accepted").await;

    inside.app.clock.anchor(inside.app.now().plus(Duration::from_secs(31)));
    let dead = inside.until_state("poison", "dead").await;
    assert_eq!((&dead["reason"], &dead["certainty"], &dead["attempt_count"]), (&json!("render_error"), &json!("confirmed"), &json!(0)));
    assert_eq!(dead["attempts"][1]["detail"], "the adapter panicked", "{dead}");
    inside.app.clock.anchor(inside.app.now().plus(Duration::from_secs(3_600)));
    inside.tell("last", "accept").await;
    inside.until_state("last", "accepted").await;
    assert_eq!(inside.adapter.calls.load(Ordering::SeqCst), 4, "two for the poison, one for each of the others");
}

/// S-040, S-102: what may have left may have arrived.
async fn an_adapter_that_panics_after_the_crossing_may_have_sent(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("doubt", "panic after").await;
    inside.tell("mate", "accept").await;
    let doubt = inside.until_state("doubt", "ambiguous").await;
    assert_eq!((&doubt["certainty"], &doubt["unresolved"], &doubt["attempt_count"]), (&json!("unknown"), &json!(1), &json!(1)), "{doubt}");
    assert_eq!((&doubt["attempts"][0]["outcome"], &doubt["attempts"][0]["detail"]), (&json!("ambiguous"), &json!("the adapter panicked")));
    inside.until_state("mate", "accepted").await;
    // Two polls long.
    inside.app.clock.anchor(inside.app.now().plus(Duration::from_secs(60)));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(inside.adapter.calls.load(Ordering::SeqCst), 2, "it is not sent again before its hold is over");
}

/// S-046, S-102: a stop cuts off what hangs, and counts what may have been taken.
async fn a_call_that_is_cut_off_is_judged_by_its_crossing(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    for n in 0..2 {
        inside.tell(&format!("before-{n}"), "hang before").await;
    }
    for n in 0..3 {
        inside.tell(&format!("after-{n}"), "hang after").await;
    }
    for key in ["before-0", "before-1", "after-0", "after-1", "after-2"] {
        inside.until_state(key, "dispatching").await;
    }
    while inside.adapter.calls.load(Ordering::SeqCst) < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let since = Instant::now();
    assert_eq!(inside.dispatch.stop(Duration::from_millis(100)).await, 3);
    assert!(since.elapsed() < Duration::from_secs(3), "a stop takes its grace and the time of a commit");
    assert!(inside.dispatch.running().is_empty());

    for n in 0..2 {
        let before = inside.until_state(&format!("before-{n}"), "queued").await;
        assert_eq!((&before["attempt_count"], &before["attempts"][0]["outcome"]), (&json!(0), &json!("not_started")), "{before}");
    }
    for n in 0..3 {
        let after = inside.until_state(&format!("after-{n}"), "ambiguous").await;
        assert_eq!((&after["attempt_count"], &after["unresolved"]), (&json!(1), &json!(1)), "{after}");
    }
    assert_eq!(inside.adapter.calls.load(Ordering::SeqCst), 5);
}

/// S-091, S-008: the queue in memory has a bound. Beyond it nothing is kept, so that the same key succeeds later.
async fn more_requests_than_may_wait_are_told_to_come_back_and_nothing_is_taken_twice(stage: Stage) {
    const REQUESTS: usize = 6_000;
    /// What may wait, and what the writer's tasks may have in hand beside it.
    const BOUND: usize = 4_096;
    const IN_HAND: usize = 128;
    let inside = Inside::start(&stage).await;
    let tenant = inside.app.store.ensure_tenant("default").await.expect("a tenant").id;
    let lane = inside.app.setup().routing.routes.iter().find(|route| route.class == Class::Transactional).expect("a route").lane;
    let items: Vec<_> =
        (0..REQUESTS).map(|n| Arc::new(store_suite::email(tenant, lane, Class::Transactional, &format!("crowd-{n}")))).collect();

    let stalled = stage.stall_accepts().await;
    let mut crowd = tokio::task::JoinSet::new();
    for item in &items {
        let (writer, item) = (inside.app.writer.clone(), item.clone());
        crowd.spawn(async move { (item.clone(), writer.accept(item, None).await) });
    }
    let (mut refused, mut taken) = (Vec::new(), 0);
    let least = REQUESTS - BOUND - IN_HAND * inside.app.store.committers().max(1);
    while refused.len() < least {
        match crowd.join_next().await.expect("more were refused").expect("no panic") {
            (item, Err(WriteError::Overloaded)) => refused.push(item),
            (_, other) => panic!("nothing is taken while the database is stalled: {other:?}"),
        }
    }
    let answer = inside.client.post("one-more", &email("ada@example.com", "accept")).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (503, Some("overloaded")), "{}", answer.text);
    assert!(answer.header("retry-after").is_some());
    stalled.release().await;

    while let Some(done) = crowd.join_next().await {
        match done.expect("no panic") {
            (_, Ok(Accepted::Taken)) => taken += 1,
            // The database waits only so long for a lock.
            (item, Err(WriteError::Overloaded | WriteError::Store(_))) => refused.push(item),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!(taken + refused.len(), REQUESTS);
    assert_eq!(inside.app.store.open_count().await.expect("a count"), i64::try_from(taken).expect("a small number"));
    for part in refused.chunks(1_000) {
        let again = part.iter().map(|item| inside.app.writer.accept(item.clone(), None));
        for accepted in futures_util::future::join_all(again).await {
            assert_eq!(accepted.expect("the database is back"), Accepted::Taken, "a refusal had occupied its key");
        }
    }
    inside.tell("one-more", "accept").await;
    assert_eq!(inside.app.store.open_count().await.expect("a count"), i64::try_from(REQUESTS).expect("a small number") + 1);
    for item in [&items[0], &items[REQUESTS - 1]] {
        let holder = inside.app.store.by_key(tenant, Mode::Live, &item.idempotency_key).await.expect("a read");
        assert_eq!(holder, Some(item.as_holder()));
    }
}

/// S-047, S-228: on PostgreSQL the database's time counts. A process that was far from it says so, goes by it at once, and
/// never turns its clock back. SQLite has no clock beside the process's own.
async fn a_clock_far_from_the_databases_is_not_ready_until_they_agree(stage: Stage) {
    let inside = Inside::start(&stage).await;
    let ready = async || {
        let answer = inside.client.get("/readyz").await;
        (answer.status, answer.json()["faults"].clone())
    };
    let keep = || {
        let stop = CancellationToken::new();
        let paused = Arc::new(AtomicBool::new(false));
        Keeper::new(inside.app.clone(), inside.dispatch.clone(), inside.instance, paused, stop.clone()).start();
        stop
    };
    assert_eq!(ready().await, (200, json!([])));
    let ahead = inside.app.now().plus(Duration::from_secs(4));
    inside.app.clock.anchor(ahead);
    let stop = keep();
    if !stage.is_postgres() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(ready().await, (200, json!([])));
        return;
    }
    let told = async {
        while ready().await != (503, json!(["clock"])) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), told).await.expect("the first anchor sees the skew");
    stop.cancel();
    let held = inside.app.now();
    assert!(held >= ahead, "the clock went back");

    // The database catches up with what this clock has said; from then on they agree.
    let caught_up = async {
        while inside.app.now() < held.plus(Duration::from_millis(100)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, caught_up).await.expect("time goes on");
    keep();
    let told = async {
        while ready().await != (200, json!([])) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), told).await.expect("the next anchor finds no skew");
    let database = inside.app.store.time().await.expect("a time").expect("PostgreSQL has its own");
    let apart = database.since(inside.app.now()).max(inside.app.now().since(database));
    assert!(apart < Duration::from_millis(500), "{apart:?}");
}
