//! Signatures as a receiver sees them: checked by dkimpy, which shares no code with this.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tidings_core::adapter::Outgoing;
use tidings_core::content::{Attachment, EmailContent};
use tidings_core::time::Timestamp;
use tidings_providers::dkim::{Key, KeyFault, Keys, Selector};
use tidings_providers::{Context, build, mime};
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};

use crate::messages::{TestClock, is_accepted, mailbox, outgoing};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/dkim");
const GOOD: [&str; 3] = ["rsa-pkcs1", "rsa-pkcs8", "ed25519"];

fn pem(name: &str) -> String {
    std::fs::read_to_string(format!("{FIXTURES}/{name}.pem")).unwrap()
}

fn selector(name: &str, key: &str) -> Selector {
    Selector { name: name.to_owned(), key: Key::from_pem(&pem(key)).unwrap() }
}

fn keys(selectors: Vec<Selector>) -> Keys {
    let mut keys = Keys::new();
    keys.add("example.com".to_owned(), selectors);
    keys
}

fn dns(keys: &Keys) -> BTreeMap<String, String> {
    keys.records().into_iter().map(|record| (record.name, record.txt)).collect()
}

/// What dkimpy says of each; `None` where it is not installed and does not have to be.
fn verdicts(dns: &BTreeMap<String, String>, messages: &[Vec<u8>]) -> Option<Vec<Value>> {
    let hex = |message: &Vec<u8>| message.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let asked = json!({ "dns": dns, "messages": messages.iter().map(hex).collect::<Vec<_>>() });
    // Debian's packages belong to Debian's interpreter, which need not be the first one.
    let imports = |python: &&str| {
        Command::new(python).args(["-c", "import dkim, nacl"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(imports) else {
        assert!(std::env::var_os("REQUIRE_DKIMPY").is_none(), "python3-dkim and python3-nacl are not installed");
        eprintln!("skipped: python3-dkim and python3-nacl are not installed");
        return None;
    };
    let mut python =
        Command::new(python).arg(format!("{FIXTURES}/verify.py")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    Some(serde_json::from_slice(&python.wait_with_output().unwrap().stdout).unwrap())
}

fn signed(keys: &Keys, outgoing: &Outgoing) -> Vec<u8> {
    let mut message = mime::message(outgoing).unwrap();
    keys.sign("example.com", &mut message, Timestamp::from_millis(1_767_225_600_000), &[]);
    message
}

/// Messages with what has ever broken a signature: folded and encoded headers, blanks, dots, empty lines at the end.
fn odd_messages() -> Vec<Outgoing> {
    let texts = [
        "",
        "\n\n\n",
        "one\n\n\n",
        ".\n..\n.leading dot\n",
        "trailing blanks  \t\nand\ttabs \t x\n",
        "no end",
        "Grüße 你好 👋\r\n",
        " \n \n",
    ];
    let with_text = |text: &str| outgoing(|_, email| email.text = Some(text.to_owned()));
    let mut all: Vec<Outgoing> = texts.iter().map(|text| with_text(text)).collect();
    all.push(outgoing(|_, email: &mut EmailContent| {
        email.from = mailbox("\"Käse & Co, 北京\" <shop@example.com>");
        email.subject =
            "Ein langer Betreff mit Umlauten äöü, der ganz gewiss nicht auf eine Zeile passt, auch nicht auf zwei 👋 ".repeat(3);
        email.html = Some("<p>Hallo  <b>Ann</b></p>\n.\n".to_owned());
        email.cc = (0..30).map(|n| mailbox(&format!("Somebody With A Name <person{n}@example.com>"))).collect();
        email.reply_to = vec![mailbox("help@example.com")];
        email.headers = vec![
            ("List-Unsubscribe".into(), "<https://example.com/u/0123456789abcdef>".into()),
            ("List-Unsubscribe-Post".into(), "List-Unsubscribe=One-Click".into()),
            ("X-Note".into(), "a   b    c".into()),
        ];
        let file =
            |name: &str| Attachment { filename: name.into(), content_type: "text/plain".into(), content: vec![0; 300], content_id: None };
        email.attachments = vec![file("Rechnung 😊.txt")];
    }));
    all
}

fn header(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    text.split_once("\r\n\r\n").unwrap().0.to_owned()
}

fn tag(message: &[u8], name: &str) -> String {
    let header = header(message).replace("\r\n ", "").replace(' ', "");
    let field = header.lines().next().unwrap().strip_prefix("DKIM-Signature:").unwrap().to_owned();
    field.split(';').find_map(|tag| tag.strip_prefix(&format!("{name}="))).unwrap().to_owned()
}

#[test]
fn both_algorithms_verify_whatever_is_sent() {
    for key in GOOD {
        let keys = keys(vec![selector("s1", key)]);
        let messages: Vec<Vec<u8>> = odd_messages().iter().map(|outgoing| signed(&keys, outgoing)).collect();
        let Some(verdicts) = verdicts(&dns(&keys), &messages) else { return };
        for (verdict, message) in verdicts.iter().zip(&messages) {
            assert_eq!(verdict, &json!(true), "{key}\n{}", String::from_utf8_lossy(message));
        }
    }
}

#[test]
fn what_a_relay_may_change_breaks_nothing_and_what_it_may_not_does() {
    for key in GOOD {
        let keys = keys(vec![selector("s1", key)]);
        let message = String::from_utf8(signed(&keys, &odd_messages()[8])).unwrap();
        let (head, body) = message.split_once("\r\n\r\n").unwrap();
        let refolded = format!("{}\r\n\r\n{body}\r\n\r\n", head.replace("Subject: ", "SUBJECT:\t ").replace("\r\n ", "\r\n \t "));
        let received = format!("Received: from a by b;\r\n\tsome time\r\n{message}");
        let changed = message.replacen("example.com>", "example.org>", 1);
        let second_from = message.replacen("\r\nFrom: ", "\r\nFrom: evil@example.com\r\nFrom: ", 1);
        let second_subject = format!("Subject: another\r\n{message}");
        let extended = format!("{message}more\r\n");
        let all: Vec<Vec<u8>> = [refolded, received, changed, second_from, second_subject, extended].map(String::into_bytes).to_vec();
        let Some(verdicts) = verdicts(&dns(&keys), &all) else { return };
        assert_eq!(verdicts[..2], [json!(true), json!(true)], "{key}");
        assert!(verdicts[2..].iter().all(|verdict| *verdict != json!(true)), "{key} {verdicts:?}");
    }
}

#[test]
fn the_first_selector_signs_and_mail_of_the_one_before_still_verifies() {
    let before = keys(vec![selector("s1", "rsa-pkcs1"), selector("s2", "ed25519")]);
    let after = keys(vec![selector("s2", "ed25519"), selector("s1", "rsa-pkcs1")]);
    let messages = [signed(&before, &odd_messages()[3]), signed(&after, &odd_messages()[3])];
    assert_eq!([tag(&messages[0], "s"), tag(&messages[1], "s")], ["s1", "s2"]);
    assert_eq!([tag(&messages[0], "a"), tag(&messages[1], "a")], ["rsa-sha256", "ed25519-sha256"]);
    let Some(verdicts) = verdicts(&dns(&after), &messages) else { return };
    assert_eq!(verdicts, [json!(true), json!(true)]);
}

#[test]
fn the_field_is_folded_and_oversigns_what_must_not_be_added() {
    let keys = keys(vec![selector("s1", "rsa-pkcs8")]);
    let message = signed(&keys, &odd_messages()[8]);
    let field = header(&message);
    let lines: Vec<&str> =
        field.lines().enumerate().take_while(|(at, line)| *at == 0 || line.starts_with(' ')).map(|(_, line)| line).collect();
    assert!(lines.len() > 5 && lines.iter().all(|line| line.len() < 78), "{lines:#?}");
    let signed = tag(&message, "h");
    let count = |name: &str| signed.split(':').filter(|one| *one == name).count();
    assert_eq!([count("from"), count("subject"), count("to"), count("cc"), count("reply-to"), count("content-type")], [2; 6]);
    assert_eq!([count("list-unsubscribe"), count("list-unsubscribe-post"), count("x-note")], [1, 1, 0]);
    assert_eq!(tag(&message, "d"), "example.com");
    assert_eq!(tag(&message, "t"), "1767225600");
}

#[test]
fn a_domain_without_a_key_is_sent_as_it_is() {
    let mut message = mime::message(&outgoing(|_, _| {})).unwrap();
    let before = message.clone();
    keys(vec![selector("s1", "ed25519")]).sign("shop.example.com", &mut message, Timestamp::from_millis(0), &[]);
    assert_eq!(message, before);
}

#[test]
fn only_unencrypted_rsa_of_2048_bits_and_ed25519_are_keys() {
    let fault = |text: &str| Key::from_pem(text).unwrap_err();
    assert_eq!(fault(&pem("rsa-1024")), KeyFault::Neither);
    assert_eq!(fault(&pem("ec")), KeyFault::Neither);
    assert_eq!(fault("hunter2"), KeyFault::NotPem);
    assert_eq!(fault(&pem("ed25519").replace("PRIVATE", "ENCRYPTED PRIVATE")), KeyFault::NotPem);
    assert!(!format!("{:?}", Key::from_pem(&pem("ed25519")).unwrap()).contains("PRIVATE"));
}

#[tokio::test]
async fn what_arrives_at_the_relay_is_signed_and_verifies() {
    let keys = Arc::new(keys(vec![selector("s1", "rsa-pkcs1")]));
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let address = peer.addr();
    let context = Context { clock: Arc::new(TestClock::default()), concurrency: 1, default_helo: None, dkim: keys.clone(), sandbox: None };
    let settings = json!({ "host": address.ip().to_string(), "port": address.port(), "tls": "none" });
    let adapter = build("smtp", settings, &context).unwrap();
    for outgoing in odd_messages() {
        assert!(is_accepted(&adapter.send(&outgoing).await));
    }
    let arrived: Vec<Vec<u8>> = peer.ledger().into_iter().map(|taken| taken.message).collect();
    assert_eq!(arrived.len(), odd_messages().len());
    let Some(verdicts) = verdicts(&dns(&keys), &arrived) else { return };
    assert!(verdicts.iter().all(|verdict| *verdict == json!(true)), "{verdicts:?}");
}
