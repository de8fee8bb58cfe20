//! The configuration: layers laid over each other, read by the type of each setting, all faults at once.
//! What a rule means is decided in `tidings_core::policy`, what a kind's own settings mean in its adapter.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

mod accounts;
pub mod check;
mod dkim;
mod inventory;
mod kinds;
mod layers;
mod names;
mod retention;
mod roles;
mod routes;
mod rules;
mod secret_ref;
mod server;
mod settings;
mod table;
pub mod tenants;
#[cfg(test)]
mod tests;
mod value;
mod via;

pub use accounts::{Account, AccountState};
pub use check::{Finding, Severity, check, load_sound};
pub use inventory::Difference;
pub use roles::{Role, Roles};
pub use routes::{ChannelRoutes, ClassRoutes, Entry, Routes, Shares};
pub use server::{Migrate, Server, Store};
pub use settings::{Bootstrap, Limits, Log, LogFormat, LogLevel, Sandbox, Secrets, Settings, Undeclared};
pub use tenants::Tenant;
pub use via::Via;

/// Where settings come from. Values of variables may be secrets, so this never shows itself.
pub struct Sources {
    /// The file named on the command line.
    pub config: Option<PathBuf>,
    /// Where `tidings.toml` is looked for, and what relative paths outside a file are relative to; empty means the working directory.
    pub directory: PathBuf,
    /// The environment.
    pub variables: BTreeMap<OsString, OsString>,
    /// What a secret that is not there leads to.
    pub missing_secrets: MissingSecrets,
}

/// What a secret that is not there leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingSecrets {
    /// A fault: nothing starts without it.
    AreFaults,
    /// An entry in `Settings::unresolved`: the file is only looked at.
    AreTolerated,
}

impl Sources {
    /// What this process was given.
    pub fn of_process(config: Option<PathBuf>, missing_secrets: MissingSecrets) -> Self {
        Self { config, directory: PathBuf::new(), variables: std::env::vars_os().collect(), missing_secrets }
    }
}

/// One thing that is wrong with a setting. Never repeats a value, since any of them may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The full name of the setting as TOML writes it, such as `accounts.relay.host`; empty where it is about a whole file.
    pub setting: String,
    /// The file and line or the variable it came from, where there is one.
    pub source: Option<String>,
    /// What is wrong.
    pub text: String,
}

impl Fault {
    /// Where it is, as a JSON pointer into the document that the configuration is; empty where it is about a whole file.
    pub fn pointer(&self) -> String {
        names::pointer(&self.setting)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.setting.as_str(), &self.source) {
            ("", None) => f.write_str(&self.text),
            ("", Some(source)) => write!(f, "{source}: {}", self.text),
            (setting, None) => write!(f, "{setting}: {}", self.text),
            (setting, Some(source)) => write!(f, "{setting} ({source}): {}", self.text),
        }
    }
}

/// Everything that keeps a configuration from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
    pub faults: Vec<Fault>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

/// Reads the configuration: compiled-in defaults, below the file, below the variables that begin with `TIDINGS__`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(sources: &Sources) -> Result<Settings, ConfigError> {
    let layers = layers::read(sources)?;
    let reader = table::Reader::new(sources);
    let settings = Settings::read(&reader.root(layers));
    reader.finish(settings)
}
