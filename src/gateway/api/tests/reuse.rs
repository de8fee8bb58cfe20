//! Stories of keys that are used again, for the same request, for another one, or not at all.

use actix_web::test::TestRequest;
use serde_json::json;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    a_refused_request_is_told_where_it_differs_but_not_what_stands_there,
    a_category_may_say_that_the_first_request_wins,
    a_key_may_be_left_out_where_the_operator_says_so,
);

const FIRST_WINS: &str = "[categories.receipt]\non_key_reuse = \"first_wins\"\n[categories.other]\n";

fn receipt(text: &str) -> String {
    json!({"to": "ada@example.com", "category": "receipt", "email": {"subject": "s", "text": text}}).to_string()
}

async fn a_refused_request_is_told_where_it_differs_but_not_what_stands_there(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[senders.shop]\nemail = \"shop@shop.example.com\"\n").await;
    let first = json!({"to": [{"email": "ada@example.com", "ref": "user_1"}, "bob@example.com"], "email": {"subject": "s", "text": "t",
        "from": "shop", "attachments": [{"filename": "a.txt", "content_type": "text/plain", "content": "aGVsbG8="}]}, "send_in": "10m"});
    assert_eq!(rig.post("k", &first.to_string()).await.status, 202);
    let mut other = first.clone();
    other["email"]["attachments"][0]["content"] = json!("c2VjcmV0");
    other["email"]["from"] = json!("shop@shop.example.com");
    other["to"][0]["ref"] = json!("user_2");
    other["send_in"] = json!("11m");
    let refused = rig.post("k", &other.to_string()).await;
    assert_eq!((refused.status, refused.code().as_str()), (422, "idempotency_key_reused"));
    assert_eq!(refused.json()["differs"], json!(["/email/attachments/0/content", "/email/from", "/send_in", "/to/0/ref"]));
    assert!(!refused.text().contains("c2VjcmV0") && !refused.text().contains("user_2"));
}

async fn a_category_may_say_that_the_first_request_wins(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, FIRST_WINS).await;
    let first = rig.post("k", &receipt("one")).await;
    let again = rig.post("k", &receipt("one")).await;
    assert_eq!((again.header("idempotent-replayed"), again.header("idempotent-mismatch")), (Some("true"), None));
    let other = rig.post("k", &receipt("two")).await;
    assert_eq!((other.status, other.text()), (202, first.text()));
    assert_eq!((other.header("idempotent-replayed"), other.header("idempotent-mismatch")), (Some("true"), Some("true")));
    let elsewhere = rig.post("k", &receipt("two").replace("receipt", "other")).await;
    assert_eq!(elsewhere.code(), "idempotency_key_reused");
}

async fn a_key_may_be_left_out_where_the_operator_says_so(on: Database) {
    let without = |rig: &Rig| {
        let request = TestRequest::post().uri("/v1/notifications").insert_header(("content-type", "application/json"));
        request.insert_header(("authorization", format!("Bearer {}", rig.key))).set_payload(HELLO)
    };
    let strict = Rig::start(on, Accounts::Relay, "").await;
    let refused = strict.raw(without(&strict)).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "idempotency_key_missing"));
    let rig = strict.again(Accounts::Relay, "[limits]\nidempotency_key = \"optional\"\n").await;
    let (one, two) = (rig.raw(without(&rig)).await, rig.raw(without(&rig)).await);
    assert_eq!((one.status, two.status), (202, 202));
    let (one, two) = (one.json(), two.json());
    assert_ne!(one["id"], two["id"]);
    assert_eq!(one["idempotency_key"], one["id"]);
    let by_key = rig.get(&format!("/v1/notifications/by-key?idempotency_key={}", one["id"].as_str().unwrap())).await;
    assert_eq!(by_key.json()["id"], one["id"]);
    // A key that is given is still a key.
    assert_eq!(rig.post("k", HELLO).await.json()["idempotency_key"], "k");
}
