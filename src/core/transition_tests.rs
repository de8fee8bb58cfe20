//! What outcomes do to a delivery, row by row.

use std::time::Duration;

use super::*;
use crate::delivery::EventType;
use crate::outcome::{NotSent, Outcome, Refusal, Report};
use crate::sample;
use crate::suppression::Note;
use crate::words::Class;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

fn waiting(class: Class) -> Delivery {
    let retry = Rules::default().of(class).retry;
    Delivery { class, attempt_limit: retry.attempts, expires_at: at(0).plus(retry.deadline), ..sample::waiting(at(0)) }
}

fn claimed(delivery: &Delivery, now: Timestamp) -> Delivery {
    dispatch(delivery, AccountId(1), InstanceId(1), now.plus(60 * SECOND), now).unwrap().after
}

fn outcome_of(delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Finish {
    Finish {
        id: delivery.id,
        number: delivery.attempt_number,
        generation: delivery.generation,
        account: AccountId(1),
        started_at: delivery.attempt_started_at.unwrap_or(now),
        finished_at: now,
        report: Report::new(outcome),
        jitter: 0.5,
        position: RoutePosition { is_failover: false, has_other: false, has_later: false },
        others: Vec::new(),
        receipt_window: None,
        sandbox: false,
        match_key: None,
        copies: None,
        of_copies: Vec::new(),
    }
}

fn facts(delivery: &Delivery) -> FinishFacts {
    FinishFacts { delivery: delivery.clone(), recorded: None, settled: false, accepted_generations: Vec::new(), tried: Vec::new() }
}

fn lost(delivery: &Delivery) -> FinishFacts {
    FinishFacts { recorded: Some(AttemptOutcome::Lost), ..facts(delivery) }
}

fn landed(delivery: &Delivery, outcome: Outcome, now: Timestamp) -> Delivery {
    finish(&Rules::default(), &facts(delivery), &outcome_of(delivery, outcome, now), now).unwrap().after
}

fn accepted() -> Outcome {
    Outcome::Accepted { message_id: Some("4F1A".into()), refused_copies: Vec::new() }
}

fn answered(retry_after: Option<Duration>) -> Outcome {
    Outcome::NotSent { why: NotSent::Answered, retry_after }
}

#[test]
fn an_accepted_call_is_accepted_unconfirmed_and_settled_where_nothing_reports() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    let change = finish(&Rules::default(), &facts(&delivery), &outcome_of(&delivery, accepted(), at(2)), at(2)).unwrap();
    assert_eq!((change.after.state, change.after.settled_at, change.after.attempt_count), (State::Accepted, Some(at(2)), 1));
    assert_eq!(change.after.certainty(), crate::state::Certainty::Unconfirmed);
    assert_eq!(change.events.iter().map(|e| e.kind).collect::<Vec<_>>(), [EventType::Accepted]);
    assert_eq!(change.attempt.map(|a| (a.number, a.accepted_at)), Some((1, Some(at(2)))));
}

#[test]
fn an_answered_refusal_counts_and_the_last_one_ends_it() {
    let mut delivery = waiting(Class::Critical);
    delivery.expires_at = at(100_000);
    for attempt in 1..=8 {
        delivery = landed(&claimed(&delivery, at(1)), answered(None), at(1));
        assert_eq!(delivery.attempts_used, attempt);
    }
    assert_eq!((delivery.state, delivery.reason), (State::Dead, Some(Reason::AttemptsExhausted)));
}

#[test]
fn calls_that_found_nobody_are_limited_by_age_alone() {
    let mut delivery = waiting(Class::Critical);
    let (mut now, mut calls) = (at(1), 0);
    while delivery.state.is_open() {
        delivery = landed(&claimed(&delivery, now), Outcome::NotSent { why: NotSent::Unreachable, retry_after: None }, now);
        calls += 1;
        now = delivery.available_at.unwrap_or(now);
        assert!(now < at(600));
    }
    assert_eq!((delivery.state, delivery.reason, delivery.attempts_used), (State::Expired, Some(Reason::Deadline), 0));
    assert!(calls > 40, "{calls} calls in ten minutes at 15 s or less");
}

#[test]
fn a_delay_that_the_provider_asks_for_is_a_minimum_and_ends_what_expires_before() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    assert_eq!(landed(&delivery, answered(Some(300 * SECOND)), at(2)).available_at, Some(at(302)));
    let late = landed(&delivery, answered(Some(86_400 * SECOND)), at(2));
    assert_eq!((late.state, late.reason), (State::Expired, Some(Reason::Deadline)));
}

#[test]
fn throttling_and_credentials_use_no_attempt() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    for outcome in [Outcome::Throttled { retry_after: Some(5 * SECOND) }, Outcome::Credential] {
        let after = landed(&delivery, outcome, at(2));
        assert_eq!((after.state, after.attempts_used, after.attempt_count), (State::RetryWait, 0, 1));
    }
}

#[test]
fn what_never_started_is_handed_back_uncounted() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    let after = landed(&delivery, Outcome::NotStarted, at(2));
    assert_eq!((after.state, after.attempt_count, after.available_at), (State::Queued, 0, Some(at(2))));
    let called = landed(&claimed(&after, at(3)), answered(None), at(4));
    assert_eq!(landed(&claimed(&called, at(5)), Outcome::NotStarted, at(6)).state, State::RetryWait);
}

#[test]
fn a_refused_sender_moves_to_the_next_account_and_fails_behind_the_last() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    let refused = Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused };
    let mut item = outcome_of(&delivery, refused.clone(), at(2));
    item.position = RoutePosition { is_failover: false, has_other: true, has_later: true };
    item.others = vec![AccountId(2)];
    let next = finish(&Rules::default(), &facts(&delivery), &item, at(2)).unwrap().after;
    assert_eq!((next.state, next.available_at, next.attempts_used), (State::RetryWait, Some(at(2)), 0));
    let last = landed(&delivery, refused, at(2));
    assert_eq!((last.state, last.reason), (State::Failed, Some(Reason::SenderRefused)));
}

#[test]
fn a_refused_sender_goes_around_the_route_once() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    let mut item = outcome_of(&delivery, Outcome::Refused { by: Refusal::Sender, reason: Reason::SenderRefused }, at(2));
    // The last of the route, where it began because the others had no room.
    item.position = RoutePosition { is_failover: true, has_other: true, has_later: false };
    item.others = vec![AccountId(2), AccountId(3)];
    let after = |tried: &[(AccountId, AttemptOutcome)]| {
        let facts = FinishFacts { tried: tried.to_vec(), ..facts(&delivery) };
        finish(&Rules::default(), &facts, &item, at(2)).unwrap().after.state
    };
    let (two, three) = (AccountId(2), AccountId(3));
    assert_eq!(after(&[]), State::RetryWait);
    assert_eq!(after(&[(two, AttemptOutcome::SenderRefused)]), State::RetryWait);
    assert_eq!(after(&[(two, AttemptOutcome::SenderRefused), (three, AttemptOutcome::NotSent)]), State::RetryWait, "it may take it yet");
    assert_eq!(after(&[(two, AttemptOutcome::SenderRefused), (three, AttemptOutcome::RequestRefused)]), State::Failed);
}

#[test]
fn a_code_that_began_at_the_last_account_goes_on_to_the_first_at_once() {
    let delivery = claimed(&waiting(Class::Critical), at(1));
    let mut item = outcome_of(&delivery, answered(None), at(2));
    item.position = RoutePosition { is_failover: true, has_other: true, has_later: false };
    item.others = vec![AccountId(2)];
    let due = |tried: &[(AccountId, AttemptOutcome)]| {
        let facts = FinishFacts { tried: tried.to_vec(), ..facts(&delivery) };
        finish(&Rules::default(), &facts, &item, at(2)).unwrap().after.available_at
    };
    assert_eq!(due(&[]), Some(at(2)));
    assert!(due(&[(AccountId(2), AttemptOutcome::NotSent)]) > Some(at(2)), "the next round waits");
}

#[test]
fn a_silent_provider_gets_what_the_class_says_and_no_more() {
    for (class, sends) in [(Class::Critical, 2), (Class::Transactional, 2), (Class::Bulk, 1)] {
        let rules = Rules::default();
        let (mut delivery, mut now, mut calls) = (waiting(class), at(1), 0);
        delivery.expires_at = at(1_000_000);
        while delivery.state.is_open() {
            if delivery.state.is_waiting() {
                calls += 1;
                delivery = landed(&claimed(&delivery, now), Outcome::Ambiguous, now);
                assert_eq!(delivery.check_at, Some(now.plus(rules.of(class).ambiguity.hold)));
            } else {
                assert_eq!(check(&rules, &delivery, false, now), None, "the hold is not over");
                now = delivery.check_at.unwrap();
                delivery = check(&rules, &delivery, false, now).unwrap().after;
            }
        }
        assert_eq!((calls, delivery.state, delivery.reason), (sends, State::Unknown, Some(Reason::HoldOver)), "{class}");
        assert_eq!(delivery.flags.has(Flags::POSSIBLE_DUPLICATE), sends == 2);
    }
}

#[test]
fn a_lost_lease_is_ambiguous_and_two_are_poison() {
    let rules = Rules::default();
    let mut delivery = waiting(Class::Critical);
    delivery.expires_at = at(1_000_000);
    let mut running = claimed(&delivery, at(1));
    for losses in 1..=2 {
        let reaped = reap(&rules, &running, false, at(100)).unwrap();
        assert_eq!(reaped.attempt.unwrap().outcome, AttemptOutcome::Lost);
        let reaped = reaped.after;
        assert_eq!((reaped.state, reaped.lost_count, reaped.unresolved), (State::Ambiguous, losses, losses));
        assert_eq!(reaped.ambiguous_since, running.lease_expires_at, "the hold counts from the lease's end");
        delivery = check(&rules, &reaped, false, at(1_000)).unwrap().after;
        running = if losses == 1 { claimed(&delivery, at(2)) } else { running };
    }
    assert_eq!((delivery.state, delivery.reason), (State::Unknown, Some(Reason::Poison)));
}

#[test]
fn the_owners_own_late_word_resolves_what_the_reaper_called_ambiguous() {
    let rules = Rules::default();
    let running = claimed(&waiting(Class::Transactional), at(1));
    let reaped = reap(&rules, &running, false, at(100)).unwrap().after;

    let taken = finish(&rules, &lost(&reaped), &outcome_of(&running, accepted(), at(101)), at(101)).unwrap();
    assert_eq!((taken.after.state, taken.after.unresolved, taken.after.attempt_count), (State::Accepted, 0, 1));
    assert!(taken.attempt.unwrap().late);

    let back = finish(&rules, &lost(&reaped), &outcome_of(&running, Outcome::NotStarted, at(101)), at(101)).unwrap().after;
    assert_eq!((back.state, back.unresolved, back.attempt_count), (State::Queued, 0, 0));
}

#[test]
fn a_late_acceptance_stops_the_resend_and_after_it_tells_of_the_double() {
    let rules = Rules::default();
    let mut delivery = waiting(Class::Critical);
    delivery.expires_at = at(1_000_000);
    let first = claimed(&delivery, at(1));
    let reaped = reap(&rules, &first, false, at(100)).unwrap().after;
    let resend = check(&rules, &reaped, false, at(1_000)).unwrap().after;
    assert_eq!((resend.state, resend.generation), (State::RetryWait, 2));
    let first_was_taken = outcome_of(&first, accepted(), at(1_001));

    let stopped = finish(&rules, &lost(&resend), &first_was_taken, at(1_001)).unwrap().after;
    assert_eq!((stopped.state, stopped.generation, stopped.unresolved), (State::Accepted, 1, 0));

    let second = claimed(&resend, at(1_002));
    assert!(second.flags.has(Flags::POSSIBLE_DUPLICATE));
    let kept = finish(&rules, &lost(&second), &first_was_taken, at(1_003)).unwrap();
    assert_eq!((kept.after.state, kept.after.unresolved, kept.events.len()), (State::Dispatching, 0, 0));
    let with_evidence = FinishFacts { accepted_generations: vec![1], ..facts(&kept.after) };
    let not_taken = finish(&rules, &with_evidence, &outcome_of(&second, answered(None), at(1_004)), at(1_004)).unwrap().after;
    assert_eq!(not_taken.state, State::Accepted, "the earlier acceptance is the truth");
    let doubled = finish(&rules, &with_evidence, &outcome_of(&second, accepted(), at(1_004)), at(1_004)).unwrap();
    assert!(doubled.after.flags.has(Flags::DUPLICATE_SENT));
    assert_eq!(doubled.events.iter().map(|e| e.kind).collect::<Vec<_>>(), [EventType::Accepted, EventType::DuplicateSent]);
}

#[test]
fn an_end_never_says_not_sent_while_an_earlier_call_is_open() {
    let rules = Rules::default();
    let mut delivery = waiting(Class::Critical);
    delivery.expires_at = at(1_000_000);
    let first = claimed(&delivery, at(1));
    let resend = check(&rules, &reap(&rules, &first, false, at(100)).unwrap().after, false, at(1_000)).unwrap().after;
    let refused = Outcome::Refused { by: Refusal::Recipient { listed: false, hard: true }, reason: Reason::RecipientRefused };
    let ended = landed(&claimed(&resend, at(1_001)), refused, at(1_002));
    assert_eq!((ended.state, ended.reason), (State::Unknown, Some(Reason::Refused)));

    let denial = outcome_of(&first, answered(None), at(1_003));
    let resolved = finish(&rules, &lost(&ended), &denial, at(1_003)).unwrap().after;
    assert_eq!((resolved.state, resolved.unresolved), (State::Failed, 0), "the last open call was not taken either");
}

#[test]
fn the_same_outcome_twice_is_written_once() {
    let running = claimed(&waiting(Class::Transactional), at(1));
    let item = outcome_of(&running, accepted(), at(2));
    let after = finish(&Rules::default(), &facts(&running), &item, at(2)).unwrap().after;
    let again = FinishFacts {
        delivery: after,
        recorded: Some(AttemptOutcome::Accepted),
        settled: false,
        accepted_generations: vec![1],
        tried: Vec::new(),
    };
    assert_eq!(finish(&Rules::default(), &again, &item, at(3)), None);
}

#[test]
fn what_is_late_or_past_its_deadline_is_not_sent() {
    let rules = Rules::default();
    let mut scheduled = waiting(Class::Bulk);
    scheduled.state = State::Scheduled;
    assert_eq!(expire(&rules, &scheduled, at(7_200)), None);
    assert_eq!(expire(&rules, &scheduled, at(7_201)).map(|c| (c.after.state, c.after.reason)), Some((State::Expired, Some(Reason::Late))));
    let queued = waiting(Class::Critical);
    assert_eq!(expire(&rules, &queued, at(599)), None);
    assert_eq!(expire(&rules, &queued, at(600)).map(|c| (c.after.state, c.after.reason)), Some((State::Expired, Some(Reason::Deadline))));
}

#[test]
fn a_message_that_cannot_be_built_twice_is_dead() {
    let once = landed(&claimed(&waiting(Class::Bulk), at(1)), Outcome::BuildFailed, at(1));
    assert_eq!((once.state, once.attempt_count), (State::RetryWait, 0));
    let twice = landed(&claimed(&once, at(60)), Outcome::BuildFailed, at(60));
    assert_eq!((twice.state, twice.reason), (State::Dead, Some(Reason::RenderError)));
}

#[test]
fn a_hard_refusal_imposes_a_suppression_whenever_it_comes() {
    let delivery = claimed(&waiting(Class::Transactional), at(1));
    let refused = |hard| Outcome::Refused { by: Refusal::Recipient { listed: false, hard }, reason: Reason::RecipientRefused };
    let change = |facts: &FinishFacts, outcome| finish(&Rules::default(), facts, &outcome_of(&delivery, outcome, at(2)), at(2)).unwrap();
    let imposes = |change: &Change| matches!(change.suppression, Some(Note::Imposes(_)));
    let now = change(&facts(&delivery), refused(true));
    assert!(now.after.state == State::Failed && imposes(&now));
    assert!(!imposes(&change(&facts(&delivery), refused(false))));
    assert!(!imposes(&change(&facts(&delivery), accepted())));
    // The lease was lost and the row has moved on: what was said about the mailbox is true all the same.
    let reaped = reap(&Rules::default(), &delivery, false, at(100)).unwrap().after;
    let moved_on = check(&Rules::default(), &reaped, false, at(4_000)).unwrap().after;
    let late = change(&lost(&moved_on), refused(true));
    assert!(late.after.state == moved_on.state && imposes(&late));
}
