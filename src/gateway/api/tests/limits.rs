//! Stories of limits: who may ask for how much, and what a caller is told about it.

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::store::Reading as _;

use super::HELLO;
use super::broken::Failure;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    a_request_costs_a_token_for_each_message_and_every_answer_tells_what_is_left,
    a_batch_is_charged_whole_before_any_of_it_is_taken,
    an_empty_bucket_refuses_before_the_body_is_looked_at,
    without_a_limit_no_answer_speaks_of_one,
    the_limits_of_a_key_can_be_read,
    a_full_queue_takes_nothing_more_but_a_few_codes,
    an_address_that_keeps_failing_is_told_to_wait_and_good_keys_are_not,
    a_tenant_under_its_rate_draws_slices_and_not_tokens,
    callers_at_once_are_admitted_as_burst_and_rate_allow,
    without_the_buckets_a_tenant_has_half_of_its_rate_and_may_read,
);

/// Slow enough that nothing comes in while a test runs.
const SLOW: &str = "[limits]\ntenant_rate = \"1/s\"\ntenant_burst = 60\n";

fn to(people: usize) -> String {
    let to: Vec<String> = (0..people).map(|n| format!("p{n}@example.com")).collect();
    json!({"to": to, "email": {"subject": "s", "text": "t"}}).to_string()
}

fn batch_of(items: usize) -> String {
    let item = |n| json!({"idempotency_key": format!("b{n}"), "to": "a@example.com", "email": {"subject": "s", "text": "t"}});
    json!({"notifications": (0..items).map(item).collect::<Vec<Value>>()}).to_string()
}

async fn a_request_costs_a_token_for_each_message_and_every_answer_tells_what_is_left(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SLOW).await.remembering();
    let first = rig.post("a", &to(50)).await;
    assert_eq!((first.status, first.header("ratelimit-policy")), (202, Some("\"tenant\";q=60;w=60")));
    let left = first.header("ratelimit").unwrap();
    assert!(left.starts_with("\"tenant\";r=10;t=") || left.starts_with("\"tenant\";r=11;t="), "{left}");

    let refused = rig.post("b", &to(50)).await;
    let (status, code, detail) = refused.problem();
    assert_eq!((status, code.as_str()), (429, "rate_limited"));
    assert!(detail.contains("costs 50"), "{detail}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((35..=40).contains(&wait), "{wait}");
    assert_eq!(refused.json()["retryable"], true);
    // Reads tell it too, and cost nothing.
    let read = rig.get("/v1/notifications/by-key?idempotency_key=a").await;
    assert!(read.status == 200 && read.header("ratelimit").is_some());
    // The key was not occupied, and a smaller request still goes.
    assert_eq!(rig.post("b", HELLO).await.status, 202);
}

async fn a_batch_is_charged_whole_before_any_of_it_is_taken(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SLOW).await.remembering();
    assert_eq!(rig.batch(&batch_of(40)).await.status, 202);
    let refused = rig.batch(&batch_of(40).replace("\"b", "\"c")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    assert_eq!(rig.store.open_count().await.unwrap(), 40);
    let too_much = rig.batch(&batch_of(61)).await;
    assert!(too_much.problem().2.contains("in parts"));
}

async fn an_empty_bucket_refuses_before_the_body_is_looked_at(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[limits]\ntenant_rate = \"1/s\"\ntenant_burst = 50\n").await.remembering();
    assert_eq!(rig.post("a", &to(50)).await.status, 202);
    assert_eq!(rig.post("b", "not even JSON").await.code(), "rate_limited");
}

async fn without_a_limit_no_answer_speaks_of_one(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    let answer = rig.post("a", HELLO).await;
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
    assert_eq!(rig.get("/v1/limits").await.json()["tenant_rate"], Value::Null);
}

async fn the_limits_of_a_key_can_be_read(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SLOW).await.remembering();
    let limits = rig.get("/v1/limits").await.json();
    assert_eq!((&limits["tenant_rate"]["per_second"], &limits["tenant_rate"]["burst"]), (&json!(1), &json!(60)));
    assert_eq!((&limits["batch_items"], &limits["batch_body"]), (&json!(500), &json!(5 << 20)));
    assert_eq!((&limits["recipients"], &limits["idempotency_key"]), (&json!(50), &json!("required")));
    assert_eq!(rig.raw(TestRequest::get().uri("/v1/limits")).await.status, 401);
}

async fn a_full_queue_takes_nothing_more_but_a_few_codes(on: Database) {
    let file = "[limits]\nqueue_depth = 100\n[categories.login-code]\nclass = \"critical\"\n";
    let rig = Rig::start(on, Accounts::Relay, file).await;
    rig.app.writer.count_open(99);
    assert_eq!(rig.post("a", HELLO).await.status, 202);
    let full = rig.post("b", HELLO).await;
    assert_eq!((full.status, full.code().as_str(), full.header("retry-after")), (429, "queue_full", Some("10")));
    assert_eq!(rig.batch(&batch_of(1)).await.code(), "queue_full");
    let code = r#"{"to": "a@example.com", "category": "login-code", "email": {"subject": "s", "text": "t"}}"#;
    assert_eq!(rig.post("code", code).await.status, 202);
    rig.app.writer.count_open(110);
    assert_eq!(rig.post("code-2", code).await.code(), "queue_full");
    rig.app.writer.count_open(0);
    assert_eq!(rig.post("b", HELLO).await.status, 202);
}

/// S-083: by the address of the connection, whatever the headers say; keys that were good lately go on.
async fn an_address_that_keeps_failing_is_told_to_wait_and_good_keys_are_not(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    assert_eq!(rig.get("/v1/limits").await.status, 200);
    let mut statuses = Vec::new();
    for n in 0..25_u8 {
        let key = crate::api::auth::new_key("live", [n; 32]);
        let request = TestRequest::get().uri("/v1/limits").insert_header(("x-forwarded-for", format!("192.0.2.{n}")));
        statuses.push(rig.raw(request.insert_header(("authorization", format!("Bearer {key}")))).await.status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count() as u64 / 10, 2, "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
    assert_eq!(rig.get("/v1/limits").await.status, 200);
}

/// S-085, S-086: slices are drawn ahead, so that a tenant under its rate does not wait for the store with each request.
async fn a_tenant_under_its_rate_draws_slices_and_not_tokens(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[limits]\ntenant_rate = \"1000/s\"\ntenant_burst = 2000\n").await.remembering();
    for n in 0..100 {
        assert_eq!(rig.post(&format!("k{n}"), HELLO).await.status, 202);
    }
    let draws = rig.store.draws();
    assert!((1..=20).contains(&draws), "{draws}");
}

/// S-085: 64 callers at once are admitted as one bucket would admit them.
async fn callers_at_once_are_admitted_as_burst_and_rate_allow(on: Database) {
    use crate::api::allowances::Allowances;
    use std::time::{Duration, Instant};
    use tidings_core::ids::TenantId;
    use tidings_core::rate::Rate;

    let rig = Rig::start(on, Accounts::Relay, "").await;
    let rate = Rate { per_second: 40, burst: 60 };
    let allowances = Allowances::new(&rig.app);
    let begun = Instant::now();
    let mut admitted = u32::from(allowances.charge(TenantId(1), rate, 1).await.is_ok());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_200) {
        let callers = (0..64).map(|_| allowances.charge(TenantId(1), rate, 1));
        let answers = futures_util::future::join_all(callers).await;
        admitted += u32::try_from(answers.iter().filter(|answer| answer.is_ok()).count()).unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let least = 60.0 + 40.0 * start.elapsed().as_secs_f64() - 1.0;
    while allowances.charge(TenantId(1), rate, 1).await.is_ok() {
        admitted += 1;
    }
    let (most, admitted) = (60.0 + 40.0 * begun.elapsed().as_secs_f64(), f64::from(admitted));
    assert!(admitted >= least && admitted <= most, "{admitted} of {least} to {most}");
}

/// S-088: intake goes on with half of the rate, reading goes on, and both are so again when the store is back.
async fn without_the_buckets_a_tenant_has_half_of_its_rate_and_may_read(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SLOW).await.remembering();
    rig.store.fails(Failure::NoRates);
    assert_eq!(rig.post("a", &to(25)).await.status, 202);
    let refused = rig.post("b", &to(10)).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((9..=10).contains(&wait), "five tokens come in at one in two seconds: {wait}");
    let read = rig.get("/v1/notifications/by-key?idempotency_key=a").await;
    assert!(read.status == 200 && read.header("ratelimit").unwrap().starts_with("\"tenant\";r=5;"), "{:?}", read.header("ratelimit"));
    let text = rig.raw(TestRequest::get().uri("/metrics")).await.text();
    assert!(text.lines().any(|line| line.starts_with("tidings_limiter_failures_total{limiter=\"intake\"} ")), "{text}");
    rig.store.fails(Failure::Nothing);
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert_eq!(rig.post("b", &to(50)).await.status, 202);
}
