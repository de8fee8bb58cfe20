//! Promises about events that are of no delivery: what is told of suppressions, switches and accounts, once, and to whom.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_core::delivery::EventType;
use tidings_core::operational::{Health, of_account};
use tidings_core::store::{Deed, FeedPosition, FeedQuery, NewSuppression, StoredEvent, SwitchedBy};
use tidings_core::suppression::{SuppressionReason, SuppressionScope};
use tidings_core::switches::Scope;
use tidings_core::time::Timestamp;
use tidings_core::transition::Finish;
use tidings_core::words::{Class, Mode};
use uuid::Uuid;

use super::suppressing::{item, refused};
use super::telling::{caught_up, page, query};
use super::world::{accepted, at};
use super::{World, unique_id};

/// What a reader asks for who sees the events of the installation too.
fn everything(world: &World, after: Option<FeedPosition>, limit: i64) -> FeedQuery {
    FeedQuery { with_installation: true, ..query(world, after, limit) }
}

async fn all(world: &World, mut asked: FeedQuery) -> Vec<StoredEvent> {
    caught_up(world).await;
    let mut events = Vec::new();
    loop {
        let page = page(&world.store, &asked).await;
        asked.after = Some(page.next);
        events.extend(page.events);
        if page.is_end {
            return events;
        }
    }
}

/// The events that are of no delivery, each with its `data`.
async fn told(world: &World, asked: FeedQuery) -> Vec<(String, Value)> {
    let of_none = all(world, asked).await.into_iter().filter_map(|event| Some((event.kind, event.detail?)));
    of_none.map(|(kind, detail)| (kind, serde_json::from_str(&detail).expect("JSON"))).collect()
}

fn kinds(told: &[(String, Value)]) -> Vec<&str> {
    told.iter().map(|(kind, _)| kind.as_str()).collect()
}

fn shown(id: Uuid) -> String {
    format!("sup_{}", id.simple())
}

fn by(reason: Option<&str>, now: Timestamp) -> SwitchedBy {
    SwitchedBy { actor: "key:key_1".to_owned(), reason: reason.map(str::to_owned), at: now }
}

/// S-201: what is made, changed and removed is told in the transaction of the row; what stays as it was is not.
pub async fn what_happens_to_suppressions_is_told_once(world: &World) {
    let (first, again) = (item(world, b"a", SuppressionReason::Manual, at(1)), item(world, b"a", SuppressionReason::Manual, at(2)));
    let author = SuppressionScope::Sender("shop@example.com".to_owned());
    let other = NewSuppression { scope: author, ..item(world, b"b", SuppressionReason::Complaint, at(1)) };
    let suppressions = world.store.suppressions();
    suppressions.add(&[first.clone(), again.clone(), other.clone()], Some("key:key_1")).await.unwrap();
    suppressions.add(&[again], Some("key:key_2")).await.unwrap();
    world.suppress(b"temporary", "all", Some(at(50))).await;
    let temporary = item(world, b"temporary", SuppressionReason::HardBounce, at(3));
    suppressions.add(&[temporary.clone(), temporary], None).await.unwrap();
    let entry = |subject: Uuid| Deed {
        at: at(4),
        tenant: Some(world.tenant),
        actor: "key:key_3".to_owned(),
        action: "suppression.removed",
        subject: shown(subject),
        reason: Some("they asked".to_owned()),
    };
    assert!(!suppressions.remove(world.tenant, Mode::Test, first.id, &entry(first.id)).await.unwrap());
    assert!(suppressions.remove(world.tenant, Mode::Live, first.id, &entry(first.id)).await.unwrap());
    assert!(!suppressions.remove(world.tenant, Mode::Live, first.id, &entry(first.id)).await.unwrap());

    let mut told = told(world, query(world, None, 200)).await;
    assert_eq!(kinds(&told), ["suppression.created", "suppression.created", "suppression.updated", "suppression.removed"]);
    // Those of one transaction have no order among themselves.
    told[..2].sort_by_key(|(_, data)| data["reason"] != "manual");
    let data = |id: Uuid, reason: &str, scope: &str, actor: Option<&str>| {
        json!({"suppression_id": shown(id), "channel": "email", "reason": reason, "scope": scope, "source": "api", "expires_at": null,
            "actor": actor, "notification_id": null, "delivery_id": null})
    };
    assert_eq!(told[0].1, data(first.id, "manual", "all", Some("key:key_1")));
    assert_eq!(told[1].1, data(other.id, "complaint", "sender", Some("key:key_1")), "an author is an address");
    assert_eq!((&told[2].1["reason"], &told[2].1["expires_at"], &told[2].1["actor"]), (&json!("hard_bounce"), &json!(null), &json!(null)));
    assert_eq!(told[3].1, data(first.id, "manual", "all", Some("key:key_3")));
    let ids: HashSet<_> = all(world, query(world, None, 200)).await.iter().map(|event| event.delivery).collect();
    assert_eq!(ids.len(), 4, "each event has an identity of its own");

    let elsewhere = world.store.ensure_tenant("other").await.unwrap().id;
    for (tenant, mode) in [(elsewhere, Mode::Live), (world.tenant, Mode::Test)] {
        assert!(all(world, FeedQuery { tenant, mode, ..query(world, None, 200) }).await.is_empty());
    }
    let only = FeedQuery { types: vec![EventType::SuppressionRemoved], ..query(world, None, 200) };
    assert_eq!(kinds(&self::told(world, only).await), ["suppression.removed"]);
}

/// S-149, S-201: a refusal tells the suppression that it leads to, of its recipient or of a copy, with the delivery behind it.
pub async fn a_hard_refusal_tells_its_suppression_and_the_delivery_behind_it(world: &World) {
    let refused_one = world.dispatched("refused", at(1)).await;
    let taken = world.dispatched("taken", at(1)).await;
    let mut copy = item(world, b"copy", SuppressionReason::HardBounce, at(1));
    "provider".clone_into(&mut copy.source);
    let of_copies = vec![copy.clone()];
    let reports =
        vec![world.report(&refused_one, refused(true, false), at(2)), Finish { of_copies, ..world.report(&taken, accepted(), at(2)) }];
    let again = reports.clone();
    world.finish_all(reports, at(2)).await;
    world.finish_all(again, at(3)).await;

    let told = told(world, query(world, None, 200)).await;
    assert_eq!(kinds(&told), ["suppression.created", "suppression.created"]);
    let row = world.store.suppressions().page(world.tenant, Mode::Live, &super::suppressing::any()).await.unwrap();
    let own = row.iter().find(|row| row.delivery.is_some()).expect("that of the recipient");
    for (id, delivery) in [(own.id, refused_one.id), (copy.id, taken.id)] {
        let expected = json!({"suppression_id": shown(id), "channel": "email", "reason": "hard_bounce", "scope": "all",
            "source": "provider", "expires_at": null, "actor": null, "notification_id": delivery.notification().to_string(),
            "delivery_id": delivery.to_string()});
        assert!(told.iter().any(|(_, data)| *data == expected), "{expected} is not among {told:?}");
    }
    let events = all(world, query(world, None, 200)).await;
    let places: HashSet<_> = events.iter().map(|event| event.position).collect();
    assert_eq!((events.len(), places.len()), (6, 6), "two ends, two completions, two suppressions, each at its own place");
}

/// S-149: of two refusals of one mailbox the first makes the suppression, and one that there is already is changed once.
pub async fn refusals_of_one_mailbox_tell_one_suppression(world: &World) {
    for (round, mailbox) in [b"new".as_slice(), b"temporary"].into_iter().enumerate() {
        for name in ["first", "second"] {
            let mut one = world.email(&format!("{name}-{round}"));
            one.deliveries[0].address_digest = mailbox.to_vec();
            world.taken(one).await;
        }
        let claimed = world.claim(100, at(1)).await;
        if mailbox == b"temporary" {
            world.suppress(mailbox, "all", Some(at(50))).await;
        }
        world.finish_all(claimed.iter().map(|delivery| world.report(delivery, refused(true, false), at(2))).collect(), at(2)).await;
        let told = told(world, query(world, None, 200)).await;
        assert_eq!(kinds(&told), ["suppression.created", "suppression.updated"][..=round]);
        let data = &told[round].1;
        let named = claimed.iter().filter(|delivery| data["delivery_id"] == delivery.id.to_string());
        assert_eq!((named.count(), &data["expires_at"]), (1, &json!(null)), "{data}");
    }
}

/// S-118, S-201: every pause is told, and the end of one that was in force; the same again and what had ended are not.
pub async fn a_switch_is_told_when_it_changes_what_goes_out(world: &World) {
    let (bulk, relay) = (Scope::Class(Class::Bulk), Scope::Account("relay".to_owned()));
    let pauses = world.store.pauses();
    pauses.set_switch(&bulk, false, None, &by(None, at(0))).await.unwrap();
    pauses.set_switch(&bulk, true, Some(at(60)), &by(Some("storm"), at(1))).await.unwrap();
    pauses.set_switch(&bulk, true, Some(at(60)), &by(Some("storm"), at(2))).await.unwrap();
    pauses.set_switch(&bulk, true, Some(at(90)), &by(Some("storm"), at(3))).await.unwrap();
    pauses.set_switch(&bulk, false, None, &by(Some("over"), at(4))).await.unwrap();
    pauses.set_switch(&relay, true, None, &by(None, at(5))).await.unwrap();
    assert!(pauses.clear_switch(&relay, &by(None, at(6))).await.unwrap());
    assert!(!pauses.clear_switch(&relay, &by(None, at(7))).await.unwrap());
    pauses.set_switch(&relay, true, Some(at(8)), &by(None, at(7))).await.unwrap();
    assert!(pauses.clear_switch(&relay, &by(None, at(8))).await.unwrap());

    let told = told(world, everything(world, None, 200)).await;
    let (paused, resumed) = ("switch.paused", "switch.resumed");
    assert_eq!(kinds(&told), [paused, paused, resumed, paused, resumed, paused]);
    let data = |scope: &str, until: Option<Timestamp>, reason: Option<&str>| json!({"scope": scope, "until": until.map(|at| at.to_string()), "reason": reason, "actor": "key:key_1"});
    assert_eq!(told[0].1, data("class:bulk", Some(at(60)), Some("storm")));
    assert_eq!(told[1].1, data("class:bulk", Some(at(90)), Some("storm")));
    assert_eq!(told[2].1, data("class:bulk", None, Some("over")));
    assert_eq!(told[4].1, data("account:relay", None, None));
    assert_eq!(told[5].1, data("account:relay", Some(at(8)), None), "its end was told with it");
}

/// Whoever pauses and resumes at once, in whatever process: no pause is left that was not told, and no end without one.
pub async fn switches_at_once_are_told_in_their_order(world: &World) {
    let mut acts = tokio::task::JoinSet::new();
    for (number, store) in world.stores().into_iter().cycle().take(8).enumerate() {
        acts.spawn(async move {
            for round in 0..5 {
                let by = by(Some(&format!("{number}-{round}")), at(1));
                store.pauses().set_switch(&Scope::All, number % 2 == 0, None, &by).await.unwrap();
            }
        });
    }
    acts.join_all().await;
    let told = told(world, everything(world, None, 200)).await;
    let mut is_paused = false;
    for (kind, data) in &told {
        assert!(kind == "switch.paused" || is_paused, "{data} ends what was not paused: {told:?}");
        is_paused = kind == "switch.paused";
    }
    assert_eq!(told.iter().filter(|(kind, _)| kind == "switch.paused").count(), 20);
    let switch = world.store.pauses().switches().await.unwrap().remove(0);
    assert_eq!(switch.paused, is_paused);
}

/// S-206, S-210: who may see the events of the installation reads them among his own, in the order of their places; all
/// others see none of them.
pub async fn events_of_the_installation_are_merged_for_who_may_see_them(world: &World) {
    let switch = async |scope: Scope, now| world.store.pauses().set_switch(&scope, true, None, &by(None, at(now))).await.unwrap();
    switch(Scope::All, 1).await;
    let delivery = world.dispatched("order-1", at(1)).await;
    world.moved(&delivery, accepted(), at(2)).await;
    let parked = of_account("relay", Health::Parked(at(63)), world.instance, at(3));
    world.store.feed().tell(&[parked]).await.unwrap();
    world.store.suppressions().add(&[item(world, b"a", SuppressionReason::Manual, at(4))], None).await.unwrap();
    world.store.feed().tell(&[of_account("relay", Health::Recovered, world.instance, at(5))]).await.unwrap();
    switch(Scope::Retries, 6).await;

    let own = ["accepted", "completed", "suppression.created"];
    let merged = ["switch.paused", "accepted", "completed", "account.parked", "suppression.created", "account.recovered", "switch.paused"];
    for limit in [1, 2, 3, 200] {
        let events = all(world, everything(world, None, limit)).await;
        assert!(events.is_sorted_by(|one, next| one.position < next.position));
        assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), merged, "by {limit}");
        let events = all(world, query(world, None, limit)).await;
        assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), own, "by {limit}");
    }
    // A place that one reader was given is good for the other.
    let place = page(&world.store, &query(world, None, 1)).await.next;
    let rest = all(world, everything(world, Some(place), 2)).await;
    assert_eq!(rest.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), merged[2..]);
    let only = FeedQuery { types: vec![EventType::AccountParked, EventType::Completed], ..everything(world, None, 1) };
    assert_eq!(all(world, only).await.len(), 2);
    let told = told(world, everything(world, None, 200)).await;
    let expected = json!({"account": "relay", "reason": "credential", "until": at(63).to_string(), "instance": world.instance.0});
    assert_eq!((told[1].0.as_str(), &told[1].1), ("account.parked", &expected));
    // They are those of every tenant's operators.
    let tenant = world.store.ensure_tenant("other").await.unwrap().id;
    assert_eq!(all(world, FeedQuery { tenant, ..everything(world, None, 200) }).await.len(), 4);
}

/// S-206: who stands before purged events of the installation is told so, if he was to see them.
pub async fn purged_events_of_the_installation_are_never_stepped_over_silently(world: &World) {
    let start = FeedPosition { pos: 0, n: 0 };
    world.store.pauses().set_switch(&Scope::All, true, None, &by(None, at(1))).await.unwrap();
    let day = Duration::from_secs(86_400);
    while world.store.keeping().purge_events(at(1)).await.unwrap() > 0 {}
    assert_eq!(world.count("events", "true").await, 1, "what is not older stays");
    while world.store.keeping().purge_events(at(0).plus(day * 14)).await.unwrap() > 0 {}
    assert_eq!(world.count("events", "true").await, 0);

    let feed = world.store.feed();
    assert!(feed.events(&everything(world, Some(start), 10)).await.unwrap().is_none());
    assert!(feed.events(&query(world, Some(start), 10)).await.unwrap().is_some(), "who sees none of them has missed none");
    assert!(feed.events(&everything(world, None, 10)).await.unwrap().is_some());
    world.store.pauses().set_switch(&Scope::All, false, None, &by(None, at(2))).await.unwrap();
    let kept = all(world, everything(world, None, 10)).await;
    assert_eq!(kept.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["switch.resumed"]);
    assert!(feed.events(&everything(world, Some(kept[0].position), 10)).await.unwrap().is_some());
}

/// S-206: a reader that pages through both while every process commits skips nothing and sees nothing twice.
pub async fn a_reader_of_everything_misses_nothing_while_others_write(world: &World) {
    const EACH: i64 = 20;
    let last = Arc::new(std::sync::atomic::AtomicI64::new(i64::MAX));
    let reading = {
        let (store, last, mut asked) = (Arc::clone(&world.store), Arc::clone(&last), everything(world, None, 3));
        tokio::spawn(async move {
            let mut seen: Vec<FeedPosition> = Vec::new();
            loop {
                let page = page(&store, &asked).await;
                asked.after = Some(page.next);
                seen.extend(page.events.iter().map(|event| event.position));
                if page.is_end && page.next.pos >= last.load(std::sync::atomic::Ordering::SeqCst) {
                    return seen;
                }
            }
        })
    };
    let mut writing = tokio::task::JoinSet::new();
    for (number, store) in world.stores().into_iter().cycle().take(4).enumerate() {
        let items: Vec<_> = (0..EACH)
            .map(|n| {
                let digest = unique_id(at(n)).as_uuid();
                item(world, digest.as_bytes(), SuppressionReason::Manual, at(n))
            })
            .collect();
        let instance = world.instance;
        writing.spawn(async move {
            for (n, new) in items.into_iter().enumerate() {
                store.suppressions().add(&[new], None).await.unwrap();
                let now = at(i64::try_from(n).unwrap());
                store.feed().tell(&[of_account(&format!("a{number}"), Health::Recovered, instance, now)]).await.unwrap();
            }
        });
    }
    writing.join_all().await;
    last.store(caught_up(world).await, std::sync::atomic::Ordering::SeqCst);
    let seen = reading.await.unwrap();
    let all: Vec<_> = all(world, everything(world, None, 200)).await.iter().map(|event| event.position).collect();
    assert_eq!(all.len(), usize::try_from(2 * 4 * EACH).unwrap());
    assert_eq!(seen, all);
}
