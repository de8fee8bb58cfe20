//! Slices add up to rate and burst, whoever draws, keeps, uses or loses them.

use proptest::prelude::*;

use super::*;

const RATE: Rate = Rate { per_second: 100, burst: 200 };

fn ask(least: u32, wanted: u32) -> Ask {
    Ask { key: "tenant:1".to_owned(), per_second: 100.0, burst: 200.0, ahead: 0.0, least, wanted }
}

fn after(start: Instant, millis: u64) -> Instant {
    start + Duration::from_millis(millis)
}

#[test]
fn slices_shrink_near_exhaustion_and_what_is_needed_at_once_comes_whole() {
    assert_eq!(ask(1, 100).grant(200.0), 100);
    assert_eq!(ask(1, 100).grant(60.0), 30);
    assert_eq!(ask(1, 100).grant(3.0), 1);
    assert_eq!(ask(1, 100).grant(0.99), 0);
    assert_eq!(ask(50, 100).grant(60.0), 50);
    assert_eq!(ask(50, 100).grant(49.5), 0);
}

#[test]
fn tokens_drawn_ahead_are_good_when_they_have_come_in() {
    let now = Instant::now();
    let pace = Ask { per_second: 10.0, burst: 1.0, ahead: 10.0, ..ask(1, 4) };
    let mut level = Level::full(&pace, now);
    let first = level.draw(&pace, now);
    assert_eq!((first.granted, first.level), (4, -3.0));
    let due: Vec<_> = (1..=4).map(|nth| first.due_in(10.0, nth).as_millis()).collect();
    assert_eq!(due, [0, 100, 200, 300]);
    let second = level.draw(&pace, after(now, 100));
    assert_eq!(second.due_in(10.0, 1).as_millis(), 300, "the next instant that nobody has");
    // The rest of a second ahead goes by halves, and then there is nothing.
    let rest: Vec<_> = (0..4).map(|_| level.draw(&pace, after(now, 100)).granted).collect();
    assert_eq!(rest, [2, 1, 1, 0]);
}

#[test]
fn tokens_that_would_have_flowed_over_are_no_longer_good() {
    let now = Instant::now();
    let mut held = Held::nothing(&RATE, now);
    held.add(&RATE, Slice { granted: 100, level: 100.0 }, now);
    assert_eq!([0, 500, 1_000].map(|millis| held.good(&RATE, after(now, millis))), [100, 50, 0]);
    assert_eq!(held.all(&RATE, after(now, 500)), 200.0);
    // Of an empty bucket they are good until it is full again.
    let mut scarce = Held::nothing(&RATE, now);
    scarce.add(&RATE, Slice { granted: 100, level: 0.0 }, now);
    assert_eq!([0, 1_000, 1_500].map(|millis| scarce.good(&RATE, after(now, millis))), [100, 100, 50]);
}

#[test]
fn what_was_drawn_for_a_request_is_there_for_it_however_long_the_draw_took() {
    let now = Instant::now();
    let mut held = Held::nothing(&RATE, now);
    held.add(&RATE, Slice { granted: 150, level: 50.0 }, now);
    assert!(held.good(&RATE, after(now, 30)) < 150 && held.take(&RATE, 150, now));
}

#[test]
fn who_has_too_little_is_told_when_there_will_be_enough() {
    let now = Instant::now();
    let mut held = Held::nothing(&RATE, now);
    held.add(&RATE, Slice { granted: 10, level: 20.0 }, now);
    assert!(!held.take(&RATE, 50, now) && held.take(&RATE, 10, now));
    assert_eq!(held.refusal(&RATE, 50, now), Refused::For(Duration::from_millis(300)));
    assert!(held.all(&RATE, after(now, 300)) >= 50.0 && held.all(&RATE, after(now, 290)) < 50.0);
    assert_eq!(held.refusal(&RATE, 201, now), Refused::TooMuch);
}

proptest! {
    /// Any number of processes draw, lose what they hold, and draw again.
    #[test]
    fn the_sum_of_slices_never_exceeds_rate_and_burst(
        steps in proptest::collection::vec((0_u64..300, 1_u32..20, 0_u32..60, prop::bool::ANY), 1..200),
        ahead in 0_u32..50,
    ) {
        let start = Instant::now();
        let of = |least, wanted| Ask { ahead: f64::from(ahead), ..ask(least, wanted) };
        let (mut level, mut now, mut drawn) = (Level::full(&of(1, 1), start), 0, 0_u32);
        for (pause, least, more, backwards) in steps {
            now += pause;
            // A clock that goes back gives nothing.
            let at = if backwards { after(start, now.saturating_sub(50)) } else { after(start, now) };
            let slice = level.draw(&of(least, least + more), at);
            prop_assert!(slice.granted == 0 || slice.granted >= least);
            drawn += slice.granted;
            let allowed = 200.0 + f64::from(ahead) + 100.0 * now as f64 / 1_000.0;
            prop_assert!(f64::from(drawn) <= allowed + 1e-6, "{drawn} of {allowed}");
        }
    }

    /// Three processes hold slices of one bucket and use them when they like; within any span they use no more than it
    /// would have given one.
    #[test]
    fn what_is_held_never_adds_to_the_burst(
        steps in proptest::collection::vec((0_u64..2_500, 0_usize..3, 1_u32..80), 1..150),
    ) {
        let start = Instant::now();
        let mut level = Level::full(&ask(1, 1), start);
        let mut holders = [Held::nothing(&RATE, start); 3];
        let (mut now, mut used): (u64, Vec<(u64, u32)>) = (0, Vec::new());
        for (pause, who, cost) in steps {
            now += pause;
            let at = after(start, now);
            let held = &mut holders[who];
            let missing = cost.saturating_sub(held.good(&RATE, at));
            if missing > 0 {
                // The answer takes its time; what it was waited for is used as of the draw.
                let slice = level.draw(&ask(missing, missing + 100), at);
                now += pause % 20;
                held.add(&RATE, slice, at);
            }
            if held.take(&RATE, cost, at) {
                used.push((at.duration_since(start).as_millis() as u64, cost));
            }
        }
        for (first, (since, _)) in used.iter().enumerate() {
            let mut sum = 0;
            for (until, cost) in &used[first..] {
                sum += cost;
                let allowed = 200.0 + 100.0 * (until - since) as f64 / 1_000.0;
                prop_assert!(f64::from(sum) <= allowed + 1e-6, "{sum} of {allowed}");
            }
        }
    }

    /// The instants of tokens that were drawn ahead keep the rate, however many processes drew them.
    #[test]
    fn tokens_of_a_pace_are_never_closer_than_the_rate(
        steps in proptest::collection::vec((0_u64..400, 1_u32..30), 1..100),
    ) {
        let start = Instant::now();
        let of = |wanted| Ask { per_second: 20.0, burst: 1.0, ahead: 20.0, ..ask(1, wanted) };
        let (mut level, mut now, mut due) = (Level::full(&of(1), start), 0, Vec::new());
        for (pause, wanted) in steps {
            now += pause;
            let slice = level.draw(&of(wanted), after(start, now));
            due.extend((1..=slice.granted).map(|nth| after(start, now) + slice.due_in(20.0, nth)));
        }
        for pair in due.windows(2) {
            prop_assert!(pair[1] - pair[0] >= Duration::from_micros(49_999), "{:?}", pair[1] - pair[0]);
        }
    }
}
