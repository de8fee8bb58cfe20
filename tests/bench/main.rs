//! Measures a release build of the gateway on this machine and prints ratios taken in one run. Never a test:
//! it asserts nothing about time.
//!
//! `cargo build --release && cargo run --release -p tidings-tests --bin tidings-bench [-- echo accept drain idle] [sqlite postgresql]`
//!
//! Beside each rate stands what one message cost in CPU time, of all processes that took part and of the gateway alone.

mod cpu;
mod echo;
mod load;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidings_tests::postgres::TestPostgres;
use tidings_tests::process::{Gateway, Launch};
use tidings_tests::smtp_peer::{Behaviour, ScriptedSmtp};

const CONNECTIONS: usize = 256;
const ACCEPT_TIME: Duration = Duration::from_secs(8);
const DRAIN_MESSAGES: usize = 30_000;
const IDLE_MESSAGES: usize = 300;

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let asked = |names: &[&str]| wanted.iter().any(|w| names.contains(&w.as_str()));
    let picks = |name: &str, among: &[&str]| !asked(among) || asked(&[name]);
    let runs = |name: &str| picks(name, &["echo", "accept", "drain", "idle"]);
    let binary = gateway_binary();
    println!("machine: {}", machine());
    println!("load: {CONNECTIONS} kept connections without pipelining, 230-byte bodies, generator on the same machine\n");

    let echo = if runs("echo") || runs("accept") { Some(bare_echo().await) } else { None };
    for store in stores().iter().filter(|store| picks(&store.name.to_lowercase(), &["sqlite", "postgresql"])) {
        if runs("accept") {
            let accepted = accept(&binary, store).await;
            let ratio = echo.as_ref().map_or(String::new(), |echo| accepted.against(echo));
            println!("{}{ratio}", accepted.line(&format!("durable accept, {}", store.name)));
        }
        if runs("drain") {
            println!("{}", drain(&binary, store).await.line(&format!("accepted and drained over SMTP, {}", store.name)));
        }
        if runs("idle") {
            let (p50, p99) = idle(&binary, store).await;
            println!("{:<46} {p50:>9.2} ms p50   {p99:.2} ms p99", format!("request to provider's dot, idle, {}", store.name));
        }
    }
}

struct StoreUnderTest {
    name: &'static str,
    is_postgres: bool,
}

fn stores() -> Vec<StoreUnderTest> {
    let mut stores = vec![StoreUnderTest { name: "SQLite", is_postgres: false }];
    match TestPostgres::durable() {
        Some(_) => stores.push(StoreUnderTest { name: "PostgreSQL", is_postgres: true }),
        None => println!("no PostgreSQL here: its rows are left out\n"),
    }
    stores
}

fn launch(binary: &Path, directory: &Path, store: &StoreUnderTest) -> Launch {
    let launch = Launch::new(binary, directory).env("TIDINGS__LOG__FILTER", "warn,tidings_gateway::serve=info");
    // Each run has a database of its own; PostgreSQL's wait for the disk as they do in production.
    match TestPostgres::durable().filter(|_| store.is_postgres) {
        Some(url) => launch.env("TIDINGS__STORE__URL", &url),
        None => launch,
    }
}

fn smtp_account(sink: &ScriptedSmtp) -> String {
    format!(
        "[accounts.sink]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {}\ntls = \"none\"\nconcurrency = 128\nfrom = \"Shop <shop@example.com>\"\n",
        sink.addr().port()
    )
}

/// What came out of one run.
struct Measured {
    /// Messages per second.
    rate: f64,
    /// Microseconds of CPU time of all processes for one of them, and of the gateway's own.
    cpu: f64,
    gateway: Option<f64>,
}

impl Measured {
    fn line(&self, what: &str) -> String {
        let gateway = self.gateway.map_or(String::new(), |gateway| format!(" ({gateway:.0} the gateway)"));
        format!("{what:<46} {:>9.0} /s   {:>4.0} us of CPU each{gateway}", self.rate, self.cpu)
    }

    fn against(&self, echo: &Self) -> String {
        format!("   {:.2} of the echo, {:.2} by CPU time", self.rate / echo.rate, echo.cpu / self.cpu)
    }
}

/// A run that has begun.
struct Run<'a> {
    started: Instant,
    cpu: f64,
    gateway: Option<(&'a Gateway, Duration)>,
}

impl<'a> Run<'a> {
    fn begin(gateway: Option<&'a Gateway>) -> Self {
        Self { started: Instant::now(), cpu: cpu::used(), gateway: gateway.map(|gateway| (gateway, gateway.cpu_time())) }
    }

    fn end(self, messages: usize) -> Measured {
        let count = messages as f64;
        let own = self.gateway.map(|(gateway, before)| (gateway.cpu_time() - before).as_secs_f64() * 1e6 / count);
        Measured { rate: count / self.started.elapsed().as_secs_f64(), cpu: (cpu::used() - self.cpu) / count, gateway: own }
    }
}

async fn bare_echo() -> Measured {
    let address = echo::start();
    let run = Run::begin(None);
    let done = load::run(address, CONNECTIONS, Duration::from_secs(5), |_| load::request("/echo", "none", None, load::BODY)).await;
    let echo = run.end(done);
    println!("{}", echo.line("bare actix-web JSON echo"));
    echo
}

/// Accepts messages for tomorrow: what is measured is the intake alone.
async fn accept(binary: &Path, store: &StoreUnderTest) -> Measured {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sink = ScriptedSmtp::start(Behaviour::sink()).await;
    let gateway = launch(binary, directory.path(), store).config(&smtp_account(&sink)).start();
    let (address, key) = (address_of(&gateway.url().expect("it is ready")), gateway.api_key());
    let make = |n: usize| load::request("/v1/notifications", &key, Some(&format!("bench-{n}")), load::BODY_FOR_LATER);
    let run = Run::begin(Some(&gateway));
    run.end(load::run(address, CONNECTIONS, ACCEPT_TIME, make).await)
}

/// Accepts and relays at once, until the sink has everything.
async fn drain(binary: &Path, store: &StoreUnderTest) -> Measured {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sink = ScriptedSmtp::start(Behaviour::sink()).await;
    let gateway = launch(binary, directory.path(), store).config(&smtp_account(&sink)).start();
    let (address, key) = (address_of(&gateway.url().expect("it is ready")), gateway.api_key());
    let run = Run::begin(Some(&gateway));
    let make = |n: usize| load::request("/v1/notifications", &key, Some(&format!("drain-{n}")), load::BODY);
    load::run_count(address, CONNECTIONS, DRAIN_MESSAGES, make).await;
    while sink.taken() < DRAIN_MESSAGES as u64 {
        assert!(run.started.elapsed() < Duration::from_secs(300), "{} of {DRAIN_MESSAGES} after five minutes", sink.taken());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    run.end(DRAIN_MESSAGES)
}

async fn idle(binary: &Path, store: &StoreUnderTest) -> (f64, f64) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sink = ScriptedSmtp::start(Behaviour::sink()).await;
    let gateway = launch(binary, directory.path(), store).config(&smtp_account(&sink)).start();
    let client = gateway.client();
    let body: serde_json::Value = serde_json::from_str(load::BODY).expect("the body is JSON");
    let mut times = Vec::new();
    for n in 0..IDLE_MESSAGES {
        let started = Instant::now();
        assert_eq!(client.post(&format!("idle-{n}"), &body).await.status, 202);
        sink.until(|sink| sink.taken() > n as u64).await;
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn address_of(url: &str) -> std::net::SocketAddr {
    url.trim_start_matches("http://").parse().expect("an address")
}

/// The gateway beside this program.
fn gateway_binary() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let binary = own.parent().expect("it lies in a folder").join("tidings");
    assert!(binary.exists(), "build it first: cargo build --release");
    binary
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).map_or("unknown", |rest| rest.trim_start_matches([':', ' ', '\t']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, {model}")
}
