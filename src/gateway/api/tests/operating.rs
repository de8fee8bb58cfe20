//! What operators see and do: switches, accounts, metrics, the port of their own.

use actix_web::test::TestRequest;
use serde_json::json;
use tidings_core::store::Store as _;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};
use crate::api;

on_both_databases!(
    a_switch_is_set_read_and_removed_and_doing_so_twice_is_fine,
    a_switch_for_nothing_that_there_is_is_refused,
    what_is_paused_says_so_and_intake_goes_on,
    accounts_are_listed_and_tested,
    operators_acts_need_their_scope,
    metrics_count_what_happens_and_name_nobody,
    with_a_port_of_their_own_operators_are_found_nowhere_else,
);

async fn asked(rig: &Rig, request: TestRequest, body: Option<&str>) -> Answer {
    let request = request.insert_header(("authorization", format!("Bearer {}", rig.key)));
    rig.raw(match body {
        Some(body) => request.insert_header(("content-type", "application/json")).set_payload(body.to_owned()),
        None => request,
    })
    .await
}

async fn put(rig: &Rig, scope: &str, body: &str) -> Answer {
    asked(rig, TestRequest::put().uri(&format!("/v1/switches/{scope}")), Some(body)).await
}

async fn a_switch_is_set_read_and_removed_and_doing_so_twice_is_fine(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let set = put(&rig, "class:bulk", r#"{"paused": true, "until": "2099-01-01T00:00:00+01:00", "reason": "storm"}"#).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let shown = set.json();
    assert_eq!(
        (&shown["scope"], &shown["paused"], &shown["until"]),
        (&json!("class:bulk"), &json!(true), &json!("2098-12-31T23:00:00.000Z"))
    );
    assert_eq!(shown["reason"], "storm");
    assert!(shown["actor"].as_str().unwrap().starts_with("key_"));
    assert_eq!(put(&rig, "class:bulk", r#"{"paused": true, "until": "2099-01-01T00:00:00+01:00", "reason": "storm"}"#).await.json(), shown);
    assert_eq!(rig.get("/v1/switches/class:bulk").await.json(), shown);
    assert_eq!(rig.get("/v1/switches").await.json(), json!({"items": [shown], "next": null}));
    for _ in 0..2 {
        assert_eq!(asked(&rig, TestRequest::delete().uri("/v1/switches/class:bulk"), None).await.status, 204);
    }
    assert_eq!(rig.get("/v1/switches/class:bulk").await.code(), "not_found");
}

async fn a_switch_for_nothing_that_there_is_is_refused(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[categories.receipt]\nclass = \"transactional\"\n").await;
    for scope in ["everything", "class:urgent", "account:gone", "tenant:gone", "category:recipt"] {
        assert_eq!(put(&rig, scope, r#"{"paused": true}"#).await.code(), "not_found", "{scope}");
    }
    for scope in ["all", "retries", "fallback", "channel:sms", "account:relay", "tenant:default", "category:receipt"] {
        assert_eq!(put(&rig, scope, r#"{"paused": true}"#).await.status, 200, "{scope}");
    }
    for (body, code) in [("{}", "invalid_field"), (r#"{"paused": true, "for": "2h"}"#, "unknown_field"), ("[", "invalid_json")] {
        assert_eq!(put(&rig, "all", body).await.code(), code, "{body}");
    }
}

async fn what_is_paused_says_so_and_intake_goes_on(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let waits_for = async || rig.get("/v1/notifications/by-key?idempotency_key=k").await.json()["deliveries"][0]["wait_reason"].clone();
    put(&rig, "channel:email", r#"{"paused": true}"#).await;
    assert_eq!(rig.post("k", HELLO).await.status, 202);
    assert_eq!(waits_for().await, "paused");
    asked(&rig, TestRequest::delete().uri("/v1/switches/channel:email"), None).await;
    assert_eq!(waits_for().await, json!(null));
    let paused = asked(&rig, TestRequest::post().uri("/v1/accounts/relay/pause"), Some(r#"{"reason": "storm"}"#)).await;
    assert_eq!((&paused.json()["why"], &paused.json()["takes_messages"]), (&json!("paused"), &json!(false)));
    assert_eq!(waits_for().await, "paused");
    let resumed = asked(&rig, TestRequest::post().uri("/v1/accounts/relay/resume"), None).await;
    assert_eq!((&resumed.json()["why"], &resumed.json()["takes_messages"]), (&json!(null), &json!(true)));
    assert_eq!(waits_for().await, json!(null));
}

async fn accounts_are_listed_and_tested(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let listed = rig.get("/v1/accounts").await.json();
    assert_eq!(listed["items"][0]["name"], "relay");
    assert_eq!((&listed["items"][0]["open"], &listed["items"][0]["channel"]), (&json!(0), &json!("email")));
    let tested = asked(&rig, TestRequest::post().uri("/v1/accounts/relay/test"), Some(r#"{"to": "ada@example.com"}"#)).await;
    assert_eq!((tested.status, tested.json()["outcome"].clone()), (200, json!("not_started")));
    let wrong = asked(&rig, TestRequest::post().uri("/v1/accounts/relay/test"), Some(r#"{"to": "nobody"}"#)).await;
    assert_eq!(wrong.code(), "invalid_recipient");
    // Whom nobody else may reach, a test does not reach either.
    let item = r#"{"items": [{"address": "gone@example.com"}]}"#;
    assert_eq!(asked(&rig, TestRequest::post().uri("/v1/suppressions"), Some(item)).await.status, 200);
    let suppressed = asked(&rig, TestRequest::post().uri("/v1/accounts/relay/test"), Some(r#"{"to": "gone@example.com"}"#)).await;
    assert_eq!((suppressed.status, suppressed.code().as_str()), (422, "recipient_not_allowed"));
    for kind in ["test", "team"] {
        let key = rig.key(kind, &["ops"]).await;
        let request = TestRequest::post().uri("/v1/accounts/relay/test").insert_header(("authorization", format!("Bearer {key}")));
        let request = request.insert_header(("content-type", "application/json")).set_payload(r#"{"to": "ada@example.com"}"#);
        assert_eq!(rig.raw(request).await.code(), "recipient_not_allowed", "{kind}");
    }
    assert_eq!(asked(&rig, TestRequest::post().uri("/v1/accounts/gone/pause"), None).await.code(), "not_found");
}

async fn operators_acts_need_their_scope(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let sender = rig.key("live", &["send", "read", "pii", "admin"]).await;
    for path in ["/v1/switches", "/v1/switches/all", "/v1/accounts"] {
        assert_eq!(rig.get_as(&sender, path).await.code(), "scope_missing", "{path}");
    }
}

async fn metrics_count_what_happens_and_name_nobody(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.post("secret-key", HELLO).await;
    rig.post("secret-key", HELLO).await;
    rig.post("secret-key", &HELLO.replace("Hello", "Other")).await;
    let answer = rig.raw(TestRequest::get().uri("/metrics")).await;
    assert_eq!(answer.status, 200);
    let text = answer.text();
    for line in [
        "tidings_idem_replay_total 1",
        "tidings_idem_mismatch_total 1",
        "tidings_accept_seconds_count 3",
        "tidings_queue_depth{channel=\"email\",class=\"transactional\",route=\"main\",state=\"queued\"} 1",
        "tidings_ready 1",
        "tidings_store_measured 1",
        "tidings_ambiguous_open 0",
        &format!("tidings_config_info{{digest=\"{}\"}} 1", rig.app.setup().digest),
        "tidings_lease_expired_total 0",
        "tidings_fenced_writes_total 0",
        "tidings_late_results_total 0",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
    assert!(text.contains("tidings_oldest_ready_age_seconds{channel=\"email\",class=\"transactional\",route=\"main\"} "));
    assert!(text.contains("tidings_events_horizon_age_seconds ") && text.ends_with("# EOF\n"));
    for secret in ["Ada", "ada@", "example.com", "secret-key", "tdk_", "user_42"] {
        assert!(!text.contains(secret), "{secret}\n{text}");
    }
}

async fn with_a_port_of_their_own_operators_are_found_nowhere_else(on: Database) {
    let file = "[server]\nbind = \"127.0.0.1:0\"\nadmin_bind = \"127.0.0.1:0\"\n";
    let rig = Rig::start(on, Accounts::Relay, file).await;
    let server = api::listen(rig.app.clone()).await.unwrap();
    let admin = server.admin.unwrap();
    let client = reqwest::Client::new();
    let status = async |address: std::net::SocketAddr, path: &str| {
        let answer = client.get(format!("http://{address}{path}")).bearer_auth(&rig.key).send().await.unwrap();
        answer.status().as_u16()
    };
    for path in ["/metrics", "/sandbox", "/docs", "/v1/accounts", "/v1/switches"] {
        assert_eq!((status(server.address, path).await, status(admin, path).await), (404, 200), "{path}");
    }
    for path in ["/%6detrics", "/%2fmetrics", "/docs/%72easons", "/v1/%61ccounts"] {
        assert_eq!(status(server.address, path).await, 404, "{path}");
    }
    for path in ["/healthz", "/v1/sandbox/messages"] {
        assert_eq!((status(server.address, path).await, status(admin, path).await), (200, 200), "{path}");
    }
    server.stop().await;
    rig.store.close().await;
}
