//! Send adapters: what each kind of account is called, and how one is built from its settings.
//! Which account takes a message is decided in core; what settings an account has besides its kind's own, in the gateway.

use std::sync::Arc;

use serde_json::Value;
use tidings_core::adapter::{Adapter, SandboxMailbox};
use tidings_core::time::Clock;

pub mod dkim;
pub mod envelope;
pub mod mime;
pub mod sandbox;
mod settings;
pub mod smtp;

/// What adapters need from the process around them.
#[derive(Clone)]
pub struct Context {
    /// The time that deadlines go by.
    pub clock: Arc<dyn Clock>,
    /// How many calls may run at once for this account; connections are never more.
    pub concurrency: usize,
    /// What to say in EHLO where the account has no `helo_name`: the public URL's host, if it has a dot.
    pub default_helo: Option<String>,
    /// What signs the mail of which domain.
    pub dkim: Arc<dkim::Keys>,
    /// Where the sandbox keeps messages.
    pub sandbox: Option<Arc<dyn SandboxMailbox>>,
}

/// Why an account cannot be built. Never repeats a value of the settings.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// No adapter has this name.
    #[error("unknown kind {0:?}: known is \"smtp\"")]
    UnknownKind(String),
    /// A setting is missing, unknown or of the wrong type.
    #[error("{0}")]
    Settings(String),
    /// The certificates to trust cannot be loaded.
    #[error("{0}")]
    Trust(&'static str, #[source] Option<Box<dyn std::error::Error + Send + Sync>>),
}

/// Builds the adapter of `kind` from the settings that are the kind's own.
///
/// # Errors
/// What is wrong with the settings.
pub fn build(kind: &str, settings: Value, context: &Context) -> Result<Arc<dyn Adapter>, AccountError> {
    match kind {
        "smtp" => Ok(Arc::new(smtp::Smtp::new(settings::read(settings)?, context)?)),
        "sandbox" => {
            let mailbox = context.sandbox.clone().ok_or_else(|| AccountError::Settings("the sandbox has no mailbox here".to_owned()))?;
            Ok(Arc::new(sandbox::Sandbox::new(mailbox, context.clock.clone())))
        }
        _ => Err(AccountError::UnknownKind(kind.to_owned())),
    }
}
