//! How long a peer is waited for, and what is said when it was too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tidings_core::content::Attachment;
use tidings_core::outcome::Outcome;
use tidings_core::time::Clock as _;
use tidings_providers::{Context, build};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase};

use crate::messages::{TestClock, adapter, adapter_at, outgoing, plain_outgoing};
use crate::stories::{UNREACHABLE, peer};

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
async fn a_reply_without_end_is_not_read_for_ever() {
    for flood in [vec![b'2'; 100_000], b"250-x\r\n".repeat(100_000)] {
        let peer = peer(Behaviour::default().once(Phase::Mail, Act::Raw(flood))).await;
        let report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
        assert_eq!(report.outcome, UNREACHABLE);
    }
}
