//! Stories of what is not served, of a store that fails, and of what the process says about itself.

use actix_web::test::TestRequest;
use serde_json::json;

use super::HELLO;
use super::broken::Failure;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig, post};

on_both_databases!(
    what_is_not_served_says_so_in_a_problem_document,
    a_commit_whose_answer_was_lost_is_found_by_its_key,
    a_store_that_fails_takes_nothing_and_says_when_to_come_back,
    readiness_names_what_is_not_well,
    the_type_of_every_problem_opens_here,
    a_frozen_store_takes_nothing_and_is_still_read,
);

async fn what_is_not_served_says_so_in_a_problem_document(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[limits]\nbody = \"2KiB\"\n").await;
    let bearer = ("authorization", format!("Bearer {}", rig.key));
    let with = |request: TestRequest| request.insert_header(bearer.clone());
    for (request, status, code) in [
        (TestRequest::get().uri("/v2"), 404, "not_found"),
        (with(TestRequest::post().uri("/v1/notifications/later")), 405, "method_not_allowed"),
        (with(TestRequest::delete().uri("/v1/notifications")), 405, "method_not_allowed"),
        (with(TestRequest::get().uri("/v1/endpoints")), 404, "not_found"),
        (with(TestRequest::get().uri("/v1/notifications/by-key")), 422, "invalid_field"),
        (with(TestRequest::get().uri("/v1/notifications/by-key?idempotency_kye=x")), 400, "unknown_field"),
        (with(TestRequest::get().uri("/v1/notifications/x?wait=1")), 400, "unknown_field"),
        (with(TestRequest::get().uri("/v1/sandbox/messages?wiat=10s")), 400, "unknown_field"),
        (with(TestRequest::get().uri("/v1/sandbox/messages?limit=0")), 422, "invalid_field"),
        (with(TestRequest::get().uri("/v1/sandbox/messages?after=x")), 400, "bad_cursor"),
        (post(&rig.key, "k").set_payload("{"), 400, "invalid_json"),
        (post(&rig.key, "k").set_payload(HELLO.replace("\"tags\"", "\"tagz\"")), 400, "unknown_field"),
        (post(&rig.key, "k").set_payload(vec![b' '; 2_049]), 413, "payload_too_large"),
        (post(&rig.key, "k").insert_header(("content-type", "text/plain")).set_payload(HELLO), 415, "unsupported_media_type"),
        (post(&rig.key, "k").insert_header(("content-type", "application/json; charset=latin1")), 415, "unsupported_media_type"),
        (post(&rig.key, "k").insert_header(("content-encoding", "gzip")), 415, "unsupported_media_type"),
        (post(&rig.key, ""), 400, "idempotency_key_invalid"),
        (post(&rig.key, "a b"), 400, "idempotency_key_invalid"),
        (post(&rig.key, &"k".repeat(256)), 400, "idempotency_key_invalid"),
        (post(&rig.key, "k").append_header(("idempotency-key", "l")), 400, "idempotency_key_invalid"),
    ] {
        let answer = rig.raw(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
        assert_eq!(answer.header("allow").is_some(), status == 405, "{code}");
    }
    let keyless = TestRequest::post().uri("/v1/notifications").insert_header(bearer).insert_header(("content-type", "application/json"));
    assert_eq!(rig.raw(keyless).await.code(), "idempotency_key_missing");
}

async fn a_commit_whose_answer_was_lost_is_found_by_its_key(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.store.fails(Failure::AnswerLost);
    let first = rig.post("k", HELLO).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (202, None));
    rig.store.fails(Failure::Nothing);
    assert_eq!(rig.post("k", HELLO).await.text(), first.text());
}

async fn a_store_that_fails_takes_nothing_and_says_when_to_come_back(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    for (failure, status, code) in [
        (Failure::Full, 503, "overloaded"),
        (Failure::Away, 503, "overloaded"),
        (Failure::CommitLost, 503, "outcome_unknown"),
        (Failure::InProgress, 409, "idempotency_in_progress"),
    ] {
        rig.store.fails(failure);
        let answer = rig.post("k", HELLO).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{failure:?}");
        assert!(answer.header("retry-after").is_some() && answer.json()["retryable"] == json!(true), "{failure:?}");
        assert!(!answer.text().contains("disk") && !answer.text().contains("nobody"), "{}", answer.text());
    }
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.status, 404);
    rig.store.fails(Failure::Away);
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.code(), "overloaded");
    rig.store.fails(Failure::Nothing);
    assert_eq!(rig.post("k", HELLO).await.status, 202);
}

async fn readiness_names_what_is_not_well(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    assert_eq!(rig.raw(TestRequest::get().uri("/healthz")).await.json(), json!({"status": "ok"}));
    assert_eq!(rig.raw(TestRequest::get().uri("/readyz")).await.json(), json!({"status": "ready", "faults": []}));
    rig.app.readiness.store_down.store(true, std::sync::atomic::Ordering::Relaxed);
    let answer = rig.raw(TestRequest::get().uri("/readyz")).await;
    assert_eq!((answer.status, answer.json()), (503, json!({"status": "not_ready", "faults": ["store"]})));
    let version = rig.raw(TestRequest::get().uri("/version")).await.json();
    assert_eq!((version["version"].as_str(), version["store"].as_str()), (Some(env!("CARGO_PKG_VERSION")), Some(on.name())));
}

async fn the_type_of_every_problem_opens_here(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let index = rig.raw(TestRequest::get().uri("/docs")).await;
    for code in crate::api::problem::Code::ALL {
        let path = format!("/docs/errors/{}", code.as_str());
        assert!(index.text().contains(&path));
        let page = rig.raw(TestRequest::get().uri(&path)).await;
        assert_eq!(page.status, 200);
        assert!(page.text().contains(code.advice()) && page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    }
    assert!(rig.raw(TestRequest::get().uri("/docs/reasons")).await.text().contains("attempts_exhausted"));
    assert_eq!(rig.raw(TestRequest::get().uri("/docs/style.css")).await.header("content-type"), Some("text/css; charset=utf-8"));
    assert_eq!(rig.raw(TestRequest::get().uri("/docs/errors/nonsense")).await.status, 404);
}

async fn a_frozen_store_takes_nothing_and_is_still_read(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let id = rig.post("k", HELLO).await.json()["id"].as_str().unwrap().to_owned();
    crate::freeze::freeze(rig.store.as_ref(), rig.app.now()).await.unwrap();
    rig.app.pauses.refresh(rig.store.as_ref()).await.unwrap();
    let refused = rig.post("other", HELLO).await;
    assert_eq!((refused.status, refused.code().as_str(), refused.header("retry-after")), (503, "overloaded", Some("30")));
    assert_eq!(rig.get(&format!("/v1/notifications/{id}")).await.json()["deliveries"][0]["wait_reason"], "paused");
    let cancel = TestRequest::post().uri(&format!("/v1/notifications/{id}/cancel"));
    assert_eq!(rig.raw(cancel.insert_header(("authorization", format!("Bearer {}", rig.key)))).await.status, 503);

    assert!(rig.app.store.moving().unfreeze().await.unwrap());
    rig.app.pauses.refresh(rig.store.as_ref()).await.unwrap();
    assert_eq!(rig.post("other", HELLO).await.status, 202);
}
