//! From configured accounts and routes to adapters and lanes. An adapter whose settings are still the same is kept, and its
//! connections with it.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tidings_core::adapter::{Adapter, SandboxMailbox};
use tidings_core::ids::LaneId;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::secrets::Keyring;
use tidings_core::store::{Store, StoreError};
use tidings_core::words::{Channel, Class};

use crate::clock::StoreClock;
use crate::config::{Account as Configured, Entry, Settings, Via};
use crate::routing::{Account, Owner, Route, Routing, SANDBOX_ROUTE};
use crate::sealed;
use crate::setup::Setup;
use crate::writer::{WriteError, Writer};

/// The name and kind of the built-in account.
pub const SANDBOX: &str = "sandbox";
/// The author of sandbox messages that name none.
const SANDBOX_FROM: &str = "tidings@sandbox.test";
/// Calls at a time, where an account does not say.
const DEFAULT_CONCURRENCY: u16 = 32;

/// What adapters need of the process.
#[derive(Clone)]
pub struct Workshop {
    /// The store's time.
    pub clock: Arc<StoreClock>,
    /// Carries what the sandbox keeps.
    pub writer: Writer,
    /// Seals it.
    pub keyring: Arc<Keyring>,
}

/// An account as the configuration has it, and its adapter.
struct Built {
    name: String,
    kind: String,
    adapter: Arc<dyn Adapter>,
    built_from: [u8; 32],
}

/// Every adapter of a configuration, in its order, the sandbox last.
pub struct Adapters(Vec<Built>);

/// Builds every adapter that `kept` does not have already. Reads files: nothing for a thread that has others waiting.
///
/// # Errors
/// When an account's settings cannot be used.
pub fn build(settings: &Settings, workshop: &Workshop, kept: Option<&Routing>) -> anyhow::Result<Adapters> {
    let mailbox: Arc<dyn SandboxMailbox> = Arc::new(StoredMailbox { writer: workshop.writer.clone(), keyring: workshop.keyring.clone() });
    let mut built = Vec::new();
    for (name, kind) in names(settings) {
        let own = settings.accounts.iter().find(|account| account.name == name);
        let built_from = built_from(settings, &kind, own);
        let known = kept.and_then(|kept| kept.accounts.iter().find(|account| account.name == name && account.built_from == built_from));
        let context = tidings_providers::Context {
            clock: workshop.clock.clone(),
            concurrency: usize::from(concurrency(own)),
            default_helo: settings.server.public_host(),
            dkim: settings.dkim.clone(),
            sandbox: Some(mailbox.clone()),
        };
        let adapter = match known {
            Some(known) => known.adapter.clone(),
            None => {
                let own_settings = own.map_or_else(|| serde_json::json!({}), |account| account.settings.clone());
                tidings_providers::build(&kind, own_settings, &context).with_context(|| format!("accounts.{name}"))?
            }
        };
        built.push(Built { name, kind, adapter, built_from });
    }
    Ok(Adapters(built))
}

/// Gives accounts and lanes their numbers in the store, and resolves every route.
///
/// # Errors
/// When the store does not answer.
pub async fn register(adapters: Adapters, settings: &Settings, store: &dyn Store) -> Result<Routing, StoreError> {
    let names = names(settings);
    let ids = store.ensure_accounts(&names).await?;
    let account = |(built, id): (Built, _)| {
        let own = settings.accounts.iter().find(|account| account.name == built.name);
        Arc::new(Account {
            id,
            name: built.name,
            kind: built.kind,
            adapter: built.adapter,
            built_from: built.built_from,
            from: own.map_or_else(|| SANDBOX_FROM.parse().ok(), |account| account.from.clone()),
            sends_as: own.map(|account| account.sends_as.clone()).unwrap_or_default(),
            owner: own.and_then(|account| account.tenant.clone()).map(Owner::new),
            is_on: own.is_none_or(|account| account.is_on()),
            concurrency: concurrency(own),
            rate: own.and_then(|account| account.rate).and_then(NonZeroU32::new),
            daily_cap: own.and_then(|account| account.daily_cap.clone()),
        })
    };
    let accounts: Vec<_> = adapters.0.into_iter().zip(ids).map(account).collect();
    warn_of_gone(&names, store).await?;
    let routes = lanes(settings, store, &accounts).await?;
    let former = former_lanes(settings, store, &routes, &accounts).await?;
    let routing = Routing { routes, former, accounts, sandbox_only: settings.is_sandbox_only() };
    for (account, tenant) in learn_owners(&routing, store).await? {
        tracing::warn!(account, tenant, "this account belongs to a tenant that is not there yet: until then it carries nothing");
    }
    Ok(routing)
}

/// Learns the numbers of tenants that accounts belong to; returns the names of accounts and tenants that are still unknown.
/// Asks the store only where there are some.
///
/// # Errors
/// When the store does not answer.
pub async fn learn_owners<'a>(routing: &'a Routing, store: &dyn Store) -> Result<Vec<(&'a str, &'a str)>, StoreError> {
    let unknown = || {
        let owned = routing.accounts.iter().filter_map(|account| Some((account.name.as_str(), account.owner.as_ref()?)));
        owned.filter(|(_, owner)| owner.id().is_none()).map(|(account, owner)| (account, owner.name()))
    };
    if unknown().next().is_some() {
        for tenant in store.tenants().await? {
            routing.learn(&tenant.name, tenant.id);
        }
    }
    Ok(unknown().collect())
}

/// Names and kinds of all accounts.
fn names(settings: &Settings) -> Vec<(String, String)> {
    let configured = settings.accounts.iter().map(|account| (account.name.clone(), account.kind.clone()));
    configured.chain([(SANDBOX.to_owned(), SANDBOX.to_owned())]).collect()
}

fn concurrency(own: Option<&Configured>) -> u16 {
    own.and_then(|account| account.concurrency).unwrap_or(DEFAULT_CONCURRENCY)
}

/// The digest of everything that an adapter is built from. What its files hold enters as it was when the configuration was
/// read, before the adapter reads them: should they change in between, the next reload builds it once more.
fn built_from(settings: &Settings, kind: &str, own: Option<&Configured>) -> [u8; 32] {
    let Some(own) = own else { return Sha256::digest(kind).into() };
    let parts = (kind, own.settings.to_string(), &own.material, concurrency(Some(own)));
    let shared = (settings.server.public_host(), settings.dkim.records());
    Sha256::digest(format!("{parts:?}{shared:?}")).into()
}

/// Accounts that sent once and are configured no longer: what is open with them has nobody to ask, and their webhooks are refused.
async fn warn_of_gone(configured: &[(String, String)], store: &dyn Store) -> Result<(), StoreError> {
    let former = store.account_names().await?;
    let open = store.pauses().open_calls().await?;
    for (id, account) in former.iter().filter(|(_, name)| !configured.iter().any(|(own, _)| own == name)) {
        let open = open.iter().find(|calls| calls.account == *id).map_or(0, |calls| calls.in_flight + calls.ambiguous);
        tracing::warn!(account, open, "this account is gone from the configuration: state = \"receive_only\" would let it finish");
    }
    Ok(())
}

/// A lane for each class and route that messages of it can meet, and one for the sandbox; critical first.
async fn lanes(settings: &Settings, store: &dyn Store, accounts: &[Arc<Account>]) -> Result<Vec<Route>, StoreError> {
    let channel = Channel::Email;
    let sandboxes = Class::ALL.iter().map(|class| (*class, None));
    let mut wanted: Vec<(Class, Option<Via>)> =
        settings.vias().into_iter().map(|(class, via)| (class, Some(via))).chain(sandboxes).collect();
    wanted.sort_by_key(|(class, _)| *class);
    let name = |via: &Option<Via>| via.as_ref().map_or_else(|| SANDBOX_ROUTE.to_owned(), Via::to_string);
    let rows: Vec<_> = wanted.iter().map(|(class, via)| (channel, *class, name(via))).collect();
    let ids: Vec<LaneId> = store.ensure_lanes(&rows).await?;
    let route = |((class, via), lane): ((Class, Option<Via>), _)| match via {
        Some(via) => route(settings, accounts, lane, class, &via),
        None => {
            let members = accounts.iter().filter(|account| account.kind == SANDBOX).cloned().collect();
            Route { lane, channel, class, name: SANDBOX_ROUTE.to_owned(), accounts: members, weights: Vec::new() }
        }
    };
    Ok(wanted.into_iter().zip(ids).map(route).collect())
}

fn route(settings: &Settings, accounts: &[Arc<Account>], lane: LaneId, class: Class, via: &Via) -> Route {
    let entries = settings.route(via, class);
    let named = |entry: &Entry| accounts.iter().find(|account| account.name == entry.account).cloned();
    let members = entries.iter().filter_map(named).collect();
    let weights = entries.iter().map_while(|entry| entry.weight).collect();
    Route { lane, channel: Channel::Email, class, name: via.to_string(), accounts: members, weights }
}

/// Lanes that the store knows beside those of the configuration: messages that were accepted under another one may wait there.
/// Each is carried by what carries such messages now. Those of an unknown kind are left to the newer version that made them.
async fn former_lanes(
    settings: &Settings,
    store: &dyn Store,
    routes: &[Route],
    accounts: &[Arc<Account>],
) -> Result<Vec<Route>, StoreError> {
    let stored = store.lanes().await?;
    let former =
        stored.into_iter().filter(|(lane, channel, ..)| *channel == Channel::Email && !routes.iter().any(|route| route.lane == *lane));
    let mut former: Vec<Route> =
        former.filter_map(|(lane, _, class, name)| Some(route(settings, accounts, lane, class, &name.parse().ok()?))).collect();
    former.sort_by_key(|route| route.class);
    Ok(former)
}

/// Learns lanes that other processes have made; `None` where there are none.
///
/// # Errors
/// When the store does not answer.
pub async fn learn_lanes(setup: &Setup, store: &dyn Store) -> Result<Option<Setup>, StoreError> {
    let routing = &setup.routing;
    let former = former_lanes(&setup.settings, store, &routing.routes, &routing.accounts).await?;
    let is_new = former.iter().any(|route| routing.of_lane(route.lane).is_none());
    Ok(is_new.then(|| setup.with(Routing { former, ..routing.clone() })))
}

/// The sandbox's port to the store: messages ride in the group commit, sealed.
struct StoredMailbox {
    writer: Writer,
    keyring: Arc<Keyring>,
}

#[async_trait]
impl SandboxMailbox for StoredMailbox {
    async fn keep(&self, mut message: SandboxMessage) -> Result<(), StoreError> {
        message.body = sealed::seal_sandbox(&self.keyring, message.id, &message.body);
        match self.writer.keep(message).await {
            Ok(()) => Ok(()),
            Err(WriteError::Store(error)) => Err(error),
            Err(error @ (WriteError::Overloaded | WriteError::Stopped)) => Err(StoreError::Unreachable(Box::new(error))),
        }
    }
}
