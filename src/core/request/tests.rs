//! Each rule of the request as a table: what is written where, and which fault that is.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fault::Fault;
use crate::fault::FaultCode::{ExpiresAtTooFar, InvalidContent, InvalidField, InvalidRecipient, SendAtPast, SendAtTooFar, UnknownField};

mod email;
mod labels;
mod times;

const NOW: &str = "2027-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn read(body: &Value) -> Result<Request, Refused> {
    parse(body.to_string().as_bytes(), &RequestLimits::default(), now())
}

fn sound() -> Value {
    json!({"to": "ada@example.com", "email": {"subject": "Your receipt", "text": "Thank you."}})
}

/// A sound request in which `value` stands at `pointer`.
fn with(pointer: &str, value: Value) -> Value {
    let mut body = sound();
    set(&mut body, pointer, value);
    body
}

fn set(body: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = body.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    parent.insert(name.replace("~1", "/"), value);
}

fn faults(body: &Value) -> Vec<(String, FaultCode)> {
    let refused = read(body).expect_err(&body.to_string());
    refused.faults.into_iter().map(|Fault { pointer, code, .. }| (pointer, code)).collect()
}

fn refuses(code: FaultCode, pointer: &str, values: impl IntoIterator<Item = Value>) {
    for value in values {
        assert_eq!(faults(&with(pointer, value.clone())), [(pointer.to_owned(), code)], "{value}");
    }
}

fn takes(pointer: &str, values: impl IntoIterator<Item = Value>) {
    for value in values {
        let body = with(pointer, value);
        assert!(read(&body).is_ok(), "{body}: {:?}", read(&body));
    }
}

#[test]
fn a_whole_request_is_read() {
    let body = r#"{
        "category": "receipt", "channels": ["email"],
        "to": {"email": "Ada@Exämple.com", "name": "Ada", "ref": "user_42", "metadata": {"plan": "pro"}},
        "email": {"from": "Shop <shop@example.com>", "subject": "Your receipt", "text": "t", "html": "<p>", "reply_to": "help@example.com",
                  "cc": ["c@example.com", {"email": "d@example.com", "name": "Doe, Jane"}], "bcc": "b@example.com", "also_to": [],
                  "headers": {"X-B": "1", "List-Unsubscribe": "<https://example.com/u>", "References": "<a@b> <c@d>"},
                  "attachments": [{"filename": "f.ics", "content_type": "text/calendar; method=REQUEST", "content": "aGk=", "content_id": "logo"}]},
        "send_in": "10m", "expires_at": "2027-01-02T01:00:00+01:00", "tags": ["a", "b"], "metadata": {"z": "1", "a": "2"}
    }"#;
    let request = parse(body.as_bytes(), &RequestLimits::default(), now()).unwrap();
    assert_eq!(request.category.as_deref(), Some("receipt"));
    assert_eq!(request.channels, [Channel::Email]);
    let recipient = &request.recipients[0];
    assert_eq!((recipient.written.as_str(), recipient.mailbox.email.as_str()), ("Ada@Exämple.com", "Ada@xn--exmple-cua.com"));
    assert_eq!((recipient.reference.as_deref(), recipient.mailbox.name.as_deref()), (Some("user_42"), Some("Ada")));
    assert_eq!(request.email.cc[1].name.as_deref(), Some("Doe, Jane"));
    assert_eq!(request.email.headers[0], ("X-B".to_owned(), "1".to_owned()));
    assert_eq!(request.email.attachments[0].content, b"hi");
    assert_eq!(request.send_at, Some(now().plus(std::time::Duration::from_secs(600))));
    assert_eq!(request.expires_at.map(|at| at.to_string()).as_deref(), Some("2027-01-02T00:00:00.000Z"));
    assert_eq!(request.metadata, [("z".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())]);
    let content = request.email.into_content("a@example.com".parse().unwrap());
    assert_eq!((content.from.email.as_str(), content.subject.as_str()), ("a@example.com", "Your receipt"));
}

#[test]
fn all_faults_are_told_at_once_malformed_first() {
    let body = json!({"to": ["ada", {"email": "b@example.com", "name": "x\ny", "nme": "B"}], "email": {"subject": "a\r\nBcc: x", "txt": "hi"},
                      "send_at": "2027-01-01T00:00:00", "tags": ["a b"], "sms": {"text": "x"}});
    let found: Vec<(String, FaultCode)> = faults(&body);
    let expected = [
        ("/sms", UnknownField),
        ("/to/1/nme", UnknownField),
        ("/email/txt", UnknownField),
        ("/to/0", InvalidRecipient),
        ("/to/1/name", InvalidRecipient),
        ("/email/subject", InvalidContent),
        ("/email", InvalidContent),
        ("/send_at", InvalidField),
        ("/tags/0", InvalidField),
    ];
    assert_eq!(found, expected.map(|(pointer, code)| (pointer.to_owned(), code)));
}

#[test]
fn what_is_not_served_here_is_unknown_with_its_pointer() {
    for name in super::SHAPE.later {
        assert_eq!(faults(&with(&format!("/{name}"), json!("x"))), [(format!("/{name}"), UnknownField)]);
        assert!(read(&with(&format!("/{name}"), Value::Null)).is_ok(), "null is absent: {name}");
    }
    for name in ["tenant_id", "status", "attempt", "provider", "created_at", "mode", "class", "id", "variables", "to_", "idempotency_key"] {
        assert_eq!(faults(&with(&format!("/{name}"), json!("x"))), [(format!("/{name}"), UnknownField)]);
        assert_eq!(faults(&with(&format!("/{name}"), Value::Null)), [(format!("/{name}"), UnknownField)]);
    }
    for name in ["phone", "push", "variables"] {
        let to = json!({"email": "a@example.com", name: "+15005550006"});
        assert_eq!(faults(&with("/to", to)), [(format!("/to/{name}"), UnknownField)]);
    }
    let attachment = json!([{"filename": "a", "content": "", "path": "/etc/passwd"}]);
    assert_eq!(faults(&with("/email/attachments", attachment)), [("/email/attachments/0/path".to_owned(), UnknownField)]);
    assert_eq!(faults(&with("/email/cc", json!({"email": "a@example.com", "ref": "x"}))), [("/email/cc/ref".to_owned(), UnknownField)]);
}

#[test]
fn a_slip_is_answered_with_the_name_that_was_meant() {
    let detail = |pointer: &str, value: Value| read(&with(pointer, value)).unwrap_err().faults.as_slice()[0].detail.clone();
    assert!(detail("/email/replyTo", json!("a@example.com")).contains("\"reply_to\""));
    assert!(detail("/metdata", json!({})).contains("\"metadata\""));
    assert!(detail("/channels", json!(["emial"])).contains("\"email\""));
    assert!(detail("/status", json!("x")).contains("server"));
    assert!(detail("/idempotency_key", json!("x")).contains("Idempotency-Key"));
}

#[test]
fn null_is_absent_everywhere_but_in_lists() {
    for pointer in [
        "/category",
        "/channels",
        "/send_at",
        "/send_in",
        "/expires_at",
        "/expires_in",
        "/tags",
        "/metadata",
        "/email/from",
        "/email/html",
        "/email/reply_to",
        "/email/cc",
        "/email/headers",
        "/email/attachments",
    ] {
        assert_eq!(read(&with(pointer, Value::Null)), read(&sound()), "{pointer}");
    }
    takes("/metadata", [json!({"a": null})]);
    takes("/email/headers", [json!({"X-A": null})]);
    takes("/to", [json!({"email": "a@example.com", "name": null, "ref": null, "metadata": null, "phone": null, "push": null})]);
    assert_eq!(faults(&with("/tags", json!([null]))), [("/tags/0".to_owned(), InvalidField)]);
    assert_eq!(faults(&with("/to", json!([null]))), [("/to/0".to_owned(), InvalidField)]);
    refuses(InvalidField, "/to", [Value::Null]);
    refuses(InvalidContent, "/email", [Value::Null]);
}

#[test]
fn a_wrong_type_is_an_invalid_field() {
    for pointer in [
        "/category",
        "/to",
        "/email/subject",
        "/email/text",
        "/email/html",
        "/email/from",
        "/email/cc",
        "/send_at",
        "/send_in",
        "/expires_at",
        "/expires_in",
    ] {
        refuses(InvalidField, pointer, [json!(1), json!(true)]);
    }
    for pointer in ["/channels", "/tags", "/metadata", "/email", "/email/headers", "/email/attachments"] {
        refuses(InvalidField, pointer, [json!(1), json!("x")]);
    }
    for document in [json!([]), json!("x"), json!(null), json!(1)] {
        assert_eq!(faults(&document), [(String::new(), InvalidField)]);
    }
    assert_eq!(faults(&with("/metadata", json!({"a": 1}))), [("/metadata/a".to_owned(), InvalidField)]);
    assert_eq!(faults(&with("/email/headers", json!({"X-A": ["b"]}))), [("/email/headers/X-A".to_owned(), InvalidField)]);
    assert_eq!(faults(&with("/email/attachments", json!([1]))), [("/email/attachments/0".to_owned(), InvalidField)]);
    assert_eq!(faults(&with("/to", json!({"email": 1}))), [("/to/email".to_owned(), InvalidField)]);
}

#[test]
fn an_item_of_a_batch_is_judged_with_pointers_from_the_root() {
    let batch = json!({"notifications": [sound(), {"to": [{"email": "x"}], "email": {"subject": ""}}]}).to_string();
    let Json::Object(members) = json::parse(batch.as_bytes()).unwrap() else { panic!("an object") };
    let Json::List(items) = &members[0].1 else { panic!("a list") };
    let root = Pointer::ROOT;
    let place = root.name("notifications");
    assert!(parse_document(&items[0], &place.index(0), &RequestLimits::default(), now()).is_ok());
    let refused = parse_document(&items[1], &place.index(1), &RequestLimits::default(), now()).unwrap_err();
    let pointers: Vec<_> = refused.faults.as_slice().iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(pointers, ["/notifications/1/to/0/email", "/notifications/1/email/subject", "/notifications/1/email"]);
}

#[test]
fn nothing_that_was_written_is_repeated_in_a_fault_or_a_log() {
    let marker = "hunter2";
    let body = json!({"to": [marker, format!("{marker}@x@y"), {"email": marker, "name": format!("{marker}\n"), "ref": format!("{marker}\n")}],
        format!("{marker}@example.com"): 1, "category": format!("{marker} x"), "channels": [marker], "tags": [format!("{marker} ")],
        "send_at": marker, "expires_in": marker,
        "email": {"from": format!("{marker} x"), "subject": format!("{marker}\n"), "text": marker, "headers": {"X-A": format!("{marker}\n")},
                  "attachments": [{"filename": format!("{marker}/"), "content_type": marker, "content": format!("{marker}*"), "content_id": format!("<{marker}>")}]}});
    let refused = read(&body).unwrap_err();
    assert!(refused.faults.as_slice().len() > 12);
    assert!(!format!("{refused:?}").contains(marker), "{refused:?}");
    let request =
        read(&json!({"to": format!("{marker}@example.com"), "email": {"subject": marker, "text": marker}, "metadata": {"a": marker}}));
    assert!(!format!("{request:?}").contains(marker));
}

#[test]
fn the_answer_stays_small_whatever_is_sent() {
    let unknown: Value = Value::Object((0..20_000).map(|i| (format!("f{i}"), json!(1))).collect());
    assert_eq!(read(&unknown).unwrap_err().faults.as_slice().len(), 100);
}

/// JSON that has our names in wrong places and our kinds of value under wrong names.
fn strange_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "a@example.com",
            "A <a@b.example>",
            "+15005550006",
            "2027-02-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "10m",
            "90d",
            "0s",
            "aGk=",
            "text/plain; a=\"",
            "email",
            "\r\n",
            "365000d",
            "-009999-01-02T00:00:00Z"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        let names = prop::sample::select(vec![
            "to",
            "email",
            "name",
            "ref",
            "metadata",
            "subject",
            "text",
            "html",
            "from",
            "cc",
            "bcc",
            "also_to",
            "reply_to",
            "headers",
            "attachments",
            "filename",
            "content",
            "content_type",
            "content_id",
            "send_at",
            "send_in",
            "expires_at",
            "expires_in",
            "tags",
            "category",
            "channels",
            "sms",
            "é",
            "",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().map(|(n, v)| (n.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_panics_and_every_fault_points_into_the_document(body in strange_json(), pointer in "/(to|email|send_at|expires_at|tags|email/(from|cc|headers|attachments))", value in strange_json()) {
        for body in [body, with(&pointer, value)] {
            if let Err(refused) = read(&body) {
                prop_assert!(!refused.faults.is_empty());
                for fault in refused.faults {
                    let parent = fault.pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
                    prop_assert!(body.pointer(parent).is_some(), "{}", fault.pointer);
                }
            }
        }
    }
}
