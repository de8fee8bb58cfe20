//! An account that belongs to a tenant: whose messages are taken for it, and what others hear.

use serde_json::json;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    where_every_account_belongs_to_another_tenant_nothing_is_taken,
    what_waits_for_an_account_that_became_another_tenants_says_so,
);

async fn where_every_account_belongs_to_another_tenant_nothing_is_taken(on: Database) {
    let rig = Rig::start(on, Accounts::Owned, "").await;
    let (status, code, detail) = rig.post("k", HELLO).await.problem();
    assert_eq!((status, code.as_str()), (422, "no_route"));
    assert!(detail.contains("belongs to another tenant") && !detail.contains("relay") && !detail.contains("acme"), "{detail}");
    let with_author = HELLO.replace("\"subject\"", "\"from\": \"shop@shop.example.com\", \"subject\"");
    assert_eq!(rig.post("k", &with_author).await.code(), "no_route");

    let acme = rig.key_of("acme", "live", &["send", "read"]).await;
    assert_eq!(rig.post_as(&acme, "k", HELLO).await.status, 202);
    let read = rig.get_as(&acme, "/v1/notifications/by-key?idempotency_key=k").await.json();
    assert_eq!(read["deliveries"][0]["wait_reason"], json!(null));
    let listed = rig.get("/v1/accounts").await.json();
    assert_eq!((&listed["items"][0]["tenant"], &listed["items"][1]["tenant"]), (&json!("acme"), &json!(null)));
}

async fn what_waits_for_an_account_that_became_another_tenants_says_so(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    assert_eq!(rig.post("k", HELLO).await.status, 202);
    let waits_for = async |rig: &Rig| {
        let read = rig.get("/v1/notifications/by-key?idempotency_key=k").await.json();
        read["deliveries"][0]["wait_reason"].clone()
    };
    assert_eq!(waits_for(&rig).await, json!(null));
    assert_eq!(waits_for(&rig.again(Accounts::Owned, "").await).await, "no_account");
}
