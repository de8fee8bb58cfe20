//! `[tenants.NAME]`: what the configuration says about single tenants. Which tenants there are is the store's to know.

use std::collections::BTreeMap;

use tidings_core::address::Mailbox;

use super::table::Table;

/// `[tenants.NAME]`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantSettings {
    /// The author where neither request, category nor account has one: a mailbox or the name of a sender.
    pub from: Option<String>,
}

pub(super) fn read(table: &Table<'_>, senders: &BTreeMap<String, Mailbox>) -> BTreeMap<String, TenantSettings> {
    let tenant = |name: String| {
        let settings = table.table(&name, |table| TenantSettings {
            from: table.get("from").parsed("a mailbox or the name of a table [senders.NAME]", |text| {
                (senders.contains_key(text) || text.parse::<Mailbox>().is_ok()).then(|| text.to_owned())
            }),
        });
        (name, settings)
    };
    table.names().into_iter().map(tenant).collect()
}
