//! Who may send as whom: the `sends_as` of each account. An account without one sends for everybody.

use std::collections::HashMap;

use crate::ids::AccountId;

/// What accounts may send as; accounts that are not in it send for everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendsAs(HashMap<AccountId, Vec<String>>);

impl SendsAs {
    /// From each account's list of canonical addresses and domains; an empty list is none.
    pub fn new(accounts: impl IntoIterator<Item = (AccountId, Vec<String>)>) -> Self {
        Self(accounts.into_iter().filter(|(_, allowed)| !allowed.is_empty()).collect())
    }

    /// Whether an account may send what this author wrote. A row that does not tell its author is anybody's.
    pub fn allows(&self, account: AccountId, sender: Option<&str>) -> bool {
        match (self.0.get(&account), sender) {
            (Some(allowed), Some(sender)) => may_send_as(allowed, sender),
            (None, _) | (_, None) => true,
        }
    }
}

/// Whether a list of addresses and domains covers an author, given as the canonical address. An empty list covers all.
pub fn may_send_as(allowed: &[String], sender: &str) -> bool {
    let domain = sender.rsplit_once('@').map(|(_, domain)| domain);
    allowed.is_empty() || allowed.iter().any(|one| one == sender || Some(one.as_str()) == domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_its_whole_domain_may_be_named() {
        let allowed = ["shop@example.com".to_owned(), "example.org".to_owned()];
        for (sender, may) in [
            ("shop@example.com", true),
            ("other@example.com", false),
            ("anybody@example.org", true),
            ("anybody@sub.example.org", false),
            ("\"example.org@\"@example.net", false),
        ] {
            assert_eq!(may_send_as(&allowed, sender), may, "{sender}");
        }
        assert!(may_send_as(&[], "anybody@example.net"));
    }

    #[test]
    fn an_account_without_a_list_sends_for_everybody() {
        let (a, b) = (AccountId(1), AccountId(2));
        let senders = SendsAs::new([(a, vec!["example.com".to_owned()]), (b, Vec::new())]);
        assert!(senders.allows(b, Some("shop@example.org")) && senders.allows(AccountId(3), Some("shop@example.org")));
        assert!(!senders.allows(a, Some("shop@example.org")) && senders.allows(a, Some("shop@example.com")));
        assert!(senders.allows(a, None));
    }
}
