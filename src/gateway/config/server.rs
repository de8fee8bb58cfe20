//! `[server]` and `[store]`: where the process listens, where it keeps its data, how it stops.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidings_core::secrets::Secret;
use url::Url;

use super::roles::Roles;
use super::table::Table;
use super::value::Setting;

/// Longer than this, no supervisor waits for a process to end.
const LONGEST_STOP: Duration = Duration::from_secs(600);
/// `[server]`
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "config/tidings.toml has a sentence about each")]
pub struct Server {
    pub bind: SocketAddr,
    pub admin_bind: Option<SocketAddr>,
    pub public_url: Option<Url>,
    pub data_dir: PathBuf,
    pub linger: Duration,
    pub grace: Duration,
    pub roles: Roles,
}

/// `[store]`
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "config/tidings.toml has a sentence about each")]
pub struct Store {
    /// `sqlite://` and a path that is relative to nothing but the working directory, or a `postgres://` URL with its password.
    pub url: Secret,
    pub max_connections: u32,
    pub statement_cache: bool,
    pub listen_url: Option<Secret>,
    pub migrate_url: Option<Secret>,
    pub migrate: Migrate,
}

/// Whether the schema is brought up to date at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Migrate {
    /// By whichever process comes first.
    Auto,
    /// By `tidings migrate` alone.
    Never,
}

impl Server {
    /// Whether nobody but this machine can come in.
    pub const fn binds_loopback(&self) -> bool {
        self.bind.ip().is_loopback()
    }

    /// The name to greet relays with: the public URL's host, if it has a dot.
    pub fn public_host(&self) -> Option<String> {
        let host = self.public_url.as_ref()?.domain()?;
        host.contains('.').then(|| host.to_owned())
    }

    pub(super) fn read(table: &Table<'_>) -> Self {
        let stop = |name: &str| {
            let setting = table.get(name);
            let duration = setting.duration().unwrap_or_default();
            if duration > LONGEST_STOP {
                setting.fault("may be 10m at most");
            }
            duration
        };
        Self {
            bind: table
                .get("bind")
                .parsed("an address and a port such as \"127.0.0.1:8080\" or \"[::]:8080\"", |text| text.parse().ok())
                .unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            admin_bind: table.get("admin_bind").parsed("an address and a port such as \"127.0.0.1:8081\"", |text| text.parse().ok()),
            public_url: table.get("public_url").parsed("a URL such as \"https://tidings.example.com\"", public_url),
            data_dir: table.get("data_dir").path().unwrap_or_default(),
            linger: stop("linger"),
            grace: stop("grace"),
            roles: Roles::read(table),
        }
    }
}

fn public_url(text: &str) -> Option<Url> {
    let url: Url = text.parse().ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && is_plain).then_some(url)
}

impl Store {
    /// Whether this process brings the schema up to date.
    pub const fn migrates(&self) -> bool {
        match self.migrate {
            Migrate::Auto => true,
            Migrate::Never => false,
        }
    }

    pub(super) fn read(table: &Table<'_>, server: &Server) -> Self {
        let url = table.get("url");
        // Where nobody says otherwise, the database goes where the rest of the data goes.
        let usual = || sqlite(&server.data_dir.join("tidings.db"));
        let url = if url.is_default() { usual() } else { store_url(&url).unwrap_or_else(usual) };
        Self {
            listen_url: postgres_url(&table.get("listen_url")),
            migrate_url: postgres_url(&table.get("migrate_url")),
            max_connections: table.get("max_connections").number(3..=1_000).unwrap_or_default(),
            statement_cache: table.get("statement_cache").flag().unwrap_or_default(),
            migrate: table.get("migrate").word(&[("auto", Migrate::Auto), ("never", Migrate::Never)]).unwrap_or(Migrate::Auto),
            url,
        }
    }
}

fn sqlite(path: &Path) -> Secret {
    Secret::new(format!("sqlite://{}", path.display()))
}

fn store_url(setting: &Setting<'_>) -> Option<Secret> {
    setting.parsed("\"sqlite://PATH\" or \"postgres://USER:PASSWORD@HOST/DATABASE\" (special characters percent-encoded)", |text| {
        if let Some(path) = text.strip_prefix("sqlite://") {
            let is_file = !path.is_empty() && !path.contains('?') && !path.ends_with('/') && !path.starts_with(':');
            return is_file.then(|| sqlite(&setting.base().join(path)));
        }
        postgres(text)
    })
}

fn postgres_url(setting: &Setting<'_>) -> Option<Secret> {
    setting.parsed("\"postgres://USER:PASSWORD@HOST/DATABASE\" (special characters percent-encoded)", postgres)
}

fn postgres(text: &str) -> Option<Secret> {
    let url: Url = text.parse().ok()?;
    matches!(url.scheme(), "postgres" | "postgresql").then(|| Secret::new(text))
}
