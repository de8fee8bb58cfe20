//! Categories and tenants with routes of their own: nobody waits for accounts that others are slow on, messages stay within
//! their route, and nothing is lost when routes change or processes differ.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::{Client, email, of_category};
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
const CODES: &str = "[categories.login-code]\nclass = \"critical\"\n[categories.receipt]\n";

on_both_databases!(
    a_code_goes_by_the_account_of_its_category_while_that_of_the_others_hangs_and_is_full,
    a_message_moves_within_its_route_and_never_beyond,
    what_a_tenant_sends_goes_by_its_own_route_alone,
    what_waits_for_a_route_that_a_reload_takes_away_goes_by_what_carries_it_now,
    three_hundred_lanes_keep_nobody_busy_and_each_carries_its_messages,
);

async fn peer(behaviour: Behaviour) -> ScriptedSmtp {
    ScriptedSmtp::start(behaviour).await
}

/// One that never answers the end of a message.
async fn hanging() -> ScriptedSmtp {
    peer(Behaviour::default().always(Phase::Dot, Act::Silence)).await
}

async fn until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn post(client: &Client, category: &str, prefix: &str, messages: usize) {
    for n in 0..messages {
        let answer = client.post(&format!("{prefix}-{n}"), &of_category(category, "ada@example.com")).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
}

/// Account and outcome of every attempt.
fn attempts(status: &Value) -> Vec<(&str, &str)> {
    let attempts = status["deliveries"][0]["attempts"].as_array().unwrap();
    attempts.iter().map(|attempt| (attempt["account"].as_str().unwrap(), attempt["outcome"].as_str().unwrap())).collect()
}

async fn a_code_goes_by_the_account_of_its_category_while_that_of_the_others_hangs_and_is_full(stage: Stage) {
    let (slow, fast) = (hanging().await, peer(Behaviour::default()).await);
    let accounts = format!("{}concurrency = 2\n{}", smtp_account("slow", &slow), smtp_account("fast", &fast));
    let routes = "[routes.email]\ndefault = [\"slow\"]\n[routes.email.categories]\nlogin-code = [\"fast\"]\n";
    let gateway = stage.launch(BINARY).config(&accounts).config(CODES).config(routes).start();
    let client = gateway.client();
    post(&client, "receipt", "receipt", 60).await;
    until("the slot for receipts is taken", || slow.taken() >= 1).await;
    post(&client, "login-code", "code", 10).await;
    for n in 0..10 {
        let status = client.until_closed(&format!("code-{n}"), PATIENCE).await;
        assert_eq!(attempts(&status), [("fast", "accepted")], "{status}");
    }
    assert_eq!(fast.taken(), 10);
    assert_eq!(client.by_key("receipt-59").await.json()["deliveries"][0]["state"], "queued");
}

async fn a_message_moves_within_its_route_and_never_beyond(stage: Stage) {
    let refusing = || Behaviour::default().always(Phase::Rcpt, Act::reply("451 4.3.0 Try later"));
    let (a, b, c) = (peer(refusing()).await, peer(Behaviour::default()).await, peer(Behaviour::default()).await);
    let accounts = [("a", &a), ("b", &b), ("c", &c)].map(|(name, peer)| smtp_account(name, peer)).concat();
    let routes = "[routes.email]\ndefault = [\"c\"]\n[routes.email.categories]\nlogin-code = [\"a\", \"b\"]\n";
    let gateway = stage.launch(BINARY).config(&accounts).config(CODES).config(routes).start();
    let client = gateway.client();
    post(&client, "login-code", "moved", 1).await;
    let status = client.until_closed("moved-0", PATIENCE).await;
    assert_eq!((attempts(&status), &status["deliveries"][0]["via_failover"]), (vec![("a", "not_sent"), ("b", "accepted")], &json!(true)));
    b.behave(|_| refusing());
    post(&client, "login-code", "stays", 1).await;
    let status = client.until("stays-0", PATIENCE, |status| attempts(status).len() >= 4).await;
    assert!(attempts(&status).iter().all(|(account, outcome)| *account != "c" && *outcome != "accepted"), "{status}");
    assert_eq!((b.taken(), c.taken()), (1, 0));
}

async fn what_a_tenant_sends_goes_by_its_own_route_alone(stage: Stage) {
    let (a, b, c) = (peer(Behaviour::default()).await, peer(Behaviour::default()).await, peer(Behaviour::default()).await);
    let accounts = [("a", &a), ("b", &b), ("c", &c)].map(|(name, peer)| smtp_account(name, peer)).concat();
    let routes = "[routes.email]\ndefault = [\"c\"]\n[routes.email.categories]\nlogin-code = [\"a\"]\n[routes.email.tenants.acme]\ndefault = [\"b\"]\n";
    let launch = stage.launch(BINARY).config(&accounts).config(CODES).config(routes);
    // On SQLite the store is opened while nobody serves.
    launch.start().terminate(PATIENCE);
    let url = stage.store_url().map_or_else(|| format!("sqlite://{}", stage.store_file().display()), str::to_owned);
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY).args(arguments).env("TIDINGS__STORE__URL", &url).current_dir(stage.directory()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    run(&["tenants", "create", "acme"]);
    let key = run(&["keys", "create", "shop", "--tenant", "acme"]);
    let gateway = launch.start();
    let (client, acme) = (gateway.client(), Client::new(&gateway.url().unwrap(), &key));
    for (client, account) in [(&client, "c"), (&acme, "b")] {
        post(client, "receipt", "receipt", 1).await;
        assert_eq!(attempts(&client.until_closed("receipt-0", PATIENCE).await), [(account, "accepted")]);
    }
    post(&client, "login-code", "code", 1).await;
    assert_eq!(attempts(&client.until_closed("code-0", PATIENCE).await), [("a", "accepted")]);
    assert_eq!((a.taken(), b.taken(), c.taken()), (1, 1, 1));
}

async fn what_waits_for_a_route_that_a_reload_takes_away_goes_by_what_carries_it_now(stage: Stage) {
    let (slow, fast) = (hanging().await, peer(Behaviour::default()).await);
    let file = format!(
        "{}concurrency = 1\n{}{CODES}[routes.email]\ndefault = [\"fast\"]\n",
        smtp_account("slow", &slow),
        smtp_account("fast", &fast)
    );
    let gateway = stage.launch(BINARY).config(&file).config("[routes.email.categories]\nlogin-code = [\"slow\"]\n").start();
    let client = gateway.client();
    post(&client, "login-code", "code", 6).await;
    until("one call runs", || slow.taken() == 1).await;

    let unfinished = stage.directory().join("tidings.toml.next");
    std::fs::write(&unfinished, &file).unwrap();
    std::fs::rename(unfinished, stage.directory().join("tidings.toml")).unwrap();
    let answer = client.call("POST", "/v1/config/reload", &json!({})).await;
    assert_eq!(answer.json()["changed"], json!(["routes.email.categories.login-code"]), "{}", answer.text);
    until("the others go out", || fast.taken() == 5).await;
    assert_eq!(slow.taken(), 1);
    // A restart knows the lanes as well.
    post(&client, "login-code", "later", 1).await;
    until("by the main route", || fast.taken() == 6).await;
}

async fn three_hundred_lanes_keep_nobody_busy_and_each_carries_its_messages(stage: Stage) {
    let relay = peer(Behaviour::default()).await;
    let tenants: String = (0..100).map(|n| format!("[routes.email.tenants.t{n}]\ndefault = [\"relay\"]\n")).collect();
    let categories: String = (0..40).map(|n| format!("c{n} = [\"relay\"]\n")).collect();
    let routes = format!("[limits]\nundeclared_categories = \"allow\"\n[routes.email.categories]\n{categories}{tenants}");
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &relay)).config(&routes).start();
    let client = gateway.client();
    // What its start takes is over.
    assert_eq!(client.post("first", &email("ada@example.com", "hello")).await.status, 202);
    client.until_closed("first", PATIENCE).await;
    let before = gateway.cpu_time();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let idle = gateway.cpu_time() - before;
    assert!(idle < Duration::from_millis(400), "{idle:?} of four idle seconds");
    for n in 0..40 {
        post(&client, &format!("c{n}"), &format!("k{n}"), 2).await;
    }
    until("all of them", || relay.taken() == 81).await;
}

/// Another process has been told of a route, and dies: the lane that it made is carried by who is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_with_other_routes_leaves_behind_is_carried_by_another() {
    let Some(stage) = Stage::postgres().await else { return };
    let (slow, fast) = (hanging().await, peer(Behaviour::default()).await);
    let accounts = format!("{}concurrency = 1\n{}", smtp_account("slow", &slow), smtp_account("fast", &fast));
    let launch = stage.launch(BINARY).config(&accounts).config(CODES).config("[routes.email]\ndefault = [\"fast\"]\n");
    let stays = launch.start();
    let key = stays.api_key();
    let told = launch.clone().env("TIDINGS__ROUTES__EMAIL__CATEGORIES__LOGIN_CODE", "['slow']").start();
    let (to_told, to_stays) = (Client::new(&told.url().unwrap(), &key), Client::new(&stays.url().unwrap(), &key));
    post(&to_told, "login-code", "code", 6).await;
    // Whoever reads them where the lane may not be known yet hears nothing wrong.
    let read = to_stays.by_key("code-5").await.json();
    assert_ne!(read["deliveries"][0]["wait_reason"], "no_account", "{read}");
    told.kill();
    until("those that were not called yet", || fast.taken() >= 5).await;
    for n in 0..6 {
        let status = to_stays.by_key(&format!("code-{n}")).await.json();
        let state = status["deliveries"][0]["state"].as_str().unwrap();
        assert!(matches!(state, "accepted" | "dispatching" | "ambiguous"), "{status}");
    }
}
