//! Certificates and passwords: whom a message is given to, and as whom.

use serde_json::json;
use tidings_core::outcome::Outcome;
use tidings_tests::smtp_peer::{Act, Behaviour, PeerTls, Phase, ScriptedSmtp};

use crate::messages::{adapter, is_accepted, plain_outgoing, trusting};
use crate::stories::{UNREACHABLE, peer};

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
