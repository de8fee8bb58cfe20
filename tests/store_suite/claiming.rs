//! What claiming promises: every due row once, fairly between tenants, within the capacity, judged at that moment.

use std::collections::HashSet;
use std::time::Duration;

use tidings_core::ids::TenantId;
use tidings_core::judge::AccountCapacity;
use tidings_core::outcome::{NotSent, Outcome};
use tidings_core::state::State;
use tidings_core::store::NewNotification;
use tidings_core::words::{Class, Reason};

use super::World;
use super::world::{at, claim_on};

/// S-032: one live owner for each row at any instant.
pub async fn a_row_is_claimed_once_by_any_number_of_claimers(world: &World) {
    world.accept((0..200).map(|n| world.email(&format!("order-{n}"))).collect()).await;

    let stores = world.stores();
    let mut claimers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (store, rules, plan) = (stores[n % stores.len()].clone(), world.rules.clone(), world.plan(20, at(1)));
        claimers.spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..4 {
                taken.extend(claim_on(&store, &rules, plan.clone(), at(1)).await.unwrap().dispatched);
            }
            taken
        });
    }
    let mut taken = claimers.join_all().await.concat();
    // What one claimer stepped over because another held it at that moment is found by the next poll.
    taken.extend(world.claim(500, at(1)).await);

    assert_eq!(taken.len(), 200);
    assert_eq!(taken.iter().map(|delivery| delivery.id).collect::<HashSet<_>>().len(), 200);
    assert!(taken.iter().all(|delivery| delivery.state == State::Dispatching && delivery.attempt_number == 1));
}

/// S-035: the row that says a send is about to start is committed with everything recovery needs.
pub async fn a_claimed_row_names_its_owner_account_and_lease(world: &World) {
    let claimed = world.dispatched("order-1", at(5)).await;

    let stored = world.stored(claimed.id).await.delivery;
    assert_eq!(stored, claimed);
    assert_eq!((stored.lease_owner, stored.account), (Some(world.instance), Some(world.account)));
    assert_eq!((stored.attempt_started_at, stored.lease_expires_at), (Some(at(5)), Some(at(65))));
    assert_eq!((stored.version, stored.attempt_number, stored.attempt_count), (2, 1, 0));
}

/// Nothing is claimed before its time, and everything once it has come.
pub async fn a_row_waits_until_it_is_due(world: &World) {
    let mut item = world.email("order-1");
    item.deliveries[0].state = State::Scheduled;
    item.deliveries[0].available_at = at(100);
    let id = world.taken(item).await;

    assert!(world.claim(10, at(99)).await.is_empty());
    assert_eq!(world.store.next_due().await.unwrap(), [(world.lane(Class::Transactional), at(100))]);
    assert_eq!(world.claim(10, at(100)).await[0].id, id);
}

/// Oldest first: who waits longest is looked at first.
pub async fn rows_of_a_tenant_go_out_oldest_first(world: &World) {
    for (key, due) in [("third", 30), ("first", 10), ("second", 20)] {
        let mut item = world.email(key);
        item.deliveries[0].available_at = at(due);
        world.taken(item).await;
    }

    let mut order = Vec::new();
    for _ in 0..3 {
        let claimed = world.claim(1, at(60)).await;
        order.push(world.read(claimed[0].id).await.idempotency_key);
    }
    assert_eq!(order, ["first", "second", "third"]);
}

/// S-023: rows are found by state, never by a watermark of ids or time.
pub async fn a_lower_id_that_is_committed_later_is_found(world: &World) {
    let mut lower = world.email("lower");
    lower.deliveries[0].available_at = at(-50);
    let higher = world.email("higher");
    assert!(lower.id < higher.id);

    world.taken(higher).await;
    assert_eq!(world.claim(10, at(1)).await.len(), 1);
    let late = world.taken(lower).await;

    let mut hinted = world.plan(10, at(2));
    hinted.lanes.iter_mut().for_each(|lane| lane.low = Some(at(-5)));
    assert!(world.claim_by(hinted, at(2)).await.dispatched.is_empty(), "the hint is obeyed");
    assert_eq!(world.claim(10, at(2)).await[0].id, late, "a poll from the start finds it");
}

async fn accept_many(world: &World, tenant: TenantId, count: usize) {
    let items: Vec<_> = (0..count).map(|n| world.email_of(tenant, Class::Transactional, &format!("order-{n}"))).collect();
    for part in items.chunks(500) {
        world.accept(part.to_vec()).await.into_iter().for_each(|accepted| drop(accepted.unwrap()));
    }
}

/// S-089: a backlog of one tenant does not keep another waiting for as much as one claim.
pub async fn a_small_tenant_is_in_the_first_claim_beside_a_huge_one(world: &World) {
    let small = world.store.ensure_tenant("small").await.unwrap().id;
    accept_many(world, world.tenant, 10_000).await;
    accept_many(world, small, 1).await;

    let mut plan = world.plan(50, at(1));
    plan.lanes.iter_mut().for_each(|lane| lane.tenant_limit = 25);
    let claimed = world.claim_by(plan, at(1)).await;

    let of = |tenant| claimed.dispatched.iter().filter(|delivery| delivery.tenant == tenant).count();
    assert_eq!(of(small), 1);
    assert_eq!(of(world.tenant), 25, "the rest is filled up, to the limit of one tenant");
    assert_eq!(claimed.lanes[1].tenants, 2);
    assert_eq!(claimed.lanes[1].candidates, 26);
}

/// S-089: scarce room goes round all tenants, wherever the ring starts.
pub async fn one_free_slot_at_a_time_goes_round_all_tenants(world: &World) {
    for name in ["b", "c", "d"] {
        let tenant = world.store.ensure_tenant(name).await.unwrap().id;
        accept_many(world, tenant, 3).await;
    }
    accept_many(world, world.tenant, 3).await;

    let mut cursor = None;
    for _ in 0..3 {
        let mut served = HashSet::new();
        for _ in 0..4 {
            let mut plan = world.plan(1, at(1));
            plan.lanes[1].limit = 16;
            plan.lanes[1].tenant_limit = 8;
            plan.lanes[1].cursor = cursor;
            let claimed = world.claim_by(plan, at(1)).await;
            assert_eq!(claimed.dispatched.len(), 1);
            served.insert(claimed.dispatched[0].tenant);
            cursor = claimed.lanes[1].cursor;
        }
        assert_eq!(served.len(), 4, "every tenant once in four");
    }
}

/// More tenants than one step of the ring finds: all of them come by.
pub async fn every_tenant_of_a_long_ring_is_reached(world: &World) {
    let mut items = Vec::new();
    for n in 0..40 {
        let tenant = world.store.ensure_tenant(&format!("tenant-{n}")).await.unwrap().id;
        items.push(world.email_of(tenant, Class::Transactional, "order-1"));
    }
    world.accept(items).await;

    let mut served = HashSet::new();
    let mut cursor = None;
    for _ in 0..12 {
        let mut plan = world.plan(8, at(1));
        plan.lanes[1].cursor = cursor;
        let claimed = world.claim_by(plan, at(1)).await;
        served.extend(claimed.dispatched.iter().map(|delivery| delivery.tenant));
        cursor = claimed.lanes[1].cursor;
    }
    assert_eq!(served.len(), 40);
}

/// S-081: lanes use the capacity in the order of the plan, and reserved slots are not lent.
pub async fn lanes_share_the_capacity_in_the_order_of_the_plan(world: &World) {
    let items = |class: Class| (0..5).map(move |n| world.email_of(world.tenant, class, &format!("{class}-{n}")));
    let all: Vec<NewNotification> = Class::ALL.iter().rev().flat_map(|class| items(*class)).collect();
    world.accept(all).await;

    let mut plan = world.plan(10, at(1));
    plan.accounts = vec![AccountCapacity {
        account: world.account,
        free: 8,
        free_for_others: 4,
        free_for_bulk: 2,
        is_well: true,
        is_well_for_bulk: true,
    }];
    let claimed = world.claim_by(plan, at(1)).await.dispatched;

    let of = |class| claimed.iter().filter(|delivery| delivery.class == class).count();
    assert_eq!((of(Class::Critical), of(Class::Transactional), of(Class::Bulk)), (5, 3, 0));

    let mut plan = world.plan(10, at(1));
    plan.accounts = vec![AccountCapacity {
        account: world.account,
        free: 8,
        free_for_others: 4,
        free_for_bulk: 1,
        is_well: true,
        is_well_for_bulk: true,
    }];
    let claimed = world.claim_by(plan, at(1)).await.dispatched;
    let of = |class| claimed.iter().filter(|delivery| delivery.class == class).count();
    assert_eq!((of(Class::Transactional), of(Class::Bulk)), (2, 1));
}

/// S-043, S-147: a suppression that came after the intake stops the send, without an attempt.
pub async fn a_suppressed_address_is_not_called(world: &World) {
    let item = world.email("order-1");
    let id = world.taken(item.clone()).await;
    world.suppress(&item.deliveries[0].address_digest, "all", None).await;

    let claimed = world.claim_by(world.plan(10, at(1)), at(1)).await;

    assert_eq!((claimed.dispatched.len(), claimed.ended), (0, 1));
    let stored = world.stored(id).await;
    assert_eq!((stored.delivery.state, stored.delivery.reason), (State::Suppressed, Some(Reason::Suppressed)));
    assert_eq!((stored.attempts.len(), stored.delivery.attempt_count), (0, 0));
    assert_eq!(world.count("events", "type = 'suppressed'").await, 1);
}

/// S-043, S-147: an address that was suppressed between two attempts is not called a second time.
pub async fn a_suppression_between_two_attempts_has_the_last_word(world: &World) {
    let item = world.email("order-1");
    let digest = item.deliveries[0].address_digest.clone();
    let id = world.taken(item).await;
    let first = world.claim(1, at(1)).await.remove(0);
    world.moved(&first, Outcome::NotSent { why: NotSent::Answered, retry_after: None }, at(2)).await;
    world.suppress(&digest, "all", None).await;

    let claimed = world.claim_by(world.plan(10, at(60)), at(60)).await;

    assert_eq!((claimed.dispatched.len(), claimed.ended), (0, 1));
    let stored = world.stored(id).await;
    assert_eq!((stored.delivery.state, stored.delivery.reason), (State::Suppressed, Some(Reason::Suppressed)));
    assert_eq!((stored.attempts.len(), stored.delivery.attempt_count), (1, 1));
}

/// Suppressions of other addresses, of a narrower scope, or past their end stop nobody; the old digest counts as well.
pub async fn a_suppression_reaches_as_far_as_it_says(world: &World) {
    let narrow = world.email("narrow");
    world.suppress(&narrow.deliveries[0].address_digest, "bulk", None).await;
    let ended = world.email("ended");
    world.suppress(&ended.deliveries[0].address_digest, "all", Some(at(1))).await;
    let running = world.email("running");
    world.suppress(&running.deliveries[0].address_digest, "complaint", Some(at(2))).await;
    let rotated = world.email("rotated");
    world.suppress(b"the digest before the rotation", "all", None).await;
    let rotated_id = world.db.id(rotated.deliveries[0].id.as_uuid());
    let items = [narrow, ended, running, rotated];
    let ids: Vec<_> = items.iter().map(|item| item.deliveries[0].id).collect();
    world.accept(items.to_vec()).await;
    world
        .sql(&format!("UPDATE queue SET old_digest = {} WHERE id = {rotated_id}", world.db.bytes(b"the digest before the rotation")))
        .await;

    world.claim(10, at(1)).await;

    let mut states = Vec::new();
    for id in ids {
        states.push(world.state(id).await);
    }
    assert_eq!(states, [State::Dispatching, State::Dispatching, State::Suppressed, State::Suppressed]);
}

/// S-220: a scope that only a newer binary knows stops every class.
pub async fn a_suppression_of_an_unknown_scope_stops_everybody(world: &World) {
    let item = world.email_of(world.tenant, Class::Critical, "order-1");
    let id = world.taken(item.clone()).await;
    world.db.allow_any_scope().await;
    world.suppress(&item.deliveries[0].address_digest, "future_scope", None).await;

    let claimed = world.claim_by(world.plan(10, at(1)), at(1)).await;

    assert_eq!((claimed.dispatched.len(), claimed.ended), (0, 1));
    assert_eq!(world.state(id).await, State::Suppressed);
}

/// S-048: what waited too long is expired, not sent late.
pub async fn an_overdue_row_expires_when_it_is_judged(world: &World) {
    let item = world.email("order-1");
    let expires_at = item.expires_at;
    let id = world.taken(item).await;

    let claimed = world.claim_by(world.plan(10, expires_at), expires_at).await;

    assert_eq!((claimed.dispatched.len(), claimed.ended), (0, 1));
    let stored = world.stored(id).await.delivery;
    assert_eq!((stored.state, stored.reason), (State::Expired, Some(Reason::Deadline)));
    assert_eq!(stored.settled_at, Some(expires_at));
}

/// S-043: a tenant that may not send keeps its rows as they are.
pub async fn rows_of_a_disabled_tenant_wait(world: &World) {
    let id = world.taken(world.email("order-1")).await;
    world.sql("UPDATE tenants SET state = 'disabled' WHERE name = 'default'").await;

    assert!(world.claim(10, at(1)).await.is_empty());
    assert_eq!(world.state(id).await, State::Queued);
    assert_eq!(world.stored(id).await.delivery.version, 1, "nothing is written for a row that waits");

    world.sql("UPDATE tenants SET state = 'active' WHERE name = 'default'").await;
    assert_eq!(world.claim(10, at(1)).await.len(), 1);
}

/// S-231: content of a newer binary is left to newer binaries, and holds nobody up.
pub async fn a_newer_schema_version_is_left_alone(world: &World) {
    let mut newer = world.email("newer");
    newer.schema_version = 99;
    let id = world.taken(newer).await;
    let mate = world.taken(world.email("order-1")).await;

    let claimed = world.claim(10, at(1).plus(Duration::from_secs(1))).await;

    assert_eq!(claimed.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [mate]);
    assert_eq!(world.state(id).await, State::Queued);
}

/// S-059, S-231: a row that only a newer binary can read keeps its place and holds nobody up.
pub async fn a_row_with_an_unknown_word_is_stepped_over_by_a_claim(world: &World) {
    let unknown = world.taken(world.email("unknown")).await;
    let mate = world.taken(world.email("order-1")).await;
    world.write_unknown_word(unknown).await;

    let claimed = world.claim(10, at(1)).await;

    assert_eq!(claimed.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [mate]);
    assert_eq!(world.count("queue", "no_resend = 'future_word' AND state = 'queued' AND version = 1").await, 1);
}

/// A claim that finds no room writes nothing and says what it saw.
pub async fn a_claim_without_room_writes_nothing(world: &World) {
    let id = world.taken(world.email("order-1")).await;

    let mut plan = world.plan(10, at(1));
    plan.accounts[0] =
        AccountCapacity { account: world.account, free: 0, free_for_others: 0, free_for_bulk: 0, is_well: true, is_well_for_bulk: true };
    let claimed = world.claim_by(plan, at(1)).await;

    assert_eq!((claimed.dispatched.len(), claimed.ended, claimed.lanes[1].candidates), (0, 0, 1));
    assert_eq!(world.stored(id).await.delivery.version, 1);
}
