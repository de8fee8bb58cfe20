//! What names promise: made once, by whoever comes first, and the same for everybody.

use std::collections::HashSet;
use std::sync::Arc;

use tidings_core::ids::TenantId;
use tidings_core::store::{ApiKey, StoreError};
use tidings_core::words::{Channel, Class};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::World;
use super::world::{at, unique_id};

/// Any number of processes agree on one master secret.
pub async fn a_setting_is_settled_by_one_of_many(world: &World) {
    let stores = world.stores();
    let barrier = Arc::new(Barrier::new(8));
    let mut settlers = JoinSet::new();
    for n in 0..8_u8 {
        let (store, barrier) = (stores[usize::from(n) % stores.len()].clone(), barrier.clone());
        settlers.spawn(async move {
            barrier.wait().await;
            store.settle_setting("master", &[n, 0, 255]).await.unwrap()
        });
    }
    let values: HashSet<_> = settlers.join_all().await.into_iter().collect();

    assert_eq!(values.len(), 1);
    assert_eq!(world.store.setting("master").await.unwrap(), values.into_iter().next());
    assert_eq!(world.store.setting("other").await.unwrap(), None);
}

/// A name keeps its number, and two names never share one.
pub async fn names_keep_their_numbers(world: &World) {
    let accounts = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "smtp".to_owned())).collect::<Vec<_>>();
    let first = world.store.ensure_accounts(&accounts(&["b", "a"])).await.unwrap();
    let again = world.store.ensure_accounts(&accounts(&["a", "c", "b"])).await.unwrap();
    assert_eq!((again[0], again[2]), (first[1], first[0]));
    assert_eq!(again.iter().collect::<HashSet<_>>().len(), 3);
    let names = world.store.account_names().await.unwrap();
    assert!(names.contains(&(first[0], "b".to_owned())) && names.contains(&(world.account, "relay".to_owned())));

    let lanes = [(Channel::Email, Class::Bulk, "email".to_owned()), (Channel::Email, Class::Bulk, "second".to_owned())];
    let numbers = world.store.ensure_lanes(&lanes).await.unwrap();
    assert_eq!(numbers[0], world.lane(Class::Bulk));
    let known = world.store.lanes().await.unwrap();
    assert!(known.contains(&(numbers[1], Channel::Email, Class::Bulk, "second".to_owned())));
    assert_eq!(known.len(), 4);

    let tenant = world.store.ensure_tenant("default").await.unwrap();
    assert_eq!((tenant.id, tenant.active), (world.tenant, true));
    assert_eq!(world.store.tenants().await.unwrap().len(), 1);
}

/// Processes that start at once make each name once.
pub async fn names_are_made_once_by_processes_that_start_at_once(world: &World) {
    let stores = world.stores();
    let barrier = Arc::new(Barrier::new(6));
    let mut starters = JoinSet::new();
    for n in 0..6 {
        let (store, barrier) = (stores[n % stores.len()].clone(), barrier.clone());
        starters.spawn(async move {
            barrier.wait().await;
            let tenant = store.ensure_tenant("shop").await.unwrap().id;
            let accounts = [("one".to_owned(), "smtp".to_owned()), ("two".to_owned(), "smtp".to_owned())];
            let lanes = [(Channel::Sms, Class::Bulk, "sms".to_owned()), (Channel::Sms, Class::Critical, "sms".to_owned())];
            let ids = (store.ensure_accounts(&accounts).await.unwrap(), store.ensure_lanes(&lanes).await.unwrap());
            (tenant, ids, store.register_instance(at(0), b"digest").await.unwrap())
        });
    }
    let started = starters.join_all().await;

    assert_eq!(started.iter().map(|(tenant, ids, _)| (tenant, ids)).collect::<HashSet<_>>().len(), 1);
    assert_eq!(started.iter().map(|(_, _, instance)| instance).collect::<HashSet<_>>().len(), 6, "each process is its own");
}

/// Keys are found by their hash; the same key again changes nothing.
pub async fn keys_are_found_by_hash(world: &World) {
    let key = ApiKey {
        id: unique_id(at(0)).as_uuid(),
        tenant: world.tenant,
        name: "first".to_owned(),
        key_hash: vec![7; 32],
        kind: "test".to_owned(),
        scopes: vec!["send".to_owned(), "send:critical".to_owned()],
        expires_at: Some(at(900)),
        revoked_at: None,
    };
    world.store.add_key(&key).await.unwrap();
    world.store.add_key(&ApiKey { id: unique_id(at(0)).as_uuid(), name: "again".to_owned(), ..key.clone() }).await.unwrap();

    assert_eq!(world.store.keys().await.unwrap(), std::slice::from_ref(&key));
    assert_eq!(world.store.key_by_hash(&[7; 32]).await.unwrap(), Some(key));
    assert_eq!(world.store.key_by_hash(&[8; 32]).await.unwrap(), None);
}

/// A key of nobody is refused.
pub async fn a_key_needs_a_tenant(world: &World) {
    let key = ApiKey {
        id: unique_id(at(0)).as_uuid(),
        tenant: TenantId(9_999),
        name: "nobody's".to_owned(),
        key_hash: vec![9; 32],
        kind: "live".to_owned(),
        scopes: Vec::new(),
        expires_at: None,
        revoked_at: None,
    };
    assert!(matches!(world.store.add_key(&key).await, Err(StoreError::Refused(_))));
}

/// Writing is proven by writing, again and again, with what the process is configured to at that time.
pub async fn writing_is_proven_by_writing(world: &World) {
    world.store.prove_writable(world.instance, b"digest", at(10)).await.unwrap();
    world.store.prove_writable(world.instance, b"reloaded", at(20)).await.unwrap();

    let (seen, digest) = (world.db.instant(at(20)), world.db.bytes(b"reloaded"));
    let is_current = format!("id = {} AND seen_at = {seen} AND config_digest = {digest}", world.instance);
    assert_eq!(world.count("instances", &is_current).await, 1);
}

/// S-231, S-232: migrations may be run at any time, and a schema that needs a newer binary says so.
pub async fn a_schema_that_needs_a_newer_binary_is_refused(world: &World) {
    world.store.migrate().await.unwrap();
    world.store.settle_setting("schema_requires", b"1").await.unwrap();
    world.store.migrate().await.unwrap();

    world.sql("DELETE FROM settings WHERE key = 'schema_requires'").await;
    world.store.settle_setting("schema_requires", b"9999").await.unwrap();
    assert!(world.store.migrate().await.is_err());
}
