//! What operators do to running processes: by the command line, by switches, by a service manager.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
/// Within which a switch is in force everywhere.
const SWITCHED: Duration = Duration::from_secs(2);

on_both_databases!(
    the_command_line_sends_looks_pauses_and_tests,
    a_switch_stops_every_instance_within_two_seconds_and_loses_nothing,
    a_service_manager_is_told_when_it_serves_and_when_it_stops,
    mail_leaves_signed_and_check_prints_what_to_publish,
    an_account_that_is_gone_from_the_file_is_named_at_start,
    metrics_count_what_left,
    keys_are_made_past_the_server_where_it_does_not_have_the_store_to_itself,
);

fn client_of(gateway: &Gateway) -> Client {
    Client::new(&gateway.url().expect("it is ready"), &gateway.api_key())
}

async fn tidings(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(BINARY);
    command.args(arguments).env("TIDINGS_URL", gateway.url().unwrap()).env("TIDINGS_API_KEY", gateway.api_key());
    command.output().await.unwrap()
}

/// What a command that went well says.
async fn says(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = tidings(gateway, arguments).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

async fn json_of(gateway: &Gateway, arguments: &[&str]) -> Value {
    serde_json::from_str(&says(gateway, &[arguments, &["--json"]].concat()).await).unwrap()
}

async fn the_command_line_sends_looks_pauses_and_tests(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = client_of(&gateway);

    let send = ["send", "ada@example.com", "--subject", "Hello", "--text", "It works.", "--idempotency-key"];
    let sent = json_of(&gateway, &[&send[..], &["k1"]].concat()).await;
    assert!(sent["id"].as_str().unwrap().starts_with("ntf_"));
    client.until_closed("k1", PATIENCE).await;
    for name in ["k1", sent["id"].as_str().unwrap()] {
        assert_eq!(json_of(&gateway, &["status", name]).await["status"], "accepted");
        assert!(says(&gateway, &["status", name]).await.starts_with("accepted  ntf_"));
    }

    let paused = json_of(&gateway, &["accounts", "pause", "relay", "--for", "1h", "--reason", "storm"]).await;
    assert_eq!((&paused["why"], &paused["reason"]), (&json!("paused"), &json!("storm")));
    says(&gateway, &[&send[..], &["k2"]].concat()).await;
    assert_eq!(json_of(&gateway, &["status", "k2"]).await["deliveries"][0]["wait_reason"], "paused");
    assert!(says(&gateway, &["accounts"]).await.contains("relay  smtp  on  open 0  takes nothing: paused until "));
    says(&gateway, &["accounts", "resume", "relay"]).await;
    client.until_closed("k2", PATIENCE).await;
    assert_eq!(peer.taken(), 2);

    assert_eq!(json_of(&gateway, &["accounts", "test", "relay", "--to", "bob@example.com"]).await["outcome"], "accepted");
    assert_eq!(peer.ledger().pop().unwrap().recipients, ["bob@example.com"]);

    for (arguments, said) in [
        (&["status", "unknown"][..], "404 not_found"),
        (&["pause", "everything"], "404 not_found"),
        (&["accounts", "pause", "gone"], "404 not_found"),
        (&["send", "nobody", "--subject", "s", "--text", "t"], "/to"),
    ] {
        let output = tidings(&gateway, arguments).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && err.contains(said), "{arguments:?}: {err}");
    }
    let mut wrong_key = tokio::process::Command::new(BINARY);
    wrong_key.args(["accounts"]).env("TIDINGS_URL", gateway.url().unwrap()).env("TIDINGS_API_KEY", "tdk_live_secret");
    let output = wrong_key.output().await.unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("401 unauthorized") && !err.contains("tdk_live_secret"), "{err}");
}

async fn a_switch_stops_every_instance_within_two_seconds_and_loses_nothing(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer));
    let first = launch.start();
    let second = stage.is_postgres().then(|| launch.start());
    let client = client_of(&first);
    says(&first, &["pause", "class:transactional", "--for", "1h", "--reason", "storm"]).await;
    tokio::time::sleep(SWITCHED).await;
    let other = second.as_ref().map_or_else(|| client_of(&first), |second| Client::new(&second.url().unwrap(), &first.api_key()));
    for n in 0..6 {
        let by = if n % 2 == 0 { &client } else { &other };
        assert_eq!(by.post(&format!("k{n}"), &email("ada@example.com", &format!("message {n}"))).await.status, 202);
    }
    // Two polls of every lane pass.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(peer.taken(), 0);
    for by in [&client, &other] {
        assert_eq!(by.by_key("k0").await.json()["deliveries"][0]["wait_reason"], "paused");
    }
    says(&first, &["resume", "class:transactional"]).await;
    for n in 0..6 {
        client.until_closed(&format!("k{n}"), PATIENCE).await;
    }
    assert_eq!(peer.taken(), 6);
}

async fn a_service_manager_is_told_when_it_serves_and_when_it_stops(stage: Stage) {
    let path = stage.directory().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let gateway = stage.launch(BINARY).env("NOTIFY_SOCKET", path.to_str().unwrap()).start();
    let mut told = [0; 64];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1");
    let (ended_well, log) = gateway.terminate(PATIENCE);
    assert!(ended_well, "{log}");
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"STOPPING=1");
}

async fn mail_leaves_signed_and_check_prints_what_to_publish(stage: Stage) {
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/dkim/ed25519.pem");
    let dkim = format!("[dkim.\"example.com\"]\nselectors = [{{ selector = \"s1\", key = {{ file = \"{key}\" }} }}]\n");
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config(&dkim).start();
    let client = client_of(&gateway);
    client.post("k", &email("ada@example.com", "Hello")).await;
    client.until_closed("k", PATIENCE).await;
    let arrived = String::from_utf8(peer.ledger()[0].message.clone()).unwrap();
    let unfolded = arrived.replace("\r\n ", " ");
    assert!(unfolded.starts_with("DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed; d=example.com; s=s1;"), "{arrived}");

    let config = stage.directory().join("tidings.toml");
    let checked = Command::new(BINARY).args(["check", "--config"]).arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("publish  s1._domainkey.example.com. TXT \"v=DKIM1; k=ed25519; p="), "{said}");
    assert!(!said.contains("PRIVATE"), "{said}");
}

async fn an_account_that_is_gone_from_the_file_is_named_at_start(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    stage.launch(BINARY).config(&smtp_account("old-relay", &peer)).start().terminate(PATIENCE);
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let log = gateway.log();
    assert!(log.lines().any(|line| line.contains("\"old-relay\"") && line.contains("warn")), "{log}");
    assert!(!log.lines().any(|line| line.contains("\"relay\"") && line.contains("gone")), "{log}");
}

async fn metrics_count_what_left(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = client_of(&gateway);
    client.post("k", &email("ada@example.com", "Hello")).await;
    client.until_closed("k", PATIENCE).await;
    let text = client.get("/metrics").await.text;
    let sent = "tidings_attempts_total{account=\"relay\",class=\"transactional\",outcome=\"accepted\",kind=\"first\"} 1";
    assert!(text.lines().any(|line| line == sent), "{text}");
    for counted in ["tidings_batch_rows_count{part=\"accept\"} 1", "tidings_batch_rows_count{part=\"finish\"} 1"] {
        assert!(text.lines().any(|line| line == counted), "{counted}\n{text}");
    }
    assert!(!text.contains("ada") && !text.contains("example.com"), "{text}");
}

async fn keys_are_made_past_the_server_where_it_does_not_have_the_store_to_itself(stage: Stage) {
    let gateway = stage.launch(BINARY).start();
    let url = stage.store_url().map_or_else(|| format!("sqlite://{}", stage.store_file().display()), str::to_owned);
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY).args(arguments).env("TIDINGS__STORE__URL", &url).current_dir(stage.directory()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    if !stage.is_postgres() {
        for (arguments, way_out) in [
            (&["keys", "create", "shop"][..], "ask it for keys over HTTP (/v1/keys, with a key of scope admin), or stop it first"),
            (&["tenants", "create", "acme"], "stop it first"),
            (&["migrate", "--dry-run"], "stop it first"),
            (&["export", "--freeze"], "stop it first"),
        ] {
            let (code, out, err) = run(arguments);
            assert_eq!((code, out.as_str()), (Some(1), ""), "{arguments:?}: {err}");
            assert!(err.contains("a running server has this store to itself: ") && err.contains(way_out), "{arguments:?}: {err}");
        }
        gateway.terminate(PATIENCE);
    }
    // The key alone, for scripts.
    let (code, key, err) = run(&["keys", "create", "shop"]);
    assert_eq!((code, err.as_str(), key.lines().count()), (Some(0), "", 1), "{key}{err}");
    let made: Value = serde_json::from_str(&run(&["keys", "create", "other", "--json"]).1).unwrap();
    let (_, listed, _) = run(&["keys", "list", "--json"]);
    assert!(listed.contains(made["id"].as_str().unwrap()), "{listed}");
    assert!(!listed.contains(key.trim()) && !listed.contains(made["key"].as_str().unwrap()), "{listed}");
    let gateway = stage.launch(BINARY).start();
    for key in [key.trim(), made["key"].as_str().unwrap()] {
        assert_eq!(Client::new(&gateway.url().unwrap(), key).get("/v1/notifications").await.status, 200);
    }
}

#[test]
fn a_reader_who_has_seen_enough_ends_a_command_quietly() {
    use std::process::Stdio;
    let mut printing = Command::new(BINARY).arg("openapi").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // The contract is longer than a pipe holds.
    drop(printing.stdout.take());
    let ended = printing.wait_with_output().expect("it ends");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_else_is_said() {
    let (directory, taken) = (tempfile::tempdir().expect("a folder"), std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let address = taken.local_addr().expect("it has one").to_string();
    let started = Command::new(BINARY).current_dir(directory.path()).env("TIDINGS__SERVER__BIND", &address).output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&started.stdout), String::from_utf8_lossy(&started.stderr));
    assert_eq!((started.status.code(), out.as_ref()), (Some(1), ""), "{err}");
    assert!(err.contains(&format!("{address} is in use by another process")) && err.contains("TIDINGS__SERVER__BIND"), "{err}");
}
