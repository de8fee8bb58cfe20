//! Which of the claimed candidates go out now and by which account; judged again at every attempt, inside the
//! claiming transaction (S-043, S-147). A pure function of the candidates, the plan and the rules.

use std::sync::Arc;

use crate::delivery::{Change, Delivery};
use crate::ids::{AccountId, InstanceId, LaneId, TenantId};
use crate::owners::Owners;
use crate::policy::Rules;
use crate::route::{Member, is_patient, order};
use crate::senders::SendsAs;
use crate::suppression::{self, Hit, Note};
use crate::switches::Paused;
use crate::time::Timestamp;
use crate::transition;
use crate::words::{Class, Reason};

/// What a claim is to look at and what it may use.
#[derive(Debug, Clone)]
pub struct ClaimPlan {
    /// In whose name.
    pub instance: InstanceId,
    /// Until when the leases run.
    pub lease_until: Timestamp,
    /// Lanes in the order in which they may use the capacity: critical first.
    pub lanes: Vec<LanePlan>,
    /// The accounts of those lanes.
    pub accounts: Vec<AccountCapacity>,
    /// As whom those accounts may send.
    pub sends_as: Arc<SendsAs>,
    /// Whose those accounts are.
    pub owners: Owners,
    /// What operators have paused: it keeps its place (S-118).
    pub paused: Paused,
}

impl ClaimPlan {
    /// Whether messages of this lane may go by more than one account.
    pub fn has_choice(&self, lane: LaneId) -> bool {
        self.lanes.iter().any(|plan| plan.lane == lane && plan.route.len() > 1)
    }
}

/// One lane of a claim.
#[derive(Debug, Clone)]
pub struct LanePlan {
    /// Which lane.
    pub lane: LaneId,
    /// Its class.
    pub class: Class,
    /// Its accounts in route order.
    pub route: Vec<Member>,
    /// How many candidates to look at, at most.
    pub limit: u16,
    /// How many of one tenant, at most (S-089).
    pub tenant_limit: u16,
    /// The ring goes on after this tenant; `None` starts over.
    pub cursor: Option<TenantId>,
    /// A hint that nothing due lies before this instant; `None` looks from the start.
    pub low: Option<Timestamp>,
}

/// What one account can take at this moment. Reserved slots are never lent (S-081).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountCapacity {
    /// Which account.
    pub account: AccountId,
    /// Free slots in all.
    pub free: u16,
    /// Of those, free for anything but critical.
    pub free_for_others: u16,
    /// Of those, free for bulk.
    pub free_for_bulk: u16,
    /// Whether a transactional message may wait for it: it is on, neither paused, parked nor out of calls of its day, and does not
    /// hang.
    pub is_well: bool,
    /// The same for bulk.
    pub is_well_for_bulk: bool,
}

impl AccountCapacity {
    /// What is free for a class.
    pub const fn free_for(&self, class: Class) -> u16 {
        let (free, others, bulk) = (self.free, self.free_for_others, self.free_for_bulk);
        let others = if others < free { others } else { free };
        match class {
            Class::Critical => free,
            Class::Transactional => others,
            Class::Bulk => {
                if bulk < others {
                    bulk
                } else {
                    others
                }
            }
        }
    }

    /// Whether it has nothing free for a class and soon will have.
    pub const fn is_merely_busy(&self, class: Class) -> bool {
        let is_well = match class {
            // A code waits for no account while another has room.
            Class::Critical => false,
            Class::Transactional => self.is_well,
            Class::Bulk => self.is_well_for_bulk,
        };
        is_well && self.free_for(class) == 0
    }

    /// A message of a class takes its place.
    pub const fn take(&mut self, class: Class) {
        self.free = self.free.saturating_sub(1);
        match class {
            Class::Critical => {}
            Class::Transactional => self.free_for_others = self.free_for_others.saturating_sub(1),
            Class::Bulk => {
                self.free_for_others = self.free_for_others.saturating_sub(1);
                self.free_for_bulk = self.free_for_bulk.saturating_sub(1);
            }
        }
    }
}

/// A due row with the facts that decide about it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The row.
    pub delivery: Delivery,
    /// The suppressions that its address has.
    pub suppressions: Vec<Hit>,
    /// Whether its tenant may send.
    pub tenant_active: bool,
    /// Accounts that refused it for themselves in this generation: its author, or to carry it at all.
    pub refused_by: Vec<AccountId>,
    /// A newer delivery with its `collapse_key` is there.
    pub is_collapsed: bool,
}

/// Decides about candidates in order; those without a change keep their place, and nothing is written for them.
pub fn judge(rules: &Rules, plan: &ClaimPlan, candidates: &[Candidate], now: Timestamp) -> Vec<Change> {
    let mut capacity = plan.accounts.clone();
    candidates.iter().filter_map(|candidate| judge_one(rules, plan, &mut capacity, candidate, now)).collect()
}

fn judge_one(rules: &Rules, plan: &ClaimPlan, capacity: &mut [AccountCapacity], candidate: &Candidate, now: Timestamp) -> Option<Change> {
    let delivery = &candidate.delivery;
    if let Some(reason) = delivery.no_resend {
        return transition::stop(delivery, reason, now);
    }
    if candidate.is_collapsed {
        return transition::stop(delivery, Reason::Collapsed, now);
    }
    if let Some(change) = transition::expire(rules, delivery, now) {
        return Some(change);
    }
    if let Some(hit) = suppression::obeyed(&candidate.suppressions, delivery.class, delivery.sender.as_deref()) {
        let stopped = transition::stop(delivery, Reason::Suppressed, now);
        return stopped.map(|change| Change { suppression: Some(Note::StoppedBy(hit.id)), ..change });
    }
    if !candidate.tenant_active || plan.paused.holds(delivery) {
        return None;
    }
    let lane = plan.lanes.iter().find(|lane| lane.lane == delivery.lane)?;
    match choose(lane, plan, candidate, capacity, now) {
        Choice::Account(account) => transition::dispatch(delivery, account, plan.instance, plan.lease_until, now),
        Choice::NoRoom => None,
        Choice::Nobody => transition::step_aside(delivery, now),
    }
}

/// What the search for an account comes to.
enum Choice {
    /// This one takes it.
    Account(AccountId),
    /// Those that may take it have no room now.
    NoRoom,
    /// No account of the route may carry it.
    Nobody,
}

/// The first account of the route, in the order of this delivery, that may carry it and has room; after a failed call the
/// search begins behind the account that failed (S-111). One that refused it is asked again only when all have. For the account
/// that its weight drew it waits a while, as long as that is merely busy.
fn choose(lane: &LanePlan, plan: &ClaimPlan, candidate: &Candidate, capacity: &mut [AccountCapacity], now: Timestamp) -> Choice {
    let (delivery, refused_by) = (&candidate.delivery, &candidate.refused_by);
    let may =
        |account: &AccountId| plan.owners.serves(*account, delivery.tenant) && plan.sends_as.allows(*account, delivery.sender.as_deref());
    let route = order(&lane.route, delivery.id, |account| may(&account));
    let Some(first) = route.iter().find(|account| may(account)) else { return Choice::Nobody };
    let have_all_refused = route.iter().filter(|account| may(account)).all(|account| refused_by.contains(account));
    let failed = delivery.account.filter(|_| delivery.attempt_count > 0);
    let after = failed.and_then(|failed| route.iter().position(|account| *account == failed)).map_or(0, |position| position + 1);
    let around = route[after..].iter().chain(&route[..after]);
    let is_free = |account: &AccountId| !plan.paused.spares(*account, account == first);
    let is_drawn = lane.route.iter().any(|member| member.account == *first && member.weight.is_some_and(|weight| weight > 0));
    let is_busy = || capacity.iter().any(|room| room.account == *first && room.is_merely_busy(lane.class));
    if is_drawn && is_patient(delivery, now) && is_free(first) && !refused_by.contains(first) && is_busy() {
        return Choice::NoRoom;
    }
    for account in around.filter(|account| may(account) && is_free(account) && (have_all_refused || !refused_by.contains(account))) {
        if let Some(room) = capacity.iter_mut().find(|room| room.account == *account && room.free_for(lane.class) > 0) {
            room.take(lane.class);
            return Choice::Account(*account);
        }
    }
    Choice::NoRoom
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
