//! Stories of the pull feed over HTTP, on a store whose deliveries are ended by hand.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidings_core::ids::{DeliveryId, InstanceId};
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::outcome::{Outcome, Refusal, Report};
use tidings_core::store::{Outbox as _, WriteBatch};
use tidings_core::transition::{Finish, RoutePosition};
use tidings_core::words::Reason;

use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    an_event_tells_what_became_of_a_delivery_and_nothing_of_its_content,
    a_refusal_tells_the_codes_of_the_mail_system,
    pages_follow_each_other_and_next_is_never_null,
    a_cursor_belongs_to_its_tenant_mode_and_filter,
    a_call_waits_until_something_is_told,
    keys_of_order_and_collapse_are_taken_and_bind_the_request,
    sensitive_content_is_gone_with_the_end_and_the_replay_answers_the_same,
);

pub(super) const RECEIPT: &str = r#"{"to": {"email": "ada@example.com", "ref": "user_42"}, "tags": ["blue"], "metadata": {"order": "10432"},
    "email": {"subject": "Secret subject", "text": "Secret text"}}"#;

/// Waits until the feed tells that the notifications of these deliveries are completed: it stays behind every transaction
/// that runs on a server of PostgreSQL, those of other tests too.
pub(super) async fn caught_up(rig: &Rig, ended: &[DeliveryId]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let wanted: HashSet<String> = ended.iter().map(|id| id.notification().to_string()).collect();
    loop {
        let (items, _) = page(rig, "?type=notification.completed&limit=200").await;
        let told: HashSet<String> = items.iter().filter_map(|item| item["data"]["notification_id"].as_str()).map(str::to_owned).collect();
        if wanted.is_subset(&told) {
            return;
        }
        assert!(Instant::now() < deadline, "only {told:?} of {wanted:?} were told");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Calls everything that is due, writes the outcome and waits until it is told.
pub(super) async fn end_all(rig: &Rig, outcome: &Outcome) -> Vec<DeliveryId> {
    let (app, now) = (&rig.app, rig.app.now());
    let setup = app.setup();
    let lanes = setup.routing.routes.iter().map(|route| LanePlan {
        lane: route.lane,
        class: route.class,
        route: route.members(),
        limit: 50,
        tenant_limit: 50,
        cursor: None,
        low: None,
    });
    let accounts = setup.routing.accounts.iter();
    let plan = ClaimPlan {
        sends_as: std::sync::Arc::default(),
        owners: Default::default(),
        paused: Default::default(),
        instance: InstanceId(1),
        lease_until: now.plus(Duration::from_secs(60)),
        lanes: lanes.collect(),
        accounts: accounts
            .map(|account| AccountCapacity {
                account: account.id,
                free: 50,
                free_for_others: 50,
                free_for_bulk: 50,
                is_well: true,
                is_well_for_bulk: true,
            })
            .collect(),
    };
    let batch = WriteBatch { claim: Some(plan), ..WriteBatch::default() };
    let claimed = rig.store.commit(&app.setup().rules, batch, now).await.claim.unwrap().unwrap().dispatched;
    let ids: Vec<_> = claimed.iter().map(|delivery| delivery.id).collect();
    for delivery in claimed {
        let finish = Finish {
            id: delivery.id,
            number: delivery.attempt_number,
            generation: delivery.generation,
            account: delivery.account.unwrap(),
            started_at: now,
            finished_at: now,
            report: Report { code: Some("550 5.1.1".to_owned()), ..Report::new(outcome.clone()) },
            jitter: 0.0,
            position: RoutePosition { is_failover: false, has_other: false, has_later: false },
            others: Vec::new(),
            receipt_window: None,
            sandbox: false,
            match_key: None,
            copies: None,
            of_copies: Vec::new(),
        };
        app.writer.finish(finish).await.unwrap();
    }
    caught_up(rig, &ids).await;
    ids
}

pub(super) fn accepted() -> Outcome {
    Outcome::Accepted { message_id: Some("4F1A".to_owned()), refused_copies: Vec::new() }
}

pub(super) async fn page(rig: &Rig, query: &str) -> (Vec<Value>, String) {
    let answer = rig.get(&format!("/v1/events{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let page = answer.json();
    (page["items"].as_array().unwrap().clone(), page["next"].as_str().expect("next is never null").to_owned())
}

async fn an_event_tells_what_became_of_a_delivery_and_nothing_of_its_content(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let id = rig.post("order-10432", RECEIPT).await.json()["id"].as_str().unwrap().to_owned();
    let delivery = end_all(&rig, &accepted()).await.remove(0);

    let (items, _) = page(&rig, "").await;
    let [ended, completed] = &items[..] else { panic!("{items:?}") };
    assert_eq!(ended["id"], format!("evt_{}_3_accepted", delivery.as_uuid().simple()));
    let (kind, mode, seq) = (&ended["type"], &ended["mode"], &ended["seq"]);
    assert_eq!((kind.as_str(), mode.as_str(), seq.as_i64()), (Some("delivery.accepted"), Some("live"), Some(3)));
    let data = &ended["data"];
    let expected = serde_json::json!({
        "notification_id": id, "delivery_id": delivery.to_string(), "idempotency_key": "order-10432", "ref": "user_42",
        "metadata": {"order": "10432"}, "tags": ["blue"], "category": "default", "class": "transactional", "channel": "email",
        "state": "accepted", "previous_state": "dispatching", "certainty": "unconfirmed", "reason": null, "account": "relay",
        "provider_message_id": "4F1A", "generation": 1, "attempt_count": 1, "via_failover": false, "possible_duplicate": false,
        "occurred_at": data["occurred_at"], "bounce": null
    });
    assert_eq!(data, &expected);
    assert_eq!((completed["type"].as_str(), completed["data"]["status"].as_str()), (Some("notification.completed"), Some("accepted")));
    assert_eq!(completed["data"]["notification_id"], id.as_str());
    let all = rig.get("/v1/events").await.text();
    for secret in ["Secret", "ada@", "example.com"] {
        assert!(!all.contains(secret), "{all}");
    }
}

async fn a_refusal_tells_the_codes_of_the_mail_system(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.post("k", RECEIPT).await;
    end_all(&rig, &Outcome::Refused { by: Refusal::Recipient { listed: false, hard: false }, reason: Reason::RecipientRefused }).await;
    let data = page(&rig, "?type=delivery.failed").await.0[0]["data"].clone();
    assert_eq!(data["bounce"], serde_json::json!({"class": null, "smtp_code": 550, "enhanced_code": "5.1.1"}));
    assert_eq!((data["reason"].as_str(), data["provider_message_id"].is_null()), (Some("recipient_refused"), true));
}

async fn pages_follow_each_other_and_next_is_never_null(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (none, start) = page(&rig, "").await;
    assert!(none.is_empty());
    for n in 0..5 {
        rig.post(&format!("key-{n}"), RECEIPT).await;
    }
    let (_, before) = page(&rig, "?after=now").await;
    end_all(&rig, &accepted()).await;
    for from in ["?limit=3".to_owned(), format!("?limit=3&after={start}"), format!("?limit=3&after={before}")] {
        let (mut seen, mut query) = (Vec::new(), from);
        loop {
            let (items, next) = page(&rig, &query).await;
            if items.is_empty() {
                break;
            }
            seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
            query = format!("?limit=3&after={next}");
        }
        let unique: HashSet<_> = seen.iter().collect();
        assert_eq!((seen.len(), unique.len()), (10, 10));
    }
    assert_eq!(page(&rig, "?after=now").await.0.len(), 0);
    assert_eq!(page(&rig, "?type=notification.completed,delivery.bounced").await.0.len(), 5);
}

async fn a_cursor_belongs_to_its_tenant_mode_and_filter(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (_, cursor) = page(&rig, "?type=delivery.failed").await;
    assert_eq!(rig.get(&format!("/v1/events?type=delivery.failed&after={cursor}")).await.status, 200);
    let other_mode = rig.key("test", &["read"]).await;
    for refused in [
        rig.get(&format!("/v1/events?after={cursor}")).await,
        rig.get_as(&other_mode, &format!("/v1/events?type=delivery.failed&after={cursor}")).await,
        rig.get("/v1/events?after=yesterday").await,
    ] {
        assert_eq!((refused.status, refused.code().as_str()), (400, "bad_cursor"));
    }
    let blind = rig.key("live", &["send"]).await;
    assert_eq!(rig.get_as(&blind, "/v1/events").await.code(), "scope_missing");
    for (wrong, code) in [("type=delivery.bounce", "invalid_field"), ("wait=2h", "invalid_field"), ("since=now", "unknown_field")] {
        assert_eq!(rig.get(&format!("/v1/events?{wrong}")).await.code(), code, "{wrong}");
    }
    let detail = rig.get("/v1/events?type=delivery.bounce").await.problem().2;
    assert!(detail.contains("delivery.bounced"), "{detail}");
}

async fn a_call_waits_until_something_is_told(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    rig.post("k", RECEIPT).await;
    let (_, next) = page(&rig, "?after=now").await;
    let path = format!("?after={next}&wait=30s");
    let started = Instant::now();
    let (waited, ended) = tokio::join!(page(&rig, &path), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        end_all(&rig, &accepted()).await
    });
    assert_eq!((waited.0.len(), ended.len()), (2, 1));
    assert!(started.elapsed() < Duration::from_secs(10));
    let (empty, again) = page(&rig, &format!("?after={}&wait=50ms", waited.1)).await;
    assert!(empty.is_empty() && !again.is_empty());
}

async fn keys_of_order_and_collapse_are_taken_and_bind_the_request(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let body = |keys: &str| RECEIPT.replacen('{', &format!("{{{keys}, "), 1);
    let ordered = body(r#""ordering_key": "order-7""#);
    let first = rig.post("a", &ordered).await;
    assert_eq!((first.status, rig.post("b", &ordered).await.status), (202, 202));
    let other = rig.post("a", &body(r#""ordering_key": "order-8""#)).await;
    assert_eq!((other.code().as_str(), &other.json()["differs"]), ("idempotency_key_reused", &serde_json::json!(["/ordering_key"])));
    assert_eq!(rig.post("a", &ordered).await.body, first.body);
    let waits = rig.get("/v1/notifications/by-key?idempotency_key=b").await.json();
    assert_eq!(waits["deliveries"][0]["wait_reason"], "order");
    assert!(waits["deliveries"][0]["available_at"].is_null());

    let timed = rig.post("c", &body(r#""ordering_key": "order-7", "send_in": "1h""#)).await;
    assert_eq!((timed.status, timed.code().as_str()), (422, "invalid_field"));
    assert_eq!(timed.json()["errors"][0]["pointer"], "/send_in");
    for wrong in
        [r#""collapse_key": """#.to_owned(), format!(r#""ordering_key": "{}""#, "x".repeat(129)), r#""ordering_key": 7"#.to_owned()]
    {
        assert_eq!(rig.post("d", &body(&wrong)).await.code(), "invalid_field", "{wrong}");
    }

    let code = body(r#""collapse_key": "login""#);
    rig.post("code-1", &code).await;
    rig.post("code-2", &code).await;
    let older = rig.get("/v1/notifications/by-key?idempotency_key=code-1").await.json();
    assert_eq!((older["status"].as_str(), older["open"].as_bool()), (Some("superseded"), Some(false)));
    assert_eq!(older["deliveries"][0]["reason"], "collapsed");
}

async fn sensitive_content_is_gone_with_the_end_and_the_replay_answers_the_same(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[categories.login-code]\nsensitive = true\n").await;
    let body = RECEIPT.replacen('{', r#"{"category": "login-code", "#, 1);
    let first = rig.post("code", &body).await;
    assert_eq!(first.status, 202, "{}", first.text());
    let ended = end_all(&rig, &accepted()).await;
    assert!(rig.store.outgoing(&ended).await.unwrap()[0].body.is_none());
    let replay = rig.post("code", &body).await;
    assert_eq!((replay.status, replay.header("idempotent-replayed")), (202, Some("true")));
    assert_eq!(replay.body, first.body);
}
