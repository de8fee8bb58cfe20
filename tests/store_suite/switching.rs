//! What operators pause, and what is measured.

use std::time::Duration;

use tidings_core::judge::ClaimPlan;
use tidings_core::state::State;
use tidings_core::store::{OpenCalls, SwitchedBy};
use tidings_core::switches::{Paused, Scope};
use tidings_core::words::Class;

use super::{World, at};

fn by(reason: Option<&str>) -> SwitchedBy {
    SwitchedBy { actor: "key_1".to_owned(), reason: reason.map(str::to_owned), at: at(0) }
}

/// A switch is read back by every process, its version rises with each change, and every change is in the audit log.
pub async fn a_switch_is_seen_by_every_process_and_audited(world: &World) {
    let (bulk, relay) = (Scope::Class(Class::Bulk), Scope::Account("relay".to_owned()));
    let pauses = world.store.pauses();
    pauses.set_switch(&bulk, true, Some(at(60)), &by(Some("storm"))).await.unwrap();
    pauses.set_switch(&relay, true, None, &by(None)).await.unwrap();
    // The same again is nothing.
    pauses.set_switch(&bulk, true, Some(at(60)), &by(Some("storm"))).await.unwrap();
    for store in world.stores() {
        let switches = store.pauses().switches().await.unwrap();
        let seen: Vec<_> = switches.iter().map(|one| (one.scope.clone(), one.paused, one.until, one.version)).collect();
        assert_eq!(seen, [(relay.clone(), true, None, 2), (bulk.clone(), true, Some(at(60)), 1)]);
        assert_eq!(switches[1].reason.as_deref(), Some("storm"));
    }
    assert!(pauses.clear_switch(&relay, &by(None)).await.unwrap());
    assert!(!pauses.clear_switch(&relay, &by(None)).await.unwrap());
    pauses.set_switch(&bulk, false, None, &by(None)).await.unwrap();
    pauses.note_act("account.tested", "relay", &by(None)).await.unwrap();
    assert_eq!(world.db.number("SELECT count(*) FROM audit_log WHERE actor = 'key_1'").await, 5);
    assert_eq!(world.db.number("SELECT count(*) FROM audit_log WHERE action = 'switch.paused' AND subject = 'class:bulk'").await, 1);
}

/// Rows that are paused stand in nobody's way, whatever of them is paused, and go out when it is over.
pub async fn paused_rows_keep_their_place_and_stand_in_nobodys_way(world: &World) {
    for number in 0..20 {
        let mut paused = world.email(&format!("paused-{number}"));
        paused.category = "digest".to_owned();
        world.taken(paused).await;
    }
    let free = world.taken(world.email("free")).await;

    let mut plan = world.plan(4, at(1));
    for lane in &mut plan.lanes {
        lane.limit = 4;
    }
    let everything = Paused { tenants: vec![world.tenant], ..Paused::default() };
    let claimed = world.claim_by(ClaimPlan { paused: everything, ..plan.clone() }, at(1)).await;
    assert!(claimed.dispatched.is_empty());
    let digest = Paused { categories: vec!["digest".to_owned()], ..Paused::default() };
    let claimed = world.claim_by(ClaimPlan { paused: digest, ..plan.clone() }, at(1)).await;
    assert_eq!(claimed.dispatched.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [free]);
    let resumed = world.claim_by(plan, at(2)).await;
    assert_eq!(resumed.dispatched.len(), 4);
}

/// What runs and what is uncertain is counted for its account; depth and age are those of the lane.
pub async fn open_calls_depth_and_age_are_measured(world: &World) {
    assert_eq!(world.store.pauses().open_calls().await.unwrap(), []);
    assert_eq!(world.store.gauges().depths(at(0)).await.unwrap(), []);
    for key in ["a", "b", "c"] {
        world.taken(world.email(key)).await;
    }
    world.claim(1, at(1)).await;
    let calls = world.store.pauses().open_calls().await.unwrap();
    assert_eq!(calls, [OpenCalls { account: world.account, in_flight: 1, ambiguous: 0 }]);
    let lane = world.lane(Class::Transactional);
    let mut depths: Vec<_> = world.store.gauges().depths(at(30)).await.unwrap();
    depths.sort_by_key(|depth| depth.rows);
    let seen: Vec<_> = depths.iter().map(|depth| (depth.lane, depth.state, depth.rows, depth.ready_since)).collect();
    assert_eq!(seen, [(lane, State::Dispatching, 1, None), (lane, State::Queued, 2, Some(at(0)))]);
    assert!(world.store.gauges().horizon_age().await.unwrap() < Duration::from_secs(60));
}
