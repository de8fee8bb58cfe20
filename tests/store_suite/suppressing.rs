//! Addresses that are not written to: how they come into the list, how they are found and leave it, and what refusals add.

use tidings_core::outcome::{Outcome, Refusal};
use tidings_core::state::State;
use tidings_core::store::{Asked, Deed, NewSuppression, Suppressed, SuppressionFilter};
use tidings_core::suppression::{SuppressionReason, SuppressionScope};
use tidings_core::time::Timestamp;
use tidings_core::transition::Finish;
use tidings_core::words::{Channel, Class, Mode, Reason};
use uuid::Uuid;

use super::world::{accepted, answered};
use super::{World, at, unique_id};

pub(super) fn item(world: &World, digest: &[u8], reason: SuppressionReason, now: Timestamp) -> NewSuppression {
    NewSuppression {
        id: unique_id(now).as_uuid(),
        tenant: world.tenant,
        mode: Mode::Live,
        channel: Channel::Email,
        address_digest: digest.to_vec(),
        address: b"0sealed\0".to_vec(),
        reason,
        scope: reason.usual_scope(),
        source: "api".to_owned(),
        note: Some("a \"note\"".to_owned()),
        created_at: now,
        delivery: None,
    }
}

fn asked(world: &World, digests: &[&[u8]]) -> Asked {
    let digests = digests.iter().map(|digest| digest.to_vec()).collect();
    Asked { tenant: world.tenant, mode: Mode::Live, channel: Channel::Email, digests }
}

async fn ids(world: &World, mode: Mode, filter: SuppressionFilter) -> Vec<Uuid> {
    let page = world.store.suppressions().page(world.tenant, mode, &filter).await.expect("a page");
    page.into_iter().map(|row| row.id).collect()
}

pub(super) fn any() -> SuppressionFilter {
    SuppressionFilter { limit: 100, ..SuppressionFilter::default() }
}

/// S-148: one row for each address, reason and scope; the same again is nothing.
pub async fn a_suppression_is_there_once_for_each_reason_and_scope(world: &World) {
    let (first, again) = (item(world, b"a", SuppressionReason::Manual, at(1)), item(world, b"a", SuppressionReason::Manual, at(2)));
    let complaint = item(world, b"a", SuppressionReason::Complaint, at(3));
    let author = NewSuppression {
        scope: SuppressionScope::Sender("shop@example.com".to_owned()),
        ..item(world, b"a", SuppressionReason::Manual, at(4))
    };
    let batch = [first.clone(), again.clone(), complaint.clone(), author.clone()];
    let expected = [Suppressed::Added(first.id), Suppressed::Kept(first.id), Suppressed::Added(complaint.id), Suppressed::Added(author.id)];
    assert_eq!(world.store.suppressions().add(&batch, None).await.unwrap(), expected);
    let repeated = world.store.suppressions().add(&[again], None).await.unwrap();
    assert_eq!(repeated, [Suppressed::Kept(first.id)]);
    assert_eq!(ids(world, Mode::Live, any()).await, [author.id, complaint.id, first.id]);
    assert!(ids(world, Mode::Test, any()).await.is_empty(), "live and test do not see each other");
}

/// Many at once agree on one row.
pub async fn suppressions_of_one_address_at_once_are_one_row(world: &World) {
    let mut adds = tokio::task::JoinSet::new();
    for (number, store) in world.stores().into_iter().cycle().take(4).enumerate() {
        let pair = [b"a".as_slice(), b"b"];
        let order = if number % 2 == 0 { pair } else { [pair[1], pair[0]] };
        let items = order.map(|digest| item(world, digest, SuppressionReason::Manual, at(1)));
        adds.spawn(async move { store.suppressions().add(&items, None).await.expect("both are there") });
    }
    let outcomes = adds.join_all().await;
    let added = outcomes.iter().flatten().filter(|outcome| matches!(outcome, Suppressed::Added(_))).count();
    assert_eq!((added, ids(world, Mode::Live, any()).await.len()), (2, 2));
}

/// A list is filtered and goes on where it stopped.
pub async fn suppressions_are_listed_newest_first_by_filter(world: &World) {
    let mut items = Vec::new();
    for (number, reason) in [SuppressionReason::Manual, SuppressionReason::Complaint, SuppressionReason::Manual].into_iter().enumerate() {
        items.push(item(world, &[number as u8], reason, at(number as i64)));
    }
    world.store.suppressions().add(&items, None).await.unwrap();
    let id = |number: usize| items[number].id;
    let by = |filter: SuppressionFilter| ids(world, Mode::Live, filter);
    assert_eq!(by(SuppressionFilter { reason: Some("manual".to_owned()), ..any() }).await, [id(2), id(0)]);
    assert_eq!(by(SuppressionFilter { scope: Some("complaint".to_owned()), ..any() }).await, [id(1)]);
    assert!(by(SuppressionFilter { channel: Some(Channel::Sms), ..any() }).await.is_empty());
    assert_eq!(by(SuppressionFilter { since: Some(at(1)), until: Some(at(2)), ..any() }).await, [id(1)]);
    assert_eq!(by(SuppressionFilter { before: Some(id(2)), limit: 1, ..any() }).await, [id(1)]);
    let row = world.store.suppressions().page(world.tenant, Mode::Live, &any()).await.unwrap().remove(0);
    assert_eq!((row.note.as_deref(), row.source.as_str(), row.address.as_deref()), (Some("a \"note\""), "api", Some(&b"0sealed\0"[..])));
    assert_eq!((row.created_at, row.expires_at, row.delivery), (at(2), None, None));
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    assert!(world.store.suppressions().page(other, Mode::Live, &any()).await.unwrap().is_empty());
}

/// S-156: an address is found by every digest that it has.
pub async fn a_suppression_is_found_by_each_live_digest(world: &World) {
    let items = [item(world, b"old", SuppressionReason::HardBounce, at(1)), item(world, b"new", SuppressionReason::Unsubscribe, at(2))];
    world.store.suppressions().add(&items, None).await.unwrap();
    world.suppress(b"ended", "all", Some(at(5))).await;
    let both = asked(world, &[b"new", b"old", b"ended", b"nobody"]);
    let found: Vec<Uuid> = world.store.suppressions().of(&both).await.unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(found.len(), 3);
    let mut hits = world.store.suppressions().hits(&both, at(5)).await.unwrap();
    hits.sort_by(|a, b| a.0.cmp(&b.0));
    let told: Vec<_> = hits.iter().map(|(digest, hit)| (digest.as_slice(), hit.id, hit.scope.clone())).collect();
    assert_eq!(told, [(&b"new"[..], items[1].id, SuppressionScope::Bulk), (&b"old"[..], items[0].id, SuppressionScope::All)]);
    assert_eq!(world.store.suppressions().hits(&both, at(4)).await.unwrap().len(), 3, "one is in force until it ends");
}

/// S-148, S-149: a removal names its reason in the audit, takes one row and spares the others.
pub async fn a_removal_takes_one_reason_and_is_written_down(world: &World) {
    let items = [item(world, b"a", SuppressionReason::SoftBounce, at(1)), item(world, b"a", SuppressionReason::Complaint, at(2))];
    world.store.suppressions().add(&items, None).await.unwrap();
    let entry = Deed {
        at: at(3),
        tenant: Some(world.tenant),
        actor: "key:key_1".to_owned(),
        action: "suppression.removed",
        subject: "sup_1".to_owned(),
        reason: Some("they asked".to_owned()),
    };
    let other = world.store.ensure_tenant("other").await.unwrap().id;
    let remove = |tenant, mode| world.store.suppressions().remove(tenant, mode, items[0].id, &entry);
    assert!(!remove(other, Mode::Live).await.unwrap() && !remove(world.tenant, Mode::Test).await.unwrap());
    assert_eq!(world.count("audit_log", "true").await, 0);
    assert!(remove(world.tenant, Mode::Live).await.unwrap());
    assert!(!remove(world.tenant, Mode::Live).await.unwrap(), "it is gone already");
    assert_eq!(
        world.count("audit_log", "action = 'suppression.removed' AND CAST(detail AS text) LIKE '%they asked%' AND subject = 'sup_1'").await,
        1
    );
    assert_eq!(ids(world, Mode::Live, any()).await, [items[1].id]);
}

pub(super) fn refused(hard: bool, listed: bool) -> Outcome {
    Outcome::Refused { by: Refusal::Recipient { listed, hard }, reason: Reason::RecipientRefused }
}

/// S-149: a hard refusal suppresses its address in the transaction that writes it; the next intent makes no call.
pub async fn a_hard_refusal_suppresses_its_address_at_once(world: &World) {
    let delivery = world.dispatched("first", at(1)).await;
    let moved = world.moved(&delivery, refused(true, false), at(2)).await;
    assert_eq!(moved.state, State::Failed);
    let row = world.store.suppressions().page(world.tenant, Mode::Live, &any()).await.unwrap().remove(0);
    assert_eq!((row.reason.as_str(), row.scope.as_str(), row.source.as_str()), ("hard_bounce", "all", "provider"));
    assert_eq!((row.delivery, row.address.as_deref()), (Some(delivery.id), Some(&b"0address 1\0"[..])));
    let behind = world.stored(delivery.id).await.suppression.unwrap();
    assert_eq!((behind.id, behind.reason.as_deref()), (row.id, Some("hard_bounce")));

    // The same mailbox once more, in the most urgent class there is.
    let mut second = world.email_of(world.tenant, Class::Critical, "second");
    second.deliveries[0].address_digest = delivery.id.as_uuid().as_bytes().to_vec();
    let second = world.taken(second).await;
    assert!(world.claim(100, at(3)).await.is_empty());
    let stored = world.stored(second).await;
    let told = (stored.delivery.state, stored.delivery.reason, stored.delivery.attempt_count);
    assert_eq!(told, (State::Suppressed, Some(Reason::Suppressed), 0));
    assert_eq!(stored.suppression.map(|behind| behind.id), Some(row.id), "it names what stopped it");
}

/// S-149, S-155: two refusals of one mailbox are one row, in force for good also where there was one that ends.
pub async fn refusals_of_one_mailbox_are_one_row(world: &World) {
    let (mut first, mut second) = (world.email("first"), world.email("second"));
    first.deliveries[0].address_digest = b"mailbox".to_vec();
    second.deliveries[0].address_digest = b"mailbox".to_vec();
    let (first, second) = (world.taken(first).await, world.taken(second).await);
    let claimed = world.claim(100, at(1)).await;
    world.suppress(b"mailbox", "all", Some(at(50))).await;
    let reports = claimed.iter().map(|delivery| world.report(delivery, refused(true, false), at(2))).collect();
    world.finish_all(reports, at(2)).await;
    assert_eq!(world.count("suppressions", "reason = 'hard_bounce' AND expires_at IS NULL").await, 1);
    assert_eq!(world.count("suppressions", "true").await, 1);
    let mut named = Vec::new();
    for id in [first, second] {
        named.extend(world.stored(id).await.suppression.map(|behind| behind.id));
    }
    assert!(named.len() == 2 && named[0] == named[1], "both name the one row: {named:?}");
}

/// S-149: the refusal of a copy suppresses that copy, with the outcome of its message, whatever that is. The delivery goes
/// the way that its outcome says, and the recipient stays.
pub async fn a_hard_refusal_of_a_copy_suppresses_it_and_moves_nothing_else(world: &World) {
    let taken = world.dispatched("taken", at(1)).await;
    let mut copy = item(world, b"copy", SuppressionReason::HardBounce, at(1));
    copy.delivery = Some(taken.id);
    "provider".clone_into(&mut copy.source);
    let other = NewSuppression { address_digest: b"other copy".to_vec(), id: Uuid::from_u128(2), ..copy.clone() };
    world.suppress(b"other copy", "all", Some(at(50))).await;
    let waits = world.dispatched("waits", at(1)).await;
    let with = |report: Finish, of_copies: &[&NewSuppression]| Finish {
        of_copies: of_copies.iter().map(|new| (*new).clone()).collect(),
        ..report
    };
    let reports = vec![
        with(world.report(&taken, accepted(), at(2)), &[&copy, &other]),
        with(world.report(&waits, answered(None), at(2)), &[&NewSuppression { id: Uuid::from_u128(3), ..copy.clone() }]),
    ];
    // The same report once more, as after a commit whose answer was lost.
    let again = reports.clone();
    world.finish_all(reports, at(2)).await;
    world.finish_all(again, at(3)).await;

    let (taken, waits) = (world.stored(taken.id).await, world.stored(waits.id).await);
    assert_eq!((taken.delivery.state, waits.delivery.state), (State::Accepted, State::RetryWait));
    assert!(taken.suppression.is_none() && waits.suppression.is_none(), "they were about the copies");
    let rows = world.store.suppressions().page(world.tenant, Mode::Live, &any()).await.unwrap();
    assert!(rows.iter().all(|row| (row.reason.as_str(), row.expires_at) == ("hard_bounce", None)), "{rows:?}");
    // Each names where it was found out first: the other one was there already.
    let found_in: Vec<_> = rows.iter().filter_map(|row| row.delivery).collect();
    assert_eq!((rows.len(), found_in), (2, vec![taken.delivery.id]), "{rows:?}");
    assert_eq!(world.count("suppressions", "source = 'provider'").await, 1);
    world.claim(10, at(10_000)).await.pop().expect("its own recipient is not suppressed");
}

/// S-151: what is said about the message, the sender or a full mailbox is not about the address.
pub async fn a_refusal_that_is_not_about_the_mailbox_suppresses_nobody(world: &World) {
    let outcomes = [
        refused(false, false),
        Outcome::Refused { by: Refusal::Content, reason: Reason::Blocked },
        Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused },
        Outcome::Credential,
    ];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let delivery = world.dispatched(&format!("key-{number}"), at(1)).await;
        world.moved(&delivery, outcome, at(2)).await;
    }
    assert_eq!(world.count("suppressions", "true").await, 0);
}

/// S-147: a suppression of one author stops that author alone.
pub async fn a_sender_scope_stops_its_author_alone(world: &World) {
    let mut shop = world.email("shop");
    let mut news = world.email("news");
    for (item, author) in [(&mut shop, "shop@example.org"), (&mut news, "news@example.org")] {
        item.deliveries[0].address_digest = b"mailbox".to_vec();
        item.deliveries[0].sender = Some(author.to_owned());
    }
    world.suppress(b"mailbox", "sender:shop@example.org", None).await;
    let (shop, news) = (world.taken(shop).await, world.taken(news).await);
    let claimed: Vec<_> = world.claim(100, at(1)).await.into_iter().map(|delivery| delivery.id).collect();
    assert_eq!(claimed, [news]);
    assert_eq!(world.stored(shop).await.delivery.state, State::Suppressed);
}
