//! What the auditor promises: a relation that is broken by hand is named, a whole store is not accused (S-031).

use tidings_core::store::Violation;

use super::World;
use super::world::at;

async fn found(world: &World) -> Vec<(Violation, i64)> {
    let findings = world.store.audit(at(-3_600), at(3_600), at(1_000)).await.unwrap();
    findings.into_iter().map(|finding| (finding.violation, finding.count)).collect()
}

/// Whatever the port itself writes holds together.
pub async fn a_store_that_only_the_port_wrote_is_clean(world: &World) {
    let done = world.dispatched("done", at(1)).await;
    world.moved(&done, super::accepted(), at(2)).await;
    world.dispatched("running", at(990)).await;
    world.taken(world.email("waiting")).await;
    assert_eq!(found(world).await, []);
}

/// Each broken relation is named with a row of it.
pub async fn each_broken_relation_is_named(world: &World) {
    let id = world.taken(world.email("record-gone")).await;
    world.sql(&format!("DELETE FROM deliveries WHERE id = {}", world.db.id(id.as_uuid()))).await;
    assert_eq!(found(world).await, [(Violation::OpenWithoutRecord, 1), (Violation::DeliveriesMissing, 1)]);
    world.sql(&format!("DELETE FROM queue WHERE id = {}", world.db.id(id.as_uuid()))).await;
    assert_eq!(found(world).await, [(Violation::DeliveriesMissing, 1)]);

    let id = world.taken(world.email("queue-gone")).await;
    world.sql(&format!("DELETE FROM queue WHERE id = {}", world.db.id(id.as_uuid()))).await;
    assert_eq!(found(world).await, [(Violation::RecordWithoutQueue, 1), (Violation::DeliveriesMissing, 1)]);

    let id = world.taken(world.email("tenant-gone")).await;
    let (row, notification) = (world.db.id(id.as_uuid()), world.db.id(id.notification().as_uuid()));
    world.sql(&format!("DELETE FROM queue WHERE id = {row}")).await;
    world.sql(&format!("DELETE FROM deliveries WHERE id = {row}")).await;
    world.sql(&format!("UPDATE notifications SET tenant_id = 32000 WHERE id = {notification}")).await;
    assert_eq!(found(world).await, [(Violation::RecordWithoutQueue, 1), (Violation::DeliveriesMissing, 2)]);

    world.dispatched("lease-overdue", at(1)).await;
    let overdue = world.store.audit(at(-3_600), at(3_600), at(62)).await.unwrap();
    assert!(overdue.iter().any(|finding| finding.violation == Violation::LeaseOverdue && finding.count == 1), "{overdue:?}");
}
