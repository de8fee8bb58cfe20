//! What the way of a delivery asks of the store: commits, leases, rates, switches, and how long the lanes are.
//! Each is one call of the module that holds the SQL.

use std::time::Duration;

use async_trait::async_trait;
use tidings_core::ids::{DeliveryId, InstanceId, TenantId};
use tidings_core::policy::Rules;
use tidings_core::pool;
use tidings_core::slices::{Ask, Slice};
use tidings_core::store::{
    Depth, Gauges, OpenCalls, Ordering, Outbox, Quotas, Rates, StoreError, StoredOutgoing, Sweep, Swept, SwitchedBy, Switches, WriteBatch,
    WriteResults,
};
use tidings_core::switches::{Scope, Switch};
use tidings_core::time::Timestamp;

use crate::{SqliteStore, commit, gauges, order, quotas, rates, read, sweep, switches};

#[async_trait]
impl Outbox for SqliteStore {
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
        commit::commit(self, rules, &batch, now).await
    }

    fn committers(&self) -> usize {
        1
    }

    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        _now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError> {
        sweep::renew(self.writer().await?.connection(), instance, running, until).await
    }

    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        sweep::sweep(&mut *self.writer().await?, rules, sweep, limit, now).await
    }

    async fn void_leases(&self, now: Timestamp) -> Result<u64, StoreError> {
        sweep::void_leases(self.writer().await?.connection(), now).await
    }

    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
        read::outgoing(&self.readers, ids).await
    }
}

#[async_trait]
impl Ordering for SqliteStore {
    async fn skip_stuck(&self, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        order::skip_stuck(&mut *self.writer().await?, limit, now).await
    }
}

#[async_trait]
impl Rates for SqliteStore {
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
        Ok(rates::draw(&self.rates, asks))
    }
}

#[async_trait]
impl Quotas for SqliteStore {
    async fn draw_calls(&self, asks: &[pool::Ask]) -> Result<Vec<pool::Drawn>, StoreError> {
        quotas::draw(&mut *self.writer().await?, asks).await
    }

    async fn give_calls_back(&self, rests: &[pool::Rest]) -> Result<(), StoreError> {
        quotas::give_back(&mut *self.writer().await?, rests).await
    }

    async fn calls_used(&self, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
        quotas::used(&self.readers, days).await
    }
}

#[async_trait]
impl Switches for SqliteStore {
    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        switches::switches(&self.readers).await
    }

    async fn set_switch(&self, scope: &Scope, paused: bool, until: Option<Timestamp>, by: &SwitchedBy) -> Result<(), StoreError> {
        switches::set_switch(self.writer().await?.connection(), scope, paused, until, by).await
    }

    async fn clear_switch(&self, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
        switches::clear_switch(self.writer().await?.connection(), scope, by).await
    }

    async fn disabled_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        switches::disabled_tenants(&self.readers).await
    }

    async fn note_act(&self, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
        switches::note(self.writer().await?.connection(), action, subject, by).await
    }

    async fn open_calls(&self) -> Result<Vec<OpenCalls>, StoreError> {
        switches::open_calls(&self.readers).await
    }
}

#[async_trait]
impl Gauges for SqliteStore {
    async fn depths(&self, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
        gauges::depths(&self.readers, now).await
    }

    async fn horizon_age(&self) -> Result<Duration, StoreError> {
        // One process writes, in one transaction at a time.
        Ok(Duration::ZERO)
    }
}
