//! What operators have paused: how a scope is written, when a switch is in force, and which rows then keep their place (S-118).
//! Intake goes on, deadlines run on; nothing is written to a row that waits for a switch.

use std::fmt;
use std::str::FromStr;

use crate::delivery::Delivery;
use crate::ids::{AccountId, TenantId};
use crate::time::Timestamp;
use crate::words::{Channel, Class};

/// What one switch is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everything.
    All,
    /// Second and later tries, whatever they are of.
    Retries,
    /// Accounts other than the first of a route.
    Fallback,
    /// A class.
    Class(Class),
    /// A medium.
    Channel(Channel),
    /// A category by name.
    Category(String),
    /// A tenant by name.
    Tenant(String),
    /// An account by name.
    Account(String),
}

/// The forms of a scope, for the words of a fault.
pub const SCOPES: &str = "all, retries, fallback, class:bulk, channel:email, category:NAME, tenant:NAME or account:NAME";
const LONGEST_NAME: usize = 100;

/// A text that is no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a scope is {SCOPES}")]
pub struct NotAScope;

impl FromStr for Scope {
    type Err = NotAScope;

    fn from_str(text: &str) -> Result<Self, NotAScope> {
        let Some((kind, name)) = text.split_once(':') else {
            return match text {
                "all" => Ok(Self::All),
                "retries" => Ok(Self::Retries),
                "fallback" => Ok(Self::Fallback),
                _ => Err(NotAScope),
            };
        };
        let is_name = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        match kind {
            "class" => name.parse().map(Self::Class).map_err(|_| NotAScope),
            "channel" => name.parse().map(Self::Channel).map_err(|_| NotAScope),
            "category" if is_name => Ok(Self::Category(name.to_owned())),
            "tenant" if is_name => Ok(Self::Tenant(name.to_owned())),
            "account" if is_name => Ok(Self::Account(name.to_owned())),
            _ => Err(NotAScope),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Retries => f.write_str("retries"),
            Self::Fallback => f.write_str("fallback"),
            Self::Class(class) => write!(f, "class:{class}"),
            Self::Channel(channel) => write!(f, "channel:{channel}"),
            Self::Category(name) => write!(f, "category:{name}"),
            Self::Tenant(name) => write!(f, "tenant:{name}"),
            Self::Account(name) => write!(f, "account:{name}"),
        }
    }
}

/// A switch as somebody set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// What it is about.
    pub scope: Scope,
    /// Whether it stops anything.
    pub paused: bool,
    /// It stops nothing from here on.
    pub until: Option<Timestamp>,
    /// Why, in somebody's words.
    pub reason: Option<String>,
    /// Whose key set it.
    pub actor: String,
    /// Rises with every change.
    pub version: i64,
}

impl Switch {
    /// Whether it stops something now.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.paused && self.until.is_none_or(|until| until > now)
    }
}

/// What is paused at one moment, with the numbers that rows go by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paused {
    /// Everything.
    pub all: bool,
    /// Second and later tries.
    pub retries: bool,
    /// Accounts other than the first of a route.
    pub fallback: bool,
    /// These classes.
    pub classes: Vec<Class>,
    /// These media.
    pub channels: Vec<Channel>,
    /// These categories.
    pub categories: Vec<String>,
    /// These tenants.
    pub tenants: Vec<TenantId>,
    /// These accounts.
    pub accounts: Vec<AccountId>,
}

impl Paused {
    /// The switches that are in force, where names without a number stop nothing, since no row has them.
    pub fn of(
        switches: &[Switch],
        now: Timestamp,
        tenant: impl Fn(&str) -> Option<TenantId>,
        account: impl Fn(&str) -> Option<AccountId>,
    ) -> Self {
        let mut paused = Self::default();
        for switch in switches.iter().filter(|switch| switch.is_in_force(now)) {
            match &switch.scope {
                Scope::All => paused.all = true,
                Scope::Retries => paused.retries = true,
                Scope::Fallback => paused.fallback = true,
                Scope::Class(class) => paused.classes.push(*class),
                Scope::Channel(channel) => paused.channels.push(*channel),
                Scope::Category(name) => paused.categories.push(name.clone()),
                Scope::Tenant(name) => paused.tenants.extend(tenant(name)),
                Scope::Account(name) => paused.accounts.extend(account(name)),
            }
        }
        paused
    }

    /// Whether nothing of this class and medium goes out.
    pub fn stops(&self, channel: Channel, class: Class) -> bool {
        self.all || self.classes.contains(&class) || self.channels.contains(&channel)
    }

    /// Whether a waiting row keeps its place, whatever account could take it.
    pub fn holds(&self, delivery: &Delivery) -> bool {
        self.stops(delivery.channel, delivery.class)
            || (self.retries && delivery.attempt_count > 0)
            || self.categories.iter().any(|category| **category == *delivery.category)
            || self.tenants.contains(&delivery.tenant)
    }

    /// Whether an account takes nothing; `is_first` says that no other one of the route comes before it for a message.
    pub fn spares(&self, account: AccountId, is_first: bool) -> bool {
        self.accounts.contains(&account) || (self.fallback && !is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        let all = ["all", "retries", "fallback", "class:bulk", "channel:sms", "category:login-code", "tenant:acme", "account:ses-eu"];
        for text in all {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for text in ["", "everything", "class:urgent", "channel:fax", "category:", "tenant:a b", "Class:bulk", "account:ä"] {
            assert_eq!(text.parse::<Scope>(), Err(NotAScope), "{text}");
        }
    }

    #[test]
    fn a_switch_ends_by_itself_and_an_unknown_name_stops_nothing() {
        let at = Timestamp::from_millis;
        let switch = |scope: &str, until: Option<i64>, paused| Switch {
            scope: scope.parse().unwrap(),
            paused,
            until: until.map(at),
            reason: None,
            actor: String::new(),
            version: 1,
        };
        let switches = [
            switch("class:bulk", Some(10), true),
            switch("retries", None, false),
            switch("tenant:acme", None, true),
            switch("tenant:gone", None, true),
            switch("account:relay", None, true),
        ];
        let tenant = |name: &str| (name == "acme").then_some(TenantId(7));
        let account = |name: &str| (name == "relay").then_some(AccountId(3));
        let before = Paused::of(&switches, at(9), tenant, account);
        assert_eq!((before.classes.as_slice(), before.retries), ([Class::Bulk].as_slice(), false));
        assert_eq!((before.tenants.as_slice(), before.accounts.as_slice()), ([TenantId(7)].as_slice(), [AccountId(3)].as_slice()));
        assert!(Paused::of(&switches, at(10), tenant, account).classes.is_empty());
        assert!(before.spares(AccountId(3), true) && !before.spares(AccountId(4), false));
        assert!(Paused { fallback: true, ..Paused::default() }.spares(AccountId(4), false));
    }
}
