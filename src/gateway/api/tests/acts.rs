//! Stories of acts: cancel, another time, resolve, resend, dead letters, as a caller sees them.

use std::sync::Arc;
use std::time::Duration;

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::delivery::Delivery;
use tidings_core::judge::{AccountCapacity, ClaimPlan, LanePlan};
use tidings_core::outcome::{NotSent, Outcome, Report};
use tidings_core::policy::LEASE;
use tidings_core::store::{Registry as _, Sweep};
use tidings_core::time::{Clock as _, Timestamp};
use tidings_core::transition::{Finish, RoutePosition};

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};
use crate::routing::MAIN_ROUTE;

on_both_databases!(
    a_waiting_notification_is_cancelled_once_and_shown_as_get_shows_it,
    what_is_on_its_way_or_over_is_not_cancelled,
    of_several_deliveries_those_that_wait_are_stopped_and_the_rest_is_told,
    a_message_is_sent_at_another_time_while_it_was_never_called,
    a_time_that_cannot_be_is_refused_at_its_place,
    a_version_that_has_passed_is_told_and_changes_nothing,
    acts_need_their_scope_and_see_their_own_mode_and_tenant_alone,
    an_operator_settles_a_call_that_nobody_answered_for,
);

/// Says what a worker would.
pub(super) struct Worker<'a>(pub(super) &'a Rig);

impl Worker<'_> {
    pub(super) fn now(&self) -> Timestamp {
        self.0.app.clock.now()
    }

    /// Claims everything that is due.
    pub(super) async fn claim(&self) -> Vec<Delivery> {
        let app = &self.0.app;
        let now = self.now();
        let instance = self.0.store.register_instance(now, b"test").await.unwrap();
        let setup = app.setup();
        let routes: Vec<_> = setup.routing.routes.iter().filter(|route| route.name == MAIN_ROUTE).collect();
        let lane = |route: &&crate::routing::Route| LanePlan {
            lane: route.lane,
            class: route.class,
            route: route.members(),
            limit: 50,
            tenant_limit: 50,
            cursor: None,
            low: None,
        };
        let account = routes[0].accounts[0].id;
        let capacity = AccountCapacity { account, free: 50, free_for_others: 50, free_for_bulk: 50, is_well: true, is_well_for_bulk: true };
        let plan = ClaimPlan {
            instance,
            lease_until: now.plus(LEASE),
            lanes: routes.iter().map(lane).collect(),
            accounts: vec![capacity],
            sends_as: Arc::default(),
            owners: Default::default(),
            paused: Default::default(),
        };
        app.writer.claim(plan, app.setup().rules.clone()).await.unwrap().dispatched
    }

    pub(super) async fn finish(&self, claimed: &Delivery, outcome: Outcome) {
        let now = self.now();
        let finish = Finish {
            id: claimed.id,
            number: claimed.attempt_number,
            generation: claimed.generation,
            account: claimed.account.unwrap(),
            started_at: claimed.attempt_started_at.unwrap(),
            finished_at: now,
            report: Report::new(outcome),
            jitter: 0.0,
            position: RoutePosition { is_failover: false, has_other: false, has_later: false },
            others: Vec::new(),
            receipt_window: None,
            sandbox: false,
            match_key: None,
            copies: None,
            of_copies: Vec::new(),
        };
        self.0.app.writer.finish(finish).await.unwrap();
    }

    /// Posts a message and carries it to this outcome.
    pub(super) async fn carried(&self, key: &str, outcome: Outcome) -> (Value, Delivery) {
        let accepted = self.0.post(key, HELLO).await.json();
        let id = accepted["deliveries"][0]["id"].as_str().unwrap().to_owned();
        let claimed = self.claim().await.into_iter().find(|row| row.id.to_string() == id).unwrap();
        self.finish(&claimed, outcome).await;
        (accepted, claimed)
    }

    /// A message that nobody could be found for until its deadline: `expired`, never taken.
    pub(super) async fn expired(&self, key: &str) -> Value {
        let soon = HELLO.replacen('{', r#"{"expires_in": "1s", "#, 1);
        let accepted = self.0.post(key, &soon).await.json();
        let later = self.now().plus(Duration::from_secs(2));
        self.0.app.store.sweep(&self.0.app.setup().rules, Sweep::PastExpiry, 100, later).await.unwrap();
        accepted
    }

    /// A message whose tries are used up: `dead`.
    pub(super) async fn dead(&self, key: &str) -> Value {
        let again = Outcome::NotSent { why: NotSent::Answered, retry_after: None };
        let (accepted, mut claimed) = self.carried(key, again.clone()).await;
        while self.0.get(&status_url(&accepted)).await.json()["deliveries"][0]["state"] == "retry_wait" {
            claimed = self.claim().await.into_iter().find(|row| row.id == claimed.id).unwrap();
            self.finish(&claimed, again.clone()).await;
        }
        accepted
    }
}

pub(super) const TAKEN: Outcome = Outcome::Accepted { message_id: None, refused_copies: Vec::new() };

pub(super) fn status_url(accepted: &Value) -> String {
    accepted["status_url"].as_str().unwrap().to_owned()
}

pub(super) fn delivery(accepted: &Value) -> String {
    format!("/v1/deliveries/{}", accepted["deliveries"][0]["id"].as_str().unwrap())
}

impl Rig {
    pub(super) async fn ask_as(&self, key: &str, method: &str, path: &str, body: &str, if_match: Option<&str>) -> Answer {
        let request = if method == "PATCH" { TestRequest::patch() } else { TestRequest::post() };
        let mut request = request
            .uri(path)
            .insert_header(("authorization", format!("Bearer {key}")))
            .insert_header(("content-type", "application/json"))
            .set_payload(body.to_owned());
        if let Some(version) = if_match {
            request = request.insert_header(("if-match", version));
        }
        self.raw(request).await
    }

    pub(super) async fn ask(&self, path: &str, body: &str) -> Answer {
        self.ask_as(&self.key, "POST", path, body, None).await
    }

    pub(super) async fn patch(&self, path: &str, body: &str) -> Answer {
        self.ask_as(&self.key, "PATCH", path, body, None).await
    }
}

async fn a_waiting_notification_is_cancelled_once_and_shown_as_get_shows_it(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("order/1 &", HELLO).await;
    assert_eq!(accepted.status, 400, "a key has no spaces");
    let accepted = rig.post("order/1&x", HELLO).await.json();
    let path = format!("{}/cancel", status_url(&accepted));

    let cancelled = rig.ask(&path, "").await;

    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")));
    assert_eq!(cancelled.json()["deliveries"][0]["reason"], "cancelled_by_request");
    assert_eq!(cancelled.json()["open"], false);
    for again in [rig.ask(&path, "{}").await, rig.ask("/v1/notifications/by-key/cancel?idempotency_key=order%2F1%26x", "").await] {
        assert_eq!((again.status, again.json()), (200, cancelled.json()));
    }
    assert_eq!(rig.get(&status_url(&accepted)).await.text(), cancelled.text());
    assert_eq!(cancelled.header("etag"), Some("\"2\""));
    assert!(Worker(&rig).claim().await.is_empty());
}

async fn what_is_on_its_way_or_over_is_not_cancelled(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await.json();
    let path = format!("{}/cancel", status_url(&accepted));
    let claimed = Worker(&rig).claim().await.remove(0);
    let (status, code, detail) = rig.ask(&path, "").await.problem();
    assert_eq!((status, code.as_str(), detail.ends_with("dispatching")), (409, "already_dispatched", true), "{detail}");
    Worker(&rig).finish(&claimed, TAKEN).await;
    let (_, code, detail) = rig.ask(&path, "").await.problem();
    assert_eq!((code.as_str(), detail.ends_with("accepted")), ("already_dispatched", true), "{detail}");
}

async fn of_several_deliveries_those_that_wait_are_stopped_and_the_rest_is_told(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let two = r#"{"to": [{"email": "a@example.com"}, {"email": "b@example.com"}], "email": {"subject": "s", "text": "t"}}"#;
    let accepted = rig.post("k", two).await.json();
    let worker = Worker(&rig);
    let claimed = worker.claim().await;
    worker.finish(&claimed[0], TAKEN).await;
    worker.finish(&claimed[1], Outcome::NotSent { why: NotSent::Answered, retry_after: Some(Duration::from_secs(600)) }).await;

    let cancelled = rig.ask(&format!("{}/cancel", status_url(&accepted)), "").await.json();

    let mut states: Vec<_> = cancelled["deliveries"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    states.sort_unstable();
    assert_eq!((states, cancelled["status"].as_str()), (vec!["accepted", "cancelled"], Some("partially_failed")));
}

async fn a_message_is_sent_at_another_time_while_it_was_never_called(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", &HELLO.replacen('{', r#"{"send_in": "1h", "#, 1)).await.json();
    let first = accepted["send_at"].as_str().unwrap().parse::<Timestamp>().unwrap();
    let later = first.plus(Duration::from_secs(5 * 86_400)).to_string();

    let moved = rig.patch(&status_url(&accepted), &json!({"send_at": later}).to_string()).await.json();

    assert_eq!(
        (moved["send_at"].as_str(), moved["status"].as_str(), moved["version"].as_i64()),
        (Some(later.as_str()), Some("scheduled"), Some(2))
    );
    let expires = first.plus(Duration::from_secs(6 * 86_400)).to_string();
    assert_eq!(moved["expires_at"].as_str(), Some(expires.as_str()), "the usual deadline moves along");
    let again = rig.post("k", &HELLO.replacen('{', r#"{"send_in": "1h", "#, 1)).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), (Some("true"), accepted.clone()), "a replay repeats the first answer");

    let now = rig.patch("/v1/notifications/by-key?idempotency_key=k", r#"{"send_at": null}"#).await.json();
    assert_eq!((now["status"].as_str(), now["deliveries"][0]["state"].as_str()), (Some("processing"), Some("queued")));
    assert_eq!(Worker(&rig).claim().await.len(), 1);
    let (status, code, _) = rig.patch(&status_url(&accepted), r#"{"send_at": null}"#).await.problem();
    assert_eq!((status, code.as_str()), (409, "already_dispatched"));
}

async fn a_time_that_cannot_be_is_refused_at_its_place(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let own = HELLO.replacen('{', r#"{"expires_in": "10m", "#, 1);
    let path = status_url(&rig.post("k", &own).await.json());
    let in_an_hour = Worker(&rig).now().plus(Duration::from_secs(3_600)).to_string();
    for (body, status, code) in [
        (json!({"send_at": in_an_hour}).to_string(), 422, "invalid_field"),
        ("{}".to_owned(), 422, "invalid_field"),
        (r#"{"send_at": "2027-03-01T09:00:00"}"#.to_owned(), 422, "invalid_field"),
        (r#"{"send_at": "2001-03-01T09:00:00Z"}"#.to_owned(), 422, "send_at_past"),
        (r#"{"send_at": null, "send_in": "5m"}"#.to_owned(), 400, "unknown_field"),
        ("{".to_owned(), 400, "invalid_json"),
    ] {
        let refused = rig.patch(&path, &body).await;
        assert_eq!((refused.problem().0, refused.code().as_str()), (status, code), "{body}: {}", refused.text());
        let is_named =
            refused.json()["errors"][0]["pointer"].as_str().is_some_and(|pointer| pointer.starts_with("/send_") || code == "invalid_json");
        assert!(is_named, "{}", refused.text());
    }
    assert_eq!(rig.get(&path).await.json()["version"], 1);
}

async fn a_version_that_has_passed_is_told_and_changes_nothing(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let path = status_url(&rig.post("k", HELLO).await.json());
    let at = |seconds| json!({"send_at": Worker(&rig).now().plus(Duration::from_secs(seconds)).to_string()}).to_string();
    let etag = rig.get(&path).await.header("etag").unwrap().to_owned();
    let moved = rig.ask_as(&rig.key, "PATCH", &path, &at(600), Some(&etag)).await;
    assert_eq!((moved.status, moved.header("etag")), (200, Some("\"2\"")));
    for stale in [etag.as_str(), "1", "W/\"1\"", "\"3\""] {
        let (status, code, _) = rig.ask_as(&rig.key, "PATCH", &path, &at(700), Some(stale)).await.problem();
        assert_eq!((status, code.as_str()), (412, "version_conflict"), "{stale}");
    }
    for wrong in ["yesterday", "\"1\", \"2\"", "", "-1"] {
        assert_eq!(rig.ask_as(&rig.key, "PATCH", &path, &at(700), Some(wrong)).await.problem().0, 422, "{wrong}");
    }
    assert_eq!(rig.ask_as(&rig.key, "PATCH", &path, &at(700), Some("*")).await.status, 200);
}

async fn acts_need_their_scope_and_see_their_own_mode_and_tenant_alone(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await.json();
    let (sends, reads, operates) =
        (rig.key("live", &["send"]).await, rig.key("live", &["read", "pii"]).await, rig.key("live", &["ops"]).await);
    let (cancel, resend, resolve) = (
        format!("{}/cancel", status_url(&accepted)),
        format!("{}/resend", delivery(&accepted)),
        format!("{}/resolve", delivery(&accepted)),
    );
    for (key, method, path, scope) in [
        (&reads, "POST", cancel.as_str(), "scope send"),
        (&reads, "PATCH", &status_url(&accepted), "scope send"),
        (&operates, "PATCH", &status_url(&accepted), "scope send"),
        (&sends, "POST", &resend, "scope ops"),
        (&sends, "POST", &resolve, "scope ops"),
        (&sends, "POST", "/v1/dead-letters/replay", "scope ops"),
        (&sends, "POST", "/v1/dead-letters/discard", "scope ops"),
    ] {
        let (status, code, detail) = rig.ask_as(key, method, path, "{}", None).await.problem();
        assert_eq!((status, code.as_str(), detail.ends_with(scope)), (403, "scope_missing", true), "{method} {path}: {detail}");
    }
    assert_eq!(rig.get_as(&sends, "/v1/dead-letters").await.problem().0, 403);
    let rehearses = rig.key("test", &["send", "ops", "read"]).await;
    for (path, body) in [
        (&cancel, ""),
        (&resend, r#"{"reason": "x"}"#),
        (&resolve, r#"{"as": "sent", "reason": "x"}"#),
        (&"/v1/deliveries/nonsense/resend".to_owned(), r#"{"reason": "x"}"#),
        (&"/v1/notifications/by-key/cancel?idempotency_key=k".to_owned(), ""),
    ] {
        assert_eq!(rig.ask_as(&rehearses, "POST", path, body, None).await.code(), "not_found", "{path}");
    }
    let cancelled = rig.ask_as(&operates, "POST", &cancel, "", None).await.json();
    assert_eq!(cancelled["deliveries"][0]["reason"], "cancelled_by_operator");
    assert_eq!(cancelled["deliveries"][0]["to"], "A***@example.com", "without pii it is masked here too");
}

async fn an_operator_settles_a_call_that_nobody_answered_for(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let worker = Worker(&rig);
    let (one, _) = worker.carried("one", Outcome::Ambiguous).await;
    let (two, _) = worker.carried("two", Outcome::Ambiguous).await;
    let cancel = rig.ask(&format!("{}/cancel", status_url(&one)), "").await.problem();
    assert_eq!(cancel.1, "already_dispatched");
    let (sent, not_sent) =
        (r#"{"as": "sent", "reason": "the relay has it"}"#, r#"{"as": "not_sent", "reason": "the relay knows nothing"}"#);
    for _ in 0..2 {
        let settled = rig.ask(&format!("{}/resolve", delivery(&one)), sent).await.json();
        assert_eq!(
            (settled["state"].as_str(), settled["certainty"].as_str(), settled["unresolved"].as_i64()),
            (Some("accepted"), Some("confirmed"), Some(0))
        );
    }
    let (status, code, _) = rig.ask(&format!("{}/resolve", delivery(&one)), not_sent).await.problem();
    assert_eq!((status, code.as_str()), (409, "version_conflict"));
    let back = rig.ask(&format!("{}/resolve", delivery(&two)), not_sent).await.json();
    assert_eq!((back["state"].as_str(), back["generation"].as_i64(), back["open"].as_bool()), (Some("retry_wait"), Some(1), Some(true)));
    assert_eq!(worker.claim().await.len(), 1, "it is due at once");
    let running = rig.ask(&format!("{}/resolve", delivery(&two)), sent).await.problem();
    assert_eq!((running.0, running.1.as_str()), (409, "outcome_unresolved"));
}
