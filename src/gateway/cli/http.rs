//! How commands speak to a running server: where it is, with which key, within which time, and what a refusal says to people.
//! What is asked for is each command's own business.
//!
//! The server is the one that `TIDINGS_URL` names, else the one on this machine that the configuration describes; the key is
//! `TIDINGS_API_KEY`, else what the first start wrote to `api-key` in the data directory.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tidings_core::secrets::Secret;
use url::Url;

use super::health::reachable;
use super::say;
use crate::config::{self, MissingSecrets, Settings, Sources};

const URL_VARIABLE: &str = "TIDINGS_URL";
const KEY_VARIABLE: &str = "TIDINGS_API_KEY";
/// All of one call; the server itself answers within a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// A longer answer is not one of ours.
const LONGEST_ANSWER: usize = 64 << 20;
/// A longer file does not hold a key.
const LONGEST_KEY: u64 = 1 << 10;

/// A server and the key to it.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    key: Secret,
}

impl Client {
    /// The client that environment and configuration describe.
    ///
    /// # Errors
    /// When there is no URL or no key, saying how to give one.
    pub(super) fn of_process(config: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::of(config, |settings| settings.server.bind)
    }

    /// The same for what operators do, which has a port of its own where `server.admin_bind` is set.
    ///
    /// # Errors
    /// When there is no URL or no key, saying how to give one.
    pub(super) fn of_operator(config: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::of(config, |settings| settings.server.admin_bind.unwrap_or(settings.server.bind))
    }

    fn of(config: Option<PathBuf>, bind: impl Fn(&Settings) -> SocketAddr) -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (url, key) = (variable(URL_VARIABLE), variable(KEY_VARIABLE));
        let settings = match (&url, &key) {
            (Some(_), Some(_)) => None,
            // Nothing secret of it is needed.
            _ => Some(config::load(&Sources::of_process(config, MissingSecrets::AreTolerated))?),
        };
        let base = match (url, &settings) {
            (Some(url), _) => given_url(&url)?,
            (None, Some(settings)) => local_url(bind(settings))?,
            (None, None) => bail!("{URL_VARIABLE} is not set"),
        };
        let key = match (key, &settings) {
            (Some(key), _) => key,
            (None, Some(settings)) => kept_key(&settings.server.data_dir)?,
            (None, None) => bail!("{KEY_VARIABLE} is not set"),
        };
        Self::new(base, key.trim().to_owned())
    }

    fn new(base: Url, key: String) -> anyhow::Result<Self> {
        let builder = reqwest::Client::builder();
        // No proxy stands between this machine and itself.
        let builder = if is_here(&base) { builder.no_proxy() } else { builder };
        let http = builder
            .timeout(PATIENCE)
            .connect_timeout(CONNECT_PATIENCE)
            // Another host is not to be given the key.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("the HTTP client could not be made")?;
        Ok(Self { http, base, key: Secret::new(key) })
    }

    /// A request that carries the key. Each piece of the path is encoded.
    pub(super) fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.http.request(method, url).bearer_auth(self.key.reveal())
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// Whatever is not a good answer, in words for people.
    pub(super) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        self.json(self.request(Method::GET, path, query)).await
    }

    /// Sends JSON and returns what comes back; `null` where there is nothing.
    ///
    /// # Errors
    /// Whatever is not a good answer, in words for people.
    pub(super) async fn send(&self, method: Method, path: &[&str], body: Option<&Value>) -> anyhow::Result<Value> {
        let request = self.request(method, path, &[]);
        self.json(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    /// The JSON of a good answer to this request.
    ///
    /// # Errors
    /// Whatever is not a good answer, in words for people.
    pub(super) async fn json(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let body = self.bytes(request).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).with_context(|| format!("{} does not answer as Tidings does", self.base))
    }

    /// The body of a good answer to this request.
    ///
    /// # Errors
    /// Whatever is not a good answer, in words for people.
    pub(super) async fn bytes(&self, request: RequestBuilder) -> anyhow::Result<Vec<u8>> {
        // The URL in the library's words may hold an address.
        let unreachable = |err: reqwest::Error| {
            anyhow::Error::from(err.without_url()).context(format!("{} does not answer: is the server running?", self.base))
        };
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > LONGEST_ANSWER {
                bail!("{} answers with more than {} MiB", self.base, LONGEST_ANSWER >> 20);
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() { Ok(body) } else { Err(anyhow::anyhow!(refusal(status.as_u16(), &body))) }
    }
}

/// What a problem document says: its detail, then each fault with its place.
fn refusal(status: u16, body: &[u8]) -> String {
    let Ok(problem) = serde_json::from_slice::<Value>(body) else { return format!("the server answers {status}") };
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut said = format!("{} ({status} {})", text(&problem, "detail"), text(&problem, "code"));
    for fault in problem.get("errors").and_then(Value::as_array).into_iter().flatten() {
        // Writing to a text cannot fail.
        let _ = write!(said, "\n  {}: {}", text(fault, "pointer"), text(fault, "detail"));
    }
    said
}

fn is_here(base: &Url) -> bool {
    match base.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn given_url(url: &str) -> anyhow::Result<Url> {
    let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    parsed.with_context(|| format!("{URL_VARIABLE} is not a URL such as \"http://127.0.0.1:8080\""))
}

/// The server on this machine.
fn local_url(bind: SocketAddr) -> anyhow::Result<Url> {
    let address = reachable(bind).with_context(|| format!("set {URL_VARIABLE} to the server's URL"))?;
    Ok(format!("http://{address}").parse()?)
}

fn kept_key(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join("api-key");
    let read = std::fs::metadata(&path).and_then(|file| match file.len() {
        0..=LONGEST_KEY => std::fs::read_to_string(&path),
        _ => Err(std::io::ErrorKind::FileTooLarge.into()),
    });
    read.with_context(|| format!("there is no API key: set {KEY_VARIABLE}, or run this where {} can be read", path.display()))
}

/// Prints an answer: for programs as it is, for people in the words of `tell`.
pub(super) fn show(answer: &Value, json: bool, tell: impl FnOnce(&Value) -> String) {
    if !json {
        let told = tell(answer);
        if !told.is_empty() {
            say(told);
        }
    } else if std::io::stdout().is_terminal() {
        say(format_args!("{answer:#}"));
    } else {
        say(answer);
    }
}

/// A member of an answer as a text; nothing for what is not there.
pub(super) fn member(answer: &Value, name: &str) -> String {
    match answer.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_every_fault_and_its_place() {
        let body = br#"{"code": "invalid_recipient", "detail": "two things are wrong", "errors": [
            {"pointer": "/to", "detail": "not an address"}, {"pointer": "/email/subject", "detail": "missing"}]}"#;
        let said = refusal(422, body);
        assert_eq!(said, "two things are wrong (422 invalid_recipient)\n  /to: not an address\n  /email/subject: missing");
        assert_eq!(refusal(502, b"<html>"), "the server answers 502");
    }

    #[test]
    fn paths_and_parameters_are_encoded_below_the_given_url() {
        let client = Client::new("https://example.com/tidings/".parse().unwrap(), "tdk".to_owned()).unwrap();
        let request = client.request(Method::GET, &["v1", "switches", "category:a/b"], &[("key", "a&b")]).build().unwrap();
        assert_eq!(request.url().as_str(), "https://example.com/tidings/v1/switches/category:a%2Fb?key=a%26b");
        assert!(given_url("example.com").is_err() && given_url("ftp://example.com").is_err());
    }
}
