//! What a route of several accounts promises: who may not send a message, or refused it, is passed over.

use std::sync::Arc;

use tidings_core::ids::AccountId;
use tidings_core::judge::{AccountCapacity, ClaimPlan};
use tidings_core::outcome::{Outcome, Refusal};
use tidings_core::owners::Owners;
use tidings_core::senders::SendsAs;
use tidings_core::state::State;
use tidings_core::time::Timestamp;
use tidings_core::transition::Landed;
use tidings_core::words::{Class, Reason};

use super::World;
use super::world::at;

/// A plan whose route is `relay` and then `backup`, with room in the accounts that are named.
async fn plan(world: &World, with_room: &[AccountId], limit: u16, now: Timestamp) -> (ClaimPlan, AccountId) {
    let backup = world.store.ensure_accounts(&[("backup".to_owned(), "smtp".to_owned())]).await.unwrap()[0];
    let mut plan = world.plan(limit, now);
    for lane in &mut plan.lanes {
        lane.route = vec![world.account.into(), backup.into()];
    }
    let room = |account: AccountId| {
        let free = if with_room.is_empty() || with_room.contains(&account) { limit } else { 0 };
        AccountCapacity { account, free, free_for_others: free, free_for_bulk: free, is_well: true, is_well_for_bulk: true }
    };
    plan.accounts = vec![room(world.account), room(backup)];
    (plan, backup)
}

fn may_only(account: AccountId, domain: &str) -> Arc<SendsAs> {
    Arc::new(SendsAs::new([(account, vec![domain.to_owned()])]))
}

/// S-111: the author travels with the row. The suite's messages are from `shop@example.org`.
pub async fn a_row_goes_by_an_account_that_may_send_as_its_author(world: &World) {
    world.taken(world.email("order-1")).await;
    let (mut plan, backup) = plan(world, &[], 10, at(1)).await;
    plan.sends_as = may_only(world.account, "example.com");

    let claimed = world.claim_by(plan, at(1)).await.dispatched;

    assert_eq!(claimed[0].account, Some(backup));
    assert_eq!(claimed[0].sender.as_deref(), Some("shop@example.org"));
}

/// S-111: it began at the second, which refused its author. While the first has no room it waits, and is not sent to the
/// second over and over; where both refuse it, it fails.
pub async fn who_refused_a_message_is_not_asked_again_in_its_generation(world: &World) {
    world.taken(world.email("order-1")).await;
    let refusal = || Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused };
    let (_, backup) = plan(world, &[], 10, at(1)).await;
    let first = world.claim_by(plan(world, &[backup], 10, at(1)).await.0, at(1)).await.dispatched.remove(0);
    assert_eq!(first.account, Some(backup));
    let mut report = world.report(&first, refusal(), at(2));
    report.others = vec![world.account];
    let Landed::Moved(waits, _) = world.finish_all(vec![report], at(2)).await.remove(0) else { panic!("it moved") };
    assert_eq!(waits.state, State::RetryWait);

    assert_eq!(world.claim_by(plan(world, &[backup], 10, at(3)).await.0, at(3)).await.dispatched, []);
    let second = world.claim_by(plan(world, &[], 10, at(4)).await.0, at(4)).await.dispatched.remove(0);
    assert_eq!(second.account, Some(world.account));
    let mut report = world.report(&second, refusal(), at(5));
    report.others = vec![backup];
    let Landed::Moved(ended, _) = world.finish_all(vec![report], at(5)).await.remove(0) else { panic!("it moved") };
    assert_eq!((ended.state, ended.reason), (State::Failed, Some(Reason::SenderRefused)));
}

/// DATA 5: a page of rows that nobody may send does not hide those behind it.
pub async fn rows_that_nobody_may_send_stand_aside_for_those_behind(world: &World) {
    for n in 0..5 {
        world.taken(world.email(&format!("stuck-{n}"))).await;
    }
    let mut behind = world.email("behind");
    behind.deliveries[0].sender = Some("shop@example.com".to_owned());
    let behind = world.taken(behind).await;
    let plan = |now| {
        let mut plan = world.plan(5, now);
        plan.sends_as = may_only(world.account, "example.com");
        plan
    };
    let claimed = world.claim_by(plan(at(1)), at(1)).await;
    assert_eq!((claimed.dispatched.len(), claimed.ended), (0, 5));

    let claimed = world.claim_by(plan(at(2)), at(2)).await.dispatched;

    assert_eq!(claimed.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [behind]);
    // Once an account may send them they go out.
    assert_eq!(world.claim_by(world.plan(10, at(60)), at(60)).await.dispatched.len(), 5);
}

/// S-108: an account of one tenant is its trouble alone, however much waits for it.
pub async fn a_tenant_whose_own_account_takes_nothing_holds_up_nobody_else(world: &World) {
    let acme = world.store.ensure_tenant("acme").await.unwrap().id;
    for n in 0..8 {
        world.taken(world.email_of(acme, Class::Transactional, &format!("stuck-{n}"))).await;
    }
    for n in 0..4 {
        world.taken(world.email(&format!("order-{n}"))).await;
    }
    let (_, backup) = plan(world, &[], 5, at(1)).await;
    let owned = async |with_room: &[AccountId], now| {
        let (mut plan, backup) = plan(world, with_room, 5, now).await;
        plan.owners = Owners::new([(world.account, Some(acme)), (backup, Some(world.tenant))]);
        plan
    };
    let mut sent = 0;
    for second in 1..=4 {
        let claimed = world.claim_by(owned(&[backup], at(second)).await, at(second)).await;
        assert!(claimed.dispatched.iter().all(|row| row.tenant == world.tenant && row.account == Some(backup)));
        assert_eq!(claimed.ended, 0);
        sent += claimed.dispatched.len();
    }
    assert_eq!(sent, 4);
    // What waited kept its place, and goes by its own account as soon as that takes something.
    let claimed = world.claim_by(owned(&[world.account], at(5)).await, at(5)).await.dispatched;
    assert!(!claimed.is_empty() && claimed.iter().all(|row| row.tenant == acme && row.account == Some(world.account)));
}
