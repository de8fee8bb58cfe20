//! Routes of categories and tenants: where what is accepted waits, what is said of it, and what becomes of it once they are gone.

use actix_web::test::TestRequest;
use serde_json::json;
use tidings_core::ids::LaneId;
use tidings_core::store::{Reading as _, Registry as _};
use tidings_core::words::Mode;

use super::HELLO;
use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};
use crate::accounts::learn_lanes;

on_both_databases!(
    a_message_waits_in_the_lane_of_its_most_special_route_and_has_its_author,
    where_no_account_of_its_route_is_on_nothing_is_taken_and_others_are,
    what_waits_in_a_lane_whose_route_is_gone_goes_by_what_carries_it_now,
    a_process_that_does_not_know_a_lane_yet_says_nothing_wrong_and_learns_it,
);

const RELAY: &str = "[accounts.relay]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\nfrom = \"shop@example.com\"\n";
const FAST: &str = "[accounts.fast]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\nfrom = \"code@example.com\"\n";
const OWN: &str = "[accounts.own]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\ntls = \"none\"\nfrom = \"acme@example.com\"\ntenant = \"acme\"\n";
const CATEGORIES: &str = "[categories.code]\nclass = \"critical\"\n[categories.receipt]\n[routes.email]\ndefault = [\"relay\"]\n";
const CODES_BY_FAST: &str = "[routes.email.categories]\ncode = [\"fast\"]\n";

async fn reload(rig: &Rig, file: &str) {
    rig.write("tidings.toml", file);
    let answer =
        rig.raw(TestRequest::post().uri("/v1/config/reload").insert_header(("authorization", format!("Bearer {}", rig.key)))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn rig(on: Database, file: &str) -> Rig {
    let rig = Rig::start(on, Accounts::Relay, "").await.remembering();
    reload(&rig, file).await;
    rig
}

fn of_category(category: &str) -> String {
    HELLO.replacen('{', &format!(r#"{{"category": "{category}", "#), 1)
}

/// Posts a message of a category and returns its lane, by number and by name.
async fn lane_of(rig: &Rig, key: &str, tenant: &str, idempotency_key: &str, category: &str) -> (LaneId, String) {
    let answer = rig.post_as(key, idempotency_key, &of_category(category)).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let (id, tenant) = (answer.json()["id"].as_str().unwrap().parse().unwrap(), rig.store.ensure_tenant(tenant).await.unwrap().id);
    let mode = if answer.json()["mode"] == "test" { Mode::Test } else { Mode::Live };
    let lane = rig.store.notification(tenant, mode, id).await.unwrap().unwrap().deliveries[0].delivery.lane;
    let lanes = rig.store.lanes().await.unwrap();
    let (.., class, name) = lanes.into_iter().find(|(id, ..)| *id == lane).unwrap();
    (lane, format!("{class} {name}"))
}

/// The accounts of a lane in a process.
fn accounts(rig: &Rig, lane: LaneId) -> Vec<String> {
    let setup = rig.app.setup();
    let route = setup.routing.of_lane(lane).into_iter();
    route.flat_map(|route| &route.accounts).map(|account| account.name.clone()).collect()
}

async fn a_message_waits_in_the_lane_of_its_most_special_route_and_has_its_author(on: Database) {
    let file = format!("{RELAY}{FAST}{OWN}{CATEGORIES}{CODES_BY_FAST}[routes.email.tenants.acme]\ndefault = [\"own\", \"relay\"]\n");
    let rig = rig(on, &file).await;
    let acme = rig.key_of("acme", "live", &["send", "send:critical", "read", "pii"]).await;
    let test = rig.key("test", &["send", "send:critical", "read"]).await;
    for (key, tenant, category, lane, by) in [
        (&rig.key, "default", "code", "critical category:code", &["fast"][..]),
        (&rig.key, "default", "receipt", "transactional main", &["relay"]),
        (&acme, "acme", "code", "critical tenant:acme", &["own", "relay"]),
        (&acme, "acme", "receipt", "transactional tenant:acme", &["own", "relay"]),
        (&test, "default", "code", "critical sandbox", &["sandbox"]),
    ] {
        let (id, name) = lane_of(&rig, key, tenant, &format!("{tenant}-{category}"), category).await;
        assert_eq!((name.as_str(), accounts(&rig, id)), (lane, by.iter().map(|name| (*name).to_owned()).collect()));
    }
    // The author is that of the account that carries it.
    for (key, name, author) in [(&rig.key, "default-code", "code@"), (&rig.key, "default-receipt", "shop@"), (&acme, "acme-code", "acme@")]
    {
        let read = rig.get_as(key, &format!("/v1/notifications/by-key?idempotency_key={name}")).await.json();
        let delivery = read["deliveries"][0]["id"].as_str().unwrap();
        let content = rig.get_as(key, &format!("/v1/deliveries/{delivery}/content")).await;
        assert!(content.text().contains(author), "{name}: {}", content.text());
    }
}

async fn where_no_account_of_its_route_is_on_nothing_is_taken_and_others_are(on: Database) {
    let rig = rig(on, &format!("{RELAY}{FAST}state = \"off\"\n{CATEGORIES}{CODES_BY_FAST}")).await;
    let (status, code, detail) = rig.post("code", &of_category("code")).await.problem();
    assert_eq!((status, code.as_str()), (422, "no_route"));
    assert!(detail.contains("no account of the email route is on"), "{detail}");
    assert_eq!(rig.post("receipt", &of_category("receipt")).await.status, 202);
}

async fn what_waits_in_a_lane_whose_route_is_gone_goes_by_what_carries_it_now(on: Database) {
    let with = format!("{RELAY}{FAST}{CATEGORIES}{CODES_BY_FAST}");
    let rig = rig(on, &with).await;
    let key = rig.key.clone();
    let (lane, _) = lane_of(&rig, &key, "default", "before", "code").await;
    let labels = "channel=\"email\",class=\"critical\",route=\"category:code\"";
    let metrics = async || rig.raw(TestRequest::get().uri("/metrics")).await.text();
    assert!(metrics().await.contains(&format!("tidings_queue_depth{{{labels},state=\"queued\"}} 1\n")), "{}", metrics().await);

    reload(&rig, &format!("{RELAY}{FAST}{CATEGORIES}")).await;
    assert_eq!(accounts(&rig, lane), ["relay"]);
    let read = rig.get("/v1/notifications/by-key?idempotency_key=before").await.json();
    assert_eq!((&read["deliveries"][0]["state"], &read["deliveries"][0]["wait_reason"]), (&json!("queued"), &json!(null)));
    assert!(read["deliveries"][0]["summary"].as_str().unwrap().contains("by relay"), "{read}");
    assert!(metrics().await.contains(labels));
    assert_eq!(lane_of(&rig, &key, "default", "after", "code").await.1, "critical main");
    // And back: it is the same lane.
    reload(&rig, &with).await;
    assert_eq!(accounts(&rig, lane), ["fast"]);
    assert_eq!(lane_of(&rig, &key, "default", "again", "code").await.0, lane);
}

async fn a_process_that_does_not_know_a_lane_yet_says_nothing_wrong_and_learns_it(on: Database) {
    let rig = rig(on, &format!("{RELAY}{FAST}{CATEGORIES}")).await;
    let other = rig.again(Accounts::Relay, &format!("{RELAY}{CATEGORIES}")).await.remembering();
    reload(&rig, &format!("{RELAY}{FAST}{CATEGORIES}{CODES_BY_FAST}")).await;
    let (lane, _) = lane_of(&rig, &rig.key, "default", "k", "code").await;

    assert_eq!(accounts(&other, lane), Vec::<String>::new());
    let read = other.get("/v1/notifications/by-key?idempotency_key=k").await.json();
    assert_eq!(read["deliveries"][0]["wait_reason"], json!(null), "that nobody carries it is not known here");
    assert_eq!(other.raw(TestRequest::get().uri("/metrics")).await.status, 200);

    let learned = learn_lanes(&other.app.setup(), other.store.as_ref()).await.unwrap().unwrap();
    other.app.in_force.store(learned.into());
    assert_eq!(accounts(&other, lane), ["relay"], "as its own configuration says");
    assert!(learn_lanes(&other.app.setup(), other.store.as_ref()).await.unwrap().is_none());
    // The lanes that it accepts for are as they were.
    assert_eq!(lane_of(&other, &rig.key, "default", "other", "code").await.1, "critical main");
}
