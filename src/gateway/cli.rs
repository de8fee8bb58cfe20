//! The command line: which commands there are and what each of them calls. What a command does is decided where it is called;
//! what it says about itself is said here.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tidings_core::store::Store;
use tidings_store_sqlite::OpenError;

use crate::config::{self, MissingSecrets, Settings, Severity, Sources};
use crate::{logging, serve, store};

mod health;
mod http;
mod keys;
mod messages;
mod moving;
mod operating;
mod report;
mod suppressions;

/// How long a command that somebody waits for tries to reach the store.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// Whom commands speak to.
const REACH: &str = "\
send, status, suppressions, accounts, pause and resume ask a running server: the one at TIDINGS_URL, else the one on this machine \
that the configuration describes, with the key in TIDINGS_API_KEY, else the one in api-key in the data directory. keys, tenants and \
migrate open the store themselves; with SQLite no server may run meanwhile.";

#[derive(Parser)]
#[command(name = "tidings", version, about = "Self-hosted gateway for transactional email.", after_help = REACH, args_conflicts_with_subcommands = false)]
struct Arguments {
    /// The configuration file, in place of TIDINGS_CONFIG or ./tidings.toml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT, and read the configuration again at SIGHUP; the same as no command
    Serve,
    /// Say what is wrong with the configuration: exit code 0 nothing, 1 warnings, 2 faults
    Check {
        /// Do without secrets that are not on this machine
        #[arg(long)]
        offline: bool,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Ask the server on this machine whether it is ready: exit code 0 yes, 1 no
    Health {
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Send one message through a running server
    Send(messages::Send),
    /// Say how a message stands
    Status(messages::Status),
    /// List, add, remove, import and export addresses that are not written to
    Suppressions {
        #[command(subcommand)]
        command: suppressions::Suppressions,
    },
    /// Say how the provider accounts are, or pause, resume or test one
    Accounts(operating::Accounts),
    /// Stop sending a part of everything, or all of it
    Pause(operating::Pause),
    /// Send again what was paused
    Resume(operating::Resume),
    /// Make, list, rotate and revoke API keys, in the store
    Keys {
        #[command(subcommand)]
        command: keys::Keys,
    },
    /// Make, list, disable and enable tenants, in the store: isolated projects, each with keys of its own
    Tenants {
        #[command(subcommand)]
        command: keys::Tenants,
    },
    /// Move away: stop here, and write everything to standard output
    Export(moving::Export),
    /// Move in: read an export into an empty store
    Import(moving::Import),
    /// Print the contract of the HTTP interface, as OpenAPI
    Openapi,
    /// Bring the schema of the store up to date
    Migrate {
        /// Say what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command that the process was started with.
///
/// # Errors
/// Why it could not be done, for people.
pub fn main() -> anyhow::Result<ExitCode> {
    let Arguments { config, command } = Arguments::parse();
    match command.unwrap_or(Command::Serve) {
        Command::Serve => {
            let sources = Sources::of_process(config, MissingSecrets::AreFaults);
            let settings = config::load(&sources)?;
            logging::start(&settings.log)?;
            report::warn(&config::check(&settings))?;
            runtime()?.block_on(serve::run(settings, sources))?;
        }
        Command::Check { offline, json } => {
            let missing = if offline { MissingSecrets::AreTolerated } else { MissingSecrets::AreFaults };
            let report = report::Report::of(config::load(&Sources::of_process(config, missing)));
            say(if json { report.to_json() } else { report.to_string() });
            return Ok(match report.worst() {
                None => ExitCode::SUCCESS,
                Some(Severity::Warning) => ExitCode::from(1),
                Some(Severity::Fault) => ExitCode::from(2),
            });
        }
        Command::Health { json } => {
            // It needs an address and no secrets.
            let settings = config::load(&Sources::of_process(config, MissingSecrets::AreTolerated))?;
            return health::run(settings.server.bind, json);
        }
        Command::Suppressions { command } => return runtime()?.block_on(suppressions::run(command, config)),
        Command::Keys { command } => runtime()?.block_on(keys::keys(command, &load(config)?))?,
        Command::Tenants { command } => runtime()?.block_on(keys::tenants(command, &load(config)?))?,
        Command::Send(command) => runtime()?.block_on(command.run(config))?,
        Command::Status(command) => runtime()?.block_on(command.run(config))?,
        Command::Accounts(command) => runtime()?.block_on(command.run(config))?,
        Command::Pause(command) => runtime()?.block_on(command.run(config))?,
        Command::Resume(command) => runtime()?.block_on(command.run(config))?,
        Command::Export(command) => runtime()?.block_on(command.run(&load(config)?))?,
        Command::Import(command) => runtime()?.block_on(command.run(&load(config)?))?,
        Command::Openapi => say(crate::api::OPENAPI.trim_end()),
        Command::Migrate { dry_run, json } => runtime()?.block_on(migrate(&load(config)?, dry_run, json))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn load(config: Option<PathBuf>) -> anyhow::Result<Settings> {
    Ok(config::load(&Sources::of_process(config, MissingSecrets::AreFaults))?)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime could not be started")
}

/// Prints a line of the answer. A reader who has seen enough (`| head`) ends the command without a word.
fn say(text: impl std::fmt::Display) {
    use std::io::Write as _;
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("tidings: the answer could not be printed: {error}");
        std::process::exit(1);
    }
}

/// Opens the store of this configuration for a command. SQLite's belongs to one process: where the server has it, `instead` says
/// what to do.
async fn open_store(settings: &Settings, instead: &str) -> anyhow::Result<Arc<dyn Store>> {
    let opened = store::open(settings).await.map_err(|err| match err.downcast_ref() {
        Some(OpenError::InUse { .. }) => err.context(format!("a running server has this store to itself: {instead}")),
        _ => err,
    });
    Ok(opened?.store)
}

async fn migrate(settings: &Settings, dry_run: bool, json: bool) -> anyhow::Result<()> {
    let store = open_store(settings, "stop it first; it brings the schema up to date by itself when it starts").await?;
    let pending = store.pending_migrations().await.with_context(|| format!("{} could not be read", store.describe()))?;
    let told = match (json, pending.is_empty()) {
        (true, _) => serde_json::json!({ "pending": pending, "dry_run": dry_run }).to_string(),
        (false, true) => "the schema is up to date".to_owned(),
        (false, false) => format!("{}\n  {}", if dry_run { "would apply" } else { "applied" }, pending.join("\n  ")),
    };
    if dry_run {
        store.close().await;
        say(told);
        return Ok(());
    }
    let migrated = store.migrate().await.with_context(|| format!("{} could not be brought up to date", store.describe()));
    store.close().await;
    migrated?;
    say(told);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_commands_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_that_answers_has_json_for_programs() {
        fn look_for_json(command: &clap::Command, path: &str) {
            // The contract is JSON in any case, and what serves speaks by its log.
            if matches!(command.get_name(), "serve" | "openapi" | "help") {
                return;
            }
            let path = format!("{path} {}", command.get_name());
            let is_leaf = command.get_subcommands().next().is_none() || !command.is_subcommand_required_set();
            let has_json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert!(!is_leaf || has_json, "{path} has no --json");
            command.get_subcommands().for_each(|inner| look_for_json(inner, &path));
        }
        let mut root = Arguments::command();
        root.build();
        root.get_subcommands().for_each(|command| look_for_json(command, "tidings"));
    }

    #[test]
    fn every_argument_says_what_it_is() {
        fn look_for_help(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} of {} has no help", argument.get_id(), command.get_name());
            }
            command.get_subcommands().for_each(look_for_help);
        }
        look_for_help(&Arguments::command());
    }

    #[test]
    fn no_command_serves_and_the_file_may_be_named_before_or_after_the_command() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap();
        assert!(parse("tidings").command.is_none());
        for line in ["tidings --config a.toml serve", "tidings serve --config a.toml", "tidings check --config a.toml --offline"] {
            assert_eq!(parse(line).config, Some("a.toml".into()), "{line}");
        }
    }

    #[test]
    fn scopes_are_a_list_of_known_words() {
        let scopes = |line: &str| match Arguments::try_parse_from(line.split(' ')).ok()?.command? {
            Command::Keys { command: keys::Keys::Create { scopes, .. } } => Some(scopes.join(" ")),
            _ => None,
        };
        assert_eq!(scopes("tidings keys create app").as_deref(), Some("send read"));
        assert_eq!(scopes("tidings keys create app --scopes send:critical,pii").as_deref(), Some("send:critical pii"));
        assert_eq!(scopes("tidings keys create app --scopes send,everything"), None);
    }
}
