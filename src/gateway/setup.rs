//! What the configuration in force comes to, as one value that is never changed: a reload puts another in its place. Who takes
//! it once for a whole request, claim or run never sees a mixture of two.

use std::sync::Arc;

use tidings_core::policy::Rules;
use tidings_core::senders::SendsAs;

use crate::config::Settings;
use crate::routing::Routing;

/// Everything that follows from one reading of the configuration.
pub struct Setup {
    /// What was read.
    pub settings: Settings,
    /// What decisions go by.
    pub rules: Arc<Rules>,
    /// Accounts and lanes.
    pub routing: Routing,
    /// As whom the accounts may send.
    pub sends_as: Arc<SendsAs>,
    /// Tells instances apart that do not run with the same settings.
    pub digest: String,
}

impl Setup {
    /// What these settings come to with these accounts and lanes.
    pub fn new(settings: Settings, routing: Routing) -> Self {
        let sends_as = SendsAs::new(routing.accounts.iter().map(|account| (account.id, account.sends_as.clone())));
        let (rules, digest) = (Arc::new(settings.rules()), hex::encode(settings.digest()));
        Self { settings, rules, routing, sends_as: Arc::new(sends_as), digest }
    }

    /// The same with other lanes.
    #[must_use]
    pub fn with(&self, routing: Routing) -> Self {
        let Self { settings, rules, routing: _, sends_as, digest } = self;
        Self { settings: settings.clone(), rules: rules.clone(), routing, sends_as: sends_as.clone(), digest: digest.clone() }
    }

    /// Nothing configured.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        use crate::config::{MissingSecrets, Sources, load};
        let directory = tempfile::tempdir().unwrap();
        let sources = Sources {
            config: None,
            directory: directory.path().to_owned(),
            variables: std::collections::BTreeMap::new(),
            missing_secrets: MissingSecrets::AreFaults,
        };
        Self::new(load(&sources).unwrap(), Routing { routes: Vec::new(), former: Vec::new(), accounts: Vec::new(), sandbox_only: false })
    }
}
