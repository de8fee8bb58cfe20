//! One rate of an account, several processes: the provider never sees more, and most of it is used; and what happens when
//! the rate cannot be drawn from.

use std::time::{Duration, Instant};

use tidings_tests::client::{Client, email};
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls in a second that the account may make.
const RATE: usize = 10;
const SECOND: Duration = Duration::from_secs(1);

fn paced(peer: &ScriptedSmtp, rate: usize) -> String {
    format!("{}rate = \"{rate}/s\"\n", smtp_account("relay", peer))
}

/// The most messages that the peer took within any second.
fn busiest(peer: &ScriptedSmtp) -> usize {
    let mut at: Vec<Instant> = peer.ledger().iter().map(|taken| taken.at).collect();
    at.sort();
    (0..at.len()).map(|first| at[first..].iter().take_while(|later| **later < at[first] + SECOND).count()).max().unwrap_or_default()
}

async fn fill(client: &Client, messages: usize) {
    for n in 0..messages {
        let answer = client.post(&format!("rate-{n}"), &email("ada@example.com", &format!("message {n}"))).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
}

async fn until_taken(peer: &ScriptedSmtp, messages: u64, gateways: &[Gateway]) {
    let all = async {
        while peer.taken() < messages {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let log = || gateways.iter().map(Gateway::log).collect::<Vec<_>>().join("\n");
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{} taken\n{}", peer.taken(), log()));
}

/// Waits until the peer has everything but what runs, and nothing is queued; returns how many calls are under way for good.
async fn until_sent_or_dead(client: &Client, peer: &ScriptedSmtp, messages: u64, gateways: &[Gateway]) -> u64 {
    let all = async {
        loop {
            let count = async |state: &str| {
                let listed = client.get(&format!("/v1/notifications?state={state}&limit=200")).await.json();
                listed["items"].as_array().expect("a list").len() as u64
            };
            let (waiting, running) = (count("queued").await + count("retry_wait").await, count("dispatching").await);
            let left = messages.saturating_sub(peer.taken());
            // What the peer has taken may run on until its outcome is written.
            if waiting == 0 && left <= running {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let log = || gateways.iter().map(Gateway::log).collect::<Vec<_>>().join("\n");
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{} taken\n{}", peer.taken(), log()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_the_rate_of_an_account_and_one_that_dies_takes_nothing_extra() {
    const MESSAGES: usize = 150;
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&paced(&peer, RATE)).env("TIDINGS__STORE__MAX_CONNECTIONS", "4");
    let mut gateways: Vec<Gateway> = (0..4).map(|_| launch.start()).collect();
    let client = gateways[0].client();
    says_paused(&client, true).await;
    fill(&client, MESSAGES).await;
    says_paused(&client, false).await;
    until_taken(&peer, 5, &gateways).await;
    let (since, before) = (Instant::now(), peer.taken());

    until_taken(&peer, 60, &gateways).await;
    let (used, could) = ((peer.taken() - before) as f64, RATE as f64 * since.elapsed().as_secs_f64());
    assert!(used >= 0.85 * could, "{used} of {could}");
    // Two die with what they drew, and one comes back.
    drop(gateways.pop().expect("four").kill());
    until_taken(&peer, 90, &gateways).await;
    drop(gateways.pop().expect("three").kill());
    gateways.push(launch.start());
    // A call that was waiting for its instant dies with its process: it goes on when its lease has ended, as after any crash.
    let left = until_sent_or_dead(&client, &peer, MESSAGES as u64, &gateways).await;
    assert!(left <= 4, "{left} calls of two processes");
    let busiest = busiest(&peer);
    assert!(busiest <= RATE + 1, "{busiest} within one second");
}

async fn says_paused(client: &Client, paused: bool) {
    let answer = client.call("PUT", "/v1/switches/all", &serde_json::json!({ "paused": paused })).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_uses_a_rate_that_is_faster_than_its_claims() {
    const FAST: usize = 50;
    let stage = Stage::sqlite();
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateways = [stage.launch(BINARY).config(&paced(&peer, FAST)).start()];
    let client = gateways[0].client();
    says_paused(&client, true).await;
    fill(&client, 5 * FAST).await;
    says_paused(&client, false).await;
    until_taken(&peer, FAST as u64, &gateways).await;
    let (since, before) = (Instant::now(), peer.taken());
    until_taken(&peer, 5 * FAST as u64, &gateways).await;
    let (used, could) = ((peer.taken() - before) as f64, FAST as f64 * since.elapsed().as_secs_f64());
    assert!(used >= 0.85 * could, "{used} of {could}");
}

/// S-088: intake goes on with half of a tenant's rate, sending stops after what was drawn, reading goes on; all of it is
/// counted and logged, and mends itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_buckets_intake_has_half_its_rate_sending_stops_and_reading_goes_on() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let limits = "[limits]\ntenant_rate = \"20/s\"\ntenant_burst = 50\n";
    let gateway = stage.launch(BINARY).config(&paced(&peer, RATE)).config(limits).start();
    let client = gateway.client();
    assert_eq!(client.post("before", &email("ada@example.com", "before")).await.status, 202);
    client.until_closed("before", PATIENCE).await;

    stage.execute("ALTER TABLE rate_buckets RENAME TO rate_buckets_gone").await;
    let since = Instant::now();
    let (mut accepted, mut refused, mut last) = (0, 0, String::new());
    while since.elapsed() < 4 * SECOND {
        let key = format!("during-{}", accepted + refused);
        let answer = client.post(&key, &email("ada@example.com", "during")).await;
        match answer.status {
            202 => {
                accepted += 1;
                last = key;
            }
            429 => {
                refused += 1;
                assert!(answer.header("retry-after").is_some());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => panic!("{other}: {}", answer.text),
        }
    }
    // What was drawn before, half a burst, and half the rate.
    let most = 50 + 25 + (10.0 * since.elapsed().as_secs_f64()) as i32;
    assert!(refused > 0 && accepted <= most && accepted >= 50, "{accepted} of {most}, {refused} refused");
    assert!(peer.taken() <= 3, "{} sent without a token", peer.taken());
    // The first may have had a token that was drawn before.
    let waits = client.by_key(&last).await;
    assert_eq!((waits.status, waits.json()["deliveries"][0]["wait_reason"].as_str()), (200, Some("rate")), "{}", waits.text);
    let metrics = client.get("/metrics").await.text;
    for limiter in ["intake", "send"] {
        let counted = format!("tidings_limiter_failures_total{{limiter=\"{limiter}\"}} ");
        assert!(metrics.lines().any(|line| line.starts_with(&counted) && !line.ends_with(" 0")), "{counted}\n{metrics}");
    }
    for told in ["the account's rate could not be drawn from", "the rates of tenants cannot be drawn from"] {
        assert_eq!(gateway.log().matches(told).count(), 1, "told once, not with each draw");
    }

    stage.execute("ALTER TABLE rate_buckets_gone RENAME TO rate_buckets").await;
    until_taken(&peer, 20, std::slice::from_ref(&gateway)).await;
    assert!(busiest(&peer) <= RATE + 1);
}
