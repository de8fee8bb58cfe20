//! Starts the service and stops it: what is opened in which order, what is said, what a signal does.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use tidings_core::secrets::Keyring;
use tidings_core::store::Store;
use tidings_core::time::Clock as _;
use tidings_store_postgres::{PostgresStore, Woken};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::accounts::Workshop;
use crate::app::{App, Readiness};
use crate::clock::StoreClock;
use crate::config::{Role, Settings, Sources};
use crate::dispatch::Dispatch;
use crate::keeper::Keeper;
use crate::keys;
use crate::metrics::Metrics;
use crate::pauses::Pauses;
use crate::pump::Pump;
use crate::reload::{self, Reloads};
use crate::setup::Setup;
use crate::slots::{Slots, capping, pacing};
use crate::wake::Wake;
use crate::writer::Writer;
use crate::{accounts, api, herald, notify, store};

/// How long a database that is away at start is waited for.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
/// How long calls that were drawn and not used may take to go back.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// Serves until a signal; returns when everything is written.
///
/// # Errors
/// When the configuration, the store or the address cannot be used.
pub async fn run(settings: Settings, sources: Sources) -> anyhow::Result<()> {
    // From here on it does not end the process, also while the store is waited for.
    let hangups = signal(SignalKind::hangup()).context("signals cannot be received")?;
    let clock = Arc::new(StoreClock::start());
    let opened = store::open(&settings).await?;
    let store = opened.store.clone();
    let result = serve(settings, sources, clock, opened, hangups).await;
    store.close().await;
    result
}

async fn serve(settings: Settings, sources: Sources, clock: Arc<StoreClock>, opened: store::Opened, hangups: Signal) -> anyhow::Result<()> {
    let store::Opened { store, signals } = opened;
    store::ready(store.as_ref(), &settings, STORE_PATIENCE).await?;
    if let Some(database) = store.time().await.context("the store's clock could not be read")? {
        clock.anchor(database);
    }
    let keyring = Arc::new(keyring(&settings, store.as_ref()).await?);
    let instance = store.register_instance(clock.now(), &settings.digest()).await.context("the process could not be registered")?;
    if store.moving().settle_feed().await.context("the positions of the feed could not be settled")? {
        tracing::warn!("the database is another one than before, or counts its transactions anew: positions of the feed leap");
    }
    let voided = store.void_leases(clock.now()).await.context("leases of an earlier process could not be voided")?;
    if voided > 0 {
        tracing::warn!(rows = voided, "calls of an earlier process have no outcome and are judged now");
    }

    let rules = Arc::new(settings.rules());
    let wake = Arc::new(Wake::new(signals.clone()));
    let metrics = Arc::new(Metrics::new());
    let writer = Writer::start(store.clone(), clock.clone(), rules, wake.clone(), metrics.clone());
    let workshop = Workshop { clock: clock.clone(), writer: writer.clone(), keyring: keyring.clone() };
    let adapters = accounts::build(&settings, &workshop, None)?;
    let routing = accounts::register(adapters, &settings, store.as_ref()).await.context("accounts and lanes could not be registered")?;
    let key = keys::bootstrap(&settings, store.as_ref(), clock.now()).await?;
    let pauses = Pauses::default();
    pauses.refresh(store.as_ref()).await.context("the switches could not be read")?;
    if pauses.is_frozen() {
        tracing::warn!("the store is frozen: nothing is taken or sent; \"tidings export --unfreeze\" ends that");
    }
    let slots = Arc::new(Slots::new(&routing.accounts, clock.now()));
    let app = Arc::new(App {
        in_force: ArcSwap::from_pointee(Setup::new(settings, routing)),
        reloads: Reloads::new(sources),
        store: store.clone(),
        clock: clock.clone(),
        keyring,
        writer: writer.clone(),
        wake,
        readiness: Readiness::default(),
        slots,
        pauses,
        metrics,
        started: std::time::Instant::now(),
    });

    // Before anything runs that would outlive the failure: the port is what most often is not to be had.
    let server = api::listen(app.clone()).await?;
    let (stop_keeper, pump_paused) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let dispatch = Arc::new(Dispatch::new(app.clone()));
    Keeper::new(app.clone(), dispatch.clone(), instance, pump_paused.clone(), stop_keeper.clone()).start();
    tokio::spawn(reload::at_signals(app.clone(), hangups, stop_keeper.clone()));
    let work = if app.setup().settings.server.roles.has(Role::Workers) {
        tokio::spawn(pacing::run(app.clone()));
        if let Some(signals) = signals {
            tokio::spawn(hear(app.clone(), signals, stop_keeper.clone()));
        }
        let drawing = tokio::spawn(capping::run(app.clone()));
        let pump = tokio::spawn(Pump::new(app.clone(), dispatch.clone(), instance, pump_paused).run());
        Some((pump, drawing))
    } else {
        tokio::spawn(herald::run(app.clone(), stop_keeper.clone()));
        None
    };
    announce(&app, &server, &key);
    notify::tell(notify::State::Ready);

    stop_signal().await?;
    app.readiness.stopping.store(true, Ordering::Relaxed);
    app.wake.arrived();
    notify::tell(notify::State::Stopping);
    tracing::info!("stopping: no new calls, running ones get their time");
    // No load balancer watches a loopback address.
    let linger = if server.address.ip().is_loopback() { Duration::ZERO } else { app.setup().settings.server.linger };
    let intake = async {
        tokio::time::sleep(linger).await;
        server.stop().await;
    };
    tokio::select! {
        (ambiguous, ()) = async { tokio::join!(dispatch.stop(app.setup().settings.server.grace), intake) } => {
            if let Some((pump, drawing)) = work {
                let _ = pump.await;
                // What it holds goes back before the store is closed.
                let _ = tokio::time::timeout(GIVING_BACK, drawing).await;
            }
            stop_keeper.cancel();
            writer.close();
            writer.drained().await;
            let open = store.open_count().await.unwrap_or_default();
            tracing::info!(ambiguous, open, "stopped");
        }
        _ = stop_signal() => tracing::warn!("stopped at once by a second signal; running calls are judged at the next start"),
    }
    Ok(())
}

/// The keys of the configured master secret, else of the one that the store holds, made at the first start.
async fn keyring(settings: &Settings, store: &dyn Store) -> anyhow::Result<Keyring> {
    let master = match &settings.secrets.master {
        Some(master) => keys::decode_master(master)?,
        None => {
            let made: [u8; 32] = rand::random();
            let held = store.settle_setting("master_secret", &made).await.context("the master secret could not be settled")?;
            held.try_into().map_err(|_| anyhow::anyhow!("the master secret in the store is damaged"))?
        }
    };
    let keyring = Keyring::derive(&master);
    let check = store.settle_setting("master_check", &keyring.check_value()).await.context("the master secret could not be checked")?;
    if check != keyring.check_value() {
        bail!("the master secret (secrets.master) is not the one that this store was written with; nothing was changed");
    }
    Ok(keyring)
}

/// Passes the hints of other processes on to the pump.
async fn hear(app: Arc<App>, signals: Arc<PostgresStore>, stop: CancellationToken) {
    let Ok(mut listener) = signals.listen().await else {
        tracing::warn!("no wake-ups from other processes; polling goes on");
        return;
    };
    while !stop.is_cancelled() {
        let woken = tokio::select! {
            woken = listener.next() => woken,
            () = stop.cancelled() => return,
        };
        let now = app.clock.now();
        match woken {
            Woken::Lanes(lanes) => lanes.into_iter().for_each(|lane| app.wake.lane(lane, now)),
            Woken::Everything => app.setup().routing.lanes().for_each(|route| app.wake.lane(route.lane, now)),
        }
    }
}

/// Says where everything is: for people on a terminal as text, else as one log line.
fn announce(app: &App, server: &api::Server, key: &keys::Bootstrap) {
    let url = format!("http://{}", server.address);
    let admin_url = server.admin.map_or_else(|| url.clone(), |admin| format!("http://{admin}"));
    let setup = app.setup();
    let roles = setup.settings.server.roles.words();
    if !setup.settings.log.is_text(std::io::stdout().is_terminal()) {
        tracing::info!(url, admin_url, store = app.store.describe(), roles = roles.join(","), "ready");
        return;
    }
    let only = if setup.routing.sandbox_only { ", sandbox only: nothing leaves this machine" } else { "" };
    println!("tidings {} is ready at {url}        {}{only}", env!("CARGO_PKG_VERSION"), app.store.describe());
    if !setup.settings.server.roles.is_all() {
        println!("  roles of this process        {}", roles.join(", "));
    }
    println!("  see mail, texts and pushes   {admin_url}/sandbox");
    println!("  read the API                 {admin_url}/docs");
    match key {
        keys::Bootstrap::Made(path) => {
            println!("  your key                     {}", shown(path));
            println!("  send your first mail, in another terminal:");
            println!("    {}", first_curl(&url, path));
        }
        keys::Bootstrap::Kept(path) => println!("  your key                     {}", shown(path)),
        keys::Bootstrap::FileGone => {
            println!(
                "  your key                     its file is gone; make another with: tidings keys create NAME (on SQLite while this is stopped)"
            )
        }
        keys::Bootstrap::Configured => {}
    }
}

fn shown(path: &Path) -> String {
    if path.is_relative() && !path.starts_with(".") { format!("./{}", path.display()) } else { path.display().to_string() }
}

fn first_curl(url: &str, key: &Path) -> String {
    format!(
        "curl -s {url}/v1/notifications -H \"Authorization: Bearer $(cat {})\" -H \"Idempotency-Key: hello-1\" \
         -H \"Content-Type: application/json\" -d '{{\"to\": \"ada@example.com\", \"email\": {{\"subject\": \"Hello\", \"text\": \"It works.\"}}}}'",
        key.display()
    )
}

/// Returns at SIGTERM or SIGINT.
async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be received")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be received")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
