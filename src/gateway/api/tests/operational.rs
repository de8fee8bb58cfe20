//! Stories of events that are of no delivery, as the feed tells them: who is told what of suppressions, switches and accounts.

use std::time::{Duration, Instant};

use actix_web::http::Method;
use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::ids::{AccountId, InstanceId};
use tidings_core::outcome::{Outcome, Refusal};
use tidings_core::store::Store as _;
use tidings_core::words::Reason;
use tokio_util::sync::CancellationToken;

use super::broken::Failure;
use super::contract::check;
use super::database::{Database, on_both_databases};
use super::events::{RECEIPT, accepted, end_all, page};
use super::rig::{Accounts, Answer, Rig};
use crate::slots::news;

on_both_databases!(
    suppressions_are_told_when_they_come_and_go,
    an_import_tells_each_entry_once,
    a_hard_bounce_tells_its_suppression_without_the_address,
    switches_are_told_to_operators_alone,
    a_place_goes_from_fewer_events_to_more_and_never_back,
    a_place_before_purged_events_of_the_installation_is_told,
    an_account_that_is_parked_and_recovers_is_told_once_each,
    news_of_an_account_waits_for_a_store_that_is_away,
    a_held_call_hears_of_a_switch,
);

async fn call(rig: &Rig, method: Method, path: &str, body: Value) -> Answer {
    let request = TestRequest::default().method(method).uri(path).insert_header(("authorization", format!("Bearer {}", rig.key)));
    rig.raw(request.insert_header(("content-type", "application/json")).set_payload(body.to_string())).await
}

async fn add(rig: &Rig, items: Value) -> Value {
    let answer = call(rig, Method::POST, "/v1/suppressions", json!({ "items": items })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["results"].clone()
}

async fn switch(rig: &Rig, scope: &str, body: Value) {
    let answer = call(rig, Method::PUT, &format!("/v1/switches/{scope}"), body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Reads on until there are `count`: the feed stays behind every transaction that runs on a server of PostgreSQL, those of
/// other tests too.
async fn told(rig: &Rig, key: &str, query: &str, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut path = format!("/v1/events?limit=200{query}");
    let mut items = Vec::new();
    loop {
        let answer = rig.get_as(key, &path).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        check(&answer, "get", "/v1/events");
        let page = answer.json();
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        if items.len() >= count {
            assert_eq!(items.len(), count, "{items:?}");
            return items;
        }
        assert!(Instant::now() < deadline, "only {items:?}");
        let kinds = query.split('&').find(|part| part.starts_with("type=")).map(|part| format!("&{part}")).unwrap_or_default();
        path = format!("/v1/events?limit=200{kinds}&after={}", page["next"].as_str().unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn kinds(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["type"].as_str().unwrap()).collect()
}

async fn suppressions_are_told_when_they_come_and_go(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[senders.shop]\nemail = \"Shop <shop@example.com>\"\n").await;
    let added = add(&rig, json!([{"address": "ada@example.com"}])).await;
    add(&rig, json!([{"address": "ADA@example.com"}, {"address": "bob@example.com", "scope": "sender:shop"}])).await;
    let id = added[0]["id"].as_str().unwrap();
    let removed = call(&rig, Method::DELETE, &format!("/v1/suppressions/{id}"), json!({"reason": "ada@example.com asked"})).await;
    assert_eq!(removed.status, 200);

    let reader = rig.key("live", &["read"]).await;
    let items = told(&rig, &reader, "", 3).await;
    assert_eq!(kinds(&items), ["suppression.created", "suppression.created", "suppression.removed"]);
    let first = &items[0];
    assert!(first["id"].as_str().unwrap().starts_with("evt_"));
    assert_eq!((&first["mode"], &first["seq"]), (&json!("live"), &json!(null)));
    let actor = first["data"]["actor"].as_str().unwrap();
    assert!(actor.starts_with("key_"), "{actor}");
    let data = json!({"suppression_id": id, "channel": "email", "reason": "manual", "scope": "all", "source": "api",
        "expires_at": null, "actor": actor, "notification_id": null, "delivery_id": null});
    assert_eq!((&first["data"], &items[2]["data"]), (&data, &data));
    assert_eq!(items[1]["data"]["scope"], "sender");
    let all = rig.get("/v1/events").await.text();
    assert!(!all.contains('@') && !all.contains("example.com"), "{all}");
    for other in [rig.key("test", &["read"]).await, rig.key_of("other", "live", &["read"]).await] {
        assert_eq!(rig.get_as(&other, "/v1/events").await.json()["items"], json!([]));
    }
    assert_eq!(told(&rig, &reader, "&type=suppression.removed", 1).await[0], items[2], "the same bytes, however it is asked for");
    for unbuilt in ["endpoint.disabled", "sms.received", "suppression.expired"] {
        assert_eq!(rig.get(&format!("/v1/events?type={unbuilt}")).await.code(), "invalid_field");
    }
}

/// As the command line does it: in chunks, and once more after it broke off.
async fn an_import_tells_each_entry_once(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let entries = |count: usize| Value::from((0..count).map(|n| json!({"address": format!("a{n}@example.com")})).collect::<Vec<_>>());
    add(&rig, entries(150)).await;
    add(&rig, entries(250)).await;
    let items = told(&rig, &rig.key, "", 250).await;
    let ids: std::collections::HashSet<_> = items.iter().map(|item| item["data"]["suppression_id"].as_str().unwrap()).collect();
    let events: std::collections::HashSet<_> = items.iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), events.len()), (250, 250));
    assert!(items.iter().all(|item| item["type"] == "suppression.created"));
}

async fn a_hard_bounce_tells_its_suppression_without_the_address(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let id = rig.post("k", RECEIPT).await.json()["id"].as_str().unwrap().to_owned();
    let refused = Outcome::Refused { by: Refusal::Recipient { listed: false, hard: true }, reason: Reason::RecipientRefused };
    let delivery = end_all(&rig, &refused).await.remove(0);
    let items = told(&rig, &rig.key, "", 3).await;
    assert_eq!(kinds(&items), ["suppression.created", "delivery.failed", "notification.completed"]);
    let data = &items[0]["data"];
    assert_eq!((data["notification_id"].as_str(), &data["delivery_id"]), (Some(id.as_str()), &json!(delivery.to_string())));
    assert_eq!((&data["reason"], &data["source"], &data["actor"]), (&json!("hard_bounce"), &json!("provider"), &json!(null)));
    let listed = rig.get("/v1/suppressions").await.json();
    assert_eq!(listed["items"][0]["id"], data["suppression_id"]);
    assert!(!items[0].to_string().contains('@'));
}

async fn switches_are_told_to_operators_alone(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let storm = json!({"paused": true, "until": "2099-01-01T00:00:00Z", "reason": "storm"});
    switch(&rig, "class:bulk", storm.clone()).await;
    switch(&rig, "class:bulk", storm).await;
    rig.post("k", RECEIPT).await;
    end_all(&rig, &accepted()).await;
    switch(&rig, "class:bulk", json!({"paused": false, "reason": "over"})).await;
    call(&rig, Method::POST, "/v1/accounts/relay/pause", json!({"reason": "moves"})).await;
    assert_eq!(call(&rig, Method::POST, "/v1/accounts/relay/resume", json!({})).await.status, 200);
    call(&rig, Method::DELETE, "/v1/switches/class:bulk", json!({})).await;

    let operator = rig.key("live", &["read", "ops"]).await;
    let items = told(&rig, &operator, "", 6).await;
    let own = ["delivery.accepted", "notification.completed"];
    assert_eq!(kinds(&items), ["switch.paused", own[0], own[1], "switch.resumed", "switch.paused", "switch.resumed"]);
    let actor = items[0]["data"]["actor"].as_str().unwrap();
    assert!(actor.starts_with("key_"), "{actor}");
    let data = json!({"scope": "class:bulk", "until": "2099-01-01T00:00:00.000Z", "reason": "storm", "actor": actor});
    assert_eq!((&items[0]["data"], &items[0]["seq"], &items[0]["mode"]), (&data, &json!(null), &json!("live")));
    assert_eq!(items[3]["data"], json!({"scope": "class:bulk", "until": null, "reason": "over", "actor": actor}));
    assert_eq!(items[4]["data"]["scope"], "account:relay");

    let reader = rig.key("live", &["read", "send", "pii", "admin"]).await;
    assert_eq!(kinds(&told(&rig, &reader, "", 2).await), own);
    assert_eq!(told(&rig, &operator, "&type=switch.resumed,account.parked", 2).await.len(), 2);
    for (key, query) in [(&reader, "?type=switch.paused"), (&rig.key("test", &["read", "ops"]).await, "")] {
        assert_eq!(rig.get_as(key, &format!("/v1/events{query}")).await.json()["items"], json!([]));
    }
    // Another tenant's operator runs the same installation.
    let other = rig.key_of("other", "live", &["read", "ops"]).await;
    assert_eq!(told(&rig, &other, "", 4).await.len(), 4);
    let (blind, answer) = (rig.key("live", &["ops"]).await, "scope_missing");
    assert_eq!(rig.get_as(&blind, "/v1/events").await.code(), answer);
}

/// A place of an operator stands for everything before it, that of others for less.
async fn a_place_goes_from_fewer_events_to_more_and_never_back(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (operator, reader) = (rig.key("live", &["read", "ops"]).await, rig.key("live", &["read"]).await);
    let next = async |key: &str, query: &str| {
        let answer = rig.get_as(key, &format!("/v1/events{query}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["next"].as_str().unwrap().to_owned()
    };
    let of_reader = next(&reader, "?after=now").await;
    switch(&rig, "all", json!({"paused": true})).await;
    // What a reader was given, or anybody before there were such events, an operator goes on from.
    assert_eq!(kinds(&told(&rig, &operator, &format!("&after={of_reader}"), 1).await), ["switch.paused"]);
    let of_operator = next(&operator, "").await;
    let refused = rig.get_as(&reader, &format!("/v1/events?after={of_operator}")).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "bad_cursor"));
    next(&operator, &format!("?after={of_operator}")).await;
    let filtered = next(&operator, "?type=switch.paused").await;
    assert_eq!(rig.get_as(&operator, &format!("/v1/events?after={filtered}")).await.code(), "bad_cursor");
    let elsewhere = rig.key_of("other", "live", &["read", "ops"]).await;
    assert_eq!(rig.get_as(&elsewhere, &format!("/v1/events?after={of_operator}")).await.code(), "bad_cursor");
}

async fn a_place_before_purged_events_of_the_installation_is_told(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (operator, reader) = (rig.key("live", &["read", "ops"]).await, rig.key("live", &["read"]).await);
    let places =
        [page(&rig, "?after=now").await.1, rig.get_as(&reader, "/v1/events?after=now").await.json()["next"].as_str().unwrap().to_owned()];
    switch(&rig, "all", json!({"paused": true})).await;
    told(&rig, &operator, "", 1).await;
    let later = rig.app.now().plus(Duration::from_secs(15 * 86_400));
    while rig.store.keeping().purge_events(later).await.unwrap() > 0 {}
    for place in &places {
        let gone = rig.get_as(&operator, &format!("/v1/events?after={place}")).await;
        assert_eq!((gone.status, gone.code().as_str()), (410, "cursor_expired"));
    }
    assert_eq!(rig.get_as(&reader, &format!("/v1/events?after={}", places[1])).await.status, 200, "none of them was for him");
    assert_eq!(rig.get_as(&operator, "/v1/events").await.json()["items"], json!([]));
}

async fn an_account_that_is_parked_and_recovers_is_told_once_each(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let relay: AccountId = rig.app.setup().routing.accounts[0].id;
    let stop = CancellationToken::new();
    let telling = tokio::spawn(news::run(rig.app.clone(), InstanceId(7), stop.clone()));
    let learn = |outcome: &Outcome| rig.app.slots.learn(relay, outcome, rig.app.now());
    for _ in 0..5 {
        learn(&Outcome::Credential);
    }
    let (operator, reader) = (rig.key("live", &["read", "ops"]).await, rig.key("live", &["read"]).await);
    let parked = told(&rig, &operator, "", 1).await.remove(0);
    assert_eq!((&parked["type"], &parked["seq"]), (&json!("account.parked"), &json!(null)));
    let until = rig.get("/v1/accounts").await.json()["items"][0]["until"].clone();
    assert!(until.is_string());
    assert_eq!(parked["data"]["account"], "relay");
    assert_eq!((&parked["data"]["reason"], &parked["data"]["instance"]), (&json!("credential"), &json!(7)));
    assert!(parked["data"]["until"].is_string());
    for _ in 0..3 {
        learn(&accepted());
    }
    let items = told(&rig, &operator, "", 2).await;
    assert_eq!(items[1]["type"], "account.recovered");
    assert_eq!(items[1]["data"], json!({"account": "relay", "reason": "credential", "until": null, "instance": 7}));
    assert_eq!(rig.get_as(&reader, "/v1/events").await.json()["items"], json!([]));
    stop.cancel();
    telling.await.unwrap();
}

/// Whoever sends waits for none of it, and of much news the newest is kept.
async fn news_of_an_account_waits_for_a_store_that_is_away(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let relay: AccountId = rig.app.setup().routing.accounts[0].id;
    rig.store.fails(Failure::Away);
    for _ in 0..100 {
        rig.app.slots.learn(relay, &Outcome::Credential, rig.app.now());
        rig.app.slots.learn(relay, &accepted(), rig.app.now());
    }
    let stop = CancellationToken::new();
    let telling = tokio::spawn(news::run(rig.app.clone(), InstanceId(7), stop.clone()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!telling.is_finished());
    rig.store.fails(Failure::Nothing);
    let items = told(&rig, &rig.key, "", 64).await;
    assert_eq!(kinds(&items[62..]), ["account.parked", "account.recovered"]);
    stop.cancel();
    telling.await.unwrap();
}

async fn a_held_call_hears_of_a_switch(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (_, next) = page(&rig, "?after=now").await;
    let path = format!("?after={next}&wait=30s");
    let started = Instant::now();
    let (waited, ()) = tokio::join!(page(&rig, &path), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        switch(&rig, "all", json!({"paused": true})).await;
    });
    assert_eq!(kinds(&waited.0), ["switch.paused"]);
    assert!(started.elapsed() < Duration::from_secs(10));
}
