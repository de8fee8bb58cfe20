//! `[routes.email]` and `[senders]`: which accounts carry what, in which order, and the authors that have a name.
//! Which account of a route takes a message now is decided in `tidings_core::judge`.

use std::collections::BTreeMap;

use tidings_core::address::Mailbox;
use tidings_core::nearest::nearest;
use tidings_core::words::Class;

use super::accounts::Account;
use super::settings::Settings;
use super::table::Table;
use super::value::Setting;

/// The routes that are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// Those of email.
    pub email: ChannelRoutes,
}

/// Names of accounts in the order in which they are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelRoutes {
    /// For every class without a route of its own.
    pub default: Option<Vec<String>>,
    /// For critical messages.
    pub critical: Option<Vec<String>>,
    /// For transactional messages.
    pub transactional: Option<Vec<String>>,
    /// For bulk messages.
    pub bulk: Option<Vec<String>>,
}

impl ChannelRoutes {
    /// The route of a class: its own, else the default, else `None`.
    pub fn of(&self, class: Class) -> Option<&[String]> {
        let own = match class {
            Class::Critical => &self.critical,
            Class::Transactional => &self.transactional,
            Class::Bulk => &self.bulk,
        };
        own.as_ref().or(self.default.as_ref()).map(Vec::as_slice)
    }
}

impl Settings {
    /// The names of the accounts that carry emails of a class, in the order in which they are tried, whatever their state:
    /// those of the route, else all in the order of the file.
    pub fn route(&self, class: Class) -> Vec<String> {
        match self.routes.email.of(class) {
            Some(names) => names.to_vec(),
            None => self.accounts.iter().map(|account| account.name.clone()).collect(),
        }
    }
}

impl Routes {
    pub(super) fn read(table: &Table<'_>, accounts: &[Account]) -> Self {
        let email = table.table("email", |table| {
            let route = |name: &str| route(&table.get(name), accounts);
            ChannelRoutes {
                default: route("default"),
                critical: route("critical"),
                transactional: route("transactional"),
                bulk: route("bulk"),
            }
        });
        Self { email }
    }
}

fn route(setting: &Setting<'_>, accounts: &[Account]) -> Option<Vec<String>> {
    let items = setting.items()?;
    if items.is_empty() {
        setting.fault("an empty list carries nothing; leave the setting out to use every account");
    }
    let mut route: Vec<String> = Vec::new();
    for item in items {
        let Some(name) = item.text() else { continue };
        let known = || accounts.iter().map(|account| account.name.as_str());
        if route.contains(&name) {
            item.fault(format!("account {name:?} is named twice"));
        } else if known().any(|known| known == name) {
            route.push(name);
        } else if let Some(meant) = nearest(&name, known()) {
            item.fault(format!("there is no account {name:?}; did you mean {meant:?}?"));
        } else {
            item.fault(format!("there is no account {name:?}; it needs a table [accounts.{name}]"));
        }
    }
    Some(route)
}

pub(super) fn senders(table: &Table<'_>) -> BTreeMap<String, Mailbox> {
    let mut senders = BTreeMap::new();
    for name in table.names() {
        let mailbox = table.table(&name, |table| {
            if !is_label(&name) {
                table.fault("a sender's name is 1 to 64 characters of [A-Za-z0-9_.:-]");
            }
            let email = table.get("email");
            if !email.is_set() {
                table.fault(format!("{} is missing", email.name));
            }
            email.parsed("a mailbox such as \"Shop <shop@example.com>\"", |text| text.parse().ok())
        });
        senders.extend(mailbox.map(|mailbox| (name, mailbox)));
    }
    senders
}

/// The letters that applications may use in the names they send.
pub(super) fn is_label(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}
