//! What a configuration says, setting by setting, so that two readings can be told apart by name without keeping or telling a
//! value: each is held as a digest, what a `{ file }` holds included. Which differences a running process takes is decided here
//! too; how it takes them, in `crate::reload`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::Settings;

/// Settings and tables that are read at start only: the rest of the process stands on them.
const AT_START: &[&str] =
    &["server.bind", "server.admin_bind", "server.data_dir", "server.roles", "store", "secrets", "bootstrap", "log.format"];

/// Digests of everything that was read, by the full name of the setting.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    values: BTreeMap<String, [u8; 32]>,
    /// Tables whose names are the operator's own: an empty one says something too.
    tables: BTreeSet<String>,
}

// Digests of secrets are nobody's business either.
impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inventory")
    }
}

impl Inventory {
    /// Notes what stands in a setting; what is noted of the items of a list adds up.
    pub(super) fn note(&mut self, setting: &str, value: &[u8]) {
        let noted = self.values.entry(setting.to_owned()).or_default();
        *noted = Sha256::new().chain_update(*noted).chain_update(value).finalize().into();
    }

    /// Notes that there is a table of this name.
    pub(super) fn note_table(&mut self, name: String) {
        self.tables.insert(name);
    }

    /// The names of what is not the same in both.
    fn differs(&self, other: &Self) -> BTreeSet<String> {
        let one_way = |left: &Self, right: &Self| -> Vec<String> {
            let values = left.values.iter().filter(|(name, value)| right.values.get(*name) != Some(value)).map(|(name, _)| name);
            values.chain(left.tables.difference(&right.tables)).cloned().collect()
        };
        one_way(self, other).into_iter().chain(one_way(other, self)).collect()
    }

    /// Takes over what `other` says of the settings that are read at start only.
    fn keep_what_is_read_at_start(&mut self, other: &Self) {
        self.values.retain(|name, _| !is_read_at_start(name));
        self.values.extend(other.values.iter().filter(|(name, _)| is_read_at_start(name)).map(|(name, value)| (name.clone(), *value)));
    }
}

/// Whether a running process keeps what it has until it is started again.
fn is_read_at_start(name: &str) -> bool {
    AT_START.iter().any(|own| name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// How two readings differ, by the names of settings alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// What a running process takes.
    pub changed: Vec<String>,
    /// What it takes when it is started again.
    pub needs_restart: Vec<String>,
}

impl Settings {
    /// What differs from the settings in force.
    pub fn difference(&self, in_force: &Self) -> Difference {
        let mut names = self.inventory.differs(&in_force.inventory);
        // Where no route says otherwise, accounts are tried in the order of the file.
        if self.has_other_order(in_force) {
            names.insert("accounts".to_owned());
        }
        let (needs_restart, changed) = names.into_iter().partition(|name| is_read_at_start(name));
        Difference { changed, needs_restart }
    }

    fn has_other_order(&self, in_force: &Self) -> bool {
        let names = |settings: &Self| settings.accounts.iter().map(|account| account.name.clone()).collect::<Vec<_>>();
        let (own, theirs) = (names(self), names(in_force));
        own != theirs && own.iter().collect::<BTreeSet<_>>() == theirs.iter().collect()
    }

    /// These settings as a running process can take them: what is read at start only stays as it is in force.
    #[must_use]
    pub fn taken_over(self, in_force: &Self) -> Self {
        let mut taken =
            Self { store: in_force.store.clone(), secrets: in_force.secrets.clone(), bootstrap: in_force.bootstrap.clone(), ..self };
        let server = &in_force.server;
        (taken.server.bind, taken.server.admin_bind) = (server.bind, server.admin_bind);
        taken.server.data_dir.clone_from(&server.data_dir);
        taken.server.roles.clone_from(&server.roles);
        taken.log.format = in_force.log.format;
        taken.inventory.keep_what_is_read_at_start(&in_force.inventory);
        taken
    }
}
