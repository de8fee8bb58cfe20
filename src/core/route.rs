//! In which order a message tries the accounts of its route. Which of them has room is decided in `judge`.

use std::cmp::Reverse;
use std::time::Duration;

use crate::delivery::Delivery;
use crate::ids::{AccountId, DeliveryId};
use crate::policy::{SHARE_PATIENCE, SHARE_PATIENCE_BULK};
use crate::time::Timestamp;
use crate::words::Class;

/// One account of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Which account.
    pub account: AccountId,
    /// Its share among those with a weight, which stand first; 0 is never drawn. `None`: it is tried when all of those have
    /// failed.
    pub weight: Option<u16>,
}

impl From<AccountId> for Member {
    fn from(account: AccountId) -> Self {
        Self { account, weight: None }
    }
}

/// The accounts of a route in the order in which this delivery tries them: first the one that is drawn by weight, among those
/// that may carry it; then the others with a weight, the heaviest first; then the rest. It follows from the delivery's id, so
/// that every process and every attempt comes to the same.
pub fn order(route: &[Member], id: DeliveryId, may: impl Fn(AccountId) -> bool) -> Vec<AccountId> {
    let sharing = route.iter().take_while(|member| member.weight.is_some()).count();
    let (sharing, rest) = route.split_at(sharing);
    let mut sharing = sharing.to_vec();
    sharing.sort_by_key(|member| Reverse(member.weight));
    if let Some(drawn) = draw(&sharing, id, may) {
        sharing[..=drawn].rotate_right(1);
    }
    sharing.iter().chain(rest).map(|member| member.account).collect()
}

/// Whether a message that was drawn for an account still waits for a free slot or a token there, so that in a burst the shares
/// are those of the weights and not those of the slots: before its first call, for a while from when it became due. A code never.
pub fn is_patient(delivery: &Delivery, now: Timestamp) -> bool {
    let patience = match delivery.class {
        Class::Critical => Duration::ZERO,
        Class::Transactional => SHARE_PATIENCE,
        Class::Bulk => SHARE_PATIENCE_BULK,
    };
    // What was claimed and handed back becomes due anew: it does not wait again, or it might for ever.
    delivery.attempt_number == 0 && delivery.available_at.is_some_and(|due| now < due.plus(patience))
}

/// The place of the account that is drawn.
fn draw(sharing: &[Member], id: DeliveryId, may: impl Fn(AccountId) -> bool) -> Option<usize> {
    let weight = |member: &Member| if may(member.account) { u64::from(member.weight.unwrap_or_default()) } else { 0 };
    let total: u64 = sharing.iter().map(weight).sum();
    let mut point = spread(id).checked_rem(total)?;
    sharing.iter().position(|member| {
        let weight = weight(member);
        let is_drawn = point < weight;
        point = point.saturating_sub(weight);
        is_drawn
    })
}

/// A number that all bits of the id have a say in: ids of one moment differ in few. It stays as it is, since processes of two
/// versions are to draw alike.
fn spread(id: DeliveryId) -> u64 {
    let (high, low) = id.as_uuid().as_u64_pair();
    mix(mix(high) ^ low)
}

/// The finalizer of SplitMix64.
const fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::NotificationId;
    use crate::sample;

    fn members(weights: &[Option<u16>]) -> Vec<Member> {
        (1..).zip(weights).map(|(number, weight)| Member { account: AccountId(number), weight: *weight }).collect()
    }

    fn id(number: u64) -> DeliveryId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&number.to_be_bytes());
        // A thousand in one millisecond, as in a burst.
        let at = Timestamp::from_millis(1_800_000_000_000 + i64::try_from(number / 1_000).unwrap());
        NotificationId::new(at, random).delivery(u16::try_from(number % 3).unwrap() + 1)
    }

    fn numbers(route: &[Member], id: DeliveryId, may: impl Fn(AccountId) -> bool) -> Vec<i32> {
        order(route, id, may).iter().map(|account| account.0).collect()
    }

    /// How many of 10,000 deliveries begin at each account.
    fn firsts(weights: &[Option<u16>], may: impl Fn(AccountId) -> bool) -> Vec<u32> {
        let (route, mut counts) = (members(weights), vec![0; weights.len()]);
        for number in 0..10_000 {
            let first = order(&route, id(number), &may)[0];
            counts[usize::try_from(first.0).unwrap() - 1] += 1;
        }
        counts
    }

    #[test]
    fn without_weights_the_order_is_that_of_the_route() {
        let route = members(&[None, None, None]);
        assert!((0..100).all(|number| numbers(&route, id(number), |_| true) == [1, 2, 3]));
        assert!(order(&[], id(1), |_| true).is_empty());
    }

    #[test]
    fn behind_the_drawn_account_the_heaviest_comes_first_and_then_those_without_a_weight() {
        let route = members(&[Some(1), Some(5), Some(3), None, None]);
        for number in 0..1_000 {
            let expected: &[i32] = match numbers(&route, id(number), |_| true)[0] {
                1 => &[1, 2, 3, 4, 5],
                2 => &[2, 3, 1, 4, 5],
                3 => &[3, 2, 1, 4, 5],
                other => panic!("{other} has no weight"),
            };
            assert_eq!(numbers(&route, id(number), |_| true), expected);
        }
    }

    #[test]
    fn whoever_may_not_carry_a_message_has_no_share_of_it_and_keeps_its_place() {
        let counts = firsts(&[Some(5), Some(1), Some(1)], |account| account != AccountId(1));
        assert!(counts[0] == 0 && (4_700..5_300).contains(&counts[1]), "{counts:?}");
        assert_eq!(firsts(&[Some(0), Some(2), None], |_| true), [0, 10_000, 0]);
        assert_eq!(firsts(&[Some(3), Some(7)], |_| false), [0, 10_000], "with nobody to draw, the heaviest is first");
    }

    #[test]
    fn before_its_first_call_a_message_is_patient_from_when_it_is_due_and_a_code_never() {
        let due = Timestamp::from_millis(1_800_000_000_000);
        let after = |class: Class, millis: u64, attempt_number: u16| {
            let delivery = Delivery { class, attempt_number, ..sample::waiting(due) };
            is_patient(&delivery, due.plus(Duration::from_millis(millis)))
        };
        assert!(after(Class::Transactional, 4_999, 0) && !after(Class::Transactional, 5_000, 0));
        assert!(after(Class::Bulk, 59_999, 0) && !after(Class::Bulk, 60_000, 0));
        assert!(!after(Class::Critical, 0, 0));
        assert!(!after(Class::Bulk, 0, 1), "it was claimed before");
        assert!(!is_patient(&Delivery { available_at: None, ..sample::waiting(due) }, due));
    }

    #[test]
    fn the_draw_of_an_id_never_changes() {
        let route = members(&[Some(500), Some(500)]);
        let first = |number| numbers(&route, id(number), |_| true)[0];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(first), [1, 1, 1, 1, 2, 1, 2, 1]);
    }

    proptest! {
        #[test]
        fn every_account_stands_in_the_order_once(
            weights in proptest::collection::vec(1_u16..=1_000, 0..6), rest in 0_usize..3, number: u64, may: u8,
        ) {
            let weights: Vec<Option<u16>> = weights.into_iter().map(Some).chain(std::iter::repeat_n(None, rest)).collect();
            let route = members(&weights);
            let mut order = numbers(&route, id(number % 1_000_000_000), |account| may & (1 << (account.0 % 8)) != 0);
            order.sort_unstable();
            prop_assert_eq!(order, (1..=i32::try_from(weights.len()).unwrap()).collect::<Vec<_>>());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn shares_follow_the_weights(weights in proptest::collection::vec(1_u16..=1_000, 2..5)) {
            let counts = firsts(&weights.iter().copied().map(Some).collect::<Vec<_>>(), |_| true);
            let total: f64 = weights.iter().copied().map(f64::from).sum();
            for (weight, count) in weights.iter().zip(counts) {
                let share = f64::from(*weight) / total;
                // Five standard deviations.
                let bound = 5.0 * (10_000.0 * share * (1.0 - share)).sqrt() + 1.0;
                prop_assert!((f64::from(count) - 10_000.0 * share).abs() <= bound, "{weight} of {weights:?}: {count}");
            }
        }
    }
}
