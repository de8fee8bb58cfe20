//! Three processes on one PostgreSQL that share the work: one accepts, one sends, one sweeps.

use std::time::{Duration, Instant};

use serde_json::json;
use tidings_tests::client::{Client, email};
use tidings_tests::process::{Gateway, Launch};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

/// A process with this role alone.
fn only(launch: &Launch, role: &str) -> Gateway {
    launch.clone().env("TIDINGS__SERVER__ROLES", &format!("[\"{role}\"]")).start()
}

/// How many calls a process has made.
async fn calls(client: &Client) -> f64 {
    let metrics = client.get("/metrics").await.text;
    let of_attempts = metrics.lines().filter(|line| line.starts_with("tidings_attempts_total{"));
    of_attempts.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).expect("a number")).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_accepts_another_is_woken_for_and_sends() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer));
    let intake = only(&launch, "intake");
    let key = intake.api_key();
    let (workers, sweeps) = (only(&launch, "workers"), only(&launch, "sweeps"));
    let client = |gateway: &Gateway| Client::new(&gateway.url().expect("it is ready"), &key);
    let (to_intake, to_workers, to_sweeps) = (client(&intake), client(&workers), client(&sweeps));
    for (client, role) in [(&to_intake, "intake"), (&to_workers, "workers"), (&to_sweeps, "sweeps")] {
        assert_eq!(client.get("/version").await.json()["roles"], json!([role]));
        assert_eq!(client.get("/readyz").await.status, 200);
    }
    // What is refused is not taken: the same key is free for the process that has the role.
    for client in [&to_workers, &to_sweeps] {
        let refused = client.post("k0", &email("ada@example.com", "hello")).await;
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("role_missing")));
    }

    // Polling alone would need a second for each at the median.
    let began = Instant::now();
    for n in 0..10 {
        assert_eq!(to_intake.post(&format!("k{n}"), &email("ada@example.com", "hello")).await.status, 202);
        peer.until(|peer| peer.taken() == n + 1).await;
    }
    assert!(began.elapsed() < Duration::from_secs(4), "ten messages, one after the other, took {:?}", began.elapsed());
    for n in 0..10 {
        assert_eq!(to_intake.until_closed(&format!("k{n}"), PATIENCE).await["status"], "accepted");
    }
    // What is due later is not forgotten: who accepted it says so when its time has come, or the poll finds it.
    let mut later = email("ada@example.com", "later");
    later["send_in"] = json!("2s");
    assert_eq!(to_intake.post("later", &later).await.status, 202);
    assert_eq!(to_intake.until_closed("later", PATIENCE).await["status"], "accepted");
    assert_eq!((calls(&to_intake).await, calls(&to_workers).await, calls(&to_sweeps).await), (0.0, 11.0, 0.0));
    assert_eq!(peer.taken(), 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_leaves_behind_is_swept_by_another() {
    let Some(stage) = Stage::postgres().await else { return };
    let stage = stage.faster(60);
    let peer = ScriptedSmtp::start(Behaviour::default().once(Phase::Dot, Act::Silence)).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config("[ambiguity.transactional]\nhold = \"2m\"");
    let intake = only(&launch, "intake");
    let client = intake.client();
    let workers = only(&launch, "workers");
    assert_eq!(client.post("k", &email("ada@example.com", "hello")).await.status, 202);
    peer.until(|peer| peer.taken() == 1).await;
    workers.kill();

    // Nobody sweeps yet: a lease lasts a minute, which is a second here.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(client.by_key("k").await.json()["deliveries"][0]["state"], "dispatching");
    let sweeps = only(&launch, "sweeps");
    let status = client.until("k", PATIENCE, |status| status["deliveries"][0]["generation"] == 2).await;
    assert_eq!(status["deliveries"][0]["attempts"][0]["outcome"], "lost", "{status}");
    // Sending is not theirs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(peer.taken(), 1);
    let _workers = only(&launch, "workers");
    let status = client.until_closed("k", PATIENCE).await;
    let delivery = &status["deliveries"][0];
    assert_eq!((&delivery["state"], &delivery["possible_duplicate"]), (&json!("accepted"), &json!(true)), "{status}");
    assert_eq!(sends_of(&peer, delivery["id"].as_str().expect("a delivery has an id")), 2);
    let to_sweeps = Client::new(&sweeps.url().expect("it is ready"), &intake.api_key());
    assert_eq!((calls(&client).await, calls(&to_sweeps).await), (0.0, 0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_one_process_does_everything_or_does_not_start() {
    let stage = Stage::sqlite();
    let mut refused = stage.launch(BINARY).env("TIDINGS__SERVER__ROLES", "[\"intake\", \"workers\"]").spawn();
    assert!(refused.wait(PATIENCE).is_some_and(|status| !status.success()));
    assert!(refused.log().contains("server.roles: one process alone opens a SQLite file"), "{}", refused.log());
    assert!(!stage.store_file().exists());
}
