//! Several processes on one PostgreSQL: every message goes out once, whoever takes it, also while some are killed.

use std::time::Duration;

use tidings_tests::client::{Client, email};
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const MESSAGES: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_send_each_message_once_and_a_key_means_the_same_on_all() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer)).env("TIDINGS__STORE__MAX_CONNECTIONS", "6");
    let gateways: Vec<_> = (0..4).map(|_| launch.spawn()).collect();
    let mut clients = Vec::new();
    for gateway in &gateways {
        let ready = async {
            while gateway.url().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap_or_else(|_| panic!("not ready:\n{}", gateway.log()));
    }
    for gateway in &gateways {
        clients.push(Client::new(&gateway.url().expect("it is ready"), &gateways[0].api_key()));
    }

    // Each key is posted to two processes at once: one accepts, the other replays or is told to come back.
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..MESSAGES {
        for twin in 0..2 {
            let client = clients[(n + twin) % 4].clone();
            posts.spawn(async move {
                let answer = client.post(&format!("several-{n}"), &email("ada@example.com", &format!("message {n}"))).await;
                assert!(matches!(answer.status, 202 | 409), "{}: {}", answer.status, answer.text);
                (n, answer)
            });
            if posts.len() >= 64 {
                posts.join_next().await;
            }
        }
    }
    while posts.join_next().await.is_some() {}

    for n in 0..MESSAGES {
        let status = clients[n % 4].until_closed(&format!("several-{n}"), Duration::from_secs(60)).await;
        assert_eq!(status["status"], "accepted", "{status}");
        let id = status["deliveries"][0]["id"].as_str().expect("a delivery has an id").to_owned();
        assert_eq!(sends_of(&peer, &id), 1, "{status}");
    }
    assert_eq!(peer.taken(), MESSAGES as u64);
}
