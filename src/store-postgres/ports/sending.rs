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

use crate::{PostgresStore, commit, gauges, limited, limited_write, order, quotas, rates, read, schema, sweep, switches};

#[async_trait]
impl Outbox for PostgresStore {
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
        commit::commit(self, rules, batch, now).await
    }

    fn committers(&self) -> usize {
        self.committers
    }

    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError> {
        limited(sweep::renew(self, instance, running, until, now)).await
    }

    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        schema::partitions_ahead(self, now).await;
        limited_write(sweep::sweep(self, rules, sweep, limit, now)).await
    }

    async fn void_leases(&self, _now: Timestamp) -> Result<u64, StoreError> {
        // Owners may live in other processes: leases end by themselves.
        Ok(0)
    }

    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError> {
        limited(read::outgoing(self, ids)).await
    }
}

#[async_trait]
impl Ordering for PostgresStore {
    async fn skip_stuck(&self, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError> {
        limited_write(order::skip_stuck(self, limit, now)).await
    }
}

#[async_trait]
impl Rates for PostgresStore {
    async fn draw(&self, asks: &[Ask]) -> Result<Vec<Slice>, StoreError> {
        limited_write(rates::draw(self, asks)).await
    }
}

#[async_trait]
impl Quotas for PostgresStore {
    async fn draw_calls(&self, asks: &[pool::Ask]) -> Result<Vec<pool::Drawn>, StoreError> {
        limited_write(quotas::draw(self, asks)).await
    }

    async fn give_calls_back(&self, rests: &[pool::Rest]) -> Result<(), StoreError> {
        limited_write(quotas::give_back(self, rests)).await
    }

    async fn calls_used(&self, days: &[(String, Timestamp)]) -> Result<Vec<i64>, StoreError> {
        limited(quotas::used(self, days)).await
    }
}

#[async_trait]
impl Switches for PostgresStore {
    async fn switches(&self) -> Result<Vec<Switch>, StoreError> {
        limited(switches::switches(self)).await
    }

    async fn set_switch(&self, scope: &Scope, paused: bool, until: Option<Timestamp>, by: &SwitchedBy) -> Result<(), StoreError> {
        limited_write(switches::set_switch(self, scope, paused, until, by)).await
    }

    async fn clear_switch(&self, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError> {
        limited_write(switches::clear_switch(self, scope, by)).await
    }

    async fn disabled_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        limited(switches::disabled_tenants(self)).await
    }

    async fn note_act(&self, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError> {
        limited_write(switches::note(self, action, subject, by)).await
    }

    async fn open_calls(&self) -> Result<Vec<OpenCalls>, StoreError> {
        limited(switches::open_calls(self)).await
    }
}

#[async_trait]
impl Gauges for PostgresStore {
    async fn depths(&self, now: Timestamp) -> Result<Vec<Depth>, StoreError> {
        limited(gauges::depths(self, now)).await
    }

    async fn horizon_age(&self) -> Result<Duration, StoreError> {
        limited(gauges::horizon_age(self)).await
    }
}
