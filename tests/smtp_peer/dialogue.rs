//! One connection of the scripted server, from the greeting to its end.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{Act, Command, PeerTls, Phase, Shared, Taken, certificates, locked};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Whether the connection lives on after a step.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
}

struct Dialogue<'a> {
    stream: BufReader<Box<dyn Stream>>,
    shared: &'a Shared,
    number: u64,
    evicted: watch::Receiver<(u64, String)>,
    is_encrypted: bool,
    is_logged_in: bool,
    sender: Option<(String, String)>,
    recipients: Vec<String>,
}

/// Holds the dialogue until either side ends it.
pub(super) async fn hold(stream: TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut dialogue = Dialogue {
        stream: BufReader::new(Box::new(stream)),
        shared,
        number,
        evicted: shared.evicted.subscribe(),
        is_encrypted: false,
        is_logged_in: false,
        sender: None,
        recipients: Vec::new(),
    };
    if shared.behaviour(|behaviour| behaviour.tls == PeerTls::Implicit) {
        dialogue.encrypt().await?;
    }
    if dialogue.step(Phase::Greeting, "220 peer.test ESMTP").await? == Next::Close {
        return Ok(());
    }
    while let Some(line) = dialogue.command().await? {
        if dialogue.answer(&line).await? == Next::Close {
            break;
        }
    }
    Ok(())
}

impl Dialogue<'_> {
    /// The next command; `None` at the end, also where the connection was evicted.
    async fn command(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        tokio::select! {
            biased;
            _ = self.evicted.changed() => {
                let said = self.evicted.borrow_and_update().1.clone();
                self.say(&said).await?;
                self.stream.shutdown().await?;
                return Ok(None);
            }
            read = self.stream.read_until(b'\n', &mut line) => {
                if read? == 0 {
                    return Ok(None);
                }
            }
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if self.shared.behaviour(|behaviour| behaviour.keeps_messages) {
            locked(&self.shared.commands).push(Command { connection: self.number, line: line.clone() });
            self.shared.changed.notify_waiters();
        }
        Ok(Some(line))
    }

    async fn answer(&mut self, line: &str) -> io::Result<Next> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" => {
                let reply = self.ehlo_reply();
                self.step(Phase::Ehlo, &reply).await
            }
            "STARTTLS" => self.start_tls().await,
            "AUTH" => self.auth(rest).await,
            "MAIL" => self.mail(rest).await,
            "RCPT" => self.rcpt(rest).await,
            "DATA" => self.data().await,
            "NOOP" => self.step(Phase::Noop, "250 2.0.0 Ok").await,
            "RSET" => {
                self.forget();
                self.step(Phase::Rset, "250 2.0.0 Ok").await
            }
            "QUIT" => {
                self.step(Phase::Quit, "221 2.0.0 Bye").await?;
                Ok(Next::Close)
            }
            _ => self.step(Phase::Other, "500 5.5.2 What?").await,
        }
    }

    fn ehlo_reply(&self) -> String {
        let lines = self.shared.behaviour(|behaviour| {
            let mut lines = vec!["peer.test".to_owned()];
            lines.extend(behaviour.offers.iter().cloned());
            if behaviour.tls == PeerTls::StartTls && !self.is_encrypted {
                lines.push("STARTTLS".to_owned());
            } else if let Some(login) = &behaviour.login {
                lines.push(format!("AUTH {}", login.mechanisms.join(" ")));
            }
            lines
        });
        let last = lines.len() - 1;
        let line = |(at, line): (usize, &String)| format!("250{}{line}", if at == last { ' ' } else { '-' });
        lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\r\n")
    }

    async fn start_tls(&mut self) -> io::Result<Next> {
        let offered = self.shared.behaviour(|behaviour| behaviour.tls == PeerTls::StartTls);
        if !offered || self.is_encrypted {
            return self.step(Phase::StartTls, "502 5.5.1 Not here").await;
        }
        match self.act(Phase::StartTls, "220 2.0.0 Ready to start TLS").await? {
            (Next::GoOn, 2) => {
                self.encrypt().await?;
                Ok(Next::GoOn)
            }
            (next, _) => Ok(next),
        }
    }

    async fn encrypt(&mut self) -> io::Result<()> {
        let untrusted = self.shared.behaviour(|behaviour| behaviour.untrusted);
        let identity = if untrusted { certificates::untrusted() } else { certificates::trusted() };
        let (idle, _) = tokio::io::duplex(1);
        let plain = std::mem::replace(&mut self.stream, BufReader::new(Box::new(idle)));
        let encrypted = identity.acceptor.accept(plain.into_inner()).await?;
        self.stream = BufReader::new(Box::new(encrypted));
        self.is_encrypted = true;
        self.forget();
        Ok(())
    }

    async fn auth(&mut self, rest: &str) -> io::Result<Next> {
        let Some(login) = self.shared.behaviour(|behaviour| behaviour.login.clone()) else {
            return self.step(Phase::Auth, "503 5.5.1 No log-in here").await;
        };
        let (mechanism, initial) = rest.split_once(' ').unwrap_or((rest, ""));
        if !login.mechanisms.iter().any(|known| known.eq_ignore_ascii_case(mechanism)) {
            return self.step(Phase::Auth, "504 5.5.4 Unrecognized authentication mechanism").await;
        }
        let decoded = |text: &str| STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let given = if mechanism.eq_ignore_ascii_case("PLAIN") {
            decoded(initial)
        } else {
            let mut given = Vec::new();
            for prompt in ["Username:", "Password:"] {
                self.say(&format!("334 {}", STANDARD.encode(prompt))).await?;
                let Some(line) = self.command().await? else { return Ok(Next::Close) };
                given.push(decoded(&line));
            }
            format!("\0{}", given.join("\0"))
        };
        let right = given == format!("\0{}\0{}", login.username, login.password);
        let reply = if right { "235 2.7.0 Authentication successful" } else { "535 5.7.8 Authentication credentials invalid" };
        let (next, class) = self.act(Phase::Auth, reply).await?;
        self.is_logged_in = class == 2;
        Ok(next)
    }

    async fn mail(&mut self, rest: &str) -> io::Result<Next> {
        let locked_out = !self.is_logged_in && self.shared.behaviour(|behaviour| behaviour.login.is_some());
        let reply = if locked_out { "530 5.7.0 Authentication required" } else { "250 2.1.0 Ok" };
        let (next, class) = self.act(Phase::Mail, reply).await?;
        self.forget();
        if class == 2 {
            let (sender, parameters) = bracketed(rest);
            self.sender = Some((sender, parameters));
        }
        Ok(next)
    }

    async fn rcpt(&mut self, rest: &str) -> io::Result<Next> {
        let (recipient, _) = bracketed(rest);
        let own = self.shared.behaviour(|behaviour| behaviour.recipients.get(&recipient).cloned());
        let ordinary = if self.sender.is_some() { "250 2.1.5 Ok" } else { "503 5.5.1 MAIL first" };
        let (next, class) = self.act(Phase::Rcpt, own.as_deref().unwrap_or(ordinary)).await?;
        if class == 2 {
            self.recipients.push(recipient);
        }
        Ok(next)
    }

    async fn data(&mut self) -> io::Result<Next> {
        let ordinary = if self.recipients.is_empty() { "554 5.5.1 No valid recipients" } else { "354 End data with <CR><LF>.<CR><LF>" };
        match self.act(Phase::Data, ordinary).await? {
            (Next::GoOn, 3) => {}
            (next, _) => return Ok(next),
        }
        let limit = match self.shared.next_act(Phase::Body) {
            Some(Act::DropAfter(bytes)) => bytes,
            _ => usize::MAX,
        };
        let Some(message) = self.body(limit).await? else { return Ok(Next::Close) };
        self.dot(message).await
    }

    /// The message up to its dot; `None` where the connection ends before it.
    async fn body(&mut self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        let mut begins_line = true;
        loop {
            let start = message.len();
            if self.stream.read_until(b'\n', &mut message).await? == 0 || message.len() > limit {
                return Ok(None);
            }
            // Only CR LF ends a line: whoever takes less is open to smuggling.
            if begins_line && message[start..] == *b".\r\n" {
                message.truncate(start);
                return Ok(Some(message));
            }
            if begins_line && message[start] == b'.' {
                message.remove(start);
            }
            begins_line = message.ends_with(b"\r\n");
        }
    }

    async fn dot(&mut self, message: Vec<u8>) -> io::Result<Next> {
        // Before anybody can see the message: a release that comes right after counts.
        let released = self.shared.released.subscribe();
        let act = self.shared.next_act(Phase::Dot);
        let is_taken = match &act {
            None | Some(Act::Raw(_) | Act::Drop | Act::Silence | Act::DropAfter(_)) => true,
            Some(Act::Reply(reply) | Act::ReplyAndDrop(reply)) => !reply.starts_with(['4', '5']),
            Some(Act::Lose) => false,
        };
        let mut name = 0;
        if is_taken {
            name = self.shared.taken.fetch_add(1, Ordering::SeqCst) + 1;
            self.enter(message);
        }
        self.forget();
        let reply = format!("250 2.0.0 Ok: queued as P{name:08}");
        Ok(self.perform(act, &reply, released).await?.0)
    }

    fn enter(&mut self, message: Vec<u8>) {
        if self.shared.behaviour(|behaviour| behaviour.keeps_messages) {
            let (sender, parameters) = self.sender.take().unwrap_or_default();
            let recipients = std::mem::take(&mut self.recipients);
            let entry = Taken { sender, parameters, recipients, message, connection: self.number, at: Instant::now() };
            locked(&self.shared.ledger).push(entry);
        }
        self.shared.changed.notify_waiters();
    }

    fn forget(&mut self) {
        self.sender = None;
        self.recipients.clear();
    }

    async fn step(&mut self, phase: Phase, ordinary: &str) -> io::Result<Next> {
        Ok(self.act(phase, ordinary).await?.0)
    }

    /// Does what the script says of this phase, else the ordinary thing. With it the first digit of the reply.
    async fn act(&mut self, phase: Phase, ordinary: &str) -> io::Result<(Next, u8)> {
        let released = self.shared.released.subscribe();
        let act = self.shared.next_act(phase);
        self.perform(act, ordinary, released).await
    }

    async fn perform(&mut self, act: Option<Act>, ordinary: &str, mut released: watch::Receiver<u64>) -> io::Result<(Next, u8)> {
        let class = |reply: &str| reply.bytes().next().map_or(0, |digit| digit.wrapping_sub(b'0'));
        match act {
            None | Some(Act::DropAfter(_)) => {
                self.say(ordinary).await?;
                Ok((Next::GoOn, class(ordinary)))
            }
            Some(Act::Reply(reply)) => {
                self.say(&reply).await?;
                Ok((Next::GoOn, class(&reply)))
            }
            Some(Act::ReplyAndDrop(reply)) => {
                self.say(&reply).await?;
                self.stream.shutdown().await?;
                Ok((Next::Close, class(&reply)))
            }
            Some(Act::Raw(bytes)) => {
                self.stream.write_all(&bytes).await?;
                self.stream.flush().await?;
                Ok((Next::GoOn, bytes.first().map_or(0, |digit| digit.wrapping_sub(b'0'))))
            }
            Some(Act::Drop | Act::Lose) => Ok((Next::Close, 0)),
            Some(Act::Silence) => {
                self.shared.changed.notify_waiters();
                // Fails only when the server is gone, and this task with it.
                let _ = released.changed().await;
                self.say(ordinary).await?;
                Ok((Next::GoOn, class(ordinary)))
            }
        }
    }

    async fn say(&mut self, reply: &str) -> io::Result<()> {
        self.stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        self.stream.flush().await
    }
}

/// What stands between the brackets, and what follows them.
fn bracketed(text: &str) -> (String, String) {
    let inner = text.split_once('<').map_or("", |(_, inner)| inner);
    let (path, parameters) = inner.rsplit_once('>').unwrap_or((inner, ""));
    (path.to_owned(), parameters.trim().to_owned())
}
