//! The email of a request: author, words, copies, headers, attachments.

use super::*;

#[test]
fn copies_ride_with_exactly_one_recipient() {
    for name in ["cc", "bcc", "also_to"] {
        let pointer = format!("/email/{name}");
        takes(&pointer, [json!("c@example.com"), json!([{"email": "c@example.com", "name": "C"}, "d@example.com"]), json!([])]);
        let mut body = with(&pointer, json!(["c@example.com"]));
        set(&mut body, "/to", json!(["a@example.com"]));
        assert!(read(&body).is_ok());
        set(&mut body, "/to", json!(["a@example.com", "b@example.com"]));
        assert_eq!(faults(&body), [(pointer.clone(), InvalidContent)]);
        assert_eq!(faults(&with(&pointer, json!(["c@example.com", "x"]))), [(format!("{pointer}/1"), InvalidRecipient)]);
        assert_eq!(faults(&with(&pointer, json!({"name": "C"}))), [(format!("{pointer}/email"), InvalidRecipient)]);
    }
    let many: Value = (0..26).map(|i| format!("u{i}@example.com")).collect();
    let mut body = with("/email/cc", many.clone());
    set(&mut body, "/email/bcc", many);
    assert_eq!(faults(&body), [("/email/bcc".to_owned(), InvalidRecipient)]);
}

#[test]
fn from_is_a_mailbox_or_the_name_of_a_sender() {
    let from = |value: Value| read(&with("/email/from", value)).unwrap().email.from;
    assert_eq!(from(json!("shop")), Some(Author::Sender("shop".to_owned())));
    assert!(matches!(from(json!("Shop <shop@example.com>")), Some(Author::Mailbox(mailbox)) if mailbox.name.as_deref() == Some("Shop")));
    assert!(matches!(from(json!({"email": "shop@example.com"})), Some(Author::Mailbox(_))));
    refuses(InvalidContent, "/email/from", [json!(""), json!("Shop Support"), json!("Shop <shop>")]);
    refuses(InvalidRecipient, "/email/from", [json!("a@example.com, b@example.com"), json!("shop@")]);
}

#[test]
fn an_email_says_something() {
    takes("/email/subject", [json!("ü".repeat(255)), json!("渡辺 😀")]);
    refuses(
        InvalidContent,
        "/email/subject",
        [Value::Null, json!(""), json!("  "), json!("a\r\nBcc: x@example.com"), json!("a\tb"), json!("x".repeat(256))],
    );
    takes("/email/html", [json!("<p>"), json!("")]);
    for email in [json!({"subject": "s"}), json!({"subject": "s", "text": "", "html": ""}), json!({"subject": "s", "text": null})] {
        assert_eq!(faults(&with("/email", email)), [("/email".to_owned(), InvalidContent)]);
    }
    assert_eq!(read(&with("/email/html", json!(""))), read(&sound()), "an empty alternative is none");
}

#[test]
fn headers_that_are_ours_are_refused_in_any_letter_case() {
    for name in [
        "Message-ID",
        "message-id",
        "DATE",
        "From",
        "to",
        "Cc",
        "Bcc",
        "Subject",
        "Reply-To",
        "Sender",
        "MIME-Version",
        "Content-Type",
        "content-transfer-encoding",
        "DKIM-Signature",
        "Return-Path",
        "Received",
        "X-Delivery-Id",
        "Resent-To",
        "RESENT-anything",
    ] {
        assert_eq!(faults(&with("/email/headers", json!({name: "x"}))), [(format!("/email/headers/{name}"), InvalidContent)]);
    }
    for name in ["In-Reply-To", "References", "List-Unsubscribe", "List-Unsubscribe-Post", "X-Anything", "Auto-Submitted", "Importance"] {
        takes("/email/headers", [json!({name: "x"})]);
    }
}

#[test]
fn headers_are_lines_that_occur_once() {
    for name in ["X A", "X:A", "Ünicode", "X\r\nBcc", "X\tA"] {
        let found = faults(&with("/email/headers", json!({name: "x"})));
        assert!(found.len() == 1 && found[0].0.starts_with("/email/headers") && found[0].1 == InvalidContent, "{found:?}");
    }
    assert_eq!(faults(&with("/email/headers", json!({"": "x"}))), [("/email/headers/".to_owned(), InvalidContent)]);
    for value in ["", " ", "a\r\nBcc: x", "a\nb", "a\u{7f}", &"x".repeat(999)] {
        assert_eq!(faults(&with("/email/headers", json!({"X-A": value}))), [("/email/headers/X-A".to_owned(), InvalidContent)]);
    }
    takes("/email/headers", [json!({"X-A": "x".repeat(998)}), json!({"X-A": "é\tb"})]);
    assert_eq!(faults(&with("/email/headers", json!({"X-A": "1", "x-a": "2"}))), [("/email/headers/x-a".to_owned(), InvalidContent)]);
    let many = |n: usize| -> Value { Value::Object((0..n).map(|i| (format!("X-{i}"), json!("v"))).collect()) };
    takes("/email/headers", [many(50)]);
    refuses(InvalidContent, "/email/headers", [many(51)]);
}

#[test]
fn attachments_are_whole_files_with_names() {
    let one = |name: &str, value: Value| {
        let mut attachment = json!({"filename": "a.txt", "content": "aGk="});
        set(&mut attachment, name, value);
        with("/email/attachments", json!([attachment]))
    };
    let read_one = |name: &str, value: Value| read(&one(name, value)).unwrap().email.attachments.remove(0);
    assert_eq!(read_one("/content_type", Value::Null).content_type, "application/octet-stream");
    assert_eq!(read_one("/content_type", json!("text/calendar; method=REQUEST")).content_type, "text/calendar; method=REQUEST");
    for (text, bytes) in [("aGk=", "hi"), ("aGk", "hi"), ("", ""), ("8J+Yig==", "😊")] {
        assert_eq!(read_one("/content", json!(text)).content, bytes.as_bytes());
    }
    for (name, values) in [
        ("filename", vec![Value::Null, json!(""), json!("a/b"), json!("..\\b"), json!("a\nb"), json!("x".repeat(256))]),
        ("content_type", vec![json!(""), json!("text"), json!("text/plain\r\nX: 1"), json!("multipart/mixed; boundary=a")]),
        ("content", vec![Value::Null, json!("aGk_"), json!("aG\nk="), json!("aGk==="), json!("a"), json!("aGl="), json!("=")]),
        ("content_id", vec![json!(""), json!("<logo>"), json!("a b"), json!("x".repeat(129))]),
    ] {
        for value in values {
            let body = one(&format!("/{name}"), value.clone());
            assert_eq!(faults(&body), [(format!("/email/attachments/0/{name}"), InvalidContent)], "{value}");
        }
    }
    let refused = read(&one("/content", json!("aGk*"))).unwrap_err();
    assert!(refused.faults.as_slice()[0].detail.contains("offset 3"));
    let many = |n: usize| -> Value { (0..n).map(|i| json!({"filename": "a", "content": "", "content_id": format!("c{i}")})).collect() };
    takes("/email/attachments", [many(50)]);
    refuses(InvalidContent, "/email/attachments", [many(51)]);
    let twice = json!([{"filename": "a", "content": "", "content_id": "c"}, {"filename": "b", "content": "", "content_id": "c"}]);
    assert_eq!(faults(&with("/email/attachments", twice)), [("/email/attachments/1/content_id".to_owned(), InvalidContent)]);
}
