//! Sends email over SMTP: when a call may begin, over which connection, and that it always ends in a report.
//! The message's bytes are `mime`'s business, its envelope `envelope`'s.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidings_core::adapter::{Abilities, Adapter, ContentFault, Idempotency, Lookup, Outgoing};
use tidings_core::content::Content;
use tidings_core::crash::fail_point;
use tidings_core::outcome::{Outcome, Report};
use tidings_core::words::Channel;

use crate::dkim::Keys;
use crate::{AccountError, Context, mime};
use letter::Letter;
use opening::Target;
use pool::Pool;
pub use settings::{Settings, Timeouts, Tls};
use transaction::{Ended, deliver};

mod connection;
mod letter;
mod opening;
mod pool;
mod reply;
mod settings;
mod tls;
mod transaction;
mod verdict;
mod wire;

/// Custom headers of one message, all together: relays that take less are unknown.
const HEADERS_LIMIT: u64 = 64 * 1_024;

/// The send side of one SMTP account.
pub struct Smtp {
    target: Arc<Target>,
    pool: Arc<Pool>,
    dkim: Arc<Keys>,
}

impl Smtp {
    /// An adapter that has not connected yet.
    ///
    /// # Errors
    /// When the settings contradict each other or the certificates to trust cannot be loaded.
    pub fn new(settings: Settings, context: &Context) -> Result<Self, AccountError> {
        settings.check()?;
        let trust = match settings.tls {
            Tls::None => None,
            Tls::StartTls | Tls::Implicit => Some(tls::Trust::of(&settings.host, settings.ca_file.as_deref())?),
        };
        let target = Arc::new(Target { settings, trust, default_helo: context.default_helo.clone(), clock: context.clock.clone() });
        Ok(Self { pool: Pool::new(target.clone(), context.concurrency), target, dkim: context.dkim.clone() })
    }

    fn is_late(&self, outgoing: &Outgoing) -> bool {
        self.target.clock.now() >= outgoing.start_before.min(outgoing.expires_at)
    }

    async fn attempt(&self, outgoing: &Outgoing) -> Result<Report, Report> {
        let not_started = |detail: &str| Report::new(Outcome::NotStarted).with_detail(detail);
        let late = || not_started("too late to begin");
        if self.is_late(outgoing) {
            return Err(late());
        }
        let last_start = outgoing.start_before.min(outgoing.expires_at);
        let _slot =
            self.pool.slot(self.target.limit(Duration::MAX, last_start)).await.ok_or_else(|| not_started("no connection was free"))?;
        fail_point("send.before_first_byte");
        let mut kept = self.pool.kept().await;
        loop {
            if self.is_late(outgoing) {
                return Err(late());
            }
            let was_kept = kept.is_some();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.pool.open(outgoing.expires_at).await?,
            };
            let letter = Letter::of(outgoing, &self.target.settings, &self.dkim, connection.offers.smtputf8);
            let letter = match letter {
                Ok(letter) if !self.is_late(outgoing) => letter,
                // Nothing of the message was written: the connection is as good as before.
                Ok(_) => {
                    self.pool.keep(connection);
                    return Err(late());
                }
                Err(report) => {
                    self.pool.keep(connection);
                    return Err(*report);
                }
            };
            match Box::pin(deliver(&mut connection, was_kept, letter, outgoing, &self.target)).await {
                Ended::Done { report, reusable } => {
                    if reusable {
                        self.pool.keep(connection);
                    }
                    return Ok(report);
                }
                // Replaced once: what is new cannot have gone stale.
                Ended::Stale => {}
            }
        }
    }
}

#[async_trait]
impl Adapter for Smtp {
    fn abilities(&self) -> Abilities {
        Abilities {
            channel: Channel::Email,
            idempotency: Idempotency::None,
            lookup: Lookup::None,
            visibility_lag: Duration::ZERO,
            receipts: false,
        }
    }

    fn check(&self, content: &Content) -> Result<(), Vec<ContentFault>> {
        let Content::Email(email) = content;
        let fault = |pointer: &str, detail: &str, limit: u64, found: u64| ContentFault {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
            limit: Some((limit, found)),
        };
        let mut faults = Vec::new();
        let headers: u64 = email.headers.iter().map(|(name, value)| (name.len() + value.len() + 4) as u64).sum();
        if headers > HEADERS_LIMIT {
            faults.push(fault("/headers", "the headers are too large", HEADERS_LIMIT, headers));
        }
        for (name, value) in &email.headers {
            let longest = mime::longest_word(value);
            if longest > mime::LONGEST_WORD {
                let pointer = format!("/headers/{}", name.replace('~', "~0").replace('/', "~1"));
                faults.push(fault(&pointer, "a word is too long for a line", mime::LONGEST_WORD as u64, longest as u64));
            }
        }
        let limit = self.target.settings.max_size;
        // Only what comes near the limit is encoded to be measured.
        let is_near = mime::encoded_size_at_most(email) + headers > limit;
        let size = if is_near { mime::encoded_size(email) + headers } else { 0 };
        if size > limit {
            let pointer = if email.attachments.is_empty() { "" } else { "/attachments" };
            faults.push(fault(pointer, "the encoded message is too large", limit, size));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    async fn send(&self, outgoing: &Outgoing) -> Report {
        match self.attempt(outgoing).await {
            Ok(report) | Err(report) => report,
        }
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
