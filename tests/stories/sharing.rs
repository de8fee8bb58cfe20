//! Who shares accounts: messages by weight, tenants not at all where an account belongs to one.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::{Client, email, of_category};
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

on_both_databases!(
    messages_are_shared_out_by_weight_and_a_reload_shares_them_anew,
    a_burst_keeps_the_shares_also_where_it_fills_the_slots,
    what_is_drawn_for_an_account_that_hangs_goes_by_the_other_once_its_patience_is_over,
    a_message_whose_drawn_account_is_down_goes_by_the_other_and_says_so,
    an_account_of_a_tenant_is_its_own_and_so_is_its_trouble,
);

/// Puts another configuration in place, which the gateway takes.
async fn reload(stage: &Stage, client: &Client, text: &str) {
    let unfinished = stage.directory().join("tidings.toml.next");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, stage.directory().join("tidings.toml")).unwrap();
    let answer = client.call("POST", "/v1/config/reload", &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Account and outcome of every attempt.
fn attempts(status: &Value) -> Vec<(&str, &str)> {
    let attempts = status["deliveries"][0]["attempts"].as_array().unwrap();
    attempts.iter().map(|attempt| (attempt["account"].as_str().unwrap(), attempt["outcome"].as_str().unwrap())).collect()
}

/// Posts messages and returns how many went by `b`; each goes once, where its status says, and none as a failover.
async fn carried_by_b(client: &Client, (a, b): (&ScriptedSmtp, &ScriptedSmtp), prefix: &str, messages: usize) -> usize {
    for n in 0..messages {
        assert_eq!(client.post(&format!("{prefix}-{n}"), &email("ada@example.com", "shared")).await.status, 202);
    }
    let mut by_b = 0;
    for n in 0..messages {
        let status = client.until_closed(&format!("{prefix}-{n}"), PATIENCE).await;
        let delivery = &status["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["via_failover"]), (&json!("accepted"), &json!(false)), "{status}");
        let sent = [a, b].map(|peer| sends_of(peer, delivery["id"].as_str().unwrap()));
        assert_eq!(sent, if delivery["account"] == "b" { [0, 1] } else { [1, 0] }, "{status}");
        by_b += sent[1];
    }
    by_b
}

async fn messages_are_shared_out_by_weight_and_a_reload_shares_them_anew(stage: Stage) {
    let (a, b) = (ScriptedSmtp::start(Behaviour::default()).await, ScriptedSmtp::start(Behaviour::default()).await);
    // So many slots that nobody is sent elsewhere for want of one.
    let accounts = format!("{}concurrency = 400\n{}concurrency = 400\n", smtp_account("a", &a), smtp_account("b", &b));
    let file = |of_a: u16, of_b: u16| {
        let route = format!("[{{ account = \"a\", weight = {of_a} }}, {{ account = \"b\", weight = {of_b} }}]");
        format!("{accounts}[routes.email]\ndefault = {route}\n")
    };
    let gateway = stage.launch(BINARY).config(&file(9, 1)).start();
    let client = gateway.client();
    // Thirty are to be expected; five standard deviations are 26.
    let by_b = carried_by_b(&client, (&a, &b), "nine", 300).await;
    assert!((4..=56).contains(&by_b), "{by_b} of 300");
    reload(&stage, &client, &file(1, 1_000)).await;
    let by_b = carried_by_b(&client, (&a, &b), "one", 50).await;
    assert!(by_b >= 48, "{by_b} of 50");

    let checked = Command::new(BINARY).args(["check", "--config"]).arg(stage.directory().join("tidings.toml")).output().unwrap();
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(said.contains("shares   routes.email.default: a 0.1%, b 99.9%"), "{said}");
}

/// Waits until it is so.
async fn until(reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "not so in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Posts so many messages of a category at once.
async fn post_burst(client: &Client, category: &str, messages: usize) {
    let items: Vec<Value> = (0..messages)
        .map(|n| {
            let mut item = of_category(category, "ada@example.com");
            item["idempotency_key"] = json!(format!("burst-{n}"));
            item
        })
        .collect();
    for part in items.chunks(100) {
        let answer = client.post_batch(&json!({"notifications": part})).await;
        assert!(answer.status == 200 || answer.status == 202, "{}", answer.text);
    }
}

/// Two accounts of four slots that share everything nine to one.
fn nine_to_one(a: &ScriptedSmtp, b: &ScriptedSmtp) -> String {
    let accounts = format!("{}concurrency = 4\n{}concurrency = 4\n", smtp_account("a", a), smtp_account("b", b));
    let route = "[routes.email]\ndefault = [{ account = \"a\", weight = 9 }, { account = \"b\", weight = 1 }]\n";
    format!("{accounts}{route}[categories.digest]\nclass = \"bulk\"\n[categories.receipt]\n")
}

async fn a_burst_keeps_the_shares_also_where_it_fills_the_slots(stage: Stage) {
    let (a, b) = (ScriptedSmtp::start(Behaviour::default()).await, ScriptedSmtp::start(Behaviour::default()).await);
    let gateway = stage.launch(BINARY).config(&nine_to_one(&a, &b)).start();
    post_burst(&gateway.client(), "digest", 1_000).await;
    until(|| a.taken() + b.taken() >= 1_000).await;
    // A hundred are to be expected; five standard deviations are 47.
    assert!((53..=147).contains(&b.taken()), "{} of 1000 by b", b.taken());
    assert_eq!(a.taken() + b.taken(), 1_000);
}

async fn what_is_drawn_for_an_account_that_hangs_goes_by_the_other_once_its_patience_is_over(stage: Stage) {
    let hanging = Behaviour::default().always(Phase::Dot, Act::Silence);
    let (a, b) = (ScriptedSmtp::start(hanging).await, ScriptedSmtp::start(Behaviour::default()).await);
    let gateway = stage.launch(BINARY).config(&nine_to_one(&a, &b)).start();
    post_burst(&gateway.client(), "receipt", 200).await;
    // What its slots hold stays with it: it may have been taken.
    until(|| b.taken() >= 196).await;
    assert!(b.taken() <= 200 && a.taken() <= 4);
}

async fn a_message_whose_drawn_account_is_down_goes_by_the_other_and_says_so(stage: Stage) {
    let refusing = Behaviour::default().always(Phase::Rcpt, Act::reply("451 4.3.0 Try later"));
    let (a, b) = (ScriptedSmtp::start(refusing).await, ScriptedSmtp::start(Behaviour::default()).await);
    let launch = stage.launch(BINARY).config(&smtp_account("a", &a)).config(&smtp_account("b", &b));
    let route = "[routes.email]\ncritical = [{ account = \"a\", weight = 1 }, { account = \"b\", weight = 1 }]\n[categories.login-code]\nclass = \"critical\"\n";
    let gateway = launch.config(route).start();
    let client = gateway.client();
    for n in 0..20 {
        client.post(&format!("k{n}"), &of_category("login-code", "ada@example.com")).await;
    }
    let mut moved = 0;
    for n in 0..20 {
        let status = client.until_closed(&format!("k{n}"), PATIENCE).await;
        let is_moved = match attempts(&status)[..] {
            [("b", "accepted")] => false,
            [("a", "not_sent"), ("b", "accepted")] => true,
            _ => panic!("{status}"),
        };
        assert_eq!(status["deliveries"][0]["via_failover"], is_moved, "{status}");
        moved += usize::from(is_moved);
    }
    assert!((1..20).contains(&moved), "{moved} of 20");
    assert_eq!((a.taken(), b.taken()), (0, 20));
}

/// S-108, on both databases: what is wrong with the account of one tenant is nobody else's business.
async fn an_account_of_a_tenant_is_its_own_and_so_is_its_trouble(stage: Stage) {
    let broken = Behaviour::default().always(Phase::Greeting, Act::reply("554 5.7.1 go away"));
    let (own, shared) = (ScriptedSmtp::start(broken).await, ScriptedSmtp::start(Behaviour::default()).await);
    let owned = format!("{}tenant = \"acme\"\n", smtp_account("own", &own));
    let both = smtp_account("shared", &shared);
    let launch = stage.launch(BINARY).config(&owned).config(&both);
    // The tenant is made after the process has started, or between two starts where the store is a file.
    let early = launch.start();
    assert!(early.log().contains("this account belongs to a tenant that is not there yet"), "{}", early.log());
    let early = if stage.is_postgres() {
        Some(early)
    } else {
        early.terminate(PATIENCE);
        None
    };
    let url = stage.store_url().map_or_else(|| format!("sqlite://{}", stage.store_file().display()), str::to_owned);
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY).args(arguments).env("TIDINGS__STORE__URL", &url).current_dir(stage.directory()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    run(&["tenants", "create", "acme"]);
    let key = run(&["keys", "create", "shop", "--tenant", "acme"]);
    let gateway = early.unwrap_or_else(|| launch.start());
    let (client, acme) = (gateway.client(), Client::new(&gateway.url().unwrap(), &key));

    for n in 0..10 {
        for client in [&acme, &client] {
            assert_eq!(client.post(&format!("k{n}"), &email("ada@example.com", "hello")).await.status, 202);
        }
    }
    for n in 0..10 {
        let status = client.until_closed(&format!("k{n}"), PATIENCE).await;
        assert_eq!((attempts(&status), &status["deliveries"][0]["via_failover"]), (vec![("shared", "accepted")], &json!(false)));
        let status = acme.until_closed(&format!("k{n}"), PATIENCE).await;
        assert_eq!(attempts(&status).last(), Some(&("shared", "accepted")), "{status}");
        assert_eq!(status["deliveries"][0]["via_failover"], true, "{status}");
    }
    assert!(own.connections() > 0 && own.taken() == 0);
    assert_eq!(shared.taken(), 20);

    // Mended, with settings of its own changed so that it is tried at once; and the other one belongs to somebody too.
    own.behave(|_| Behaviour::default());
    let mended = format!("{owned}max_messages_per_connection = 50\n");
    reload(&stage, &client, &format!("{mended}{both}tenant = \"default\"\n")).await;
    for (client, account) in [(&acme, "own"), (&client, "shared")] {
        client.post("again", &email("ada@example.com", "hello")).await;
        let status = client.until_closed("again", PATIENCE).await;
        assert_eq!((attempts(&status), &status["deliveries"][0]["via_failover"]), (vec![(account, "accepted")], &json!(false)));
    }
    let accounts = client.get("/v1/accounts").await.json();
    assert_eq!((&accounts["items"][0]["tenant"], &accounts["items"][1]["tenant"]), (&json!("acme"), &json!("default")));
    reload(&stage, &client, &format!("{mended}state = \"off\"\n{both}tenant = \"default\"\n")).await;
    let refused = acme.post("refused", &email("ada@example.com", "hello")).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("no_route")));
    assert_eq!((own.taken(), shared.taken()), (1, 21));
}
