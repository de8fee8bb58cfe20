//! Addresses that are not written to, from the refusal that makes one to the copy that is left out, seen from outside.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::process::{Gateway, Launch};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

on_both_databases!(
    a_mailbox_that_does_not_exist_is_not_asked_for_twice,
    a_copy_that_does_not_exist_is_refused_once_and_then_left_out,
    a_rate_limit_in_a_550_suppresses_nobody,
    suppressed_copies_leave_envelope_and_headers_and_are_recorded,
    an_address_suppressed_between_two_attempts_is_not_tried_again,
    rehearsals_work_twice_and_only_one_of_them_suppresses,
    a_list_is_taken_over_from_a_file_and_printed_again,
);

async fn with_relay(stage: &Stage, behaviour: Behaviour) -> (ScriptedSmtp, Launch) {
    let peer = ScriptedSmtp::start(behaviour).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer));
    (peer, launch)
}

async fn suppress(client: &Client, addresses: &[&str]) {
    let items: Vec<Value> = addresses.iter().map(|address| json!({ "address": address })).collect();
    let answer = client.call("POST", "/v1/suppressions", &json!({ "items": items })).await;
    assert!(answer.json()["results"].as_array().expect("results").iter().all(|result| result["status"] == 201), "{}", answer.text);
}

async fn found(client: &Client, address: &str) -> Vec<Value> {
    let answer = client.call("POST", "/v1/suppressions/lookup", &json!({ "address": address })).await;
    answer.json()["items"].as_array().expect("a list").clone()
}

/// What became of the copies of a delivery.
fn copies(delivery: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let copies = delivery["copies"].as_array().expect("a list");
    let mut copies: Vec<String> = copies.iter().map(|copy| format!("{} {}", text(&copy["to"]), text(&copy["state"]))).collect();
    copies.sort();
    copies
}

/// How often the relay was asked for this recipient.
fn asked_for(peer: &ScriptedSmtp, address: &str) -> usize {
    peer.commands().iter().filter(|command| command.line.starts_with("RCPT") && command.line.contains(address)).count()
}

async fn a_mailbox_that_does_not_exist_is_not_asked_for_twice(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default().recipient("Gone@example.com", "550 5.1.1 User unknown")).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("first", &email("Gone@example.com", "Hello")).await;
    let refused = client.until_closed("first", PATIENCE).await["deliveries"][0].clone();
    assert_eq!(
        (&refused["state"], &refused["suppression"]["reason"], &refused["suppression"]["scope"]),
        (&json!("failed"), &json!("hard_bounce"), &json!("all"))
    );
    client.post("second", &email("gone@EXAMPLE.com", "Hello again")).await;
    let stopped = client.until_closed("second", PATIENCE).await;
    let delivery = &stopped["deliveries"][0];
    assert_eq!(
        (&stopped["status"], &delivery["reason"], &delivery["attempt_count"]),
        (&json!("suppressed"), &json!("suppressed"), &json!(0))
    );
    assert_eq!(delivery["suppression"]["id"], refused["suppression"]["id"], "it names what stopped it");
    assert_eq!(asked_for(&peer, "one@example.com"), 1, "in either spelling");

    let listed = found(&client, "gone@example.com").await;
    assert_eq!((&listed[0]["address"], &listed[0]["source"], listed.len()), (&json!("Gone@example.com"), &json!("provider"), 1));
    assert_eq!(listed[0]["delivery_id"], refused["id"], "it names where it was found out");
    let path = format!("/v1/suppressions/{}", listed[0]["id"].as_str().expect("an id"));
    assert_eq!(client.call("DELETE", &path, &json!({"reason": "the mailbox is back"})).await.status, 200);
    peer.behave(|_| Behaviour::default());
    client.post("third", &email("gone@example.com", "Hello")).await;
    assert_eq!(client.until_closed("third", PATIENCE).await["status"], "accepted");
    assert!(!gateway.kill().to_lowercase().contains("gone@example.com"), "an address reached the log");
}

/// S-149: the refusal of a copy suppresses the copy alone; the message goes its way.
async fn a_copy_that_does_not_exist_is_refused_once_and_then_left_out(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default().recipient("Gone@example.com", "550 5.1.1 User unknown")).await;
    let gateway = launch.start();
    let client = gateway.client();
    let mut message = email("ada@example.com", "Hello");
    message["email"]["cc"] = json!(["Gone@example.com", "bob@example.com"]);
    client.post("first", &message).await;
    let first = client.until_closed("first", PATIENCE).await["deliveries"][0].clone();
    assert_eq!((&first["state"], first.get("suppression").filter(|own| !own.is_null())), (&json!("accepted"), None));
    assert_eq!(copies(&first), ["Gone@example.com refused", "bob@example.com accepted"]);
    let listed = found(&client, "gone@example.com").await;
    assert_eq!((listed.len(), &listed[0]["address"]), (1, &json!("Gone@example.com")));
    assert_eq!(listed[0]["delivery_id"], first["id"], "it names where it was found out");
    assert_eq!(
        (&listed[0]["reason"], &listed[0]["scope"], &listed[0]["source"]),
        (&json!("hard_bounce"), &json!("all"), &json!("provider"))
    );
    for others in ["ada@example.com", "bob@example.com"] {
        assert_eq!(found(&client, others).await, Vec::<Value>::new(), "{others}");
    }

    client.post("second", &message).await;
    let second = client.until_closed("second", PATIENCE).await["deliveries"][0].clone();
    assert_eq!((&second["state"], copies(&second)), (&json!("accepted"), vec!["gone@example.com suppressed".to_owned()]));
    client.post("third", &email("gone@EXAMPLE.com", "Hello")).await;
    assert_eq!(client.until_closed("third", PATIENCE).await["status"], "suppressed");
    assert_eq!(asked_for(&peer, "one@example.com"), 1, "by the first message alone");
    assert!(!gateway.kill().to_lowercase().contains("gone@example.com"), "an address reached the log");
}

async fn a_rate_limit_in_a_550_suppresses_nobody(stage: Stage) {
    let behaviour = Behaviour::default()
        .recipient("a@example.com", "550 Connection frequency limited")
        .recipient("b@example.com", "550 5.7.1 Message rejected: listed on a block list");
    let (_peer, launch) = with_relay(&stage, behaviour).await;
    let gateway = launch.start();
    let client = gateway.client();
    for address in ["a@example.com", "b@example.com"] {
        client.post(address, &email(address, "Hello")).await;
        client.until(address, PATIENCE, |status| !status["deliveries"][0]["attempts"].as_array().is_none_or(Vec::is_empty)).await;
        client.until(address, PATIENCE, |status| status["deliveries"][0]["state"] != "dispatching").await;
        assert_eq!(found(&client, address).await, Vec::<Value>::new(), "{address}");
    }
}

async fn suppressed_copies_leave_envelope_and_headers_and_are_recorded(stage: Stage) {
    let (peer, launch) = with_relay(&stage, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    suppress(&client, &["bob@example.com", "dan@example.com", "eve@example.com"]).await;
    let mut body = email("ada@example.com", "Minutes");
    body["email"]["cc"] = json!(["Bob <BOB@example.com>", "Carol <carol@example.com>"]);
    body["email"]["bcc"] = json!(["dan@example.com"]);
    body["email"]["also_to"] = json!(["eve@example.com", "fay@example.com"]);
    client.post("minutes", &body).await;
    let status = client.until_closed("minutes", PATIENCE).await;
    assert_eq!(status["status"], "accepted");
    let ledger = peer.ledger();
    assert_eq!(ledger[0].recipients, ["ada@example.com", "fay@example.com", "carol@example.com"]);
    let text = String::from_utf8(ledger[0].message.clone()).expect("the message is ASCII").to_lowercase();
    for gone in ["bob", "dan@", "eve@"] {
        assert!(!text.contains(gone), "{gone} is in the message:\n{text}");
    }
    assert!(text.contains("carol@example.com") && text.contains("fay@example.com"));
    assert_eq!(
        copies(&status["deliveries"][0]),
        ["bob@example.com suppressed", "dan@example.com suppressed", "eve@example.com suppressed"]
    );

    // A suppressed `to` ends its delivery, and nobody gets the message.
    suppress(&client, &["ada@example.com"]).await;
    client.post("again", &body).await;
    assert_eq!(client.until_closed("again", PATIENCE).await["status"], "suppressed");
    assert_eq!(peer.taken(), 1);
}

async fn an_address_suppressed_between_two_attempts_is_not_tried_again(stage: Stage) {
    let stage = stage.faster(120);
    let greylisted = Behaviour::default().always(Phase::Rcpt, Act::reply("450 4.2.0 Greylisted, try again in 5 minutes"));
    let (peer, launch) = with_relay(&stage, greylisted).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("grey", &email("grey@example.com", "Hello")).await;
    client.until("grey", PATIENCE, |status| status["deliveries"][0]["state"] == "retry_wait").await;
    suppress(&client, &["grey@example.com"]).await;
    let tried = asked_for(&peer, "grey@example.com");
    let ended = client.until_closed("grey", PATIENCE).await;
    assert_eq!((&ended["status"], &ended["deliveries"][0]["reason"]), (&json!("suppressed"), &json!("suppressed")), "{ended}");
    // One retry may have been on its way when the suppression came, and no other.
    assert!(asked_for(&peer, "grey@example.com") <= tried + 1);
    assert_eq!(peer.taken(), 0);
}

async fn rehearsals_work_twice_and_only_one_of_them_suppresses(stage: Stage) {
    let gateway = stage.launch(BINARY).start();
    let client = gateway.client();
    for (key, address, state, reason) in [
        ("r1", "reject@sandbox.test", "failed", "recipient_refused"),
        ("r2", "reject@sandbox.test", "failed", "recipient_refused"),
        ("s1", "suppressed@sandbox.test", "suppressed", "provider_suppressed"),
        ("s2", "suppressed@sandbox.test", "suppressed", "suppressed"),
    ] {
        client.post(key, &email(address, "Hello")).await;
        let delivery = client.until_closed(key, PATIENCE).await["deliveries"][0].clone();
        assert_eq!((delivery["state"].as_str(), delivery["reason"].as_str()), (Some(state), Some(reason)), "{key}");
    }
    assert_eq!(found(&client, "reject@sandbox.test").await, Vec::<Value>::new());
    let rehearsed = found(&client, "suppressed@sandbox.test").await;
    assert_eq!((rehearsed.len(), &rehearsed[0]["reason"]), (1, &json!("provider_suppressed")));
}

fn tidings(gateway: &Gateway, arguments: &[&str]) -> Output {
    Command::new(BINARY)
        .args(arguments)
        .env("TIDINGS_URL", gateway.url().expect("it is ready"))
        .env("TIDINGS_API_KEY", gateway.api_key())
        .output()
        .expect("the binary can be started")
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn a_list_is_taken_over_from_a_file_and_printed_again(stage: Stage) {
    let gateway = stage.launch(BINARY).start();
    let client = gateway.client();
    let file = stage.directory().join("list.csv");
    let mut text = "email,reason,note\r\n".to_owned();
    for number in 0..1_200 {
        text.push_str(&format!("a{number}@example.com,hard_bounce,\"from, elsewhere\"\r\n"));
    }
    text.push_str("nobody,hard_bounce,\r\nb@example.com,mood,\r\nc@example.com\r\n");
    std::fs::write(&file, text).expect("the file can be written");
    let file = file.to_str().expect("a plain path");

    let (code, out, err) = said(&tidings(&gateway, &["suppressions", "import", file, "--dry-run"]));
    assert_eq!((code, out.as_str()), (Some(1), "1203 entries: 1200 fine, 3 refused; nothing was sent"), "{err}");
    assert_eq!(found(&client, "a7@example.com").await.len(), 0);
    let (code, out, err) = said(&tidings(&gateway, &["suppressions", "import", file]));
    assert_eq!((code, out.as_str()), (Some(1), "1203 entries: 1200 added, 0 there already, 3 refused"), "{err}");
    for line in ["line 1202: address: ", "line 1203: reason: ", "line 1204: 1 fields where"] {
        assert!(err.contains(line), "{line:?} is not in {err:?}");
    }
    let (_, out, _) = said(&tidings(&gateway, &["suppressions", "import", file, "--json"]));
    let again: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&again["added"], &again["existing"], again["refused"][0]["line"].as_u64()), (&json!(0), &json!(1200), Some(1202)));
    assert_eq!(found(&client, "A7@example.com").await.len(), 1);

    // What is printed can be taken over again, whole.
    let (code, out, _) = said(&tidings(&gateway, &["suppressions", "export"]));
    assert_eq!((code, out.lines().count()), (Some(0), 1_201));
    assert!(out.contains("a7@example.com,email,hard_bounce,all,\"from, elsewhere\""), "{out}");
    let copy = stage.directory().join("copy.csv");
    std::fs::write(&copy, &out).expect("the file can be written");
    let (code, out, _) = said(&tidings(&gateway, &["suppressions", "import", copy.to_str().expect("a plain path")]));
    assert_eq!((code, out.as_str()), (Some(0), "1200 entries: 0 added, 1200 there already, 0 refused"));

    let (code, out, _) = said(&tidings(&gateway, &["suppressions", "add", "Bob@example.com", "--scope", "bulk", "--note", "asked"]));
    assert!(code == Some(0) && out.starts_with("sup_") && out.ends_with(" added"), "{out}");
    let (code, out, _) = said(&tidings(&gateway, &["suppressions", "remove", "bob@example.com", "--reason", "changed their mind"]));
    assert!(code == Some(0) && out.ends_with(" removed"), "{out}");
    let (code, _, err) = said(&tidings(&gateway, &["suppressions", "remove", "bob@example.com", "--reason", "once more"]));
    assert!(code != Some(0) && err.contains("not suppressed"), "{err}");
    let (code, out, _) = said(&tidings(&gateway, &["suppressions", "list", "--reason", "complaint"]));
    assert_eq!((code, out.as_str()), (Some(0), "nobody is suppressed"));
}
