//! A scripted SMTP server on loopback: takes mail into a ledger, and misbehaves where a story says so.
//! It knows nothing of the adapters that talk to it; what a story expects is the story's business.
//!
//! The ledger holds what the server became responsible for: every message whose dot it took, also where it then
//! hung, dropped the connection or answered nonsense. A message that it refused or lost is not in it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};

pub use behaviour::{Act, Behaviour, Login, PeerTls, Phase};
pub use session::Session;

mod behaviour;
mod certificates;
mod dialogue;
mod session;

/// One message in the ledger.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The envelope sender, without brackets.
    pub sender: String,
    /// What followed the sender in MAIL.
    pub parameters: String,
    /// The accepted recipients, without brackets, in the order of RCPT.
    pub recipients: Vec<String>,
    /// The bytes as they were before dot stuffing.
    pub message: Vec<u8>,
    /// On which connection, counted from 1.
    pub connection: u64,
    /// When the dot came.
    pub at: Instant,
}

/// One line that a client wrote, messages aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// On which connection, counted from 1.
    pub connection: u64,
    /// The line without its end.
    pub line: String,
}

/// A running server; it ends when this is dropped.
pub struct ScriptedSmtp {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What the connections of one server have in common.
struct Shared {
    behaviour: Mutex<Behaviour>,
    ledger: Mutex<Vec<Taken>>,
    commands: Mutex<Vec<Command>>,
    taken: AtomicU64,
    connections: AtomicU64,
    open: AtomicU64,
    changed: Notify,
    /// Counts calls of `release`.
    released: watch::Sender<u64>,
    /// What idle connections are told before they are closed; counted.
    evicted: watch::Sender<(u64, String)>,
}

impl ScriptedSmtp {
    /// Starts a server on a free port of 127.0.0.1.
    pub async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(behaviour),
            ledger: Mutex::default(),
            commands: Mutex::default(),
            taken: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            changed: Notify::new(),
            released: watch::Sender::new(0),
            evicted: watch::Sender::new((0, String::new())),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { addr, shared, accepting }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The authority that signed its certificate, which is good for `localhost` and 127.0.0.1.
    pub fn ca_pem(&self) -> &'static str {
        &certificates::trusted().ca_pem
    }

    /// The messages that it took, in order.
    pub fn ledger(&self) -> Vec<Taken> {
        locked(&self.shared.ledger).clone()
    }

    /// How many messages it took, kept or not.
    pub fn taken(&self) -> u64 {
        self.shared.taken.load(Ordering::SeqCst)
    }

    /// Every line that clients wrote.
    pub fn commands(&self) -> Vec<Command> {
        locked(&self.shared.commands).clone()
    }

    /// The first words of those lines, in upper case.
    pub fn verbs(&self) -> Vec<String> {
        let verb = |command: Command| command.line.split_ascii_whitespace().next().unwrap_or_default().to_ascii_uppercase();
        self.commands().into_iter().map(verb).collect()
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Behaves differently from now on, on open connections too.
    pub fn behave(&self, change: impl FnOnce(Behaviour) -> Behaviour) {
        let mut behaviour = locked(&self.shared.behaviour);
        *behaviour = change(std::mem::take(&mut *behaviour));
    }

    /// Ends every silence that has begun.
    pub fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }

    /// Tells every connection that waits for a command this line and closes it.
    pub fn evict(&self, line: &str) {
        self.shared.evicted.send_modify(|(count, said)| {
            *count += 1;
            line.clone_into(said);
        });
    }

    /// Waits until `reached` is true; it is asked again whenever the server took, heard or closed something.
    ///
    /// # Panics
    /// When that takes longer than ten seconds.
    pub async fn until(&self, mut reached: impl FnMut(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.shared.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if reached(self) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the story reaches this point within ten seconds");
    }
}

impl Drop for ScriptedSmtp {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn next_act(&self, phase: Phase) -> Option<Act> {
        locked(&self.behaviour).next_act(phase)
    }

    fn behaviour<T>(&self, read: impl FnOnce(&Behaviour) -> T) -> T {
        read(&locked(&self.behaviour))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborting this task closes every connection.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
        shared.open.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        connections.spawn(async move {
            // A client that goes away ends the dialogue, nothing else.
            let _ = dialogue::hold(stream, number, &shared).await;
            shared.open.fetch_sub(1, Ordering::SeqCst);
            shared.changed.notify_waiters();
        });
        while connections.try_join_next().is_some() {}
    }
}
