//! What callers see of what has been erased: first the address, then everything.

use std::time::Duration;

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::retention::{Kept, Retention};

use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};

on_both_databases!(a_notification_fades_and_is_gone_in_the_end);

const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);

/// Erases whatever of all kinds is due so long from now.
async fn erase(rig: &Rig, later: Duration) {
    use tidings_core::store::Store as _;
    let (keep, now, keeping) = (Retention::default(), rig.app.now().plus(later), rig.store.keeping());
    for kept in [Kept::Content, Kept::Destinations, Kept::Records] {
        let due = keeping.due(kept, &keep, None, now).await.unwrap();
        for chunk in due.chunks(keeping.rows_at_once()) {
            keeping.erase(kept, &keep, chunk, now).await.unwrap();
        }
    }
}

async fn cancel(rig: &Rig, id: &str) {
    let cancelled = ask(rig, &format!("/v1/notifications/{id}/cancel"), "").await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
}

async fn ask(rig: &Rig, path: &str, body: &str) -> Answer {
    let request = TestRequest::post().uri(path).insert_header(("authorization", format!("Bearer {}", rig.key)));
    rig.raw(request.insert_header(("content-type", "application/json")).set_payload(body.to_owned())).await
}

fn ids(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

/// The events of both deliveries and of their notification, as soon as no transaction of others may still come before them.
async fn feed(rig: &Rig) -> Vec<Value> {
    loop {
        let page = rig.get("/v1/events").await.json();
        let items = page["items"].as_array().unwrap();
        if items.len() >= 3 {
            return items.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_notification_fades_and_is_gone_in_the_end(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let to = json!([{"email": "ada@example.com", "name": "Ada", "ref": "user_1"}, "bob@example.com"]);
    let request = json!({"to": to, "email": {"subject": "s", "text": "t"}}).to_string();
    let first = rig.post("k", &request).await;
    assert_eq!(first.status, 202, "{}", first.text());
    let created = first.json();
    let (id, delivery) = (created["id"].as_str().unwrap(), created["deliveries"][0]["id"].as_str().unwrap());
    let (by_id, by_delivery) = (format!("/v1/notifications/{id}"), format!("/v1/deliveries/{delivery}"));
    cancel(&rig, id).await;

    erase(&rig, DAY * 30 - MINUTE).await;
    let again = rig.post("k", &request).await;
    assert_eq!((again.header("idempotent-replayed"), again.text()), (Some("true"), first.text()), "byte for byte, with the address");
    let content = rig.get(&format!("{by_delivery}/content")).await;
    assert_eq!((content.status, content.code().as_str()), (410, "content_erased"));

    erase(&rig, DAY * 30 + MINUTE).await;
    for shown in [rig.get(&by_id).await.json()["deliveries"][0].clone(), rig.get(&by_delivery).await.json()] {
        assert_eq!((&shown["to"], &shown["ref"], &shown["state"]), (&Value::Null, &Value::Null, &json!("cancelled")));
    }
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.status, 404);
    let found = ask(&rig, "/v1/notifications/search", r#"{"to": "ada@example.com", "ref": "user_1"}"#).await.json();
    assert_eq!(ids(&found), [id], "an address still finds what was sent to it");
    let new = rig.post("k", &request).await;
    assert_eq!((new.status, new.header("idempotent-replayed")), (202, None));
    let new = new.json()["id"].as_str().unwrap().to_owned();
    assert_ne!(new, id);

    let page = rig.get("/v1/notifications?limit=1").await.json();
    assert_eq!(ids(&page), [new.as_str()]);
    let before = feed(&rig).await;
    erase(&rig, DAY * 90 + MINUTE).await;
    for gone in [&by_id, &by_delivery, &format!("{by_delivery}/content")] {
        assert_eq!(rig.get(gone).await.status, 404, "{gone}");
    }
    let rest = rig.get(&format!("/v1/notifications?after={}", page["next"].as_str().unwrap())).await;
    assert_eq!((rest.status, ids(&rest.json()).len()), (200, 0), "the place in the list is still one");
    assert_eq!(rig.get("/v1/notifications/by-key?idempotency_key=k").await.json()["id"], json!(new));
    let after = feed(&rig).await;
    let ids = |events: &[Value]| events.iter().map(|event| event["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&after), ids(&before));
    assert_eq!(after[0]["data"]["idempotency_key"], Value::Null, "an event without its record tells what it holds itself");
}
