//! Units add up to the cap and to each class's part of it, whoever draws, uses, keeps or loses them.

use std::collections::HashMap;
use std::num::NonZeroU32;

use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;

const KEY: &str = "account:1";
const CLASSES: [Class; 3] = [Class::Critical, Class::Transactional, Class::Bulk];

fn cap(calls: u32) -> DailyCap {
    DailyCap { calls: NonZeroU32::new(calls).unwrap(), zone: TimeZone::UTC }
}

fn noon() -> Timestamp {
    "2027-03-01T12:00:00Z".parse().unwrap()
}

/// The counts, as a store keeps them.
#[derive(Default)]
struct Counts(HashMap<Timestamp, i64>);

impl Counts {
    fn draw(&mut self, ask: &Ask) -> Drawn {
        let used = self.0.entry(ask.day).or_default();
        let granted = ask.grant(*used);
        *used += granted;
        Drawn { granted, used: *used }
    }

    /// Gives the pool what it needs until it needs nothing; returns how many draws that took.
    fn serve(&mut self, pool: &mut Pool, now: Timestamp) -> usize {
        let mut draws = 0;
        if let Some(rest) = pool.rest(KEY) {
            *self.0.entry(rest.day).or_default() -= rest.units;
        }
        while let Some(need) = pool.need(KEY, now) {
            match need {
                Need::Look(day) => drop(pool.know(day, self.0.get(&day).copied().unwrap_or_default(), now)),
                Need::Draw(class, ask) => {
                    draws += 1;
                    assert!(draws < 1_000, "it never has enough");
                    let drawn = self.draw(&ask);
                    pool.add(class, &ask, drawn, now);
                }
            }
        }
        draws
    }

    /// Claims and starts as many calls of a class as there is room for, `most` at most; returns how many.
    fn send(&mut self, pool: &mut Pool, class: Class, most: usize, now: Timestamp) -> usize {
        let mut started = 0;
        while started < most {
            let room = pool.room(now)[place(class)];
            self.serve(pool, now);
            let room = room.max(pool.room(now)[place(class)]);
            if room == 0 {
                break;
            }
            let Some(unit) = self.unit(pool, class, now) else { break };
            assert!(pool.is_good(&unit, now));
            started += 1;
        }
        started
    }

    fn unit(&mut self, pool: &mut Pool, class: Class, now: Timestamp) -> Option<Unit> {
        pool.take(class, now).or_else(|| {
            pool.wait(class, true);
            self.serve(pool, now);
            let unit = pool.take(class, now);
            pool.wait(class, false);
            unit
        })
    }
}

#[test]
fn a_slice_is_a_small_part_of_what_is_left_and_never_more_than_is_left() {
    let ask = |bound, wanted| Ask { key: KEY.to_owned(), day: noon(), cap: 100, bound, wanted };
    let granted = |bound, wanted, used| ask(bound, wanted).grant(used);
    assert_eq!((granted(100, 50, 0), granted(100, 5, 0), granted(100, 50, 84)), (12, 5, 2));
    assert_eq!((granted(100, 50, 99), granted(100, 50, 100), granted(70, 50, 90), granted(100, 0, 0)), (1, 0, 0, 0));
}

#[test]
fn who_has_nothing_to_send_draws_nothing() {
    let (mut pool, mut counts, now) = (Pool::new(cap(1_000), noon()), Counts::default(), noon());
    assert_eq!(pool.need(KEY, now), None, "nobody wants to send");
    assert_eq!(pool.room(now), [0; 3], "it is not known yet what is left");
    assert_eq!(pool.need(KEY, now), Some(Need::Look(pool.day().start)));
    assert_eq!(counts.serve(&mut pool, now), 0);
    for _ in 0..3 {
        assert_eq!((pool.room(now), counts.serve(&mut pool, now)), ([1; 3], 0), "one of each may try");
    }
    assert_eq!(counts.0.len(), 0);
}

#[test]
fn a_busy_process_draws_seldom_and_holds_little() {
    let (mut pool, mut counts, now) = (Pool::new(cap(10_000), noon()), Counts::default(), noon());
    let mut draws = 0;
    pool.room(now);
    counts.serve(&mut pool, now);
    for _ in 0..5_000 {
        assert!(pool.room(now)[2] > 0);
        let unit = pool.take(Class::Bulk, now).or_else(|| {
            pool.wait(Class::Bulk, true);
            draws += counts.serve(&mut pool, now);
            pool.wait(Class::Bulk, false);
            pool.take(Class::Bulk, now)
        });
        assert!(unit.is_some());
        draws += counts.serve(&mut pool, now);
        assert!(pool.held() <= 100, "a hundredth of the cap");
    }
    assert!(draws < 5_000 / 40, "{draws} draws");
}

#[test]
fn bulk_stops_first_and_critical_goes_on_to_the_last() {
    let (mut pool, mut counts, now) = (Pool::new(cap(100), noon()), Counts::default(), noon());
    assert_eq!(counts.send(&mut pool, Class::Bulk, 1_000, now), 70);
    assert_eq!((pool.is_short(Class::Bulk, now), pool.is_short(Class::Transactional, now)), (true, false));
    assert_eq!((counts.send(&mut pool, Class::Bulk, 1_000, now), pool.room(now)), (0, [1, 1, 0]));
    assert_eq!(counts.send(&mut pool, Class::Transactional, 1_000, now), 20);
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now), 10);
    assert_eq!((pool.room(now), pool.is_short(Class::Critical, now)), ([0; 3], true));
    // The next day has everything again, once all clocks say so.
    let midnight = pool.day().end;
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, midnight), 0);
    assert!(pool.is_short(Class::Critical, midnight), "what waits says why");
    let morning = midnight.plus(Duration::from_secs(2));
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, morning), 100);
}

#[test]
fn a_unit_of_yesterday_starts_nothing_today() {
    let (mut pool, mut counts) = (Pool::new(cap(100), noon()), Counts::default());
    pool.room(noon());
    let unit = counts.unit(&mut pool, Class::Bulk, noon()).unwrap();
    let (evening, tomorrow) = (pool.day().end.minus(Duration::from_secs(1)), noon().plus(Duration::from_secs(86_400)));
    assert!(pool.is_good(&unit, noon()) && !pool.is_good(&unit, evening) && !pool.is_good(&unit, tomorrow));
    pool.give_back(&unit, tomorrow);
    assert_eq!((pool.held(), pool.rest(KEY)), (0, None));
}

#[test]
fn what_was_used_counts_for_another_cap_and_what_was_not_goes_back() {
    let (mut pool, mut counts, now) = (Pool::new(cap(1_000), noon()), Counts::default(), noon());
    assert_eq!(counts.send(&mut pool, Class::Bulk, 100, now), 100);
    let unit = counts.unit(&mut pool, Class::Bulk, now).unwrap();
    pool.adopt(&cap(200), now);
    assert!(!pool.is_good(&unit, now), "it was drawn by another cap");
    pool.give_back(&unit, now);
    assert_eq!(counts.send(&mut pool, Class::Bulk, 1_000, now), 40);
    pool.adopt(&cap(50), now);
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now), 0);
    pool.adopt(&cap(300), now);
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now), 160);
}

#[test]
fn without_its_store_it_uses_what_it_has_and_then_stops() {
    let (mut pool, mut counts, now) = (Pool::new(cap(1_000), noon()), Counts::default(), noon());
    counts.send(&mut pool, Class::Bulk, 20, now);
    let held = pool.held();
    assert!(held > 0 && pool.fail(now) && !pool.fail(now));
    for _ in 0..held {
        assert!(pool.take(Class::Bulk, now).is_some());
    }
    assert_eq!((pool.room(now), pool.need(KEY, now), pool.is_short(Class::Bulk, now)), ([0; 3], None, true));
    let later = now.plus(AFTER_FAILURE);
    assert!(pool.need(KEY, later).is_some());
    counts.serve(&mut pool, later);
    assert!(pool.room(later)[2] > 0);
}

#[test]
fn it_goes_on_when_the_store_is_back_though_no_call_waits_any_more() {
    let (mut pool, mut counts, now) = (Pool::new(cap(1_000), noon()), Counts::default(), noon());
    pool.room(now);
    counts.serve(&mut pool, now);
    pool.wait(Class::Critical, true);
    assert!(matches!(pool.need(KEY, now), Some(Need::Draw(Class::Critical, _))) && pool.fail(now));
    pool.wait(Class::Critical, false);
    assert_eq!(pool.room(now), [0; 3], "nothing is claimed on trust");
    let later = now.plus(AFTER_FAILURE);
    assert_eq!(pool.need(KEY, later), Some(Need::Look(pool.day().start)));
    counts.serve(&mut pool, later);
    assert_eq!(pool.room(later), [1; 3]);
}

#[test]
fn a_pool_that_was_used_up_is_looked_at_again() {
    let (mut pool, mut counts, now) = (Pool::new(cap(10), noon()), Counts::default(), noon());
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now), 10);
    // Another process gives back what it held.
    counts.0.insert(pool.day().start, 8);
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now), 0);
    assert_eq!(counts.send(&mut pool, Class::Critical, 1_000, now.plus(LOOK_AGAIN)), 2);
}

#[derive(Debug, Clone)]
enum Deed {
    Send(usize, Class, usize),
    /// A call is claimed and handed back.
    Return(usize, Class),
    /// It dies with what it holds, perhaps while it draws.
    Kill(usize),
    Stop(usize),
    /// The answer to a draw does not arrive.
    Lose(usize, Class),
    Cap(u32),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let who = || 0..4_usize;
    let class = || prop::sample::select(CLASSES.to_vec());
    let deed = prop_oneof![
        8 => (who(), class(), 1..40_usize).prop_map(|(who, class, calls)| Deed::Send(who, class, calls)),
        3 => (who(), class()).prop_map(|(who, class)| Deed::Return(who, class)),
        1 => who().prop_map(Deed::Kill),
        1 => who().prop_map(Deed::Stop),
        1 => (who(), class()).prop_map(|(who, class)| Deed::Lose(who, class)),
        1 => (1..600_u32).prop_map(Deed::Cap),
    ];
    prop::collection::vec(deed, 1..80)
}

proptest! {
    /// Whatever happens to four processes: no class uses more than its part, all together no more than the cap, also when
    /// it is changed; and what is not lost with a process can be used.
    #[test]
    fn no_more_than_the_cap_is_ever_used(first in 1..600_u32, deeds in deeds()) {
        let (now, mut counts, mut calls) = (noon(), Counts::default(), cap(first));
        let mut pools: Vec<Pool> = (0..4).map(|_| Pool::new(calls.clone(), now)).collect();
        let (mut used, mut lost, mut all) = ([0_i64; 3], 0_i64, 0_i64);
        let day = pools[0].day().start;
        for deed in deeds {
            match deed {
                Deed::Send(who, class, most) => {
                    let before = all;
                    let started = counts.send(&mut pools[who], class, most, now) as i64;
                    used[place(class)] += started;
                    all += started;
                    prop_assert!(started == 0 || all <= calls.bound(Class::Critical), "{all} after {before} of {calls:?}");
                    prop_assert!(class == Class::Critical || started == 0 || used[place(class)] <= calls.bound(class));
                }
                Deed::Return(who, class) => {
                    pools[who].room(now);
                    counts.serve(&mut pools[who], now);
                    if let Some(unit) = counts.unit(&mut pools[who], class, now) {
                        pools[who].give_back(&unit, now);
                    }
                }
                Deed::Kill(who) => {
                    lost += pools[who].held();
                    pools[who] = Pool::new(calls.clone(), now);
                }
                Deed::Stop(who) => {
                    pools[who].close();
                    counts.serve(&mut pools[who], now);
                    prop_assert_eq!((pools[who].held(), pools[who].room(now)), (0, [0; 3]));
                    pools[who] = Pool::new(calls.clone(), now);
                }
                Deed::Lose(who, class) => {
                    pools[who].room(now);
                    pools[who].wait(class, true);
                    if let Some(Need::Draw(_, ask)) = pools[who].need(KEY, now) {
                        lost += counts.draw(&ask).granted;
                        pools[who].fail(now);
                        // It tries again a second later.
                        pools[who].next_try = None;
                    }
                    pools[who].wait(class, false);
                }
                Deed::Cap(new) => {
                    calls = cap(new);
                    for pool in &mut pools {
                        pool.adopt(&calls, now);
                        counts.serve(pool, now);
                    }
                }
            }
            let held: i64 = pools.iter().map(Pool::held).sum();
            prop_assert_eq!(counts.0.get(&day).copied().unwrap_or_default(), all + lost + held, "every unit is somewhere");
        }
        // What is left is used by somebody, to the last one.
        let later = now.plus(LOOK_AGAIN);
        let left: i64 = pools.iter_mut().map(|pool| counts.send(pool, Class::Critical, 1_000, later) as i64).sum();
        let could = (calls.bound(Class::Critical) - all - lost).max(0);
        prop_assert_eq!(left, could);
    }
}
