//! Sending again, and the dead letters that wait for it.

use std::time::Duration;

use tidings_core::acts::{Refusal, Resend, Verb};
use tidings_core::delivery::Flags;
use tidings_core::outcome::{Outcome, Refusal as ByProvider};
use tidings_core::policy::REPLAY_WINDOW;
use tidings_core::state::State;
use tidings_core::store::{Acted, DeadLetterFilter, Sweep};
use tidings_core::words::{Class, Mode, Reason};

use super::World;
use super::acting::{again, ask, dead, done, unknown};
use super::world::{accepted, answered, at};

/// Row 29, S-061: the same delivery and generation, a new deadline, all tries; and it goes out.
pub async fn a_dead_delivery_is_sent_again(world: &World) {
    let id = dead(world, "order-1").await;
    assert_eq!(world.count("queue", "true").await, 0);

    let open = done(world, id, again(None), at(90_000)).await;

    assert_eq!((open.state, open.generation, open.expires_at), (State::Queued, 1, at(90_000 + 86_400)));
    assert_eq!(world.count("deliveries", "attention IS NOT NULL").await, 0);
    let claimed = world.claim(10, at(90_001)).await.remove(0);
    assert_eq!((claimed.id, claimed.attempt_number, claimed.generation), (id, 2, 1));
    assert_eq!((claimed.category.as_str(), claimed.attempt_limit, claimed.attempts_used), ("receipt", 10, 0));
    assert_eq!(claimed.sender.as_deref(), Some("shop@example.org"), "it is judged by its author as before");
    let before = world.stored(id).await;
    assert_eq!(world.store.outgoing(&[id]).await.unwrap()[0].message_id, before.message_id, "nobody took it, so it keeps its Message-ID");
    assert_eq!(world.moved(&claimed, accepted(), at(90_002)).await.state, State::Accepted);
    let stored = world.stored(id).await;
    assert_eq!((stored.delivery.attempt_count, stored.attempts.len()), (2, 2));
    assert!(!stored.delivery.flags.has(Flags::POSSIBLE_DUPLICATE));
}

/// Row 30: the next generation is flagged, has a Message-ID of its own, and is tried like any other: that an earlier one
/// was taken is known and no reason to stop.
pub async fn what_was_taken_is_sent_again_as_the_next_generation(world: &World) {
    let first = world.dispatched("order-1", at(1)).await;
    world.moved(&first, accepted(), at(2)).await;
    assert_eq!(ask(world, first.id, again(None), at(3)).await.answer, Err(Refusal::GenerationMissing(2)));
    assert_eq!(ask(world, first.id, again(Some(3)), at(3)).await.answer, Err(Refusal::GenerationAhead(2)));

    let open = done(world, first.id, again(Some(2)), at(3)).await;

    assert_eq!((open.generation, open.flags.has(Flags::POSSIBLE_DUPLICATE)), (2, true));
    assert_eq!(ask(world, first.id, again(Some(2)), at(3)).await, Acted { answer: Ok(()), changed: Vec::new() });
    assert_eq!(ask(world, first.id, again(Some(3)), at(3)).await.answer, Err(Refusal::OutcomeUnresolved(State::Queued)));
    assert_eq!(world.stored(first.id).await.message_id, Some(format!("{}_2@mail.example.org", first.id)));
    let second = world.claim(10, at(4)).await.remove(0);
    assert_eq!(world.moved(&second, answered(None), at(5)).await.state, State::RetryWait, "one refusal is not the end of it");
    let third = world.claim(10, at(4_000)).await.remove(0);
    world.store.sweep(&world.rules, Sweep::LeaseExpired, 10, at(4_100)).await.unwrap();
    assert_eq!(world.state(first.id).await, State::Ambiguous, "nobody knows of this call, whatever became of the first");
    world.store.sweep(&world.rules, Sweep::ChecksDue, 10, at(9_000)).await.unwrap();
    assert_eq!(world.state(first.id).await, State::Unknown);
    world.moved(&third, accepted(), at(9_001)).await;
    let stored = world.stored(first.id).await;
    assert_eq!((stored.delivery.state, stored.delivery.flags.has(Flags::DUPLICATE_SENT)), (State::Accepted, true));
    assert_eq!(stored.attempts.iter().filter(|attempt| attempt.accepted_at.is_some()).count(), 2);
}

/// S-061, S-120: what may have been sent is not sent again by accident, and late evidence still stops the resend.
pub async fn an_unknown_delivery_is_sent_again_by_name_only(world: &World) {
    let id = unknown(world, "order-1").await;
    let replay = Verb::Resend(Resend { replay: Some(Duration::ZERO), ..Resend::default() });
    assert_eq!(ask(world, id, again(None), at(9_001)).await.answer, Err(Refusal::GenerationMissing(3)));
    assert_eq!(ask(world, id, replay, at(9_001)).await.answer, Err(Refusal::OutcomeUnresolved(State::Unknown)));

    let open = done(world, id, again(Some(3)), at(9_001)).await;

    assert_eq!((open.state, open.generation, open.unresolved), (State::Queued, 3, 2));
    let mut second = open.clone();
    (second.attempt_number, second.generation) = (2, 2);
    world.moved(&second, accepted(), at(9_002)).await;
    assert_eq!(world.state(id).await, State::Accepted);
    assert!(world.claim(10, at(9_003)).await.is_empty());
}

/// S-061: a resend passes today's checks.
pub async fn a_resend_to_an_address_that_is_suppressed_now_is_not_sent(world: &World) {
    let id = dead(world, "order-1").await;
    world.suppress(id.as_uuid().as_bytes(), "all", None).await;

    done(world, id, again(None), at(10)).await;

    assert!(world.claim(10, at(11)).await.is_empty());
    assert_eq!(world.state(id).await, State::Suppressed);
}

/// S-063, S-214: after its window, or without its content, nothing is sent again and nothing is changed.
pub async fn what_is_gone_or_long_over_is_not_sent_again(world: &World) {
    let (late, erased, nameless) = (dead(world, "late").await, dead(world, "erased").await, dead(world, "nameless").await);
    let content = world.db.id(erased.notification().as_uuid());
    let is_postgres = world.db.execute("SELECT 1 FROM contents WHERE false").await.is_ok();
    let erase = if is_postgres { "DELETE FROM contents WHERE id" } else { "UPDATE notifications SET body = NULL WHERE id" };
    world.sql(&format!("{erase} = {content}")).await;
    world.sql(&format!("UPDATE deliveries SET address = NULL WHERE id = {}", world.db.id(nameless.as_uuid()))).await;

    let over = at(2).plus(REPLAY_WINDOW).plus(Duration::from_secs(1));
    for (id, now, refusal) in
        [(late, over, Refusal::ReplayWindowClosed), (erased, at(10), Refusal::ContentErased), (nameless, at(10), Refusal::ContentErased)]
    {
        assert_eq!(ask(world, id, again(None), now).await, Acted { answer: Err(refusal), changed: Vec::new() });
        assert_eq!((world.state(id).await, world.stored(id).await.delivery.version), (State::Dead, 3));
    }
    assert_eq!(world.count("audit_log", "true").await, 0);
}

/// S-062: replays in bulk are counted, and the fourth is somebody's own decision.
pub async fn a_dead_letter_is_replayed_three_times(world: &World) {
    let id = dead(world, "order-1").await;
    let replay = Verb::Resend(Resend { replay: Some(Duration::from_secs(5)), ..Resend::default() });
    for round in 0..3 {
        let now = at(1_000 * (round + 1));
        let open = done(world, id, replay, now).await;
        assert_eq!(open.available_at, Some(now.plus(Duration::from_secs(5))));
        let claimed = world.claim(10, now.plus(Duration::from_secs(5))).await.remove(0);
        let refusal = Outcome::Refused { by: ByProvider::Content, reason: Reason::ContentRefused };
        assert_eq!(world.moved(&claimed, refusal, now.plus(Duration::from_secs(6))).await.state, State::Failed);
    }
    assert_eq!(ask(world, id, replay, at(4_000)).await.answer, Err(Refusal::ReplayedTooOften));
    done(world, id, again(None), at(4_000)).await;
}

/// S-060: dead letters are listed with what is needed to judge them, newest first, until they are discarded.
pub async fn dead_letters_are_listed_until_they_are_settled(world: &World) {
    let mut ids = Vec::new();
    for key in ["one", "two", "three"] {
        ids.push(dead(world, key).await);
    }
    ids.push(unknown(world, "four").await);
    let filter = DeadLetterFilter { limit: 10, ..DeadLetterFilter::default() };
    let listed = async |filter: &DeadLetterFilter| {
        let letters = world.store.acts().dead_letters(world.tenant, Mode::Live, filter).await.expect("a list");
        letters.into_iter().map(|letter| letter.stored.delivery.id).collect::<Vec<_>>()
    };
    ids.reverse();
    assert_eq!(listed(&filter).await, ids);
    assert_eq!(listed(&DeadLetterFilter { before: Some(ids[1].as_uuid()), limit: 1, ..filter.clone() }).await, ids[2..3]);
    assert_eq!(listed(&DeadLetterFilter { state: Some(State::Unknown), ..filter.clone() }).await, ids[..1]);
    assert_eq!(listed(&DeadLetterFilter { reason: Some(Reason::AttemptsExhausted), ..filter.clone() }).await, ids[1..]);
    assert_eq!(listed(&DeadLetterFilter { class: Some(Class::Bulk), ..filter.clone() }).await, []);
    assert_eq!(listed(&DeadLetterFilter { category: Some("receipt".to_owned()), ..filter.clone() }).await, ids);
    assert_eq!(listed(&DeadLetterFilter { category: Some("login".to_owned()), ..filter.clone() }).await, []);
    assert_eq!(listed(&DeadLetterFilter { since: Some(at(1)), ..filter.clone() }).await, []);
    assert_eq!(listed(&DeadLetterFilter { until: Some(at(1)), ..filter.clone() }).await, ids);
    let elsewhere = world.store.acts().dead_letters(world.tenant, Mode::Test, &filter).await.expect("a list");
    assert!(elsewhere.is_empty());

    let letters = world.store.acts().dead_letters(world.tenant, Mode::Live, &filter).await.expect("a list");
    let oldest = letters.last().expect("four of them");
    assert_eq!((oldest.idempotency_key.as_str(), oldest.category.as_str(), oldest.has_content), ("one", "receipt", true));
    assert_eq!((oldest.stored.attempts.len(), oldest.replays), (1, 0));

    let kept = done(world, ids[0], Verb::Discard, at(9_001)).await;
    assert_eq!((kept.state, kept.reason), (State::Unknown, Some(Reason::Discarded)));
    assert_eq!(listed(&filter).await, ids[1..]);
    assert_eq!(ask(world, ids[0], Verb::Discard, at(9_002)).await, Acted { answer: Ok(()), changed: Vec::new() });
    done(world, ids[1], again(None), at(9_003)).await;
    assert_eq!(listed(&filter).await, ids[2..]);
    assert_eq!(ask(world, ids[1], Verb::Discard, at(9_004)).await.answer, Err(Refusal::NotFound));
}
