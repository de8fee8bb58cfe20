//! The settings of an SMTP account. What they mean on the wire is decided in `connection` and `transaction`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tidings_core::address::EmailAddress;
use tidings_core::secrets::Secret;

use crate::AccountError;
use crate::settings::{bytes, duration};

/// How an account reaches its relay.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name or address of the relay.
    pub host: String,
    /// Default: 587 with STARTTLS, 465 with TLS from the first byte, 25 without.
    pub port: Option<u16>,
    /// Whether the connection is encrypted. Nothing ever falls back to clear text.
    #[serde(default)]
    pub tls: Tls,
    /// Who logs in; without it nobody does.
    pub username: Option<String>,
    /// The password that belongs to it.
    pub password: Option<Secret>,
    /// What EHLO says.
    pub helo_name: Option<String>,
    /// The envelope sender; bounces come back to `<local part>+<handle>@`. Without it: the author's mailbox.
    pub return_path: Option<EmailAddress>,
    /// PEM file of the only authority to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How long each phase may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Messages sent over one connection before it is replaced.
    #[serde(default = "hundred")]
    pub max_messages_per_connection: u32,
    /// How long an unused connection is kept.
    #[serde(default = "half_a_minute", deserialize_with = "duration")]
    pub idle_timeout: Duration,
    /// The largest finished message that the relay takes.
    #[serde(default = "twenty_five_mebibytes", deserialize_with = "bytes")]
    pub max_size: u64,
}

/// How a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tls {
    /// Clear text, password included: only as good as the network.
    None,
    /// STARTTLS, required.
    #[default]
    StartTls,
    /// TLS from the first byte.
    Implicit,
}

/// The limits of RFC 5321 section 4.5.3.2, shorter where a quick retry beats waiting.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Looking the name up and connecting.
    #[serde(deserialize_with = "duration")]
    pub connect: Duration,
    /// The relay's first line.
    #[serde(deserialize_with = "duration")]
    pub greeting: Duration,
    /// Each command until its reply, and the TLS handshake.
    #[serde(deserialize_with = "duration")]
    pub command: Duration,
    /// DATA until its reply, and each block of the message.
    #[serde(deserialize_with = "duration")]
    pub data: Duration,
    /// The final dot until its reply.
    #[serde(deserialize_with = "duration")]
    pub dot: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(10), greeting: seconds(30), command: seconds(60), data: seconds(180), dot: seconds(600) }
    }
}

const fn hundred() -> u32 {
    100
}

const fn half_a_minute() -> Duration {
    Duration::from_secs(30)
}

const fn twenty_five_mebibytes() -> u64 {
    25 << 20
}

/// `+`, a delivery id, `_` and a generation of up to five digits.
const VERP_LENGTH: usize = 43;

impl Settings {
    /// The port, chosen by the way of encryption where none is set.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            Tls::None => 25,
            Tls::StartTls => 587,
            Tls::Implicit => 465,
        })
    }

    /// Holds the settings to what the types cannot say.
    ///
    /// # Errors
    /// The first setting that cannot be.
    pub fn check(&self) -> Result<(), AccountError> {
        let one_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let fault = if !one_word(&self.host) {
            Some("host is not a host name")
        } else if self.helo_name.as_deref().is_some_and(|name| !one_word(name)) {
            Some("helo_name is not a host name")
        } else if self.username.is_some() != self.password.is_some() {
            Some("username and password belong together")
        } else if self.return_path.as_ref().is_some_and(|path| path.local_part().len() + VERP_LENGTH > 64 || path.needs_smtputf8()) {
            Some("return_path needs a local part of at most 21 ASCII characters, since a handle is added to it")
        } else if self.return_path.as_ref().is_some_and(|path| path.local_part().starts_with('"')) {
            Some("return_path cannot have a quoted local part")
        } else if self.max_messages_per_connection == 0 {
            Some("max_messages_per_connection is at least 1")
        } else {
            None
        };
        fault.map_or(Ok(()), |fault| Err(AccountError::Settings(fault.to_owned())))
    }
}
