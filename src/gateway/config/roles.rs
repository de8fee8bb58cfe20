//! `server.roles`: which jobs a process does, where several share one database. What a job is made of is decided where
//! processes are started (`crate::serve`, `crate::keeper`) and asked (`crate::api::roles`).

use super::settings::Settings;
use super::table::Table;

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Answers applications and operators.
    Intake,
    /// Claims what is due and calls providers.
    Workers,
    /// Takes what providers report. This version takes no reports.
    Webhooks,
    /// Does what time alone brings about: lost leases, holds, deadlines, what is erased, audits.
    Sweeps,
}

impl Role {
    const ALL: [Self; 4] = [Self::Intake, Self::Workers, Self::Webhooks, Self::Sweeps];

    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Intake => "intake",
            Self::Workers => "workers",
            Self::Webhooks => "webhooks",
            Self::Sweeps => "sweeps",
        }
    }
}

/// The jobs of one process: at least one, each once, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// Everything.
    pub fn all() -> Self {
        Self(Role::ALL.to_vec())
    }

    /// Whether this job is among them.
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Whether nothing is left to others.
    pub fn is_all(&self) -> bool {
        self.0.len() == Role::ALL.len()
    }

    /// Whether a process with them would do nothing.
    pub fn are_idle(&self) -> bool {
        self.0 == [Role::Webhooks]
    }

    /// Their words.
    pub fn words(&self) -> Vec<&'static str> {
        self.0.iter().map(|role| role.as_str()).collect()
    }

    pub(super) fn read(server: &Table<'_>) -> Self {
        let setting = server.get("roles");
        let Some(items) = setting.items() else { return Self::all() };
        if items.is_empty() {
            setting.fault("a process needs at least one role; leave the setting out for all of them");
        }
        let words = Role::ALL.map(|role| (role.as_str(), role));
        let mut roles = Vec::new();
        for item in &items {
            let Some(role) = item.word(&words) else { continue };
            if roles.contains(&role) {
                item.fault(format!("the role {:?} is named twice", role.as_str()));
            } else {
                roles.push(role);
            }
        }
        roles.sort_unstable();
        Self(roles)
    }
}

impl Settings {
    /// Whether what is configured is kept in a file that one process alone opens.
    pub(super) fn is_on_sqlite(&self) -> bool {
        let is_unknown = self.unresolved.iter().any(|entry| entry.starts_with("store.url:"));
        !is_unknown && self.store.url.reveal().starts_with("sqlite://")
    }
}
