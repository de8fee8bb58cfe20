//! Every recorded dialogue, and the outcome that its verdict maps to.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_core::adapter::Outgoing;
use tidings_core::content::Attachment;
use tidings_core::outcome::{NotSent, Outcome, Refusal, RefusedCopy, Report};
use tidings_core::words::Reason;
use tidings_providers::{Context, build};
use tidings_tests::smtp_peer::{ScriptedSmtp, Session};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::messages::{TestClock, adapter, mailbox, outgoing, plain_outgoing};

#[tokio::test]
async fn every_recorded_dialogue_ends_in_the_outcome_of_its_verdict() {
    let sessions = Session::all();
    assert_eq!(sessions.len(), 52);
    for session in sessions {
        let (report, verbs) = match session.connect.as_deref() {
            None => hold(&session).await,
            Some(how) => (connect(how).await, vec![]),
        };
        let name = &session.name;
        assert_eq!(report.outcome, expected_outcome(&session), "{name}: {:?}", report.detail);
        assert_eq!(report.code, expected_code(&session), "{name}");
        assert!(!format!("{:?}", report.detail).contains('@'), "{name}");
        if session.connect.is_none() {
            assert_eq!(verbs, expected_verbs(&session), "{name}");
        }
    }
}

async fn hold(session: &Session) -> (Report, Vec<String>) {
    let peer = ScriptedSmtp::start(session.behaviour.clone()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), peer.ca_pem()).unwrap();
    let mut settings = json!({"return_path": "bounce@mail.example.com", "helo_name": "gateway.example.com", "timeouts": {"dot": "200ms"}});
    let said = |verb: &str| session.client.iter().any(|line| line.starts_with(verb));
    // The one dialogue that needs no TLS is about something else; the one where it is missing is about that.
    if session.name != "smtputf8_not_offered" {
        settings["tls"] = json!("starttls");
        settings["ca_file"] = json!(file.path());
        // Who comes as far as MAIL without AUTH has no password.
        if said("AUTH") || !said("MAIL") {
            settings["username"] = json!("user-test-only");
            settings["password"] = json!("not-a-real-secret");
        }
    }
    let adapter = adapter(&peer, settings);
    let report = adapter.send(&letter(session)).await;
    adapter.close().await;
    let is_definite = matches!(report.outcome, Outcome::Accepted { .. });
    assert!(!is_definite || peer.taken() == 1, "{}", session.name);
    (report, peer.verbs().into_iter().filter(|verb| verb != "QUIT").collect())
}

/// The message of the recording: its recipients, and long enough to be cut off in the middle where it is.
fn letter(session: &Session) -> Outgoing {
    let recipients: Vec<&str> =
        session.client.iter().filter_map(|line| line.strip_prefix("RCPT TO:<").and_then(|rest| rest.strip_suffix('>'))).collect();
    outgoing(|outgoing, email| {
        // More than any buffer on the way holds, but less than the relay's SIZE.
        if session.name == "drop_before_end_of_data" {
            let content = vec![0; 7 << 20];
            let (filename, content_type) = ("photo.raw".to_owned(), "application/octet-stream".to_owned());
            email.attachments = vec![Attachment { filename, content_type, content, content_id: None }];
        }
        if let Some((first, copies)) = recipients.split_first() {
            outgoing.to = mailbox(first);
            email.bcc = copies.iter().map(|copy| mailbox(copy)).collect();
        }
        if session.name == "smtputf8_not_offered" {
            outgoing.to = mailbox("müller@example.com");
        }
    })
}

async fn connect(how: &str) -> Report {
    let (host, port, _kept) = match how {
        "refused" => ("127.0.0.1", free_port().await, vec![]),
        "timeout" => {
            let (port, kept) = full_backlog().await;
            ("127.0.0.1", port, kept)
        }
        "dns_failure" => ("relay.invalid", 25, vec![]),
        other => panic!("unknown way of connecting: {other}"),
    };
    let settings = json!({"host": host, "port": port, "tls": "none", "timeouts": {"connect": "300ms"}});
    let context = Context {
        clock: std::sync::Arc::new(TestClock::default()),
        concurrency: 1,
        default_helo: None,
        dkim: Default::default(),
        sandbox: None,
    };
    build("smtp", settings, &context).unwrap().send(&plain_outgoing()).await
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// A port whose queue is full, so that further connections are neither taken nor refused.
async fn full_backlog() -> (u16, Vec<Box<dyn std::any::Any>>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut kept: Vec<Box<dyn std::any::Any>> = vec![Box::new(listener)];
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        kept.push(Box::new(stream));
    }
    (address.port(), kept)
}

fn expected_outcome(session: &Session) -> Outcome {
    let expected = &session.expected;
    let text = |key: &str| expected[key].as_str().unwrap_or_default();
    let refused = |by, reason| Outcome::Refused { by, reason };
    let recipient = |hard, reason| refused(Refusal::Recipient { listed: false, hard }, reason);
    let not_sent = |why, seconds: Option<u64>| Outcome::NotSent { why, retry_after: seconds.map(Duration::from_secs) };
    let answered = expected["reply_code"].is_u64();
    match (text("verdict"), text("phase"), text("reason")) {
        ("accepted", ..) => Outcome::Accepted {
            message_id: expected["provider_message_id"].as_str().map(str::to_owned),
            refused_copies: refused_copies(expected),
        },
        ("ambiguous", ..) => Outcome::Ambiguous,
        ("transient", "greeting", _) => not_sent(NotSent::Unreachable, None),
        ("transient", "rcpt", "throttled") if expected["reply_code"] == 450 => not_sent(NotSent::Answered, Some(300)),
        ("transient", ..) => not_sent(if answered { NotSent::Answered } else { NotSent::Unreachable }, None),
        ("throttled", ..) => Outcome::Throttled { retry_after: None },
        ("throttled_long", ..) => Outcome::Throttled { retry_after: Some(Duration::from_secs(3_600)) },
        // What the relay never said is no proof that the mailbox will never exist.
        ("permanent_recipient", _, "invalid_mailbox" | "mailbox_inactive") => recipient(answered, Reason::RecipientRefused),
        ("permanent_recipient", _, "domain_not_found") => recipient(true, Reason::DomainNotFound),
        ("permanent_recipient", _, "mailbox_full") => recipient(false, Reason::MailboxFull),
        ("permanent_recipient", _, "policy") => recipient(false, Reason::Blocked),
        ("permanent_request", _, "too_large") => refused(Refusal::Request, Reason::TooLarge),
        ("permanent_request", _, "content") => refused(Refusal::Content, Reason::ContentRefused),
        ("permanent_request", _, "unknown") => refused(Refusal::Request, Reason::RequestRefused),
        ("auth_config", _, "sender_refused" | "authentication") => refused(Refusal::Sender, Reason::SenderRefused),
        ("auth_config", "rcpt", "policy") => not_sent(NotSent::Route, None),
        ("auth_config", ..) => Outcome::Credential,
        other => panic!("{}: no outcome for {other:?}", session.name),
    }
}

fn refused_copies(expected: &Value) -> Vec<RefusedCopy> {
    let codes = [("nobody@example.com", "550 5.1.1"), ("slow@example.com", "450 4.2.1")];
    let recipients = expected["recipients"].as_array().into_iter().flatten();
    let refused =
        recipients.filter(|recipient| recipient["verdict"] != "accepted").map(|recipient| recipient["recipient"].as_str().unwrap());
    refused
        .map(|address| {
            let (_, code) = codes.iter().find(|(known, _)| *known == address).unwrap();
            RefusedCopy { address: address.to_owned(), code: (*code).to_owned() }
        })
        .collect()
}

fn expected_code(session: &Session) -> Option<String> {
    let code = session.expected["reply_code"].as_u64()?;
    Some(match session.expected["enhanced_status"].as_str() {
        Some(status) => format!("{code} {status}"),
        None => code.to_string(),
    })
}

/// What the recorded client said. Where it said several things at once, we stop at the first refusal.
fn expected_verbs(session: &Session) -> Vec<String> {
    let verbs = session.client.iter().map(|line| line.split(' ').next().unwrap().to_owned());
    verbs.filter(|verb| verb != "QUIT" && !(session.is_pipelined && verb == "DATA")).collect()
}
