//! What acts do, row by row, and what no act may do.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::delivery::{EventType, Flags};
use crate::ids::AccountId;
use crate::policy::REPLAY_WINDOW;
use crate::sample;
use crate::words::AttemptOutcome;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

fn in_state(state: State) -> ActFacts {
    let id = NotificationId::new(at(0), [1; 10]).delivery(1);
    let called = !matches!(state, State::Queued | State::Scheduled | State::Cancelled | State::Superseded | State::Suppressed);
    let unresolved = matches!(state, State::Ambiguous | State::Unknown);
    let accepted = matches!(state, State::Accepted | State::Delivered | State::Bounced);
    let delivery = Delivery {
        id,
        state,
        version: 5,
        attempt_number: u16::from(called),
        attempt_count: u16::from(called),
        attempts_used: 3,
        attempt_limit: 4,
        lost_count: 1,
        build_failures: 1,
        unresolved: u16::from(unresolved),
        available_at: state.is_waiting().then_some(at(0)),
        lease_expires_at: (state == State::Dispatching).then_some(at(60)),
        account: called.then_some(AccountId(1)),
        ambiguous_since: (state == State::Ambiguous).then_some(at(1)),
        check_at: (state == State::Ambiguous).then_some(at(1_801)),
        expires_at: at(86_400),
        settled_at: (!state.is_open()).then_some(at(5)),
        ..sample::waiting(at(0))
    };
    let attempt = AttemptRecord {
        number: 1,
        generation: 1,
        account: Some(AccountId(1)),
        started_at: at(1),
        finished_at: Some(at(2)),
        outcome: match (accepted, unresolved) {
            (true, _) => AttemptOutcome::Accepted,
            (_, true) => AttemptOutcome::Ambiguous,
            _ => AttemptOutcome::NotSent,
        },
        accepted_at: accepted.then_some(at(2)),
        late: false,
        provider_code: None,
        provider_message_id: None,
        match_key: None,
        detail: None,
    };
    ActFacts {
        delivery,
        attempts: called.then_some(attempt).into_iter().collect(),
        message_id: Some(format!("{id}@shop.example")),
        has_content: true,
        replays: 0,
        send_at: None,
        expires_at: at(86_400),
    }
}

fn act(verb: Verb) -> Act {
    let target = Target::Delivery(NotificationId::new(at(0), [1; 10]).delivery(1));
    Act { tenant: TenantId(1), mode: Mode::Live, target, verb, if_version: None, actor: "key".into(), note: Some("why".into()) }
}

fn decided(verb: Verb, facts: &ActFacts) -> Decision {
    decide(&Rules::default(), &act(verb), std::slice::from_ref(facts), at(10))
}

/// The delivery after the one change that there is.
fn after(decision: &Decision) -> &Delivery {
    assert_eq!((decision.changes.len(), decision.answer), (1, Ok(())));
    &decision.changes[0].change.after
}

const fn again(generation: Option<u16>) -> Verb {
    Verb::Resend(Resend { generation, expires_in: None, replay: None })
}

const CANCEL: Verb = Verb::Cancel(Reason::CancelledByRequest);

#[test]
fn a_cancel_stops_what_waits_and_forbids_the_next_call_of_what_does_not() {
    for state in [State::Queued, State::Scheduled, State::RetryWait, State::Deferred] {
        let decision = decided(CANCEL, &in_state(state));
        assert_eq!((after(&decision).state, after(&decision).reason), (State::Cancelled, Some(Reason::CancelledByRequest)));
    }
    for state in [State::Dispatching, State::Ambiguous] {
        let decision = decided(CANCEL, &in_state(state));
        assert_eq!(decision.answer, Err(Refusal::AlreadyDispatched(state)));
        let change = &decision.changes[0].change;
        assert_eq!((change.after.state, change.after.no_resend), (state, Some(Reason::CancelledByRequest)));
        assert!(change.events.is_empty());
        let again = ActFacts { delivery: change.after.clone(), ..in_state(state) };
        assert!(decided(CANCEL, &again).changes.is_empty(), "asked for twice, it is written once");
    }
}

#[test]
fn a_cancelled_delivery_with_an_open_call_does_not_say_that_it_was_not_sent() {
    let mut facts = in_state(State::RetryWait);
    facts.delivery.unresolved = 1;
    let decision = decided(CANCEL, &facts);
    assert_eq!((after(&decision).state, after(&decision).reason), (State::Unknown, Some(Reason::Cancelled)));
    let stopped = ActFacts { delivery: after(&decision).clone(), ..facts };
    assert_eq!(decided(CANCEL, &stopped), Decision { changes: Vec::new(), answer: Ok(()) });
}

#[test]
fn a_notification_is_cancelled_as_far_as_it_goes() {
    let facts = [in_state(State::Dispatching), in_state(State::Queued), in_state(State::Delivered)];
    let decision = decide(&Rules::default(), &act(CANCEL), &facts, at(10));
    assert_eq!((decision.answer, decision.changes.len()), (Ok(()), 2));
    let none = [in_state(State::Dispatching), in_state(State::Delivered)];
    let decision = decide(&Rules::default(), &act(CANCEL), &none, at(10));
    assert_eq!(decision.answer, Err(Refusal::AlreadyDispatched(State::Dispatching)));
}

#[test]
fn a_version_that_has_passed_changes_nothing() {
    let stale = Act { if_version: Some(4), ..act(CANCEL) };
    let decision = decide(&Rules::default(), &stale, &[in_state(State::Queued)], at(10));
    assert_eq!(decision, Decision::refused(Refusal::StaleVersion));
    let sum = Act { if_version: Some(10), ..act(CANCEL) };
    assert!(decide(&Rules::default(), &sum, &[in_state(State::Queued), in_state(State::Queued)], at(10)).answer.is_ok());
    assert_eq!(decide(&Rules::default(), &act(CANCEL), &[], at(10)).answer, Err(Refusal::NotFound));
}

#[test]
fn a_new_time_takes_the_usual_deadline_along_and_obeys_the_callers_own() {
    let facts = in_state(State::Queued);
    let decision = decided(Verb::Reschedule(Some(at(500_000))), &facts);
    let moved = after(&decision);
    assert_eq!((moved.state, moved.available_at, moved.expires_at), (State::Scheduled, Some(at(500_000)), at(586_400)));
    assert_eq!(decision.changes[0].send_at, Some(at(500_000)));

    let mut own = in_state(State::Scheduled);
    own.expires_at = at(600);
    own.delivery.expires_at = at(600);
    assert_eq!(decided(Verb::Reschedule(Some(at(600))), &own).answer, Err(Refusal::PastDeadline(at(600))));
    let decision = decided(Verb::Reschedule(Some(at(599))), &own);
    assert_eq!((after(&decision).available_at, after(&decision).expires_at), (Some(at(599)), at(600)));
    let decision = decided(Verb::Reschedule(None), &own);
    assert_eq!((after(&decision).state, after(&decision).available_at), (State::Queued, Some(at(10))));
    let mut ordered = own.clone();
    ordered.delivery.is_ordered = true;
    assert_eq!(decided(Verb::Reschedule(Some(at(500))), &ordered).answer, Err(Refusal::Ordered));
    ordered.delivery.blocked = true;
    assert_eq!(decided(Verb::Reschedule(None), &ordered), Decision { changes: Vec::new(), answer: Ok(()) }, "it waits for its turn");
    let moved = ActFacts { delivery: after(&decision).clone(), ..own };
    assert_eq!(decided(Verb::Reschedule(None), &moved), Decision { changes: Vec::new(), answer: Ok(()) });
}

#[test]
fn what_was_called_is_not_moved() {
    for state in State::ALL.iter().filter(|state| !matches!(state, State::Queued | State::Scheduled)) {
        assert_eq!(decided(Verb::Reschedule(None), &in_state(*state)).answer, Err(Refusal::AlreadyDispatched(*state)));
    }
    let mut tried = in_state(State::Queued);
    tried.delivery.attempt_count = 1;
    assert_eq!(decided(Verb::Reschedule(None), &tried).answer, Err(Refusal::AlreadyDispatched(State::Queued)));
}

#[test]
fn an_operator_settles_what_nobody_answered_for() {
    for state in [State::Ambiguous, State::Unknown] {
        let decision = decided(Verb::Resolve(Finding::Sent), &in_state(state));
        let sent = after(&decision);
        assert_eq!((sent.state, sent.unresolved, sent.settled_at, sent.reason), (State::Accepted, 0, Some(at(10)), None));
        assert_eq!(sent.certainty(), crate::state::Certainty::Confirmed);
        let change = &decision.changes[0].change;
        assert_eq!(change.attempt.as_ref().unwrap().accepted_at, Some(at(10)));
        assert_eq!(change.events[0].kind, EventType::Accepted);
        assert!(decision.changes[0].settles_attempts);
        let settled = ActFacts { delivery: sent.clone(), ..in_state(state) };
        assert_eq!(decided(Verb::Resolve(Finding::Sent), &settled), Decision { changes: Vec::new(), answer: Ok(()) });
        assert_eq!(decided(Verb::Resolve(Finding::NotSent), &settled).answer, Err(Refusal::OutcomeKnown(State::Accepted)));
    }
    let decision = decided(Verb::Resolve(Finding::NotSent), &in_state(State::Ambiguous));
    let back = after(&decision);
    assert_eq!((back.state, back.available_at, back.generation, back.unresolved), (State::RetryWait, Some(at(10)), 1, 0));
    let decision = decided(Verb::Resolve(Finding::NotSent), &in_state(State::Unknown));
    assert_eq!((after(&decision).state, after(&decision).reason), (State::Failed, Some(Reason::ResolvedNotSent)));
    let mut expired = in_state(State::Ambiguous);
    expired.delivery.expires_at = at(10);
    assert_eq!(after(&decided(Verb::Resolve(Finding::NotSent), &expired)).state, State::Failed);
    assert_eq!(
        decided(Verb::Resolve(Finding::Sent), &in_state(State::Dispatching)).answer,
        Err(Refusal::OutcomeUnresolved(State::Dispatching))
    );
}

#[test]
fn a_dead_delivery_is_opened_again_as_the_same_generation() {
    for state in [State::Dead, State::Expired, State::Failed] {
        for generation in [None, Some(1)] {
            let decision = decided(again(generation), &in_state(state));
            let open = after(&decision);
            assert_eq!((open.state, open.generation, open.available_at), (State::Queued, 1, Some(at(10))));
            assert_eq!((open.attempts_used, open.attempt_limit, open.lost_count, open.build_failures), (0, 10, 0, 0));
            assert_eq!((open.attempt_number, open.expires_at), (1, at(10 + 86_400)));
            assert!(!open.flags.has(Flags::POSSIBLE_DUPLICATE));
            assert_eq!(decision.changes[0].message_id, None);
        }
    }
}

#[test]
fn what_was_or_may_have_been_taken_is_sent_again_by_name_only_and_flagged() {
    for state in [State::Accepted, State::Delivered, State::Bounced, State::Unknown] {
        let facts = in_state(state);
        assert_eq!(decided(again(None), &facts).answer, Err(Refusal::GenerationMissing(2)));
        assert_eq!(decided(again(Some(1)), &facts), Decision { changes: Vec::new(), answer: Ok(()) });
        assert_eq!(decided(again(Some(3)), &facts).answer, Err(Refusal::GenerationAhead(2)));
        let decision = decided(again(Some(2)), &facts);
        let open = after(&decision);
        assert_eq!((open.state, open.generation), (State::Queued, 2));
        assert!(open.flags.has(Flags::POSSIBLE_DUPLICATE) && !open.flags.has(Flags::CONFIRMED));
        assert_eq!(open.flags.has(Flags::ASKED_AGAIN), state != State::Unknown, "late evidence of an unknown send still stops this one");
        assert_eq!(decision.changes[0].message_id, Some(format!("{}_2@shop.example", open.id)));
        let asked = ActFacts { delivery: open.clone(), ..facts };
        assert_eq!(decided(again(Some(2)), &asked), Decision { changes: Vec::new(), answer: Ok(()) });
    }
}

#[test]
fn a_failure_after_an_acceptance_is_not_certainly_unsent() {
    let mut facts = in_state(State::Failed);
    facts.attempts[0].accepted_at = Some(at(2));
    assert_eq!(decided(again(None), &facts).answer, Err(Refusal::GenerationMissing(2)));
}

#[test]
fn nothing_is_sent_again_after_its_window_or_without_its_content() {
    let mut facts = in_state(State::Dead);
    facts.has_content = false;
    assert_eq!(decided(again(None), &facts).answer, Err(Refusal::ContentErased));
    let facts = in_state(State::Dead);
    let last = at(5).plus(REPLAY_WINDOW);
    let when = |now| decide(&Rules::default(), &act(again(None)), std::slice::from_ref(&facts), now).answer;
    assert_eq!((when(last), when(last.plus(Duration::from_micros(1)))), (Ok(()), Err(Refusal::ReplayWindowClosed)));
}

#[test]
fn a_replay_is_paced_counted_and_never_sends_what_may_have_been_sent() {
    let replay = Verb::Resend(Resend { replay: Some(Duration::from_secs(7)), ..Resend::default() });
    let decision = decided(replay, &in_state(State::Dead));
    assert_eq!((after(&decision).available_at, decision.changes[0].replayed), (Some(at(17)), true));
    assert_eq!(decided(replay, &in_state(State::Unknown)).answer, Err(Refusal::OutcomeUnresolved(State::Unknown)));
    let often = ActFacts { replays: 3, ..in_state(State::Dead) };
    assert_eq!(decided(replay, &often).answer, Err(Refusal::ReplayedTooOften));
    assert!(decided(again(None), &often).answer.is_ok(), "one at a time is a decision each");
}

#[test]
fn a_discarded_delivery_stays_what_it_is() {
    for state in [State::Dead, State::Unknown] {
        let decision = decided(Verb::Discard, &in_state(state));
        let gone = after(&decision).clone();
        assert_eq!((gone.state, gone.reason, gone.needs_attention()), (state, Some(Reason::Discarded), false));
        let gone = ActFacts { delivery: gone, ..in_state(state) };
        assert_eq!(decided(Verb::Discard, &gone), Decision { changes: Vec::new(), answer: Ok(()) });
    }
    assert_eq!(decided(Verb::Discard, &in_state(State::Accepted)).answer, Err(Refusal::NotFound));
}

#[test]
fn the_audit_log_hears_of_what_changed_and_of_nothing_else() {
    let verb = again(None);
    let decision = decided(verb, &in_state(State::Dead));
    let entry = AuditEntry::of(&act(verb), &decision).unwrap();
    assert_eq!((entry.action.as_str(), entry.actor.as_str()), ("delivery.resend", "key"));
    assert!(entry.detail.contains(r#""reason":"why""#) && entry.detail.contains(r#""from":"dead","to":"queued""#), "{}", entry.detail);
    assert_eq!(AuditEntry::of(&act(CANCEL), &decided(CANCEL, &in_state(State::Cancelled))), None);
}

#[test]
fn acts_on_one_delivery_run_one_after_another() {
    let (one, other) = (NotificationId::new(at(0), [1; 10]), NotificationId::new(at(0), [2; 10]));
    let on = |target| Act { target, ..act(CANCEL) };
    let (first, second) = (Target::Delivery(one.delivery(1)), Target::Delivery(one.delivery(2)));
    let acts = [on(first), on(second), on(first), on(Target::Notification(one)), on(Target::Notification(other)), on(second)];
    assert_eq!(rounds(&acts), [vec![0, 1, 4], vec![2], vec![3], vec![5]]);
}

fn verbs() -> impl Strategy<Value = Verb> {
    prop_oneof![
        Just(CANCEL),
        proptest::option::of(-100_i64..100_000).prop_map(|seconds| Verb::Reschedule(seconds.map(at))),
        select(Finding::ALL).prop_map(Verb::Resolve),
        (proptest::option::of(0_u16..4), any::<bool>()).prop_map(|(generation, paced)| {
            Verb::Resend(Resend { generation, expires_in: None, replay: paced.then_some(Duration::from_secs(1)) })
        }),
        Just(Verb::Discard),
    ]
}

proptest! {
    #[test]
    fn no_act_breaks_a_row(state in select(State::ALL), verb in verbs(), unresolved in 0_u16..3, has_content: bool) {
        let mut facts = in_state(state);
        facts.has_content = has_content;
        if state.is_open() || state == State::Unknown {
            facts.delivery.unresolved = unresolved;
        }
        let before = facts.delivery.clone();
        let decision = decided(verb, &facts);
        for acting in &decision.changes {
            let now = &acting.change.after;
            prop_assert_eq!(&acting.change.before, &before);
            prop_assert_eq!(now.version, before.version + 1);
            prop_assert!(now.attempt_number == before.attempt_number && now.generation >= before.generation);
            prop_assert!(now.class == before.class, "a resend keeps its class");
            prop_assert_eq!(now.state.is_waiting(), now.available_at.is_some());
            prop_assert_eq!(now.state == State::Ambiguous, now.check_at.is_some());
            prop_assert_eq!(now.state == State::Dispatching, now.lease_expires_at.is_some());
            prop_assert_eq!(now.state.is_open(), now.settled_at.is_none());
            let says_not_sent = matches!(now.state, State::Cancelled | State::Failed | State::Dead);
            prop_assert!(!says_not_sent || now.unresolved == 0);
            prop_assert!(has_content || !now.state.is_open() || before.state.is_open());
        }
        // Asked for again, nothing more is sent: neither a second change of the generation nor a second row.
        if let [acting] = &decision.changes[..] {
            let again = decided(verb, &ActFacts { delivery: acting.change.after.clone(), ..facts });
            prop_assert!(again.changes.iter().all(|twice| twice.change.after.generation == acting.change.after.generation));
        }
    }
}
