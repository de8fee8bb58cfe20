//! Who may call: keys and tenants as people change them, each change with its line in the audit.

use tidings_core::ids::TenantId;
use tidings_core::store::{ApiKey, Deed, KeyFilter};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use super::{World, at, unique_id};

fn key(tenant: TenantId, hash: &[u8], kind: &str) -> ApiKey {
    ApiKey {
        id: unique_id(at(0)).as_uuid(),
        tenant,
        name: "shop".to_owned(),
        key_hash: hash.to_vec(),
        kind: kind.to_owned(),
        scopes: vec!["send".to_owned(), "send:critical".to_owned()],
        expires_at: None,
        revoked_at: None,
    }
}

fn entry(action: &'static str, now: Timestamp) -> Deed {
    let actor = "cli".to_owned();
    Deed { at: now, tenant: None, actor, action, subject: "a subject".to_owned(), reason: Some("a reason".to_owned()) }
}

async fn ids(world: &World, filter: KeyFilter) -> Vec<Uuid> {
    world.store.access().page(&filter).await.expect("a page").into_iter().map(|key| key.id).collect()
}

/// S-210: a key is found with its tenant, and managed inside it.
pub async fn a_key_is_found_with_its_tenant(world: &World) {
    let access = world.store.access();
    let other = access.make_tenant("acme", &entry("tenant.created", at(1))).await.unwrap().expect("it is new");
    assert_eq!(access.make_tenant("acme", &entry("tenant.created", at(1))).await.unwrap(), None, "there is one already");
    let (own, test, foreign) = (key(world.tenant, b"1", "live"), key(world.tenant, b"2", "test"), key(other.id, b"3", "live"));
    for key in [&own, &test, &foreign, &foreign] {
        access.issue(key, None, &entry("key.created", at(1))).await.unwrap();
    }
    assert_eq!(access.principal(b"3").await.unwrap(), Some((foreign.clone(), other)));
    assert!(access.principal(b"4").await.unwrap().is_none());
    assert_eq!(access.key(own.id).await.unwrap(), Some(own.clone()));
    let of = |kinds: &[&str], before, limit| {
        let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        KeyFilter { tenant: Some(world.tenant), kinds, before, limit }
    };
    assert_eq!(ids(world, of(&["live", "test"], None, 10)).await, [test.id, own.id]);
    assert_eq!(ids(world, of(&["live"], None, 10)).await, [own.id]);
    assert_eq!(ids(world, of(&["live", "test"], Some(test.id), 1)).await, [own.id]);
    assert_eq!(
        world.count("audit_log", "action = 'key.created' AND CAST(detail AS text) LIKE '%a reason%'").await,
        3,
        "the same again is nothing"
    );
    assert_eq!(world.count("audit_log", &format!("action = 'tenant.created' AND tenant_id = {}", foreign.tenant)).await, 1);
}

/// An old key ends with its overlap, never later than it would have; a revoked one ends at once, and once.
pub async fn keys_end_when_they_are_followed_or_revoked(world: &World) {
    let access = world.store.access();
    let (long, short) = (key(world.tenant, b"long", "live"), ApiKey { expires_at: Some(at(10)), ..key(world.tenant, b"short", "live") });
    access.issue(&long, None, &entry("key.created", at(1))).await.unwrap();
    access.issue(&short, None, &entry("key.created", at(1))).await.unwrap();
    for (earlier, hash) in [(long.id, b"a"), (short.id, b"b")] {
        access.issue(&key(world.tenant, hash, "live"), Some((earlier, at(50))), &entry("key.rotated", at(2))).await.unwrap();
    }
    let expiry = |id| async move { access.key(id).await.unwrap().expect("it is there").expires_at };
    assert_eq!((expiry(long.id).await, expiry(short.id).await), (Some(at(50)), Some(at(10))));
    assert!(access.revoke(long.id, &entry("key.revoked", at(5))).await.unwrap());
    assert!(!access.revoke(long.id, &entry("key.revoked", at(6))).await.unwrap());
    assert!(!access.revoke(unique_id(at(0)).as_uuid(), &entry("key.revoked", at(6))).await.unwrap());
    assert_eq!(access.principal(b"long").await.unwrap().expect("it is there").0.revoked_at, Some(at(5)));
    assert_eq!(world.count("audit_log", "action = 'key.revoked'").await, 1);
    assert_eq!(world.count("audit_log", "action = 'key.rotated'").await, 2);
}

/// A tenant that is disabled is so for every key of it, until it is enabled again.
pub async fn a_tenant_is_disabled_and_enabled_by_name(world: &World) {
    let access = world.store.access();
    access.issue(&key(world.tenant, b"1", "live"), None, &entry("key.created", at(1))).await.unwrap();
    let is_active = || async { access.principal(b"1").await.unwrap().expect("it is there").1.active };
    assert!(is_active().await);
    assert!(access.set_active("default", false, &entry("tenant.disabled", at(2))).await.unwrap());
    assert!(!access.set_active("default", false, &entry("tenant.disabled", at(2))).await.unwrap(), "it is so already");
    assert!(!is_active().await);
    assert!(access.set_active("default", true, &entry("tenant.enabled", at(3))).await.unwrap());
    assert!(is_active().await);
    assert!(!access.set_active("nobody", false, &entry("tenant.disabled", at(4))).await.unwrap());
    assert_eq!(world.count("audit_log", &format!("action LIKE 'tenant.%' AND tenant_id = {}", world.tenant)).await, 2);
}
