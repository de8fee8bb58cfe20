//! `[tenants.NAME]`: what an operator says about one tenant. Which tenants there are stands in the store.

use std::collections::BTreeMap;

use tidings_core::address::{EmailAddress, Mailbox};

use super::table::Table;

/// What is said about one tenant.
#[derive(Debug, Clone, Default)]
pub struct Tenant {
    /// The author where neither request, category nor account has one: a mailbox or the name of a sender.
    pub from: Option<String>,
    /// Canonical addresses that its team keys may write to.
    pub guests: Vec<String>,
}

impl Tenant {
    /// Whether a team key may write to this address.
    pub fn is_guest(&self, address: &EmailAddress) -> bool {
        self.guests.contains(&address.canonical())
    }
}

pub(super) fn read(table: &Table<'_>, senders: &BTreeMap<String, Mailbox>) -> BTreeMap<String, Tenant> {
    let tenant = |name: String| {
        let tenant = table.table(&name, |table| {
            if !is_name(&name) {
                table.fault(NAME_RULE);
            }
            let from = table.get("from").parsed("a mailbox or the name of a table [senders.NAME]", |text| {
                (senders.contains_key(text) || text.parse::<Mailbox>().is_ok()).then(|| text.to_owned())
            });
            let guests = table.get("guest_list").is_set().then(|| table.get("guest_list").items()).flatten();
            let guest = |text: &str| text.parse().ok().map(|address: EmailAddress| address.canonical());
            let guests = guests.into_iter().flatten().filter_map(|item| item.parsed("an address such as \"ada@example.com\"", guest));
            Tenant { from, guests: guests.collect() }
        });
        (name, tenant)
    };
    table.names().into_iter().map(tenant).collect()
}

/// What a tenant may be called.
pub const NAME_RULE: &str = "a tenant's name is 1 to 40 characters of [a-z0-9-]";

/// Whether a tenant may be called so.
pub fn is_name(name: &str) -> bool {
    (1..=40).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}
