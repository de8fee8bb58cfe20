//! Processes that do a part of the work: what they answer, and what they leave to others.

use actix_web::test::TestRequest;
use serde_json::json;
use tidings_core::store::Reading as _;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    a_process_without_intake_says_so_and_does_nothing,
    what_a_process_has_for_itself_is_there_whatever_its_roles,
    a_test_of_an_account_is_made_where_providers_are_called,
);

async fn a_process_without_intake_says_so_and_does_nothing(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[server]\nroles = [\"workers\", \"sweeps\"]\n").await;
    let refused = rig.post("k", HELLO).await;
    let (status, code, detail) = refused.problem();
    assert_eq!((status, code.as_str(), refused.header("retry-after")), (503, "role_missing", Some("1")));
    assert!(detail.contains("\"intake\""), "{detail}");
    assert_eq!(rig.store.open_count().await.unwrap(), 0);
    for path in ["/v1/notifications", "/v1/events", "/v1/switches", "/v1/keys", "/v1/limits", "/v1/nothing", "/sandbox", "/%761/events"] {
        assert_eq!(rig.get(path).await.code(), "role_missing", "{path}");
    }
    let again = rig.again(Accounts::Relay, "[server]\nroles = [\"intake\"]\n").await;
    assert_eq!(again.post("k", HELLO).await.status, 202);
}

async fn what_a_process_has_for_itself_is_there_whatever_its_roles(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[server]\nroles = [\"sweeps\", \"workers\"]\n").await;
    for path in ["/healthz", "/readyz", "/version", "/metrics", "/docs", "/docs/errors/role_missing", "/openapi.json", "/v1/accounts"] {
        assert_eq!(rig.get(path).await.status, 200, "{path}");
    }
    assert_eq!(rig.get("/version").await.json()["roles"], json!(["workers", "sweeps"]));
}

async fn a_test_of_an_account_is_made_where_providers_are_called(on: Database) {
    let test = async |rig: &Rig| {
        let request = TestRequest::post().uri("/v1/accounts/relay/test").insert_header(("content-type", "application/json"));
        rig.raw(request.insert_header(("authorization", format!("Bearer {}", rig.key))).set_payload(r#"{"to": "ada@example.com"}"#)).await
    };
    let rig = Rig::start(on, Accounts::Relay, "[server]\nroles = [\"intake\", \"sweeps\"]\n").await;
    let (status, code, detail) = test(&rig).await.problem();
    assert!(status == 503 && code == "role_missing" && detail.contains("\"workers\""), "{detail}");
    let again = rig.again(Accounts::Relay, "[server]\nroles = [\"workers\"]\n").await;
    assert_eq!(test(&again).await.json()["outcome"], "not_started");
}
