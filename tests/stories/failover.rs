//! Two accounts in one route: who gets a message when the first did not take it, and who never hears of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::of_category;
use tidings_tests::on_both_databases;
use tidings_tests::process::Launch;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
const RULES: &str = "[routes.email]\ndefault = [\"a\", \"b\"]\n[categories.login-code]\nclass = \"critical\"\n[categories.receipt]\n";

on_both_databases!(
    a_code_moves_to_the_next_account_at_once,
    a_code_that_every_account_puts_off_is_spread_over_its_time,
    a_code_that_finds_no_account_up_hammers_none,
    a_receipt_moves_to_the_next_account_at_its_next_try,
    an_account_with_a_wrong_password_is_left_out_and_costs_no_attempt,
    a_throttled_account_is_silent_as_long_as_it_asked_and_the_other_goes_on,
    a_message_that_may_have_been_taken_stays_until_its_hold_is_over,
    a_refused_sender_tries_the_next_account_and_fails_behind_the_last,
    a_refused_recipient_is_nobody_elses_business,
    a_message_goes_by_an_account_that_may_send_as_its_author,
);

/// Accounts `a` and `b` in this order.
struct Pair {
    a: ScriptedSmtp,
    b: ScriptedSmtp,
    launch: Launch,
}

impl Pair {
    async fn new(stage: &Stage, a: Behaviour, b: Behaviour) -> Self {
        let (a, b) = (ScriptedSmtp::start(a).await, ScriptedSmtp::start(b).await);
        let launch = stage.launch(BINARY).config(RULES).config(&smtp_account("a", &a)).config(&smtp_account("b", &b));
        Self { a, b, launch }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Account and outcome of every attempt.
fn attempts(status: &Value) -> Vec<(&str, &str)> {
    let attempts = status["deliveries"][0]["attempts"].as_array().expect("attempts are a list");
    attempts.iter().map(|attempt| (text(attempt, "account"), text(attempt, "outcome"))).collect()
}

/// How long after the end of an attempt the next one began.
fn gap(status: &Value, first: usize) -> Duration {
    let attempts = &status["deliveries"][0]["attempts"];
    let millis = |value: &Value| -> i64 {
        // `2027-01-15T08:00:00.000Z`
        let clock = &value.as_str().expect("an instant")[11..23];
        let part = |range: std::ops::Range<usize>| clock[range].parse::<i64>().expect("digits");
        ((part(0..2) * 60 + part(3..5)) * 60 + part(6..8)) * 1_000 + part(9..12)
    };
    let gap = millis(&attempts[first + 1]["started_at"]) - millis(&attempts[first]["finished_at"]);
    // Across midnight.
    Duration::from_millis(u64::try_from(gap.rem_euclid(86_400_000)).expect("not negative"))
}

/// S-111: a code that certainly was not taken does not wait, whether the account answered or is not there.
async fn a_code_moves_to_the_next_account_at_once(stage: Stage) {
    let pair = Pair::new(&stage, Behaviour::default().always(Phase::Rcpt, Act::reply("451 4.3.0 Try later")), Behaviour::default()).await;
    let Pair { a, b, launch } = pair;
    let gateway = launch.start();
    let client = gateway.client();
    for (round, answered) in [("answered", true), ("unreachable", false)] {
        for n in 0..5 {
            client.post(&format!("{round}-{n}"), &of_category("login-code", "ada@example.com")).await;
        }
        for n in 0..5 {
            let status = client.until_closed(&format!("{round}-{n}"), PATIENCE).await;
            assert_eq!(attempts(&status), [("a", "not_sent"), ("b", "accepted")], "{status}");
            assert_eq!(status["deliveries"][0]["via_failover"], true);
            // Waiting would be a random part of two seconds: five in a row are not all this short.
            assert!(gap(&status, 0) < Duration::from_millis(500), "{status}");
        }
        if answered {
            a.behave(|behaviour| behaviour.always(Phase::Greeting, Act::Drop));
            a.evict("421 4.3.2 closing");
        }
    }
    assert_eq!((a.taken(), b.taken()), (0, 10));
}

/// S-053, S-054: at once means to the next account, not round and round: one bad second of both relays uses no code up.
async fn a_code_that_every_account_puts_off_is_spread_over_its_time(stage: Stage) {
    let refusing = || Behaviour::default().always(Phase::Rcpt, Act::reply("451 4.3.0 Try later"));
    let Pair { a, b, launch } = Pair::new(&stage, refusing(), refusing()).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("code", &of_category("login-code", "ada@example.com")).await;
    let is_answered = |status: &_| attempts(status).len() >= 2 && attempts(status)[1].1 != "in_flight";
    let asked_both = client.until("code", PATIENCE, is_answered).await;
    assert_eq!(attempts(&asked_both)[..2], [("a", "not_sent"), ("b", "not_sent")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for peer in [&a, &b] {
        peer.behave(|_| Behaviour::default());
    }
    assert_eq!(client.until_closed("code", PATIENCE).await["status"], "accepted");
}

/// S-054: relays that are down are not hammered, however urgent the message.
async fn a_code_that_finds_no_account_up_hammers_none(stage: Stage) {
    let down = || Behaviour::default().always(Phase::Greeting, Act::reply("421 4.3.2 too busy"));
    let Pair { a, b, launch } = Pair::new(&stage, down(), down()).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("code", &of_category("login-code", "ada@example.com")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = a.connections() + b.connections();
    assert!((2..16).contains(&calls), "{calls} calls in a second");
    for peer in [&a, &b] {
        peer.behave(|_| Behaviour::default());
    }
    assert_eq!(client.until_closed("code", PATIENCE).await["status"], "accepted");
}

/// S-111: anything less urgent waits for its next try, and then goes the other way.
async fn a_receipt_moves_to_the_next_account_at_its_next_try(stage: Stage) {
    let stage = stage.faster(60);
    let refusing = Behaviour::default().always(Phase::Rcpt, Act::reply("451 4.3.0 Try later"));
    let Pair { a, b, launch } = Pair::new(&stage, refusing, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    for n in 0..5 {
        client.post(&format!("receipt-{n}"), &of_category("receipt", "ada@example.com")).await;
    }
    let mut waited = Duration::ZERO;
    for n in 0..5 {
        let status = client.until_closed(&format!("receipt-{n}"), PATIENCE).await;
        assert_eq!(attempts(&status), [("a", "not_sent"), ("b", "accepted")], "{status}");
        waited += gap(&status, 0);
    }
    // Each is a random part of thirty seconds.
    assert!(waited > Duration::from_secs(5), "{waited:?}");
    assert_eq!((a.taken(), b.taken()), (0, 5));
}

/// S-052: the account is at fault, not its messages. With one attempt allowed, any that counted would end them.
async fn an_account_with_a_wrong_password_is_left_out_and_costs_no_attempt(stage: Stage) {
    let (a, b) = (
        ScriptedSmtp::start(Behaviour::default().login("shop", "right", &["PLAIN"])).await,
        ScriptedSmtp::start(Behaviour::default()).await,
    );
    let account = format!("{}username = \"shop\"\npassword = {{ env = \"RELAY_PASSWORD\" }}\n", smtp_account("a", &a));
    let launch = stage.launch(BINARY).config(RULES).config("[retry.transactional]\nattempts = 1\n[retry.critical]\nattempts = 1");
    let gateway = launch.config(&account).config(&smtp_account("b", &b)).env("RELAY_PASSWORD", "wrong").start();
    let client = gateway.client();
    let category = |n: usize| if n.is_multiple_of(2) { "receipt" } else { "login-code" };
    for n in 0..80 {
        client.post(&format!("parked-{n}"), &of_category(category(n), "ada@example.com")).await;
    }
    let mut tried = 0;
    for n in 0..80 {
        let status = client.until_closed(&format!("parked-{n}"), PATIENCE).await;
        assert_eq!((status["status"].as_str(), &status["deliveries"][0]["via_failover"]), (Some("accepted"), &json!(true)), "{status}");
        match attempts(&status).as_slice() {
            [("b", "accepted")] => {}
            [("a", "credential"), ("b", "accepted")] => tried += 1,
            other => panic!("{other:?}"),
        }
    }
    let logins = a.verbs().iter().filter(|verb| *verb == "AUTH").count();
    assert!(
        (1..=32).contains(&tried) && logins <= tried,
        "{tried} messages met {logins} log-ins: no more than ran when the first was refused"
    );
    assert_eq!((a.taken(), b.taken()), (0, 80));
    assert!(gateway.log().contains("the account is parked"));
    // However many calls met the refusal, it is told once.
    let deadline = Instant::now() + PATIENCE;
    let told = loop {
        let items = client.get("/v1/events?type=account.parked,account.recovered").await.json()["items"].take();
        if items[0].is_object() || Instant::now() > deadline {
            break items;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&told[0]["type"], &told[0]["data"]["account"], &told[1]), (&json!("account.parked"), &json!("a"), &json!(null)), "{told}");
}

/// S-055: silence is asked of one account, and kept by that one alone.
async fn a_throttled_account_is_silent_as_long_as_it_asked_and_the_other_goes_on(stage: Stage) {
    let stage = stage.faster(240);
    // An hour, which is fifteen seconds here.
    let quota = Behaviour::default().once(Phase::Mail, Act::reply("454 4.7.0 Throttling failure: Daily message quota exceeded."));
    let Pair { a, b, launch } = Pair::new(&stage, quota, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    client.post("throttled", &of_category("receipt", "ada@example.com")).await;
    let status = client.until_closed("throttled", PATIENCE).await;
    let silent_since = Instant::now();
    assert_eq!(attempts(&status), [("a", "throttled"), ("b", "accepted")], "{status}");
    let mut others = 0;
    while a.taken() == 0 {
        let key = format!("meanwhile-{others}");
        client.post(&key, &of_category("receipt", "ada@example.com")).await;
        let status = client.until_closed(&key, PATIENCE).await;
        assert!(matches!(attempts(&status)[..], [("a" | "b", "accepted")]), "{status}");
        others += 1;
        assert!(silent_since.elapsed() < Duration::from_secs(25), "the account never comes back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(silent_since.elapsed() > Duration::from_secs(14), "it was asked again after {:?}", silent_since.elapsed());
    assert_eq!((a.taken(), b.taken()), (1, others));
    assert!(others > 20, "the other account carried {others}");
}

/// S-111: whoever may have taken it is the only one to have it, until the class's policy sends it once more, flagged.
async fn a_message_that_may_have_been_taken_stays_until_its_hold_is_over(stage: Stage) {
    let stage = stage.faster(60);
    let Pair { a, b, launch } = Pair::new(&stage, Behaviour::default().always(Phase::Dot, Act::Drop), Behaviour::default()).await;
    let gateway = launch.config("[ambiguity.transactional]\nhold = \"3m\"\n[ambiguity.critical]\nhold = \"3m\"").start();
    let client = gateway.client();
    for category in ["receipt", "login-code"] {
        client.post(category, &of_category(category, &format!("{category}@example.com"))).await;
    }
    let is_ambiguous = |status: &Value| status["deliveries"][0]["state"] == "ambiguous";
    for category in ["receipt", "login-code"] {
        let status = client.until(category, PATIENCE, is_ambiguous).await;
        assert_eq!((attempts(&status), b.connections()), (vec![("a", "ambiguous")], 0), "{status}");
    }
    for category in ["receipt", "login-code"] {
        let status = client.until_closed(category, PATIENCE).await;
        let delivery = &status["deliveries"][0];
        assert_eq!(attempts(&status), [("a", "ambiguous"), ("b", "accepted")], "{status}");
        assert!(gap(&status, 0) >= Duration::from_secs(180), "{status}");
        assert_eq!((&delivery["possible_duplicate"], &delivery["generation"]), (&json!(true), &json!(2)), "{status}");
        let id = delivery["id"].as_str().expect("a delivery has an id");
        assert_eq!((sends_of(&a, id), sends_of(&b, id)), (1, 1));
    }
}

/// S-111: who may not send here may send there; where nobody may, the message fails as such.
async fn a_refused_sender_tries_the_next_account_and_fails_behind_the_last(stage: Stage) {
    let refusing = || Behaviour::default().always(Phase::Mail, Act::reply("550 5.7.1 Sender address rejected"));
    let Pair { a, b, launch } = Pair::new(&stage, refusing(), Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    for category in ["receipt", "login-code"] {
        client.post(&format!("moves-{category}"), &of_category(category, "ada@example.com")).await;
        let status = client.until_closed(&format!("moves-{category}"), PATIENCE).await;
        assert_eq!(attempts(&status), [("a", "sender_refused"), ("b", "accepted")], "{status}");
        assert!(gap(&status, 0) < Duration::from_secs(5), "{status}");
    }
    b.behave(|_| refusing());
    client.post("fails", &of_category("receipt", "ada@example.com")).await;
    let status = client.until_closed("fails", PATIENCE).await;
    let delivery = &status["deliveries"][0];
    assert_eq!((delivery["state"].as_str(), delivery["reason"].as_str()), (Some("failed"), Some("sender_refused")), "{status}");
    assert_eq!(attempts(&status), [("a", "sender_refused"), ("b", "sender_refused")]);
    assert_eq!((a.taken(), b.taken()), (0, 2));
}

/// S-051: a mailbox that is not there is not there for anybody.
async fn a_refused_recipient_is_nobody_elses_business(stage: Stage) {
    let unknown = "550 5.1.1 User unknown";
    let refusing = Behaviour::default().recipient("receipt@gone.example", unknown).recipient("login-code@gone.example", unknown);
    let Pair { a, b, launch } = Pair::new(&stage, refusing, Behaviour::default()).await;
    let gateway = launch.start();
    let client = gateway.client();
    for category in ["receipt", "login-code"] {
        // An address of its own: the first refusal suppresses it.
        client.post(category, &of_category(category, &format!("{category}@gone.example"))).await;
        let status = client.until_closed(category, PATIENCE).await;
        let delivery = &status["deliveries"][0];
        assert_eq!((delivery["state"].as_str(), delivery["reason"].as_str()), (Some("failed"), Some("recipient_refused")), "{status}");
        assert_eq!(attempts(&status), [("a", "recipient_refused")]);
    }
    assert_eq!((a.taken(), b.connections()), (0, 0));
}

/// S-111: the order of a route is among the accounts that may send as the author (`sends_as`).
async fn a_message_goes_by_an_account_that_may_send_as_its_author(stage: Stage) {
    let (a, b) = (ScriptedSmtp::start(Behaviour::default()).await, ScriptedSmtp::start(Behaviour::default()).await);
    let account = |name: &str, peer: &ScriptedSmtp, domain: &str| {
        format!("{}sends_as = [\"{domain}\"]\n", smtp_account(name, peer).replace("shop@example.com", &format!("shop@{domain}")))
    };
    let launch = stage.launch(BINARY).config(RULES).config(&account("a", &a, "example.org")).config(&account("b", &b, "example.com"));
    let gateway = launch.start();
    let client = gateway.client();
    for (key, domain) in [("org", "example.org"), ("com", "example.com")] {
        let mut body = of_category("receipt", "ada@example.net");
        body["email"]["from"] = json!(format!("shop@{domain}"));
        assert_eq!(client.post(key, &body).await.status, 202);
    }
    for (key, account) in [("org", "a"), ("com", "b")] {
        let status = client.until_closed(key, PATIENCE).await;
        assert_eq!(attempts(&status), [(account, "accepted")], "{status}");
    }
}
