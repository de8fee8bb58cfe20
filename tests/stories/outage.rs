//! The database goes away, fills up, becomes read-only: callers are told, readiness shows it, nothing accepted is
//! lost, and work resumes by itself.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tidings_tests::client::{Client, email};
use tidings_tests::proxy::{Flow, Proxy};
use tidings_tests::smtp_peer::{Act, Behaviour, Phase, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const PATIENCE: Duration = Duration::from_secs(60);

async fn until_ready_is(client: &Client, status: u16, patience: Duration) {
    let reached = async {
        while client.get("/readyz").await.status != status {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(patience, reached).await.unwrap_or_else(|_| panic!("/readyz was not {status} in {patience:?}"));
}

/// The stage's database through a proxy on TCP.
async fn proxied(stage: &Stage) -> (Proxy, String) {
    let url = stage.store_url().expect("a stage on PostgreSQL");
    let (socket, tcp_url) = tidings_tests::postgres::through_tcp(url);
    let proxy = Proxy::start(socket).await;
    let url = tcp_url(proxy.addr());
    (proxy, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_away_loses_nothing_and_sends_nothing_twice() {
    let Some(stage) = Stage::postgres().await else { return };
    let (proxy, url) = proxied(&stage).await;
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).env("TIDINGS__STORE__URL", &url).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();

    // The relay has the first message and answers only when the database is gone (S-039).
    peer.behave(|behaviour| behaviour.once(Phase::Dot, Act::Silence));
    assert_eq!(client.post("before", &email("ada@example.com", "before")).await.status, 202);
    peer.until(|peer| peer.taken() == 1).await;
    proxy.set(Flow::Cut);
    peer.release();
    let refused = client.post("during", &email("ada@example.com", "during")).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.header("retry-after").is_some());
    until_ready_is(&client, 503, Duration::from_secs(10)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(client.get("/healthz").await.status, 200);
    // Nobody is let in whose key cannot be looked up (S-088).
    for path in ["/v1/accounts", "/v1/keys", "/v1/limits"] {
        assert_eq!(client.get(path).await.status, 503, "{path}");
    }

    proxy.set(Flow::Open);
    until_ready_is(&client, 200, Duration::from_secs(20)).await;
    assert_eq!(client.post("during", &email("ada@example.com", "during")).await.status, 202);
    for key in ["before", "during"] {
        let status = client.until_closed(key, PATIENCE).await;
        assert_eq!(
            (status["status"].as_str(), &status["deliveries"][0]["possible_duplicate"]),
            (Some("accepted"), &false.into()),
            "{status}"
        );
    }
    assert_eq!(peer.taken(), 2, "one send each: the outcome was kept until the database was back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_reply_converges_on_one_notification() {
    let Some(stage) = Stage::postgres().await else { return };
    let (proxy, url) = proxied(&stage).await;
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).env("TIDINGS__STORE__URL", &url).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    assert_eq!(client.post("warm", &email("ada@example.com", "warm")).await.status, 202);
    client.until_closed("warm", PATIENCE).await;

    for round in 0..5 {
        let key = format!("lost-{round}");
        proxy.set(Flow::HoldAnswers);
        let posting = {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move { client.post(&key, &email("ada@example.com", &key)).await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.set(Flow::Cut);
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.set(Flow::Open);
        let first = posting.await.expect("the call does not panic");
        assert!(matches!(first.status, 202 | 503), "{}: {}", first.status, first.text);
        let second = loop {
            let again = client.post(&key, &email("ada@example.com", &key)).await;
            if again.status == 202 {
                break again;
            }
            assert_eq!(again.status, 503, "{}", again.text);
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        if first.status == 202 {
            assert_eq!(first.json()["id"], second.json()["id"]);
        }
        assert_eq!(client.until_closed(&key, PATIENCE).await["status"], "accepted");
    }
    let subjects: Vec<String> = peer.ledger().iter().map(|taken| String::from_utf8_lossy(&taken.message).into_owned()).collect();
    for round in 0..5 {
        let sends = subjects.iter().filter(|text| text.contains(&format!("Subject: lost-{round}\r\n"))).count();
        assert_eq!(sends, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_told_and_recovered_from() {
    let Some(stage) = Stage::postgres().await else { return };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    assert_eq!(client.post("before", &email("ada@example.com", "before")).await.status, 202);
    client.until_closed("before", PATIENCE).await;

    tidings_tests::postgres::set_read_only(stage.store_url().expect("a stage on PostgreSQL"), true).await;
    let refused = client.post("during", &email("ada@example.com", "during")).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    until_ready_is(&client, 503, Duration::from_secs(10)).await;
    assert_eq!(client.by_key("before").await.status, 200, "reading goes on");

    tidings_tests::postgres::set_read_only(stage.store_url().expect("a stage on PostgreSQL"), false).await;
    until_ready_is(&client, 200, Duration::from_secs(20)).await;
    assert_eq!(client.post("during", &email("ada@example.com", "during")).await.status, 202);
    assert_eq!(client.until_closed("during", PATIENCE).await["status"], "accepted");
    assert_eq!(peer.taken(), 2);
}

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this user may not mount anything.
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).ok()?;
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&at).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_recovered_from() {
    let stage = Stage::sqlite();
    let Some(disk) = SmallDisk::mount(stage.directory().join("data")) else {
        assert!(std::env::var("CI").is_err(), "CI runs as root and may mount");
        eprintln!("SKIPPED: only root may mount the small disk that this story fills");
        return;
    };
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let gateway = stage.launch(BINARY).config(&smtp_account("relay", &peer)).start();
    let client = gateway.client();
    let big = |n: usize| email(&format!("ada{n}@example.com"), &format!("message {n}"));
    assert_eq!(client.post("full-0", &big(0)).await.status, 202);
    client.until_closed("full-0", PATIENCE).await;

    let ballast = disk.0.join("ballast");
    let mut filler = std::fs::File::create(&ballast).expect("the disk has room yet");
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    let mut accepted = vec!["full-0".to_owned()];
    let mut refused = None;
    for n in 1..200 {
        let answer = client.post(&format!("full-{n}"), &big(n)).await;
        match answer.status {
            202 => accepted.push(format!("full-{n}")),
            503 => {
                refused = Some(n);
                break;
            }
            other => panic!("{other}: {}", answer.text),
        }
    }
    let refused = refused.expect("a full disk takes nothing");
    until_ready_is(&client, 503, Duration::from_secs(10)).await;

    drop(filler);
    std::fs::remove_file(&ballast).expect("room is made");
    until_ready_is(&client, 200, Duration::from_secs(20)).await;
    assert_eq!(client.post(&format!("full-{refused}"), &big(refused)).await.status, 202);
    accepted.push(format!("full-{refused}"));
    for key in &accepted {
        assert_eq!(client.until_closed(key, PATIENCE).await["status"], "accepted", "{key}");
    }
    assert_eq!(peer.taken(), accepted.len() as u64);
}
