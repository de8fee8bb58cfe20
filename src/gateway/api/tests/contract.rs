//! The document behind `/openapi.json` against what is served: routes, problem codes, words, real answers; and that nothing
//! of a released version disappears from it.

use std::collections::BTreeSet;

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::state::{Certainty, State};
use tidings_core::status::Status;
use tidings_core::words::{AttemptOutcome, Channel, Class, Mode, Reason, WaitReason};

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};
use crate::api::problem::Code;
use crate::api::reference::{OPENAPI, operations, resolved};

on_both_databases!(
    what_is_described_answers_and_what_is_pending_does_not,
    real_answers_are_as_described,
    the_document_and_its_pages_are_served_without_outside_requests,
);

/// Described, and not served yet. An entry goes when its route comes.
const PENDING: &[&str] = &[
    "get /v1/receipts",
    "put /v1/push-tokens",
    "delete /v1/push-tokens",
    "post /webhooks/{kind}/{account}",
    "post /webhooks/smtp/{account}/dsn",
    "get /u/{token}",
    "post /u/{token}",
];

/// Codes of the contract that no answer has yet.
const PENDING_CODES: &[&str] = &[];

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn described() -> BTreeSet<String> {
    operations(&document()).map(|(path, method, _)| format!("{method} {path}")).collect()
}

/// Path and method of every route, from the code that registers them: the framework does not list its own.
fn registered() -> BTreeSet<String> {
    let source = include_str!("../mod.rs");
    let resources = source.split("web::resource(\"").skip(1);
    let routes = resources.flat_map(|resource| {
        let (path, rest) = resource.split_once('"').unwrap();
        let methods = rest.split("web::").filter_map(|call| call.split_once("().to(")).map(|(method, _)| method);
        methods.map(move |method| format!("{method} {path}")).collect::<Vec<_>>()
    });
    routes.collect()
}

#[test]
fn every_route_is_described_and_every_description_is_served() {
    let (described, registered) = (described(), registered());
    assert!(registered.len() > 15 && registered.contains("get /v1/notifications"), "the source is read: {registered:?}");
    let undescribed: Vec<_> = registered.difference(&described).collect();
    assert!(undescribed.is_empty(), "add to openapi.json: {undescribed:?}");
    let pending: BTreeSet<String> = PENDING.iter().map(|route| (*route).to_owned()).collect();
    let unserved: Vec<_> = described.difference(&registered).filter(|route| !pending.contains(*route)).collect();
    assert!(unserved.is_empty(), "described and not served: {unserved:?}");
    assert!(pending.is_subset(&described));
}

async fn what_is_described_answers_and_what_is_pending_does_not(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let registered = registered();
    for (path, method, operation) in operations(&document()) {
        let filled = path.replace("{number}", "0").replace(['{', '}'], "");
        let method_name = method.to_uppercase().parse().unwrap();
        let answer = rig.raw(TestRequest::default().method(method_name).uri(&filled)).await;
        let is_there = answer.status != 405 && !answer.text().contains("there is no such path");
        assert_eq!(is_there, registered.contains(&format!("{method} {path}")), "{method} {path}: {}", answer.status);
        // Without a key nothing is told but what is public.
        let is_public = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert!(!is_there || is_public || answer.status == 401, "{method} {path}: {}", answer.status);
    }
}

#[test]
fn codes_and_words_are_those_of_the_code() {
    let document = document();
    let words = |schema: &Value| -> BTreeSet<String> {
        schema["x-words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let of = |all: Vec<&str>| -> BTreeSet<String> { all.into_iter().map(str::to_owned).collect() };
    let schemas = &document["components"]["schemas"];
    let codes = words(&schemas["Problem"]["properties"]["code"]);
    let own = of(Code::ALL.iter().map(|code| code.as_str()).collect());
    assert!(own.is_subset(&codes), "add to openapi.json: {:?}", own.difference(&codes));
    let unknown: Vec<_> = codes.difference(&own).filter(|code| !PENDING_CODES.contains(&code.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");

    let (delivery, notification) = (&schemas["Delivery"]["properties"], &schemas["Notification"]["properties"]);
    for (schema, all) in [
        (&delivery["state"], of(State::ALL.iter().map(|word| word.as_str()).collect())),
        (&delivery["certainty"], of(Certainty::ALL.iter().map(|word| word.as_str()).collect())),
        (&delivery["reason"], of(Reason::ALL.iter().map(|word| word.as_str()).collect())),
        (&delivery["wait_reason"], of(WaitReason::ALL.iter().map(|word| word.as_str()).collect())),
        (&delivery["channel"], of(Channel::ALL.iter().map(|word| word.as_str()).collect())),
        (&notification["status"], of(Status::ALL.iter().map(|word| word.as_str()).collect())),
        (&notification["class"], of(Class::ALL.iter().map(|word| word.as_str()).collect())),
        (&notification["mode"], of(Mode::ALL.iter().map(|word| word.as_str()).collect())),
        (&schemas["Attempt"]["properties"]["outcome"], of(AttemptOutcome::ALL.iter().map(|word| word.as_str()).collect())),
    ] {
        assert_eq!(words(schema), all);
    }
}

/// Every schema and field, with its type.
fn lines(document: &Value) -> BTreeSet<String> {
    let mut lines = described();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, own) in schema["properties"].as_object().into_iter().flatten() {
            lines.insert(format!("{name}.{field} {}", type_of(own)));
        }
    }
    for (path, method, operation) in operations(document) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            lines.insert(format!("{method} {path} takes {}", parameter["name"].as_str().unwrap()));
        }
    }
    lines
}

fn type_of(schema: &Value) -> String {
    match (&schema["$ref"], &schema["type"]) {
        (Value::String(target), _) => target.rsplit('/').next().unwrap_or_default().to_owned(),
        (_, Value::String(own)) if own == "array" => format!("list of {}", type_of(&schema["items"])),
        (_, Value::String(own)) => own.clone(),
        (_, Value::Array(own)) => own.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => schema["oneOf"].as_array().into_iter().flatten().map(type_of).collect::<Vec<_>>().join(" or "),
    }
}

#[test]
fn nothing_that_was_released_disappears() {
    let lines = lines(&document());
    let released = include_str!("released_v1.txt").lines().filter(|line| !line.is_empty());
    let gone: Vec<&str> = released.filter(|line| !lines.contains(*line)).collect();
    assert!(gone.is_empty(), "clients of v1 rely on it: {gone:#?}");
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_has_its_own_name() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for target in OPENAPI.split("\"$ref\": \"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(schemas.contains_key(target.strip_prefix("#/components/schemas/").unwrap()), "{target}");
    }
    let names: Vec<_> = operations(&document).map(|(_, _, operation)| operation["operationId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    assert!(!OPENAPI.contains("http://") && !OPENAPI.contains("https://"), "no request leaves to anywhere");
}

/// Checks a real answer against the schema of its route: required fields are there, types are right, and no field is
/// there that the document does not know.
pub(super) fn check(answer: &Answer, method: &str, path: &str) {
    let document = document();
    let responses = &document["paths"][path][method]["responses"];
    let response = responses.get(answer.status.to_string()).unwrap_or(&responses["default"]);
    let content_type = answer.header("content-type").unwrap().split(';').next().unwrap();
    let schema = &response["content"][content_type]["schema"];
    assert!(schema.is_object(), "{method} {path} {}: {content_type} is not described", answer.status);
    let mut faults = Vec::new();
    walk(&document, schema, &answer.json(), &format!("{method} {path} {}", answer.status), &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
}

fn walk(document: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let schema = resolved(document, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| {
            let mut own = Vec::new();
            walk(document, choice, value, at, &mut own);
            own.is_empty()
        };
        if choices.iter().filter(fits).count() != 1 {
            faults.push(format!("{at}: not exactly one of the choices"));
        }
        return;
    }
    if !type_names(schema).is_none_or(|names| names.contains(&kind(value))) {
        faults.push(format!("{at}: {} instead of {}", kind(value), schema["type"]));
    }
    match value {
        Value::Object(members) => walk_object(document, schema, members, at, faults),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, item)| walk(document, &schema["items"], item, &format!("{at}/{place}"), faults));
        }
        Value::String(text) => {
            if let Some(words) = schema["x-words"].as_array().filter(|words| !words.contains(value)) {
                faults.push(format!("{at}: {text} is none of {words:?}"));
            }
            let is_instant = text.len() == 24 && text.ends_with('Z');
            if schema["format"] == "date-time" && !is_instant {
                faults.push(format!("{at}: {text} is no instant"));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn walk_object(document: &Value, schema: &Value, members: &serde_json::Map<String, Value>, at: &str, faults: &mut Vec<String>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            faults.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, value) in members {
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Null) => faults.push(format!("{at}: {name} is not described")),
            (Value::Null, others) => walk(document, others, value, &format!("{at}/{name}"), faults),
            (own, _) => walk(document, own, value, &format!("{at}/{name}"), faults),
        }
    }
}

fn type_names(schema: &Value) -> Option<Vec<&str>> {
    match &schema["type"] {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

async fn real_answers_are_as_described(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let accepted = rig.post("k", HELLO).await;
    check(&accepted, "post", "/v1/notifications");
    check(&rig.post("k", HELLO).await, "post", "/v1/notifications");
    check(&rig.post("k", &HELLO.replace("Hello", "Hallo")).await, "post", "/v1/notifications");
    check(&rig.post("l", r#"{"to": [], "emial": {}}"#).await, "post", "/v1/notifications");
    let body = json!({"to": {"email": "ada@example.com", "metadata": {"seat": "4A"}},
        "email": {"subject": "s", "text": "t", "cc": "bob@example.com",
            "attachments": [{"filename": "a", "content_type": "text/plain", "content": "aGk="}]}, "send_in": "1h"});
    check(&rig.post("later", &body.to_string()).await, "post", "/v1/notifications");
    for key in ["older", "newer"] {
        let code = HELLO.replacen('{', r#"{"collapse_key": "code", "#, 1);
        check(&rig.post(key, &code).await, "post", "/v1/notifications");
    }
    for (path, route) in [
        ("/v1/events", "/v1/events"),
        ("/v1/notifications?limit=1", "/v1/notifications"),
        ("/v1/notifications", "/v1/notifications"),
        ("/v1/notifications?to=x", "/v1/notifications"),
        ("/v1/notifications/by-key?idempotency_key=later", "/v1/notifications/by-key"),
        ("/v1/notifications/by-key?idempotency_key=nobody", "/v1/notifications/by-key"),
        (accepted.json()["status_url"].as_str().unwrap(), "/v1/notifications/{id}"),
        ("/v1/sandbox/messages", "/v1/sandbox/messages"),
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
        ("/version", "/version"),
    ] {
        check(&rig.get(path).await, "get", route);
    }
    for delivery in rig.get("/v1/notifications").await.json()["items"].as_array().unwrap() {
        let id = delivery["deliveries"][0]["id"].as_str().unwrap().to_owned();
        check(&rig.get(&format!("/v1/deliveries/{id}")).await, "get", "/v1/deliveries/{id}");
        check(&rig.get(&format!("/v1/deliveries/{id}/content")).await, "get", "/v1/deliveries/{id}/content");
    }
}

async fn the_document_and_its_pages_are_served_without_outside_requests(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let answer = rig.raw(TestRequest::get().uri("/openapi.json")).await;
    assert_eq!(
        (answer.status, answer.header("content-type"), answer.json()["openapi"].as_str()),
        (200, Some("application/json"), Some("3.1.0"))
    );
    let docs = rig.raw(TestRequest::get().uri("/docs")).await.text();
    for (path, method, _) in operations(&document()) {
        assert!(docs.contains(&format!("<code>{} {path}</code>", method.to_uppercase())), "{method} {path}");
    }
    assert!(!docs.contains("{{") && !docs.contains("<script") && !docs.contains("src=\"http"));
    let reasons = rig.raw(TestRequest::get().uri("/docs/reasons")).await.text();
    let words = State::ALL.iter().map(|word| word.as_str()).chain(Reason::ALL.iter().map(|word| word.as_str()));
    let words = words.chain(WaitReason::ALL.iter().map(|word| word.as_str())).chain(AttemptOutcome::ALL.iter().map(|word| word.as_str()));
    for word in words.chain(Status::ALL.iter().map(|word| word.as_str())).chain(Certainty::ALL.iter().map(|word| word.as_str())) {
        assert!(reasons.contains(&format!("<code>{word}</code>")), "{word}");
    }
}
