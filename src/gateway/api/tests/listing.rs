//! Stories of lists, of one delivery and of content, as a caller reads them.

use std::sync::Arc;

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::ids::NotificationId;
use tidings_core::store::{Accepted, NewNotification, Outbox as _, Registry as _, WriteBatch};
use tidings_core::words::Class;
use tidings_tests::store_suite;

use super::HELLO;
use super::broken::Failure;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};

on_both_databases!(
    a_delivery_of_a_disabled_tenant_waits_for_its_tenant,
    a_list_goes_newest_first_page_by_page,
    a_list_is_filtered_by_what_a_url_may_hold,
    what_a_list_cannot_be_asked_is_refused_and_named,
    a_search_finds_addresses_and_metadata_that_stand_in_no_url,
    lists_show_each_key_its_own_tenant_and_mode_and_mask_addresses,
    a_page_looks_at_a_bounded_number_of_rows_and_says_where_to_go_on,
    one_delivery_is_read_with_its_whole_timeline,
    content_is_shown_as_it_was_given_to_those_who_may_see_it,
    a_waiting_delivery_says_what_it_waits_for,
);

async fn search(rig: &Rig, body: &Value) -> Answer {
    search_as(rig, &rig.key, &body.to_string()).await
}

async fn search_as(rig: &Rig, key: &str, body: &str) -> Answer {
    let request = TestRequest::post().uri("/v1/notifications/search").insert_header(("authorization", format!("Bearer {key}")));
    rig.raw(request.insert_header(("content-type", "application/json")).set_payload(body.to_owned())).await
}

/// The keys of a page's items, and its cursor.
fn page(answer: &Answer) -> (Vec<String>, Option<String>) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let page = answer.json();
    let keys = page["items"].as_array().unwrap().iter().map(|item| item["idempotency_key"].as_str().unwrap().to_owned()).collect();
    (keys, page["next"].as_str().map(str::to_owned))
}

async fn keys(rig: &Rig, query: &str) -> Vec<String> {
    page(&rig.get(&format!("/v1/notifications{query}")).await).0
}

fn to(address: &str, more: &str) -> String {
    format!(r#"{{"to": {{"email": "{address}", "ref": "{address}!"}}, "email": {{"subject": "s", "text": "t"}}{more}}}"#)
}

async fn a_list_goes_newest_first_page_by_page(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    for number in 0..7 {
        rig.post(&format!("k{number}"), HELLO).await;
    }
    assert_eq!(page(&rig.get("/v1/notifications").await), (["k6", "k5", "k4", "k3", "k2", "k1", "k0"].map(str::to_owned).to_vec(), None));
    let (first, next) = page(&rig.get("/v1/notifications?limit=3").await);
    rig.post("k7", HELLO).await;
    let (second, next) = page(&rig.get(&format!("/v1/notifications?limit=3&after={}", next.unwrap())).await);
    let (third, end) = page(&rig.get(&format!("/v1/notifications?after={}", next.clone().unwrap())).await);
    assert_eq!((first, second, third, end), (strings(&["k6", "k5", "k4"]), strings(&["k3", "k2", "k1"]), strings(&["k0"]), None));

    // Items are what a read by id gives.
    let item = rig.get("/v1/notifications?idempotency_key=k3").await.json()["items"][0].clone();
    assert_eq!(item, rig.get("/v1/notifications/by-key?idempotency_key=k3").await.json());

    let next = next.unwrap();
    let test = rig.key("test", &["read"]).await;
    for (key, query) in [(&rig.key, "&tag=a"), (&rig.key, "&since=2020-01-01T00:00:00Z"), (&test, "")] {
        let foreign = rig.get_as(key, &format!("/v1/notifications?after={next}{query}")).await;
        assert_eq!((foreign.status, foreign.code().as_str()), (400, "bad_cursor"), "{query}");
    }
    assert_eq!(rig.get("/v1/notifications?after=nonsense").await.code(), "bad_cursor");
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

async fn a_list_is_filtered_by_what_a_url_may_hold(on: Database) {
    let rig =
        Rig::start(on, Accounts::Relay, "[categories.alarm]\nclass = \"critical\"\n[limits]\nundeclared_categories = \"allow\"\n").await;
    rig.post("now", &to("ada@example.com", r#", "tags": ["a", "b"], "category": "receipt""#)).await;
    rig.post("later", &to("bob@example.com", r#", "tags": ["b"], "send_in": "2h""#)).await;
    rig.post("alarm", &to("eve@example.com", r#", "category": "alarm""#)).await;
    for (query, found) in [
        ("?tag=b", &["later", "now"][..]),
        ("?tag=a", &["now"]),
        ("?tag=c", &[]),
        ("?category=alarm", &["alarm"]),
        ("?category=default", &["later"]),
        ("?state=scheduled", &["later"]),
        ("?state=queued", &["alarm", "now"]),
        ("?state=queued&category=receipt", &["now"]),
        ("?status=scheduled", &["later"]),
        ("?status=processing&channel=email", &["alarm", "now"]),
        ("?status=delivered", &[]),
        ("?channel=sms", &[]),
        ("?ref=bob@example.com!", &["later"]),
        ("?ref=bob", &[]),
        ("?idempotency_key=now", &["now"]),
        ("?idempotency_key=now&tag=a", &["now"]),
        ("?idempotency_key=now&tag=c", &[]),
        ("?idempotency_key=nobody", &[]),
        ("?since=2020-01-01T00:00:00%2B02:00", &["alarm", "later", "now"]),
        ("?since=2090-01-01T00:00:00Z", &[]),
        ("?until=2020-01-01T00:00:00Z", &[]),
        ("?idempotency_key=now&until=2020-01-01T00:00:00Z", &[]),
    ] {
        assert_eq!(keys(&rig, query).await, strings(found), "{query}");
    }
    let created_at = rig.get("/v1/notifications?idempotency_key=later").await.json()["items"][0]["created_at"].as_str().unwrap().to_owned();
    assert!(keys(&rig, &format!("?since={created_at}")).await.contains(&"later".to_owned()), "since is inclusive");
    assert!(!keys(&rig, &format!("?until={created_at}")).await.contains(&"later".to_owned()), "until is not");
}

async fn what_a_list_cannot_be_asked_is_refused_and_named(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    for (query, status, code, words) in [
        ("?to=ada@example.com", 400, "filter_unsupported", "POST /v1/notifications/search"),
        ("?metadata=x", 400, "filter_unsupported", "POST /v1/notifications/search"),
        ("?sate=dead", 400, "filter_unsupported", "did you mean \"state\"?"),
        ("?order=asc", 400, "filter_unsupported", "there are: idempotency_key"),
        ("?state=deadd", 422, "invalid_field", "did you mean \"dead\"?"),
        ("?status=sent", 422, "invalid_field", "parameter status"),
        ("?channel=mail", 422, "invalid_field", "did you mean \"email\"?"),
        ("?tag=", 422, "invalid_field", "a tag is"),
        ("?limit=201", 422, "invalid_field", "from 1 to 200"),
        ("?limit=0", 422, "invalid_field", "from 1 to 200"),
        ("?since=2027-03-01T09:00:00", 422, "invalid_field", "needs an offset"),
        ("?state=dead&state=failed", 422, "invalid_field", "twice"),
    ] {
        let answer = rig.get(&format!("/v1/notifications{query}")).await;
        let (found, word, detail) = answer.problem();
        assert_eq!((found, word.as_str()), (status, code), "{query}");
        assert!(detail.contains(words), "{query}: {detail}");
        assert!(!detail.contains("ada@example.com"));
    }
    let sends = rig.key("live", &["send"]).await;
    assert_eq!(rig.get_as(&sends, "/v1/notifications").await.code(), "scope_missing");
    assert_eq!(search_as(&rig, &sends, "{}").await.code(), "scope_missing");
}

async fn a_search_finds_addresses_and_metadata_that_stand_in_no_url(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.post("one", &to("Ada@Example.com", r#", "metadata": {"order": "1", "shop": "x"}"#)).await;
    rig.post("two", &to("bob@example.com", r#", "metadata": {"order": "2"}"#)).await;
    rig.post("three", &to("bob@example.com", "")).await;
    for (body, found) in [
        (json!({}), &["three", "two", "one"][..]),
        (json!({"to": "aDa@EXAMPLE.com"}), &["one"]),
        (json!({"to": "bob@example.com"}), &["three", "two"]),
        (json!({"to": "bob@example.com", "metadata": {"order": "2"}}), &["two"]),
        (json!({"to": "nobody@example.com"}), &[]),
        (json!({"metadata": {"order": "1", "shop": "x"}}), &["one"]),
        (json!({"metadata": {"order": "1", "shop": "y"}}), &[]),
        (json!({"ref": "Ada@Example.com!", "state": "queued"}), &["one"]),
        (json!({"to": "bob@example.com", "state": "accepted"}), &[]),
    ] {
        assert_eq!(page(&search(&rig, &body).await).0, strings(found), "{body}");
    }
    let (first, next) = page(&search(&rig, &json!({"to": "bob@example.com", "limit": 1})).await);
    let (second, end) = page(&search(&rig, &json!({"to": "bob@example.com", "after": next.clone().unwrap()})).await);
    assert_eq!((first, second, end), (strings(&["three"]), strings(&["two"]), None));
    assert_eq!(search(&rig, &json!({"to": "ada@example.com", "after": next.unwrap()})).await.code(), "bad_cursor");

    let refused = search(&rig, &json!({"to": "nobody", "stat": "dead"})).await;
    let pointers: Vec<Value> = refused.json()["errors"].as_array().unwrap().iter().map(|error| error["pointer"].clone()).collect();
    assert_eq!((refused.status, refused.code().as_str(), pointers), (400, "unknown_field", vec![json!("/stat"), json!("/to")]));
}

async fn lists_show_each_key_its_own_tenant_and_mode_and_mask_addresses(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (test, blind) = (rig.key("test", &["send", "read"]).await, rig.key("live", &["read"]).await);
    rig.post("live", HELLO).await;
    rig.post_as(&test, "test", HELLO).await;
    assert_eq!(keys(&rig, "").await, ["live"]);
    assert_eq!(page(&rig.get_as(&test, "/v1/notifications").await).0, ["test"]);
    let masked = search_as(&rig, &blind, r#"{"to": "ada@example.com"}"#).await;
    assert_eq!(masked.json()["items"][0]["deliveries"][0]["to"], "A***@example.com");
    assert!(!masked.text().to_ascii_lowercase().contains("ada@"), "{}", masked.text());
}

async fn a_page_looks_at_a_bounded_number_of_rows_and_says_where_to_go_on(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.post("needle", &to("ada@example.com", r#", "tags": ["needle"]"#)).await;
    hay(&rig, 2_100).await;
    let (mut found, mut next, mut calls) = (Vec::new(), None::<String>, 0);
    loop {
        let after = next.map(|next| format!("&after={next}")).unwrap_or_default();
        let (keys, more) = page(&rig.get(&format!("/v1/notifications?tag=needle{after}")).await);
        found.extend(keys);
        calls += 1;
        next = more;
        if next.is_none() {
            break;
        }
    }
    assert_eq!((found, calls), (strings(&["needle"]), 2));
}

/// Accepts many notifications past the door.
async fn hay(rig: &Rig, count: usize) {
    let tenant = rig.store.ensure_tenant("default").await.unwrap().id;
    let lane = rig.app.setup().routing.routes[0].lane;
    let item = |number: usize| {
        let email = store_suite::email(tenant, lane, Class::Transactional, &format!("hay-{number}"));
        let id = NotificationId::new(rig.app.now(), rand::random());
        let deliveries = vec![store_suite::destination(id, 1, lane)];
        Arc::new(NewNotification { id, deliveries, ..email })
    };
    for start in (0..count).step_by(100) {
        let accept = (start..count.min(start + 100)).map(item).collect();
        let results = rig.store.commit(&rig.app.setup().rules, WriteBatch { accept, ..WriteBatch::default() }, rig.app.now()).await.accept;
        assert!(results.iter().all(|result| matches!(result, Ok(Accepted::Taken))));
    }
}

async fn one_delivery_is_read_with_its_whole_timeline(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await.json();
    let id = accepted["deliveries"][0]["id"].as_str().unwrap();
    let answer = rig.get(&format!("/v1/deliveries/{id}")).await;
    insta::assert_snapshot!("delivery", super::steady(&answer));
    let whole = rig.get("/v1/notifications/by-key?idempotency_key=k").await.json();
    for (name, value) in whole["deliveries"][0].as_object().unwrap() {
        assert_eq!(&answer.json()[name], value, "{name}");
    }
    let test = rig.key("test", &["read", "pii"]).await;
    for (key, path) in [
        (&test, format!("/v1/deliveries/{id}")),
        (&test, format!("/v1/deliveries/{id}/content")),
        (&rig.key, format!("/v1/deliveries/{}2", &id[..35])),
        (&rig.key, "/v1/deliveries/dlv_1".to_owned()),
        (&rig.key, format!("/v1/deliveries/{}", accepted["id"].as_str().unwrap())),
    ] {
        assert_eq!(rig.get_as(key, &path).await.problem().1, "not_found", "{path}");
    }
}

async fn content_is_shown_as_it_was_given_to_those_who_may_see_it(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let body = json!({
        "to": "Ada <ada@example.com>",
        "email": {
            "from": "Shop <shop@shop.example.com>", "subject": "Grüße", "text": "Hello \u{1f600}\n", "html": "<p>Hello</p>",
            "reply_to": "help@shop.example.com", "cc": ["\"Doe, Jane\" <j@example.com>"], "headers": {"X-Campaign": "7"},
            "attachments": [{"filename": "a.txt", "content_type": "text/plain", "content": "aGVsbG8="}]
        }
    });
    let accepted = rig.post("k", &body.to_string()).await.json();
    let path = format!("/v1/deliveries/{}/content", accepted["deliveries"][0]["id"].as_str().unwrap());
    let content = rig.get(&path).await;
    insta::assert_snapshot!("content", super::steady(&content));
    // What is shown may be sent again as it stands.
    let shown = content.json();
    let again = json!({"to": shown["to"], "email": shown["email"]});
    assert_eq!(rig.post("k", &again.to_string()).await.status, 202);

    let blind = rig.key("live", &["read"]).await;
    let refused = rig.get_as(&blind, &path).await;
    assert_eq!((refused.status, refused.problem().2.as_str()), (403, "the API key lacks the scope pii"));

    rig.store.fails(Failure::Erased);
    let gone = rig.get(&path).await;
    assert_eq!((gone.status, gone.code().as_str()), (410, "content_erased"));
}

async fn a_waiting_delivery_says_what_it_waits_for(on: Database) {
    use std::time::Duration;
    use tidings_core::outcome::Outcome;

    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await.json();
    let path = format!("/v1/deliveries/{}", accepted["deliveries"][0]["id"].as_str().unwrap());
    let says = async || {
        let delivery = rig.get(&path).await.json();
        (delivery["wait_reason"].as_str().map(str::to_owned), delivery["summary"].as_str().unwrap().to_owned())
    };
    assert_eq!(says().await, (None, "will be sent in a moment by relay".to_owned()));
    let relay = rig.app.setup().routing.accounts[0].id;
    rig.app.slots.learn(relay, &Outcome::Throttled { retry_after: Some(Duration::from_secs(600)) }, rig.app.now());
    assert_eq!(says().await, (Some("rate".to_owned()), "waits because the rate of its account is used up for the moment".to_owned()));
    rig.app.slots.learn(relay, &Outcome::Credential, rig.app.now());
    assert_eq!(says().await, (Some("credential".to_owned()), "waits because the account's credentials are refused".to_owned()));
    let again = rig.again(Accounts::Nothing, "").await;
    assert_eq!(again.get(&path).await.json()["wait_reason"], "no_account");
}

/// The keys of a disabled tenant open nothing, but for the two seconds in which a process remembers them.
async fn a_delivery_of_a_disabled_tenant_waits_for_its_tenant(on: Database) {
    use tidings_core::store::{Deed, Store as _};

    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    let accepted = rig.post("k", HELLO).await.json();
    let path = format!("/v1/deliveries/{}", accepted["deliveries"][0]["id"].as_str().unwrap());
    for (is_active, says) in [(false, Some("waits because its tenant is disabled")), (true, None)] {
        let (actor, action, subject) = ("cli".to_owned(), "tenant.disabled", "default");
        let entry = Deed { at: rig.app.now(), tenant: None, actor, action, subject: subject.into(), reason: None };
        assert!(rig.store.access().set_active("default", is_active, &entry).await.unwrap());
        rig.app.pauses.refresh(rig.store.as_ref()).await.unwrap();
        let delivery = rig.get(&path).await.json();
        assert_eq!(delivery["wait_reason"].as_str(), says.map(|_| "tenant"), "{delivery}");
        assert_eq!(delivery["summary"].as_str(), says.or(Some("will be sent in a moment by relay")));
    }
}
