//! Who goes out now and by whom, judgement by judgement.

use super::*;
use crate::delivery::Flags;
use crate::ids::NotificationId;
use crate::sample;
use crate::state::State;
use crate::suppression::SuppressionScope;
use crate::words::Channel;

const A: AccountId = AccountId(1);
const B: AccountId = AccountId(2);
const C: AccountId = AccountId(3);
const CLASSES: [Class; 3] = [Class::Critical, Class::Transactional, Class::Bulk];

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

const fn lane_of(class: Class) -> LaneId {
    match class {
        Class::Critical => LaneId(1),
        Class::Transactional => LaneId(2),
        Class::Bulk => LaneId(3),
    }
}

/// A row that is due, has an active tenant and no suppression.
fn due(class: Class, ordinal: u16) -> Candidate {
    let id = NotificationId::new(at(0), [1; 10]).delivery(ordinal);
    let delivery = Delivery { id, class, lane: lane_of(class), ..sample::waiting(at(0)) };
    Candidate { delivery, suppressions: Vec::new(), tenant_active: true, refused_by: Vec::new(), is_collapsed: false }
}

/// A row whose last call was made by this account and did not take it.
fn failed_by(account: AccountId) -> Candidate {
    let mut candidate = due(Class::Transactional, 1);
    let delivery = &mut candidate.delivery;
    (delivery.state, delivery.account, delivery.attempt_count, delivery.attempt_number) = (State::RetryWait, Some(account), 1, 1);
    candidate
}

const fn room(account: AccountId, free: u16, free_for_others: u16, free_for_bulk: u16) -> AccountCapacity {
    AccountCapacity { account, free, free_for_others, free_for_bulk, is_well: true, is_well_for_bulk: true }
}

const fn wide(account: AccountId) -> AccountCapacity {
    room(account, 100, 100, 100)
}

/// Lanes of all classes with the accounts in the order given.
fn plan(accounts: &[AccountCapacity]) -> ClaimPlan {
    let route: Vec<Member> = accounts.iter().map(|room| room.account.into()).collect();
    let lane = |class: &Class| LanePlan {
        lane: lane_of(*class),
        class: *class,
        route: route.clone(),
        limit: 50,
        tenant_limit: 50,
        cursor: None,
        low: None,
    };
    let lanes = Class::ALL.iter().map(lane).collect();
    let (accounts, sends_as, owners, paused) = (accounts.to_vec(), Arc::default(), Owners::default(), Paused::default());
    ClaimPlan { instance: InstanceId(7), lease_until: at(61), lanes, accounts, sends_as, owners, paused }
}

fn judged(accounts: &[AccountCapacity], candidates: &[Candidate]) -> Vec<Delivery> {
    judge(&Rules::default(), &plan(accounts), candidates, at(1)).into_iter().map(|change| change.after).collect()
}

/// By which account one row goes out.
fn account_of(accounts: &[AccountCapacity], candidate: Candidate) -> Option<AccountId> {
    let moved = judged(accounts, &[candidate]);
    moved.first().filter(|delivery| delivery.state == State::Dispatching).and_then(|delivery| delivery.account)
}

/// State and reason of the one row that is judged; `None` where it keeps its place.
fn end_of(candidate: Candidate) -> Option<(State, Option<Reason>)> {
    judged(&[wide(A)], &[candidate]).first().map(|delivery| (delivery.state, delivery.reason))
}

#[test]
fn the_first_account_of_the_route_that_has_room_takes_it() {
    let message = || due(Class::Transactional, 1);
    assert_eq!(account_of(&[wide(A), wide(B)], message()), Some(A));
    assert_eq!(account_of(&[wide(B), wide(A)], message()), Some(B));
    assert_eq!(account_of(&[room(A, 0, 0, 0), wide(B)], message()), Some(B));
    assert_eq!(account_of(&[room(A, 0, 0, 0), room(B, 0, 0, 0)], message()), None);
    assert_eq!(account_of(&[], message()), None);
}

#[test]
fn after_a_failed_call_the_search_begins_behind_the_account_that_failed() {
    let route = [wide(A), wide(B), wide(C)];
    assert_eq!(account_of(&route, failed_by(A)), Some(B));
    assert_eq!(account_of(&route, failed_by(B)), Some(C));
    assert_eq!(account_of(&route, failed_by(C)), Some(A), "behind the last stands the first");
    assert_eq!(account_of(&[wide(A), room(B, 0, 0, 0), wide(C)], failed_by(A)), Some(C));
    assert_eq!(
        account_of(&[wide(A), room(B, 0, 0, 0), room(C, 0, 0, 0)], failed_by(A)),
        Some(A),
        "the one that failed is better than none"
    );
    assert_eq!(account_of(&[wide(A)], failed_by(A)), Some(A));
    assert_eq!(account_of(&[wide(B), wide(C)], failed_by(A)), Some(B), "an account that is gone leaves the route as it is");
}

#[test]
fn what_was_handed_back_before_it_was_sent_begins_at_the_front() {
    let mut handed_back = failed_by(A);
    (handed_back.delivery.state, handed_back.delivery.attempt_count) = (State::Queued, 0);
    assert_eq!(account_of(&[wide(A), wide(B)], handed_back), Some(A));
}

/// The row of an author, and a route of which only these accounts may send as somebody at `example.org`.
fn judged_for(sender: &str, candidate: Candidate, rooms: &[AccountCapacity], others_may_not: &[AccountId]) -> Option<Delivery> {
    let allowed = others_may_not.iter().map(|account| (*account, vec!["example.com".to_owned()]));
    let plan = ClaimPlan { sends_as: Arc::new(SendsAs::new(allowed)), ..plan(rooms) };
    let mut candidate = candidate;
    candidate.delivery.sender = Some(sender.to_owned());
    judge(&Rules::default(), &plan, &[candidate], at(1)).pop().map(|change| change.after)
}

#[test]
fn an_account_that_may_not_send_as_the_author_is_passed_over() {
    let account = |rooms: &[AccountCapacity], not: &[AccountId], candidate| {
        judged_for("shop@example.org", candidate, rooms, not).filter(|row| row.state == State::Dispatching).and_then(|row| row.account)
    };
    let message = || due(Class::Transactional, 1);
    assert_eq!(account(&[wide(A), wide(B)], &[A], message()), Some(B));
    assert_eq!(account(&[wide(A), wide(B)], &[B], message()), Some(A));
    assert_eq!(account(&[wide(A), wide(B), wide(C)], &[A, B], failed_by(C)), Some(C));
    assert_eq!(account(&[wide(A), room(B, 0, 0, 0)], &[A], message()), None, "it waits for the one that may");
    assert_eq!(judged_for("shop@example.com", message(), &[wide(A)], &[A]).and_then(|row| row.account), Some(A));
}

#[test]
fn a_row_that_nobody_may_send_stands_aside_and_uses_no_room() {
    let aside = judged_for("shop@example.org", due(Class::Transactional, 1), &[wide(A), wide(B)], &[A, B]).unwrap();
    assert_eq!((aside.state, aside.available_at, aside.version), (State::Queued, Some(at(31)), 2));
    let mut scheduled = due(Class::Transactional, 1);
    scheduled.delivery.state = State::Scheduled;
    assert_eq!(judged_for("shop@example.org", scheduled, &[wide(A)], &[A]), None, "how late it is counts from when it was due");
}

/// S-108: the sample's tenant is the first.
#[test]
fn an_account_of_a_tenant_carries_nobody_elses_messages() {
    let account = |rooms: &[AccountCapacity], owners: &[(AccountId, Option<TenantId>)]| {
        let plan = ClaimPlan { owners: Owners::new(owners.iter().copied()), ..plan(rooms) };
        let row = judge(&Rules::default(), &plan, &[due(Class::Transactional, 1)], at(1)).pop().map(|change| change.after);
        row.map(|row| (row.state == State::Dispatching, row.account))
    };
    let (own, other) = (Some(TenantId(1)), Some(TenantId(2)));
    assert_eq!(sample::waiting(at(0)).tenant, TenantId(1));
    assert_eq!(account(&[wide(A), wide(B)], &[(A, own)]), Some((true, Some(A))));
    assert_eq!(account(&[wide(A), wide(B)], &[(A, other)]), Some((true, Some(B))));
    assert_eq!(account(&[wide(A), wide(B)], &[(A, None)]), Some((true, Some(B))), "its tenant is not there yet");
    assert_eq!(account(&[wide(A), room(B, 0, 0, 0)], &[(A, other)]), None, "it waits for the one that is for all");
    assert_eq!(account(&[wide(A), wide(B)], &[(A, other), (B, None)]), Some((false, None)), "it stands aside");
}

#[test]
fn a_message_begins_at_the_account_that_is_drawn_and_goes_on_behind_it() {
    let mut plan = plan(&[wide(A), wide(B), wide(C)]);
    for lane in &mut plan.lanes {
        lane.route = vec![Member { account: A, weight: Some(1) }, Member { account: B, weight: Some(1) }, C.into()];
    }
    let account = |plan: &ClaimPlan, candidate: Candidate| {
        judge(&Rules::default(), plan, &[candidate], at(1)).pop().and_then(|change| change.after.account).unwrap()
    };
    let mut begun = Vec::new();
    for n in 1..=20 {
        let first = account(&plan, due(Class::Transactional, n));
        let tried = |by: AccountId| {
            let mut again = failed_by(by);
            again.delivery.id = due(Class::Transactional, n).delivery.id;
            again
        };
        let second = account(&plan, tried(first));
        assert_eq!(second, if first == A { B } else { A });
        assert_eq!((account(&plan, tried(second)), account(&plan, tried(C))), (C, first));
        let mut only = plan.clone();
        only.paused.fallback = true;
        assert_eq!(account(&only, due(Class::Transactional, n)), first, "the drawn one is no fallback");
        begun.push(first);
    }
    assert!(begun.contains(&A) && begun.contains(&B) && !begun.contains(&C), "{begun:?}");
}

#[test]
fn an_account_that_refused_a_message_is_asked_again_only_when_all_have() {
    let refused = |by: &[AccountId]| Candidate { refused_by: by.to_vec(), ..failed_by(B) };
    let route = [wide(A), wide(B)];
    assert_eq!(account_of(&route, refused(&[B])), Some(A), "it began at the second and goes around");
    assert_eq!(account_of(&[room(A, 0, 0, 0), wide(B)], refused(&[B])), None, "it waits for the first");
    assert_eq!(account_of(&route, refused(&[A, B])), Some(A), "everything has changed since, or nothing");
}

#[test]
fn room_is_given_in_order_and_the_rest_keeps_its_place() {
    let messages: Vec<Candidate> = (1..=6).map(|n| due(Class::Transactional, n)).collect();
    let moved = judged(&[room(A, 2, 2, 2), room(B, 3, 3, 3)], &messages);
    let accounts: Vec<_> = moved.iter().filter_map(|delivery| delivery.account).collect();
    assert_eq!(accounts, [A, A, B, B, B]);
    let ids: Vec<_> = messages[..5].iter().map(|message| message.delivery.id).collect();
    assert_eq!(moved.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids, "the sixth is not written");
}

#[test]
fn reserved_slots_are_for_critical_messages_alone_and_bulk_has_the_least() {
    let all = |classes: &[Class]| -> Vec<Candidate> {
        classes.iter().flat_map(|class| (1..=10).map(|n| due(*class, n + 10 * u16::try_from(lane_of(*class).0).unwrap()))).collect()
    };
    let count = |candidates: &[Candidate]| {
        let moved = judged(&[room(A, 8, 5, 3)], candidates);
        CLASSES.map(|class| moved.iter().filter(|delivery| delivery.class == class).count())
    };
    assert_eq!(count(&all(&[Class::Bulk])), [0, 0, 3]);
    assert_eq!(count(&all(&[Class::Transactional])), [0, 5, 0]);
    assert_eq!(count(&all(&[Class::Critical])), [8, 0, 0]);
    assert_eq!(count(&all(&[Class::Bulk, Class::Transactional, Class::Critical])), [3, 2, 3]);
    assert_eq!(count(&all(&[Class::Critical, Class::Transactional, Class::Bulk])), [8, 0, 0]);
}

/// Suppressions with these scopes, the oldest first.
fn hits(scopes: &[SuppressionScope]) -> Vec<Hit> {
    (1..).zip(scopes).map(|(number, scope)| Hit { id: uuid::Uuid::from_u128(number), scope: scope.clone() }).collect()
}

#[test]
fn what_was_stopped_names_the_suppression() {
    let mut candidate = due(Class::Transactional, 1);
    candidate.suppressions = hits(&[SuppressionScope::Bulk, SuppressionScope::Sender("shop@example.com".to_owned())]);
    let changes = judge(&Rules::default(), &plan(&[wide(A)]), &[candidate.clone()], at(1));
    assert_eq!(changes[0].suppression, Some(Note::StoppedBy(uuid::Uuid::from_u128(2))));
    candidate.delivery.sender = Some("news@example.com".to_owned());
    assert_eq!(end_of(candidate), Some((State::Dispatching, None)), "the person turned down another author");
}

#[test]
fn a_suppression_reaches_the_classes_of_its_scope() {
    let obeyed = |scope: &SuppressionScope| {
        CLASSES.map(|class| {
            let mut candidate = due(class, 1);
            candidate.suppressions = hits(std::slice::from_ref(scope));
            match end_of(candidate) {
                Some((State::Suppressed, Some(Reason::Suppressed))) => true,
                Some((State::Dispatching, None)) => false,
                other => panic!("{other:?}"),
            }
        })
    };
    assert_eq!(obeyed(&SuppressionScope::All), [true, true, true]);
    assert_eq!(obeyed(&SuppressionScope::Complaint), [false, true, true]);
    assert_eq!(obeyed(&SuppressionScope::Bulk), [false, false, true]);

    let mut several = due(Class::Critical, 1);
    several.suppressions = hits(&[SuppressionScope::Bulk, SuppressionScope::Complaint, SuppressionScope::All]);
    assert_eq!(end_of(several), Some((State::Suppressed, Some(Reason::Suppressed))));
}

#[test]
fn a_suppression_between_two_attempts_stops_the_second_and_hides_no_open_call() {
    let mut retried = failed_by(A);
    retried.suppressions = hits(&[SuppressionScope::All]);
    assert_eq!(end_of(retried.clone()), Some((State::Suppressed, Some(Reason::Suppressed))));
    retried.delivery.generation = 2;
    retried.delivery.unresolved = 1;
    assert_eq!(end_of(retried), Some((State::Unknown, Some(Reason::Suppressed))), "it may have been sent before");
}

#[test]
fn what_applies_first_decides() {
    let mut candidate = due(Class::Transactional, 1);
    candidate.delivery.no_resend = Some(Reason::Cancelled);
    candidate.delivery.expires_at = at(1);
    candidate.suppressions = hits(&[SuppressionScope::All]);
    candidate.tenant_active = false;
    assert_eq!(end_of(candidate.clone()), Some((State::Cancelled, Some(Reason::Cancelled))));
    candidate.delivery.no_resend = Some(Reason::Collapsed);
    assert_eq!(end_of(candidate.clone()), Some((State::Superseded, Some(Reason::Collapsed))));
    candidate.delivery.no_resend = None;
    assert_eq!(end_of(candidate.clone()), Some((State::Expired, Some(Reason::Deadline))));
    candidate.delivery.expires_at = at(600);
    assert_eq!(end_of(candidate.clone()), Some((State::Suppressed, Some(Reason::Suppressed))));
    candidate.suppressions.clear();
    assert_eq!(end_of(candidate.clone()), None, "a tenant that may not send keeps its row");
    candidate.tenant_active = true;
    assert_eq!(end_of(candidate), Some((State::Dispatching, None)));
}

#[test]
fn a_row_that_ends_or_waits_uses_no_room() {
    let mut rows: Vec<Candidate> = (1..=4).map(|n| due(Class::Transactional, n)).collect();
    rows[0].tenant_active = false;
    rows[1].suppressions = hits(&[SuppressionScope::All]);
    rows[2].delivery.expires_at = at(1);
    let moved = judged(&[room(A, 1, 1, 1)], &rows);
    let states: Vec<_> = moved.iter().map(|delivery| (delivery.id, delivery.state)).collect();
    let id = |n: usize| rows[n].delivery.id;
    assert_eq!(states, [(id(1), State::Suppressed), (id(2), State::Expired), (id(3), State::Dispatching)]);
}

#[test]
fn a_lane_that_the_plan_does_not_name_keeps_its_rows() {
    let mut plan = plan(&[wide(A)]);
    plan.lanes.retain(|lane| lane.class == Class::Critical);
    assert_eq!(judge(&Rules::default(), &plan, &[due(Class::Bulk, 1)], at(1)), []);
}

#[test]
fn what_goes_out_is_leased_as_the_plan_says_and_a_resend_is_flagged() {
    let sent = judged(&[wide(A)], &[due(Class::Critical, 1)]).remove(0);
    assert_eq!((sent.lease_owner, sent.lease_expires_at, sent.attempt_started_at), (Some(InstanceId(7)), Some(at(61)), Some(at(1))));
    assert_eq!((sent.attempt_number, sent.version, sent.available_at), (1, 2, None));
    assert!(!sent.flags.has(Flags::POSSIBLE_DUPLICATE));

    let mut resend = failed_by(A);
    (resend.delivery.generation, resend.delivery.unresolved) = (2, 1);
    let sent = judged(&[wide(A), wide(B)], &[resend]).remove(0);
    assert_eq!((sent.account, sent.attempt_number), (Some(B), 2), "the next account of the route");
    assert!(sent.flags.has(Flags::POSSIBLE_DUPLICATE));
}

#[test]
fn what_is_paused_keeps_its_place_and_nothing_is_written() {
    let paused = |paused: Paused| {
        let plan = ClaimPlan { paused, ..plan(&[wide(A), wide(B)]) };
        let rows = [due(Class::Critical, 1), due(Class::Bulk, 2), failed_by(A)];
        judge(&Rules::default(), &plan, &rows, at(1)).iter().map(|change| (change.after.class, change.after.account)).collect::<Vec<_>>()
    };
    let (critical, bulk, retry) = ((Class::Critical, Some(A)), (Class::Bulk, Some(A)), (Class::Transactional, Some(B)));
    let none = Paused::default;
    assert_eq!(paused(none()), [critical, bulk, retry]);
    assert_eq!(paused(Paused { all: true, ..none() }), []);
    assert_eq!(paused(Paused { classes: vec![Class::Bulk], ..none() }), [critical, retry]);
    assert_eq!(paused(Paused { channels: vec![Channel::Sms], ..none() }), [critical, bulk, retry]);
    assert_eq!(paused(Paused { channels: vec![Channel::Email], ..none() }), []);
    assert_eq!(paused(Paused { categories: vec!["receipt".into()], ..none() }), []);
    assert_eq!(paused(Paused { tenants: vec![TenantId(1)], ..none() }), []);
    assert_eq!(paused(Paused { retries: true, ..none() }), [critical, bulk]);
    let by = |account| [(Class::Critical, Some(account)), (Class::Bulk, Some(account)), (Class::Transactional, Some(account))];
    assert_eq!(paused(Paused { accounts: vec![A], ..none() }), by(B));
    assert_eq!(paused(Paused { fallback: true, ..none() }), by(A));
    assert_eq!(paused(Paused { accounts: vec![A, B], ..none() }), []);
}

#[test]
fn a_paused_row_still_expires() {
    let mut row = due(Class::Bulk, 1);
    row.delivery.expires_at = at(1);
    let plan = ClaimPlan { paused: Paused { all: true, ..Paused::default() }, ..plan(&[wide(A)]) };
    let changes = judge(&Rules::default(), &plan, &[row], at(2));
    assert_eq!(changes[0].after.state, State::Expired);
}

/// Lanes whose two accounts share the messages, and whom this row is drawn for.
fn shared(rooms: [AccountCapacity; 2], weights: [u16; 2], id: crate::ids::DeliveryId) -> (ClaimPlan, AccountId) {
    let mut plan = plan(&rooms);
    let share = |(room, weight): (&AccountCapacity, u16)| Member { account: room.account, weight: Some(weight) };
    let route: Vec<Member> = rooms.iter().zip(weights).map(share).collect();
    let drawn = order(&route, id, |_| true)[0];
    plan.lanes.iter_mut().for_each(|lane| lane.route.clone_from(&route));
    (plan, drawn)
}

/// By whom a row goes whose drawn account is as `make` says, while the other is free.
fn with_drawn(candidate: Candidate, make: impl Fn(AccountId) -> AccountCapacity, after: u64) -> (Option<AccountId>, AccountId) {
    let (_, drawn) = shared([wide(A), wide(B)], [1, 1], candidate.delivery.id);
    let rooms = [A, B].map(|account| if account == drawn { make(account) } else { wide(account) });
    let (plan, _) = shared(rooms, [1, 1], candidate.delivery.id);
    let changes = judge(&Rules::default(), &plan, &[candidate], at(0).plus(std::time::Duration::from_secs(after)));
    (changes.first().and_then(|change| change.after.account), drawn)
}

#[test]
fn a_message_waits_a_while_for_the_account_that_it_is_drawn_for() {
    let busy = |account| room(account, 0, 0, 0);
    for ordinal in 1..20 {
        let by = |class, after| {
            let (by, drawn) = with_drawn(due(class, ordinal), busy, after);
            by.map(|by| by == drawn)
        };
        assert_eq!([by(Class::Transactional, 0), by(Class::Transactional, 4), by(Class::Transactional, 5)], [None, None, Some(false)]);
        assert_eq!([by(Class::Bulk, 5), by(Class::Bulk, 59), by(Class::Bulk, 60)], [None, None, Some(false)]);
        assert_eq!(by(Class::Critical, 0), Some(false), "a code waits for nobody");
        let (by, drawn) = with_drawn(due(Class::Bulk, ordinal), wide, 0);
        assert_eq!(by, Some(drawn));
    }
}

#[test]
fn nobody_waits_for_an_account_that_takes_nothing_soon() {
    let ill = |account| AccountCapacity { is_well: false, is_well_for_bulk: false, ..room(account, 0, 0, 0) };
    let out_of_bulk_calls = |account| AccountCapacity { is_well_for_bulk: false, ..room(account, 0, 0, 0) };
    let goes = |candidate, make: &dyn Fn(AccountId) -> AccountCapacity| with_drawn(candidate, make, 0).0.is_some();
    assert!(goes(due(Class::Transactional, 1), &ill) && goes(due(Class::Bulk, 1), &ill));
    assert!(goes(due(Class::Bulk, 1), &out_of_bulk_calls) && !goes(due(Class::Transactional, 1), &out_of_bulk_calls));
    let (mut plan, drawn) = shared([room(A, 0, 0, 0), room(B, 0, 0, 0)], [1, 1], due(Class::Bulk, 1).delivery.id);
    plan.accounts.iter_mut().filter(|room| room.account != drawn).for_each(|room| *room = wide(room.account));
    plan.paused.accounts = vec![drawn];
    assert_eq!(judge(&Rules::default(), &plan, &[due(Class::Bulk, 1)], at(0)).len(), 1, "it is paused");
}

#[test]
fn later_calls_and_messages_that_nobody_draws_for_wait_for_no_account() {
    let busy = |account| room(account, 0, 0, 0);
    let mut handed_back = due(Class::Bulk, 1);
    handed_back.delivery.attempt_number = 1;
    assert!(with_drawn(handed_back, busy, 0).0.is_some());
    let mut retry = failed_by(B);
    retry.delivery.account = Some(C);
    assert!(with_drawn(retry, busy, 0).0.is_some());
    // A route without weights, and one whose account with a weight may not carry it.
    assert_eq!(account_of(&[busy(A), wide(B)], due(Class::Bulk, 1)), Some(B));
    let (mut plan, _) = shared([busy(A), wide(B)], [1, 1], due(Class::Bulk, 1).delivery.id);
    plan.lanes.iter_mut().for_each(|lane| lane.route[1].weight = None);
    plan.owners = Owners::new([(A, Some(TenantId(9)))]);
    assert_eq!(judge(&Rules::default(), &plan, &[due(Class::Bulk, 1)], at(0))[0].after.account, Some(B));
}

proptest::proptest! {
    /// Whatever room there is: what goes out by weight goes where it goes without patience or waits, and once patience is over
    /// everything that finds room goes.
    #[test]
    fn weights_only_ever_delay(
        free in proptest::collection::vec(0_u16..4, 2), well: [bool; 2], weights in proptest::collection::vec(0_u16..10, 2), rows in 1_u16..12,
    ) {
        let rooms = [0, 1].map(|n| AccountCapacity { is_well_for_bulk: well[n], ..room([A, B][n], free[n], free[n], free[n]) });
        let candidates: Vec<_> = (1..=rows).map(|ordinal| due(Class::Bulk, ordinal)).collect();
        let (plan, _) = shared(rooms, [weights[0], weights[1]], candidates[0].delivery.id);
        let room = usize::from(free[0] + free[1]).min(candidates.len());
        let goes = |after: i64| judge(&Rules::default(), &plan, &candidates, at(after));
        let (early, late) = (goes(0), goes(60));
        proptest::prop_assert!(early.len() <= room);
        proptest::prop_assert_eq!(late.len(), room, "nothing is kept behind for ever");
        for change in early.iter().chain(&late) {
            proptest::prop_assert_eq!(change.after.state, State::Dispatching);
        }
        for by in [A, B] {
            let count = early.iter().filter(|change| change.after.account == Some(by)).count();
            let place = usize::from(by == B);
            proptest::prop_assert!(count <= usize::from(free[place]));
        }
        // What waits is drawn for an account that is well and full; its turn comes as soon as that has room.
        for candidate in candidates.iter().filter(|candidate| !early.iter().any(|change| change.after.id == candidate.delivery.id)) {
            let drawn = order(&plan.lanes[0].route, candidate.delivery.id, |_| true)[0];
            let filled = early.iter().filter(|change| change.after.account == Some(drawn)).count();
            let place = usize::from(drawn == B);
            proptest::prop_assert!(filled == usize::from(free[place]) && (well[place] || early.len() == room));
        }
    }
}
