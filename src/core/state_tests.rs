//! The table of states: what it says of each pair, and what no order of events may lead to.

use super::*;
use proptest::prelude::*;
use proptest::sample::select;

const EVENTS: &[Event] = &[
    Event::Cleared,
    Event::Overdue,
    Event::Suppressed,
    Event::QuietHours,
    Event::Held,
    Event::NotStarted,
    Event::Accepted,
    Event::NotSentAgain,
    Event::NotSentUsedUp,
    Event::NotSentPastExpiry,
    Event::AccountAtFault { past_expiry: false },
    Event::AccountAtFault { past_expiry: true },
    Event::Refused,
    Event::RefusedListed,
    Event::RefusedHere,
    Event::Ambiguous,
    Event::LeaseLost,
    Event::Evidence(Evidence::Taken),
    Event::Evidence(Evidence::Delivered),
    Event::Evidence(Evidence::Bounced),
    Event::Evidence(Evidence::Failed),
    Event::Evidence(Evidence::Suppressed),
    Event::KeyedResend,
    Event::HoldOverResend,
    Event::HoldOver,
    Event::Collapsed,
    Event::Cancelled,
    Event::StaleAcceptance,
    Event::StaleDenial,
    Event::ResolvedSent,
    Event::ResolvedNotSent { past_expiry: false },
    Event::ResolvedNotSent { past_expiry: true },
    Event::ResendSame,
    Event::ResendNext,
    Event::Rescheduled { ahead: true },
    Event::Rescheduled { ahead: false },
    Event::BuildFailedAgain,
    Event::BuildFailed,
    Event::RestoredInHold,
];

/// An operator's deliberate act, and proof from outside: all that may leave an end.
fn may_leave_an_end(event: Event) -> bool {
    matches!(
        event,
        Event::Evidence(_)
            | Event::StaleAcceptance
            | Event::StaleDenial
            | Event::ResolvedSent
            | Event::ResolvedNotSent { .. }
            | Event::ResendSame
            | Event::ResendNext
    )
}

fn facts() -> impl Strategy<Value = Facts> {
    (0_u16..3, any::<bool>(), any::<bool>(), select(Channel::ALL), proptest::option::of(select(Reason::ALL)))
        .prop_map(|(unresolved, called, was_accepted, channel, reason)| Facts { unresolved, called, was_accepted, channel, reason })
}

proptest! {
    #[test]
    fn an_end_is_left_only_by_evidence_or_by_an_operator(from in select(State::ALL), event in select(EVENTS), facts in facts()) {
        if let Next::To(to) = from.after(event, &facts) && from.is_end() && to != from {
            prop_assert!(may_leave_an_end(event), "{from} --{event:?}--> {to}");
        }
    }

    #[test]
    fn nothing_says_not_sent_while_a_call_is_unresolved(from in select(State::ALL), event in select(EVENTS), mut facts in facts()) {
        facts.unresolved = facts.unresolved.max(1);
        if let Next::To(to) = from.after(event, &facts) {
            let says_not_sent = matches!(to, State::Cancelled | State::Expired | State::Superseded | State::Dead)
                || (matches!(to, State::Failed | State::Suppressed) && !matches!(event, Event::Evidence(_)));
            prop_assert!(!says_not_sent, "{from} --{event:?}--> {to}");
        }
    }

    #[test]
    fn every_walk_ends_or_waits_and_a_call_runs_only_when_cleared(events in proptest::collection::vec((select(EVENTS), facts()), 0..40)) {
        let mut state = State::first(false);
        for (event, facts) in events {
            if let Next::To(to) = state.after(event, &facts) {
                if to == State::Dispatching {
                    prop_assert!(matches!(event, Event::Cleared | Event::KeyedResend));
                }
                state = to;
            }
        }
        prop_assert!(state.is_open() || state.is_end() || state == State::Accepted);
    }

    #[test]
    fn a_delivered_state_comes_from_a_receipt_alone(from in select(State::ALL), event in select(EVENTS), facts in facts()) {
        if let Next::To(State::Delivered) = from.after(event, &facts) {
            prop_assert_eq!(event, Event::Evidence(Evidence::Delivered));
        }
    }
}

#[test]
fn the_whole_table_reads_as_documented() {
    use std::fmt::Write as _;
    let mut table = String::new();
    for event in EVENTS {
        for from in State::ALL {
            for unresolved in [0, 1] {
                let facts = Facts { unresolved, called: true, was_accepted: false, channel: Channel::Email, reason: None };
                if let to @ (Next::To(_) | Next::Pending) = from.after(*event, &facts) {
                    writeln!(table, "{event:?}, U={unresolved}: {from} -> {to:?}").unwrap();
                }
            }
        }
    }
    insta::assert_snapshot!(table);
}
