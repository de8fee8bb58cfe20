//! Who is written to, and what the application calls things.

use super::*;

#[test]
fn recipients_are_one_or_a_list_and_never_the_same_twice() {
    takes("/to", [json!("Ada <ada@example.com>"), json!(["a@example.com", {"email": "b@example.com"}]), json!({"email": "a@example.com"})]);
    refuses(
        InvalidRecipient,
        "/to",
        [json!("ada"), json!(""), json!("a@example.com, b@example.com"), json!("+15005550006"), json!("+1 (500) 555-0006")],
    );
    refuses(InvalidRecipient, "/to", [json!([])]);
    for (to, pointer) in [
        (json!({"name": "Ada"}), "/to/email"),
        (json!({"email": "Ada <ada@example.com>"}), "/to/email"),
        (json!([{"email": "a@example.com"}, {"email": "x"}]), "/to/1/email"),
        (json!({"email": "a@example.com", "name": "x".repeat(256)}), "/to/name"),
        (json!(["a@example.com", "b@example.com", "\"A\"@EXAMPLE.com"]), "/to/2"),
    ] {
        assert_eq!(faults(&with("/to", to)), [(pointer.to_owned(), InvalidRecipient)]);
    }
    let both = json!({"email": "x", "name": "a\u{7}"});
    assert_eq!(faults(&with("/to", both)), [("/to/email".to_owned(), InvalidRecipient), ("/to/name".to_owned(), InvalidRecipient)]);
    for wrong in ["", "a\nb", &"x".repeat(129)] {
        assert_eq!(faults(&with("/to", json!({"email": "a@example.com", "ref": wrong}))), [("/to/ref".to_owned(), InvalidField)]);
    }
    let many = |n: usize| -> Value { (0..n).map(|i| format!("u{i}@example.com")).collect() };
    takes("/to", [many(50)]);
    let refused = read(&with("/to", many(51))).unwrap_err();
    let [fault] = refused.faults.as_slice() else { panic!("one fault") };
    assert_eq!((fault.pointer.as_str(), fault.code, fault.limit, fault.actual), ("/to", InvalidRecipient, Some(50), Some(51)));
    let generous = RequestLimits { recipients: 10_000 };
    assert!(parse(with("/to", many(500)).to_string().as_bytes(), &generous, now()).is_ok());
    assert!(parse(with("/to", many(501)).to_string().as_bytes(), &generous, now()).is_err());
}

#[test]
fn labels_have_bounds() {
    takes("/category", [json!("login-code"), json!("x".repeat(64))]);
    refuses(InvalidField, "/category", [json!(""), json!("a b"), json!("é"), json!("x".repeat(65))]);
    takes("/tags", [json!([]), json!(["a", "B_.:-9"]), (0..10).map(|i| i.to_string()).collect()]);
    refuses(InvalidField, "/tags", [(0..11).map(|i| i.to_string()).collect()]);
    for tag in ["", "a b", "ü", &"x".repeat(65)] {
        assert_eq!(faults(&with("/tags", json!(["ok", tag]))), [("/tags/1".to_owned(), InvalidField)]);
    }
    assert_eq!(faults(&with("/tags", json!(["a", "a"]))), [("/tags/1".to_owned(), InvalidField)]);
    let entries = |n: usize| -> Value { Value::Object((0..n).map(|i| (format!("k{i}"), json!("v"))).collect()) };
    takes("/metadata", [entries(20), json!({"é".repeat(40): "ü\n".repeat(250)})]);
    refuses(InvalidField, "/metadata", [entries(21)]);
    for (name, value) in [("x".repeat(41), "v".to_owned()), ("k".to_owned(), "x".repeat(501)), (String::new(), "v".to_owned())] {
        assert_eq!(faults(&with("/metadata", json!({&name: value}))), [(format!("/metadata/{name}"), InvalidField)]);
    }
    assert_eq!(
        faults(&with("/to", json!({"email": "a@example.com", "metadata": {"k": 1}}))),
        [("/to/metadata/k".to_owned(), InvalidField)]
    );
    takes("/channels", [json!(["email"])]);
    refuses(InvalidField, "/channels", [json!([])]);
    for (channels, place) in [(json!(["sms"]), 0), (json!(["push"]), 0), (json!(["email", "fax"]), 1), (json!(["email", "email"]), 1)] {
        assert_eq!(faults(&with("/channels", channels)), [(format!("/channels/{place}"), InvalidField)]);
    }
}
