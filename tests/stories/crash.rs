//! `kill -9` at every boundary of the send path, on both databases (S-238). The provider's ledger is the oracle:
//! nothing is lost, and what may have been doubled says so.

use std::time::Duration;

use serde_json::Value;
use tidings_tests::client::{Client, email};
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");

/// Where the process dies, and what that has to lead to: how often the provider takes the message, and whether the
/// status says that it may have been doubled.
const BOUNDARIES: &[(&str, usize, bool)] = &[
    ("accept.before_commit", 1, false),
    ("accept.after_commit", 1, false),
    ("claim.before_commit", 1, false),
    ("claim.after_commit", 1, true),
    ("dispatch.before_call", 1, true),
    ("send.before_first_byte", 1, true),
    ("send.after_body", 1, true),
    ("send.after_dot", 2, true),
    ("send.after_reply", 2, true),
    ("dispatch.before_finish", 2, true),
    ("finish.before_events", 2, true),
    ("finish.before_commit", 2, true),
    ("finish.after_commit", 1, false),
];

on_both_databases!(a_crash_at_any_boundary_loses_nothing_and_tells_of_doubles);

async fn a_crash_at_any_boundary_loses_nothing_and_tells_of_doubles(stage: Stage) {
    let stage = stage.faster(60);
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config("[ambiguity.transactional]\nhold = \"2m\"");

    for (boundary, sends, flagged) in BOUNDARIES {
        let key = format!("at-{boundary}");
        let body = email("ada@example.com", boundary);
        let mut doomed = launch.clone().env("TIDINGS_FAIL_POINT", boundary).start();
        let client = Client::new(&doomed.url().expect("it is ready"), &doomed.api_key());
        // The answer may be lost with the process; the caller repeats its key after the restart.
        let _ = client.try_post(&key, &body).await;
        let died = doomed.wait(Duration::from_secs(20));
        assert!(died.is_some(), "{boundary} was not reached:\n{}", doomed.log());

        let gateway = launch.start();
        let client = gateway.client();
        let known = client.by_key(&key).await.status;
        assert_eq!(known, if *boundary == "accept.before_commit" { 404 } else { 200 }, "{boundary}");
        let answer = client.post(&key, &body).await;
        assert_eq!(answer.status, 202, "{boundary}: {}", answer.text);
        assert_eq!(answer.header("idempotent-replayed").is_some(), known == 200, "{boundary}");

        let status = client.until_closed(&key, Duration::from_secs(60)).await;
        let delivery = &status["deliveries"][0];
        assert_eq!(delivery["state"], "accepted", "{boundary}: {status}");
        assert_eq!(sends_of(&peer, id_of(delivery)), *sends, "{boundary}: {status}");
        assert_eq!(delivery["possible_duplicate"], *flagged, "{boundary}: {status}");
    }
}

fn id_of(delivery: &Value) -> &str {
    delivery["id"].as_str().expect("a delivery has an id")
}
