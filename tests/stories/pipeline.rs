//! A message's way through the outbox, seen from outside: over HTTP, and in the ledger of a scripted relay.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidings_tests::client::{email, of_category};
use tidings_tests::on_both_databases;
use tidings_tests::process::Launch;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

const CATEGORIES: &str = "[categories.login-code]\nclass = \"critical\"\n[categories.newsletter]\nclass = \"bulk\"\n[categories.receipt]\n";

on_both_databases!(
    a_message_reaches_the_relay_once_and_its_key_tells_so,
    a_greylisted_message_waits_and_is_tried_again,
    a_refused_recipient_ends_at_the_first_attempt,
    a_silent_relay_gets_what_the_class_says,
    a_code_that_finds_nobody_expires_and_is_not_sent_late,
    a_message_for_later_survives_a_restart_and_goes_out_when_due,
    a_weekend_of_downtime_sends_what_still_makes_sense,
    a_stop_leaves_nothing_unsent_in_doubt,
    a_wrong_password_parks_the_account_and_uses_no_attempt,
    a_code_is_not_late_because_of_newsletters,
    copies_ride_in_the_envelope_and_blind_ones_in_no_header,
    a_throttling_relay_is_paced_and_nothing_fails,
);

async fn with_relay(stage: &Stage, behaviour: Behaviour) -> (ScriptedSmtp, Launch) {
    let peer = ScriptedSmtp::start(behaviour).await;
    let launch = stage.launch(BINARY).config(CATEGORIES).config(&smtp_account("relay", &peer));
    (peer, launch)
}

fn delivery_id(status: &Value) -> &str {
    status["deliveries"][0]["id"].as_str().expect("a delivery has an id")
}

fn outcomes(status: &Value) -> Vec<&str> {
    let attempts = status["deliveries"][0]["attempts"].as_array().expect("attempts are a list");
    attempts.iter().filter_map(|attempt| attempt["outcome"].as_str()).collect()
}

async fn a_message_reaches_the_relay_once_and_its_key_tells_so(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();

    let first = client.post("order-1", &email("Ada Lovelace <ada@example.com>", "Ihre Bestellung ist da: Grüße")).await;
    assert_eq!((first.status, first.json()["status"].as_str()), (202, Some("processing")));
    let closed = client.until_closed("order-1", PATIENCE).await;
    let again = client.post("order-1", &email("Ada Lovelace <ada@example.com>", "Ihre Bestellung ist da: Grüße")).await;
    assert_eq!((again.status, &again.text, again.header("idempotent-replayed")), (202, &first.text, Some("true")));
    let other = client.post("order-1", &email("Ada Lovelace <ada@example.com>", "something else")).await;
    assert_eq!((other.status, other.json()["code"].as_str()), (422, Some("idempotency_key_reused")));
    assert_eq!(other.json()["existing"]["id"], first.json()["id"]);

    let delivery = &closed["deliveries"][0];
    assert_eq!((closed["status"].as_str(), delivery["certainty"].as_str()), (Some("accepted"), Some("unconfirmed")));
    assert_eq!(outcomes(&closed), ["accepted"]);
    assert_eq!(delivery["account"], "relay");
    let ledger = peer.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (ledger[0].sender.as_str(), ledger[0].recipients.as_slice()),
        ("shop@example.com", ["ada@example.com".to_owned()].as_slice())
    );
    let text = String::from_utf8(ledger[0].message.clone()).expect("the message is ASCII");
    assert!(text.contains(&format!("X-Delivery-Id: {}_1", delivery_id(&closed))), "{text}");
    assert!(text.contains(&format!("Message-ID: <{}@example.com>", delivery_id(&closed))), "{text}");
    assert!(!gateway.kill().contains("ada@example.com"), "an address reached the log");
}

async fn a_greylisted_message_waits_and_is_tried_again(stage: Stage) {
    let stage = stage.faster(120);
    let greylisted = Behaviour::default().once(Phase::Rcpt, Act::reply("450 4.2.0 Greylisted, try again in 5 minutes"));
    let (peer, launch) = with_relay(&stage, greylisted).await;
    let gateway = launch.start();
    let client = gateway.client();
    let posted = Instant::now();
    assert_eq!(client.post("grey", &email("ada@example.com", "Hello")).await.status, 202);
    let status = client.until_closed("grey", PATIENCE).await;
    assert_eq!((status["status"].as_str(), outcomes(&status)), (Some("accepted"), vec!["not_sent", "accepted"]));
    assert!(posted.elapsed() >= Duration::from_millis(2_500), "not before five minutes");
    assert_eq!(peer.taken(), 1);
}

async fn a_refused_recipient_ends_at_the_first_attempt(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default().recipient("gone@example.com", "550 5.1.1 User unknown")).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("gone", &email("gone@example.com", "Hello")).await;
    let status = client.until_closed("gone", PATIENCE).await;
    let delivery = &status["deliveries"][0];
    assert_eq!((status["status"].as_str(), delivery["reason"].as_str()), (Some("failed"), Some("recipient_refused")));
    assert_eq!((delivery["attempt_count"].as_i64(), outcomes(&status)), (Some(1), vec!["recipient_refused"]));
    assert_eq!(peer.taken(), 0);
}

async fn a_silent_relay_gets_what_the_class_says(stage: Stage) {
    let stage = stage.faster(240);
    let (peer, launch) = with_relay(&stage, Behaviour::default().always(Phase::Dot, Act::Silence)).await;
    let gateway = launch.start();
    let client = gateway.client();
    for (category, sends) in [("receipt", 2), ("newsletter", 1)] {
        client.post(category, &of_category(category, "ada@example.com")).await;
        let status = client.until_closed(category, Duration::from_secs(90)).await;
        let delivery = &status["deliveries"][0];
        assert_eq!((status["status"].as_str(), delivery["reason"].as_str()), (Some("unknown"), Some("hold_over")), "{status}");
        assert_eq!(sends_of(&peer, delivery_id(&status)), sends, "{status}");
        assert_eq!(delivery["possible_duplicate"], sends == 2, "{status}");
        assert_eq!(delivery["certainty"], "unknown");
    }
}

async fn a_code_that_finds_nobody_expires_and_is_not_sent_late(stage: Stage) {
    let stage = stage.faster(120);
    let (peer, launch) = with_relay(&stage, Behaviour::default().always(Phase::Greeting, Act::reply("421 4.3.2 too busy"))).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("code", &of_category("login-code", "ada@example.com")).await;
    let status = client.until_closed("code", PATIENCE).await;
    let delivery = &status["deliveries"][0];
    assert_eq!((status["status"].as_str(), delivery["reason"].as_str()), (Some("expired"), Some("deadline")));
    // The last call may find that the code expired on its way and not begin.
    assert!(outcomes(&status).iter().all(|outcome| matches!(*outcome, "not_sent" | "not_started")), "{status}");
    assert_eq!(peer.taken(), 0);
}

async fn a_message_for_later_survives_a_restart_and_goes_out_when_due(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default()).await;
    let mut body = email("ada@example.com", "Hello later");
    body["send_in"] = json!("4s");
    let gateway = launch.start();
    let posted = Instant::now();
    let answer = gateway.client().post("later", &body).await;
    assert_eq!((answer.status, answer.json()["status"].as_str()), (202, Some("scheduled")));
    gateway.kill();

    let gateway = launch.start();
    let client = gateway.client();
    assert_eq!(client.by_key("later").await.json()["deliveries"][0]["wait_reason"], "scheduled");
    peer.until(|peer| peer.taken() == 1).await;
    let waited = posted.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(7)).contains(&waited), "sent after {waited:?}");
    assert_eq!(client.until_closed("later", PATIENCE).await["status"], "accepted");
}

async fn a_weekend_of_downtime_sends_what_still_makes_sense(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    for (key, category, due) in [("promotion", "newsletter", "20h"), ("invoice", "receipt", "20h"), ("reminder", "receipt", "71h")] {
        let mut body = of_category(category, "ada@example.com");
        body["send_in"] = json!(due);
        body["expires_in"] = json!("30d");
        assert_eq!(client.post(key, &body).await.status, 202);
    }
    gateway.kill();

    // The next start's clock is three days ahead.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
    let gateway = launch.env("TIDINGS_TIME_SCALE", &format!("2@{}", now - 72 * 3_600)).start();
    let client = gateway.client();
    for late in ["promotion", "invoice"] {
        let status = client.until_closed(late, PATIENCE).await;
        assert_eq!((status["status"].as_str(), status["deliveries"][0]["reason"].as_str()), (Some("expired"), Some("late")), "{status}");
    }
    assert_eq!(client.until_closed("reminder", PATIENCE).await["status"], "accepted");
    assert_eq!(peer.taken(), 1);
}

async fn a_stop_leaves_nothing_unsent_in_doubt(stage: Stage) {
    // The relay lets nobody past MAIL: at the stop every call is running, and none can have been taken.
    let (peer, launch) = with_relay(&stage, Behaviour::default().always(Phase::Mail, Act::Silence)).await;
    let launch = launch.env("TIDINGS__SERVER__GRACE", "1s");
    let gateway = launch.start();
    let client = gateway.client();
    for n in 0..10 {
        client.post(&format!("stop-{n}"), &email("ada@example.com", "Hello")).await;
    }
    client.until("stop-0", PATIENCE, |status| status["deliveries"][0]["state"] == "dispatching").await;
    let (ended_well, log) = gateway.terminate(Duration::from_secs(20));
    assert!(ended_well, "{log}");
    let last = log.lines().rev().find(|line| line.contains("\"stopped\"")).expect("the last line counts");
    let last: Value = serde_json::from_str(last).expect("log lines are JSON");
    assert_eq!((last["ambiguous"].as_i64(), last["open"].as_i64()), (Some(0), Some(10)), "{last}");

    peer.behave(|_| Behaviour::default());
    peer.release();
    let gateway = launch.start();
    let client = gateway.client();
    for n in 0..10 {
        let status = client.until_closed(&format!("stop-{n}"), PATIENCE).await;
        assert_eq!(
            (status["status"].as_str(), &status["deliveries"][0]["possible_duplicate"]),
            (Some("accepted"), &json!(false)),
            "{status}"
        );
        assert_eq!(sends_of(&peer, delivery_id(&status)), 1);
    }
}

async fn a_wrong_password_parks_the_account_and_uses_no_attempt(stage: Stage) {
    let stage = stage.faster(60);
    let peer = ScriptedSmtp::start(Behaviour::default().login("shop", "right", &["PLAIN"])).await;
    let account = format!("{}username = \"shop\"\npassword = {{ env = \"RELAY_PASSWORD\" }}\n", smtp_account("relay", &peer));
    let launch = stage.launch(BINARY).config(&account);
    let gateway = launch.clone().env("RELAY_PASSWORD", "wrong").start();
    let client = gateway.client();
    for n in 0..40 {
        client.post(&format!("parked-{n}"), &email("ada@example.com", "Hello")).await;
    }
    client.until("parked-0", PATIENCE, |status| outcomes(status).contains(&"credential")).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let logins = peer.verbs().iter().filter(|verb| verb.starts_with("AUTH")).count();
    assert!(logins <= 33, "{logins} log-ins: at most those in flight when the first was refused, and a try after a minute");
    let log = gateway.kill();
    assert!(!log.contains("wrong"), "a password reached the log");

    let gateway = launch.env("RELAY_PASSWORD", "right").start();
    let client = gateway.client();
    for n in 0..40 {
        let status = client.until_closed(&format!("parked-{n}"), PATIENCE).await;
        assert_eq!(status["status"], "accepted", "{status}");
    }
    assert_eq!(peer.taken(), 40);
}

async fn a_code_is_not_late_because_of_newsletters(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default().always(Phase::Dot, Act::Silence)).await;
    let gateway = launch.start();
    let client = gateway.client();
    for n in 0..60 {
        client.post(&format!("news-{n}"), &of_category("newsletter", &format!("reader{n}@example.com"))).await;
    }
    // Every slot that newsletters may have is taken, and none is answered.
    peer.until(|peer| peer.taken() >= 22).await;
    client.post("code", &of_category("login-code", "ada@example.com")).await;
    let asked = Instant::now();
    peer.until(|peer| peer.ledger().iter().any(|taken| taken.recipients == ["ada@example.com"])).await;
    assert!(asked.elapsed() < Duration::from_secs(2), "the code waited {:?}", asked.elapsed());
    assert_eq!(peer.taken(), 23, "newsletters never take more than their share");
}

async fn copies_ride_in_the_envelope_and_blind_ones_in_no_header(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default().recipient("refused@example.com", "550 5.1.1 User unknown")).await;
    let gateway = launch.start();
    let client = gateway.client();
    let mut body = email("ada@example.com", "Hello");
    body["email"]["cc"] = json!(["Copy <copy@example.com>", "refused@example.com"]);
    body["email"]["bcc"] = json!(["blind@example.com", "copy@example.com"]);
    client.post("copies", &body).await;
    let status = client.until_closed("copies", PATIENCE).await;
    assert_eq!(status["status"], "accepted");
    let ledger = peer.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0].recipients, ["ada@example.com", "copy@example.com", "blind@example.com"]);
    let text = String::from_utf8_lossy(&ledger[0].message).into_owned();
    assert!(!text.contains("blind@example.com") && !text.to_lowercase().contains("\nbcc:"), "{text}");
    let copies = status["deliveries"][0]["copies"].to_string();
    assert!(copies.contains("550 5.1.1"), "{status}");
}

async fn a_throttling_relay_is_paced_and_nothing_fails(stage: Stage) {
    let stage = stage.faster(20);
    let throttling = (0..5).fold(Behaviour::default(), |behaviour, _| {
        behaviour.once(Phase::Mail, Act::reply("454 Throttling failure: Maximum sending rate exceeded."))
    });
    let (peer, launch) = with_relay(&stage, throttling).await;
    let gateway = launch.start();
    let client = gateway.client();
    for n in 0..30 {
        client.post(&format!("paced-{n}"), &email("ada@example.com", "Hello")).await;
    }
    for n in 0..30 {
        let status = client.until_closed(&format!("paced-{n}"), PATIENCE).await;
        assert_eq!(status["status"], "accepted", "{status}");
    }
    assert_eq!(peer.taken(), 30);
}
