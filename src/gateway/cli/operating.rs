//! `tidings accounts`, `tidings pause` and `tidings resume`: what operators look at and stop. What a pause means is the API's
//! business.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tidings_core::time::{Timestamp, parse_duration};

use super::http::{Client, member, show};

#[derive(clap::Args)]
pub(super) struct Accounts {
    #[command(subcommand)]
    command: Option<AccountsCommand>,
    /// Print the answer as JSON, for programs
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum AccountsCommand {
    /// Give an account no new messages
    Pause {
        /// Which account
        name: String,
        #[command(flatten)]
        terms: Terms,
    },
    /// Give it messages again
    Resume {
        /// Which account
        name: String,
    },
    /// Send one message by it, past queue and routes
    Test {
        /// Which account
        name: String,
        /// Whom it goes to
        #[arg(long, value_name = "ADDRESS")]
        to: String,
    },
}

#[derive(clap::Args)]
struct Terms {
    /// For how long, such as 2h; without it, until it is resumed
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Why, for whoever looks later
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct Pause {
    /// all, retries, fallback, class:bulk, channel:email, category:NAME, tenant:NAME or account:NAME
    scope: String,
    #[command(flatten)]
    terms: Terms,
    /// Print the answer as JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Resume {
    /// What was paused
    scope: String,
    /// Print the answer as JSON, for programs
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|err| err.to_string())
}

impl Terms {
    fn body(&self) -> anyhow::Result<Map<String, Value>> {
        let mut body = Map::new();
        if let Some(duration) = self.duration {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock of this machine is before 1970")?;
            let now = Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
            body.insert("until".to_owned(), Value::from(now.plus(duration).to_string()));
        }
        body.extend(self.reason.as_ref().map(|reason| ("reason".to_owned(), Value::from(reason.as_str()))));
        Ok(body)
    }
}

impl Accounts {
    pub(super) async fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        let client = Client::of_operator(config)?;
        let act = async |name: &str, verb: &str, body: Value| client.send(Method::POST, &["v1", "accounts", name, verb], Some(&body)).await;
        match &self.command {
            None => show(&client.get(&["v1", "accounts"], &[]).await?, self.json, tell_all),
            Some(AccountsCommand::Pause { name, terms }) => {
                show(&act(name, "pause", Value::Object(terms.body()?)).await?, self.json, tell);
            }
            Some(AccountsCommand::Resume { name }) => show(&act(name, "resume", json!({})).await?, self.json, tell),
            Some(AccountsCommand::Test { name, to }) => {
                let answer = act(name, "test", json!({ "to": to })).await?;
                show(&answer, self.json, |answer| {
                    let of = |name: &str| member(answer, name);
                    format!("{}: {}  {} {}", of("account"), of("outcome"), of("code"), of("detail")).trim_end().to_owned()
                });
                anyhow::ensure!(member(&answer, "outcome") == "accepted", "the provider did not take the message");
            }
        }
        Ok(())
    }
}

impl Pause {
    pub(super) async fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        let mut body = self.terms.body()?;
        body.insert("paused".to_owned(), Value::Bool(true));
        let path = ["v1", "switches", &self.scope];
        let answer = Client::of_operator(config)?.send(Method::PUT, &path, Some(&Value::Object(body))).await?;
        show(&answer, self.json, |answer| {
            let until = member(answer, "until");
            let until = if until.is_empty() { format!("it is resumed: tidings resume {}", self.scope) } else { until };
            format!("{} is paused until {until}", self.scope)
        });
        Ok(())
    }
}

impl Resume {
    pub(super) async fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        Client::of_operator(config)?.send(Method::DELETE, &["v1", "switches", &self.scope], None).await?;
        show(&json!({ "scope": self.scope, "paused": false }), self.json, |_| format!("{} is not paused", self.scope));
        Ok(())
    }
}

fn tell_all(answer: &Value) -> String {
    let items = answer.get("items").and_then(Value::as_array).into_iter().flatten();
    items.map(tell).collect::<Vec<_>>().join("\n")
}

/// One line for an account.
fn tell(account: &Value) -> String {
    let of = |name: &str| member(account, name);
    let mut told = format!("{}  {}  {}  open {}", of("name"), of("kind"), of("state"), of("open"));
    // Writing to a text cannot fail.
    if !of("tenant").is_empty() {
        let _ = write!(told, "  for {}", of("tenant"));
    }
    if let Some(cap) = account.get("daily_cap").filter(|cap| !cap.is_null()) {
        let _ = write!(told, "  today {} of {}", member(cap, "used"), member(cap, "cap"));
    }
    if !of("why").is_empty() {
        let _ = write!(told, "  takes nothing: {}", of("why"));
    }
    if !of("until").is_empty() {
        let _ = write!(told, " until {}", of("until"));
    }
    if !of("reason").is_empty() {
        let _ = write!(told, " ({})", of("reason"));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_told_in_a_line_with_what_keeps_it_from_sending() {
        let mut account = json!({"name": "relay", "kind": "smtp", "state": "on", "open": 3, "why": null, "until": null, "reason": null});
        assert_eq!(tell(&account), "relay  smtp  on  open 3");
        account["daily_cap"] = json!({"cap": 50_000, "used": 120, "resets_at": "2027-01-16T00:00:00.000Z"});
        assert_eq!(tell(&account), "relay  smtp  on  open 3  today 120 of 50000");
        account["daily_cap"] = Value::Null;
        for (name, value) in [("why", "paused"), ("until", "2027-01-15T08:00:00.000Z"), ("reason", "storm")] {
            account[name] = Value::from(value);
        }
        account["tenant"] = Value::from("acme");
        assert_eq!(tell(&account), "relay  smtp  on  open 3  for acme  takes nothing: paused until 2027-01-15T08:00:00.000Z (storm)");
    }
}
