//! What operators and the service itself look after: names and keys, acts, suppressions, what is erased, and moves.
//! Each is one call of the module that holds the SQL.

use async_trait::async_trait;
use tidings_core::acts::Act;
use tidings_core::ids::{AccountId, InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::policy::Rules;
use tidings_core::retention::{Kept, Retention};
use tidings_core::store::{
    Access, Acted, Acts, ApiKey, Asked, DeadLetter, DeadLetterFilter, Deed, Due, DueNotification, ExportError, ImportError, Keeping,
    KeyFilter, Moving, NewSuppression, Owned, Registry, Sink, Source, StoreError, StoredSuppression, Suppressed, SuppressionFilter,
    Suppressions, Tenant,
};
use tidings_core::suppression::Hit;
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class, Mode};
use uuid::Uuid;

use crate::{PostgresStore, access, acts, keeping, limited, limited_write, moving, registry, schema, suppressions};

#[async_trait]
impl Registry for PostgresStore {
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        limited(registry::setting(self, key)).await
    }

    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        limited_write(registry::settle_setting(self, key, value)).await
    }

    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError> {
        limited_write(registry::ensure_tenant(self, name)).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        limited(registry::tenants(self)).await
    }

    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        limited_write(registry::add_key(self, key)).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        limited(registry::keys(self)).await
    }

    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
        limited(registry::key_by_hash(self, key_hash)).await
    }

    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
        limited_write(registry::ensure_accounts(self, accounts)).await
    }

    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError> {
        limited(registry::account_names(self)).await
    }

    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
        limited_write(registry::ensure_lanes(self, lanes)).await
    }

    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
        limited(registry::lanes(self)).await
    }

    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
        schema::partitions_ahead(self, now).await;
        limited_write(registry::register_instance(self, now, config_digest)).await
    }
}

#[async_trait]
impl Access for PostgresStore {
    async fn principal(&self, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
        limited(access::principal(self, key_hash)).await
    }

    async fn page(&self, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
        limited(access::page(self, filter)).await
    }

    async fn key(&self, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
        limited(access::key(self, id)).await
    }

    async fn issue(&self, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
        limited_write(access::issue(self, key, after, entry)).await
    }

    async fn revoke(&self, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(access::revoke(self, id, entry)).await
    }

    async fn make_tenant(&self, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
        limited_write(access::make_tenant(self, name, entry)).await
    }

    async fn set_active(&self, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(access::set_active(self, name, active, entry)).await
    }
}

#[async_trait]
impl Acts for PostgresStore {
    async fn act(&self, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
        acts::act(self, rules, acts, now).await
    }

    async fn dead_letters(&self, tenant: TenantId, mode: Mode, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        limited(acts::dead_letters(self, tenant, mode, filter)).await
    }
}

#[async_trait]
impl Suppressions for PostgresStore {
    async fn add(&self, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
        limited_write(suppressions::add(self, items, actor)).await
    }

    async fn page(&self, tenant: TenantId, mode: Mode, filter: &SuppressionFilter) -> Result<Vec<StoredSuppression>, StoreError> {
        limited(suppressions::page(self, tenant, mode, filter)).await
    }

    async fn of(&self, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
        limited(suppressions::of(self, asked)).await
    }

    async fn hits(&self, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
        limited(suppressions::hits(self, asked, now)).await
    }

    async fn remove(&self, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        limited_write(suppressions::remove(self, tenant, mode, id, entry)).await
    }
}

#[async_trait]
impl Keeping for PostgresStore {
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError> {
        limited_write(keeping::take_run(self, job, window, instance, now)).await
    }

    async fn due(&self, kept: Kept, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Due, StoreError> {
        limited(keeping::due(self, kept, keep, after, now)).await
    }

    fn rows_at_once(&self) -> usize {
        keeping::ROWS_AT_ONCE
    }

    async fn erase(&self, kept: Kept, keep: &Retention, chunk: &[DueNotification], now: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::erase(self, kept, keep, chunk, now)).await
    }

    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::purge_events(self, before)).await
    }

    async fn purge_rest(&self, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
        limited_write(keeping::purge_rest(self, keep, now)).await
    }

    async fn carry_log_over(&self) -> Result<i64, StoreError> {
        // The server's own checkpointer does.
        Ok(0)
    }

    async fn give_back(&self, keep: &Retention, now: Timestamp) -> Result<bool, StoreError> {
        limited_write(keeping::give_back(self, keep, now)).await
    }
}

#[async_trait]
impl Moving for PostgresStore {
    async fn unfreeze(&self) -> Result<bool, StoreError> {
        limited_write(moving::unfreeze(self)).await
    }

    async fn seen_since(&self, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
        limited(moving::seen_since(self, since)).await
    }

    async fn under_way(&self) -> Result<Vec<Owned>, StoreError> {
        limited(moving::under_way(self)).await
    }

    async fn export(&self, sink: &mut dyn Sink) -> Result<(), ExportError> {
        moving::export(self, sink).await
    }

    async fn import(&self, source: &mut dyn Source) -> Result<(), ImportError> {
        moving::import(self, source).await
    }

    async fn settle_feed(&self) -> Result<bool, StoreError> {
        moving::settle_feed(self).await
    }
}
