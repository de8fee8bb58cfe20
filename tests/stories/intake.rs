//! What a caller is promised who goes away, comes back after the end, or comes back when the configuration has changed.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
const CALLERS: usize = 20;

on_both_databases!(
    a_caller_who_hangs_up_after_the_request_has_sent_it_once,
    a_caller_who_hangs_up_within_the_body_has_sent_nothing,
    a_caller_who_breaks_off_has_sent_all_of_it_or_nothing,
    a_key_gets_its_first_answer_however_the_message_ended,
    a_message_keeps_the_class_that_it_was_accepted_with,
    a_batch_is_sent_once_however_often_it_is_repeated,
);

/// The bytes of a POST under a key.
fn request(gateway: &Gateway, key: &str, body: &Value) -> Vec<u8> {
    let (authorization, body) = (gateway.api_key(), body.to_string());
    let head = format!(
        "POST /v1/notifications HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {authorization}\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    format!("{head}{body}").into_bytes()
}

async fn connect(gateway: &Gateway) -> TcpStream {
    let url = gateway.url().expect("it is ready");
    TcpStream::connect(url.trim_start_matches("http://")).await.expect("it listens")
}

/// S-013: the request is whole, and nobody waits for its answer.
async fn a_caller_who_hangs_up_after_the_request_has_sent_it_once(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    for n in 0..CALLERS {
        let mut stream = connect(&gateway).await;
        stream
            .write_all(&request(&gateway, &format!("gone-{n}"), &email("ada@example.com", &format!("message {n}"))))
            .await
            .expect("it reads");
        drop(stream);
    }
    for n in 0..CALLERS {
        let key = format!("gone-{n}");
        let status = client.until_closed(&key, PATIENCE).await;
        let id = status["deliveries"][0]["id"].as_str().expect("a delivery has an id");
        assert_eq!((status["status"].as_str(), sends_of(&peer, id)), (Some("accepted"), 1), "{status}");
        let again = client.post(&key, &email("ada@example.com", &format!("message {n}"))).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (202, Some("true")), "{}", again.text);
    }
    assert_eq!(peer.taken(), CALLERS as u64);
}

/// S-013, S-008: half a request is none, and does not occupy its key.
async fn a_caller_who_hangs_up_within_the_body_has_sent_nothing(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let lost = email("lost@example.com", "This one breaks off");
    for n in 0..CALLERS {
        let bytes = request(&gateway, &format!("half-{n}"), &lost);
        let mut stream = connect(&gateway).await;
        // Anything from the whole head to all but the last byte.
        stream.write_all(&bytes[..bytes.len() - 1 - n * 2]).await.expect("it reads");
        drop(stream);
    }
    for n in 0..CALLERS {
        let key = format!("half-{n}");
        assert_eq!(client.by_key(&key).await.status, 404);
        let other = client.post(&key, &email("ada@example.com", "This one is whole")).await;
        assert_eq!((other.status, other.header("idempotent-replayed")), (202, None), "{}", other.text);
        assert_eq!(client.until_closed(&key, PATIENCE).await["status"], "accepted");
    }
    assert!(peer.ledger().iter().all(|taken| taken.recipients == ["ada@example.com"]));
    assert_eq!(peer.taken(), CALLERS as u64);
}

/// S-013: a connection that is reset may take the request with it, but never half of it; the key tells, and repeating
/// it converges.
async fn a_caller_who_breaks_off_has_sent_all_of_it_or_nothing(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let body = json!({"to": ["ada@example.com", "bob@example.com"], "email": {"subject": "Hello", "text": "It works."}});
    for n in 0..CALLERS {
        let mut stream = connect(&gateway).await;
        stream.set_zero_linger().expect("a socket option");
        stream.write_all(&request(&gateway, &format!("reset-{n}"), &body)).await.expect("it reads");
        // From before it was read to after it was committed.
        tokio::time::sleep(Duration::from_micros(250 * n as u64)).await;
        drop(stream);
    }
    for n in 0..CALLERS {
        let key = format!("reset-{n}");
        assert_eq!(client.post(&key, &body).await.status, 202);
        let status = client.until_closed(&key, PATIENCE).await;
        let deliveries = status["deliveries"].as_array().expect("deliveries are a list");
        let sends: Vec<_> = deliveries.iter().map(|delivery| sends_of(&peer, delivery["id"].as_str().unwrap_or_default())).collect();
        assert_eq!((status["status"].as_str(), sends), (Some("accepted"), vec![1, 1]), "{status}");
    }
    assert_eq!(peer.taken(), 2 * CALLERS as u64);
    assert_eq!(client.get("/readyz").await.status, 200);
}

/// S-007: live state is never mixed into a replay, whatever became of the message, and a restart changes nothing.
async fn a_key_gets_its_first_answer_however_the_message_ended(stage: Stage) {
    let stage = stage.faster(60);
    let peer = ScriptedSmtp::start(
        Behaviour::default().recipient("gone@example.com", "550 5.1.1 User unknown").recipient("busy@example.com", "451 4.3.0 Try later"),
    )
    .await;
    let rules = "[categories.newsletter]\nclass = \"bulk\"\n[categories.receipt]\n[ambiguity.bulk]\nhold = \"1m\"\n[retry.transactional]\nattempts = 1";
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config(rules);
    let gateway = launch.start();
    let client = gateway.client();
    let of = |category: &str, to: &str, expires_in: &str| {
        let mut body = email(to, "Hello");
        body["category"] = json!(category);
        body["expires_in"] = json!(expires_in);
        body
    };
    let stories = [
        ("accepted", of("receipt", "ada@example.com", "1h")),
        ("failed", of("receipt", "gone@example.com", "1h")),
        ("dead", of("receipt", "busy@example.com", "1h")),
        ("expired", of("newsletter", "busy@example.com", "40s")),
        ("unknown", of("newsletter", "ada@example.com", "1h")),
    ];
    let mut first = Vec::new();
    for (end, body) in &stories {
        if *end == "unknown" {
            peer.behave(|behaviour| behaviour.once(Phase::Dot, Act::Drop));
        }
        let answer = client.post(end, body).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (202, None), "{}", answer.text);
        let status = client.until_closed(end, PATIENCE).await;
        assert_eq!(status["deliveries"][0]["state"], *end, "{status}");
        first.push(answer.text);
    }
    let taken = peer.taken();
    replays_are_first(&client, &stories, &first).await;
    gateway.kill();
    let gateway = launch.start();
    replays_are_first(&gateway.client(), &stories, &first).await;
    assert_eq!(peer.taken(), taken, "a replay sends nothing");
}

async fn replays_are_first(client: &Client, stories: &[(&str, Value)], first: &[String]) {
    for ((end, body), first) in stories.iter().zip(first) {
        let again = client.post(end, body).await;
        assert_eq!((again.status, again.header("idempotent-replayed"), &again.text), (202, Some("true"), first), "{end}");
        assert_eq!(client.by_key(end).await.json()["deliveries"][0]["state"], *end);
    }
}

/// S-080: the class is a fact of the message, not of the configuration of the day.
async fn a_message_keeps_the_class_that_it_was_accepted_with(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer));
    let configured = |class: &str| launch.clone().config(&format!("[categories.digest]\nclass = \"{class}\""));
    let mut later = email("ada@example.com", "Hello");
    later["category"] = json!("digest");
    later["send_in"] = json!("3s");
    let mut now = later.clone();
    now.as_object_mut().expect("a body is an object").remove("send_in");

    let gateway = configured("bulk").start();
    let client = gateway.client();
    let first = client.post("before", &later).await;
    assert_eq!((first.status, first.json()["class"].as_str()), (202, Some("bulk")), "{}", first.text);
    gateway.kill();

    let gateway = configured("critical").start();
    let client = gateway.client();
    let again = client.post("before", &later).await;
    assert_eq!((again.header("idempotent-replayed"), &again.text), (Some("true"), &first.text));
    assert_eq!(client.post("after", &now).await.json()["class"], "critical");
    for (key, class) in [("after", "critical"), ("before", "bulk")] {
        let status = client.until_closed(key, PATIENCE).await;
        assert_eq!((status["status"].as_str(), status["class"].as_str()), (Some("accepted"), Some(class)), "{status}");
    }
}

/// S-194: the connection breaks, the application repeats the batch, and one of its items alone.
async fn a_batch_is_sent_once_however_often_it_is_repeated(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let item = |n: usize| {
        let mut item = email("ada@example.com", &format!("message {n}"));
        item["idempotency_key"] = json!(format!("item-{n}"));
        item
    };
    let batch = json!({"notifications": (0..CALLERS).map(item).collect::<Vec<Value>>()});
    for _ in 0..3 {
        let answer = client.post_batch(&batch).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert!(answer.json()["results"].as_array().expect("results").iter().all(|result| result["status"] == 202), "{}", answer.text);
    }
    let alone = client.post("item-0", &email("ada@example.com", "message 0")).await;
    assert_eq!((alone.status, alone.header("idempotent-replayed")), (202, Some("true")));
    for n in 0..CALLERS {
        assert_eq!(client.until_closed(&format!("item-{n}"), PATIENCE).await["status"], "accepted");
    }
    assert_eq!(peer.taken(), CALLERS as u64);
}
