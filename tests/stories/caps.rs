//! The daily cap of an account: which classes stop when, whoever is killed, restarted or reloaded, and how it goes on the
//! next day.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidings_tests::client::{Client, of_category};
use tidings_tests::on_both_databases;
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for every lane to be polled.
const A_WHILE: Duration = Duration::from_secs(3);
const CATEGORIES: &str =
    "[categories.code]\nclass = \"critical\"\n[categories.receipt]\nclass = \"transactional\"\n[categories.news]\nclass = \"bulk\"\n";

on_both_databases!(
    bulk_stops_first_and_a_login_code_still_goes_out,
    what_is_used_up_leaves_its_messages_to_the_next_account,
    a_restart_knows_what_was_used,
    calls_that_found_nobody_cost_nothing,
    the_next_day_goes_on_by_itself,
);

/// A fixed zone whose midnight comes in 20 to 80 minutes where it is `near`, else in eight to nine hours.
fn zone(near: bool) -> String {
    let minutes = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 / 60 % 1_440;
    let (hour, minute) = (minutes / 60, minutes % 60);
    let local = if !near {
        15
    } else if minute < 40 {
        23
    } else {
        22
    };
    let offset = (local - hour).rem_euclid(24);
    let offset = if offset > 12 { offset - 24 } else { offset };
    // The signs of these names are turned around.
    format!("Etc/GMT{}{}", if offset > 0 { "-" } else { "+" }, offset.abs())
}

fn capped(name: &str, peer: &ScriptedSmtp, cap: u32) -> String {
    format!("{}daily_cap = {cap}\ndaily_cap_zone = \"{}\"\n", smtp_account(name, peer), zone(false))
}

async fn post(client: &Client, category: &str, keys: std::ops::Range<usize>) {
    for n in keys {
        let answer = client.post(&format!("{category}-{n}"), &of_category(category, "ada@example.com")).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
}

/// How often the peer took a message of a category.
fn taken_of(peer: &ScriptedSmtp, category: &str) -> usize {
    let subject = format!("Subject: {category}\r\n");
    peer.ledger().iter().filter(|taken| String::from_utf8_lossy(&taken.message).contains(&subject)).count()
}

async fn until(what: &str, gateways: &[Gateway], is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        let log = || gateways.iter().map(Gateway::log).collect::<Vec<_>>().join("\n");
        assert!(Instant::now() < deadline, "{what}\n{}", log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until nothing of a category is under way; returns the deliveries that wait for another day.
async fn until_waiting(client: &Client, category: &str) -> Vec<Value> {
    let (deadline, mut before) = (Instant::now() + PATIENCE, None);
    loop {
        let mut waiting = Vec::new();
        for item in listed(client, category, "queued").await {
            let read = client.get(&format!("/v1/notifications/{}", item["id"].as_str().unwrap())).await.json();
            waiting.push(read["deliveries"][0].clone());
        }
        let is_still = waiting.iter().all(|delivery| delivery["wait_reason"] == "daily_cap");
        let is_idle = listed(client, category, "dispatching").await.is_empty() && listed(client, category, "retry_wait").await.is_empty();
        // What was handed back between two of these questions is seen by the next ones.
        if is_still && is_idle && before == Some(waiting.len()) {
            return waiting;
        }
        assert!(Instant::now() < deadline, "{waiting:#?}");
        before = Some(waiting.len());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn listed(client: &Client, category: &str, state: &str) -> Vec<Value> {
    let listed = client.get(&format!("/v1/notifications?category={category}&state={state}&limit=200")).await;
    assert_eq!(listed.status, 200, "{}", listed.text);
    listed.json()["items"].as_array().unwrap().clone()
}

async fn account(client: &Client, name: &str) -> Value {
    let listed = client.get("/v1/accounts").await.json();
    listed["items"].as_array().unwrap().iter().find(|account| account["name"] == name).unwrap().clone()
}

async fn reload(stage: &Stage, client: &Client, config: &str) {
    let unfinished = stage.directory().join("tidings.toml.next");
    std::fs::write(&unfinished, config).unwrap();
    std::fs::rename(unfinished, stage.directory().join("tidings.toml")).unwrap();
    let answer = client.call("POST", "/v1/config/reload", &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn metric(client: &Client, line: &str) -> Option<String> {
    let text = client.get("/metrics").await.text;
    text.lines().find_map(|own| own.strip_prefix(line)).map(|value| value.trim().to_owned())
}

/// S-090: of 20 calls bulk leaves 6 and transactional 2; each waits and says why; a reload gives or takes calls at once.
async fn bulk_stops_first_and_a_login_code_still_goes_out(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateways = [stage.launch(BINARY).config(&capped("relay", &peer, 20)).config(CATEGORIES).start()];
    let client = gateways[0].client();
    post(&client, "news", 0..20).await;
    assert_eq!(until_waiting(&client, "news").await.len(), 6);
    post(&client, "receipt", 0..6).await;
    let waiting = until_waiting(&client, "receipt").await;
    assert_eq!(waiting.len(), 2);
    assert!(waiting[0]["summary"].as_str().unwrap().contains("today are used up"), "{}", waiting[0]);
    assert_eq!((&waiting[0]["state"], &waiting[0]["attempt_count"]), (&json!("queued"), &json!(0)));
    let before = account(&client, "relay").await;
    assert_eq!((&before["takes_messages"], &before["daily_cap"]["used"]), (&json!(true), &json!(18)), "{before}");
    let tested = client.call("POST", "/v1/accounts/relay/test", &json!({"to": "ada@example.com"})).await;
    assert_eq!((tested.status, tested.json()["code"].as_str()), (429, Some("quota_exceeded")), "{}", tested.text);
    assert!(tested.header("retry-after").unwrap().parse::<u64>().unwrap() > 7 * 3_600);
    post(&client, "code", 0..3).await;
    assert_eq!(until_waiting(&client, "code").await.len(), 1);
    let begun = Instant::now();
    let busy = gateways[0].cpu_time();
    tokio::time::sleep(A_WHILE).await;
    let busy = gateways[0].cpu_time() - busy;
    assert!(busy < begun.elapsed() / 4, "{busy:?} for rows that cannot go");
    assert_eq!(["news", "receipt", "code"].map(|category| taken_of(&peer, category)), [14, 4, 2]);
    let used_up = account(&client, "relay").await;
    assert_eq!(used_up["daily_cap"]["used"], 20, "{used_up}");
    assert_eq!((&used_up["why"], &used_up["until"]), (&json!("daily_cap"), &used_up["daily_cap"]["resets_at"]));
    assert_eq!(metric(&client, "tidings_account_daily_used{account=\"relay\"}").await.as_deref(), Some("20"));
    assert_eq!(metric(&client, "tidings_account_daily_cap{account=\"relay\"}").await.as_deref(), Some("20"));

    // Of 30 there are 27 for transactional and 21 for bulk.
    reload(&stage, &client, &format!("{}{CATEGORIES}", capped("relay", &peer, 30))).await;
    until("codes and receipts go out", &gateways, || taken_of(&peer, "receipt") == 6 && taken_of(&peer, "code") == 3).await;
    let left = until_waiting(&client, "news").await.len();
    assert!(left == 6 || left == 5, "{left}");
    reload(&stage, &client, &format!("{}{CATEGORIES}", capped("relay", &peer, 15))).await;
    post(&client, "code", 3..4).await;
    assert_eq!(until_waiting(&client, "code").await.len(), 1);
    assert!(account(&client, "relay").await["daily_cap"]["used"].as_i64().unwrap() >= 23);
    reload(&stage, &client, &format!("{}{CATEGORIES}", smtp_account("relay", &peer))).await;
    until("without a cap everything goes out", &gateways, || peer.taken() == 30).await;
    assert_eq!(account(&client, "relay").await["daily_cap"], Value::Null);
}

async fn what_is_used_up_leaves_its_messages_to_the_next_account(stage: Stage) {
    let (first, second) = (ScriptedSmtp::start(Behaviour::default()).await, ScriptedSmtp::start(Behaviour::default()).await);
    let config = format!("{}{}", capped("first", &first, 10), smtp_account("second", &second));
    let gateways = [stage.launch(BINARY).config(&config).config(CATEGORIES).start()];
    let client = gateways[0].client();
    // Nothing waits while the calls of the first account are drawn from the store, so that a burst may leave some to be used.
    post(&client, "news", 0..30).await;
    let mut sent: usize = 30;
    until("all are taken", &gateways, || first.taken() + second.taken() == sent as u64).await;
    while first.taken() < 7 && sent < 60 {
        post(&client, "news", sent..sent + 1).await;
        sent += 1;
        until("it is taken", &gateways, || first.taken() + second.taken() == sent as u64).await;
    }
    assert_eq!(first.taken(), 7);
    post(&client, "news", sent..sent + 5).await;
    sent += 5;
    until("the rest is taken too", &gateways, || first.taken() + second.taken() == sent as u64).await;
    assert_eq!(first.taken(), 7, "seven tenths are for bulk");
    for n in 0..sent {
        let status = client.until_closed(&format!("news-{n}"), PATIENCE).await;
        let delivery = &status["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["attempt_count"]), (&json!("accepted"), &json!(1)), "{delivery}");
    }
    post(&client, "code", 0..1).await;
    until("a code has the first account still", &gateways, || first.taken() == 8).await;
}

async fn a_restart_knows_what_was_used(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&capped("relay", &peer, 400)).config(CATEGORIES);
    let gateway = launch.start();
    post(&gateway.client(), "news", 0..120).await;
    until("120 are taken", std::slice::from_ref(&gateway), || peer.taken() == 120).await;
    let (ended, log) = gateway.terminate(PATIENCE);
    assert!(ended, "{log}");
    // What it held went back.
    let gateway = launch.start();
    let client = gateway.client();
    assert_eq!(account(&client, "relay").await["daily_cap"]["used"], 120);
    post(&client, "news", 120..200).await;
    until("200 are taken", std::slice::from_ref(&gateway), || peer.taken() == 200).await;
    client.until_closed("news-199", PATIENCE).await;
    gateway.kill();
    let gateways = [launch.start()];
    let client = gateways[0].client();
    // What it held when it was killed is lost for the day: a hundredth of the cap.
    let used = account(&client, "relay").await["daily_cap"]["used"].as_u64().unwrap();
    assert!((200..=204).contains(&used), "{used}");
    post(&client, "news", 200..300).await;
    let waiting = until_waiting(&client, "news").await.len() as u64;
    assert_eq!((peer.taken(), waiting), (280 - (used - 200), 20 + (used - 200)));
}

/// A relay that is away does not use up the day.
async fn calls_that_found_nobody_cost_nothing(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    peer.behave(|behaviour| behaviour.always(Phase::Greeting, Act::Drop));
    let gateways = [stage.launch(BINARY).config(&capped("relay", &peer, 10)).config(CATEGORIES).start()];
    let client = gateways[0].client();
    post(&client, "code", 0..6).await;
    until("they are tried", &gateways, || peer.connections() >= 14).await;
    peer.behave(|_| Behaviour::default());
    until("all are taken", &gateways, || peer.taken() == 6).await;
    client.until_closed("code-5", PATIENCE).await;
    for n in 0..6 {
        client.until_closed(&format!("code-{n}"), PATIENCE).await;
    }
    assert_eq!(account(&client, "relay").await["daily_cap"]["used"], 6);
}

/// S-085: nothing has to run at midnight, and no class gets two days at once.
async fn the_next_day_goes_on_by_itself(stage: Stage) {
    let stage = stage.faster(120);
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let account_lines = format!("{}daily_cap = 10\ndaily_cap_zone = \"{}\"\n", smtp_account("relay", &peer), zone(true));
    let gateways = [stage.launch(BINARY).config(&account_lines).config(CATEGORIES).start()];
    let client = gateways[0].client();
    post(&client, "news", 0..12).await;
    until("the day's part is taken", &gateways, || peer.taken() == 7).await;
    let resets_at = account(&client, "relay").await["daily_cap"]["resets_at"].as_str().unwrap().to_owned();
    until("the next day's is too", &gateways, || peer.taken() == 12).await;
    let after = account(&client, "relay").await;
    assert!(after["daily_cap"]["resets_at"].as_str().unwrap() > resets_at.as_str(), "{after}");
    let first: Vec<String> = {
        let mut starts = Vec::new();
        for n in 0..12 {
            let status = client.until_closed(&format!("news-{n}"), PATIENCE).await;
            let attempts = status["deliveries"][0]["attempts"].as_array().unwrap();
            starts.extend(
                attempts
                    .iter()
                    .filter(|attempt| attempt["outcome"] == "accepted")
                    .map(|attempt| attempt["started_at"].as_str().unwrap().to_owned()),
            );
        }
        starts
    };
    let days = first.iter().partition::<Vec<&String>, _>(|started_at| started_at.as_str() < resets_at.as_str());
    assert_eq!((days.0.len(), days.1.len()), (7, 5), "{first:?} around {resets_at}");
}

/// S-086: whoever is killed, four processes never make more calls than the cap, and lose next to none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_that_are_killed_never_exceed_the_cap() {
    const CAP: u64 = 300;
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let config = format!("{}concurrency = 4\n", capped("relay", &peer, CAP as u32));
    let launch = stage.launch(BINARY).config(&config).config(CATEGORIES).env("TIDINGS__STORE__MAX_CONNECTIONS", "4");
    let mut gateways: Vec<Gateway> = (0..4).map(|_| launch.start()).collect();
    let client = gateways[0].client();
    post(&client, "code", 0..60).await;
    for (n, at) in [(3, 60), (2, 120), (3, 180)] {
        post(&client, "code", at as usize..at as usize + 60).await;
        until("it goes on", &gateways, || peer.taken() >= at).await;
        drop(gateways.remove(n).kill());
        gateways.push(launch.start());
    }
    post(&client, "code", 240..360).await;
    let waiting = |status: &Value| status["deliveries"][0]["wait_reason"] == "daily_cap";
    client.until("code-359", PATIENCE, waiting).await;
    let used = account(&client, "relay").await["daily_cap"]["used"].as_u64().unwrap();
    until("all that is left is taken", &gateways, || peer.taken() + 30 >= CAP).await;
    tokio::time::sleep(A_WHILE).await;
    let taken = peer.taken();
    assert!(taken <= CAP && used <= CAP, "{taken} taken, {used} used");
    // Each death costs what was held, and calls that ran.
    assert!(taken + 3 * (3 + 4) >= CAP, "{taken} of {CAP}");
}

/// S-088: where the count cannot be drawn from, an account sends what was drawn and then nothing, and goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_count_an_account_stops_and_goes_on_by_itself() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateways = [stage.launch(BINARY).config(&capped("relay", &peer, 1_000)).config(CATEGORIES).start()];
    let client = gateways[0].client();
    post(&client, "code", 0..1).await;
    client.until_closed("code-0", PATIENCE).await;
    stage.execute("ALTER TABLE quota_pools RENAME TO quota_pools_gone").await;
    post(&client, "code", 1..20).await;
    client.until("code-19", PATIENCE, |status| status["deliveries"][0]["wait_reason"] == "daily_cap").await;
    tokio::time::sleep(A_WHILE).await;
    assert!(peer.taken() <= 1 + 10, "{} taken without a unit", peer.taken());
    let failures = metric(&client, "tidings_limiter_failures_total{limiter=\"daily\"}").await;
    assert!(failures.is_some_and(|failures| failures != "0"));
    assert_eq!(gateways[0].log().matches("calls of the day could not be drawn").count(), 1, "told once, not with each draw");
    stage.execute("ALTER TABLE quota_pools_gone RENAME TO quota_pools").await;
    until("all are taken", &gateways, || peer.taken() == 20).await;
    for n in 1..20 {
        client.until_closed(&format!("code-{n}"), PATIENCE).await;
    }
    assert_eq!(account(&client, "relay").await["daily_cap"]["used"], 20);
}
