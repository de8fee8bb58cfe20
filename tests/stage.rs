//! A story's stage: a folder and a database of its own, and how a gateway is started on them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::postgres::TestPostgres;
use crate::process::Launch;
use crate::smtp_peer::ScriptedSmtp;

/// See the module.
pub struct Stage {
    directory: TempDir,
    store_url: Option<String>,
    scale: Option<(u32, u64)>,
}

impl Stage {
    /// A stage on SQLite.
    pub fn sqlite() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory"), store_url: None, scale: None }
    }

    /// A stage on a database of its own in PostgreSQL, where there is one.
    pub async fn postgres() -> Option<Self> {
        let url = TestPostgres::get()?.fresh_database().await;
        Some(Self { store_url: Some(url), ..Self::sqlite() })
    }

    /// Lets the clock of debug builds run faster from now on, on every start alike.
    #[must_use]
    pub fn faster(mut self, factor: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
        self.scale = Some((factor, now));
        self
    }

    /// Whether the store is PostgreSQL.
    pub fn is_postgres(&self) -> bool {
        self.store_url.is_some()
    }

    /// The database's URL on PostgreSQL.
    pub fn store_url(&self) -> Option<&str> {
        self.store_url.as_deref()
    }

    /// The folder with configuration and data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A gateway of this binary on this stage.
    pub fn launch(&self, binary: &str) -> Launch {
        let mut launch = Launch::new(std::env::var("TIDINGS_BINARY").unwrap_or_else(|_| binary.to_owned()), self.directory());
        if let Some(url) = &self.store_url {
            launch = launch.env("TIDINGS__STORE__URL", url);
        }
        if let Some((factor, origin)) = self.scale {
            launch = launch.env("TIDINGS_TIME_SCALE", &format!("{factor}@{origin}"));
        }
        launch
    }
}

/// The configuration of an SMTP account that talks to `peer`.
pub fn smtp_account(name: &str, peer: &ScriptedSmtp) -> String {
    format!(
        "[accounts.{name}]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {}\ntls = \"none\"\nfrom = \"Shop <shop@example.com>\"\n",
        peer.addr().port()
    )
}

/// How often the peer took a message of this delivery.
pub fn sends_of(peer: &ScriptedSmtp, delivery_id: &str) -> usize {
    peer.ledger().iter().filter(|taken| String::from_utf8_lossy(&taken.message).contains(delivery_id)).count()
}

/// Makes a test of each story on each database.
#[macro_export]
macro_rules! on_both_databases {
    ($($(#[$meta:meta])* $story:ident),+ $(,)?) => {$(
        mod $story {
            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$story($crate::stage::Stage::sqlite()).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                if let Some(stage) = $crate::stage::Stage::postgres().await {
                    super::$story(stage).await;
                }
            }
        }
    )+};
}
