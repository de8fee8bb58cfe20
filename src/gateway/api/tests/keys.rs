//! Stories of API keys: who is let in, what they may do, what they see.

use actix_web::http::Method;
use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::store::{Deed, Store as _};

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};

on_both_databases!(
    keys_say_why_they_do_not_open,
    a_scope_that_is_missing_is_named,
    live_and_test_do_not_see_each_other,
    a_key_is_told_once_and_listed_without_itself,
    a_rotated_key_stays_for_its_overlap_and_a_revoked_one_opens_nothing,
    a_key_makes_and_manages_none_that_may_do_more_than_itself,
    a_disabled_tenant_is_refused_at_the_door,
    a_team_key_writes_to_the_guest_list_alone_copies_included,
    a_tenant_has_an_author_of_its_own_where_nobody_else_has,
);

async fn call(rig: &Rig, key: &str, method: Method, path: &str, body: &Value) -> Answer {
    let request = TestRequest::default().method(method).uri(path).insert_header(("authorization", format!("Bearer {key}")));
    rig.raw(request.insert_header(("content-type", "application/json")).set_payload(body.to_string())).await
}

async fn post(rig: &Rig, path: &str, body: Value) -> Answer {
    call(rig, &rig.key, Method::POST, path, &body).await
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn keys_say_why_they_do_not_open(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let unknown = crate::api::auth::new_key("live", [3; 32]);
    let mistyped = rig.key.replace("tdk_live_", "tdk_test_");
    let missing = rig.raw(TestRequest::get().uri("/v1/notifications/x")).await;
    assert!(missing.problem().2.contains("missing"));
    assert_eq!(missing.header("www-authenticate"), Some("Bearer realm=\"Tidings\""));
    for (key, word) in [(&unknown, "unknown"), (&mistyped, "malformed")] {
        let (status, code, detail) = rig.get_as(key, "/v1/notifications/x").await.problem();
        assert_eq!((status, code.as_str()), (401, "unauthorized"));
        assert!(detail.contains(word) && !detail.contains(key.as_str()), "{detail}");
    }
}

async fn a_scope_that_is_missing_is_named(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[categories.login-code]\nclass = \"critical\"\n").await;
    let (reads, sends) = (rig.key("live", &["read"]).await, rig.key("live", &["send"]).await);
    let code = r#"{"to": "a@example.com", "category": "login-code", "email": {"subject": "s", "text": "t"}}"#;
    for (answer, scope) in [
        (rig.post_as(&reads, "k", HELLO).await, "scope send"),
        (rig.post_as(&sends, "k", code).await, "scope send:critical"),
        (rig.get_as(&sends, "/v1/notifications/by-key?idempotency_key=k").await, "scope read"),
        (rig.get_as(&reads, "/v1/sandbox/messages").await, "scope pii"),
    ] {
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (403, "scope_missing"));
        assert!(detail.ends_with(scope), "{detail}");
    }
    assert_eq!(rig.post("k", code).await.json()["class"], "critical");
}

async fn live_and_test_do_not_see_each_other(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let test = rig.key("test", &["send", "read"]).await;
    let live = rig.post("k", HELLO).await.json();
    let rehearsed = rig.post_as(&test, "k", HELLO).await.json();
    assert_eq!((live["mode"].as_str(), rehearsed["mode"].as_str()), (Some("live"), Some("test")));
    let hidden = rig.get_as(&test, live["status_url"].as_str().unwrap()).await;
    let nothing = rig.get("/v1/notifications/ntf_00000000000070008000000000000000").await;
    let nonsense = rig.get("/v1/notifications/order-10432").await;
    for answer in [&hidden, &nothing, &nonsense] {
        assert_eq!(answer.problem(), (404, "not_found".to_owned(), "there is nothing here for this API key".to_owned()));
    }
    assert_eq!(rig.get_as(&test, "/v1/notifications/by-key?idempotency_key=k").await.json()["id"], rehearsed["id"]);
}

async fn a_key_is_told_once_and_listed_without_itself(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let made = post(&rig, "/v1/keys", json!({"name": "shop", "scopes": ["send"], "expires_in": "90d"})).await;
    assert_eq!((made.status, made.header("cache-control")), (201, Some("no-store")));
    let (id, key) = (text(&made.json()["id"]), text(&made.json()["key"]));
    assert_eq!(rig.post_as(&key, "k", HELLO).await.status, 202);
    let listed = rig.get("/v1/keys").await;
    let item = listed.json()["items"].as_array().unwrap().iter().find(|item| item["id"] == json!(id)).unwrap().clone();
    assert_eq!(
        (&item["id"], &item["name"], &item["scopes"], &item["kind"]),
        (&json!(id), &json!("shop"), &json!(["send"]), &json!("live"))
    );
    assert!(item["expires_at"].is_string() && item["created_at"].is_string() && item["revoked_at"].is_null());
    assert!(!listed.text().contains(&key) && !listed.text().contains("tdk_"), "the list tells keys");
    let (status, code, detail) = rig.get_as(&key, "/v1/keys").await.problem();
    assert_eq!((status, code.as_str()), (403, "scope_missing"));
    assert!(detail.ends_with("scope admin"), "{detail}");
    let wrong = post(&rig, "/v1/keys", json!({"scopes": ["root"], "kind": "x"})).await.json();
    let pointers: Vec<String> = wrong["errors"].as_array().unwrap().iter().map(|fault| text(&fault["pointer"])).collect();
    assert_eq!(pointers, ["/name", "/kind", "/scopes/0"]);
}

async fn a_rotated_key_stays_for_its_overlap_and_a_revoked_one_opens_nothing(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let made = post(&rig, "/v1/keys", json!({"name": "shop", "scopes": ["send", "pii"]})).await.json();
    let rotated = post(&rig, &format!("/v1/keys/{}/rotate", text(&made["id"])), json!({"overlap": "1h"})).await;
    assert_eq!(rotated.status, 201);
    let rotated = rotated.json();
    assert_eq!((&rotated["scopes"], &rotated["name"], &rotated["replaces"]["id"]), (&made["scopes"], &made["name"], &made["id"]));
    assert!(rotated["replaces"]["expires_at"].is_string());
    let (old, new) = (text(&made["key"]), text(&rotated["key"]));
    assert_eq!((rig.post_as(&old, "a", HELLO).await.status, rig.post_as(&new, "b", HELLO).await.status), (202, 202));

    let at_once = post(&rig, &format!("/v1/keys/{}/rotate", text(&rotated["id"])), json!({"overlap": "0s"})).await.json();
    let gone = rig.post_as(&new, "c", HELLO).await;
    assert!(gone.status == 401 && gone.problem().2.contains("expired"), "{}", gone.text());
    let again = post(&rig, &format!("/v1/keys/{}/rotate", text(&rotated["id"])), json!({})).await;
    assert_eq!((again.status, again.code().as_str()), (422, "invalid_field"));

    let path = format!("/v1/keys/{}/revoke", text(&at_once["id"]));
    let revoked = post(&rig, &path, json!({})).await.json();
    assert!(revoked["revoked_at"].is_string() && revoked.get("key").is_none());
    assert_eq!(post(&rig, &path, json!({})).await.json()["revoked_at"], revoked["revoked_at"], "once is enough");
    let refused = rig.post_as(&text(&at_once["key"]), "d", HELLO).await;
    assert!(refused.status == 401 && refused.problem().2.contains("revoked"), "{}", refused.text());
}

async fn a_key_makes_and_manages_none_that_may_do_more_than_itself(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (test, team) = (rig.key("test", &["admin"]).await, rig.key("team", &["admin"]).await);
    let live = text(&post(&rig, "/v1/keys", json!({"name": "live"})).await.json()["id"]);
    for (key, kind, status) in
        [(&test, "live", 403), (&test, "team", 403), (&test, "test", 201), (&team, "live", 403), (&team, "team", 201)]
    {
        let answer = call(&rig, key, Method::POST, "/v1/keys", &json!({"name": "x", "kind": kind})).await;
        assert_eq!(answer.status, status, "{kind}");
    }
    for key in [&test, &team] {
        for act in ["rotate", "revoke"] {
            let answer = call(&rig, key, Method::POST, &format!("/v1/keys/{live}/{act}"), &json!({})).await;
            assert_eq!(answer.code(), "not_found", "{act}");
        }
        assert!(!rig.get_as(key, "/v1/keys").await.text().contains(&live));
    }
}

async fn a_disabled_tenant_is_refused_at_the_door(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let key = rig.key_of("acme", "live", &["send", "read"]).await;
    let entry = Deed {
        at: rig.app.now(),
        tenant: None,
        actor: "cli".to_owned(),
        action: "tenant.disabled",
        subject: "acme".to_owned(),
        reason: None,
    };
    assert!(rig.store.access().set_active("acme", false, &entry).await.unwrap());
    let (status, code, detail) = rig.post_as(&key, "k", HELLO).await.problem();
    assert_eq!((status, code.as_str()), (401, "unauthorized"));
    assert!(detail.contains("disabled"), "{detail}");
    assert_eq!(rig.post("k", HELLO).await.status, 202, "others go on");
}

async fn a_team_key_writes_to_the_guest_list_alone_copies_included(on: Database) {
    let file = "[tenants.default]\nguest_list = [\"Ada@example.com\", \"grace@example.com\"]\n";
    let rig = Rig::start(on, Accounts::Relay, file).await;
    let team = rig.key("team", &["send", "read"]).await;
    let taken = rig.post_as(&team, "k", HELLO).await;
    assert_eq!((taken.status, taken.json()["mode"].as_str()), (202, Some("live")));
    let body = r#"{"to": ["ada@example.com", "eve@example.com"], "email": {"subject": "s", "text": "t"}}"#;
    let refused = rig.post_as(&team, "l", body).await;
    assert_eq!((refused.status, refused.code().as_str()), (422, "recipient_not_allowed"));
    let copies = r#"{"to": "ADA@example.com", "email": {"subject": "s", "text": "t", "cc": ["grace@example.com", "eve@example.com"], "bcc": "mallory@example.com"}}"#;
    let faults = rig.post_as(&team, "m", copies).await.json();
    let pointers: Vec<String> = faults["errors"].as_array().unwrap().iter().map(|fault| text(&fault["pointer"])).collect();
    assert_eq!(pointers, ["/email/cc/1", "/email/bcc"]);
    assert_eq!(rig.post("l", body).await.status, 202, "a live key writes to everybody");
    let elsewhere = rig.key_of("acme", "team", &["send"]).await;
    assert_eq!(rig.post_as(&elsewhere, "k", HELLO).await.code(), "recipient_not_allowed", "without a list there are no guests");
}

async fn a_tenant_has_an_author_of_its_own_where_nobody_else_has(on: Database) {
    let file = "[tenants.acme]\nfrom = \"Acme <hello@acme.example>\"\n";
    let rig = Rig::start(on, Accounts::SandboxOnly, file).await;
    let acme = rig.key_of("acme", "live", &["send", "read", "pii"]).await;
    let taken = rig.post_as(&acme, "k", HELLO).await.json();
    let read = rig.get_as(&acme, taken["status_url"].as_str().unwrap()).await.json();
    assert!(text(&read["deliveries"][0]["message_id"]).ends_with("@acme.example"), "{read}");
}
