//! Which accounts there are and which of them may carry what: the routes of the configuration, resolved.
//! Which account takes a message now is `judge`'s decision; how busy they are is the pump's to know.

use std::sync::{Arc, OnceLock};

use tidings_core::adapter::Adapter;
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::daily::DailyCap;
use tidings_core::delivery::Delivery;
use tidings_core::ids::{AccountId, LaneId, TenantId};
use tidings_core::owners::Owners;
use tidings_core::route::{Member, order};
use tidings_core::senders::may_send_as;
use tidings_core::words::{Channel, Class};

use crate::metrics::Lane;

/// The route of messages that go to the sandbox.
pub const SANDBOX_ROUTE: &str = "sandbox";
/// The route of messages that leave and that nothing special is said about.
pub const MAIN_ROUTE: &str = "main";
/// The domain whose addresses always go to the sandbox.
pub const SANDBOX_DOMAIN: &str = tidings_core::suppression::REHEARSAL_DOMAIN;

/// One configured provider account, or the built-in sandbox.
pub struct Account {
    /// Its number in the store.
    pub id: AccountId,
    /// Its name in the configuration.
    pub name: String,
    /// The adapter's kind, such as `smtp`.
    pub kind: String,
    /// The send side.
    pub adapter: Arc<dyn Adapter>,
    /// Of what the adapter was built from: as long as that is the same, a reload keeps it with its connections.
    pub built_from: [u8; 32],
    /// The author of messages that name none.
    pub from: Option<Mailbox>,
    /// Addresses and domains it may send as; empty means all.
    pub sends_as: Vec<String>,
    /// The tenant that it belongs to; `None`: it is for all.
    pub owner: Option<Owner>,
    /// Whether it takes new messages.
    pub is_on: bool,
    /// Calls at a time.
    pub concurrency: u16,
    /// Calls in a second, at most.
    pub rate: Option<std::num::NonZeroU32>,
    /// Calls in a day of its provider, at most.
    pub daily_cap: Option<DailyCap>,
}

impl Account {
    /// Whether this account may send as `from` (`sends_as`).
    pub fn may_send_as(&self, from: &EmailAddress) -> bool {
        self.sends_as.is_empty() || may_send_as(&self.sends_as, &from.canonical())
    }

    /// Whether it carries messages of this tenant.
    pub fn serves(&self, tenant: TenantId) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.id() == Some(tenant))
    }

    /// Whether it may carry this delivery: its tenant's, and as its author.
    pub fn may_carry(&self, delivery: &Delivery) -> bool {
        self.serves(delivery.tenant) && delivery.sender.as_deref().is_none_or(|sender| may_send_as(&self.sends_as, sender))
    }
}

/// The tenant that an account belongs to. The configuration knows it by name; its number is learned once there is one, and then
/// stays, as tenants are never renamed.
#[derive(Clone)]
pub struct Owner {
    name: String,
    id: OnceLock<TenantId>,
}

impl Owner {
    /// A tenant of this name, which may not be there yet.
    pub fn new(name: String) -> Self {
        Self { name, id: OnceLock::new() }
    }

    /// As the configuration has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the store; `None` as long as no such tenant is known.
    pub fn id(&self) -> Option<TenantId> {
        self.id.get().copied()
    }

    /// Learns the number of a tenant, should it be this one.
    pub fn learn(&self, name: &str, id: TenantId) {
        if name == self.name {
            self.id.get_or_init(|| id);
        }
    }
}

/// A lane with its accounts in order.
#[derive(Clone)]
pub struct Route {
    /// The unit of claiming.
    pub lane: LaneId,
    /// The medium.
    pub channel: Channel,
    /// The class it serves.
    pub class: Class,
    /// `main`, `sandbox`, or what the configuration says is special: `category:NAME`, `tenant:NAME`.
    pub name: String,
    /// In the order in which they are tried.
    pub accounts: Vec<Arc<Account>>,
    /// Shares of the first accounts, as many as have one: those that a message draws from.
    pub weights: Vec<u16>,
}

impl Route {
    /// Its accounts as decisions see them. One that is off is never drawn.
    pub fn members(&self) -> Vec<Member> {
        let weights = self.weights.iter().copied().map(Some).chain(std::iter::repeat(None));
        let weight = |account: &Account, weight: Option<u16>| weight.map(|weight| if account.is_on { weight } else { 0 });
        self.accounts.iter().zip(weights).map(|(own, share)| Member { account: own.id, weight: weight(own, share) }).collect()
    }

    /// Its accounts in the order in which this delivery tries them.
    pub fn order(&self, delivery: &Delivery) -> Vec<&Arc<Account>> {
        let of = |id: AccountId| self.accounts.iter().find(|account| account.id == id);
        let order = order(&self.members(), delivery.id, |id| of(id).is_some_and(|account| account.may_carry(delivery)));
        order.into_iter().filter_map(of).collect()
    }

    /// Whether messages are drawn for this account.
    pub fn draws(&self, account: AccountId) -> bool {
        self.members().iter().any(|member| member.account == account && member.weight.is_some_and(|weight| weight > 0))
    }

    /// How metrics name it.
    pub fn labels(&self) -> Lane {
        Lane { channel: self.channel.as_str(), class: self.class.as_str(), route: self.name.clone() }
    }
}

/// All lanes of this process.
#[derive(Clone)]
pub struct Routing {
    /// The lanes that new messages go to. Critical ones first.
    pub routes: Vec<Route>,
    /// Lanes of routes that are configured no longer, or only elsewhere: what waits there goes by what carries it now.
    pub former: Vec<Route>,
    /// Every configured account, the sandbox included.
    pub accounts: Vec<Arc<Account>>,
    /// No account is configured and the sandbox stands in for all of them: every key acts in test mode.
    pub sandbox_only: bool,
}

impl Routing {
    /// The route of this name for new messages of a channel and class.
    pub fn route(&self, channel: Channel, class: Class, name: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.channel == channel && route.class == class && route.name == name)
    }

    /// Every lane.
    pub fn lanes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().chain(&self.former)
    }

    /// The route of a lane; `None` for one that another process has made since this one looked.
    pub fn of_lane(&self, lane: LaneId) -> Option<&Route> {
        self.lanes().find(|route| route.lane == lane)
    }

    /// Whose the accounts are, as far as is known now.
    pub fn owners(&self) -> Owners {
        Owners::new(self.accounts.iter().filter_map(|account| Some((account.id, account.owner.as_ref()?.id()))))
    }

    /// Learns the number of a tenant for the accounts that belong to it.
    pub fn learn(&self, tenant: &str, id: TenantId) {
        self.accounts.iter().filter_map(|account| account.owner.as_ref()).for_each(|owner| owner.learn(tenant, id));
    }

    /// The account with this number, if it is still configured.
    pub fn account(&self, id: AccountId) -> Option<&Arc<Account>> {
        self.accounts.iter().find(|account| account.id == id)
    }
}
