//! What operators have paused, and what each account has open. What a pause leads to is decided in `crate::switches`.

use async_trait::async_trait;

use super::StoreError;
use crate::ids::{AccountId, TenantId};
use crate::switches::{Scope, Switch};
use crate::time::Timestamp;

/// Who changes a switch, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchedBy {
    /// Whose key.
    pub actor: String,
    /// Why, in somebody's words.
    pub reason: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// Calls of one account that are not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCalls {
    /// Which account.
    pub account: AccountId,
    /// Calls that run.
    pub in_flight: i64,
    /// Calls that were perhaps taken.
    pub ambiguous: i64,
}

/// The switches. Every change is written with its line in the audit log (S-217) and what the feed tells of it
/// (`operational::of_switch`).
#[async_trait]
pub trait Switches: Send + Sync {
    /// Every switch, in the order of their scopes.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn switches(&self) -> Result<Vec<Switch>, StoreError>;

    /// Sets the switch of a scope; its version is one higher than that of any other. What is so already is not written.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn set_switch(&self, scope: &Scope, paused: bool, until: Option<Timestamp>, by: &SwitchedBy) -> Result<(), StoreError>;

    /// Removes the switch of a scope; whether there was one.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn clear_switch(&self, scope: &Scope, by: &SwitchedBy) -> Result<bool, StoreError>;

    /// The tenants that are disabled: their rows keep their place.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn disabled_tenants(&self) -> Result<Vec<TenantId>, StoreError>;

    /// Notes an act of an operator that changes no row.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn note_act(&self, action: &str, subject: &str, by: &SwitchedBy) -> Result<(), StoreError>;

    /// What the accounts have open; those with nothing are left out.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn open_calls(&self) -> Result<Vec<OpenCalls>, StoreError>;
}
