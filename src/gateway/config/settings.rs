//! The settings in their types, and how each section is read. The accounts, routes and rules have files of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tidings_core::address::Mailbox;
use tidings_core::policy::{DEFAULT_CATEGORY, Rules};
use tidings_core::rate::Rate;
use tidings_core::request::RequestLimits;
use tidings_core::retention::Retention;
use tidings_core::secrets::Secret;
use tracing_subscriber::EnvFilter;

use super::accounts::{self, Account};
use super::dkim;
use super::inventory::Inventory;
use super::retention;
use super::roles::Roles;
use super::routes::{self, Routes};
use super::rules;
use super::server::{Server, Store};
use super::table::Table;
use super::tenants::{self, Tenant};
use super::value::Setting;

/// Larger bodies could not be stored.
const LARGEST_BODY: u64 = 48 << 20;
/// A notification has at most this many deliveries.
const MOST_RECIPIENTS: u16 = 500;

/// Everything an operator can set, checked as a whole.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The process and where it listens.
    pub server: Server,
    /// The database.
    pub store: Store,
    /// The secret that all keys derive from.
    pub secrets: Secrets,
    /// The first API key.
    pub bootstrap: Bootstrap,
    /// In the order of the file.
    pub accounts: Vec<Account>,
    /// Authors by name.
    pub senders: BTreeMap<String, Mailbox>,
    /// What is said about tenants, by name.
    pub tenants: BTreeMap<String, Tenant>,
    /// Which accounts carry what, where it is said.
    pub routes: Routes,
    pub(super) rules: Rules,
    /// What signs the mail of which domain.
    pub dkim: Arc<tidings_providers::dkim::Keys>,
    /// Bounds on requests.
    pub limits: Limits,
    /// The built-in stand-in for all providers.
    pub sandbox: Sandbox,
    /// How long what is kept is kept.
    pub retention: Retention,
    /// What is logged, and how.
    pub log: Log,
    /// Secrets that are not there, each as "setting: why". Not empty only where that was to be tolerated: then
    /// the settings are for looking at and not for serving.
    pub unresolved: Vec<String>,
    /// What stands where, for telling readings apart.
    pub(super) inventory: Inventory,
}

/// `[secrets]`
#[derive(Debug, Clone)]
pub struct Secrets {
    /// 32 bytes in base64; `None`: made at first start and kept in the database.
    pub master: Option<Secret>,
}

/// `[bootstrap]`
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// Made at start if it is unknown, with all scopes, for the tenant `default`.
    pub api_key: Option<Secret>,
}

/// `[limits]`
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest request body in bytes.
    pub body: u64,
    /// The largest body of a batch in bytes.
    pub batch_body: u64,
    /// How many messages one tenant may ask for; `None`: as many as it likes.
    pub tenant_rate: Option<Rate>,
    /// How many messages may wait; above it, requests are refused.
    pub queue_depth: i64,
    /// Whether every request has to bring a key.
    pub requires_keys: bool,
    /// The most recipients of one notification.
    pub recipients: usize,
    /// What happens to a category that no table declares; `None`: it is refused as soon as one is declared.
    pub undeclared_categories: Option<Undeclared>,
}

/// What happens to a category that no table declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undeclared {
    /// It is transactional.
    Allow,
    /// It is `unknown_category`.
    Refuse,
}

/// `[sandbox]`
#[derive(Debug, Clone, Copy)]
pub struct Sandbox {
    /// Whether it stands in for all accounts outside loopback too, as long as there are none.
    pub enabled: bool,
}

/// `[log]`
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "config/tidings.toml has a sentence about each")]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
    pub filter: Option<String>,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// The least severe line that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words say it")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Settings {
    /// Retries, ambiguity and categories.
    pub fn rules(&self) -> Rules {
        self.rules.clone()
    }

    /// Tells instances apart that do not run with the same settings. Secrets and addresses do not enter, nor do roles: those of
    /// one installation are to differ.
    pub fn digest(&self) -> [u8; 32] {
        let Rules { critical, transactional, bulk, categories } = &self.rules;
        let categories: BTreeMap<_, _> = categories.iter().collect();
        let server = Server { roles: Roles::all(), ..self.server.clone() };
        let process = (&server, &self.store, &self.limits, &self.sandbox, &self.retention, &self.log);
        let sending = (&self.accounts, (&self.senders, &self.tenants, &self.dkim), &self.routes, critical, transactional, bulk, categories);
        Sha256::digest(format!("{process:?}{sending:?}")).into()
    }

    /// Whether the sandbox stands in for all providers: no account at all, and nobody but this machine can come in, or
    /// the operator says so. Then every key acts in `test`.
    pub fn is_sandbox_only(&self) -> bool {
        self.accounts.is_empty() && (self.server.binds_loopback() || self.sandbox.enabled)
    }

    /// Whether a category without a table of its own is taken.
    pub fn takes_undeclared_categories(&self) -> bool {
        self.limits.takes_undeclared(&self.rules)
    }

    /// The author of a category's messages that name none.
    pub fn author_of(&self, category: &str) -> Option<Mailbox> {
        let from = self.rules.categories.get(category)?.from.as_deref()?;
        self.author_named(from)
    }

    /// The author of a tenant's messages for which nobody else has one.
    pub fn author_of_tenant(&self, tenant: &str) -> Option<Mailbox> {
        self.author_named(self.tenants.get(tenant)?.from.as_deref()?)
    }

    fn author_named(&self, from: &str) -> Option<Mailbox> {
        self.senders.get(from).cloned().or_else(|| from.parse().ok())
    }

    pub(super) fn read(root: &Table<'_>) -> Self {
        let server = root.table("server", Server::read);
        let store = root.table("store", |table| Store::read(table, &server));
        let secrets = root.table("secrets", |table| Secrets { master: master(&table.get("master")) });
        let bootstrap = root.table("bootstrap", |table| Bootstrap { api_key: api_key(&table.get("api_key")) });
        let accounts = root.table("accounts", accounts::read);
        let senders = root.table("senders", routes::senders);
        let tenants = root.table("tenants", |table| tenants::read(table, &senders));
        let rules = rules::read(root, &senders);
        let dkim = Arc::new(root.table("dkim", dkim::read));
        let limits = root.table("limits", Limits::read);
        let declared: Vec<&str> = rules.categories.keys().map(String::as_str).chain([DEFAULT_CATEGORY]).collect();
        let declared = (!limits.takes_undeclared(&rules)).then_some(declared.as_slice());
        let routes = root.table("routes", |table| Routes::read(table, &accounts, declared));
        let sandbox = root.table("sandbox", |table| Sandbox { enabled: table.get("enabled").flag().unwrap_or_default() });
        let retention = root.table("retention", retention::read);
        let log = root.table("log", Log::read);
        root.refuse_the_rest();
        Self {
            server,
            store,
            secrets,
            bootstrap,
            accounts,
            senders,
            tenants,
            routes,
            rules,
            dkim,
            limits,
            sandbox,
            retention,
            log,
            unresolved: Vec::new(),
            inventory: Inventory::default(),
        }
    }
}

fn master(setting: &Setting<'_>) -> Option<Secret> {
    setting.parsed("32 bytes in base64, such as `openssl rand -base64 32` makes", |text| {
        let is_right = STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == 32);
        is_right.then(|| Secret::new(text))
    })
}

fn api_key(setting: &Setting<'_>) -> Option<Secret> {
    setting.parsed("an API key: \"tdk_live_\" and 38 letters and digits, such as `tidings keys create` prints", |text| {
        let body = text.strip_prefix("tdk_live_")?;
        (body.len() == 38 && body.bytes().all(|b| b.is_ascii_alphanumeric())).then(|| Secret::new(text))
    })
}

impl Limits {
    /// The part that decides whether a request is sound.
    pub const fn of_requests(&self) -> RequestLimits {
        RequestLimits { recipients: self.recipients }
    }

    fn takes_undeclared(&self, rules: &Rules) -> bool {
        match self.undeclared_categories {
            Some(Undeclared::Allow) => true,
            Some(Undeclared::Refuse) => false,
            None => rules.categories.is_empty(),
        }
    }

    fn read(table: &Table<'_>) -> Self {
        let size = |name: &str| {
            let setting = table.get(name);
            let bytes = setting.size();
            if bytes.is_some_and(|bytes| !(1 << 10..=LARGEST_BODY).contains(&bytes)) {
                setting.fault("may be from 1KiB to 48MiB");
            }
            bytes.unwrap_or_default()
        };
        let recipients = usize::from(table.get("recipients").number(1..=MOST_RECIPIENTS).unwrap_or_default());
        let words = [("allow", Undeclared::Allow), ("refuse", Undeclared::Refuse)];
        Self {
            body: size("body"),
            batch_body: size("batch_body"),
            recipients,
            tenant_rate: tenant_rate(table, recipients),
            queue_depth: table.get("queue_depth").number(1..=1_000_000_000).unwrap_or_default(),
            requires_keys: table.get("idempotency_key").word(&[("required", true), ("optional", false)]).unwrap_or(true),
            undeclared_categories: table.get("undeclared_categories").word(&words),
        }
    }
}

/// A bucket that the largest request could never be paid from would refuse it for ever.
fn tenant_rate(table: &Table<'_>, recipients: usize) -> Option<Rate> {
    let (setting, burst) = (table.get("tenant_rate"), table.get("tenant_burst"));
    let per_second = setting.parsed("\"off\" or a rate such as \"100/s\"", |text| match text {
        "off" => Some(None),
        text => text.strip_suffix("/s")?.parse::<u32>().ok().filter(|rate| (1..=1_000_000).contains(rate)).map(Some),
    });
    let most = burst.number(1..=10_000_000_u32);
    let Some(per_second) = per_second.flatten() else {
        if burst.is_set() {
            burst.fault("means nothing without limits.tenant_rate");
        }
        return None;
    };
    let rate = Rate { per_second, burst: most.unwrap_or(per_second.saturating_mul(2)) };
    if usize::try_from(rate.burst).is_ok_and(|burst| burst < recipients) {
        let at_fault = if burst.is_set() { &burst } else { &setting };
        at_fault.fault("a tenant must be allowed as many messages at once as one request has recipients (limits.recipients)");
    }
    Some(rate)
}

impl Log {
    /// Whether lines are for people.
    pub const fn is_text(&self, is_terminal: bool) -> bool {
        match self.format {
            LogFormat::Auto => is_terminal,
            LogFormat::Text => true,
            LogFormat::Json => false,
        }
    }

    fn read(table: &Table<'_>) -> Self {
        use LogLevel::{Debug, Error, Info, Trace, Warn};
        let formats = [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
        let levels = [("error", Error), ("warn", Warn), ("info", Info), ("debug", Debug), ("trace", Trace)];
        Self {
            format: table.get("format").word(&formats).unwrap_or(LogFormat::Auto),
            level: table.get("level").word(&levels).unwrap_or(Info),
            filter: table.get("filter").parsed("log directives such as \"info,tidings_gateway=debug\"", |text| {
                EnvFilter::try_new(text).ok().map(|_| text.to_owned())
            }),
        }
    }
}
