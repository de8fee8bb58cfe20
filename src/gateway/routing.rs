//! Which accounts there are and which of them may carry what: the routes of the configuration, resolved.
//! Which account takes a message now is `judge`'s decision; how busy they are is the pump's to know.

use std::sync::Arc;

use tidings_core::adapter::Adapter;
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::daily::DailyCap;
use tidings_core::ids::{AccountId, LaneId};
use tidings_core::senders::may_send_as;
use tidings_core::words::{Channel, Class};

use crate::metrics::Lane;

/// The route of messages that go to the sandbox.
pub const SANDBOX_ROUTE: &str = "sandbox";
/// The route of messages that leave.
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
    /// `main` or `sandbox`.
    pub name: &'static str,
    /// In the order in which they are tried.
    pub accounts: Vec<Arc<Account>>,
}

impl Route {
    /// How metrics name it.
    pub const fn labels(&self) -> Lane {
        Lane { channel: self.channel.as_str(), class: self.class.as_str(), route: self.name }
    }
}

/// All lanes of this process.
pub struct Routing {
    /// Critical lanes first.
    pub routes: Vec<Route>,
    /// Every configured account, the sandbox included.
    pub accounts: Vec<Arc<Account>>,
    /// No account is configured and the sandbox stands in for all of them: every key acts in test mode.
    pub sandbox_only: bool,
}

impl Routing {
    /// The route for a channel and class: `main`, or `sandbox`.
    pub fn route(&self, channel: Channel, class: Class, name: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.channel == channel && route.class == class && route.name == name)
    }

    /// The route of a lane.
    pub fn of_lane(&self, lane: LaneId) -> Option<&Route> {
        self.routes.iter().find(|route| route.lane == lane)
    }

    /// The account with this number, if it is still configured.
    pub fn account(&self, id: AccountId) -> Option<&Arc<Account>> {
        self.accounts.iter().find(|account| account.id == id)
    }
}
