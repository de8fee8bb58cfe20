//! What leaves is what arrives, byte for byte.

use proptest::prelude::*;
use serde_json::json;
use tidings_providers::mime;
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};

use crate::messages::{adapter, is_accepted, outgoing};

/// Texts with everything that has ever upset a relay: dots, bare CR and LF, long lines, trailing spaces, "From ".
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(".".to_owned()),
        Just("..\r\n".to_owned()),
        Just("\n.\n".to_owned()),
        Just("\r".to_owned()),
        Just("\r\n.\r\n".to_owned()),
        Just(" \t\n".to_owned()),
        Just("From \n".to_owned()),
        Just("=3D.".to_owned()),
        "[ -~]{0,120}",
        "\\PC{0,40}",
        ".{0,20}",
        Just("x".repeat(1_500)),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn every_message_arrives_as_it_was_built() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (peer, adapter) = runtime.block_on(async {
        let peer = ScriptedSmtp::start(Behaviour::default()).await;
        let adapter = adapter(&peer, json!({}));
        (peer, adapter)
    });
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(text in text(), html in proptest::option::of(text()), subject in "\\PC{0,255}", value in "\\PC{0,200}")| {
        let outgoing = outgoing(|_, email| {
            email.text = Some(text.clone());
            email.html.clone_from(&html);
            email.subject.clone_from(&subject);
            email.headers = vec![("X-Note".to_owned(), value.clone())];
        });
        let built = mime::message(&outgoing).unwrap();
        prop_assert!(built.is_ascii());
        prop_assert!(built.split(|b| *b == b'\n').all(|line| line.len() <= 999));
        prop_assert!(is_accepted(&runtime.block_on(adapter.send(&outgoing))));
        let arrived = peer.ledger().pop().unwrap().message;
        prop_assert_eq!(&arrived, &built);

        let parsed = mail_parser::MessageParser::default().parse(&arrived).unwrap();
        let lines = |text: &str| text.replace("\r\n", "\n").replace('\r', "\n").trim_end_matches('\n').to_owned();
        prop_assert_eq!(lines(&parsed.body_text(0).unwrap()), lines(&text));
        prop_assert_eq!(parsed.subject().unwrap_or_default().trim(), subject.trim());
    });
}

#[tokio::test]
async fn no_line_ends_in_anything_but_cr_lf() {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({}));
    adapter
        .send(&outgoing(|_, email| {
            email.text = Some("one\ntwo\rthree\r\n.four\n\n..\n".into());
            email.subject = "ü".repeat(255);
        }))
        .await;
    let message = peer.ledger().pop().unwrap().message;
    assert!(message.ends_with(b"\r\n"));
    for (at, byte) in message.iter().enumerate() {
        match byte {
            b'\r' => assert_eq!(message.get(at + 1), Some(&b'\n')),
            b'\n' => assert_eq!(message[at - 1], b'\r'),
            _ => {}
        }
    }
}
