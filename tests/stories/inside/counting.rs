//! The rare events that prove correctness are counted (S-224): each is made to happen once, and its counter moves by one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::policy::LEASE;
use tidings_core::store::Sweep;
use tidings_core::words::Class;
use tidings_gateway::keeper::Keeper;
use tidings_tests::client::email;
use tidings_tests::on_both_databases;
use tidings_tests::stage::Stage;
use tidings_tests::store_suite;
use tokio_util::sync::CancellationToken;

use super::{Inside, PATIENCE};

on_both_databases!(
    a_result_that_comes_after_its_lease_is_counted_and_settles_its_delivery,
    a_late_second_acceptance_is_counted_as_a_duplicate,
    the_end_of_a_lease_is_counted_by_who_sees_it,
    what_ends_a_hold_is_counted_by_what_it_was,
    suppressions_are_counted_where_they_stop_a_message,
    the_way_of_a_message_is_measured_and_retries_are_counted_apart,
);

impl Inside {
    /// What a series says; nothing where nothing was counted.
    async fn counted(&self, series: &str) -> f64 {
        let text = self.client.get("/metrics").await.text;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_default()
    }

    /// Waits until a series says so.
    async fn until_counted(&self, series: &str, value: f64) {
        let reached = async {
            while self.counted(series).await != value {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let late = tokio::time::timeout(PATIENCE, reached).await.is_err();
        assert!(!late, "{series} is not {value}:\n{}", self.client.get("/metrics").await.text);
    }

    /// What another process on the same database does once the leases of this one are over.
    async fn reaped_by_another(&self, sweep: Sweep, after: Duration) {
        let swept = self.app.store.sweep(&self.app.setup().rules, sweep, 100, self.app.now().plus(after)).await.expect("a sweep");
        assert_eq!(swept.len(), 1, "{swept:?}");
    }

    fn keep(&self) {
        let (paused, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        Keeper::new(self.app.clone(), self.dispatch.clone(), self.instance, paused, stop).start();
    }

    async fn until_called(&self, calls: u64) {
        let called = async {
            while self.adapter.calls.load(std::sync::atomic::Ordering::SeqCst) < calls {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, called).await.expect("the adapter is called");
    }

    fn later(&self, span: Duration) {
        self.app.clock.anchor(self.app.now().plus(span));
    }

    async fn asked(&self, path: &str, body: &Value) {
        let answer = self.client.call("POST", path, body).await;
        assert!(answer.status < 300, "{}: {}", answer.status, answer.text);
    }
}

async fn a_result_that_comes_after_its_lease_is_counted_and_settles_its_delivery(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("late", "wait after").await;
    inside.until_called(1).await;
    inside.reaped_by_another(Sweep::LeaseExpired, LEASE * 2).await;
    inside.until_counted("tidings_ambiguous_open", 1.0).await;
    // The renewal sees that the lease is another's.
    inside.keep();
    inside.until_counted("tidings_fenced_writes_total", 1.0).await;
    assert_eq!(inside.counted("tidings_late_results_total").await, 0.0);
    inside.adapter.released.notify_one();
    inside.until_state("late", "accepted").await;
    inside.until_counted("tidings_late_results_total", 1.0).await;
    assert_eq!(inside.counted("tidings_ambiguous_resolved_total{by=\"late_result\"}").await, 1.0);
    assert_eq!(inside.counted("tidings_duplicate_sent_total{cause=\"late_acceptance\"}").await, 0.0);
    inside.until_counted("tidings_ambiguous_open", 0.0).await;
}

async fn a_late_second_acceptance_is_counted_as_a_duplicate(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("twice", "wait after").await;
    inside.until_called(1).await;
    inside.reaped_by_another(Sweep::LeaseExpired, LEASE * 2).await;
    inside.reaped_by_another(Sweep::ChecksDue, Duration::from_secs(7_200)).await;
    inside.later(Duration::from_secs(7_200));
    inside.until_state("twice", "accepted").await;
    assert_eq!(inside.counted("tidings_duplicate_sent_total{cause=\"late_acceptance\"}").await, 0.0);
    inside.adapter.released.notify_one();
    inside.until_counted("tidings_duplicate_sent_total{cause=\"late_acceptance\"}", 1.0).await;
    assert_eq!(inside.counted("tidings_late_results_total").await, 1.0);
}

async fn what_ends_a_hold_is_counted_by_what_it_was(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("resent", "unsure after").await;
    inside.until_state("resent", "ambiguous").await;
    inside.later(Duration::from_secs(3_600));
    inside.keep();
    inside.until_counted("tidings_ambiguous_resolved_total{by=\"resend\"}", 1.0).await;
    // It is sent once more, which nobody answers for either.
    inside.until_called(2).await;
    inside.until_state("resent", "ambiguous").await;
    inside.later(Duration::from_secs(3_600));
    inside.until_state("resent", "unknown").await;
    inside.until_counted("tidings_ambiguous_resolved_total{by=\"hold\"}", 1.0).await;

    inside.tell("settled", "unsure after").await;
    let doubt = inside.until_state("settled", "ambiguous").await;
    let path = format!("/v1/deliveries/{}/resolve", doubt["id"].as_str().expect("an id"));
    for _ in 0..2 {
        inside.asked(&path, &json!({"as": "sent", "reason": "the provider's log says so"})).await;
    }
    assert_eq!(inside.counted("tidings_ambiguous_resolved_total{by=\"operator\"}").await, 1.0);
}

async fn the_end_of_a_lease_is_counted_by_who_sees_it(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.tell("lost", "accept").await;
    // Another process claimed it, and is gone.
    let setup = inside.app.setup();
    let route = setup.routing.routes.iter().find(|route| route.class == Class::Transactional).expect("a route");
    let account = route.accounts[0].id;
    let lane =
        LanePlan { lane: route.lane, class: route.class, route: vec![account.into()], limit: 1, tenant_limit: 1, cursor: None, low: None };
    let capacity = AccountCapacity { account, free: 1, free_for_others: 1, free_for_bulk: 1, is_well: true, is_well_for_bulk: true };
    let now = inside.app.now();
    let instance = inside.app.store.register_instance(now, b"gone").await.expect("another process");
    let (lanes, accounts, sends_as, owners, paused) = (vec![lane], vec![capacity], Arc::default(), Default::default(), Default::default());
    let plan = ClaimPlan { instance, lease_until: now, lanes, accounts, sends_as, owners, paused };
    let claimed = store_suite::claim_on(&inside.app.store, &setup.rules, plan, now).await.expect("a claim");
    assert_eq!(claimed.dispatched.len(), 1);
    assert_eq!(inside.counted("tidings_lease_expired_total").await, 0.0);
    inside.keep();
    inside.until_counted("tidings_lease_expired_total", 1.0).await;
    inside.until_counted("tidings_ambiguous_open", 1.0).await;
}

async fn suppressions_are_counted_where_they_stop_a_message(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    let suppress = async |address: &str| inside.asked("/v1/suppressions", &json!({"items": [{"address": address}]})).await;
    let post = async |key: &str, body: Value| assert_eq!(inside.client.post(key, &body).await.status, 202);
    let series = |hop: &str| format!("tidings_suppressed_at_total{{hop=\"{hop}\"}}");

    suppress("gone@example.com").await;
    post("claim", email("gone@example.com", "accept")).await;
    inside.until_counted(&series("claim"), 1.0).await;

    post("retry", email("moody@example.com", "later")).await;
    inside.until_state("retry", "retry_wait").await;
    suppress("moody@example.com").await;
    inside.later(Duration::from_secs(600));
    inside.until_counted(&series("retry"), 1.0).await;

    let mut copied = email("ada@example.com", "accept");
    copied["email"]["cc"] = json!(["gone@example.com"]);
    post("copy", copied).await;
    inside.until_state("copy", "accepted").await;
    inside.until_counted(&series("copy"), 1.0).await;

    post("provider", email("listed@example.com", "listed")).await;
    inside.until_state("provider", "suppressed").await;
    inside.until_counted(&series("provider"), 1.0).await;
    for hop in ["claim", "retry", "copy"] {
        assert_eq!(inside.counted(&series(hop)).await, 1.0, "{hop}");
    }
}

/// S-221, S-225.
async fn the_way_of_a_message_is_measured_and_retries_are_counted_apart(stage: Stage) {
    let inside = Inside::start(&stage).await;
    inside.work();
    inside.tell("again", "later").await;
    inside.until_state("again", "retry_wait").await;
    inside.later(Duration::from_secs(600));
    inside.until_called(2).await;
    inside.tell("once", "accept").await;
    inside.until_state("once", "accepted").await;
    let tries = |kind: &str, outcome: &str| {
        format!("tidings_attempts_total{{account=\"relay\",class=\"transactional\",outcome=\"{outcome}\",kind=\"{kind}\"}}")
    };
    inside.until_counted(&tries("retry", "not_sent"), 1.0).await;
    assert_eq!(inside.counted(&tries("first", "not_sent")).await, 1.0);
    assert_eq!(inside.counted(&tries("first", "accepted")).await, 1.0);
    let lane = "{channel=\"email\",class=\"transactional\",route=\"main\"}";
    for (measured, count) in [("enqueue_to_start", 2.0), ("start_to_accept", 1.0)] {
        assert_eq!(inside.counted(&format!("tidings_{measured}_seconds_count{lane}")).await, count, "{measured}");
    }
    let waited = inside.counted(&format!("tidings_enqueue_to_start_seconds_sum{lane}")).await;
    assert!(waited < 60.0, "{waited}: the time of a retry does not count");
}
