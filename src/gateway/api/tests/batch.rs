//! Stories of batches: each notification for itself, and what holds for the whole.

use serde_json::{Value, json};
use tidings_core::store::Reading as _;

use super::broken::Failure;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};

on_both_databases!(
    each_notification_of_a_batch_answers_for_itself,
    pointers_count_from_the_root_also_where_the_configuration_refuses,
    a_batch_of_which_nothing_is_taken_is_422,
    a_batch_is_refused_as_a_whole_for_its_form_alone,
    five_hundred_are_taken_at_once_and_repeating_them_adds_nothing,
    the_scope_for_codes_is_asked_of_each,
    the_first_of_two_with_one_key_wins_whatever_their_class,
    a_store_that_fails_takes_nothing_of_a_batch_and_one_that_does_not_answer_is_found_out,
);

fn item(key: &str, text: &str) -> Value {
    json!({"idempotency_key": key, "to": "ada@example.com", "email": {"subject": "s", "text": text}})
}

fn batch(items: &[Value]) -> String {
    json!({"notifications": items}).to_string()
}

/// Status and code of each result; the fixed members are checked on the way.
fn outcomes(answer: &Value) -> Vec<(u64, String)> {
    let results = answer["results"].as_array().unwrap();
    let outcome = |(index, result): (usize, &Value)| {
        assert_eq!(result["index"], json!(index));
        let status = result["status"].as_u64().unwrap();
        match status {
            202 => {
                assert_eq!(result["id"], result["notification"]["id"]);
                assert_eq!(result["idempotency_key"], result["notification"]["idempotency_key"]);
                (status, if result["replayed"] == true { "replayed" } else { "new" }.to_owned())
            }
            _ => {
                assert_eq!((&result["problem"]["code"], &result["problem"]["status"]), (&result["code"], &result["status"]));
                (status, result["code"].as_str().unwrap().to_owned())
            }
        }
    };
    results.iter().enumerate().map(outcome).collect()
}

async fn each_notification_of_a_batch_answers_for_itself(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let single = rig.post("single", &json!({"to": "ada@example.com", "email": {"subject": "s", "text": "t"}}).to_string()).await;
    let mut invalid = item("bad", "t");
    invalid["to"] = json!("nobody");
    let items = [
        item("new", "t"),
        item("single", "t"),
        item("single", "another"),
        invalid,
        json!({"to": "ada@example.com", "email": {"subject": "s", "text": "t"}}),
        item("two words", "t"),
        json!("hello"),
        item("new", "t"),
        item("new", "another"),
    ];
    let answer = rig.batch(&batch(&items)).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let body = answer.json();
    let words = |status: u64, code: &str| (status, code.to_owned());
    assert_eq!(
        outcomes(&body),
        [
            words(202, "new"),
            words(202, "replayed"),
            words(422, "idempotency_key_reused"),
            words(422, "invalid_recipient"),
            words(400, "idempotency_key_missing"),
            words(400, "idempotency_key_invalid"),
            words(400, "idempotency_key_missing"),
            words(202, "replayed"),
            words(422, "idempotency_key_reused"),
        ]
    );
    assert_eq!(body["results"][1]["notification"], single.json());
    assert_eq!(body["results"][0]["notification"], body["results"][7]["notification"]);
    assert_eq!(body["results"][2]["problem"]["differs"], json!(["/notifications/2/email/text"]));
    assert_eq!(body["results"][3]["problem"]["errors"][0]["pointer"], "/notifications/3/to");
    // A batch item may be repeated as a single send: one namespace.
    let again = rig.post("new", &json!({"to": "ada@example.com", "email": {"subject": "s", "text": "t"}}).to_string()).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), (Some("true"), body["results"][0]["notification"].clone()));
}

async fn pointers_count_from_the_root_also_where_the_configuration_refuses(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let mut foreign = item("foreign", "t");
    foreign["email"]["from"] = json!("x@other.example");
    let answer = rig.batch(&batch(&[item("a", "t"), foreign])).await.json();
    assert_eq!(answer["results"][1]["problem"]["errors"][0]["pointer"], "/notifications/1/email/from");
    assert_eq!(answer["results"][1]["code"], "no_route");
}

async fn a_batch_of_which_nothing_is_taken_is_422(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let answer = rig.batch(&batch(&[json!({"idempotency_key": "a"}), json!({"idempotency_key": "b", "to": "x"})])).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["results"].as_array().unwrap().len(), 2);
}

async fn a_batch_is_refused_as_a_whole_for_its_form_alone(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[limits]\nbatch_body = \"256KiB\"\n").await;
    let many: Vec<Value> = (0..501).map(|n| item(&format!("k{n}"), "t")).collect();
    for (body, status, code, pointer) in [
        ("{".to_owned(), 400, "invalid_json", ""),
        (r#"{"notifications": [{"to": "a", "to": "b"}]}"#.to_owned(), 400, "invalid_json", "/notifications/0/to"),
        (r#"{"notification": []}"#.to_owned(), 400, "unknown_field", "/notification"),
        (r#"{"notifications": [], "atomic": true}"#.to_owned(), 400, "unknown_field", "/atomic"),
        ("{}".to_owned(), 422, "invalid_field", "/notifications"),
        (r#"{"notifications": []}"#.to_owned(), 422, "invalid_field", "/notifications"),
        (r#"{"notifications": {}}"#.to_owned(), 422, "invalid_field", "/notifications"),
        (r#"[]"#.to_owned(), 422, "invalid_field", ""),
        (batch(&many), 413, "payload_too_large", "/notifications"),
    ] {
        let answer = rig.batch(&body).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{}", answer.text());
    }
    let large = rig.batch(&batch(&[item("k", &"t".repeat(300 << 10))])).await.problem();
    assert_eq!((large.0, large.1.as_str()), (413, "payload_too_large"));
    assert!(large.2.contains("limits.batch_body"), "{}", large.2);
    assert_eq!(rig.store.open_count().await.unwrap(), 0);
}

async fn five_hundred_are_taken_at_once_and_repeating_them_adds_nothing(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await;
    let body = batch(&(0..500).map(|n| item(&format!("k{n}"), "t")).collect::<Vec<_>>());
    let first = rig.batch(&body).await;
    assert_eq!(first.status, 202);
    assert!(outcomes(&first.json()).iter().all(|(status, word)| *status == 202 && word == "new"));
    let again = rig.batch(&body).await;
    assert!(outcomes(&again.json()).iter().all(|(status, word)| *status == 202 && word == "replayed"));
    assert_eq!(rig.store.open_count().await.unwrap(), 500);
}

async fn the_scope_for_codes_is_asked_of_each(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[categories.login-code]\nclass = \"critical\"\n").await;
    let mut sends = rig;
    sends.key = sends.key("live", &["send"]).await;
    let mut code = item("code", "t");
    code["category"] = json!("login-code");
    let answer = sends.batch(&batch(&[item("a", "t"), code])).await;
    assert_eq!(outcomes(&answer.json()), [(202, "new".to_owned()), (403, "scope_missing".to_owned())]);
}

/// The urgent one of two with one key overtakes nobody: the first of the batch wins.
async fn the_first_of_two_with_one_key_wins_whatever_their_class(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[categories.login-code]\nclass = \"critical\"\n[categories.receipt]\n").await;
    let (mut slow, mut urgent) = (item("k", "t"), item("k", "t"));
    slow["category"] = json!("receipt");
    urgent["category"] = json!("login-code");
    let answer = rig.batch(&batch(&[slow, urgent])).await.json();
    assert_eq!(outcomes(&answer), [(202, "new".to_owned()), (422, "idempotency_key_reused".to_owned())]);
    assert_eq!(answer["results"][0]["notification"]["class"], "transactional");
}

async fn a_store_that_fails_takes_nothing_of_a_batch_and_one_that_does_not_answer_is_found_out(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    assert_eq!(rig.get("/v1/limits").await.status, 200);
    let body = batch(&[item("a", "t"), item("b", "t")]);
    rig.store.fails(Failure::Full);
    let full = rig.batch(&body).await;
    assert_eq!((full.status, full.code().as_str()), (503, "overloaded"));
    assert!(full.header("retry-after").is_some());
    rig.store.fails(Failure::AnswerLost);
    let lost = rig.batch(&body).await;
    assert_eq!(outcomes(&lost.json()), [(202, "new".to_owned()), (202, "new".to_owned())]);
}
