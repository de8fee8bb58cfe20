//! Stories of API keys: who is let in, what they may do, what they see.

use actix_web::test::TestRequest;

use super::HELLO;
use super::rig::{Accounts, Rig};

#[actix_web::test]
async fn keys_say_why_they_do_not_open() {
    let rig = Rig::start(Accounts::Relay, "").await;
    let unknown = crate::api::auth::new_key("live", [3; 32]);
    let (mistyped, team) = (rig.key.replace("tdk_live_", "tdk_test_"), rig.key("team", &["read"]).await);
    let missing = rig.raw(TestRequest::get().uri("/v1/notifications/x")).await;
    assert!(missing.problem().2.contains("missing"));
    assert_eq!(missing.header("www-authenticate"), Some("Bearer realm=\"Tidings\""));
    for (key, word) in [(&unknown, "unknown"), (&mistyped, "malformed"), (&team, "not available")] {
        let (status, code, detail) = rig.get_as(key, "/v1/notifications/x").await.problem();
        assert_eq!((status, code.as_str()), (401, "unauthorized"));
        assert!(detail.contains(word) && !detail.contains(key.as_str()), "{detail}");
    }
}

#[actix_web::test]
async fn a_scope_that_is_missing_is_named() {
    let rig = Rig::start(Accounts::Relay, "[categories.login-code]\nclass = \"critical\"\n").await;
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

#[actix_web::test]
async fn live_and_test_do_not_see_each_other() {
    let rig = Rig::start(Accounts::Relay, "").await;
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
