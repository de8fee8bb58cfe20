//! `tidings export` and `tidings import`: an installation moves to another database (S-237). In which order that happens and
//! what is said about it is decided here; what moves in which form, in core; how it is read and written, in the stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tidings_core::ids::InstanceId;
use tidings_core::secrets::Keyring;
use tidings_core::store::{Store, Sweep, SwitchedBy};
use tidings_core::time::{Clock as _, Timestamp};

use super::{STORE_PATIENCE, open_store, say};
use crate::clock::StoreClock;
use crate::config::Settings;
use crate::{freeze, keys, store};
use lines::{Lines, Sheet};

mod lines;

/// Within which every process has seen the freeze, with a margin.
const NOTICED: Duration = Duration::from_secs(3);
/// Within which every process that runs has written that it does.
const SHOWN: Duration = Duration::from_secs(5);
/// A process that was seen within this time may still run.
const SEEN: Duration = Duration::from_secs(15);
/// How often it is looked whether calls have ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Rows of one transaction that judges calls without an answer.
const SWEEP_ROWS: i64 = 100;

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Stop taking and sending, and write everything to standard output
    #[arg(long)]
    freeze: bool,
    /// Take and send again: the installation stays here after all
    #[arg(long)]
    unfreeze: bool,
    /// Write the master secret to standard output, where the store keeps it; the new installation needs it
    #[arg(long)]
    secret: bool,
}

#[derive(clap::Args)]
pub(super) struct Export {
    #[command(flatten)]
    what: What,
    /// How long calls that run are waited for; what has no answer then moves as perhaps sent
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = patience)]
    wait: Duration,
    /// For programs; with --freeze on standard error
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Import {
    /// What "tidings export --freeze" wrote; left out, standard input
    file: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    json: bool,
}

fn patience(raw: &str) -> Result<Duration, String> {
    tidings_core::time::parse_duration(raw).map_err(|err| err.to_string())
}

/// A store that is open, and its time.
struct Open {
    store: Arc<dyn Store>,
    clock: StoreClock,
}

impl Open {
    async fn of(settings: &Settings) -> anyhow::Result<Self> {
        let (clock, store) = (StoreClock::start(), open_store(settings, "stop it first; what waits in it moves as it is").await?);
        store::ready(store.as_ref(), settings, STORE_PATIENCE).await?;
        if let Some(database) = store.time().await? {
            clock.anchor(database);
        }
        Ok(Self { store, clock })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn note(&self, action: &str) -> anyhow::Result<()> {
        let by = SwitchedBy { actor: "cli".to_owned(), reason: None, at: self.now() };
        Ok(self.store.pauses().note_act(action, "store", &by).await?)
    }
}

impl Export {
    /// Freezes and exports, or one of the other things.
    ///
    /// # Errors
    /// Why it could not be done, for people.
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let open = Open::of(settings).await?;
        let done = if self.what.freeze {
            export(&open, self.wait, self.json).await
        } else if self.what.unfreeze {
            unfreeze(&open, self.json).await
        } else {
            secret(&open, settings, self.json).await
        };
        open.store.close().await;
        done
    }
}

async fn export(open: &Open, wait: Duration, json: bool) -> anyhow::Result<()> {
    let store = open.store.as_ref();
    let check = store.setting("master_check").await?;
    let check = check.with_context(|| format!("{} was never served from: there is nothing to move", store.describe()))?;
    if freeze::since(store).await?.is_none() {
        open.note("store.frozen").await?;
    }
    let frozen_at = freeze::freeze(store, open.now()).await.context("the store could not be frozen")?;
    let told = Told { json };
    told.note(format_args!("frozen: nothing is taken or sent here any more; \"tidings export --unfreeze\" ends that"));
    let running = quiet(open, frozen_at, wait, &told).await?;
    let rows = store.open_count().await?;
    told.note(format_args!("{rows} open rows"));
    let mut sheet = Sheet::to_stdout(frozen_at, STANDARD.encode(check), told.shows_progress());
    let exported = store.moving().export(&mut sheet).await;
    exported.context("the export is not whole, and an import would refuse it; the store stays frozen")?;
    let counted = sheet.end().context("the dump could not be written; the store stays frozen")?;
    let total: u64 = counted.values().map(|table| table.rows).sum();
    if json {
        eprintln!("{}", json!({ "frozen_at": frozen_at.to_string(), "open": rows, "rows": total, "tables": counted, "running": running }));
    } else {
        eprintln!("exported {total} rows");
        if !running.is_empty() {
            eprintln!("still running, and answering 503: {}; stop them before the new installation is served", named(&running));
        }
    }
    Ok(())
}

/// Waits until the processes of this installation have seen the freeze and their calls have ended; returns who runs.
async fn quiet(open: &Open, frozen_at: Timestamp, wait: Duration, told: &Told) -> anyhow::Result<Vec<InstanceId>> {
    let (store, since, from) = (open.store.as_ref(), Instant::now(), open.now());
    // Without another process nobody has to see anything: an SQLite file belongs to this one now.
    if store.time().await?.is_none() || store.moving().seen_since(from.minus(SEEN)).await?.is_empty() {
        return Ok(Vec::new());
    }
    told.note(format_args!("waiting for the processes of this installation to see it"));
    tokio::time::sleep(SHOWN).await;
    let running = store.moving().seen_since(from).await?;
    loop {
        let calls = store.moving().under_way().await?;
        let theirs: Vec<_> = calls.into_iter().filter(|owned| running.contains(&owned.owner)).collect();
        if let Some(claiming) = theirs.iter().find(|owned| owned.newest > frozen_at.plus(NOTICED)) {
            bail!("instance {} still sends: it does not know of the freeze. Stop it and export again", claiming.owner);
        }
        let left: i64 = theirs.iter().map(|owned| owned.calls).sum();
        if left == 0 {
            return Ok(running);
        }
        if since.elapsed() >= wait {
            told.note(format_args!("{left} calls have no answer yet and move as perhaps sent"));
            return Ok(running);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn unfreeze(open: &Open, json: bool) -> anyhow::Result<()> {
    let was_frozen = open.store.moving().unfreeze().await?;
    if was_frozen {
        open.note("store.unfrozen").await?;
    }
    let told = if was_frozen { "not frozen any more; import its dump nowhere" } else { "was not frozen" };
    say(if json { json!({ "frozen": false, "was_frozen": was_frozen }).to_string() } else { told.to_owned() });
    Ok(())
}

async fn secret(open: &Open, settings: &Settings, json: bool) -> anyhow::Result<()> {
    if settings.secrets.master.is_some() {
        bail!("the master secret is where secrets.master says, and not in the store: set the same at the new installation");
    }
    let held = open.store.setting("master_secret").await?.context("the store holds no master secret: it was never served from")?;
    let held = STANDARD.encode(held);
    say(if json { json!({ "master": held }).to_string() } else { held });
    Ok(())
}

impl Import {
    /// Writes a dump into the store, which must be empty.
    ///
    /// # Errors
    /// Why nothing was written, for people.
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let told = Told { json: self.json };
        let mut lines = Lines::open(self.file.as_deref(), told.shows_progress())?;
        let header = lines.opened().clone();
        fits(settings, &header.master_check)?;
        let open = Open::of(settings).await?;
        let done = import(&open, settings, &mut lines).await;
        open.store.close().await;
        let (tables, judged) = done?;
        let total: u64 = tables.values().map(|table| table.rows).sum();
        let answer = json!({ "source": header.source, "frozen_at": header.frozen_at.to_string(), "rows": total, "tables": tables, "judged": judged });
        let text = || {
            let counts: Vec<String> =
                tables.iter().filter(|(_, table)| table.rows > 0).map(|(name, table)| format!("  {name}  {}", table.rows)).collect();
            let judged = if judged > 0 { format!("\n{judged} calls without an answer are perhaps sent") } else { String::new() };
            format!("imported {total} rows; counts and hashes are those of the export\n{}{judged}", counts.join("\n"))
        };
        say(if self.json { Value::to_string(&answer) } else { text() });
        Ok(())
    }
}

/// Refuses a master secret that does not open what is imported.
fn fits(settings: &Settings, check: &str) -> anyhow::Result<()> {
    let how = "Run \"tidings export --secret > master.key\" at the old installation, or take the file that its secrets.master names, \
               and set secrets.master = { file = \"master.key\" } here";
    let Some(master) = &settings.secrets.master else {
        bail!("the dump does not contain the master secret, and secrets.master is not set here. {how}");
    };
    if STANDARD.encode(Keyring::derive(&keys::decode_master(master)?).check_value()) != check {
        bail!("secrets.master is not the master secret that the dump was written with; nothing was imported. {how}");
    }
    Ok(())
}

type Tables = std::collections::BTreeMap<String, tidings_core::moving::Counted>;

async fn import(open: &Open, settings: &Settings, lines: &mut Lines) -> anyhow::Result<(Tables, usize)> {
    let store = open.store.as_ref();
    store.moving().import(lines).await.with_context(|| format!("nothing was imported into {}", store.describe()))?;
    open.note("store.imported").await?;
    // Calls that ran at the freeze have no answer, and never get one here.
    let (rules, mut judged) = (settings.rules(), 0);
    loop {
        let swept = store.sweep(&rules, Sweep::LeaseExpired, SWEEP_ROWS, open.now()).await;
        let swept = swept.context("everything is imported; calls without an answer are judged at the first start")?;
        judged += swept.len();
        if swept.is_empty() {
            return Ok((lines.counted(), judged));
        }
    }
}

fn named(instances: &[InstanceId]) -> String {
    instances.iter().map(|id| format!("instance {id}")).collect::<Vec<_>>().join(", ")
}

/// What is said on the way, to people alone.
struct Told {
    json: bool,
}

impl Told {
    fn note(&self, text: std::fmt::Arguments<'_>) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    fn shows_progress(&self) -> bool {
        use std::io::IsTerminal as _;
        !self.json && std::io::stderr().is_terminal()
    }
}
