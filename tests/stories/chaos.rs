//! The real binary killed at random moments under load, again and again. Slow: run it with
//! `cargo test --test chaos -- --ignored`, with `TIDINGS_BINARY` naming a release build to test that one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use tidings_tests::client::email;
use tidings_tests::on_both_databases;
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};
use tidings_tests::stage::{Stage, smtp_account};

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");
const ROUNDS: usize = 12;
const CALLERS: usize = 8;

on_both_databases!(
    #[ignore = "takes minutes"]
    kills_at_random_moments_lose_nothing_and_hide_no_double
);

async fn kills_at_random_moments_lose_nothing_and_hide_no_double(stage: Stage) {
    let peer = ScriptedSmtp::start(Behaviour::default()).await;
    let config = format!("{}[ambiguity.transactional]\nhold = \"3s\"\n", smtp_account("relay", &peer));
    let launch = stage.launch(BINARY).config(&config);
    let posted = Arc::new(AtomicUsize::new(0));

    for round in 0..ROUNDS {
        let gateway = launch.start();
        let client = gateway.client();
        let is_over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (client, posted, is_over) = (client.clone(), posted.clone(), is_over.clone());
                tokio::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        let n = posted.fetch_add(1, Ordering::Relaxed);
                        let _ = client.try_post(&format!("chaos-{n}"), &email("ada@example.com", &format!("chaos {n}"))).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(100..900))).await;
        gateway.kill();
        is_over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.expect("callers do not panic");
        }
        eprintln!("round {round}: {} posted, {} taken", posted.load(Ordering::Relaxed), peer.taken());
    }

    let gateway = launch.start();
    let client = gateway.client();
    let mut sends: HashMap<String, usize> = HashMap::new();
    let (mut flagged, mut doubled) = (0, 0);
    let total = posted.load(Ordering::Relaxed);
    for n in 0..total {
        let answer = client.post(&format!("chaos-{n}"), &email("ada@example.com", &format!("chaos {n}"))).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    // A lease of a process that died lasts a minute on PostgreSQL.
    for n in 0..total {
        client.until_closed(&format!("chaos-{n}"), Duration::from_secs(180)).await;
    }
    for taken in peer.ledger() {
        let text = String::from_utf8_lossy(&taken.message).into_owned();
        let subject = text.lines().find_map(|line| line.strip_prefix("Subject: chaos ")).expect("each message has its subject");
        *sends.entry(subject.to_owned()).or_default() += 1;
    }
    for n in 0..total {
        let status = client.by_key(&format!("chaos-{n}")).await.json();
        let delivery = &status["deliveries"][0];
        let sends = sends.get(&n.to_string()).copied().unwrap_or_default();
        // Two kills around one row are poison: it ends `unknown`, named and listed, and is not sent again by itself.
        let is_unknown = delivery["state"] == "unknown";
        assert!(sends >= 1 || is_unknown, "lost: {status}");
        let is_flagged = delivery["possible_duplicate"] == true;
        assert!(sends <= 1 || is_flagged || is_unknown, "{sends} sends and no word of it: {status}");
        assert!(sends <= 2, "{sends} sends: {status}");
        flagged += usize::from(is_flagged);
        doubled += usize::from(sends > 1);
    }
    eprintln!("{total} accepted, 0 lost, {doubled} doubled and flagged, {flagged} flagged in all");
}
