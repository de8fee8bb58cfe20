//! What operators have paused, which tenants they disabled and whether the store is frozen, as this process knows it: read
//! from the store every second, and at once after a change made here. What a pause holds back is core's decision.

use std::collections::HashMap;

use arc_swap::ArcSwap;
use tidings_core::ids::TenantId;
use tidings_core::store::{Store, StoreError};
use tidings_core::switches::{Paused, Scope, Switch};
use tidings_core::time::Timestamp;

use crate::freeze;
use crate::routing::Routing;

#[derive(Default)]
struct Known {
    switches: Vec<Switch>,
    /// The numbers of the tenants that switches name.
    tenants: HashMap<String, TenantId>,
    disabled: Vec<TenantId>,
    is_frozen: bool,
}

/// The switches as they were a moment ago.
#[derive(Default)]
pub struct Pauses(ArcSwap<Known>);

impl Pauses {
    /// Reads them anew. A store that does not answer changes nothing: without it nothing is claimed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let is_frozen = freeze::since(store).await?.is_some();
        let switches = store.pauses().switches().await?;
        let names_tenants = switches.iter().any(|switch| matches!(switch.scope, Scope::Tenant(_)));
        let tenants = if names_tenants { store.tenants().await? } else { Vec::new() };
        let tenants = tenants.into_iter().map(|tenant| (tenant.name, tenant.id)).collect();
        let disabled = store.pauses().disabled_tenants().await?;
        self.0.store(Known { switches, tenants, disabled, is_frozen }.into());
        Ok(())
    }

    /// Whether the installation moves: nothing is taken, sent or changed here.
    pub fn is_frozen(&self) -> bool {
        self.0.load().is_frozen
    }

    /// What is in force now.
    pub fn at(&self, now: Timestamp, routing: &Routing) -> Paused {
        let known = self.0.load();
        let account = |name: &str| routing.accounts.iter().find(|account| account.name == name).map(|account| account.id);
        let paused = Paused::of(&known.switches, now, |name| known.tenants.get(name).copied(), account);
        Paused { all: paused.all || known.is_frozen, ..paused }
    }

    /// Whether a tenant is disabled: its rows wait.
    pub fn is_disabled(&self, tenant: TenantId) -> bool {
        self.0.load().disabled.contains(&tenant)
    }

    /// The switch of an account that is in force now.
    pub fn of_account(&self, name: &str, now: Timestamp) -> Option<Switch> {
        let known = self.0.load();
        let is_its = |switch: &&Switch| matches!(&switch.scope, Scope::Account(of) if of == name) && switch.is_in_force(now);
        known.switches.iter().find(is_its).cloned()
    }
}
