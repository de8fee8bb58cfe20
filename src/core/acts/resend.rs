//! Sending again on purpose (rows 29 and 30): the same generation where certainly nobody took it, else the next one.
//! Suppression, expiry and the rest are judged when it is claimed, like those of any other row (S-061).

use super::{ALREADY, ActFacts, Acting, One, Refusal, Resend, done, refused};
use crate::delivery::{Delivery, Flags};
use crate::ids::Handle;
use crate::policy::{MOST_REPLAYS, REPLAY_WINDOW, Rules};
use crate::state::{Event, State};
use crate::time::Timestamp;
use crate::transition::Draft;

/// What is asked for is named by its generation, so that asking twice sends once.
pub(super) fn resend(rules: &Rules, facts: &ActFacts, resend: Resend, now: Timestamp) -> One {
    let delivery = &facts.delivery;
    let next = delivery.generation.saturating_add(1);
    let is_certainly_unsent =
        matches!(delivery.state, State::Dead | State::Expired | State::Failed) && delivery.unresolved == 0 && !facts.was_accepted();
    let event = match resend.generation {
        Some(wanted) if wanted < delivery.generation => return ALREADY,
        Some(wanted) if wanted == delivery.generation && !is_certainly_unsent => return ALREADY,
        Some(wanted) if wanted > next => return refused(Refusal::GenerationAhead(next)),
        _ if delivery.state.is_open() => return refused(Refusal::OutcomeUnresolved(delivery.state)),
        Some(wanted) if wanted == next => Event::ResendNext,
        None if resend.replay.is_some() && !is_certainly_unsent => return refused(Refusal::OutcomeUnresolved(delivery.state)),
        None if !is_certainly_unsent => return refused(Refusal::GenerationMissing(next)),
        Some(_) | None => Event::ResendSame,
    };
    if let Some(refusal) = too_late(facts, resend, now) {
        return refused(refusal);
    }
    let draft = reopened(rules, facts, event, resend, now);
    let is_next = event == Event::ResendNext;
    let message_id = facts.message_id.as_deref().filter(|_| is_next).and_then(|old| renewed(old, delivery, next));
    done(draft.step(event, None, now).map(|change| Acting {
        message_id,
        replayed: resend.replay.is_some(),
        forgets_receipts: is_next,
        ..Acting::of(change)
    }))
}

/// Why an ended delivery can no longer be sent.
fn too_late(facts: &ActFacts, resend: Resend, now: Timestamp) -> Option<Refusal> {
    if facts.delivery.settled_at.is_some_and(|settled| now > settled.plus(REPLAY_WINDOW)) {
        return Some(Refusal::ReplayWindowClosed);
    }
    if !facts.has_content {
        return Some(Refusal::ContentErased);
    }
    (resend.replay.is_some() && facts.replays >= MOST_REPLAYS).then_some(Refusal::ReplayedTooOften)
}

/// The row as a new one would be: tries, deadline and place in the route begin anew; numbers of attempts go on.
fn reopened(rules: &Rules, facts: &ActFacts, event: Event, resend: Resend, now: Timestamp) -> Draft {
    let delivery = &facts.delivery;
    let start = now.plus(resend.replay.unwrap_or_default());
    let mut draft = Draft::of(delivery).wait_until(start);
    draft.was_accepted = facts.was_accepted();
    let after = &mut draft.after;
    after.attempts_used = 0;
    after.attempt_limit = rules.of(delivery.class).retry.attempts;
    after.lost_count = 0;
    after.build_failures = 0;
    after.no_resend = None;
    after.account = None;
    after.expires_at = start.plus(resend.expires_in.unwrap_or_else(|| rules.deadline(&delivery.category, delivery.class)));
    after.flags = after.flags.without(Flags::CONFIRMED).without(Flags::ASKED_AGAIN);
    if event == Event::ResendNext {
        after.generation = delivery.generation.saturating_add(1);
        if facts.was_accepted() {
            after.flags = after.flags.with(Flags::ASKED_AGAIN);
        }
        if facts.was_accepted() || delivery.unresolved > 0 {
            after.flags = after.flags.with(Flags::POSSIBLE_DUPLICATE);
        }
    }
    draft
}

/// A `Message-ID` that no receiver folds into the earlier one, at the same domain.
fn renewed(old: &str, delivery: &Delivery, generation: u16) -> Option<String> {
    let (_, domain) = old.rsplit_once('@')?;
    Some(format!("{}@{domain}", Handle { delivery: delivery.id, generation }))
}
