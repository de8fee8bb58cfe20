//! `[dkim."domain"]`: the keys that sign a domain's mail, checked as far as they are there. What is signed, and how, is the
//! providers' business.

use tidings_core::address::EmailAddress;
use tidings_providers::dkim::{Key, Keys, Selector};

use super::table::Table;

const FORM: &str = "a list such as [{ selector = \"s1\", key = { file = \"s1.pem\" } }]";

pub(super) fn read(domains: &Table<'_>) -> Keys {
    let mut keys = Keys::new();
    for name in domains.names() {
        domains.table(&name, |table| {
            // A domain is what may follow an @.
            let domain = format!("x@{name}").parse().map(|address: EmailAddress| address.domain().to_owned());
            if domain.is_err() {
                table.fault("the name of the table is the domain of the author, such as [dkim.\"shop.example.com\"]");
            }
            let selectors = selectors(table);
            if let (Ok(domain), false) = (domain, selectors.is_empty()) {
                keys.add(domain, selectors);
            }
        });
    }
    keys
}

fn selectors(table: &Table<'_>) -> Vec<Selector> {
    let setting = table.get("selectors");
    if !setting.is_set() {
        table.fault(format!("{} is missing: expected {FORM}", setting.name));
    }
    let items = setting.tables(FORM);
    if items.as_ref().is_some_and(Vec::is_empty) {
        setting.fault("an empty list signs nothing; leave the table out");
    }
    let mut names: Vec<String> = Vec::new();
    let mut selectors = Vec::new();
    for item in items.unwrap_or_default() {
        let (name, key) = (item.get("selector"), item.get("key"));
        item.refuse_the_rest();
        for missing in [&name, &key].into_iter().filter(|setting| !setting.is_set()) {
            item.fault(format!("{} is missing: expected {FORM}", missing.name));
        }
        let selector = name.parsed("a label such as \"s1\"", |text| is_selector(text).then(|| text.to_ascii_lowercase()));
        if selector.as_ref().is_some_and(|name| names.contains(name)) {
            name.fault("the selector stands there twice");
        }
        names.extend(selector.clone());
        let key = key.text().and_then(|pem| Key::from_pem(&pem).map_err(|err| key.fault(err.to_string())).ok());
        selectors.extend(selector.zip(key).map(|(name, key)| Selector { name, key }));
    }
    selectors
}

fn is_selector(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 200 && text.split('.').all(is_label)
}
