//! The real binary as a process: started on a port of its own, asked over HTTP, killed without mercy.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::Client;

/// How to start a gateway.
#[derive(Clone)]
pub struct Launch {
    binary: PathBuf,
    directory: PathBuf,
    config: String,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// The binary, with its data and configuration in `directory`.
    pub fn new(binary: impl Into<PathBuf>, directory: &Path) -> Self {
        Self { binary: binary.into(), directory: directory.to_owned(), config: String::new(), environment: Vec::new() }
    }

    /// Adds lines to the configuration file.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start(&self) -> Gateway {
        let mut gateway = self.spawn();
        let deadline = Instant::now() + Duration::from_secs(60);
        while gateway.url().is_none() {
            if let Some(status) = gateway.child.try_wait().expect("a child can be waited for") {
                panic!("the gateway ended with {status} before it was ready:\n{}", gateway.log());
            }
            assert!(Instant::now() < deadline, "the gateway was not ready in 60 s:\n{}", gateway.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        gateway
    }

    /// Starts it without waiting; it may die at once.
    pub fn spawn(&self) -> Gateway {
        let config = self.directory.join("tidings.toml");
        // Renamed into place: another process of the same stage may be reading it.
        let unfinished = tempfile::NamedTempFile::new_in(&self.directory).expect("a file can be made");
        std::fs::write(unfinished.path(), &self.config).expect("the configuration can be written");
        unfinished.persist(&config).expect("the configuration can be put in place");
        let mut child = Command::new(&self.binary)
            .args(["serve", "--config"])
            .arg(&config)
            .env("TIDINGS__SERVER__BIND", "127.0.0.1:0")
            .env("TIDINGS__LOG__FORMAT", "json")
            .env("TIDINGS__SERVER__DATA_DIR", self.directory.join("data"))
            .env("TIDINGS__STORE__URL", format!("sqlite://{}", self.directory.join("data/tidings.db").display()))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be started");
        let lines = Arc::new(Mutex::new(Vec::new()));
        for pipe in [
            child.stdout.take().map(Box::new).map(|p| p as Box<dyn std::io::Read + Send>),
            child.stderr.take().map(Box::new).map(|p| p as _),
        ] {
            let (pipe, lines) = (pipe.expect("the output is piped"), lines.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    lines.lock().expect("no reader panics").push(line);
                }
            });
        }
        Gateway { child, lines, directory: self.directory.clone() }
    }
}

/// A running gateway; killed when dropped.
pub struct Gateway {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    directory: PathBuf,
}

impl Gateway {
    /// Where it answers, once it has said so.
    pub fn url(&self) -> Option<String> {
        let lines = self.lines.lock().expect("no reader panics");
        lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|line| line["msg"] == "ready")?["url"]
            .as_str()
            .map(str::to_owned)
    }

    /// The first key, as the gateway wrote it.
    pub fn api_key(&self) -> String {
        let path = self.directory.join("data/api-key");
        std::fs::read_to_string(&path).expect("the first start wrote a key").trim().to_owned()
    }

    /// An application with the first key.
    pub fn client(&self) -> Client {
        Client::new(&self.url().expect("it is ready"), &self.api_key())
    }

    /// Everything it has printed.
    pub fn log(&self) -> String {
        self.lines.lock().expect("no reader panics").join("\n")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How long processors have worked for it so far, as Linux counts it: in hundredths of a second.
    ///
    /// # Panics
    /// Where there is no `/proc`.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the process lives");
        // Behind the name, which may hold anything, the fields are parted by blanks; user and system time are the 14th and 15th.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Ends it as a power failure of the process would.
    pub fn kill(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.log()
    }

    /// Asks it to stop and waits for the end; returns whether it ended well, and its log.
    pub fn terminate(mut self, patience: Duration) -> (bool, String) {
        self.signal("TERM");
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return (status.success(), self.log());
            }
            assert!(Instant::now() < deadline, "the gateway did not stop in {patience:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends it a signal such as `TERM` or `STOP`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()), "the signal could not be sent");
    }

    /// Waits until the process ends by itself.
    pub fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
