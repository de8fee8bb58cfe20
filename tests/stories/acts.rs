//! Acts on a running gateway, on both databases: the provider's ledger is the oracle of what was sent.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
const ONE_TRY: &str = "[retry.transactional]\nattempts = 1\n";

on_both_databases!(
    a_cancelled_message_is_never_sent_and_one_that_is_moved_up_is_sent_at_once,
    a_dead_letter_is_replayed_when_its_cause_is_mended,
    a_message_that_was_taken_is_sent_again_under_its_next_generation,
    a_call_that_runs_is_the_last_one_of_a_cancelled_message,
    a_crash_around_an_act_leaves_it_done_or_not_done,
);

fn delivery_id(status: &Value) -> String {
    status["deliveries"][0]["id"].as_str().expect("a delivery has an id").to_owned()
}

fn state(status: &Value) -> &str {
    status["deliveries"][0]["state"].as_str().unwrap_or_default()
}

/// S-065, S-064: what waits for its time can be stopped, and can be told not to wait.
async fn a_cancelled_message_is_never_sent_and_one_that_is_moved_up_is_sent_at_once(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let mut later = email("ada@example.com", "later");
    later["send_in"] = json!("1h");
    for key in ["stopped", "moved"] {
        assert_eq!(client.post(key, &later).await.status, 202);
    }
    let by_key = |key: &str, act: &str| format!("/v1/notifications/by-key{act}?idempotency_key={key}");

    let cancelled = client.call("POST", &by_key("stopped", "/cancel"), &json!({})).await;
    let moved = client.call("PATCH", &by_key("moved", ""), &json!({"send_at": null})).await;

    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")), "{}", cancelled.text);
    assert_eq!(moved.status, 200, "{}", moved.text);
    let sent = client.until_closed("moved", PATIENCE).await;
    assert_eq!((state(&sent), sends_of(&peer, &delivery_id(&sent))), ("accepted", 1));
    assert_eq!(sends_of(&peer, &delivery_id(&cancelled.json())), 0);
}

/// S-060, S-061: the same delivery and the same Message-ID, when the relay works again.
async fn a_dead_letter_is_replayed_when_its_cause_is_mended(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().once(Phase::Rcpt, Act::reply("451 4.3.0 Try later"))).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config(ONE_TRY).start();
    let client = gateway.client();
    client.post("k", &email("ada@example.com", "hello")).await;
    let dead = client.until_closed("k", PATIENCE).await;
    assert_eq!((state(&dead), dead["deliveries"][0]["reason"].as_str()), ("dead", Some("attempts_exhausted")), "{dead}");
    let id = delivery_id(&dead);
    let letters = client.get("/v1/dead-letters").await.json();
    assert_eq!(letters["items"][0]["id"].as_str(), Some(id.as_str()), "{letters}");

    let replayed = client
        .call("POST", "/v1/dead-letters/replay", &json!({"filter": {"reason": "attempts_exhausted"}, "reason": "mended"}))
        .await
        .json();

    assert_eq!(
        (replayed["results"][0]["status"].as_i64(), replayed["results"][0]["id"].as_str()),
        (Some(200), Some(id.as_str())),
        "{replayed}"
    );
    let sent = client.until("k", PATIENCE, |status| state(status) == "accepted").await;
    assert_eq!(sends_of(&peer, &id), 1);
    assert_eq!(sent["deliveries"][0]["message_id"], dead["deliveries"][0]["message_id"]);
    assert_eq!(
        (sent["deliveries"][0]["attempt_count"].as_i64(), sent["deliveries"][0]["possible_duplicate"].as_bool()),
        (Some(2), Some(false))
    );
}

/// DESIGN 6: an operator's resend is another message to whoever receives it, and asking twice sends once.
async fn a_message_that_was_taken_is_sent_again_under_its_next_generation(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    client.post("k", &email("ada@example.com", "hello")).await;
    let id = delivery_id(&client.until_closed("k", PATIENCE).await);
    let again = json!({"generation": 2, "reason": "it did not arrive"});

    for _ in 0..3 {
        let asked = client.call("POST", &format!("/v1/deliveries/{id}/resend"), &again).await;
        assert_eq!(asked.status, 200, "{}", asked.text);
    }

    let sent = client.until("k", PATIENCE, |status| state(status) == "accepted" && status["deliveries"][0]["generation"] == 2).await;
    assert_eq!(sends_of(&peer, &id), 2);
    let named = |message_id: &str| {
        let header = format!("<{message_id}@example.com>");
        peer.ledger().iter().filter(|taken| String::from_utf8_lossy(&taken.message).contains(&header)).count()
    };
    assert_eq!((named(&id), named(&format!("{id}_2"))), (1, 1));
    assert_eq!(
        (sent["deliveries"][0]["possible_duplicate"].as_bool(), sent["deliveries"][0]["duplicate_sent"].as_bool()),
        (Some(true), Some(true))
    );
}

/// S-065: the relay puts the message off for hours; a message that was cancelled meanwhile does not wait for them.
async fn a_call_that_runs_is_the_last_one_of_a_cancelled_message(stage: Stage) {
    let slow = Behaviour::default().once(Phase::Rcpt, Act::Silence).always(Phase::Data, Act::reply("451 4.3.0 Try later"));
    let peer = ScriptedSmtp::start(slow).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    client.post("k", &email("ada@example.com", "hello")).await;
    client.until("k", PATIENCE, |status| state(status) == "dispatching").await;

    let late = client.call("POST", "/v1/notifications/by-key/cancel?idempotency_key=k", &json!({})).await;

    assert_eq!((late.status, late.json()["code"].as_str()), (409, Some("already_dispatched")), "{}", late.text);
    let ended = client.until("k", Duration::from_secs(20), |status| {
        // The silence may begin only now.
        peer.release();
        status["open"] == false
    });
    let ended = ended.await;
    assert_eq!((state(&ended), ended["deliveries"][0]["reason"].as_str()), ("cancelled", Some("cancelled_by_request")), "{ended}");
    assert_eq!(ended["deliveries"][0]["attempt_count"], 1);
}

/// S-238: around the commit of an act there is no state in between, and asking again is harmless.
async fn a_crash_around_an_act_leaves_it_done_or_not_done(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer));
    let (boundaries, mut generation) = (["act.before_commit", "act.after_commit"], 1);
    let id = {
        let gateway = launch.start();
        let client = gateway.client();
        client.post("k", &email("ada@example.com", "hello")).await;
        delivery_id(&client.until_closed("k", PATIENCE).await)
    };
    for boundary in boundaries {
        generation += 1;
        let path = format!("/v1/deliveries/{id}/resend");
        let again = json!({"generation": generation, "reason": "it did not arrive"});
        let mut doomed = launch.clone().env("TIDINGS_FAIL_POINT", boundary).start();
        let client = Client::new(&doomed.url().expect("it is ready"), &doomed.api_key());
        let _ = client.try_call("POST", &path, &again).await;
        assert!(doomed.wait(Duration::from_secs(20)).is_some(), "{boundary} was not reached:\n{}", doomed.log());

        let gateway = launch.start();
        let client = gateway.client();
        if boundary == "act.before_commit" {
            let status = client.by_key("k").await.json();
            assert_eq!((state(&status), status["deliveries"][0]["generation"].as_i64()), ("accepted", Some(generation - 1)));
        }
        assert_eq!(client.call("POST", &path, &again).await.status, 200, "{boundary}");
        let is_there = |status: &Value| state(status) == "accepted" && status["deliveries"][0]["generation"] == generation;
        client.until("k", PATIENCE, is_there).await;
        assert_eq!(sends_of(&peer, &id), usize::try_from(generation).expect("a small number"), "{boundary}");
    }
}
