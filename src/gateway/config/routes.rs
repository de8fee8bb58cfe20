//! `[routes.email]` and `[senders]`: which accounts carry what, in which order, and the authors that have a name.
//! By which route a message goes is decided in `via`, which account of it takes the message now in `tidings_core::judge`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;
use tidings_core::address::Mailbox;
use tidings_core::nearest::nearest;
use tidings_core::words::Class;

use super::accounts::Account;
use super::names::within;
use super::settings::Settings;
use super::table::Table;
use super::tenants::{NAME_RULE, is_name as is_tenant};
use super::value::Setting;

const FORM: &str = "a list of accounts such as [\"a\", \"b\"] or [{ account = \"a\", weight = 9 }, { account = \"b\", weight = 1 }]";
/// With 0 an account would be named and never drawn.
const WEIGHTS: RangeInclusive<u16> = 1..=1_000;

/// The routes that are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// Those of email.
    pub email: ChannelRoutes,
}

/// One account of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub account: String,
    /// Its share among those that have one, which stand first; `None`: it is tried when all of those have failed.
    pub weight: Option<u16>,
}

/// The routes of one channel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelRoutes {
    /// For whatever has none of its own.
    pub shared: ClassRoutes,
    /// For categories, whatever their class.
    pub categories: BTreeMap<String, Vec<Entry>>,
    /// For tenants.
    pub tenants: BTreeMap<String, ClassRoutes>,
}

/// Accounts in the order in which they are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassRoutes {
    /// For every class without a route of its own.
    pub default: Option<Vec<Entry>>,
    /// For critical messages.
    pub critical: Option<Vec<Entry>>,
    /// For transactional messages.
    pub transactional: Option<Vec<Entry>>,
    /// For bulk messages.
    pub bulk: Option<Vec<Entry>>,
}

impl ClassRoutes {
    /// The route of a class: its own, else the default, else `None`.
    pub fn of(&self, class: Class) -> Option<&[Entry]> {
        let own = match class {
            Class::Critical => &self.critical,
            Class::Transactional => &self.transactional,
            Class::Bulk => &self.bulk,
        };
        own.as_ref().or(self.default.as_ref()).map(Vec::as_slice)
    }

    /// Those that are set, by their names.
    pub(super) fn set(&self) -> impl Iterator<Item = (&'static str, &[Entry])> {
        let Self { default, critical, transactional, bulk } = self;
        let all = [("default", default), ("critical", critical), ("transactional", transactional), ("bulk", bulk)];
        all.into_iter().filter_map(|(name, route)| Some((name, route.as_deref()?)))
    }
}

impl ChannelRoutes {
    /// Every route that is set, by the name of its setting within the channel's table.
    pub(super) fn set(&self) -> impl Iterator<Item = (String, &[Entry])> {
        let shared = self.shared.set().map(|(name, route)| (name.to_owned(), route));
        let categories = self.categories.iter().map(|(name, route)| (within("categories", name), route.as_slice()));
        let tenants = self.tenants.iter().flat_map(|(tenant, own)| {
            let table = within("tenants", tenant);
            own.set().map(move |(name, route)| (within(&table, name), route))
        });
        shared.chain(categories).chain(tenants)
    }
}

impl Settings {
    /// How messages are shared out, for each route that has weights.
    pub fn shares(&self) -> Vec<Shares> {
        let shares = |(name, route): (String, &[Entry])| {
            let (sharing, then): (Vec<_>, Vec<_>) = route.iter().partition(|entry| entry.weight.is_some());
            let weight = |entry: &&Entry| Share { account: entry.account.clone(), weight: entry.weight.unwrap_or_default() };
            (!sharing.is_empty()).then(|| Shares {
                setting: format!("routes.email.{name}"),
                accounts: sharing.iter().map(weight).collect(),
                then: then.into_iter().map(|entry| entry.account.clone()).collect(),
            })
        };
        self.routes.email.set().filter_map(shares).collect()
    }
}

/// How the messages of one route are shared out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shares {
    setting: String,
    accounts: Vec<Share>,
    /// Tried when all of those have failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Share {
    account: String,
    weight: u16,
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: f64 = self.accounts.iter().map(|share| f64::from(share.weight)).sum();
        let shown = |share: &Share| format!("{} {:.1}%", share.account, f64::from(share.weight) * 100.0 / total);
        write!(f, "{}: {}", self.setting, self.accounts.iter().map(shown).collect::<Vec<_>>().join(", "))?;
        if self.then.is_empty() { Ok(()) } else { write!(f, ", then {}", self.then.join(", ")) }
    }
}

impl Routes {
    /// `declared`: the categories that requests may name, where they may name no others.
    pub(super) fn read(table: &Table<'_>, accounts: &[Account], declared: Option<&[&str]>) -> Self {
        let email = table.table("email", |table| ChannelRoutes {
            shared: class_routes(table, accounts, None),
            categories: table.table("categories", |table| categories(table, accounts, declared)),
            tenants: table.table("tenants", |table| tenants(table, accounts)),
        });
        Self { email }
    }
}

fn class_routes(table: &Table<'_>, accounts: &[Account], tenant: Option<&str>) -> ClassRoutes {
    let route = |name: &str| route(&table.get(name), accounts, tenant);
    ClassRoutes { default: route("default"), critical: route("critical"), transactional: route("transactional"), bulk: route("bulk") }
}

fn categories(table: &Table<'_>, accounts: &[Account], declared: Option<&[&str]>) -> BTreeMap<String, Vec<Entry>> {
    let category = |name: String| {
        let setting = table.get(&name);
        if !is_label(&name) {
            setting.fault(CATEGORY_RULE);
        } else if let Some(declared) = declared.filter(|declared| !declared.contains(&name.as_str())) {
            let table = within("categories", &name);
            match nearest(&name, declared.iter().copied()) {
                Some(meant) => setting.fault(format!("no request may name this category; did you mean {meant:?}?")),
                None => setting
                    .fault(format!("no request may name this category: declare it as [{table}], or set limits.undeclared_categories")),
            }
        }
        Some((name, route(&setting, accounts, None)?))
    };
    table.names().into_iter().filter_map(category).collect()
}

fn tenants(table: &Table<'_>, accounts: &[Account]) -> BTreeMap<String, ClassRoutes> {
    let tenant = |name: String| {
        let own = table.table(&name, |table| {
            if !is_tenant(&name) {
                table.fault(NAME_RULE);
            }
            let own = class_routes(table, accounts, Some(&name));
            if own == ClassRoutes::default() {
                table.fault("says nothing: name accounts in default, critical, transactional or bulk");
            }
            own
        });
        (name, own)
    };
    table.names().into_iter().map(tenant).collect()
}

/// `tenant`: whose messages it carries, where it is one tenant's.
fn route(setting: &Setting<'_>, accounts: &[Account], tenant: Option<&str>) -> Option<Vec<Entry>> {
    let items = setting.items_of(FORM)?;
    if items.is_empty() {
        setting.fault("an empty list carries nothing; leave the setting out to use every account");
    }
    let mut route: Vec<Entry> = Vec::new();
    for item in items {
        let (name, weight) = if item.is_table() { with_weight(item) } else { (item, None) };
        let Some(account) = name.text() else { continue };
        let known = || accounts.iter().map(|account| account.name.as_str());
        if route.iter().any(|entry| entry.account == account) {
            name.fault(format!("account {account:?} is named twice"));
        } else if weight.is_some() && route.iter().any(|entry| entry.weight.is_none()) {
            name.fault("accounts with a weight stand before those without, which are tried when all of them have failed");
        } else if let Some(known) = accounts.iter().find(|known| known.name == account) {
            if tenant.is_some() && known.tenant.is_some() && known.tenant.as_deref() != tenant {
                name.fault(format!(
                    "account {account:?} belongs to another tenant (accounts.{account}.tenant), so that it would carry nothing"
                ));
            }
            route.push(Entry { account, weight: weight.flatten() });
        } else if let Some(meant) = nearest(&account, known()) {
            name.fault(format!("there is no account {account:?}; did you mean {meant:?}?"));
        } else {
            name.fault(format!("there is no account {account:?}; it needs a table [accounts.{account}]"));
        }
    }
    Some(route)
}

/// `{ account = "a", weight = 9 }`: the account, and its weight as far as it is one.
fn with_weight(item: Setting<'_>) -> (Setting<'_>, Option<Option<u16>>) {
    let table = item.into_table();
    let (account, weight) = (table.get("account"), table.get("weight"));
    table.refuse_the_rest();
    for missing in [&account, &weight].into_iter().filter(|setting| !setting.is_set()) {
        table.fault(format!("{} is missing: expected {FORM}", missing.name));
    }
    (account, Some(weight.number(WEIGHTS)))
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

/// What a category may be called.
pub(super) const CATEGORY_RULE: &str = "a category is 1 to 64 characters of [A-Za-z0-9_.:-]";

/// The letters that applications may use in the names they send.
pub(super) fn is_label(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}
