//! When to send, when to give up, and what a late replay finds.

use super::*;

#[test]
fn send_at_may_lie_five_minutes_back_and_ninety_days_ahead() {
    let send_at = |field: &str, value: &str| read(&with(field, json!(value))).unwrap().send_at.map(|at| at.to_string());
    for at_once in ["2027-01-01T00:00:00Z", "2026-12-31T23:55:00Z"] {
        assert_eq!(send_at("/send_at", at_once), None);
    }
    assert_eq!(send_at("/send_in", "0s"), None);
    assert_eq!(send_at("/send_at", "2027-04-01T02:00:00+02:00").as_deref(), Some("2027-04-01T00:00:00.000Z"));
    assert_eq!(send_at("/send_in", "90d").as_deref(), Some("2027-04-01T00:00:00.000Z"));
    refuses(SendAtPast, "/send_at", [json!("2026-12-31T23:54:59.999Z"), json!("1970-01-01T00:00:00Z")]);
    refuses(SendAtTooFar, "/send_at", [json!("2027-04-01T00:00:00.001Z"), json!("9999-01-01T00:00:00Z")]);
    refuses(SendAtTooFar, "/send_in", [json!("91d")]);
    refuses(InvalidField, "/send_at", [json!("2027-02-01T00:00:00"), json!("tomorrow"), json!(""), json!("10m")]);
    refuses(InvalidField, "/send_in", [json!("1.5h"), json!("-1s"), json!("2027-02-01T00:00:00Z")]);
    let mut both = with("/send_at", json!("2027-02-01T00:00:00Z"));
    set(&mut both, "/send_in", json!("10m"));
    assert_eq!(faults(&both), [("/send_in".to_owned(), InvalidField)]);
}

#[test]
fn a_message_expires_after_it_is_due_and_within_ninety_days_of_that() {
    let expires_at = |body: &Value| read(body).unwrap().expires_at.map(|at| at.to_string());
    assert_eq!(expires_at(&with("/expires_in", json!("10m"))).as_deref(), Some("2027-01-01T00:10:00.000Z"));
    refuses(InvalidField, "/expires_at", [json!("2027-01-01T00:00:00Z"), json!("2020-01-01T00:00:00Z"), json!("2027-02-01T00:00:00")]);
    refuses(InvalidField, "/expires_in", [json!("0s"), json!("soon")]);
    refuses(ExpiresAtTooFar, "/expires_at", [json!("2027-04-01T00:00:01Z")]);
    refuses(ExpiresAtTooFar, "/expires_in", [json!("91d")]);

    let mut later = with("/send_at", json!("2027-03-01T00:00:00Z"));
    set(&mut later, "/expires_in", json!("1h"));
    assert_eq!(expires_at(&later).as_deref(), Some("2027-03-01T01:00:00.000Z"));
    set(&mut later, "/expires_in", Value::Null);
    set(&mut later, "/expires_at", json!("2027-05-30T00:00:00Z"));
    assert!(read(&later).is_ok());
    set(&mut later, "/expires_at", json!("2027-02-28T23:59:59Z"));
    assert_eq!(faults(&later), [("/expires_at".to_owned(), InvalidField)]);
    assert_eq!(read(&later).unwrap_err().overdue, None, "that order was never right");
    set(&mut later, "/expires_in", json!("1h"));
    assert_eq!(faults(&later)[0], ("/expires_in".to_owned(), InvalidField));
}

#[test]
fn a_request_that_only_grew_old_can_still_be_a_replay() {
    let first: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
    let mut body = with("/send_at", json!("2026-12-02T00:00:00Z"));
    set(&mut body, "/expires_at", json!("2026-12-03T00:00:00Z"));
    let accepted = parse(body.to_string().as_bytes(), &RequestLimits::default(), first).unwrap();
    let refused = read(&body).unwrap_err();
    assert_eq!(refused.faults.as_slice().iter().map(|fault| fault.code).collect::<Vec<_>>(), [SendAtPast, InvalidField]);
    let overdue = refused.overdue.expect("only time has passed");
    assert_eq!(crate::fingerprint::canonical(&overdue), crate::fingerprint::canonical(&accepted));
    set(&mut body, "/tags", json!(["a b"]));
    assert_eq!(read(&body).unwrap_err().overdue, None);
}
