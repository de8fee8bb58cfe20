//! What people do to keys, tenants and suppressions, as the audit log tells it (S-217): who did what to which thing, and why.
//! Written in the transaction of the act itself, by the store method that does it.

use crate::acts::AuditEntry;
use crate::ids::TenantId;
use crate::time::Timestamp;

/// What somebody did. Never an address, a key or content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// When.
    pub at: Timestamp,
    /// Whose things it is about; `None` where it is about all of them.
    pub tenant: Option<TenantId>,
    /// Who: `key:key_...`, `cli`, or `start`.
    pub actor: String,
    /// What was done, such as `suppression.removed`.
    pub action: &'static str,
    /// What it was done to, by id or name.
    pub subject: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
}

impl Deed {
    /// As it stands in the audit log.
    pub fn row(&self) -> AuditEntry {
        let detail = match &self.reason {
            Some(reason) => serde_json::json!({ "reason": reason }).to_string(),
            None => "{}".to_owned(),
        };
        AuditEntry { tenant: self.tenant, actor: self.actor.clone(), action: self.action.to_owned(), subject: self.subject.clone(), detail }
    }
}
