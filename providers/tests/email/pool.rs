//! What becomes of a connection between messages.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidings_core::outcome::{NotSent, Outcome};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};

use crate::messages::{TestClock, accepted_id, adapter, adapter_at, is_accepted, plain_outgoing};

#[tokio::test]
async fn a_connection_carries_message_after_message() {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({}));
    for _ in 0..5 {
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    }
    assert_eq!((peer.connections(), peer.taken()), (1, 5));
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced_within_the_call() {
    for line in ["421 4.4.2 idle too long", "221 2.0.0 Bye"] {
        let peer = ScriptedSmtp::start(Behaviour::default()).await;
        let adapter = adapter(&peer, json!({}));
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));

        peer.evict(line);
        peer.until(|peer| peer.open_connections() == 0).await;

        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
        assert_eq!((peer.connections(), peer.taken()), (2, 2));
    }
}

#[tokio::test]
async fn an_idle_connection_proves_itself_and_is_retired_by_age() {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let clock = Arc::new(TestClock::default());
    let adapter = adapter_at(&peer, json!({}), clock.clone(), 1);
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));

    clock.advance(Duration::from_secs(5));
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    assert!(peer.verbs().contains(&"NOOP".to_owned()));
    assert_eq!(peer.connections(), 1);

    clock.advance(Duration::from_secs(31));
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    assert_eq!(peer.connections(), 2);
}

#[tokio::test]
async fn an_unused_connection_is_closed_by_itself() {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({"idle_timeout": "100ms"}));
    assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    peer.until(|peer| peer.verbs().last().is_some_and(|verb| verb == "QUIT")).await;
}

#[tokio::test]
async fn a_connection_at_the_servers_limit_makes_way_for_the_next_at_once() {
    for refusal in [
        Act::ReplyAndDrop("421 4.7.0 Too many messages in this connection".into()),
        Act::reply("452 4.5.3 Too many messages for this session"),
        Act::Drop,
    ] {
        let peer = ScriptedSmtp::start(Behaviour::default()).await;
        let adapter = adapter(&peer, json!({}));
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));

        peer.behave(|behaviour| behaviour.once(Phase::Mail, refusal));

        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
        assert_eq!((peer.connections(), peer.taken()), (2, 2));
    }
}

#[tokio::test]
async fn a_new_connection_is_not_replaced() {
    let behaviour = Behaviour::default().always(Phase::Mail, Act::ReplyAndDrop("421 4.3.2 no".into()));
    let peer = ScriptedSmtp::start(behaviour).await;
    let report = adapter(&peer, json!({})).send(&plain_outgoing()).await;
    assert_eq!(report.outcome, Outcome::NotSent { why: NotSent::Answered, retry_after: None });
    assert_eq!(peer.connections(), 1);
}

#[tokio::test]
async fn a_421_at_any_phase_ends_the_connection() {
    for phase in [Phase::Rcpt, Phase::Data, Phase::Dot] {
        // The server says so and yet keeps the connection open.
        let peer = ScriptedSmtp::start(Behaviour::default().once(phase, Act::reply("421 4.3.2 busy"))).await;
        let adapter = adapter(&peer, json!({}));
        assert!(!is_accepted(&adapter.send(&plain_outgoing()).await));
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
        assert_eq!(peer.connections(), 2, "{phase:?}");
    }
}

#[tokio::test]
async fn after_a_refusal_the_connection_is_reset_and_used_again() {
    for (phase, refusal) in [(Phase::Rcpt, "550 5.1.1 User unknown"), (Phase::Data, "451 4.3.0 later"), (Phase::Dot, "554 5.6.0 no")] {
        let peer = ScriptedSmtp::start(Behaviour::default().once(phase, Act::reply(refusal))).await;
        let adapter = adapter(&peer, json!({}));
        assert!(!is_accepted(&adapter.send(&plain_outgoing()).await));
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
        assert_eq!((peer.connections(), peer.taken()), (1, 1), "{phase:?}");
        assert!(peer.verbs().contains(&"RSET".to_owned()));
    }
}

#[tokio::test]
async fn a_late_answer_to_the_dot_is_not_read_by_the_next_message() {
    let peer = ScriptedSmtp::start(Behaviour::default().once(Phase::Dot, Act::Silence)).await;
    let adapter = adapter(&peer, json!({"timeouts": {"dot": "150ms"}}));
    assert_eq!(adapter.send(&plain_outgoing()).await.outcome, Outcome::Ambiguous);

    peer.release();
    let second = adapter.send(&plain_outgoing()).await;

    assert_eq!(accepted_id(&second), Some("P00000002"));
    assert_eq!(peer.connections(), 2);
}

#[tokio::test]
async fn a_call_that_was_given_up_never_hands_its_reply_to_the_next() {
    let peer = ScriptedSmtp::start(Behaviour::default().once(Phase::Dot, Act::Silence)).await;
    let adapter = adapter(&peer, json!({}));
    let given_up = tokio::spawn({
        let adapter = adapter.clone();
        async move { adapter.send(&plain_outgoing()).await }
    });
    peer.until(|peer| peer.taken() == 1).await;
    given_up.abort();
    assert!(given_up.await.is_err());

    peer.behave(|behaviour| behaviour.once(Phase::Dot, Act::reply("550 5.7.1 no")));
    peer.release();
    let second = adapter.send(&plain_outgoing()).await;

    assert!(!is_accepted(&second));
    assert_eq!(peer.connections(), 2);
}

#[tokio::test]
async fn a_reply_too_many_is_never_taken_for_the_next_ones() {
    for phase in [Phase::Mail, Phase::Rcpt, Phase::Data] {
        let twice = if phase == Phase::Data { "354 go\r\n250 Ok: queued as FALSE1\r\n" } else { "250 ok\r\n250 ok\r\n" };
        let peer = ScriptedSmtp::start(Behaviour::default().once(phase, Act::Raw(twice.into()))).await;
        let adapter = adapter(&peer, json!({}));
        assert!(!is_accepted(&adapter.send(&plain_outgoing()).await), "{phase:?}");
        assert_eq!(accepted_id(&adapter.send(&plain_outgoing()).await), Some("P00000001"));
        assert_eq!(peer.connections(), 2);
    }
}

#[tokio::test]
async fn a_connection_retires_after_its_share_of_messages() {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let adapter = adapter(&peer, json!({"max_messages_per_connection": 2}));
    for _ in 0..5 {
        assert!(is_accepted(&adapter.send(&plain_outgoing()).await));
    }
    assert_eq!(peer.connections(), 3);
    let carried: Vec<u64> = peer.ledger().iter().map(|taken| taken.connection).collect();
    assert_eq!(carried, [1, 1, 2, 2, 3]);
}

#[tokio::test]
async fn there_are_never_more_connections_than_calls_allowed_at_once() {
    let peer = ScriptedSmtp::start(Behaviour::sink()).await;
    let adapter = adapter_at(&peer, json!({}), Arc::new(TestClock::default()), 3);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let adapter = adapter.clone();
        calls.spawn(async move { adapter.send(&plain_outgoing()).await });
    }
    assert!(calls.join_all().await.iter().all(is_accepted));
    assert_eq!(peer.taken(), 100);
    assert!(peer.connections() <= 3);
}
