//! The stream below lettre's connection: hands replies out line by line, in plain ASCII and of bounded length, and can
//! be encrypted in place. What the lines mean is decided above.
//!
//! Line by line, so that nothing that came too early ever waits in a buffer above: neither clear text from before TLS
//! (RFC 3207 section 6) nor a second reply that the next command would take for its own.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tidings_core::crash::fail_point;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::client::TlsStream;

/// Longest line taken; lettre takes no longer one either.
const LINE_LIMIT: usize = 990;
/// Most lines of one reply taken. lettre reads the whole reply anew with each line, so that thousands would keep it busy.
const REPLY_LIMIT: usize = 200;

/// One end for lettre, which writes and reads, and one for us, who look on.
#[derive(Clone)]
pub(super) struct Wire(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    first_write: Notify,
    peer: SocketAddr,
}

struct State {
    link: Link,
    /// Bytes that came in and belong to no line handed out yet.
    unread: Vec<u8>,
    /// The rest of the line that is being handed out.
    line: Vec<u8>,
    /// The lines of the reply to what was last written.
    said: Vec<String>,
    has_written: bool,
    /// The next read is for the reply to the dot.
    after_dot: bool,
}

enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// Taken out for a handshake.
    Away,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        let state = State {
            link: Link::Plain(stream),
            unread: Vec::new(),
            line: Vec::new(),
            said: Vec::new(),
            has_written: false,
            after_dot: false,
        };
        Self(Arc::new(Inner { state: Mutex::new(state), first_write: Notify::new(), peer }))
    }

    /// Resolves once anything was written.
    pub(super) async fn first_write(&self) {
        self.0.first_write.notified().await;
    }

    pub(super) fn has_written(&self) -> bool {
        self.state().has_written
    }

    /// The lines of the reply to what was last written, reply codes cut off.
    pub(super) fn said(&self) -> Vec<String> {
        self.state().said.iter().map(|line| line.get(4..).unwrap_or_default().to_owned()).collect()
    }

    /// Whether the peer said something that nobody asked for, as far as it has been read.
    pub(super) fn has_unread(&self) -> bool {
        let state = self.state();
        !state.unread.is_empty() || !state.line.is_empty()
    }

    /// Whether the connection is open and silent, as an unused one must be.
    pub(super) async fn is_quiet(&self) -> bool {
        let silent = std::future::poll_fn(|cx| {
            let mut buffer = [0; 1];
            let polled = Pin::new(&mut self.state().link).poll_read(cx, &mut ReadBuf::new(&mut buffer));
            Poll::Ready(polled.is_pending())
        });
        !self.has_unread() && silent.await
    }

    /// Says that the dot is about to be written.
    pub(super) fn expect_dot(&self) {
        self.state().after_dot = true;
    }

    /// Takes the clear-text stream out for a handshake; `None` where it is encrypted already.
    pub(super) fn take_plain(&self) -> Option<TcpStream> {
        match std::mem::replace(&mut self.state().link, Link::Away) {
            Link::Plain(stream) => Some(stream),
            Link::Tls(_) | Link::Away => None,
        }
    }

    /// Goes on encrypted.
    pub(super) fn put_encrypted(&self, stream: TlsStream<TcpStream>) {
        self.state().link = Link::Tls(Box::new(stream));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic between two lines leaves nothing half done that matters: the connection is dropped with the call.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes the next whole line ready to be handed out; `false` where more must be read first.
    fn next_line(&mut self) -> io::Result<bool> {
        let Some(end) = self.unread.iter().position(|b| *b == b'\n') else {
            return if self.unread.len() > LINE_LIMIT { Err(too_long()) } else { Ok(false) };
        };
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        let mut line: String = line.trim_ascii_end().iter().map(|b| if matches!(b, b' '..=b'~') { char::from(*b) } else { '?' }).collect();
        if line.len() > LINE_LIMIT || self.said.len() >= REPLY_LIMIT {
            return Err(too_long());
        }
        // A reply may be its code alone (RFC 5321 section 4.2.1).
        if line.len() == 3 {
            line.push(' ');
        }
        self.line = format!("{line}\r\n").into_bytes();
        self.said.push(line);
        Ok(true)
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the reply is too long")
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if std::mem::take(&mut state.after_dot) {
            fail_point("send.after_dot");
        }
        loop {
            if !state.line.is_empty() {
                let length = state.line.len().min(buf.remaining());
                buf.put_slice(&state.line[..length]);
                state.line.drain(..length);
                return Poll::Ready(Ok(()));
            }
            if state.next_line()? {
                continue;
            }
            let mut chunk = [0; 2_048];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut state.link).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.unread.extend_from_slice(chunk.filled());
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        state.said.clear();
        if !std::mem::replace(&mut state.has_written, true) {
            self.0.first_write.notify_one();
        }
        Pin::new(&mut state.link).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().link).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().link).poll_shutdown(cx)
    }
}

impl AsyncTokioStream for Wire {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.peer)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire(..)")
    }
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Away => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Away => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Away => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Away => Poll::Ready(Ok(())),
        }
    }
}
