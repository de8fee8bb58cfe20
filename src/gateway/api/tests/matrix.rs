//! S-210: whatever belongs to another tenant, or to the other mode, does not exist. One row for each route: what it is
//! asked, and what it may say to somebody to whom nothing there belongs. A route without a row fails the test.

use std::collections::BTreeSet;

use actix_web::http::Method;
use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::words::Mode;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};
use super::sandbox::keep_for;

on_both_databases!(nothing_of_another_tenant_or_mode_exists_on_any_route,);

const ALL: &[&str] = &["send", "send:critical", "read", "pii", "ops", "admin"];

/// What somebody hears to whom nothing there belongs.
#[derive(Clone, Copy)]
enum Hears {
    /// `404`, the same as for what was never there.
    Nothing,
    /// `404`: the installation, which belongs to no tenant, has nothing of this name.
    NoSuch,
    /// A result for each, and each is `404`.
    NothingInEach,
    /// A good answer in which nothing of the owner's occurs.
    Own,
    /// It belongs to nobody, and asks for no key.
    Public,
}

use Hears::{NoSuch, Nothing, NothingInEach, Own, Public};

/// Every route, with the words of `Owned` in braces.
const ROUTES: &[(&str, &str, &str, Hears)] = &[
    ("POST", "/v1/notifications", r#"{"to": "new@example.com", "email": {"subject": "s", "text": "t"}}"#, Own),
    (
        "POST",
        "/v1/notifications/batch",
        r#"{"notifications": [{"idempotency_key": "{key}-b", "to": "new@example.com", "email": {"subject": "s", "text": "t"}}]}"#,
        Own,
    ),
    ("GET", "/v1/notifications", "", Own),
    ("POST", "/v1/notifications/search", r#"{"to": "ada@example.com"}"#, Own),
    ("GET", "/v1/notifications/by-key?idempotency_key={key}", "", Nothing),
    ("GET", "/v1/notifications/{notification}", "", Nothing),
    ("PATCH", "/v1/notifications/by-key?idempotency_key={key}", r#"{"send_at": null}"#, Nothing),
    ("POST", "/v1/notifications/by-key/cancel?idempotency_key={key}", "", Nothing),
    ("PATCH", "/v1/notifications/{notification}", r#"{"send_at": null}"#, Nothing),
    ("POST", "/v1/notifications/{notification}/cancel", "", Nothing),
    ("GET", "/v1/deliveries/{delivery}", "", Nothing),
    ("GET", "/v1/deliveries/{delivery}/content", "", Nothing),
    ("POST", "/v1/deliveries/{delivery}/resolve", r#"{"as": "sent", "reason": "curiosity"}"#, Nothing),
    ("POST", "/v1/deliveries/{delivery}/resend", r#"{"reason": "curiosity"}"#, Nothing),
    ("GET", "/v1/dead-letters", "", Own),
    ("GET", "/v1/events", "", Own),
    ("POST", "/v1/dead-letters/replay", r#"{"ids": ["{delivery}"], "reason": "curiosity"}"#, NothingInEach),
    ("POST", "/v1/dead-letters/discard", r#"{"ids": ["{delivery}"], "reason": "curiosity"}"#, NothingInEach),
    ("GET", "/v1/suppressions", "", Own),
    ("POST", "/v1/suppressions", r#"{"items": [{"address": "{address}"}]}"#, Own),
    ("POST", "/v1/suppressions/lookup", r#"{"address": "{address}"}"#, Own),
    ("DELETE", "/v1/suppressions/{suppression}", r#"{"reason": "curiosity"}"#, Nothing),
    ("GET", "/v1/keys", "", Own),
    ("POST", "/v1/keys", r#"{"name": "another", "kind": "test"}"#, Own),
    ("POST", "/v1/keys/{api_key}/rotate", "{}", Nothing),
    ("POST", "/v1/keys/{api_key}/revoke", "{}", Nothing),
    // Accounts and switches are the installation's: a key with scope `ops` acts for all of it.
    ("GET", "/v1/accounts", "", Own),
    ("POST", "/v1/accounts/nobody/pause", r#"{"reason": "curiosity"}"#, NoSuch),
    ("POST", "/v1/accounts/nobody/resume", r#"{"reason": "curiosity"}"#, NoSuch),
    ("POST", "/v1/accounts/nobody/test", r#"{"to": "ada@example.com"}"#, NoSuch),
    ("GET", "/v1/switches", "", Own),
    ("GET", "/v1/switches/category:receipt", "", NoSuch),
    ("PUT", "/v1/switches/tenant:nobody", r#"{"paused": true, "reason": "curiosity"}"#, NoSuch),
    ("DELETE", "/v1/switches/category:receipt", r#"{"reason": "curiosity"}"#, Own),
    // So is its configuration, for keys with scope `admin`.
    ("POST", "/v1/config/reload", "", Own),
    ("GET", "/v1/limits", "", Own),
    ("GET", "/v1/events", "", Own),
    ("GET", "/v1/sandbox/messages", "", Own),
    ("DELETE", "/v1/sandbox/messages", "", Own),
    ("GET", "/v1/sandbox/messages/{message}", "", Nothing),
    ("GET", "/v1/sandbox/messages/{message}/attachments/0", "", Nothing),
    ("GET", "/sandbox", "", Public),
    ("GET", "/sandbox/{message}", "", Public),
    ("GET", "/sandbox/{message}/attachments/0", "", Public),
    ("GET", "/healthz", "", Public),
    ("HEAD", "/healthz", "", Public),
    ("GET", "/readyz", "", Public),
    ("HEAD", "/readyz", "", Public),
    ("GET", "/version", "", Public),
    ("GET", "/metrics", "", Public),
    ("GET", "/openapi.json", "", Public),
    ("GET", "/docs", "", Public),
    ("GET", "/docs/style.css", "", Public),
    ("GET", "/docs/reasons", "", Public),
    ("GET", "/docs/errors/not_found", "", Public),
];

/// What one tenant and mode has.
struct Owned {
    words: Vec<(&'static str, String)>,
}

impl Owned {
    fn filled(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }
}

/// One thing of each kind, made with this key of the tenant acme.
async fn own_things(rig: &Rig, key: &str) -> Owned {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let accepted = rig.post_as(key, "order-10432", HELLO).await.json();
    let suppressed = call(rig, key, "POST", "/v1/suppressions", r#"{"items": [{"address": "grace@example.com"}]}"#).await.json();
    let api_key = text(&call(rig, key, "POST", "/v1/keys", r#"{"name": "victim"}"#).await.json()["id"]);
    let words = vec![
        ("notification", text(&accepted["id"])),
        ("delivery", text(&accepted["deliveries"][0]["id"])),
        ("key", "order-10432".to_owned()),
        ("suppression", text(&suppressed["results"][0]["id"])),
        ("address", "grace@example.com".to_owned()),
        ("api_key", api_key),
        ("message", keep_for(rig, ("acme", Mode::Live), 1, "ada@example.com", "s", "t").await),
    ];
    Owned { words }
}

async fn call(rig: &Rig, key: &str, method: &str, path: &str, body: &str) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = TestRequest::default().method(method).uri(path).insert_header(("authorization", format!("Bearer {key}")));
    rig.raw(
        request
            .insert_header(("content-type", "application/json"))
            .insert_header(("idempotency-key", "another"))
            .set_payload(body.to_owned()),
    )
    .await
}

async fn nothing_of_another_tenant_or_mode_exists_on_any_route(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let (acme, bond) = (rig.key_of("acme", "live", ALL).await, rig.key_of("bond", "live", ALL).await);
    let acme_test = rig.key_of("acme", "test", ALL).await;
    let owned = own_things(&rig, &acme).await;
    for stranger in [&bond, &acme_test] {
        for (method, path, body, hears) in ROUTES {
            let (path, body) = (owned.filled(path), owned.filled(body));
            // What a stranger does to the owner's things must leave them as they are, so the owner looks afterwards.
            let answer = call(&rig, stranger, method, &path, &body).await;
            match hears {
                Public => continue,
                Nothing => {
                    assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{method} {path}");
                    assert_eq!(answer.problem().2, "there is nothing here for this API key", "{method} {path}");
                }
                NoSuch => assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{method} {path}"),
                NothingInEach => {
                    let results = answer.json()["results"].clone();
                    assert_eq!(
                        (results[0]["status"].as_u64(), results[0]["code"].as_str()),
                        (Some(404), Some("not_found")),
                        "{method} {path}"
                    );
                }
                Own => {
                    assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
                    let is_told = |word: &str| answer.text().contains(word);
                    for (name, id) in owned.words.iter().filter(|(name, _)| !matches!(*name, "address" | "key")) {
                        assert!(!is_told(id), "{method} {path} tells the {name} of somebody else");
                    }
                }
            }
            let anonymous = rig.raw(TestRequest::default().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(&path)).await;
            assert_eq!(anonymous.status, 401, "{method} {path} without a key");
        }
    }
    for path in ["/v1/notifications/{notification}", "/v1/sandbox/messages/{message}"] {
        assert_eq!(rig.get_as(&acme, &owned.filled(path)).await.status, 200, "{path} is there for its owner");
    }
    let keys = rig.get_as(&acme, "/v1/keys").await.json();
    let victim = keys["items"].as_array().unwrap().iter().find(|key| key["name"] == "victim").unwrap();
    assert!(victim["revoked_at"].is_null() && victim["expires_at"].is_null(), "{victim}");
    let listed = call(&rig, &acme, "POST", "/v1/suppressions/lookup", r#"{"address": "grace@example.com"}"#).await.json();
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["items"][0]["id"]), (1, &json!(owned.filled("{suppression}"))));
}

/// The routes that are registered, read from the source: the framework does not tell them.
fn registered() -> BTreeSet<(String, String)> {
    let source = include_str!("../mod.rs");
    let mut routes = BTreeSet::new();
    for resource in source.split("web::resource(\"").skip(1) {
        let (path, rest) = resource.split_once('"').unwrap();
        let until = rest.find("web::resource(").unwrap_or(rest.len());
        for method in ["get", "post", "put", "patch", "delete", "head"] {
            if rest[..until].contains(&format!("web::{method}()")) {
                routes.insert((method.to_uppercase(), path.to_owned()));
            }
        }
    }
    routes
}

/// Whether a row asks this route.
fn asks(row: &str, route: &str) -> bool {
    let (row, route): (Vec<&str>, Vec<&str>) = (row.split('?').next().unwrap().split('/').collect(), route.split('/').collect());
    row.len() == route.len() && row.iter().zip(&route).all(|(own, wanted)| own == wanted || wanted.starts_with('{'))
}

#[test]
fn every_registered_route_has_a_row() {
    let registered = registered();
    assert!(registered.len() > 20 && registered.contains(&("GET".to_owned(), "/v1/keys".to_owned())), "{registered:?}");
    let is_exact = |path: &str| registered.iter().any(|(_, route)| route == path.split('?').next().unwrap());
    let has_row = |method: &str, route: &str| {
        let fits = |row: &&(&str, &str, &str, Hears)| row.0 == method && asks(row.1, route) && (!route.contains('{') || !is_exact(row.1));
        ROUTES.iter().find(fits).is_some()
    };
    let missing: Vec<_> = registered.iter().filter(|(method, route)| !has_row(method, route)).collect();
    assert!(missing.is_empty(), "add rows to ROUTES, saying what a stranger hears: {missing:?}");
}
