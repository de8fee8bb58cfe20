//! What is JSON here and what is not, and where a fault is said to be.

use super::*;
use proptest::prelude::*;

fn pointers(body: &str) -> Vec<String> {
    let faults = parse(body.as_bytes()).expect_err(body);
    assert!(faults.as_slice().iter().all(|fault| fault.code == FaultCode::InvalidJson));
    faults.into_iter().map(|fault| fault.pointer).collect()
}

fn detail(body: &[u8]) -> String {
    let faults = parse(body).expect_err("is refused");
    assert_eq!(faults.as_slice().len(), 1);
    faults.as_slice()[0].detail.clone()
}

#[test]
fn order_is_kept_and_texts_are_borrowed() {
    let json = parse(br#" {"b":[1,-2,3.5,true,null],"a":"x","c":"a\tb"} "#).unwrap();
    let Json::Object(members) = &json else { panic!("an object") };
    assert_eq!(members.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["b", "a", "c"]);
    assert!(matches!(&members[1].1, Json::Text(Cow::Borrowed("x"))));
    assert!(matches!(&members[2].1, Json::Text(Cow::Owned(text)) if text == "a\tb"));
}

#[test]
fn a_name_twice_is_found_at_any_depth_whatever_its_spelling() {
    assert_eq!(pointers(r#"{"a":1,"a":1}"#), ["/a"]);
    assert_eq!(pointers(r#"{"a":1,"\u0061":2}"#), ["/a"]);
    assert_eq!(pointers(r#"{"to":[{},{"x/y":{"k":1,"k":{"z":1,"z":2}}}],"q":0,"q":0}"#), ["/to/1/x~1y/k/z", "/to/1/x~1y/k", "/q"]);
    let many: Vec<String> = (0..100).map(|n| format!("\"k{n}\":0")).collect();
    assert_eq!(pointers(&format!("{{{},\"k42\":1}}", many.join(","))), ["/k42"]);
    assert!(parse(format!("{{{}}}", many.join(",")).as_bytes()).is_ok());
    assert!(parse(br#"{"a":{"a":[{"a":1},{"a":1}]}}"#).is_ok());
}

#[test]
fn nul_is_refused_in_texts_and_names() {
    assert_eq!(pointers(r#"{"a":["x","y\u0000z"]}"#), ["/a/1"]);
    assert_eq!(pointers(r#"{"a":{"b\u0000":1}}"#), ["/a"]);
    assert!(detail(b"{\"a\":\"\0\"}").contains("line 1 column 7"));
}

#[test]
fn syntax_faults_say_line_and_column_and_nothing_of_the_body() {
    for (body, place) in [
        (r#"{"secret": tru}"#, "line 1 column 15"),
        ("{\"secret\":1,\n  secret}", "line 2 column 3"),
        (r#"{"secret":1} secret"#, "line 1 column 14"),
        (r#"{"secret":"\ud800"}"#, "line 1 column 18"),
        (r#"["secret",]"#, "line 1 column 11"),
        (r#"["secret",1e999]"#, "line 1 column"),
        ("", "line 1 column 0"),
    ] {
        let detail = detail(body.as_bytes());
        assert!(detail.contains(place) && !detail.contains("secret"), "{body}: {detail}");
    }
}

#[test]
fn what_is_not_utf8_is_refused_with_its_place() {
    assert_eq!(detail(b"{\"a\":\n \"\xff\"}"), "not UTF-8 at line 2 column 3");
    assert_eq!(detail(b"\"\xed\xa0\x80\""), "not UTF-8 at line 1 column 2");
}

#[test]
fn depth_and_number_of_values_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(detail(nested(MAX_DEPTH + 1).as_bytes()).contains("16 deep"));
    assert!(detail("[".repeat(1_000_000).as_bytes()).contains("16 deep"));
    let list = |length: usize| format!("[{}0]", "0,".repeat(length - 1));
    assert!(parse(list(MAX_VALUES - 1).as_bytes()).is_ok());
    assert!(detail(list(MAX_VALUES).as_bytes()).contains("100000 values"));
}

proptest! {
    #[test]
    fn it_takes_what_serde_json_takes(body in r#"[\[\]{}:,"ab\\u0019.eE \-tnrfls]{0,24}"#) {
        let judged = parse(body.as_bytes());
        match serde_json::from_str::<serde_json::Value>(&body) {
            Err(_) => prop_assert!(judged.is_err()),
            // What it refuses beyond that has a pointer into a document that is JSON.
            Ok(_) => if let Err(faults) = judged {
                prop_assert!(faults.as_slice().iter().all(|fault| !fault.detail.starts_with("not JSON")));
            },
        }
    }

    #[test]
    fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&body);
    }
}
