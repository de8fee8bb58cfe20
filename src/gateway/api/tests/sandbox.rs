//! Stories of the sandbox, read by tools and by people.

use actix_web::test::TestRequest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidings_core::ids::{Handle, NotificationId};
use tidings_core::sandbox::{SandboxEmail, SandboxMessage};
use tidings_core::store::Registry as _;
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Mode};
use uuid::Uuid;

use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};
use crate::sealed;

on_both_databases!(
    messages_come_newest_first_page_by_page,
    messages_are_found_by_address_key_and_notification_and_deleted,
    the_page_opens_on_this_machine_and_shows_hostile_mail_as_text,
    the_page_asks_for_a_key_elsewhere,
    a_held_call_is_answered_when_its_message_comes,
);

const START: i64 = 1_800_000_000_000;

/// Puts a message into the sandbox of the default tenant, as the adapter does, and returns its id.
async fn keep(rig: &Rig, number: u8, to: &str, subject: &str, html: &str) -> String {
    keep_for(rig, ("default", Mode::Test), number, to, subject, html).await
}

/// The same for any tenant and mode.
pub(super) async fn keep_for(rig: &Rig, (tenant, mode): (&str, Mode), number: u8, to: &str, subject: &str, html: &str) -> String {
    let tenant = rig.store.ensure_tenant(tenant).await.unwrap().id;
    let received_at = Timestamp::from_millis(START + i64::from(number));
    let id = uuid::Builder::from_unix_timestamp_millis(received_at.as_millis(), &[number; 10]).into_uuid();
    let notification = NotificationId::new(received_at, [number; 10]);
    let raw = format!(
        "From: Shop <shop@example.com>\r\nTo: {to}\r\nSubject: {subject}\r\nMIME-Version: 1.0\r\nContent-Type: text/html\r\n\r\n{html}\r\n"
    );
    let email = SandboxEmail { envelope_from: "shop@example.com".to_owned(), envelope_to: vec![to.to_owned()], raw: STANDARD.encode(raw) };
    let message = SandboxMessage {
        id,
        tenant,
        mode,
        received_at,
        channel: Channel::Email,
        notification,
        handle: Handle { delivery: notification.delivery(1), generation: 1 },
        idempotency_key: format!("key-{number}"),
        envelope_to: vec![to.to_owned()],
        body: sealed::seal_sandbox(&rig.app.keyring, id, &serde_json::to_vec(&email).unwrap()),
    };
    rig.app.writer.keep(message).await.unwrap();
    format!("msg_{}", id.simple())
}

async fn ids(rig: &Rig, query: &str) -> (Vec<String>, Option<String>) {
    let answer = rig.get(&format!("/v1/sandbox/messages{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let page = answer.json();
    let ids = page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    (ids, page["next"].as_str().map(str::to_owned))
}

async fn messages_come_newest_first_page_by_page(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "").await;
    let mut kept = Vec::new();
    for number in 1..=25 {
        kept.insert(0, keep(&rig, number, "ada@example.com", "s", "t").await);
    }
    assert_eq!(ids(&rig, "").await, (kept.clone(), None));
    let (first, next) = ids(&rig, "?limit=12").await;
    let (second, next) = ids(&rig, &format!("?limit=12&after={}", next.unwrap())).await;
    let (third, end) = ids(&rig, &format!("?limit=12&after={}", next.clone().unwrap())).await;
    assert_eq!((first.as_slice(), second.as_slice(), third.as_slice(), end), (&kept[..12], &kept[12..24], &kept[24..], None));
    // A cursor is of use for its own filter alone.
    let foreign = rig.get(&format!("/v1/sandbox/messages?to=ada@example.com&after={}", next.unwrap())).await;
    assert_eq!((foreign.status, foreign.code().as_str()), (400, "bad_cursor"));
}

async fn messages_are_found_by_address_key_and_notification_and_deleted(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "").await;
    let (one, two) = (keep(&rig, 1, "ada@example.com", "s", "t").await, keep(&rig, 2, "bob@example.com", "s", "t").await);
    assert_eq!(ids(&rig, "?to=ADA@Example.com").await.0, [one.as_str()]);
    assert_eq!(ids(&rig, "?idempotency_key=key-2&channel=email").await.0, [two.as_str()]);
    assert_eq!(ids(&rig, "?channel=sms").await.0, Vec::<String>::new());
    let item = rig.get(&format!("/v1/sandbox/messages/{one}")).await.json();
    assert_eq!(ids(&rig, &format!("?notification_id={}", item["notification_id"].as_str().unwrap())).await.0, [one]);
    let test = rig.key("test", &["pii"]).await;
    let bearer = ("authorization", format!("Bearer {test}"));
    let deleted = rig.raw(TestRequest::delete().uri("/v1/sandbox/messages").insert_header(bearer)).await;
    assert_eq!(deleted.json()["deleted"], 2);
    assert_eq!(ids(&rig, "").await.0, Vec::<String>::new());
    assert_eq!(rig.get(&format!("/v1/sandbox/messages/{two}")).await.status, 404);
}

async fn the_page_opens_on_this_machine_and_shows_hostile_mail_as_text(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "").await;
    let id = keep(&rig, 1, "ada@example.com", "<script>alert(1)</script>", "<script>alert(2)</script><p>It works.</p>").await;
    let here = |path: &str| TestRequest::get().uri(path).insert_header(("host", "127.0.0.1:8080"));
    let list = rig.raw(here("/sandbox")).await;
    assert_eq!(list.status, 200);
    assert!(list.text().contains("&lt;script&gt;alert(1)") && list.text().contains(&format!("/sandbox/{id}")));
    let message = rig.raw(here(&format!("/sandbox/{id}"))).await;
    let page = message.text();
    assert!(page.contains("<iframe sandbox=\"\"") && page.contains("srcdoc=\"&lt;script&gt;alert(2)"));
    for text in [list.text(), page] {
        assert!(!text.contains("<script"));
    }
    let policy = message.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("script-src"));
}

async fn the_page_asks_for_a_key_elsewhere(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "[server]\nbind = \"0.0.0.0:8080\"\n[sandbox]\nenabled = true\n").await;
    let id = keep(&rig, 1, "ada@example.com", "s", "t").await;
    let path = format!("/sandbox/{id}");
    let ask = |password: Option<&str>| {
        let request = TestRequest::get().uri(&path).insert_header(("host", "127.0.0.1:8080"));
        match password {
            Some(password) => request.insert_header(("authorization", format!("Basic {}", STANDARD.encode(format!("me:{password}"))))),
            None => request,
        }
    };
    for wrong in [None, Some("guess")] {
        let refused = rig.raw(ask(wrong)).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"));
        assert!(refused.header("www-authenticate").unwrap().starts_with("Basic "));
    }
    let blind = rig.key("test", &["read"]).await;
    assert_eq!(rig.raw(ask(Some(&blind))).await.status, 403);
    assert_eq!(rig.raw(ask(Some(&rig.key))).await.status, 200);
    let elsewhere = Uuid::from_u128(1);
    let nothing = TestRequest::get().uri(&format!("/sandbox/msg_{}", elsewhere.simple())).insert_header(("host", "127.0.0.1"));
    assert_eq!(rig.raw(nothing).await.status, 401);
}

async fn a_held_call_is_answered_when_its_message_comes(on: Database) {
    let rig = Rig::start(on, Accounts::SandboxOnly, "").await;
    keep(&rig, 1, "ada@example.com", "s", "t").await;
    let held = ids(&rig, "?to=eve@example.com&wait=60s");
    let (held, kept) = tokio::join!(held, async {
        keep(&rig, 2, "bob@example.com", "s", "t").await;
        keep(&rig, 3, "eve@example.com", "s", "t").await
    });
    assert_eq!(held, (vec![kept], None));
    assert_eq!(ids(&rig, "?to=nobody@example.com&wait=10ms").await, (vec![], None));
    for wrong in ["61s", "soon", "-1s", ""] {
        let answer = rig.get(&format!("/v1/sandbox/messages?wait={wrong}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (422, "invalid_field"), "{wrong}");
    }
}
