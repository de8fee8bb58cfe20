//! What one call does, phase by phase.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidings_core::adapter::Adapter;
use tidings_core::content::{Attachment, Content, EmailContent};
use tidings_core::outcome::{NotSent, Outcome, Refusal, RefusedCopy, Report};
use tidings_core::words::{Class, Reason};
use tidings_providers::{Context, build};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};

use crate::messages::{TestClock, accepted_id, adapter, is_accepted, mailbox, outgoing, plain_outgoing};

pub(crate) const UNREACHABLE: Outcome = Outcome::NotSent { why: NotSent::Unreachable, retry_after: None };

pub(crate) async fn peer(behaviour: Behaviour) -> ScriptedSmtp {
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
