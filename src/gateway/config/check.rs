//! What `tidings check` says about settings that could be read: contradictions with the world outside the file, and choices
//! that work but are likely to be regretted. What cannot be read at all is a `Fault` of loading.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use tidings_core::time::{Clock, Timestamp};
use tidings_core::words::Class;
use tidings_providers::Context;

use super::accounts::Account;
use super::{ConfigError, Entry, Fault, Settings, Sources, Via, load};

/// The packaged units and images are killed after 35 s.
const PACKAGED_STOP: Duration = Duration::from_secs(34);
/// A provider call may take 20 s; its answer needs time to be written down (S-046).
const SHORTEST_GRACE: Duration = Duration::from_secs(22);

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, and somebody should look.
    Warning,
    /// It must not run like this.
    Fault,
}

/// One thing worth saying about the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The full name of the setting that mends it.
    pub setting: String,
    /// The file and line or the variable, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What is the matter. Never repeats a value that may be secret.
    pub text: String,
}

impl From<Fault> for Finding {
    fn from(fault: Fault) -> Self {
        let Fault { setting, source, text } = fault;
        Self { severity: Severity::Fault, setting, source, text }
    }
}

impl Finding {
    /// The finding as what keeps a configuration from being used.
    pub fn as_fault(&self) -> Fault {
        Fault { setting: self.setting.clone(), source: self.source.clone(), text: self.text.clone() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_fault().fmt(f)
    }
}

fn finding(severity: Severity, setting: impl Into<String>, text: impl Into<String>) -> Finding {
    Finding { severity, setting: setting.into(), source: None, text: text.into() }
}

fn warning(setting: impl Into<String>, text: impl Into<String>) -> Finding {
    finding(Severity::Warning, setting, text)
}

/// Reads the configuration as a process may run with it, and says what is likely to be regretted.
///
/// # Errors
/// Everything that is wrong with it, contradictions with the world outside the file included.
pub fn load_sound(sources: &Sources) -> Result<(Settings, Vec<Finding>), ConfigError> {
    let settings = load(sources)?;
    let (faults, warnings): (Vec<_>, Vec<_>) = check(&settings).into_iter().partition(|finding| finding.severity == Severity::Fault);
    if faults.is_empty() { Ok((settings, warnings)) } else { Err(ConfigError { faults: faults.iter().map(Finding::as_fault).collect() }) }
}

/// Looks at settings as a whole. Touches neither network nor store.
pub fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    server(settings, &mut findings);
    for account in &settings.accounts {
        account_alone(account, settings, &mut findings);
    }
    sending(settings, &mut findings);
    findings
}

fn server(settings: &Settings, findings: &mut Vec<Finding>) {
    let server = &settings.server;
    if settings.is_on_sqlite() && !server.roles.is_all() {
        let text = "one process alone opens a SQLite file, so that it has to do everything: leave server.roles out, or set store.url to PostgreSQL";
        findings.push(finding(Severity::Fault, "server.roles", text));
    } else if server.roles.are_idle() {
        let text = "this version receives no webhooks, so that a process with the role \"webhooks\" alone does nothing";
        findings.push(warning("server.roles", text));
    }
    if !server.binds_loopback() {
        match &server.public_url {
            None => findings.push(warning("server.public_url", "others can reach this server, and it does not know under which URL")),
            Some(url) if url.scheme() == "http" => {
                findings.push(warning("server.public_url", "API keys and messages travel in clear text under http; put TLS in front"));
            }
            Some(_) => {}
        }
    }
    if server.grace < SHORTEST_GRACE {
        let text = "shorter than a slow call takes (22s): what is then unanswered at a stop becomes ambiguous";
        findings.push(warning("server.grace", text));
    }
    if server.linger + server.grace > PACKAGED_STOP {
        let text = "linger and grace together are over 34s: give the supervisor a longer stop period than the usual 35s, or it kills calls";
        findings.push(warning("server.grace", text));
    }
    let has_master = settings.secrets.master.is_some() || settings.unresolved.iter().any(|entry| entry.starts_with("secrets.master:"));
    if !has_master && !server.binds_loopback() {
        let text = "the master secret is kept in the database, beside what it protects; set it to a file that has it in base64";
        findings.push(warning("secrets.master", text));
    }
}

fn account_alone(account: &Account, settings: &Settings, findings: &mut Vec<Finding>) {
    let name = &account.name;
    if account.concurrency == Some(1) {
        let text = "one call at a time leaves no slot for critical messages while another is sent; 2 and more reserve one";
        findings.push(warning(format!("accounts.{name}.concurrency"), text));
    }
    if account.daily_cap.is_some() && shares_critical(account, settings) {
        let text = "critical messages have no other account than this one, which others use up to nine tenths of its day; give them one of their own (routes.email.critical)";
        findings.push(warning(format!("accounts.{name}.daily_cap"), text));
    }
    if tells_its_password(account) {
        let text = "the password would travel in clear text; use \"starttls\" or \"implicit\"";
        findings.push(finding(Severity::Fault, format!("accounts.{name}.tls"), text));
    }
    if !account.is_incomplete {
        let dkim = settings.dkim.clone();
        let default_helo = settings.server.public_host();
        let context = Context { clock: Arc::new(WallClock), concurrency: 1, default_helo, dkim, sandbox: None };
        findings.extend(account.adapter(&context).err().map(Finding::from));
    }
}

/// Whether critical messages go by this account alone, and others too (S-090).
fn shares_critical(account: &Account, settings: &Settings) -> bool {
    let is_on = |name: &String| settings.accounts.iter().any(|account| account.name == *name && account.is_on());
    let carriers = |(class, via): &(Class, Via)| -> Vec<String> {
        settings.route(via, *class).into_iter().map(|entry| entry.account).filter(is_on).collect()
    };
    let (critical, others): (Vec<_>, Vec<_>) = settings.vias().into_iter().partition(|(class, _)| *class == Class::Critical);
    let is_shared = others.iter().any(|route| carriers(route).contains(&account.name));
    is_shared && critical.iter().any(|route| carriers(route) == [account.name.as_str()])
}

/// Whether somebody between here and the relay could read what logs in.
fn tells_its_password(account: &Account) -> bool {
    let text = |name: &str| account.settings.get(name).and_then(Value::as_str);
    let is_near = |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    account.kind == "smtp" && text("tls") == Some("none") && text("username").is_some() && !text("host").is_some_and(is_near)
}

fn sending(settings: &Settings, findings: &mut Vec<Finding>) {
    let is_local = settings.server.binds_loopback();
    if settings.accounts.is_empty() && !settings.is_sandbox_only() {
        let text = "there is no account, so every live message is refused; add a table [accounts.NAME], or set sandbox.enabled = true";
        findings.push(warning("accounts", text));
    } else if settings.accounts.is_empty() && !is_local {
        findings.push(warning("sandbox.enabled", "others can reach this server, and no message leaves it: all go to the sandbox"));
    } else if !settings.accounts.is_empty() && !settings.accounts.iter().any(Account::is_on) {
        findings.push(warning("accounts", "no account is \"on\", so that nothing is sent"));
    }
    let routes = &settings.routes.email;
    let named: Vec<&String> = routes.set().flat_map(|(_, route)| route).map(|entry| &entry.account).collect();
    let is_on = |entry: &Entry| settings.accounts.iter().any(|account| account.name == entry.account && account.is_on());
    for (name, _) in routes.set().filter(|(_, route)| !route.iter().any(is_on)) {
        findings.push(warning(format!("routes.email.{name}"), "no account of this route is \"on\", so that its messages are refused"));
    }
    let every_class_is_routed = Class::ALL.iter().all(|class| routes.shared.of(*class).is_some());
    for account in settings.accounts.iter().filter(|account| every_class_is_routed && !named.contains(&&account.name)) {
        findings.push(warning(format!("accounts.{}", account.name), "no route names this account, so that it never sends"));
    }
}

/// Adapters are built to see whether they can be, not to send.
pub(super) struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
