//! Stories of the HTTP side as a caller sees it.

use serde_json::Value;

use database::{Database, on_both_databases};
use rig::{Accounts, Answer, Rig};

mod acts;
mod batch;
mod broken;
mod contract;
mod database;
mod events;
mod failures;
mod intake;
mod keeping;
mod keys;
mod limits;
mod listing;
mod matrix;
mod operating;
mod operational;
mod owned;
mod reload;
mod resends;
mod reuse;
mod rig;
mod roles;
mod sandbox;
mod server;
mod special;
mod suppressions;

on_both_databases!(
    a_notification_is_accepted_and_can_be_read_by_id_and_by_key,
    metadata_keeps_the_callers_order,
    the_same_request_gets_the_first_answer_byte_for_byte_whatever_its_spelling,
    a_scheduled_notification_is_replayed_as_it_was,
    another_request_under_the_key_is_refused_and_named_its_holder,
);

const HELLO: &str = r#"{"to": {"email": "Ada@Example.com", "name": "Ada", "ref": "user_42"},
    "email": {"subject": "Hello", "text": "It works."}, "tags": ["a", "b"], "metadata": {"z": "1", "order": "10432"}}"#;

/// The same answer with what differs from run to run made equal.
fn steady(answer: &Answer) -> String {
    let mut body = answer.json();
    steady_value(&mut body);
    let mut text = format!("{}\n{body:#}", answer.status);
    while let Some(at) = find_hex(&text) {
        text.replace_range(at..at + 32, "<id>");
    }
    text
}

fn steady_value(value: &mut Value) {
    match value {
        Value::String(text) if text.len() == 24 && text.as_bytes()[10] == b'T' && text.ends_with('Z') => *text = "<time>".to_owned(),
        Value::Object(members) => members.values_mut().for_each(steady_value),
        Value::Array(items) => items.iter_mut().for_each(steady_value),
        _ => {}
    }
}

fn find_hex(text: &str) -> Option<usize> {
    let is_hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.as_bytes().windows(32).position(is_hex)
}

async fn a_notification_is_accepted_and_can_be_read_by_id_and_by_key(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("order-10432", HELLO).await;
    insta::assert_snapshot!("accepted", steady(&accepted));
    assert_eq!(accepted.header("content-type"), Some("application/json"));
    assert_eq!(accepted.header("request-id").map(str::len), Some(32));

    let by_id = rig.get(accepted.json()["status_url"].as_str().unwrap()).await;
    let by_key = rig.get("/v1/notifications/by-key?idempotency_key=order-10432").await;
    assert_eq!(by_id.text(), by_key.text());
    insta::assert_snapshot!("read", steady(&by_id));

    let blind = rig.key("live", &["read"]).await;
    let masked = rig.get_as(&blind, accepted.json()["status_url"].as_str().unwrap()).await;
    assert_eq!(masked.json()["deliveries"][0]["to"], "A***@example.com");
}

async fn metadata_keeps_the_callers_order(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    for answer in [rig.post("k", HELLO).await, rig.get("/v1/notifications/by-key?idempotency_key=k").await] {
        assert!(answer.text().contains(r#""metadata":{"z":"1","order":"10432"}"#), "{}", answer.text());
    }
}

async fn the_same_request_gets_the_first_answer_byte_for_byte_whatever_its_spelling(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let first = rig.post("k", HELLO).await;
    let other_spelling = HELLO.replace("\"Ada@Example.com\"", "\"Ada@EXAMPLE.com\"").replace("\n    ", "");
    for body in [HELLO, other_spelling.as_str()] {
        let again = rig.post("k", body).await;
        assert_eq!((again.status, again.text()), (202, first.text()));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(first.header("idempotent-replayed"), None);
}

async fn a_scheduled_notification_is_replayed_as_it_was(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let body = r#"{"to": "ada@example.com", "email": {"subject": "s", "text": "t"}, "send_in": "90s", "expires_in": "10m"}"#;
    let first = rig.post("k", body).await;
    assert_eq!((first.json()["status"].as_str(), first.json()["deliveries"][0]["state"].as_str()), (Some("scheduled"), Some("scheduled")));
    assert_eq!(rig.post("k", body).await.text(), first.text());
    let read = rig.get("/v1/notifications/by-key?idempotency_key=k").await.json();
    assert_eq!((read["status"].as_str(), read["deliveries"][0]["wait_reason"].as_str()), (Some("scheduled"), Some("scheduled")));
}

async fn another_request_under_the_key_is_refused_and_named_its_holder(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let first = rig.post("k", HELLO).await;
    let refused = rig.post("k", &HELLO.replace("It works", "It does not work")).await;
    insta::assert_snapshot!("key_reused", steady(&refused));
    assert_eq!(refused.json()["existing"]["id"], first.json()["id"]);
    assert_eq!(refused.json()["differs"], serde_json::json!(["/email/text"]));
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.json()["version"], 1);
}
