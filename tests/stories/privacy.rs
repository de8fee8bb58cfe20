//! What people write to each other, and what opens doors, stands in the message and nowhere else (S-213).

use std::time::Duration;

use serde_json::{Value, json};
use tidings_tests::client::{Answer, Client};
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

/// One for each field that is private, in lower case: canonical forms are.
const MARKERS: [&str; 18] = [
    "qzaddress",
    "qzdomain",
    "qzname",
    "qzref",
    "qzseat",
    "qzsubject",
    "qztext",
    "qzhtml",
    "qzheader",
    "qzreply",
    "qzcopy",
    "qzblind",
    "qzalso",
    "qzfile",
    "qzattached",
    "qzmetadata",
    "qzpassword",
    "qzwords",
];

on_both_databases!(nothing_private_is_logged_told_in_an_error_or_stored_in_the_open);

/// A message with a marker in every private field. The key, the category and the tags are the application's own words.
fn marked(category: &str) -> Value {
    json!({
        "to": {"email": "qzaddress@qzdomain.example", "name": "Qzname Lovelace", "ref": "qzref", "metadata": {"seat": "qzseat"}},
        "category": category,
        "email": {
            "from": "Shop <shop@example.com>", "subject": "qzsubject", "text": "qztext", "html": "<p>qzhtml</p>",
            "headers": {"X-Order": "qzheader"}, "reply_to": "qzreply@example.com",
            "cc": ["qzcopy@example.com"], "bcc": ["qzblind@example.com"], "also_to": ["qzalso@example.com"],
            // "qzattached"
            "attachments": [{"filename": "qzfile.txt", "content_type": "text/plain", "content": "cXphdHRhY2hlZA=="}],
        },
        "tags": ["open-tag"], "metadata": {"order": "qzmetadata"},
    })
}

async fn nothing_private_is_logged_told_in_an_error_or_stored_in_the_open(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default().login("shop", "right", &["PLAIN"])).await;
    let echo = "qzwords about qzpassword, qzaddress@qzdomain.example and qzsubject";
    let locked = Behaviour::default().login("shop", "other", &["PLAIN"]).always(Phase::Auth, Act::reply(&format!("535 5.7.8 {echo}")));
    let locked = ScriptedSmtp::start(locked).await;
    let account = |name: &str, peer: &ScriptedSmtp, password: &str| {
        format!("{}username = \"shop\"\npassword = {{ env = \"{password}\" }}\n", smtp_account(name, peer))
    };
    let launch = stage
        .launch(BINARY)
        .config("[log]\nlevel = \"trace\"\n[routes.email]\ncritical = [\"locked\", \"relay\"]\ndefault = [\"relay\"]\n[retry.transactional]\nattempts = 1")
        .config("[categories.code]\nclass = \"critical\"\n[categories.receipt]\n")
        .config(&account("locked", &locked, "LOCKED_PASSWORD"))
        .config(&account("relay", &peer, "RELAY_PASSWORD"))
        .env("LOCKED_PASSWORD", "qzpassword")
        .env("RELAY_PASSWORD", "right");
    let gateway = launch.start();
    let key = gateway.api_key();
    let client = Client::new(&gateway.url().expect("it is ready"), &key);

    let refused_copy = format!("550 5.1.1 <qzcopy@example.com>: {echo}");
    peer.behave(|behaviour| behaviour.recipient("qzcopy@example.com", &refused_copy));
    let ends = [
        ("open-accepted", "receipt", None, "accepted"),
        ("open-locked", "code", None, "accepted"),
        ("open-content", "receipt", Some((Phase::Dot, format!("554 5.7.1 spam: {echo}"))), "failed"),
        ("open-dead", "receipt", Some((Phase::Rcpt, format!("451 4.3.0 {echo}"))), "dead"),
        ("open-sender", "receipt", Some((Phase::Mail, format!("550 5.7.1 {echo}"))), "failed"),
        ("open-doubt", "receipt", Some((Phase::Dot, format!("what? {echo}"))), "ambiguous"),
        // The last: it suppresses the address.
        ("open-refused", "receipt", Some((Phase::Rcpt, format!("550 5.1.1 {echo}"))), "failed"),
    ];
    for (key, category, reply, state) in &ends {
        if let Some((phase, reply)) = reply {
            peer.behave(|behaviour| behaviour.once(*phase, Act::Raw(format!("{reply}\r\n").into_bytes())));
        }
        let answer = client.post(key, &marked(category)).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        client.until(key, PATIENCE, |status| status["deliveries"][0]["state"] == *state).await;
    }
    // The markers are where they belong.
    let message = String::from_utf8_lossy(&peer.ledger()[0].message).to_lowercase();
    for marker in ["qzaddress", "qzname", "qzsubject", "qztext", "qzhtml", "qzheader", "qzreply", "qzfile", "cxphdhrhy2hlza"] {
        assert!(message.contains(marker), "{marker} is not in the message:\n{message}");
    }

    for (place, answer) in errors(&client, &gateway.url().expect("it is ready")).await {
        assert!((400..500).contains(&answer.status), "{place}: {}", answer.text);
        clean(&place, &answer.text, &key);
    }
    let log = gateway.kill();
    assert!(log.contains("delivery ambiguous") && log.contains("the account is parked"), "the log tells what happened:\n{log}");
    clean("the log", &log, &key);
    let stored = stage.everything_stored().await;
    assert!(stored.contains("open-doubt") && stored.contains("open-tag"), "what is open is found in the database");
    clean("the database", &stored, &key);
}

/// Answers to requests that are wrong at a place where something private stands.
async fn errors(client: &Client, url: &str) -> Vec<(String, Answer)> {
    let mut answers = Vec::new();
    let wrong = [
        ("/to/email", json!("qzaddress.qzdomain")),
        ("/to/name", json!("qzname\u{7}")),
        ("/to/ref", json!("qzref\nqzref")),
        ("/to/metadata", json!("qzseat")),
        ("/category", json!("qztext qztext")),
        ("/email/from", json!("qzname qzreply")),
        ("/email/subject", json!("qzsubject\r\nBcc: qzblind@example.com")),
        ("/email/text", json!(["qztext"])),
        ("/email/html", json!({"qzaddress@qzdomain.example": "qzhtml"})),
        ("/email/headers", json!({"X-Order": "qzheader\r\nBcc: qzblind@example.com"})),
        ("/email/headers", json!({"Bcc": "qzblind@example.com"})),
        ("/email/reply_to", json!("qzreply@")),
        ("/email/cc", json!(["qzcopy"])),
        ("/email/bcc", json!(["qzblind"])),
        ("/email/attachments/0/content", json!("qzattached!")),
        ("/email/attachments/0/content_type", json!("qzattached")),
        ("/email/attachments/0/filename", json!("qzfile\nqzfile")),
        ("/metadata/order", json!(["qzmetadata"])),
        ("/send_at", json!("qztext")),
    ];
    for (pointer, value) in wrong {
        let mut body = marked("receipt");
        match body.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => body[pointer.trim_start_matches('/')] = value,
        }
        answers.push((pointer.to_owned(), client.post("open-wrong", &body).await));
    }
    let mut unknown = marked("receipt");
    unknown["qzaddress@qzdomain.example"] = json!("qzwords");
    answers.push(("an unknown field".to_owned(), client.post("open-wrong", &unknown).await));
    let mut other = marked("receipt");
    other["email"]["subject"] = json!("qzsubject, but another");
    answers.push(("another request under the key".to_owned(), client.post("open-accepted", &other).await));
    answers.push(("no such category".to_owned(), client.post("open-wrong", &marked("unheard-of")).await));
    let text = marked("receipt").to_string();
    for (place, body) in [("broken JSON", text[..text.len() - 3].to_owned()), ("a NUL", text.replace("qztext", "qztext\\u0000"))] {
        answers.push((place.to_owned(), client.post_text("open-wrong", &body).await));
    }
    let stranger = Client::new(url, "qzpassword-qzwords");
    answers.push(("a wrong key".to_owned(), stranger.post("open-wrong", &marked("receipt")).await));
    answers
}

fn clean(place: &str, text: &str, api_key: &str) {
    let text = text.to_lowercase();
    for marker in MARKERS.iter().copied().chain([api_key.to_lowercase().as_str(), "cxphdhrhy2hlz"]) {
        for form in [marker.to_owned(), marker.bytes().map(|byte| format!("{byte:02x}")).collect()] {
            if let Some(at) = text.find(&form) {
                let around: String = text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
                panic!("{marker} stands in {place}: {around}{form}");
            }
        }
    }
}
