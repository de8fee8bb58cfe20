//! By which route a message goes. The most special one that is set wins, and this is the one place that says so: the tenant's own
//! route for the class, else the tenant's default, else the category's, else that of the class, else the default, else all
//! accounts in the order of the file. The tenant comes first because its route is a boundary, which its messages never leave; a
//! category's is a preference.

use std::fmt;
use std::str::FromStr;

use tidings_core::words::Class;

use super::routes::Entry;
use super::settings::Settings;
use crate::routing::MAIN_ROUTE;

/// What a route is for. Each has lanes of its own, so that accounts which are slow for one hold up no other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// Messages that nothing special is said about.
    Main,
    /// Those of a category.
    Category(String),
    /// Those of a tenant.
    Tenant(String),
}

/// As lanes are named in the store and in metrics; never changed, since open rows stand in them.
impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main => f.write_str(MAIN_ROUTE),
            Self::Category(name) => write!(f, "category:{name}"),
            Self::Tenant(name) => write!(f, "tenant:{name}"),
        }
    }
}

impl FromStr for Via {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name.split_once(':') {
            None if name == MAIN_ROUTE => Ok(Self::Main),
            Some(("category", name)) => Ok(Self::Category(name.to_owned())),
            Some(("tenant", name)) => Ok(Self::Tenant(name.to_owned())),
            // The sandbox's, or one that only a newer version knows.
            _ => Err(()),
        }
    }
}

impl Settings {
    /// By which route a message goes.
    pub fn via(&self, tenant: &str, category: &str, class: Class) -> Via {
        let routes = &self.routes.email;
        if routes.tenants.get(tenant).is_some_and(|own| own.of(class).is_some()) {
            Via::Tenant(tenant.to_owned())
        } else if routes.categories.contains_key(category) {
            Via::Category(category.to_owned())
        } else {
            Via::Main
        }
    }

    /// The accounts of a route for a class, whatever their state. Where the route is set no longer, those that carry its messages
    /// now: what waits in its lanes goes by them.
    pub fn route(&self, via: &Via, class: Class) -> Vec<Entry> {
        let routes = &self.routes.email;
        let special = match via {
            Via::Main => None,
            Via::Category(name) => routes.categories.get(name).map(Vec::as_slice),
            Via::Tenant(name) => routes.tenants.get(name).and_then(|own| own.of(class)),
        };
        match special.or_else(|| routes.shared.of(class)) {
            Some(entries) => entries.to_vec(),
            None => self.accounts.iter().map(|account| Entry { account: account.name.clone(), weight: None }).collect(),
        }
    }

    /// Every route with the classes that it can meet, critical ones first. A category has one class.
    pub fn vias(&self) -> Vec<(Class, Via)> {
        let routes = &self.routes.email;
        let of_class = |class: Class| {
            let categories = routes.categories.keys().filter(move |name| self.rules.class_of(name) == class);
            let tenants = routes.tenants.iter().filter(move |(_, own)| own.of(class).is_some()).map(|(name, _)| name);
            let special = categories.cloned().map(Via::Category).chain(tenants.cloned().map(Via::Tenant));
            [Via::Main].into_iter().chain(special).map(move |via| (class, via))
        };
        Class::ALL.iter().flat_map(|class| of_class(*class)).collect()
    }
}
