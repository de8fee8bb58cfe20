//! How notifications stand, what deliveries wait for, and what people are told of both.

use super::*;
use crate::sample;
use proptest::prelude::*;
use proptest::sample::select;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn delivery(state: State) -> Delivery {
    Delivery { state, available_at: state.is_waiting().then_some(NOW), expires_at: NOW, ..sample::waiting(NOW) }
}

#[test]
fn the_status_of_mixed_ends_is_the_documented_one() {
    use State::*;
    for (states, status) in [
        (&[Queued][..], Status::Processing),
        (&[Scheduled], Status::Scheduled),
        (&[Scheduled, Delivered, Bounced], Status::Scheduled),
        (&[Scheduled, Queued], Status::Processing),
        (&[Ambiguous, Delivered], Status::Processing),
        (&[Accepted, Accepted], Status::Accepted),
        (&[Accepted, Delivered], Status::Accepted),
        (&[Delivered, Delivered], Status::Delivered),
        (&[Failed, Bounced, Dead], Status::Failed),
        (&[Delivered, Bounced], Status::PartiallyFailed),
        (&[Accepted, Unknown], Status::PartiallyFailed),
        (&[Suppressed, Suppressed], Status::Suppressed),
        (&[Suppressed, Expired], Status::Failed),
        (&[Suppressed, Unknown], Status::Unknown),
        (&[Unknown], Status::Unknown),
        (&[Superseded], Status::Superseded),
        (&[Cancelled], Status::Cancelled),
    ] {
        assert_eq!(Status::of(states.iter().copied()), status, "{states:?}");
    }
}

#[test]
fn its_own_timer_is_named_before_what_holds_up_the_lane_unless_nobody_may_send_it() {
    let held = Some(WaitReason::NoAccount);
    for (state, ahead, reason) in [
        (State::Scheduled, true, Some(WaitReason::Scheduled)),
        (State::RetryWait, true, held),
        (State::Deferred, true, Some(WaitReason::QuietHours)),
        (State::Queued, false, held),
        (State::Scheduled, false, held),
        (State::Dispatching, false, None),
        (State::Accepted, false, None),
    ] {
        let mut delivery = delivery(state);
        delivery.available_at = delivery.available_at.map(|at| if ahead { at.plus(std::time::Duration::from_secs(1)) } else { at });
        assert_eq!(wait_reason(&delivery, held, NOW), reason, "{state}");
    }
    let blocked = Delivery { blocked: true, ..delivery(State::Queued) };
    assert_eq!(wait_reason(&blocked, held, NOW), Some(WaitReason::Order));
    assert_eq!(wait_reason(&delivery(State::Queued), None, NOW), None);
    let mut later = delivery(State::RetryWait);
    later.available_at = Some(NOW.plus(std::time::Duration::from_secs(1)));
    assert_eq!(wait_reason(&later, Some(WaitReason::Paused), NOW), Some(WaitReason::Backoff));
}

#[test]
fn a_retry_says_when_and_by_whom() {
    let around = Circumstances { waits_for: Some(WaitReason::Backoff), account: Some("relay"), next_account: Some("relay") };
    assert_eq!(summary(&delivery(State::RetryWait), &around), "will be tried again at 2027-01-15 08:00:00 UTC by relay");
}

#[test]
fn what_may_be_doubled_is_said_in_every_state() {
    for state in State::ALL {
        let mut delivery = delivery(*state);
        delivery.flags = Flags::POSSIBLE_DUPLICATE;
        assert!(summary(&delivery, &Circumstances::default()).ends_with("; it may have been sent twice"), "{state}");
    }
}

#[test]
fn sentences_for_all_states_and_reasons() {
    let mut text = String::new();
    let around = Circumstances { account: Some("relay"), ..Circumstances::default() };
    for state in State::ALL {
        writeln!(text, "{state}: {}", summary(&delivery(*state), &around)).unwrap();
    }
    for reason in Reason::ALL {
        let failed = Delivery { reason: Some(*reason), ..delivery(State::Failed) };
        writeln!(text, "failed/{reason}: {}", summary(&failed, &around)).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_route_is_held_up_by_what_is_over_first() {
    use WaitReason::*;
    for (accounts, reason) in [
        (&[][..], Some(NoAccount)),
        (&[None], None),
        (&[Some(Rate)], Some(Rate)),
        (&[Some(Credential), None], None),
        (&[Some(Credential), Some(Rate)], Some(Rate)),
        (&[Some(Breaker), Some(Paused)], Some(Breaker)),
        (&[Some(Credential), Some(Paused)], Some(Paused)),
    ] {
        assert_eq!(held_by(accounts.iter().copied()), reason, "{accounts:?}");
    }
}

#[test]
fn every_state_reason_and_wait_has_one_plain_sentence() {
    for state in State::ALL {
        for reason in std::iter::once(None).chain(Reason::ALL.iter().copied().map(Some)) {
            for waits_for in std::iter::once(None).chain(WaitReason::ALL.iter().copied().map(Some)) {
                let delivery = Delivery { reason, ..delivery(*state) };
                let around = Circumstances { waits_for, account: Some("relay"), next_account: None };
                let text = summary(&delivery, &around);
                let is_plain =
                    text.len() > 8 && text.starts_with(char::is_lowercase) && text.is_ascii() && !text.contains(['_', '\n', '@']);
                assert!(is_plain, "{state} {reason:?} {waits_for:?}: {text}");
            }
        }
    }
}

/// The documented derivation, word by word: over the open ones, then over the kinds of ends.
fn documented(states: &[State]) -> Status {
    use State::*;
    let open: Vec<_> = states.iter().filter(|state| state.is_open()).collect();
    if !open.is_empty() {
        return if open.iter().all(|state| **state == Scheduled) { Status::Scheduled } else { Status::Processing };
    }
    let kind = |state: &State| match state {
        Failed | Bounced | Dead => "failed",
        other => other.as_str(),
    };
    let all = |word: &str| states.iter().all(|state| kind(state) == word);
    let is_good = |state: &State| matches!(state, Accepted | Delivered);
    match kind(&states[0]).parse() {
        Ok(one) if all(kind(&states[0])) => one,
        _ if states.iter().all(is_good) => Status::Accepted,
        _ if states.iter().any(is_good) => Status::PartiallyFailed,
        _ if states.contains(&Unknown) => Status::Unknown,
        _ => Status::Failed,
    }
}

proptest! {
    #[test]
    fn the_status_is_derived_as_documented(states in proptest::collection::vec(select(State::ALL), 1..8)) {
        prop_assert_eq!(Status::of(states.iter().copied()), documented(&states), "{:?}", states);
    }

    #[test]
    fn open_deliveries_alone_make_a_notification_open(states in proptest::collection::vec(select(State::ALL), 1..8)) {
        let status = Status::of(states.iter().copied());
        let is_open = states.iter().any(|state| state.is_open());
        prop_assert_eq!(matches!(status, Status::Processing | Status::Scheduled), is_open);
    }

    #[test]
    fn the_order_of_deliveries_does_not_matter(mut states in proptest::collection::vec(select(State::ALL), 1..8), by in 0_usize..8) {
        let status = Status::of(states.iter().copied());
        let by = by % states.len();
        states.rotate_left(by);
        prop_assert_eq!(status, Status::of(states.iter().copied()));
        states.reverse();
        prop_assert_eq!(status, Status::of(states));
    }

    #[test]
    fn nothing_bad_is_hidden_behind_a_good_word(states in proptest::collection::vec(select(State::ALL), 1..8)) {
        if matches!(Status::of(states.iter().copied()), Status::Delivered | Status::Accepted) {
            prop_assert!(states.iter().all(|state| matches!(state, State::Accepted | State::Delivered)));
        }
    }
}
