//! From configured accounts and routes to adapters and lanes.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use tidings_core::adapter::SandboxMailbox;
use tidings_core::ids::LaneId;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::secrets::Keyring;
use tidings_core::store::{Store, StoreError};
use tidings_core::words::{Channel, Class};

use crate::clock::StoreClock;
use crate::config::Settings;
use crate::routing::{Account, MAIN_ROUTE, Route, Routing, SANDBOX_ROUTE};
use crate::sealed;
use crate::writer::{WriteError, Writer};

/// The name and kind of the built-in account.
pub const SANDBOX: &str = "sandbox";
/// The author of sandbox messages that name none.
const SANDBOX_FROM: &str = "tidings@sandbox.test";
/// Calls at a time, where an account does not say.
const DEFAULT_CONCURRENCY: u16 = 32;

/// Builds every adapter and resolves every route.
///
/// # Errors
/// When an account's settings cannot be used, or the store does not answer.
pub async fn configure(
    settings: &Settings,
    store: &dyn Store,
    clock: Arc<StoreClock>,
    writer: Writer,
    keyring: Arc<Keyring>,
) -> anyhow::Result<Routing> {
    let mut names: Vec<(String, String)> = settings.accounts.iter().map(|account| (account.name.clone(), account.kind.clone())).collect();
    names.push((SANDBOX.to_owned(), SANDBOX.to_owned()));
    let ids = store.ensure_accounts(&names).await.context("accounts could not be registered")?;

    let mailbox: Arc<dyn SandboxMailbox> = Arc::new(StoredMailbox { writer, keyring });
    let mut accounts = Vec::new();
    for ((name, kind), id) in names.iter().zip(ids) {
        let own = settings.accounts.iter().find(|account| account.name == *name);
        let concurrency = own.and_then(|account| account.concurrency).unwrap_or(DEFAULT_CONCURRENCY);
        let context = tidings_providers::Context {
            clock: clock.clone(),
            concurrency: usize::from(concurrency),
            default_helo: settings.server.public_host(),
            dkim: settings.dkim.clone(),
            sandbox: Some(mailbox.clone()),
        };
        let own_settings = own.map_or_else(|| serde_json::json!({}), |account| account.settings.clone());
        let adapter = tidings_providers::build(kind, own_settings, &context).with_context(|| format!("accounts.{name}"))?;
        accounts.push(Arc::new(Account {
            id,
            name: name.clone(),
            kind: kind.clone(),
            adapter,
            from: own.map_or_else(|| SANDBOX_FROM.parse().ok(), |account| account.from.clone()),
            sends_as: own.map(|account| account.sends_as.clone()).unwrap_or_default(),
            is_on: own.is_none_or(|account| account.is_on()),
            concurrency,
            rate: own.and_then(|account| account.rate).and_then(NonZeroU32::new),
        }));
    }
    warn_of_gone(&names, store).await?;
    let routes = lanes(settings, store, &accounts).await?;
    Ok(Routing { routes, accounts, sandbox_only: settings.is_sandbox_only() })
}

/// Accounts that sent once and are configured no longer: what is open with them has nobody to ask, and their webhooks are refused.
async fn warn_of_gone(configured: &[(String, String)], store: &dyn Store) -> anyhow::Result<()> {
    let former = store.account_names().await.context("the accounts could not be read")?;
    let open = store.pauses().open_calls().await.context("the accounts' open calls could not be read")?;
    for (id, account) in former.iter().filter(|(_, name)| !configured.iter().any(|(own, _)| own == name)) {
        let open = open.iter().find(|calls| calls.account == *id).map_or(0, |calls| calls.in_flight + calls.ambiguous);
        tracing::warn!(account, open, "this account is gone from the configuration: state = \"receive_only\" would let it finish");
    }
    Ok(())
}

/// A main and a sandbox lane for each class, critical first.
async fn lanes(settings: &Settings, store: &dyn Store, accounts: &[Arc<Account>]) -> anyhow::Result<Vec<Route>> {
    let channel = Channel::Email;
    let wanted: Vec<(Class, &'static str)> = Class::ALL.iter().flat_map(|class| [(*class, MAIN_ROUTE), (*class, SANDBOX_ROUTE)]).collect();
    let rows: Vec<(Channel, Class, String)> = wanted.iter().map(|(class, name)| (channel, *class, (*name).to_owned())).collect();
    let ids: Vec<LaneId> = store.ensure_lanes(&rows).await.context("lanes could not be registered")?;
    let mut routes = Vec::new();
    for ((class, name), lane) in wanted.into_iter().zip(ids) {
        let members: Vec<Arc<Account>> = if name == SANDBOX_ROUTE {
            accounts.iter().filter(|account| account.kind == SANDBOX).cloned().collect()
        } else {
            let mut seen = BTreeSet::new();
            let names = settings.route(class).into_iter().filter(|name| seen.insert(name.clone()));
            names.filter_map(|name| accounts.iter().find(|account| account.name == name).cloned()).collect()
        };
        routes.push(Route { lane, channel, class, name, accounts: members });
    }
    Ok(routes)
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
