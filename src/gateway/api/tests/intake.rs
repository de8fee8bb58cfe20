//! Stories of what an installation takes, and where it goes.

use std::time::Duration;

use futures_util::FutureExt as _;
use tidings_core::request::{RequestLimits, parse};
use tidings_core::words::Mode;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};
use crate::api::auth::Caller;
use crate::intake::{Call, prepare};

on_both_databases!(
    what_was_accepted_keeps_its_answer_when_the_configuration_no_longer_allows_it,
    a_commit_and_its_wake_up_go_on_when_the_caller_goes_away,
    every_delivery_of_a_list_is_named_in_order,
    a_live_key_acts_in_test_while_the_sandbox_stands_in_for_all,
    what_cannot_leave_is_refused_and_the_setting_named,
    an_undeclared_category_is_refused_once_there_are_declared_ones,
    the_author_comes_from_the_request_the_category_or_the_account,
);

async fn what_was_accepted_keeps_its_answer_when_the_configuration_no_longer_allows_it(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let first = rig.post("k", HELLO).await;
    let later = rig.again(Accounts::Nothing, "").await;
    assert_eq!(later.post("k", HELLO).await.text(), first.text());
    assert_eq!(later.post("other", HELLO).await.code(), "no_route");
}

async fn a_commit_and_its_wake_up_go_on_when_the_caller_goes_away(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let now = rig.app.now();
    let mut caller = Caller::for_tests(Mode::Live, &["send"]);
    caller.setup = rig.app.setup();
    let request = parse(HELLO.as_bytes(), &RequestLimits::default(), now).unwrap();
    let call = Call { caller: &caller, idempotency_key: Some("k"), fingerprint: [0; 32], trace_context: None, now };
    let intake = prepare(&rig.app, &call, request).unwrap();
    let lane = intake.notification.deliveries[0].lane;

    let waiting = rig.app.writer.accept(intake.notification.clone(), None).now_or_never();
    assert!(waiting.is_none(), "it was given to the writer, and nobody waits for it any more");

    tokio::time::timeout(Duration::from_secs(30), rig.app.wake.hinted()).await.unwrap();
    assert_eq!(rig.app.wake.take_due(rig.app.now()).0, [lane]);
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.status, 200);
}

async fn every_delivery_of_a_list_is_named_in_order(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let body = r#"{"to": ["a@example.com", "B <b@sandbox.test>"], "email": {"subject": "s", "text": "t"}}"#;
    let answer = rig.post("k", body).await.json();
    assert_eq!(answer["version"], 2);
    let to: Vec<_> = answer["deliveries"].as_array().unwrap().iter().map(|delivery| delivery["to"].as_str().unwrap()).collect();
    assert_eq!(to, ["a@example.com", "B <b@sandbox.test>"]);
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.json()["version"], 2);
}

async fn a_live_key_acts_in_test_while_the_sandbox_stands_in_for_all(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "").await;
    let answer = rig.post("hello-1", r#"{"to": "ada@example.com", "email": {"subject": "Hello", "text": "It works."}}"#).await;
    assert_eq!((answer.status, answer.json()["mode"].as_str()), (202, Some("test")));
}

async fn what_cannot_leave_is_refused_and_the_setting_named(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let from = |from: &str| format!(r#"{{"to": "a@example.com", "email": {{"from": "{from}", "subject": "s", "text": "t"}}}}"#);
    for (body, pointer, code, words) in [
        (from("x@other.example"), "/email/from", "no_route", "sends_as of relay"),
        (from("shop"), "/email/from", "invalid_content", "senders.NAME"),
        (from("x@shop.example.com").replace("\"t\"", &format!("\"{}\"", "t".repeat(1_001))), "/email/text", "invalid_content", "relay"),
    ] {
        let answer = rig.post("k", &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (422, code), "{}", answer.text());
        let fault = &answer.json()["errors"][0];
        assert_eq!(fault["pointer"], pointer);
        assert!(fault["detail"].as_str().unwrap().contains(words) && !answer.text().contains("other.example"), "{fault}");
    }
    let nothing = rig.again(Accounts::Nothing, "").await.post("k", HELLO).await;
    assert_eq!(nothing.json()["errors"][0]["pointer"], "/email");
    assert!(nothing.problem().2.contains("accounts.NAME"));
    // No refusal occupies the key.
    assert_eq!(rig.post("k", HELLO).await.status, 202);
}

async fn an_undeclared_category_is_refused_once_there_are_declared_ones(on: Database) {
    let body = r#"{"to": "a@example.com", "category": "login-cod", "email": {"subject": "s", "text": "t"}}"#;
    let declared = "[categories.login-code]\nclass = \"critical\"\nexpires_in = \"10m\"\n";
    let rig = Rig::start(on, Accounts::Relay, declared).await;
    let (status, code, detail) = rig.post("k", body).await.problem();
    assert_eq!((status, code.as_str()), (422, "unknown_category"));
    assert!(detail.contains("did you mean \"login-code\"?"), "{detail}");
    assert_eq!(rig.post("k", HELLO).await.json()["category"], "default");
    let allowed = rig.again(Accounts::Relay, &format!("{declared}[limits]\nundeclared_categories = \"allow\"\n")).await;
    assert_eq!(allowed.post("k2", body).await.json()["class"], "transactional");
    assert_eq!(rig.again(Accounts::Relay, "").await.post("k3", body).await.status, 202);
}

async fn the_author_comes_from_the_request_the_category_or_the_account(on: Database) {
    let file = "[senders.shop]\nemail = \"Shop <hello@shop.example.com>\"\n[categories.receipt]\nfrom = \"shop\"\n";
    let rig = Rig::start(on, Accounts::Relay, file).await;
    let domain_of = async |key: &str, body: &str| {
        let answer = rig.post(key, body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        let read = rig.get(answer.json()["status_url"].as_str().unwrap()).await.json();
        read["deliveries"][0]["message_id"].as_str().unwrap().split_once('@').unwrap().1.to_owned()
    };
    let own = r#"{"to": "a@example.com", "email": {"from": "shop", "subject": "s", "text": "t"}}"#;
    assert_eq!(domain_of("k1", own).await, "shop.example.com");
    let of_category = r#"{"to": "a@example.com", "category": "receipt", "email": {"subject": "s", "text": "t"}}"#;
    assert_eq!(domain_of("k2", of_category).await, "shop.example.com");
    let of_sandbox = r#"{"to": "a@sandbox.test", "email": {"subject": "s", "text": "t"}}"#;
    assert_eq!(domain_of("k3", of_sandbox).await, "sandbox.test");
}
