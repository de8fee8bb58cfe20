//! A relay that fails in one phase at a time: what each fault leads to, in attempts, state and sends (S-049, S-242).
//! A connection lost in the middle of a message is among the recorded sessions of the adapter's tests: here a message of
//! ordinary size is in the socket as a whole before the relay can close.

use std::time::Duration;

use tidings_tests::client::email;
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");

/// What a fault leads to.
struct Fault {
    name: &'static str,
    phase: Phase,
    act: Act,
    outcomes: &'static [&'static str],
    status: &'static str,
    sends: usize,
    flagged: bool,
}

fn faults() -> Vec<Fault> {
    let again: &[&str] = &["not_sent", "accepted"];
    let unsure: &[&str] = &["ambiguous", "accepted"];
    let fault = |name, phase, act, outcomes, status, sends, flagged| Fault { name, phase, act, outcomes, status, sends, flagged };
    vec![
        fault("too busy at the greeting", Phase::Greeting, Act::ReplyAndDrop("421 4.3.2 too busy".into()), again, "accepted", 1, false),
        fault("closed at the greeting", Phase::Greeting, Act::Drop, again, "accepted", 1, false),
        fault("silent at the greeting", Phase::Greeting, Act::Silence, again, "accepted", 1, false),
        fault("closed at EHLO", Phase::Ehlo, Act::Drop, again, "accepted", 1, false),
        fault("temporary refusal at MAIL", Phase::Mail, Act::reply("451 4.3.0 try later"), again, "accepted", 1, false),
        fault("silent at MAIL", Phase::Mail, Act::Silence, again, "accepted", 1, false),
        fault("temporary refusal at RCPT", Phase::Rcpt, Act::reply("451 4.3.0 try later"), again, "accepted", 1, false),
        fault("refused recipient", Phase::Rcpt, Act::reply("550 5.1.1 User unknown"), &["recipient_refused"], "failed", 0, false),
        fault("refused sender", Phase::Mail, Act::reply("550 5.7.1 Sender address rejected"), &["sender_refused"], "failed", 0, false),
        fault("closed at DATA", Phase::Data, Act::Drop, again, "accepted", 1, false),
        fault("temporary refusal at the dot", Phase::Dot, Act::reply("451 4.7.1 try later"), again, "accepted", 1, false),
        fault("refused at the dot", Phase::Dot, Act::reply("554 5.7.1 rejected as spam"), &["content_refused"], "failed", 0, false),
        fault("taken, then closed", Phase::Dot, Act::Drop, unsure, "accepted", 2, true),
        fault("lost at the dot", Phase::Dot, Act::Lose, unsure, "accepted", 1, true),
        fault("taken, then silent", Phase::Dot, Act::Silence, unsure, "accepted", 2, true),
        fault("taken, then nonsense", Phase::Dot, Act::Raw(b"hello?\r\n".to_vec()), unsure, "accepted", 2, true),
    ]
}

on_both_databases!(each_fault_leads_where_it_should_and_no_further);

async fn each_fault_leads_where_it_should_and_no_further(stage: Stage) {
    let stage = stage.faster(120);
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let launch = stage.launch(BINARY).config(&smtp_account("relay", &peer)).config("[ambiguity.transactional]\nhold = \"2m\"");
    let gateway = launch.start();
    let client = gateway.client();

    for fault in faults() {
        // An address of its own, since a refused one is suppressed; a fresh connection, so that a fault of its first phases is met.
        peer.evict("421 4.3.2 idle");
        let act = fault.act.clone();
        peer.behave(|_| Behaviour::default().once(fault.phase, act));
        let key = fault.name.replace([' ', ','], "-");
        assert_eq!(client.post(&key, &email(&format!("{key}@example.com"), fault.name)).await.status, 202, "{}", fault.name);
        let status = client.until_closed(&key, Duration::from_secs(60)).await;
        peer.release();

        let delivery = &status["deliveries"][0];
        let attempts = delivery["attempts"].as_array().expect("attempts are a list");
        let outcomes: Vec<_> = attempts.iter().filter_map(|attempt| attempt["outcome"].as_str()).collect();
        assert_eq!(outcomes, fault.outcomes, "{}: {status}", fault.name);
        assert_eq!(status["status"], fault.status, "{}: {status}", fault.name);
        assert_eq!(delivery["attempt_count"], fault.outcomes.len(), "{}: {status}", fault.name);
        assert_eq!(sends_of(&peer, delivery["id"].as_str().expect("an id")), fault.sends, "{}: {status}", fault.name);
        assert_eq!(delivery["possible_duplicate"], fault.flagged, "{}: {status}", fault.name);
    }
}
