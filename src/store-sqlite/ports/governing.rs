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

use crate::{SqliteStore, access, acts, keeping, moving, registry, suppressions};

#[async_trait]
impl Registry for SqliteStore {
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        registry::setting(&self.readers, key).await
    }

    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        registry::settle_setting(self.writer().await?.connection(), key, value).await
    }

    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError> {
        registry::ensure_tenant(self.writer().await?.connection(), name).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        registry::tenants(&self.readers).await
    }

    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        registry::add_key(self.writer().await?.connection(), key).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        registry::keys(&self.readers).await
    }

    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError> {
        registry::key_by_hash(&self.readers, key_hash).await
    }

    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError> {
        registry::ensure_accounts(&mut *self.writer().await?, accounts).await
    }

    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError> {
        registry::account_names(&self.readers).await
    }

    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError> {
        registry::ensure_lanes(&mut *self.writer().await?, lanes).await
    }

    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError> {
        registry::lanes(&self.readers).await
    }

    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError> {
        registry::register_instance(self.writer().await?.connection(), now, config_digest).await
    }
}

#[async_trait]
impl Access for SqliteStore {
    async fn principal(&self, key_hash: &[u8]) -> Result<Option<(ApiKey, Tenant)>, StoreError> {
        access::principal(&self.readers, key_hash).await
    }

    async fn page(&self, filter: &KeyFilter) -> Result<Vec<ApiKey>, StoreError> {
        access::page(&self.readers, filter).await
    }

    async fn key(&self, id: Uuid) -> Result<Option<ApiKey>, StoreError> {
        access::key(&self.readers, id).await
    }

    async fn issue(&self, key: &ApiKey, after: Option<(Uuid, Timestamp)>, entry: &Deed) -> Result<(), StoreError> {
        access::issue(&mut *self.writer().await?, key, after, entry).await
    }

    async fn revoke(&self, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        access::revoke(&mut *self.writer().await?, id, entry).await
    }

    async fn make_tenant(&self, name: &str, entry: &Deed) -> Result<Option<Tenant>, StoreError> {
        access::make_tenant(&mut *self.writer().await?, name, entry).await
    }

    async fn set_active(&self, name: &str, active: bool, entry: &Deed) -> Result<bool, StoreError> {
        access::set_active(&mut *self.writer().await?, name, active, entry).await
    }
}

#[async_trait]
impl Acts for SqliteStore {
    async fn act(&self, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>> {
        acts::act(self, rules, acts, now).await
    }

    async fn dead_letters(&self, tenant: TenantId, mode: Mode, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        acts::dead_letters(&self.readers, tenant, mode, filter).await
    }
}

#[async_trait]
impl Suppressions for SqliteStore {
    async fn add(&self, items: &[NewSuppression], actor: Option<&str>) -> Result<Vec<Suppressed>, StoreError> {
        suppressions::add(&mut *self.writer().await?, items, actor).await
    }

    async fn page(&self, tenant: TenantId, mode: Mode, filter: &SuppressionFilter) -> Result<Vec<StoredSuppression>, StoreError> {
        suppressions::page(&self.readers, tenant, mode, filter).await
    }

    async fn of(&self, asked: &Asked) -> Result<Vec<StoredSuppression>, StoreError> {
        suppressions::of(&self.readers, asked).await
    }

    async fn hits(&self, asked: &Asked, now: Timestamp) -> Result<Vec<(Vec<u8>, Hit)>, StoreError> {
        suppressions::hits(&self.readers, asked, now).await
    }

    async fn remove(&self, tenant: TenantId, mode: Mode, id: Uuid, entry: &Deed) -> Result<bool, StoreError> {
        suppressions::remove(&mut *self.writer().await?, tenant, mode, id, entry).await
    }
}

#[async_trait]
impl Keeping for SqliteStore {
    async fn take_run(&self, job: &str, window: Timestamp, instance: InstanceId, now: Timestamp) -> Result<bool, StoreError> {
        keeping::take_run(&mut *self.writer().await?, job, window, instance, now).await
    }

    async fn due(&self, kept: Kept, keep: &Retention, after: Option<NotificationId>, now: Timestamp) -> Result<Due, StoreError> {
        keeping::due(&self.readers, kept, keep, after, now).await
    }

    fn rows_at_once(&self) -> usize {
        keeping::CHUNK
    }

    async fn erase(&self, kept: Kept, keep: &Retention, chunk: &[DueNotification], now: Timestamp) -> Result<u64, StoreError> {
        keeping::erase(&mut *self.writer().await?, kept, keep, chunk, now).await
    }

    async fn purge_events(&self, before: Timestamp) -> Result<u64, StoreError> {
        keeping::purge_events(&mut *self.writer().await?, before).await
    }

    async fn purge_rest(&self, keep: &Retention, now: Timestamp) -> Result<u64, StoreError> {
        keeping::purge_rest(&mut *self.writer().await?, keep, now).await
    }

    async fn carry_log_over(&self) -> Result<i64, StoreError> {
        let writer_is_idle = self.writer.try_lock().is_ok();
        self.log.carry_over(writer_is_idle).await
    }

    async fn give_back(&self, _keep: &Retention, _now: Timestamp) -> Result<bool, StoreError> {
        keeping::give_back(&mut *self.writer().await?).await
    }
}

#[async_trait]
impl Moving for SqliteStore {
    async fn unfreeze(&self) -> Result<bool, StoreError> {
        moving::unfreeze(self.writer().await?.connection()).await
    }

    async fn seen_since(&self, since: Timestamp) -> Result<Vec<InstanceId>, StoreError> {
        moving::seen_since(&self.readers, since).await
    }

    async fn under_way(&self) -> Result<Vec<Owned>, StoreError> {
        moving::under_way(&self.readers).await
    }

    async fn export(&self, sink: &mut dyn Sink) -> Result<(), ExportError> {
        moving::export(&self.readers, sink).await
    }

    async fn import(&self, source: &mut dyn Source) -> Result<(), ImportError> {
        moving::import(&mut *self.writer().await?, source).await
    }

    async fn settle_feed(&self) -> Result<bool, StoreError> {
        // The file counts its events itself and is never without its count.
        Ok(false)
    }
}
