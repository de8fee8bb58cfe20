//! What one call does, phase by phase.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tidings_core::adapter::Adapter;
use tidings_core::content::{Attachment, Content, EmailContent};
use tidings_core::outcome::{NotSent, Outcome, Refusal, RefusedCopy, Report};
use tidings_core::time::Clock as _;
use tidings_core::words::{Class, Reason};
use tidings_providers::{Context, build};
use tidings_tests::smtp_peer::{Act, Behaviour, PeerTls, Phase, ScriptedSmtp};

use crate::messages::{TestClock, accepted_id, adapter, adapter_at, is_accepted, mailbox, outgoing, plain_outgoing, trusting};

const UNREACHABLE: Outcome = Outcome::NotSent { why: NotSent::Unreachable, retry_after: None };

async fn peer(behaviour: Behaviour) -> ScriptedSmtp {
    ScriptedSmtp::start(behaviour).await
}

#[tokio::test]
async fn the_envelope_is_everybody_once_and_bcc_stands_in_no_header() {
    let peer = peer(Behaviour::default()).await;
    let report = adapter(&peer, json!({"return_path": "bounce@mail.example.com"}))
        .send(&outgoing(|outgoing, email| {
            email.also_to = vec![mailbox("bob@example.com")];
            email.cc = vec![mailbox("cc@example.com"), mailbox("ANN@example.com"), mailbox("gone@example.com")];
            email.bcc = vec![mailbox("secret@example.com"), mailbox("Bob@example.com")];
            outgoing.left_out = vec!["Gone@Example.com".to_owned()];
        }))
        .await;

    assert_eq!(accepted_id(&report), Some("P00000001"));
    let taken = &peer.ledger()[0];
    assert_eq!(taken.sender, "bounce+dlv_019cae2c1f5e7c3a9b0d4e5f60718293_1@mail.example.com");
    assert_eq!(taken.recipients, ["ann@example.com", "bob@example.com", "cc@example.com", "secret@example.com"]);
    assert_eq!(taken.parameters, format!("SIZE={}", taken.message.len()));
    let text = String::from_utf8(taken.message.clone()).unwrap();
    assert!(!text.contains("secret@") && !text.to_lowercase().contains("bcc") && !text.contains("gone@"), "{text}");
    assert!(report.accepted_copies.is_empty());
}

#[tokio::test]
async fn a_refused_copy_is_recorded_and_the_rest_get_the_message() {
    let peer = peer(Behaviour::default().recipient("no@example.com", "550 5.1.1 User unknown")).await;
    let report =
        adapter(&peer, json!({})).send(&outgoing(|_, email| email.cc = vec![mailbox("no@example.com"), mailbox("yes@example.com")])).await;

    let refused_copies = vec![RefusedCopy { address: "no@example.com".into(), code: "550 5.1.1".into() }];
    assert_eq!(report.outcome, Outcome::Accepted { message_id: Some("P00000001".into()), refused_copies });
    assert_eq!(report.accepted_copies, ["yes@example.com"]);
    assert_eq!(report.dead_copies, ["no@example.com"]);
    assert_eq!(peer.ledger()[0].recipients, ["ann@example.com", "yes@example.com"]);
}

#[tokio::test]
async fn a_copy_without_a_mailbox_is_told_also_when_the_message_is_not_taken() {
    let behaviour = Behaviour::default()
        .recipient("gone@example.com", "550 5.1.1 User unknown")
        .recipient("full@example.com", "552 5.2.2 Mailbox full")
        .recipient("busy@example.com", "450 4.2.0 Greylisted")
        .recipient("spam@example.com", "550 5.7.1 Blocked")
        .once(Phase::Data, Act::reply("451 4.3.0 Try later"));
    let peer = peer(behaviour).await;
    let report = adapter(&peer, json!({}))
        .send(&outgoing(|_, email| {
            email.cc = ["gone@example.com", "full@example.com", "busy@example.com", "spam@example.com"].map(mailbox).to_vec();
        }))
        .await;

    assert!(matches!(report.outcome, Outcome::NotSent { .. }), "{report:?}");
    assert_eq!(report.dead_copies, ["gone@example.com"]);
}

#[tokio::test]
async fn nobody_gets_a_message_whose_recipient_is_refused() {
    let peer = peer(Behaviour::default().recipient("ann@example.com", "550 5.1.1 User unknown")).await;
    let report = adapter(&peer, json!({})).send(&outgoing(|_, email| email.cc = vec![mailbox("yes@example.com")])).await;

    let by = Refusal::Recipient { listed: false, hard: true };
    assert_eq!(report.outcome, Outcome::Refused { by, reason: Reason::RecipientRefused });
    assert_eq!(peer.taken(), 0);
    assert!(!peer.verbs().contains(&"DATA".to_owned()));
}

#[tokio::test]
async fn a_message_over_the_relays_size_is_refused_before_mail() {
    let peer = peer(Behaviour::default().offers(&["SIZE 500"])).await;
    let report = adapter(&peer, json!({})).send(&outgoing(|_, email| email.text = Some("x".repeat(600)))).await;

    assert_eq!(report.outcome, Outcome::Refused { by: Refusal::Request, reason: Reason::TooLarge });
    assert_eq!(peer.verbs(), ["EHLO"]);
}

#[tokio::test]
async fn greylisting_is_waited_for_shorter_where_the_message_is_critical() {
    for (class, seconds) in [(Class::Critical, 60), (Class::Transactional, 300), (Class::Bulk, 300)] {
        let peer = peer(Behaviour::default().always(Phase::Rcpt, Act::reply("450 4.2.0 Greylisted"))).await;
        let report = adapter(&peer, json!({})).send(&outgoing(|outgoing, _| outgoing.class = class)).await;
        assert_eq!(report.outcome, Outcome::NotSent { why: NotSent::Answered, retry_after: Some(Duration::from_secs(seconds)) });
    }
}

#[tokio::test]
async fn what_comes_too_late_is_handed_back_without_a_byte() {
    let peer = peer(Behaviour::default()).await;
    let clock = Arc::new(TestClock::default());
    let adapter = adapter_at(&peer, json!({}), clock.clone(), 1);
    let late = clock.now();
    for outgoing in [outgoing(|outgoing, _| outgoing.start_before = late), outgoing(|outgoing, _| outgoing.expires_at = late)] {
        assert_eq!(adapter.send(&outgoing).await.outcome, Outcome::NotStarted);
    }
    assert_eq!(peer.connections(), 0);
}

#[tokio::test]
async fn a_call_that_gets_no_connection_in_time_is_handed_back() {
    let peer = peer(Behaviour::default().always(Phase::Mail, Act::Silence)).await;
    let clock = Arc::new(TestClock::default());
    let adapter = adapter_at(&peer, json!({}), clock.clone(), 1);
    let hanging = tokio::spawn({
        let adapter = adapter.clone();
        async move { adapter.send(&plain_outgoing()).await }
    });
    peer.until(|peer| peer.verbs().contains(&"MAIL".to_owned())).await;

    let soon = clock.now().plus(Duration::from_millis(100));
    let report = adapter.send(&outgoing(|outgoing, _| outgoing.start_before = soon)).await;

    assert_eq!(report.outcome, Outcome::NotStarted);
    assert_eq!(peer.connections(), 1);
    hanging.abort();
}

#[tokio::test]
async fn a_silent_peer_is_left_in_time_at_every_phase() {
    let timeouts = json!({"timeouts": {"greeting": "150ms", "command": "150ms", "data": "150ms", "dot": "150ms"}});
    for phase in [Phase::Greeting, Phase::Ehlo, Phase::Mail, Phase::Rcpt, Phase::Data, Phase::Dot] {
        let peer = peer(Behaviour::default().once(phase, Act::Silence)).await;
        let began = Instant::now();
        let report = adapter(&peer, timeouts.clone()).send(&plain_outgoing()).await;
        assert_eq!(report.outcome, if phase == Phase::Dot { Outcome::Ambiguous } else { UNREACHABLE }, "{phase:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "{phase:?}");
    }
}

#[tokio::test]
async fn a_peer_that_stops_reading_the_body_is_left_in_time() {
    let (port, _deaf) = deaf_after_data().await;
    let settings = json!({"host": "127.0.0.1", "port": port, "tls": "none", "timeouts": {"data": "200ms"}});
    let context =
        Context { clock: Arc::new(TestClock::default()), concurrency: 1, default_helo: None, dkim: Default::default(), sandbox: None };
    let photo = Attachment { filename: "a".into(), content_type: "image/raw".into(), content: vec![0; 12 << 20], content_id: None };
    let report = build("smtp", settings, &context).unwrap().send(&outgoing(|_, email| email.attachments = vec![photo])).await;
    assert_eq!(report.outcome, UNREACHABLE);
    assert_eq!(report.detail.as_deref(), Some("the message body was not taken in time"));
}

/// A listener that answers up to 354 and then reads nothing more.
async fn deaf_after_data() -> (u16, tokio::task::JoinHandle<()>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for reply in ["220 deaf\r\n", "250 deaf\r\n", "250 ok\r\n", "250 ok\r\n", "354 go\r\n"] {
            stream.write_all(reply.as_bytes()).await.unwrap();
            if reply.starts_with('3') {
                std::future::pending::<()>().await;
            }
            let mut command = [0; 512];
            let _ = stream.read(&mut command).await.unwrap();
        }
    });
    (port, task)
}

#[tokio::test]
async fn the_answer_to_the_dot_is_worth_the_patience_of_the_message_and_no_more() {
    let peer = peer(Behaviour::default().once(Phase::Dot, Act::Silence)).await;
    let began = Instant::now();
    let report = adapter(&peer, json!({})).send(&outgoing(|outgoing, _| outgoing.patience = Duration::from_millis(150))).await;
    assert_eq!(report.outcome, Outcome::Ambiguous);
    assert!(began.elapsed() >= Duration::from_millis(150) && began.elapsed() < Duration::from_secs(5));
    assert_eq!(peer.taken(), 1);
}

#[tokio::test]
async fn before_the_dot_everything_is_not_sent_and_after_it_only_a_clear_reply_counts() {
    for (phase, act, expected) in [
        (Phase::Mail, Act::Drop, UNREACHABLE),
        (Phase::Rcpt, Act::Raw(b"what?\r\n".to_vec()), UNREACHABLE),
        (Phase::Data, Act::Drop, UNREACHABLE),
        (Phase::Data, Act::reply("250 not now"), UNREACHABLE),
        (Phase::Dot, Act::Drop, Outcome::Ambiguous),
        (Phase::Dot, Act::Lose, Outcome::Ambiguous),
        (Phase::Dot, Act::Raw(b"25\r\n".to_vec()), Outcome::Ambiguous),
        (Phase::Dot, Act::Raw(b"250-first\r\n550 second\r\n".to_vec()), Outcome::Ambiguous),
        (Phase::Dot, Act::reply("354 more"), Outcome::Ambiguous),
        (Phase::Dot, Act::ReplyAndDrop("421 4.3.2 shutting down".into()), Outcome::NotSent { why: NotSent::Answered, retry_after: None }),
    ] {
        let peer = peer(Behaviour::default().once(phase, act.clone())).await;
        let outgoing = plain_outgoing();
        let report = adapter(&peer, json!({"timeouts": {"dot": "300ms"}})).send(&outgoing).await;
        assert_eq!(report.outcome, expected, "{phase:?} {act:?} {:?}", report.detail);
        assert_eq!(outgoing.crossing.is_passed(), phase == Phase::Dot, "{phase:?}");
    }
}

#[tokio::test]
async fn odd_but_clear_replies_are_understood() {
    for (raw, id) in [
        (b"250 2.0.0 re\xe7u: queued as ABCD12\r\n".to_vec(), Some("ABCD12")),
        (b"250\r\n".to_vec(), None),
        (b"250 Ok: queued as ABCD12\n".to_vec(), Some("ABCD12")),
    ] {
        let peer = peer(Behaviour::default().once(Phase::Dot, Act::Raw(raw))).await;
        let report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
        assert_eq!(accepted_id(&report), id);
    }
    let refusal = Act::Raw(b"550 5.1.1 utilisateur inconnu \xe0 cette adresse\r\n".to_vec());
    let peer = peer(Behaviour::default().once(Phase::Rcpt, refusal)).await;
    let report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
    assert_eq!(report.code.as_deref(), Some("550 5.1.1"));
}

#[tokio::test]
async fn a_reply_without_end_is_not_read_for_ever() {
    for flood in [vec![b'2'; 100_000], b"250-x\r\n".repeat(100_000)] {
        let peer = peer(Behaviour::default().once(Phase::Mail, Act::Raw(flood))).await;
        let report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
        assert_eq!(report.outcome, UNREACHABLE);
    }
}

#[tokio::test]
async fn a_refused_certificate_is_a_credential_fault_and_nothing_is_said_to_it() {
    for (tls, said) in [("starttls", vec!["EHLO", "STARTTLS"]), ("implicit", vec![])] {
        let kind = if tls == "starttls" { PeerTls::StartTls } else { PeerTls::Implicit };
        let peer = peer(Behaviour::default().tls(kind).untrusted()).await;
        let (mut settings, _file) = trusting(&peer, tls);
        settings["username"] = json!("user");
        settings["password"] = json!("hunter2");
        let report = adapter(&peer, settings).send(&plain_outgoing()).await;
        assert_eq!(report.outcome, Outcome::Credential, "{tls}: {:?}", report.detail);
        assert_eq!(peer.verbs(), said, "{tls}");
    }
}

#[tokio::test]
async fn a_stripped_starttls_is_a_credential_fault_and_sees_neither_password_nor_mail() {
    let peer = peer(Behaviour::default().login("user", "hunter2", &["PLAIN"])).await;
    let (mut settings, _file) = trusting(&peer, "starttls");
    settings["username"] = json!("user");
    settings["password"] = json!("hunter2");
    let report = adapter(&peer, settings).send(&plain_outgoing()).await;
    assert_eq!(report.outcome, Outcome::Credential);
    peer.until(|peer| peer.verbs() == ["EHLO", "QUIT"]).await;
}

#[tokio::test]
async fn clear_text_that_was_slipped_in_before_tls_is_never_taken_for_a_reply() {
    let injected = Act::Raw(b"220 2.0.0 Ready\r\n250-peer.test\r\n250 AUTH PLAIN\r\n".to_vec());
    let peer = peer(Behaviour::default().tls(PeerTls::StartTls).once(Phase::StartTls, injected)).await;
    let (mut settings, _file) = trusting(&peer, "starttls");
    settings["username"] = json!("user");
    settings["password"] = json!("hunter2");
    let report = adapter(&peer, settings).send(&plain_outgoing()).await;
    assert_eq!(report.outcome, UNREACHABLE);
    assert_eq!(peer.verbs(), ["EHLO", "STARTTLS"]);
}

#[tokio::test]
async fn either_mechanism_does_and_the_other_is_tried_once_where_one_is_refused() {
    let refused = || Act::reply("504 5.7.4 Unrecognized authentication type");
    for (offered, first, said) in [
        (vec!["PLAIN"], None, vec!["PLAIN"]),
        (vec!["LOGIN"], None, vec!["LOGIN"]),
        (vec!["PLAIN", "LOGIN"], None, vec!["PLAIN"]),
        (vec!["PLAIN", "LOGIN"], Some(refused()), vec!["PLAIN", "LOGIN"]),
        (vec!["PLAIN", "LOGIN"], Some(Act::reply("535 5.7.3 Authentication mechanism not supported")), vec!["PLAIN", "LOGIN"]),
    ] {
        let mut behaviour = Behaviour::default().tls(PeerTls::Implicit).login("user", "hunter2", &offered);
        if let Some(act) = first {
            behaviour = behaviour.once(Phase::Auth, act);
        }
        let peer = peer(behaviour).await;
        let report = adapter(&peer, with_login(&peer, "hunter2").0).send(&plain_outgoing()).await;
        assert!(is_accepted(&report), "{offered:?}: {report:?}");
        assert_eq!(mechanisms(&peer), said);
    }
}

#[tokio::test]
async fn a_wrong_password_is_given_once() {
    let peer = peer(Behaviour::default().tls(PeerTls::Implicit).login("user", "hunter2", &["PLAIN", "LOGIN"])).await;
    let report = adapter(&peer, with_login(&peer, "hunter3").0).send(&plain_outgoing()).await;
    assert_eq!(report.outcome, Outcome::Credential);
    assert_eq!(report.code.as_deref(), Some("535 5.7.8"));
    assert_eq!(mechanisms(&peer), ["PLAIN"]);
}

fn with_login(peer: &ScriptedSmtp, password: &str) -> (serde_json::Value, tempfile::NamedTempFile) {
    let (mut settings, file) = trusting(peer, "implicit");
    settings["username"] = json!("user");
    settings["password"] = json!(password);
    (settings, file)
}

fn mechanisms(peer: &ScriptedSmtp) -> Vec<String> {
    let lines = peer.commands().into_iter().map(|command| command.line);
    lines.filter_map(|line| line.strip_prefix("AUTH ").and_then(|rest| rest.split(' ').next().map(str::to_owned))).collect()
}

#[tokio::test]
async fn smtputf8_is_asked_for_only_where_an_address_needs_it() {
    let peer = peer(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({}));
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    assert!(is_accepted(&adapter.send(&outgoing(|outgoing, _| outgoing.to = mailbox("Ünal <ünal@example.com>"))).await));
    let ledger = peer.ledger();
    assert!(!ledger[0].parameters.contains("SMTPUTF8") && ledger[1].parameters.contains("SMTPUTF8"));
    assert_eq!(ledger[1].recipients, ["ünal@example.com"]);
}

#[tokio::test]
async fn copies_that_need_smtputf8_stay_behind_where_it_is_not_offered() {
    let peer = peer(Behaviour::default().offers(&["8BITMIME"])).await;
    let report = adapter(&peer, json!({})).send(&outgoing(|_, email| email.cc = vec![mailbox("ünal@example.com")])).await;
    let refused_copies = vec![RefusedCopy { address: "ünal@example.com".into(), code: "553 5.6.7".into() }];
    assert_eq!(report.outcome, Outcome::Accepted { message_id: Some("P00000001".into()), refused_copies });
    assert!(peer.ledger()[0].message.is_ascii());

    let from_utf8 = outgoing(|_, email| email.from = mailbox("ünal@example.com"));
    let report = adapter(&peer, json!({})).send(&from_utf8).await;
    assert_eq!(report.outcome, Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused });
}

#[tokio::test]
async fn ehlo_says_the_set_name_the_given_one_or_our_address() {
    let peer = peer(Behaviour::default()).await;
    let ehlo = |peer: &ScriptedSmtp| peer.commands().into_iter().rfind(|command| command.line.starts_with("EHLO")).unwrap().line;
    let settings = json!({"host": "127.0.0.1", "port": peer.addr().port(), "tls": "none"});
    let context = Context {
        clock: Arc::new(TestClock::default()),
        concurrency: 1,
        default_helo: Some("mail.shop.example".into()),
        dkim: Default::default(),
        sandbox: None,
    };

    adapter(&peer, json!({})).send(&plain_outgoing()).await;
    assert_eq!(ehlo(&peer), "EHLO [127.0.0.1]");
    build("smtp", settings, &context).unwrap().send(&plain_outgoing()).await;
    assert_eq!(ehlo(&peer), "EHLO mail.shop.example");
    adapter(&peer, json!({"helo_name": "out.shop.example"})).send(&plain_outgoing()).await;
    assert_eq!(ehlo(&peer), "EHLO out.shop.example");
}

#[tokio::test]
async fn reports_never_repeat_what_the_server_said_or_an_address() {
    let said = "550 5.7.1 ann@example.com hunter2 is not welcome";
    for phase in [Phase::Greeting, Phase::Ehlo, Phase::Mail, Phase::Rcpt, Phase::Data, Phase::Dot] {
        let peer = peer(Behaviour::default().once(phase, Act::reply(said))).await;
        let report: Report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
        let shown = format!("{:?} {:?}", report.code, report.detail);
        assert!(!shown.contains("ann@") && !shown.contains("hunter2") && shown.contains("550 5.7.1"), "{shown}");
    }
}

#[tokio::test]
async fn content_over_the_accounts_limits_is_refused_at_intake() {
    let peer = peer(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({"max_size": "100KiB"}));
    let check = |edit: &dyn Fn(&mut EmailContent)| {
        let outgoing = outgoing(|_, email| edit(email));
        let Content::Email(_) = &*outgoing.content;
        adapter.check(&outgoing.content).map_err(|faults| faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>())
    };
    assert_eq!(check(&|_| {}), Ok(()));
    let file =
        |bytes| Attachment { filename: "a.bin".into(), content_type: "application/pdf".into(), content: vec![0; bytes], content_id: None };
    // 75,000 bytes fit, but not in base64 with its line ends.
    assert_eq!(check(&|email| email.attachments = vec![file(70_000)]), Ok(()));
    assert_eq!(check(&|email| email.attachments = vec![file(75_000)]), Err(vec!["/attachments".to_owned()]));
    assert_eq!(check(&|email| email.text = Some("x".repeat(200_000))), Err(vec![String::new()]));
    assert_eq!(check(&|email| email.headers = vec![("X-Long".into(), "x".repeat(901))]), Err(vec!["/headers/X-Long".to_owned()]));
}

#[test]
fn settings_that_cannot_be_are_named_without_their_values() {
    let context =
        Context { clock: Arc::new(TestClock::default()), concurrency: 1, default_helo: None, dkim: Default::default(), sandbox: None };
    for (settings, named) in [
        (json!({}), "host"),
        (json!({"host": "h", "tls": "none", "pasword": "hunter2"}), "pasword"),
        (json!({"host": "h", "tls": "none", "username": "u"}), "password"),
        (json!({"host": "h", "tls": "none", "username": "u", "password": 17}), "expected a string"),
        (json!({"host": "two words", "tls": "none"}), "host"),
        (json!({"host": "h", "tls": "none", "return_path": "a-local-part-that-is-too-long@example.com"}), "return_path"),
        (json!({"host": "h", "tls": "implicit", "ca_file": "/nonexistent"}), "ca_file"),
        (json!({"host": "h", "tls": "none", "timeouts": {"dot": "soon"}}), "duration"),
    ] {
        let said = build("smtp", settings, &context).err().unwrap().to_string();
        assert!(said.contains(named) && !said.contains("hunter2") && !said.contains("17"), "{said}");
    }
    assert!(build("pigeon", json!({}), &context).err().unwrap().to_string().contains("pigeon"));
}

#[tokio::test]
async fn an_empty_pool_can_be_closed() {
    let peer = peer(Behaviour::default()).await;
    let adapter: Arc<dyn Adapter> = adapter(&peer, json!({}));
    adapter.close().await;
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    adapter.close().await;
    peer.until(|peer| peer.verbs().last().is_some_and(|verb| verb == "QUIT")).await;
}
