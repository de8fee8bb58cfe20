//! `tidings send` and `tidings status`: one message from the command line, and how one stands. What either means is the API's
//! business.

use std::fmt::Write as _;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::http::{Client, member, show};

#[derive(clap::Args)]
pub(super) struct Send {
    /// An email address, or a mailbox such as "Ada <ada@example.com>"
    to: String,
    /// The subject, in one line
    #[arg(long, value_name = "TEXT")]
    subject: String,
    /// The message as plain text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// The message as HTML
    #[arg(long, value_name = "HTML")]
    html: Option<String>,
    /// The author; without it the account's
    #[arg(long, value_name = "MAILBOX")]
    from: Option<String>,
    /// What kind of message it is: a table [categories.NAME] of the configuration
    #[arg(long, value_name = "NAME")]
    category: Option<String>,
    /// Your own name for it: the same key again sends nothing twice; without it every call is a new message
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Print the answer as JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct Status {
    /// An id (ntf_...), or the key that it was sent under
    #[arg(value_name = "KEY|ID")]
    of: String,
    /// Print the answer as JSON, for programs
    #[arg(long)]
    json: bool,
}

impl Send {
    fn body(&self) -> Value {
        let mut email = Map::new();
        for (name, value) in [("from", &self.from), ("subject", &Some(self.subject.clone())), ("text", &self.text), ("html", &self.html)] {
            email.extend(value.as_ref().map(|value| (name.to_owned(), Value::from(value.as_str()))));
        }
        let mut body = json!({ "to": self.to, "email": email });
        if let Some(category) = &self.category {
            body["category"] = Value::from(category.as_str());
        }
        body
    }

    pub(super) async fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        let client = Client::of_process(config)?;
        let key = self.idempotency_key.clone().unwrap_or_else(|| format!("cli-{}", hex::encode(rand::random::<[u8; 16]>())));
        let request = client.request(Method::POST, &["v1", "notifications"], &[]).header("Idempotency-Key", &key).json(&self.body());
        let answer = client.json(request).await?;
        show(&answer, self.json, |answer| {
            format!("accepted as {}\nhow it stands: tidings status {}", member(answer, "id"), member(answer, "idempotency_key"))
        });
        Ok(())
    }
}

impl Status {
    pub(super) async fn run(self, config: Option<PathBuf>) -> anyhow::Result<()> {
        let client = Client::of_process(config)?;
        let answer = if self.of.starts_with("ntf_") {
            client.get(&["v1", "notifications", &self.of], &[]).await?
        } else {
            client.get(&["v1", "notifications", "by-key"], &[("idempotency_key", &self.of)]).await?
        };
        show(&answer, self.json, tell);
        Ok(())
    }
}

/// One line for the notification and one for each delivery.
fn tell(notification: &Value) -> String {
    let mut told = format!("{}  {}", member(notification, "status"), member(notification, "id"));
    for delivery in notification.get("deliveries").and_then(Value::as_array).into_iter().flatten() {
        let of = |name: &str| member(delivery, name);
        // Writing to a text cannot fail.
        let _ = write!(told, "\n  {}  {} to {}  {}", of("state"), of("channel"), of("to"), of("summary"));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delivery_is_told_in_a_line() {
        let answer = json!({"id": "ntf_1", "status": "processing", "deliveries": [
            {"state": "retry_wait", "channel": "email", "to": "a***@example.com", "summary": "will be tried again"}]});
        assert_eq!(tell(&answer), "processing  ntf_1\n  retry_wait  email to a***@example.com  will be tried again");
    }
}
