//! The configuration read again over HTTP: what is answered, what is in force afterwards, and for which notifications.

use actix_web::test::TestRequest;
use serde_json::{Value, json};
use tidings_core::store::{Reading as _, Registry as _, Store as _};
use tidings_core::words::Mode;

use super::HELLO;
use super::contract::check;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Answer, Rig};

on_both_databases!(
    what_changed_and_what_needs_a_restart_is_told_by_name_and_the_digest_follows,
    it_takes_the_scope_admin,
    a_bad_file_is_refused_whole_and_what_is_in_force_stays,
    what_was_accepted_keeps_its_class_and_its_number_of_attempts,
    everything_that_requests_go_by_is_in_force_at_once,
    a_store_that_does_not_answer_refuses_the_whole,
    reloads_at_once_take_turns_and_the_last_file_counts,
    a_file_that_is_swapped_by_a_link_is_read_anew,
);

const RELAY: &str = "[accounts.relay]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\nfrom = \"shop@example.com\"\n";

async fn rig(on: Database, file: &str) -> Rig {
    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    rig.write("tidings.toml", file);
    assert_eq!(reload(&rig).await.status, 200);
    rig
}

async fn reload_as(rig: &Rig, key: &str) -> Answer {
    rig.raw(TestRequest::post().uri("/v1/config/reload").insert_header(("authorization", format!("Bearer {key}")))).await
}

async fn reload(rig: &Rig) -> Answer {
    let answer = reload_as(rig, &rig.key).await;
    check(&answer, "post", "/v1/config/reload");
    answer
}

async fn reloaded(rig: &Rig, file: &str) -> Value {
    rig.write("tidings.toml", file);
    let answer = reload(rig).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn digest(rig: &Rig) -> Value {
    rig.get("/version").await.json()["config_digest"].clone()
}

async fn what_changed_and_what_needs_a_restart_is_told_by_name_and_the_digest_follows(on: Database) {
    let rig = rig(on, RELAY).await;
    let before = digest(&rig).await;
    assert_eq!(reload(&rig).await.json(), json!({"config_digest": before, "changed": [], "needs_restart": []}));
    let file = format!("{RELAY}rate = \"5/s\"\npassword = \"hunter2\"\nusername = \"shop\"\n[server]\nbind = \"127.0.0.1:9\"\n");
    let answer = reloaded(&rig, &file).await;
    assert_eq!(answer["changed"], json!(["accounts.relay.password", "accounts.relay.rate", "accounts.relay.username"]));
    assert_eq!(answer["needs_restart"], json!(["server.bind"]));
    assert_ne!(answer["config_digest"], before);
    assert_eq!(answer["config_digest"], digest(&rig).await);
    let metrics = rig.raw(TestRequest::get().uri("/metrics")).await.text();
    assert!(metrics.contains(&format!("tidings_config_info{{digest={}}} 1\n", answer["config_digest"])), "{metrics}");
    assert_eq!(metrics.matches("tidings_config_info{").count(), 1);
    assert!(metrics.contains("tidings_config_reloads_total{result=\"taken\"} 3\n"), "{metrics}");
    // Back to the same file, back to the same digest.
    assert_eq!(reloaded(&rig, RELAY).await["config_digest"], before);
}

async fn it_takes_the_scope_admin(on: Database) {
    let rig = rig(on, RELAY).await;
    let other = rig.key("live", &["send", "send:critical", "read", "pii", "ops"]).await;
    assert_eq!(reload_as(&rig, &other).await.code(), "scope_missing");
    // A test key may too: the configuration belongs to no mode.
    let test = rig.key("test", &["admin"]).await;
    assert_eq!(reload_as(&rig, &test).await.status, 200);
}

/// S-235: a bad file is refused whole, with every fault as `tidings check` tells it, and the old one stays.
async fn a_bad_file_is_refused_whole_and_what_is_in_force_stays(on: Database) {
    let rig = rig(on, RELAY).await;
    let before = digest(&rig).await;
    let others = "[categories.code]\nclass = \"critical\"\n[dkim.\"shop.example.com\"]\nselectors = []\n";
    let bad = format!("{RELAY}password = 12\nrate = \"hunter2\"\n{others}");
    rig.write("tidings.toml", &bad);
    let answer = reload(&rig).await;
    assert_eq!((answer.status, answer.code().as_str()), (422, "invalid_configuration"));
    let errors = answer.json()["errors"].clone();
    let of =
        |name: &str| -> Vec<String> { errors.as_array().unwrap().iter().map(|error| error[name].as_str().unwrap().to_owned()).collect() };
    assert_eq!(of("pointer"), ["/accounts/relay/rate", "/accounts/relay/password", "/dkim/shop.example.com/selectors"]);
    assert!(of("detail")[0].starts_with("accounts.relay.rate (") && of("detail")[0].contains("tidings.toml line 7): expected a rate"));
    assert!(!answer.text().contains("hunter2"));
    // What contradicts the world outside the file is a fault as well.
    rig.write("tidings.toml", &format!("{RELAY}ca_file = \"gone.pem\"\n").replace("\"none\"", "\"starttls\""));
    assert_eq!(reload(&rig).await.code(), "invalid_configuration");
    assert_eq!(digest(&rig).await, before);
    // Nothing of it is in force: neither the category nor anything else.
    let accepted = rig.post("k", &HELLO.replacen('{', r#"{"category": "code", "#, 1)).await;
    assert_eq!((accepted.status, accepted.json()["class"].as_str()), (202, Some("transactional")));
    assert_eq!(rig.get("/readyz").await.status, 200);
}

/// S-080, S-235: class and attempt limit stand in the row from its intake on.
async fn what_was_accepted_keeps_its_class_and_its_number_of_attempts(on: Database) {
    let file = |class: &str, attempts: u16| {
        format!("{RELAY}[categories.code]\nclass = \"{class}\"\n[retry.critical]\nattempts = {attempts}\n[retry.bulk]\nattempts = 2\n")
    };
    let rig = rig(on, &file("critical", 4)).await;
    let code = HELLO.replacen('{', r#"{"category": "code", "#, 1);
    assert_eq!(rig.post("before", &code).await.json()["class"], "critical");
    assert_eq!(reloaded(&rig, &file("bulk", 9)).await["changed"], json!(["categories.code.class", "retry.critical.attempts"]));
    assert_eq!(rig.post("after", &code).await.json()["class"], "bulk");
    for (key, class, attempts) in [("before", "critical", 4), ("after", "bulk", 2)] {
        let read = rig.get(&format!("/v1/notifications/by-key?idempotency_key={key}")).await.json();
        assert_eq!(read["class"], class, "{key}");
        let id = read["id"].as_str().unwrap().parse().unwrap();
        let tenant = rig.store.ensure_tenant("default").await.unwrap().id;
        let stored = rig.store.notification(tenant, Mode::Live, id).await.unwrap().unwrap();
        assert_eq!(stored.deliveries[0].delivery.attempt_limit, attempts, "{key}");
    }
}

async fn everything_that_requests_go_by_is_in_force_at_once(on: Database) {
    let rig = rig(on, RELAY).await;
    assert_eq!(rig.get("/v1/limits").await.json()["tenant_rate"], json!(null));
    let file = format!(
        "{}state = \"off\"\n[accounts.spare]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\nfrom = \"spare@example.com\"\nconcurrency = 7\n\
         [limits]\ntenant_rate = \"1/s\"\ntenant_burst = 50\nidempotency_key = \"optional\"\n[senders.shop]\nemail = \"Shop <named@example.com>\"\n",
        RELAY
    );
    reloaded(&rig, &file).await;
    let accounts = rig.get("/v1/accounts").await.json();
    let of = |name: &str| accounts["items"].as_array().unwrap().iter().find(|account| account["name"] == name).unwrap().clone();
    assert_eq!((&of("relay")["state"], &of("relay")["why"]), (&json!("off"), &json!("off")));
    assert_eq!((&of("spare")["concurrency"], &of("spare")["takes_messages"]), (&json!(7), &json!(true)));
    let limited = rig.get("/v1/limits").await;
    assert_eq!((&limited.json()["tenant_rate"]["burst"], &limited.json()["idempotency_key"]), (&json!(50), &json!("optional")));
    assert!(limited.header("ratelimit").is_some());
    let named = HELLO.replacen("\"email\": {\"subject\"", "\"email\": {\"from\": \"shop\", \"subject\"", 1);
    assert_eq!(rig.post("named", &named).await.status, 202);
    // No account is left: on loopback the sandbox stands in for all, and every key acts in test.
    reloaded(&rig, "[server]\npublic_url = \"https://tidings.example.com\"\n").await;
    assert_eq!(rig.post("last", HELLO).await.json()["mode"], "test");
}

async fn a_store_that_does_not_answer_refuses_the_whole(on: Database) {
    let rig = rig(on, RELAY).await;
    let before = digest(&rig).await;
    rig.write("tidings.toml", &format!("{RELAY}rate = \"5/s\"\n"));
    rig.store.close().await;
    let answer = reload(&rig).await;
    assert!(answer.status >= 500, "{}", answer.text());
    assert_eq!(digest(&rig).await, before);
}

async fn reloads_at_once_take_turns_and_the_last_file_counts(on: Database) {
    let rig = rig(on, RELAY).await;
    rig.write("tidings.toml", &format!("{RELAY}rate = \"5/s\"\n"));
    let answers = futures_util::future::join_all((0..8).map(|_| reload(&rig))).await;
    let changed = answers.iter().filter(|answer| answer.json()["changed"] == json!(["accounts.relay.rate"])).count();
    assert!(answers.iter().all(|answer| answer.status == 200) && changed == 1);
}

/// Kubernetes puts a new directory in the place of a link; the path of the file stays the same.
async fn a_file_that_is_swapped_by_a_link_is_read_anew(on: Database) {
    let rig = rig(on, RELAY).await;
    let directory = rig.path().to_owned();
    std::fs::remove_file(directory.join("tidings.toml")).unwrap();
    std::os::unix::fs::symlink("..data/tidings.toml", directory.join("tidings.toml")).unwrap();
    for (name, text) in [("..1", RELAY.to_owned()), ("..2", format!("{RELAY}concurrency = 3\n"))] {
        std::fs::create_dir(directory.join(name)).unwrap();
        std::fs::write(directory.join(name).join("tidings.toml"), text).unwrap();
        std::os::unix::fs::symlink(name, directory.join("..next")).unwrap();
        std::fs::rename(directory.join("..next"), directory.join("..data")).unwrap();
        let changed = reload(&rig).await.json()["changed"].clone();
        assert_eq!(changed, if name == "..1" { json!([]) } else { json!(["accounts.relay.concurrency"]) });
    }
}
