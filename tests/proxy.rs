//! A proxy on loopback in front of a server, which a story can cut: how a database goes away and comes back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// What the proxy does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Passes them on.
    Open,
    /// Closes every connection, and new ones at once.
    Cut,
    /// Passes requests on and holds the answers back until the connection is cut: a lost reply.
    HoldAnswers,
}

/// A running proxy.
pub struct Proxy {
    addr: SocketAddr,
    flow: Arc<watch::Sender<Flow>>,
}

impl Proxy {
    /// A proxy in front of a Unix socket.
    pub async fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let flow = Arc::new(watch::Sender::new(Flow::Open));
        let told = flow.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *told.borrow() != Flow::Cut
                    && let Ok(server) = UnixStream::connect(&socket).await
                {
                    tokio::spawn(carry(client, server, told.subscribe()));
                }
            }
        });
        Self { addr, flow }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes what it does, for connections that are open too.
    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

async fn carry(mut client: TcpStream, mut server: UnixStream, mut flow: watch::Receiver<Flow>) {
    let (mut from_client, mut from_server) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        let now = *flow.borrow_and_update();
        if now == Flow::Cut {
            return;
        }
        tokio::select! {
            changed = flow.changed() => if changed.is_err() { return },
            read = client.read(&mut from_client) => match read {
                Ok(n) if n > 0 => if server.write_all(&from_client[..n]).await.is_err() { return },
                _ => return,
            },
            read = server.read(&mut from_server), if now == Flow::Open => match read {
                Ok(n) if n > 0 => if client.write_all(&from_server[..n]).await.is_err() { return },
                _ => return,
            },
        }
    }
}
