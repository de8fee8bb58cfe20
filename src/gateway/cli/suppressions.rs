//! `tidings suppressions`: addresses that are not written to, from the command line. What a suppression means is the API's
//! business; which files can be read is `formats`'.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tidings_core::request::parse_suppressions;

use super::http::{Client, member, show};
use formats::{Entry, Format};

mod csv;
mod formats;

const PATH: [&str; 2] = ["v1", "suppressions"];
/// Entries of one request; the server takes 1,000.
const CHUNK: usize = 500;
/// Items of one page: the most that the server gives.
const PAGE: &str = "200";

#[derive(Subcommand)]
pub(super) enum Suppressions {
    /// Show the newest
    List {
        /// Only those with this reason, such as hard_bounce
        #[arg(long, value_name = "REASON")]
        reason: Option<String>,
        /// Only those with this scope: all, bulk, complaint or sender:NAME
        #[arg(long, value_name = "SCOPE")]
        scope: Option<String>,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Write to an address no more
    Add {
        /// An email address
        address: String,
        /// How far it reaches: all, bulk or sender:NAME
        #[arg(long, value_name = "SCOPE")]
        scope: Option<String>,
        /// Why: manual, hard_bounce, complaint, unsubscribe ...
        #[arg(long, value_name = "REASON")]
        reason: Option<String>,
        /// A remark for people
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Write to an address again
    Remove {
        /// An id (sup_...), or an address that has only one
        #[arg(value_name = "ID|ADDRESS")]
        of: String,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Take over a list; the same file again adds nothing. Exit code 1 when an entry was refused
    Import {
        /// Where the list is
        file: PathBuf,
        /// What the file is: CSV with a header line, or what a provider's API answered
        #[arg(long, value_enum, default_value_t = Format::Csv)]
        format: Format,
        /// Why, for files that do not say: hard_bounce, complaint, unsubscribe or manual
        #[arg(long, value_name = "REASON")]
        reason: Option<String>,
        /// Look at every entry, send nothing
        #[arg(long)]
        dry_run: bool,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Print all of them as CSV that can be imported again; those that end by themselves are left out
    Export {
        /// One JSON object in each line instead
        #[arg(long)]
        json: bool,
    },
}

/// Does what the command says.
///
/// # Errors
/// Why it could not be done, for people.
pub(super) async fn run(command: Suppressions, config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    match command {
        Suppressions::List { reason, scope, json } => {
            let filter = [("reason", reason), ("scope", scope), ("limit", Some(PAGE.to_owned()))];
            let query: Vec<(&str, &str)> = filter.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
            let page = Client::of_process(config)?.get(&PATH, &query).await?;
            show(&page, json, told_page);
        }
        Suppressions::Add { address, scope, reason, note, json } => {
            let mut item = Map::from_iter([("address".to_owned(), Value::from(address))]);
            for (name, value) in [("scope", scope), ("reason", reason), ("note", note)] {
                item.extend(value.map(|value| (name.to_owned(), Value::from(value))));
            }
            let answer = Client::of_process(config)?.send(Method::POST, &PATH, Some(&json!({ "items": [item] }))).await?;
            let result = answer["results"][0].clone();
            if let Some(refusal) = refusal(&result) {
                bail!(refusal);
            }
            show(&result, json, |result| match result["status"].as_u64() {
                Some(201) => format!("{} added", member(result, "id")),
                _ => format!("{} was there already", member(result, "id")),
            });
        }
        Suppressions::Remove { of, reason, json } => {
            let client = Client::of_process(config)?;
            let id = if of.starts_with("sup_") { of } else { only_one_of(&client, &of).await? };
            let answer = client.send(Method::DELETE, &[PATH[0], PATH[1], &id], Some(&json!({ "reason": reason }))).await?;
            show(&answer, json, |answer| format!("{} removed", member(answer, "id")));
        }
        Suppressions::Import { file, format, reason, dry_run, json } => return import(&file, format, reason, dry_run, json, config).await,
        Suppressions::Export { json } => export(&Client::of_process(config)?, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn told_page(page: &Value) -> String {
    let line = |item: &Value| {
        let text = |name| member(item, name);
        format!("{}  {}  {:<20} {:<12} {}", text("id"), text("created_at"), text("reason"), text("scope"), text("address"))
    };
    let mut lines: Vec<String> = items(page).iter().map(line).collect();
    if lines.is_empty() {
        lines.push("nobody is suppressed".to_owned());
    }
    if !page["next"].is_null() {
        lines.push("... and more: tidings suppressions export prints all of them".to_owned());
    }
    lines.join("\n")
}

fn items(page: &Value) -> &[Value] {
    page["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

async fn only_one_of(client: &Client, address: &str) -> anyhow::Result<String> {
    let found = client.send(Method::POST, &["v1", "suppressions", "lookup"], Some(&json!({ "address": address }))).await?;
    match items(&found) {
        [] => bail!("the address is not suppressed"),
        [one] => Ok(member(one, "id")),
        several => {
            let lines: Vec<String> = several.iter().map(|item| format!("\n  {}  {}", member(item, "id"), member(item, "reason"))).collect();
            bail!("the address is suppressed for several reasons; say which one:{}", lines.concat())
        }
    }
}

/// What was wrong with an item, in words; `None` where it was taken.
fn refusal(result: &Value) -> Option<String> {
    if result["id"].is_string() {
        return None;
    }
    let faults = result["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let told: Vec<String> = faults.iter().map(|fault| fault_in_words(&member(fault, "pointer"), &member(fault, "detail"))).collect();
    Some(if told.is_empty() { format!("refused ({})", member(result, "status")) } else { told.join("; ") })
}

/// `/items/3/address` is of no use to people who have a file; what stands behind it is.
fn fault_in_words(pointer: &str, detail: &str) -> String {
    match pointer.splitn(4, '/').nth(3) {
        Some(field) => format!("{field}: {detail}"),
        None => detail.to_owned(),
    }
}

/// What became of a file.
#[derive(Default)]
struct Imported {
    added: usize,
    existing: usize,
    /// Entries by their place in the file, and what is wrong with each.
    refused: Vec<(usize, String)>,
}

async fn import(
    file: &std::path::Path,
    format: Format,
    reason: Option<String>,
    dry_run: bool,
    json: bool,
    config: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    let read = formats::read(file, format, reason.as_deref())?;
    let total = read.entries.len() + read.refused.len();
    let mut imported = Imported { refused: read.refused, ..Imported::default() };
    if dry_run {
        look_at(&read.entries, &mut imported);
    } else {
        let client = Client::of_process(config)?;
        for (done, chunk) in read.entries.chunks(CHUNK).enumerate() {
            progress(done * CHUNK, read.entries.len());
            send(&client, chunk, &mut imported).await.with_context(|| {
                let sent = done * CHUNK;
                format!("stopped after {sent} of {} entries; run it again: what is there already is not added twice", read.entries.len())
            })?;
        }
        progress(read.entries.len(), read.entries.len());
    }
    imported.refused.sort();
    let unit = format.unit();
    if !json {
        for (place, detail) in &imported.refused {
            eprintln!("{unit} {place}: {detail}");
        }
    }
    let refused: Vec<Value> = imported.refused.iter().map(|(place, detail)| json!({ unit: place, "detail": detail })).collect();
    let answer =
        json!({ "entries": total, "added": imported.added, "existing": imported.existing, "refused": refused, "dry_run": dry_run });
    show(&answer, json, |_| match dry_run {
        true => format!("{total} entries: {} fine, {} refused; nothing was sent", total - refused.len(), refused.len()),
        false => format!("{total} entries: {} added, {} there already, {} refused", imported.added, imported.existing, refused.len()),
    });
    Ok(if imported.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Judges entries as the server will, as far as that can be told from here: which senders there are it knows alone.
fn look_at(entries: &[Entry], imported: &mut Imported) {
    for chunk in entries.chunks(CHUNK) {
        let body = request(chunk).to_string();
        let judged = parse_suppressions(body.as_bytes(), |name| Ok(name.to_owned()));
        for (entry, item) in chunk.iter().zip(judged.into_iter().flatten()) {
            if let Err(faults) = item {
                let told: Vec<String> = faults.as_slice().iter().map(|fault| fault_in_words(&fault.pointer, &fault.detail)).collect();
                imported.refused.push((entry.place, told.join("; ")));
            }
        }
    }
}

fn request(chunk: &[Entry]) -> Value {
    json!({ "items": chunk.iter().map(|entry| &entry.item).collect::<Vec<_>>() })
}

async fn send(client: &Client, chunk: &[Entry], imported: &mut Imported) -> anyhow::Result<()> {
    let answer = client.send(Method::POST, &PATH, Some(&request(chunk))).await?;
    let results = answer["results"].as_array().filter(|results| results.len() == chunk.len());
    let results = results.context("the server does not say what became of each entry")?;
    for (entry, result) in chunk.iter().zip(results) {
        match (refusal(result), result["status"].as_u64()) {
            (Some(why), _) => imported.refused.push((entry.place, why)),
            (None, Some(201)) => imported.added += 1,
            (None, _) => imported.existing += 1,
        }
    }
    Ok(())
}

/// One line on a terminal, for as long as it takes.
fn progress(done: usize, total: usize) {
    let mut screen = std::io::stderr();
    if screen.is_terminal() {
        let end = if done == total { "\n" } else { "" };
        // A terminal that is gone needs no progress.
        let _ = write!(screen, "\r{done} of {total}{end}");
        let _ = screen.flush();
    }
}

async fn export(client: &Client, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut after: Option<String> = None;
    if !json {
        writeln!(out, "{}", csv::line(&formats::COLUMNS.map(str::to_owned)))?;
    }
    loop {
        let mut query = vec![("limit", PAGE)];
        query.extend(after.as_deref().map(|after| ("after", after)));
        let page = client.get(&PATH, &query).await?;
        for item in items(&page).iter().filter(|item| item["expires_at"].is_null()) {
            let address = member(item, "address");
            if address.contains("***@") {
                bail!("addresses are masked: export needs a key with the scope pii");
            }
            if json {
                writeln!(out, "{item}")?;
            } else if !address.is_empty() {
                writeln!(out, "{}", csv::line(&formats::COLUMNS.map(|name| member(item, name))))?;
            }
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return Ok(()),
        }
    }
}
