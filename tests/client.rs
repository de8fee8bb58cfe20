//! An application as the gateway sees it: posts notifications, asks for their outcome.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Talks to one gateway with one key.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    key: String,
}

/// An answer with what tests look at.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: reqwest::header::HeaderMap,
    /// The body as it came.
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON ({}): {}", self.status, self.text))
    }

    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Client {
    /// A client for the gateway at `url`.
    pub fn new(url: &str, key: &str) -> Self {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).no_proxy().build().expect("a client can be built");
        Self { http, url: url.to_owned(), key: key.to_owned() }
    }

    /// Posts a notification under a key; an error means that no answer came.
    pub async fn try_post(&self, idempotency_key: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        let request = self
            .http
            .post(format!("{}/v1/notifications", self.url))
            .bearer_auth(&self.key)
            .header("idempotency-key", idempotency_key)
            .json(body);
        read(request.send().await?).await
    }

    /// Posts many notifications at once.
    pub async fn post_batch(&self, body: &Value) -> Answer {
        let request = self.http.post(format!("{}/v1/notifications/batch", self.url)).bearer_auth(&self.key).json(body);
        let sent = request.send().await.expect("an answer");
        read(sent).await.expect("a whole answer")
    }

    /// Posts a notification under a key.
    pub async fn post(&self, idempotency_key: &str, body: &Value) -> Answer {
        self.try_post(idempotency_key, body).await.expect("an answer")
    }

    /// Posts a body as it stands under a key.
    pub async fn post_text(&self, idempotency_key: &str, body: &str) -> Answer {
        let request = self
            .http
            .post(format!("{}/v1/notifications", self.url))
            .bearer_auth(&self.key)
            .header("idempotency-key", idempotency_key)
            .header("content-type", "application/json")
            .body(body.to_owned());
        read(request.send().await.expect("an answer")).await.expect("an answer")
    }

    /// Gets a path; an error means that no answer came.
    pub async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        read(self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key).send().await?).await
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.expect("an answer")
    }

    /// Sends JSON by any method; an error means that no answer came.
    pub async fn try_call(&self, method: &str, path: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        let method = method.parse().expect("a method");
        read(self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key).json(body).send().await?).await
    }

    /// Sends JSON by any method.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.try_call(method, path, body).await.expect("an answer")
    }

    /// What is known of a notification by its key.
    pub async fn by_key(&self, idempotency_key: &str) -> Answer {
        self.get(&format!("/v1/notifications/by-key?idempotency_key={idempotency_key}")).await
    }

    /// Asks by key until `done` says so, at most `patience` long.
    pub async fn until(&self, idempotency_key: &str, patience: Duration, done: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + patience;
        loop {
            let last = self.try_get(&format!("/v1/notifications/by-key?idempotency_key={idempotency_key}")).await;
            if let Ok(answer) = &last
                && answer.status == 200
                && done(&answer.json())
            {
                return answer.json();
            }
            assert!(Instant::now() < deadline, "not so in {patience:?}: {last:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks by key until nothing is open any more.
    pub async fn until_closed(&self, idempotency_key: &str, patience: Duration) -> Value {
        self.until(idempotency_key, patience, |body| body["open"] == false).await
    }
}

async fn read(response: reqwest::Response) -> Result<Answer, reqwest::Error> {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Ok(Answer { status, headers, text: response.text().await? })
}

/// A plain email to one recipient.
pub fn email(to: &str, subject: &str) -> Value {
    json!({"to": to, "email": {"from": "Shop <shop@example.com>", "subject": subject, "text": "It works."}})
}

/// A plain email of this category, which is its subject too.
pub fn of_category(category: &str, to: &str) -> Value {
    let mut body = email(to, category);
    body["category"] = json!(category);
    body
}
