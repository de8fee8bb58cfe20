//! An installation that moves to another database: everything open goes out once, wherever it waited (S-237).

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_tests::client::{Client, email};
use tidings_tests::process::{Gateway, Launch};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, sends_of, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);
/// Within which a freeze is seen everywhere, as the operators' manual says.
const FROZEN: Duration = Duration::from_secs(2);
/// A master secret of somebody else.
const OTHER: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// A stage with its gateway, and its command line.
struct Side {
    stage: Stage,
    config: String,
    master: Option<String>,
}

impl Side {
    fn new(stage: Stage, peer: &ScriptedSmtp, master: Option<String>) -> Self {
        let config = format!("{}[ambiguity.transactional]\nhold = \"2m\"\n", smtp_account("relay", peer));
        Self { stage, config, master }
    }

    fn launch(&self) -> Launch {
        let launch = self.stage.launch(BINARY).config(&self.config);
        match &self.master {
            Some(master) => launch.env("TIDINGS__SECRETS__MASTER", master),
            None => launch,
        }
    }

    fn store_url(&self) -> String {
        self.stage.store_url().map_or_else(|| format!("sqlite://{}", self.stage.store_file().display()), str::to_owned)
    }

    async fn tidings(&self, arguments: &[&str]) -> Output {
        let mut command = tokio::process::Command::new(BINARY);
        command.args(arguments).current_dir(self.stage.directory()).env("TIDINGS__STORE__URL", self.store_url());
        command.env("TIDINGS__SERVER__DATA_DIR", self.stage.directory().join("data"));
        if let Some(master) = &self.master {
            command.env("TIDINGS__SECRETS__MASTER", master);
        }
        command.output().await.unwrap()
    }

    async fn says(&self, arguments: &[&str]) -> Output {
        let output = self.tidings(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    async fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.tidings(arguments).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        said
    }

    /// Freezes and exports into a file.
    async fn export(&self) -> (PathBuf, String) {
        let output = self.says(&["export", "--freeze"]).await;
        let dump = self.stage.directory().join("dump.jsonl");
        std::fs::write(&dump, &output.stdout).unwrap();
        (dump, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn secret(&self) -> String {
        String::from_utf8(self.says(&["export", "--secret"]).await.stdout).unwrap().trim().to_owned()
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn delivery_of(status: &Value) -> String {
    status["deliveries"][0]["id"].as_str().unwrap().to_owned()
}

/// Accepts messages of which one is taken, one waits for its next try, one is perhaps sent, and some were never called.
async fn fill(gateway: &Gateway, peer: &ScriptedSmtp) -> Vec<(&'static str, String)> {
    let client = gateway.client();
    let state = |state: &'static str| move |body: &Value| body["deliveries"][0]["state"] == state;
    let mut ids = Vec::new();
    let accept = async |key: &'static str| {
        let answer = client.post(key, &email("ada@example.com", key)).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        (key, delivery_of(&answer.json()))
    };
    ids.push(accept("taken").await);
    client.until_closed("taken", PATIENCE).await;
    peer.behave(|old| old.once(Phase::Rcpt, Act::reply("451 4.3.0 later")));
    ids.push(accept("retried").await);
    client.until("retried", PATIENCE, state("retry_wait")).await;
    // The message was taken, and the answer never came.
    peer.behave(|old| old.once(Phase::Dot, Act::Drop));
    ids.push(accept("ambiguous").await);
    client.until("ambiguous", PATIENCE, state("ambiguous")).await;
    assert_eq!(client.call("PUT", "/v1/switches/all", &json!({ "paused": true })).await.status, 200);
    for key in ["queued-1", "queued-2", "queued-3"] {
        ids.push(accept(key).await);
    }
    ids
}

async fn moves(from: Stage, to: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let old = Side::new(from, &peer, None);
    let gateway = old.launch().start();
    let (client, key) = (gateway.client(), gateway.api_key());
    let ids = fill(&gateway, &peer).await;
    let added = client.call("POST", "/v1/suppressions", &json!({ "items": [{ "address": "never@example.com" }] })).await.json();
    assert_eq!(added["results"][0]["status"], 201, "{added}");
    let first = client.get("/v1/events?limit=100").await.json();
    // Readers that have stopped behind each of them, also between events of one commit.
    let mut readers = vec![client.get("/v1/events?limit=1").await.json()];
    while readers.len() < first["items"].as_array().unwrap().len() {
        let next = readers.last().unwrap()["next"].as_str().unwrap().to_owned();
        readers.push(client.get(&format!("/v1/events?limit=1&after={next}")).await.json());
    }
    let taken = client.by_key("taken").await.json();
    if !old.stage.is_postgres() {
        let said = old.refuses(&["export", "--freeze"]).await;
        assert!(said.contains("another process holds the lock"), "{said}");
    }
    assert!(gateway.terminate(PATIENCE).0);
    let (dump, said) = old.export().await;
    assert!(said.contains("5 open rows") && said.contains("exported "), "{said}");
    let text = std::fs::read_to_string(&dump).unwrap();
    assert!(!text.contains("ada@example.com") && !text.contains(&old.secret().await), "sealed, and without the secret");

    // Only with its own master secret, whole, and into an empty store.
    let mut new = Side::new(to, &peer, None);
    let said = new.refuses(&["import", path(&dump)]).await;
    assert!(said.contains("export --secret"), "{said}");
    new.master = Some(OTHER.to_owned());
    let said = new.refuses(&["import", path(&dump)]).await;
    assert!(said.contains("not the master secret"), "{said}");
    new.master = Some(old.secret().await);
    let half = new.stage.directory().join("half.jsonl");
    std::fs::write(&half, &text[..text.len() - 200]).unwrap();
    let said = new.refuses(&["import", path(&half)]).await;
    assert!(said.contains("nothing was imported") && said.contains("line "), "{said}");
    std::fs::write(&half, text.replace("\"mode\":0", "\"mode\":1")).unwrap();
    let said = new.refuses(&["import", path(&half)]).await;
    assert!(said.contains("not as they were written"), "{said}");
    let report: Value = serde_json::from_slice(&new.says(&["import", path(&dump), "--json"]).await.stdout).unwrap();
    assert_eq!((&report["tables"]["queue"]["rows"], &report["tables"]["notifications"]["rows"]), (&json!(5), &json!(6)));
    let said = new.refuses(&["import", path(&dump)]).await;
    assert!(said.contains("not empty") && said.contains("6 rows in notifications"), "{said}");

    // The old key opens the new installation; what was accepted is accepted still, and everything open goes out once.
    let gateway = new.launch().start();
    let client = Client::new(&gateway.url().unwrap(), &key);
    for (key, id) in &ids {
        let again = client.post(key, &email("ada@example.com", key)).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (202, Some("true")), "{}", again.text);
        assert_eq!(&delivery_of(&again.json()), id);
    }
    assert_eq!(client.by_key("taken").await.json(), taken);
    let found = client.get("/v1/suppressions?limit=10").await.json();
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(client.call("PUT", "/v1/switches/all", &json!({ "paused": false })).await.status, 200);
    for (key, id) in &ids {
        let status = client.until_closed(key, PATIENCE).await;
        let sent = sends_of(&peer, id);
        let most = if *key == "ambiguous" { 2 } else { 1 };
        assert!((1..=most).contains(&sent), "{key} was sent {sent} times: {status}");
    }
    // The feed goes on where its readers stood.
    let next = first["next"].as_str().unwrap();
    let news = client.get(&format!("/v1/events?limit=100&after={next}")).await.json();
    let (before, after) = (first["items"].as_array().unwrap(), news["items"].as_array().unwrap());
    assert!(after.len() >= 4 && before.iter().all(|event| !after.contains(event)), "{before:?} {after:?}");
    for (reader, expected) in readers.iter().zip(before[1..].iter().chain(&after[..1])) {
        let next = reader["next"].as_str().unwrap();
        assert_eq!(&client.get(&format!("/v1/events?limit=1&after={next}")).await.json()["items"][0], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_sqlite_to_postgres_everything_open_goes_out_once() {
    let Some(to) = Stage::postgres().await else { return };
    moves(Stage::sqlite().faster(10), to.faster(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_sqlite_to_sqlite_everything_open_goes_out_once() {
    moves(Stage::sqlite().faster(10), Stage::sqlite().faster(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_postgres_to_sqlite_everything_open_goes_out_once() {
    let Some(from) = Stage::postgres().await else { return };
    moves(from.faster(10), Stage::sqlite().faster(10)).await;
}

/// Every process of the installation sees the freeze within two seconds; reading goes on; and there is a way back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_processes_see_the_freeze_and_its_end() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let side = Side::new(stage, &peer, None);
    let (first, second) = (side.launch().start(), side.launch().start());
    let clients = [first.client(), Client::new(&second.url().unwrap(), &first.api_key())];
    clients[0].post("before", &email("ada@example.com", "before")).await;
    clients[0].until_closed("before", PATIENCE).await;

    let exporting = side.export();
    let watching = async {
        let mut refused = [None; 2];
        let deadline = Instant::now() + PATIENCE;
        let mut number = 0;
        while refused.contains(&None) {
            assert!(Instant::now() < deadline, "the freeze was not seen");
            for (client, refused) in clients.iter().zip(&mut refused) {
                number += 1;
                let answer = client.post(&format!("try-{number}"), &email("ada@example.com", "try")).await;
                if answer.status == 503 && refused.is_none() {
                    assert!(answer.json()["code"] == "overloaded" && answer.header("retry-after").is_some(), "{}", answer.text);
                    *refused = Some(Instant::now());
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        refused.map(Option::unwrap)
    };
    let ((_, said), refused) = tokio::join!(exporting, watching);
    let apart = refused[0].max(refused[1]) - refused[0].min(refused[1]);
    assert!(apart <= FROZEN, "{apart:?}");
    assert!(said.contains("still running, and answering 503: instance 1, instance 2"), "{said}");
    for client in &clients {
        assert_eq!(client.by_key("before").await.status, 200, "reading goes on");
        let answer = client.call("POST", "/v1/suppressions", &json!({ "address": "a@example.com" })).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
    }

    side.says(&["export", "--unfreeze"]).await;
    tokio::time::sleep(FROZEN).await;
    for (number, client) in clients.iter().enumerate() {
        let key = format!("after-{number}");
        assert_eq!(client.post(&key, &email("ada@example.com", "after")).await.status, 202);
        client.until_closed(&key, PATIENCE).await;
    }
}
