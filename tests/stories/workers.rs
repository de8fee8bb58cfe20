//! What the workers promise without help and at the end: progress by polling alone, no call that cannot be held, the
//! last word of a suppression, a stop that waits for answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::{Client, email, of_category};
use tidings_tests::on_both_databases;
use tidings_tests::process::Gateway;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
const CATEGORIES: &str = "[categories.login-code]\nclass = \"critical\"\n[categories.newsletter]\nclass = \"bulk\"\n[categories.receipt]\n";

on_both_databases!(
    polling_alone_starts_codes_in_a_second_and_a_half_and_others_in_three,
    a_process_that_cannot_renew_its_leases_makes_no_new_calls,
    a_process_whose_calls_ended_while_it_could_not_renew_goes_on,
    a_suppression_after_the_intake_or_between_two_attempts_has_the_last_word,
    a_backlog_that_may_not_go_out_keeps_nobody_busy,
    a_stop_waits_for_answers_that_come_in_time,
    a_stop_counts_what_may_have_been_taken,
    a_second_signal_ends_at_once,
);

/// Waits until the log says so.
async fn until_logged(gateway: &Gateway, words: &str) {
    let said = async {
        while !gateway.log().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), said).await.unwrap_or_else(|_| panic!("never said {words:?}:\n{}", gateway.log()));
}

fn last_line(log: &str) -> Value {
    let line = log.lines().rev().find(|line| line.contains("\"stopped\"")).unwrap_or_else(|| panic!("it never stopped:\n{log}"));
    serde_json::from_str(line).expect("log lines are JSON")
}

/// S-024: every hint is dropped, in the process and between processes.
async fn polling_alone_starts_codes_in_a_second_and_a_half_and_others_in_three(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(CATEGORIES).config(&smtp_account("relay", &peer)).env("TIDINGS_DROP", "wake").start();
    let client = gateway.client();
    let mut waits = Vec::new();
    for n in 0..4 {
        let mut round = [Duration::ZERO; 3];
        let categories = ["login-code", "receipt", "newsletter"];
        for category in categories {
            client.post(&format!("{category}-{n}"), &of_category(category, &format!("{category}-{n}@example.com"))).await;
        }
        let posted = Instant::now();
        peer.until(|peer| peer.taken() == 3 * (n + 1)).await;
        for taken in peer.ledger().iter().skip(3 * n as usize) {
            let place = categories.iter().position(|category| taken.recipients[0].starts_with(category)).expect("one of the three");
            round[place] = taken.at.saturating_duration_since(posted);
        }
        waits.push(round);
    }
    for [code, receipt, newsletter] in &waits {
        assert!(*code < Duration::from_millis(1_500), "{waits:?}");
        assert!(*receipt < Duration::from_secs(3) && *newsletter < Duration::from_secs(3), "{waits:?}");
    }
    // A round begins right after a poll of the class that was served last, whose next is far: no hint got through.
    assert!(waits.iter().skip(1).all(|round| round.iter().max() > Some(&Duration::from_millis(500))), "{waits:?}");
}

/// Makes every renewal of a lease fail, and nothing else.
async fn forbid_renewals(stage: &Stage) {
    let sql = if stage.is_postgres() {
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
         CREATE TRIGGER no_renewal BEFORE UPDATE ON queue FOR EACH ROW
         WHEN (OLD.state = 'dispatching' AND NEW.state = 'dispatching') EXECUTE FUNCTION refuse();"
    } else {
        "CREATE TRIGGER no_renewal BEFORE UPDATE ON queue WHEN OLD.state = 'dispatching' AND NEW.state = 'dispatching'
         BEGIN SELECT RAISE(ABORT, 'not today'); END;"
    };
    stage.execute(sql).await;
}

async fn allow_renewals(stage: &Stage) {
    stage.execute(if stage.is_postgres() { "DROP TRIGGER no_renewal ON queue" } else { "DROP TRIGGER no_renewal" }).await;
}

/// A gateway with one call that gets no answer and a lease that cannot be renewed. Twenty times faster: a heartbeat a second.
async fn without_renewals(stage: &Stage, peer: &ScriptedSmtp) -> (Gateway, Client) {
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", peer)).start();
    let client = gateway.client();
    peer.behave(|behaviour| behaviour.once(Phase::Dot, Act::Silence));
    client.post("running", &email("ada@example.com", "running")).await;
    peer.until(|peer| peer.taken() == 1).await;
    forbid_renewals(stage).await;
    until_logged(&gateway, "leases could not be renewed").await;
    (gateway, client)
}

/// S-032: a heartbeat that fails alone, with everything else in order, stops new calls until it comes through again.
async fn a_process_that_cannot_renew_its_leases_makes_no_new_calls(stage: Stage) {
    let stage = stage.faster(20);
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let (gateway, client) = without_renewals(&stage, &peer).await;
    assert_eq!(client.post("waiting", &email("ada@example.com", "waiting")).await.status, 202);
    // Ten polls long.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(peer.taken(), 1, "{}", gateway.log());
    assert_eq!(client.by_key("waiting").await.json()["deliveries"][0]["attempt_count"], 0);

    allow_renewals(&stage).await;
    assert_eq!(client.until_closed("waiting", PATIENCE).await["status"], "accepted");
    assert_eq!(peer.taken(), 2);
}

/// The same, and the last running call ends before a renewal came through: there is nothing left to renew.
async fn a_process_whose_calls_ended_while_it_could_not_renew_goes_on(stage: Stage) {
    let stage = stage.faster(20);
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let (gateway, client) = without_renewals(&stage, &peer).await;
    peer.release();
    assert_eq!(client.until_closed("running", PATIENCE).await["status"], "accepted");
    allow_renewals(&stage).await;
    client.post("next", &email("ada@example.com", "next")).await;
    let status = client.until_closed("next", Duration::from_secs(10)).await;
    assert_eq!(status["status"], "accepted", "{}", gateway.log());
}

/// S-043, S-147: nobody is called whose address was suppressed before the call, however often it was called before.
async fn a_suppression_after_the_intake_or_between_two_attempts_has_the_last_word(stage: Stage) {
    let stage = stage.faster(60);
    let greylisting = Behaviour::default().recipient("grey@example.com", "450 4.2.0 Greylisted, try again in 5 minutes");
    let peer = ScriptedSmtp::start(greylisting).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let mut later = email("later@example.com", "Hello");
    later["send_in"] = json!("5m");
    client.post("later", &later).await;
    client.post("grey", &email("grey@example.com", "Hello")).await;
    let waits = |status: &Value| status["deliveries"][0]["state"] == "retry_wait";
    assert_eq!(client.until("grey", PATIENCE, waits).await["deliveries"][0]["attempt_count"], 1);

    let now = if stage.is_postgres() { "now()" } else { "0" };
    let suppressed = stage
        .execute(&format!(
            "INSERT INTO suppressions (id, tenant_id, mode, channel, address_digest, reason, scope, source, created_at)
             SELECT d.id, d.tenant_id, d.mode, d.channel, d.address_digest, 'hard_bounce', 'all', 'operator', {now} FROM deliveries d"
        ))
        .await;
    assert_eq!(suppressed, 2);
    client.post("other", &email("other@example.com", "Hello")).await;

    for (key, calls) in [("later", 0), ("grey", 1)] {
        let status = client.until_closed(key, PATIENCE).await;
        let delivery = &status["deliveries"][0];
        assert_eq!((delivery["state"].as_str(), delivery["reason"].as_str()), (Some("suppressed"), Some("suppressed")), "{status}");
        assert_eq!((&delivery["attempt_count"], delivery["attempts"].as_array().map(Vec::len)), (&json!(calls), Some(calls)), "{status}");
    }
    assert_eq!(client.until_closed("other", PATIENCE).await["status"], "accepted");
    let asked = |address: &str| peer.commands().iter().filter(|command| command.line.contains(address)).count();
    assert_eq!((asked("later@"), asked("grey@"), asked("other@"), peer.taken()), (0, 1, 1, 1));
}

/// S-058: rows that wait are looked at by the poll, not over and over.
async fn a_backlog_that_may_not_go_out_keeps_nobody_busy(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let paused = client.call("PUT", "/v1/switches/all", &json!({"paused": true, "reason": "a drill"})).await;
    assert_eq!(paused.status, 200, "{}", paused.text);
    for n in 0..120 {
        let answer = client.post(&format!("waits-{n}"), &email("ada@example.com", "Hello")).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    // Whatever the intake left to do is done.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = gateway.cpu_time();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let used = gateway.cpu_time() - before;
    assert!(used < Duration::from_millis(200), "{used:?} of work in three seconds, for nothing");

    client.call("DELETE", "/v1/switches/all", &json!({"reason": "the drill is over"})).await;
    for n in 0..120 {
        assert_eq!(client.until_closed(&format!("waits-{n}"), PATIENCE).await["status"], "accepted");
    }
}

/// A gateway with `running` calls at the dot, and a stop that has begun.
async fn stopping(stage: &Stage, peer: &ScriptedSmtp, running: usize, grace: &str) -> Gateway {
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", peer)).env("TIDINGS__SERVER__GRACE", grace).start();
    let client = gateway.client();
    for n in 0..running {
        assert_eq!(client.post(&format!("stop-{n}"), &email("ada@example.com", &format!("message {n}"))).await.status, 202);
    }
    peer.until(|peer| peer.taken() == running as u64).await;
    gateway.signal("TERM");
    until_logged(&gateway, "\"stopping").await;
    gateway
}

/// S-046: the relay answers within the grace time. Nothing is cut off, nothing is in doubt, and it ended well.
async fn a_stop_waits_for_answers_that_come_in_time(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().always(Phase::Dot, Act::Silence)).await;
    let mut gateway = stopping(&stage, &peer, 10, "20s").await;
    peer.behave(|_| Behaviour::default());
    peer.release();
    let ended = gateway.wait(Duration::from_secs(10)).expect("it does not wait longer than it must");
    until_logged(&gateway, "\"stopped\"").await;
    let last = last_line(&gateway.log());
    assert_eq!((ended.code(), last["ambiguous"].as_i64(), last["open"].as_i64()), (Some(0), Some(0), Some(0)), "{last}");

    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    for n in 0..10 {
        let status = client.by_key(&format!("stop-{n}")).await.json();
        let delivery = &status["deliveries"][0];
        assert_eq!((status["status"].as_str(), &delivery["attempt_count"]), (Some("accepted"), &json!(1)), "{status}");
        assert_eq!(sends_of(&peer, delivery["id"].as_str().expect("a delivery has an id")), 1);
    }
}

/// S-046, S-102: what the relay had when the grace time ended is ambiguous, and the last line says how many.
async fn a_stop_counts_what_may_have_been_taken(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().always(Phase::Dot, Act::Silence)).await;
    let mut gateway = stopping(&stage, &peer, 3, "500ms").await;
    let ended = gateway.wait(Duration::from_secs(10)).expect("the grace time ends");
    until_logged(&gateway, "\"stopped\"").await;
    let last = last_line(&gateway.log());
    assert_eq!((ended.code(), last["ambiguous"].as_i64(), last["open"].as_i64()), (Some(0), Some(3), Some(3)), "{last}");

    peer.behave(|_| Behaviour::default());
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    for n in 0..3 {
        let status = client.by_key(&format!("stop-{n}")).await.json();
        let delivery = &status["deliveries"][0];
        assert_eq!((delivery["state"].as_str(), delivery["certainty"].as_str()), (Some("ambiguous"), Some("unknown")), "{status}");
        assert_eq!((&delivery["unresolved"], delivery["attempts"][0]["outcome"].as_str()), (&json!(1), Some("ambiguous")), "{status}");
    }
    assert_eq!(peer.taken(), 3, "nothing is sent again before its hold is over");
}

/// Whoever cannot wait says so again. What was running is judged at the next start, as after a crash.
async fn a_second_signal_ends_at_once(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().always(Phase::Dot, Act::Silence)).await;
    let mut gateway = stopping(&stage, &peer, 2, "25s").await;
    let asked = Instant::now();
    while gateway.wait(Duration::from_millis(200)).is_none() {
        assert!(asked.elapsed() < Duration::from_secs(3), "it goes on:\n{}", gateway.log());
        gateway.signal("TERM");
    }
    peer.behave(|_| Behaviour::default());
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    for n in 0..2 {
        let status = gateway.client().by_key(&format!("stop-{n}")).await.json();
        let delivery = &status["deliveries"][0];
        assert_eq!((delivery["open"].as_bool(), delivery["certainty"].as_str()), (Some(true), Some("unknown")), "{status}");
    }
    assert_eq!(peer.taken(), 2);
}
