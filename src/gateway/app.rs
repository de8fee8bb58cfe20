//! What the parts of the service share. Everything in here may vanish: the store holds the truth (S-030).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tidings_core::secrets::Keyring;
use tidings_core::store::Store;
use tidings_core::time::Clock;

use crate::clock::StoreClock;
use crate::metrics::Metrics;
use crate::pauses::Pauses;
use crate::reload::Reloads;
use crate::setup::Setup;
use crate::slots::Slots;
use crate::wake::Wake;
use crate::writer::Writer;

/// The wiring of one process.
pub struct App {
    /// What the configuration in force comes to. Whoever asks it two things takes it once, by `setup`.
    pub in_force: ArcSwap<Setup>,
    /// Where the configuration is read again.
    pub reloads: Reloads,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The store's time.
    pub clock: Arc<StoreClock>,
    /// Keys derived from the master secret.
    pub keyring: Arc<Keyring>,
    /// The group commit.
    pub writer: Writer,
    /// How busy and how well the accounts are.
    pub slots: Arc<Slots>,
    /// Tells the pump that something is due.
    pub wake: Arc<Wake>,
    /// Whether this process can do its work.
    pub readiness: Readiness,
    /// What operators have paused.
    pub pauses: Pauses,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// When the process began.
    pub started: std::time::Instant,
}

impl App {
    /// What the configuration in force comes to: one value for a whole request, claim or run.
    pub fn setup(&self) -> Arc<Setup> {
        self.in_force.load_full()
    }

    /// The present instant.
    pub fn now(&self) -> tidings_core::time::Timestamp {
        self.clock.now()
    }
}

/// What `/readyz` says (S-228): this process's own ability, never a provider's.
#[derive(Default)]
pub struct Readiness {
    /// The last write of the keeper did not succeed.
    pub store_down: AtomicBool,
    /// The database's clock and ours were more than two seconds apart at the last anchor.
    pub clock_skewed: AtomicBool,
    /// The process is on its way down.
    pub stopping: AtomicBool,
}

impl Readiness {
    /// What is not well; empty means ready.
    pub fn faults(&self) -> Vec<&'static str> {
        let mut faults = Vec::new();
        for (flag, name) in [(&self.store_down, "store"), (&self.clock_skewed, "clock"), (&self.stopping, "stopping")] {
            if flag.load(Ordering::Relaxed) {
                faults.push(name);
            }
        }
        faults
    }
}
