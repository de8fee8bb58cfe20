//! Stories of sending again, and of the dead letters that wait for it, as a caller sees them.

use serde_json::{Value, json};

use super::HELLO;
use super::acts::{TAKEN, Worker, delivery};
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    what_was_never_taken_is_sent_again_and_what_was_taken_by_name_only,
    faults_of_a_resend_are_named_all_at_once,
    dead_letters_are_listed_page_by_page_with_what_is_needed_to_judge_them,
    dead_letters_are_replayed_and_discarded_with_a_result_for_each,
);

const IMPATIENT: &str = "[retry.transactional]\nattempts = 1\n";

async fn what_was_never_taken_is_sent_again_and_what_was_taken_by_name_only(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let worker = Worker(&rig);
    let expired = worker.expired("expired").await;
    let path = format!("{}/resend", delivery(&expired));
    let open = rig.ask(&path, r#"{"reason": "the relay was down", "expires_in": "2h"}"#).await;
    assert_eq!((open.status, open.json()["state"].as_str(), open.json()["generation"].as_i64()), (200, Some("queued"), Some(1)));
    assert_eq!((open.json()["notification_id"].clone(), open.json()["idempotency_key"].as_str()), (expired["id"].clone(), Some("expired")));
    let claimed = worker.claim().await.remove(0);
    let running = rig.ask(&path, r#"{"reason": "again", "generation": 2}"#).await.problem();
    assert_eq!((running.0, running.1.as_str()), (409, "outcome_unresolved"));
    worker.finish(&claimed, TAKEN).await;

    let unnamed = rig.ask(&path, r#"{"reason": "it did not arrive"}"#).await;
    assert_eq!((unnamed.problem().0, unnamed.json()["errors"][0]["pointer"].as_str()), (422, Some("/generation")));
    assert_eq!(rig.ask(&path, r#"{"reason": "x", "generation": 3}"#).await.problem().1, "version_conflict");
    let second = rig.ask(&path, r#"{"reason": "it did not arrive", "generation": 2}"#).await.json();
    assert_eq!(
        (second["state"].as_str(), second["generation"].as_i64(), second["possible_duplicate"].as_bool()),
        (Some("queued"), Some(2), Some(true))
    );
    let (id, message_id) = (second["id"].as_str().unwrap(), second["message_id"].as_str().unwrap());
    assert_eq!(message_id, format!("{id}_2@shop.example.com"));
    let again = rig.ask(&path, r#"{"reason": "it did not arrive", "generation": 2}"#).await.json();
    assert_eq!(again["version"], second["version"], "asked for twice, it is sent once");
    assert_eq!(worker.claim().await.len(), 1);
}

async fn faults_of_a_resend_are_named_all_at_once(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await.json();
    let refused = rig.ask(&format!("{}/resend", delivery(&accepted)), r#"{"generation": "2", "expires_in": "soon", "when": 1}"#).await;
    let pointers: Vec<_> =
        refused.json()["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        (refused.problem().0, pointers),
        (400, vec!["/when".to_owned(), "/generation".into(), "/expires_in".into(), "/reason".into()])
    );
}

async fn dead_letters_are_listed_page_by_page_with_what_is_needed_to_judge_them(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, IMPATIENT).await;
    let mut ids = Vec::new();
    for key in ["one", "two", "three"] {
        let dead = Worker(&rig).dead(key).await;
        ids.insert(0, dead["deliveries"][0]["id"].as_str().unwrap().to_owned());
    }
    let whole = rig.get("/v1/dead-letters").await.json();
    let listed =
        |page: &Value| page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!((listed(&whole), &whole["next"]), (ids.clone(), &Value::Null));
    let item = &whole["items"][0];
    assert_eq!(
        (item["idempotency_key"].as_str(), item["reason"].as_str(), item["content"].as_str()),
        (Some("three"), Some("attempts_exhausted"), Some("kept"))
    );
    assert_eq!(
        (item["attempts"][0]["outcome"].as_str(), item["replays"].as_i64(), item["category"].as_str()),
        (Some("not_sent"), Some(0), Some("default"))
    );
    assert!(item["first_attempt_at"].is_string() && item["replayable_until"].is_string() && item["notification_id"].is_string());

    let first = rig.get("/v1/dead-letters?limit=2&state=dead").await.json();
    assert_eq!(listed(&first), ids[..2]);
    let next = first["next"].as_str().unwrap();
    let second = rig.get(&format!("/v1/dead-letters?limit=2&state=dead&after={next}")).await.json();
    assert_eq!((listed(&second), &second["next"]), (ids[2..].to_vec(), &Value::Null));
    let other = rig.key("test", &["ops"]).await;
    for answer in [
        rig.get(&format!("/v1/dead-letters?state=unknown&after={next}")).await,
        rig.get(&format!("/v1/dead-letters?state=dead&after={next}x")).await,
        rig.get_as(&other, &format!("/v1/dead-letters?limit=2&state=dead&after={next}")).await,
    ] {
        assert_eq!((answer.problem().0, answer.code().as_str()), (400, "bad_cursor"));
    }
    assert_eq!(rig.get("/v1/dead-letters?until=2001-01-01T00:00:00Z").await.json()["items"], json!([]));
    assert_eq!(
        rig.get("/v1/dead-letters?category=default&class=transactional&channel=email&reason=attempts_exhausted").await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(rig.get_as(&other, "/v1/dead-letters").await.json()["items"], json!([]));
    let blind = rig.key("live", &["ops"]).await;
    assert_eq!(rig.get_as(&blind, "/v1/dead-letters").await.json()["items"][0]["to"], "A***@example.com");
    for wrong in ["state=failed", "state=x", "limit=0", "since=now", "colour=red"] {
        assert!(rig.get(&format!("/v1/dead-letters?{wrong}")).await.status >= 400, "{wrong}");
    }
}

async fn dead_letters_are_replayed_and_discarded_with_a_result_for_each(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, IMPATIENT).await;
    let worker = Worker(&rig);
    let mut ids = Vec::new();
    for key in ["one", "two", "three"] {
        ids.push(worker.dead(key).await["deliveries"][0]["id"].as_str().unwrap().to_owned());
    }
    let (taken, _) = worker.carried("taken", TAKEN).await;
    let taken = taken["deliveries"][0]["id"].as_str().unwrap();
    let stranger = "dlv_0192f0c1e2d37000800000000000a001";

    let body = json!({"ids": [ids[0], taken, stranger], "reason": "the relay is back", "expires_in": "2h"}).to_string();
    let replayed = rig.ask("/v1/dead-letters/replay", &body).await.json();

    let results = replayed["results"].as_array().unwrap();
    assert_eq!(
        (results[0]["id"].as_str(), results[0]["status"].as_i64(), results[0]["state"].as_str()),
        (Some(ids[0].as_str()), Some(200), Some("queued"))
    );
    assert_eq!((results[1]["status"].as_i64(), results[1]["code"].as_str()), (Some(409), Some("outcome_unresolved")));
    assert_eq!((results[2]["status"].as_i64(), results[2]["problem"]["code"].as_str()), (Some(404), Some("not_found")));
    let letters = rig.get("/v1/dead-letters").await.json();
    assert_eq!(letters["items"].as_array().unwrap().len(), 2);

    let discarded = rig.ask("/v1/dead-letters/discard", &json!({"ids": [ids[1]], "reason": "nobody needs it"}).to_string()).await.json();
    assert_eq!((discarded["results"][0]["status"].as_i64(), discarded["results"][0]["state"].as_str()), (Some(200), Some("dead")));
    let rest =
        rig.ask("/v1/dead-letters/replay", r#"{"filter": {"state": "dead", "class": "transactional"}, "reason": "the rest"}"#).await.json();
    assert_eq!((rest["results"].as_array().unwrap().len(), rest["more"].as_bool()), (1, Some(false)));
    assert_eq!(rest["results"][0]["id"].as_str(), Some(ids[2].as_str()));
    assert_eq!(rig.get("/v1/dead-letters").await.json()["items"], json!([]));
    assert_eq!(worker.claim().await.len(), 2);
    assert_eq!(rig.ask("/v1/dead-letters/replay", r#"{"filter": {}}"#).await.problem().0, 422, "a replay says why");
}
