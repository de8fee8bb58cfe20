//! Whose accounts are: one that belongs to a tenant carries that tenant's messages and nobody else's (S-108).

use std::collections::HashMap;

use crate::ids::{AccountId, TenantId};

/// The accounts that belong to a tenant; those that are not in it carry messages of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners(HashMap<AccountId, Option<TenantId>>);

impl Owners {
    /// From each account's tenant; `None` is one that is not there yet, and has no messages.
    pub fn new(accounts: impl IntoIterator<Item = (AccountId, Option<TenantId>)>) -> Self {
        Self(accounts.into_iter().collect())
    }

    /// Whether an account may carry messages of this tenant.
    pub fn serves(&self, account: AccountId, tenant: TenantId) -> bool {
        self.0.get(&account).is_none_or(|owner| *owner == Some(tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_of_a_tenant_is_for_nobody_else() {
        let owners = Owners::new([(AccountId(1), Some(TenantId(7))), (AccountId(2), None)]);
        let serves = |account| [7, 8].map(|tenant| owners.serves(AccountId(account), TenantId(tenant)));
        assert_eq!([1, 2, 3].map(serves), [[true, false], [false, false], [true, true]]);
    }
}
