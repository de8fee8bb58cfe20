//! Stories of addresses that are not written to, as callers manage them. That they are not written to is told elsewhere.

use actix_web::http::Method;
use actix_web::test::TestRequest;
use serde_json::{Value, json};

use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};

on_both_databases!(
    addresses_are_added_once_and_a_bad_one_spares_the_others,
    the_list_is_filtered_and_goes_on_by_cursor,
    addresses_are_masked_for_keys_that_may_not_see_people,
    a_removal_says_why_and_takes_one_reason_alone,
    each_call_needs_its_scope,
    live_and_test_have_lists_of_their_own,
    what_cannot_be_suppressed_is_told_at_its_place,
    a_thousand_addresses_fit_into_one_request,
);

const SENDERS: &str = "[senders.shop]\nemail = \"Shop <Shop@example.com>\"\n";

async fn call(rig: &Rig, key: &str, method: Method, path: &str, body: &Value) -> Answer {
    let request = TestRequest::default().method(method).uri(path).insert_header(("authorization", format!("Bearer {key}")));
    rig.raw(request.insert_header(("content-type", "application/json")).set_payload(body.to_string())).await
}

async fn add(rig: &Rig, items: Value) -> Value {
    let answer = call(rig, &rig.key, Method::POST, "/v1/suppressions", &json!({ "items": items })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["results"].clone()
}

async fn addresses(rig: &Rig, query: &str) -> Vec<String> {
    let page = rig.get(&format!("/v1/suppressions{query}")).await.json();
    page["items"].as_array().unwrap().iter().map(|item| item["address"].as_str().unwrap().to_owned()).collect()
}

async fn lookup(rig: &Rig, address: &str) -> Vec<Value> {
    let answer = call(rig, &rig.key, Method::POST, "/v1/suppressions/lookup", &json!({ "address": address })).await;
    answer.json()["items"].as_array().unwrap().clone()
}

async fn addresses_are_added_once_and_a_bad_one_spares_the_others(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SENDERS).await;
    let items = json!([{"address": "Ada@example.com", "note": "asked by phone"}, {"address": "nobody"},
        {"address": "bob@example.com", "reason": "unsubscribe"}, {"address": "ada@EXAMPLE.com"}]);
    let results = add(&rig, items.clone()).await;
    let statuses =
        |results: &Value| results.as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(statuses(&results), [201, 422, 201, 200]);
    assert_eq!((&results[1]["code"], &results[1]["errors"][0]["pointer"]), (&json!("invalid_recipient"), &json!("/items/1/address")));
    assert_eq!(results[0]["id"], results[3]["id"]);
    assert_eq!(statuses(&add(&rig, items).await), [200, 422, 200, 200], "the same again is nothing");
    let mut listed = addresses(&rig, "").await;
    listed.sort();
    assert_eq!(listed, ["Ada@example.com", "bob@example.com"]);
    let ada = &lookup(&rig, "ADA@example.com").await[0];
    assert_eq!(
        (&ada["reason"], &ada["scope"], &ada["note"], &ada["source"]),
        (&json!("manual"), &json!("all"), &json!("asked by phone"), &json!("api"))
    );
    assert_eq!(ada["id"], results[0]["id"]);
}

async fn the_list_is_filtered_and_goes_on_by_cursor(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SENDERS).await;
    let items: Vec<Value> = (0..5).map(|n| json!({"address": format!("a{n}@example.com")})).collect();
    add(&rig, Value::from(items)).await;
    add(&rig, json!([{"address": "c@example.com", "reason": "complaint"}, {"address": "s@example.com", "scope": "sender:shop"}])).await;
    assert_eq!(addresses(&rig, "?reason=complaint").await, ["c@example.com"]);
    assert_eq!(addresses(&rig, "?scope=sender:shop").await, ["s@example.com"]);
    assert_eq!(addresses(&rig, "?since=2100-01-01T00:00:00Z").await, Vec::<String>::new());
    let (mut seen, mut path) = (Vec::new(), "/v1/suppressions?reason=manual&limit=2".to_owned());
    loop {
        let page = rig.get(&path).await.json();
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["address"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/suppressions?reason=manual&limit=2&after={next}");
        let elsewhere = rig.get(&format!("/v1/suppressions?limit=2&after={next}")).await;
        assert_eq!((elsewhere.status, elsewhere.code().as_str()), (400, "bad_cursor"));
    }
    seen.sort();
    assert_eq!(seen, ["a0@example.com", "a1@example.com", "a2@example.com", "a3@example.com", "a4@example.com", "s@example.com"]);
    let shop = &lookup(&rig, "s@example.com").await[0];
    assert_eq!(shop["scope"], "sender:shop", "a sender is shown by the name that it has");
}

async fn addresses_are_masked_for_keys_that_may_not_see_people(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    add(&rig, json!([{"address": "ada@example.com"}])).await;
    let blind = rig.key("live", &["read"]).await;
    assert_eq!(rig.get_as(&blind, "/v1/suppressions").await.json()["items"][0]["address"], "a***@example.com");
    let found = call(&rig, &blind, Method::POST, "/v1/suppressions/lookup", &json!({"address": "ada@example.com"})).await;
    assert_eq!(found.json()["items"][0]["address"], "a***@example.com");
}

async fn a_removal_says_why_and_takes_one_reason_alone(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let results = add(&rig, json!([{"address": "ada@example.com"}, {"address": "ada@example.com", "reason": "complaint"}])).await;
    let path = format!("/v1/suppressions/{}", results[0]["id"].as_str().unwrap());
    let unsaid = call(&rig, &rig.key, Method::DELETE, &path, &json!({})).await;
    assert_eq!((unsaid.status, unsaid.json()["errors"][0]["pointer"].clone()), (422, json!("/reason")));
    assert_eq!(lookup(&rig, "ada@example.com").await.len(), 2);
    let why = json!({"reason": "mistyped"});
    assert_eq!(call(&rig, &rig.key, Method::DELETE, &path, &why).await.json()["removed"], true);
    let left = lookup(&rig, "ada@example.com").await;
    assert_eq!((left.len(), &left[0]["reason"], &left[0]["scope"]), (1, &json!("complaint"), &json!("complaint")));
    assert_eq!(call(&rig, &rig.key, Method::DELETE, &path, &why).await.code(), "not_found");
    for odd in ["sup_1", "nonsense", "sup_00000000000070008000000000000000"] {
        assert_eq!(call(&rig, &rig.key, Method::DELETE, &format!("/v1/suppressions/{odd}"), &why).await.code(), "not_found", "{odd}");
    }
}

async fn each_call_needs_its_scope(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (reads, sends) = (rig.key("live", &["read", "pii"]).await, rig.key("live", &["send"]).await);
    let item = json!({"items": [{"address": "ada@example.com"}]});
    let id = add(&rig, json!([{"address": "ada@example.com"}])).await[0]["id"].as_str().unwrap().to_owned();
    for (answer, scope) in [
        (call(&rig, &reads, Method::POST, "/v1/suppressions", &item).await, "scope send"),
        (rig.get_as(&sends, "/v1/suppressions").await, "scope read"),
        (call(&rig, &sends, Method::POST, "/v1/suppressions/lookup", &json!({"address": "a@example.com"})).await, "scope read"),
        (call(&rig, &sends, Method::DELETE, &format!("/v1/suppressions/{id}"), &json!({"reason": "x"})).await, "scope ops"),
    ] {
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (403, "scope_missing"));
        assert!(detail.ends_with(scope), "{detail}");
    }
}

async fn live_and_test_have_lists_of_their_own(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let test = rig.key("test", &["read", "send", "ops"]).await;
    let id = add(&rig, json!([{"address": "ada@example.com"}])).await[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(rig.get_as(&test, "/v1/suppressions").await.json()["items"], json!([]));
    let hidden = call(&rig, &test, Method::DELETE, &format!("/v1/suppressions/{id}"), &json!({"reason": "x"})).await;
    assert_eq!(hidden.code(), "not_found");
    assert_eq!(lookup(&rig, "ada@example.com").await.len(), 1);
}

async fn what_cannot_be_suppressed_is_told_at_its_place(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, SENDERS).await;
    let results = add(
        &rig,
        json!([{"address": "bounce@sandbox.test"}, {"address": "suppressed@sandbox.test"}, {"address": "a@example.com", "scope": "sender:shpo"},
            {"address": "a@example.com", "channel": "sms"}, {"address": "a@example.com", "expires_in": "1d"}]),
    )
    .await;
    let detail = |index: usize| results[index]["errors"][0]["detail"].as_str().unwrap_or_default().to_owned();
    assert_eq!((results[0]["status"].as_u64(), results[1]["status"].as_u64()), (Some(422), Some(201)));
    assert!(detail(2).contains("did you mean \"sender:shop\""), "{}", detail(2));
    assert!(detail(3).contains("not available") || detail(3).contains("only email"), "{}", detail(3));
    assert_eq!((results[4]["status"].as_u64(), results[4]["code"].as_str()), (Some(400), Some("unknown_field")));
    let whole = call(&rig, &rig.key, Method::POST, "/v1/suppressions", &json!({"items": []})).await;
    assert_eq!((whole.status, whole.code().as_str()), (422, "invalid_field"));
    let many: Vec<Value> = (0..1_001).map(|n| json!({"address": format!("a{n}@example.com")})).collect();
    let many = call(&rig, &rig.key, Method::POST, "/v1/suppressions", &json!({ "items": many })).await;
    assert_eq!((many.status, many.code().as_str()), (413, "payload_too_large"));
}

async fn a_thousand_addresses_fit_into_one_request(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let items: Vec<Value> = (0..1_000).map(|n| json!({"address": format!("a{n}@example.com")})).collect();
    let results = add(&rig, Value::from(items)).await;
    assert!(results.as_array().unwrap().iter().all(|result| result["status"] == 201) && results.as_array().unwrap().len() == 1_000);
    assert_eq!(lookup(&rig, "a999@example.com").await.len(), 1);
}
