//! The configuration read again while messages wait, leave and arrive: by SIGHUP and over HTTP, on the real binary.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

on_both_databases!(
    what_waits_goes_out_by_the_accounts_that_are_left_and_what_runs_ends_where_it_began,
    a_password_that_is_rotated_opens_the_next_connection_and_the_parked_account,
    a_broken_file_changes_nothing_and_what_needs_a_restart_is_named,
    reloads_under_load_lose_and_double_nothing,
);

/// Puts another configuration in the place of the one that the process was started with, as a rename does.
fn write(stage: &Stage, text: &str) {
    let unfinished = stage.directory().join("tidings.toml.next");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, stage.directory().join("tidings.toml")).unwrap();
}

/// How many log lines have this message.
fn said(gateway: &Gateway, message: &str) -> usize {
    gateway
        .log()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["msg"].as_str().is_some_and(|msg| msg.starts_with(message)))
        .count()
}

async fn until_said(gateway: &Gateway, message: &str, times: usize) {
    let deadline = Instant::now() + PATIENCE;
    while said(gateway, message) < times {
        assert!(Instant::now() < deadline, "{message} was not said:\n{}", gateway.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn reloaded(client: &Client) -> Value {
    let answer = client.call("POST", "/v1/config/reload", &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn delivery_of(status: &Value) -> &str {
    status["deliveries"][0]["id"].as_str().unwrap()
}

async fn what_waits_goes_out_by_the_accounts_that_are_left_and_what_runs_ends_where_it_began(stage: Stage) {
    let (first, second) =
        (ScriptedSmtp::start(Behaviour::default().once(Phase::Dot, Act::Silence)).await, ScriptedSmtp::start(Behaviour::default()).await);
    let one = format!("{}concurrency = 1\n", smtp_account("first", &first));
    let gateway = stage.launch(BINARY).config(&one).start();
    let client = gateway.client();
    // The only slot is held by a call whose answer is still out; all others wait.
    client.post("running", &email("ada@example.com", "running")).await;
    first.until(|peer| peer.taken() == 1).await;
    for n in 0..5 {
        assert_eq!(client.post(&format!("waits-{n}"), &email("ada@example.com", "waits")).await.status, 202);
    }
    write(&stage, &format!("{one}state = \"off\"\n{}", smtp_account("second", &second)));
    gateway.signal("HUP");
    for n in 0..5 {
        let status = client.until_closed(&format!("waits-{n}"), PATIENCE).await;
        assert_eq!((&status["status"], &status["deliveries"][0]["account"]), (&json!("accepted"), &json!("second")), "{status}");
        assert_eq!((sends_of(&first, delivery_of(&status)), sends_of(&second, delivery_of(&status))), (0, 1));
    }
    first.release();
    let status = client.until_closed("running", PATIENCE).await;
    assert_eq!((&status["status"], &status["deliveries"][0]["account"]), (&json!("accepted"), &json!("first")), "{status}");
    assert_eq!(status["deliveries"][0]["attempts"].as_array().unwrap().len(), 1);

    // Without any account what waits stays, and leaves as soon as one is there again, and gone ones keep their names.
    write(&stage, &format!("{one}state = \"off\"\n"));
    let answer = reloaded(&client).await;
    assert_eq!(answer["changed"][0], "accounts.second");
    assert_eq!(client.post("refused", &email("ada@example.com", "refused")).await.status, 422);
    assert_eq!(client.by_key("waits-0").await.json()["deliveries"][0]["account"], "second");
    write(&stage, &smtp_account("second", &second));
    reloaded(&client).await;
    assert_eq!(client.by_key("running").await.json()["deliveries"][0]["account"], "first");
    client.post("again", &email("ada@example.com", "again")).await;
    client.until_closed("again", PATIENCE).await;
    assert_eq!((first.taken(), second.taken()), (1, 6));
}

async fn a_password_that_is_rotated_opens_the_next_connection_and_the_parked_account(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().login("shop", "old", &["PLAIN"])).await;
    let secret = stage.directory().join("password");
    std::fs::write(&secret, "old\n").unwrap();
    let account = format!("{}username = \"shop\"\npassword = {{ file = \"password\" }}\n", smtp_account("relay", &peer));
    let gateway = stage.launch(BINARY).config(&account).start();
    let client = gateway.client();
    client.post("before", &email("ada@example.com", "before")).await;
    client.until_closed("before", PATIENCE).await;
    peer.behave(|behaviour| behaviour.login("shop", "new", &["PLAIN"]));
    peer.evict("421 4.3.2 going down");
    client.post("parked", &email("ada@example.com", "parked")).await;
    client.until("parked", PATIENCE, |status| status["deliveries"][0]["wait_reason"] == "credential").await;

    std::fs::write(&secret, "new\n").unwrap();
    gateway.signal("HUP");
    until_said(&gateway, "the configuration was reloaded", 1).await;
    let began = Instant::now();
    let status = client.until_closed("parked", PATIENCE).await;
    assert_eq!(status["status"], "accepted", "{status}");
    // A parked account would wait for a minute.
    assert!(began.elapsed() < Duration::from_secs(40));
    assert_eq!(peer.taken(), 2);
    assert!(gateway.log().contains("\"changed\":\"accounts.relay.password\""), "{}", gateway.log());
    let told = loop {
        let items = client.get("/v1/events?type=account.parked,account.recovered").await.json()["items"].take();
        if items[1].is_object() || began.elapsed() > PATIENCE {
            break items;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let told: Vec<_> = told.as_array().unwrap().iter().map(|event| (&event["type"], &event["data"]["account"])).collect();
    assert_eq!(told, [(&json!("account.parked"), &json!("relay")), (&json!("account.recovered"), &json!("relay"))]);
    for secret in ["\"old", "\"new"] {
        assert!(!gateway.log().contains(secret));
    }
}

async fn a_broken_file_changes_nothing_and_what_needs_a_restart_is_named(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let account = smtp_account("relay", &peer);
    let gateway = stage.launch(BINARY).config(&account).start();
    let client = gateway.client();
    let digest = async || client.get("/version").await.json()["config_digest"].clone();
    let before = digest().await;
    write(&stage, &format!("{account}rate = \"hunter2\"\n"));
    gateway.signal("HUP");
    until_said(&gateway, "the configuration was not reloaded, the one in force stays: accounts.relay.rate", 1).await;
    let refused = client.call("POST", "/v1/config/reload", &json!({})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_configuration")), "{}", refused.text);
    assert!(!gateway.log().contains("hunter2") && !refused.text.contains("hunter2"));
    assert_eq!((client.get("/readyz").await.status, digest().await), (200, before.clone()));
    client.post("k", &email("ada@example.com", "still")).await;
    client.until_closed("k", PATIENCE).await;

    // The harness sets `server.bind` and `store.url` by variables; the pool's size and the port for operators stand in the file.
    write(&stage, &format!("{account}[server]\nadmin_bind = \"127.0.0.1:0\"\n[store]\nmax_connections = 7\n[log]\nlevel = \"debug\"\n"));
    let answer = reloaded(&client).await;
    assert_eq!(
        (&answer["needs_restart"], &answer["changed"]),
        (&json!(["server.admin_bind", "store.max_connections"]), &json!(["log.level"]))
    );
    until_said(&gateway, "these settings are in force after a restart only", 1).await;
    assert_eq!(client.get("/metrics").await.status, 200);
    // The level is in force: requests are told of.
    until_said(&gateway, "answered", 1).await;
    // Who compares instances in the store sees the configuration in force, from the next heartbeat on.
    let digest = digest().await;
    let digest = digest.as_str().unwrap();
    let literal = if stage.is_postgres() { format!("'\\x{digest}'") } else { format!("x'{digest}'") };
    let deadline = Instant::now() + PATIENCE;
    while stage.execute(&format!("UPDATE instances SET config_digest = config_digest WHERE config_digest = {literal}")).await == 0 {
        assert!(Instant::now() < deadline, "no instance has the digest {digest}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let audited = stage.execute("UPDATE audit_log SET subject = subject WHERE action = 'config.reloaded'").await;
    assert_eq!(audited, 1);
}

/// Every accepted message is taken exactly once, whatever is reloaded meanwhile.
async fn reloads_under_load_lose_and_double_nothing(stage: Stage) {
    const MESSAGES: usize = 300;
    let (a, b) = (ScriptedSmtp::start(Behaviour::default()).await, ScriptedSmtp::start(Behaviour::default()).await);
    let file = |round: usize| {
        let (on, off) = if round.is_multiple_of(2) { ("on", "off") } else { ("off", "on") };
        let account = |name: &str, peer: &ScriptedSmtp, state: &str| {
            format!("{}state = \"{state}\"\nconcurrency = {}\nrate = \"{}/s\"\n", smtp_account(name, peer), 2 + round % 3, 200 + round)
        };
        format!("{}{}", account("a", &a, on), if round % 3 == 2 && on == "on" { String::new() } else { account("b", &b, off) })
    };
    let gateway = stage.launch(BINARY).config(&file(0)).start();
    let client = gateway.client();
    let posting = async {
        for n in 0..MESSAGES {
            assert_eq!(client.post(&format!("k{n}"), &email("ada@example.com", "load")).await.status, 202, "k{n}");
        }
    };
    let mut rounds = 0;
    let reloading = async {
        loop {
            rounds += 1;
            write(&stage, &file(rounds));
            gateway.signal("HUP");
            until_said(&gateway, "the configuration was reloaded", rounds).await;
        }
    };
    tokio::select! {
        () = posting => {}
        () = reloading => {}
    }
    assert!(rounds > 3, "{rounds} reloads");
    for n in 0..MESSAGES {
        let status = client.until_closed(&format!("k{n}"), PATIENCE).await;
        assert_eq!(status["status"], "accepted", "{status}");
        assert_eq!(sends_of(&a, delivery_of(&status)) + sends_of(&b, delivery_of(&status)), 1, "{status}");
    }
    assert_eq!(a.taken() + b.taken(), u64::try_from(MESSAGES).unwrap());
    assert!(a.taken() > 0 && b.taken() > 0);
}
