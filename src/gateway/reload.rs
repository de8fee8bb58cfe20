//! Reads the configuration again and puts what it comes to in place of what is in force: whole, or not at all. One reload at a
//! time; files are read on a thread of their own. What a configuration means is decided in `config`, which settings a running
//! process takes in `config::inventory`.

use std::sync::Arc;
use std::time::Duration;

use tidings_core::store::{StoreError, SwitchedBy};
use tokio::signal::unix::Signal;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio_util::sync::CancellationToken;

use crate::accounts::{self, Adapters, Workshop};
use crate::app::App;
use crate::config::{self, ConfigError, Difference, Fault, Finding, Settings, Sources};
use crate::metrics::Reload;
use crate::setup::Setup;
use crate::{keeper, logging};

/// How long files may take to be read, and how long an earlier reload is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most names that an entry of the audit log lists.
const MOST_NAMES: usize = 50;

/// Where the configuration is read again, and whose turn it is.
pub struct Reloads {
    sources: Arc<Sources>,
    turn: Arc<Mutex<()>>,
}

/// A configuration that was taken.
#[derive(Debug)]
pub struct Reloaded {
    /// Its digest.
    pub digest: String,
    /// How it differs from the one before.
    pub difference: Difference,
}

/// Why the configuration in force stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// What is wrong with the new one.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// Another reload is still at work, or a file cannot be read in time.
    #[error("the configuration could not be read in time")]
    Late,
    /// The store is frozen: an entry in its audit log would not move with it.
    #[error("the store is frozen")]
    Frozen,
    /// The store did not take the accounts or the entry in the audit log.
    #[error("the store did not take the configuration")]
    Store(#[from] StoreError),
}

/// What was read.
struct Reading {
    settings: Settings,
    warnings: Vec<Finding>,
    adapters: Adapters,
}

impl Reloads {
    /// Reads from where the process was started with.
    pub fn new(sources: Sources) -> Self {
        Self { sources: Arc::new(sources), turn: Arc::default() }
    }

    /// Reads files and builds adapters beside everything else. Whoever hangs there keeps the turn: nobody joins him.
    async fn read(
        &self,
        turn: OwnedMutexGuard<()>,
        workshop: Workshop,
        setup: Arc<Setup>,
    ) -> Result<(OwnedMutexGuard<()>, Reading), ReloadError> {
        let sources = self.sources.clone();
        let (tell, told) = oneshot::channel();
        // The end of the process does not wait for it, as it would for a blocking task of the runtime.
        std::thread::spawn(move || {
            let reading = reading(&sources, &workshop, &setup);
            // Whoever is no longer there has given up waiting.
            let _ = tell.send(reading.map(|reading| (turn, reading)));
        });
        match tokio::time::timeout(PATIENCE, told).await {
            Ok(Ok(reading)) => Ok(reading?),
            Ok(Err(_)) | Err(_) => Err(ReloadError::Late),
        }
    }
}

fn reading(sources: &Sources, workshop: &Workshop, setup: &Setup) -> Result<Reading, ConfigError> {
    let (settings, warnings) = config::load_sound(sources)?;
    // What is read at start only stays, so that nothing is built of what is not in force.
    let taken = settings.clone().taken_over(&setup.settings);
    let adapters = accounts::build(&taken, workshop, Some(&setup.routing)).map_err(|err| {
        let fault = Fault { setting: String::new(), source: None, text: format!("{err:#}") };
        ConfigError { faults: vec![fault] }
    })?;
    Ok(Reading { settings, warnings, adapters })
}

/// Reads the configuration again; with an error nothing has changed.
///
/// # Errors
/// Why the one in force stays. It is logged and counted here.
pub async fn reload(app: &Arc<App>, actor: &str) -> Result<Reloaded, ReloadError> {
    let reloaded = take(app, actor).await;
    let result = if reloaded.is_ok() { "taken" } else { "refused" };
    app.metrics.config_reloads.get_or_create(&Reload { result }).inc();
    match &reloaded {
        Ok(Reloaded { digest, difference: Difference { changed, needs_restart } }) => {
            let (changed, restart) = (changed.join(", "), needs_restart.join(", "));
            tracing::info!(changed, needs_restart = restart, config_digest = digest, actor, "the configuration was reloaded");
            if !restart.is_empty() {
                tracing::warn!(settings = restart, "these settings are in force after a restart only");
            }
        }
        Err(ReloadError::Invalid(error)) => {
            for fault in &error.faults {
                tracing::error!(setting = fault.setting, actor, "the configuration was not reloaded, the one in force stays: {fault}");
            }
        }
        Err(ReloadError::Store(error)) => {
            tracing::error!(error = %keeper::chain(error), actor, "the configuration was not reloaded, the one in force stays");
        }
        Err(error @ (ReloadError::Late | ReloadError::Frozen)) => {
            tracing::error!(%error, actor, "the configuration was not reloaded, the one in force stays");
        }
    }
    reloaded
}

async fn take(app: &Arc<App>, actor: &str) -> Result<Reloaded, ReloadError> {
    let turn = tokio::time::timeout(PATIENCE, app.reloads.turn.clone().lock_owned()).await.map_err(|_| ReloadError::Late)?;
    if app.pauses.is_frozen() {
        return Err(ReloadError::Frozen);
    }
    let before = app.setup();
    let workshop = Workshop { clock: app.clock.clone(), writer: app.writer.clone(), keyring: app.keyring.clone() };
    let (_turn, Reading { settings, warnings, adapters }) = app.reloads.read(turn, workshop, before.clone()).await?;
    for warning in warnings {
        tracing::warn!(setting = warning.setting, "{}", warning.text);
    }
    let difference = settings.difference(&before.settings);
    let settings = settings.taken_over(&before.settings);
    // Everything that may fail comes before anything that takes effect.
    let routing = accounts::register(adapters, &settings, app.store.as_ref()).await?;
    let setup = Arc::new(Setup::new(settings, routing));
    let by = SwitchedBy { actor: actor.to_owned(), reason: Some(told(&difference)), at: app.now() };
    app.store.pauses().note_act("config.reloaded", &setup.digest, &by).await?;
    if !difference.changed.is_empty() {
        put_in_force(app, &before, setup.clone());
    }
    Ok(Reloaded { digest: setup.digest.clone(), difference })
}

fn put_in_force(app: &App, before: &Setup, setup: Arc<Setup>) {
    app.slots.adopt(&setup.routing.accounts, app.now());
    app.writer.go_by(setup.rules.clone());
    logging::change(&setup.settings.log);
    app.in_force.store(setup.clone());
    app.wake.look();
    // Their running calls go on; what is idle is closed.
    for account in &before.routing.accounts {
        if !setup.routing.accounts.iter().any(|other| Arc::ptr_eq(&other.adapter, &account.adapter)) {
            let adapter = account.adapter.clone();
            tokio::spawn(async move { adapter.close().await });
        }
    }
}

/// The names of what differs, for the audit log.
fn told(difference: &Difference) -> String {
    let list = |names: &[String]| match names.len() {
        0 => "nothing".to_owned(),
        1..=MOST_NAMES => names.join(", "),
        more => format!("{} and {} more", names[..MOST_NAMES].join(", "), more - MOST_NAMES),
    };
    let changed = format!("changed: {}", list(&difference.changed));
    if difference.needs_restart.is_empty() { changed } else { format!("{changed}; needs a restart: {}", list(&difference.needs_restart)) }
}

/// Reloads at each SIGHUP.
pub async fn at_signals(app: Arc<App>, mut hangups: Signal, stop: CancellationToken) {
    loop {
        tokio::select! {
            hangup = hangups.recv() => if hangup.is_none() { return },
            () = stop.cancelled() => return,
        }
        // It says itself what became of it.
        let _ = reload(&app, "SIGHUP").await;
    }
}
