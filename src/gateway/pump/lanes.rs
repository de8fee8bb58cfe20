//! What the pump knows of each lane, and whose turn it is when there are many.

use tidings_core::ids::{AccountId, TenantId};
use tidings_core::judge::{AccountCapacity, LanePlan};
use tidings_core::words::Class;

use crate::routing::{Route, Routing};

/// Rows that one claim takes of a lane, at most.
pub(super) const CLAIM_ROWS: u16 = 50;
/// Lanes that one claim looks at, at most: its transaction stays short, however many routes are configured.
const CLAIM_LANES: usize = 16;

pub(super) struct Lane {
    pub(super) route: Route,
    pub(super) cursor: Option<TenantId>,
    /// How many tenants with waiting rows the ring found last time.
    pub(super) tenants: usize,
    pub(super) is_dirty: bool,
    /// Other processes were asked to look at it since it became dirty.
    pub(super) is_offered: bool,
    /// Busy accounts that rows of the last page may have been kept for: room there makes it dirty.
    pub(super) kept_for: Vec<AccountId>,
    /// The number of the last claim that looked at it.
    pub(super) looked_at: u64,
}

impl Lane {
    /// What a claim is to look at here, with this much room at its accounts.
    pub(super) fn plan(&self, room: u16) -> LanePlan {
        // With weights, those in front may have to wait for an account that is busy while others find room.
        let may_be_kept = !self.route.weights.is_empty() && self.route.class != Class::Critical;
        let limit = if may_be_kept { CLAIM_ROWS } else { room };
        // One tenant alone may have it all; several share, and the ring goes on next time.
        let tenant_limit = if self.tenants <= 1 { limit } else { (limit / 8).max(1) };
        LanePlan {
            lane: self.route.lane,
            class: self.route.class,
            route: self.route.members(),
            limit,
            tenant_limit,
            cursor: self.cursor,
            low: None,
        }
    }

    /// Whether room at one of its accounts is of use to it.
    pub(super) fn has_work(&self) -> bool {
        self.is_dirty || !self.kept_for.is_empty()
    }

    /// Those of its accounts that messages may have been drawn for and that had no room left in a claim.
    pub(super) fn busy(&self, rooms: &[AccountCapacity]) -> Vec<AccountId> {
        let sharing = self.route.accounts.iter().zip(&self.route.weights).map(|(account, _)| account.id);
        let is_busy = |id: &AccountId| rooms.iter().any(|room| room.account == *id && room.is_merely_busy(self.route.class));
        sharing.filter(is_busy).collect()
    }
}

/// The lanes that somebody carries, critical ones first; what was known of their rings stays known.
pub(super) fn lanes(routing: &Routing, known: &[Lane]) -> Vec<Lane> {
    let lane = |route: &Route| {
        let known = known.iter().find(|lane| lane.route.lane == route.lane);
        Lane {
            route: route.clone(),
            cursor: known.and_then(|lane| lane.cursor),
            tenants: known.map_or(1, |lane| lane.tenants),
            // Hints are not lost, and what waits already is found by the poll that is made at once.
            is_dirty: known.is_some_and(|lane| lane.is_dirty),
            is_offered: false,
            kept_for: Vec::new(),
            looked_at: known.map_or(0, |lane| lane.looked_at),
        }
    };
    let mut lanes: Vec<Lane> = routing.lanes().filter(|route| !route.accounts.is_empty()).map(lane).collect();
    lanes.sort_by_key(|lane| lane.route.class);
    lanes
}

/// Those of these lanes whose turn it is, in their order: where they are too many for one claim, the ones that were looked at
/// longest ago. Critical ones have half of the places, and more where the others do not need theirs.
pub(super) fn turn(lanes: Vec<&Lane>) -> Vec<&Lane> {
    if lanes.len() <= CLAIM_LANES {
        return lanes;
    }
    let (mut critical, mut others): (Vec<_>, Vec<_>) = lanes.into_iter().partition(|lane| lane.route.class == Class::Critical);
    let places = (CLAIM_LANES / 2).max(CLAIM_LANES.saturating_sub(others.len())).min(critical.len());
    for (lanes, places) in [(&mut critical, places), (&mut others, CLAIM_LANES - places)] {
        lanes.sort_by_key(|lane| lane.looked_at);
        lanes.truncate(places);
        lanes.sort_by_key(|lane| lane.route.class);
    }
    critical.extend(others);
    critical
}

/// Which of the two polls a class belongs to.
pub(super) const fn group(class: Class) -> usize {
    match class {
        Class::Critical => 0,
        Class::Transactional | Class::Bulk => 1,
    }
}

#[cfg(test)]
mod tests {
    use tidings_core::ids::LaneId;
    use tidings_core::words::Channel;

    use super::*;

    fn many(of_each: &[(Class, i32)]) -> Vec<Lane> {
        let of_class = |(class, count): &(Class, i32)| (0..*count).map(|_| *class).collect::<Vec<_>>();
        let lane = |(class, number)| {
            let (name, accounts) = (format!("category:{number}"), Vec::new());
            let route = Route { lane: LaneId(number), channel: Channel::Email, class, name, accounts, weights: Vec::new() };
            Lane { route, cursor: None, tenants: 1, is_dirty: true, is_offered: false, kept_for: Vec::new(), looked_at: 0 }
        };
        of_each.iter().flat_map(of_class).zip(0..).map(lane).collect()
    }

    /// The classes of one turn; whoever had it was looked at.
    fn take_turn(lanes: &mut [Lane], claim: u64) -> Vec<Class> {
        let taken: Vec<(LaneId, Class)> = turn(lanes.iter().collect()).iter().map(|lane| (lane.route.lane, lane.route.class)).collect();
        for lane in lanes.iter_mut().filter(|lane| taken.iter().any(|(taken, _)| *taken == lane.route.lane)) {
            lane.looked_at = claim;
        }
        taken.into_iter().map(|(_, class)| class).collect()
    }

    #[test]
    fn a_few_lanes_are_looked_at_together() {
        let lanes = many(&[(Class::Critical, 2), (Class::Transactional, 2), (Class::Bulk, 2)]);
        assert_eq!(turn(lanes.iter().collect()).len(), 6);
    }

    #[test]
    fn of_many_lanes_each_has_its_turn_and_codes_never_wait_for_all_others() {
        let mut lanes = many(&[(Class::Critical, 100), (Class::Transactional, 100), (Class::Bulk, 100)]);
        for claim in 1..=25 {
            let classes = take_turn(&mut lanes, claim);
            assert_eq!((classes.len(), classes.iter().filter(|class| **class == Class::Critical).count()), (16, 8));
            assert!(classes.is_sorted(), "critical ones first: {classes:?}");
        }
        assert!(lanes.iter().all(|lane| lane.looked_at > 0));
        // One critical lane beside them is in every turn.
        let mut lanes = many(&[(Class::Critical, 1), (Class::Bulk, 300)]);
        assert!((1..=20).all(|claim| take_turn(&mut lanes, claim)[0] == Class::Critical));
        assert!(lanes.iter().all(|lane| lane.looked_at > 0));
    }

    #[test]
    fn places_that_others_do_not_need_are_for_codes() {
        let mut lanes = many(&[(Class::Critical, 30), (Class::Bulk, 2)]);
        assert_eq!(take_turn(&mut lanes, 1).iter().filter(|class| **class == Class::Critical).count(), 14);
    }
}
