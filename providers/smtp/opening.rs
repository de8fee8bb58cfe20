//! How a connection is opened: look-up, connecting, greeting, EHLO, TLS, log-in, each with its own deadline.
//! What may be done with it afterwards is `connection`'s business.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Ehlo, Starttls};
use lettre::transport::smtp::extension::ClientId;
use tidings_core::outcome::Report;
use tidings_core::secrets::Secret;
use tidings_core::time::{Clock, Timestamp};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{Connection, Offers};
use super::reply::Reply;
use super::settings::{Settings, Tls};
use super::tls::{Trust, is_certificate_refused};
use super::verdict::{Phase, credential, refused_at_opening, unreachable};
use super::wire::Wire;

/// Where connections of an account lead.
pub(super) struct Target {
    pub(super) settings: Settings,
    pub(super) trust: Option<Trust>,
    pub(super) default_helo: Option<String>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Target {
    /// The least of a phase's limit and what is left until `until`.
    pub(super) fn limit(&self, phase: Duration, until: Timestamp) -> Duration {
        self.clock.real(phase.min(until.since(self.clock.now())))
    }

    fn hello(&self, local: IpAddr) -> ClientId {
        match self.settings.helo_name.as_ref().or(self.default_helo.as_ref()) {
            Some(name) => ClientId::Domain(name.clone()),
            None => match local.to_canonical() {
                IpAddr::V4(address) => ClientId::Ipv4(address),
                IpAddr::V6(address) => ClientId::Ipv6(address),
            },
        }
    }
}

impl Connection {
    /// Connects, greets, encrypts and logs in, until `until` at the latest.
    pub(super) async fn open(target: &Target, until: Timestamp) -> Result<Self, Report> {
        let (stream, peer) = dial(target, until).await?;
        let local = stream.local_addr().map_err(|_| unreachable("connection lost at connecting"))?;
        let hello = target.hello(local.ip());
        let wire = Wire::new(stream, peer);
        if target.settings.tls == Tls::Implicit {
            encrypt(&wire, target, until).await?;
        }
        let smtp = Box::pin(greet(&wire, &hello, target, until)).await?;
        let offers = Offers::of(&wire.said());
        let mut connection = Self::new(smtp, wire, offers, target.clock.now());
        if target.settings.tls == Tls::StartTls {
            connection.start_tls(&hello, target, until).await?;
        }
        if let (Some(username), Some(password)) = (&target.settings.username, &target.settings.password) {
            connection.log_in(username, password, target, until).await?;
        }
        Ok(connection)
    }

    async fn start_tls(&mut self, hello: &ClientId, target: &Target, until: Timestamp) -> Result<(), Report> {
        let limit = |target: &Target| target.limit(target.settings.timeouts.command, until);
        if !self.offers.starttls {
            self.farewell(&*target.clock).await;
            return Err(credential("STARTTLS is not offered"));
        }
        let reply = self.command(Phase::Tls, Starttls, limit(target)).await?;
        if !reply.is_positive() {
            return Err(refused_at_opening(&reply, Phase::Tls));
        }
        if !self.is_in_step() {
            return Err(unreachable("the relay spoke in clear text after STARTTLS"));
        }
        encrypt(self.wire(), target, until).await?;
        // What was offered in clear text does not count (RFC 3207 section 4.2).
        let reply = self.command(Phase::Ehlo, Ehlo::new(hello.clone()), limit(target)).await?;
        if !reply.is_positive() {
            return Err(refused_at_opening(&reply, Phase::Ehlo));
        }
        self.offers = Offers::of(&self.wire().said());
        Ok(())
    }

    async fn log_in(&mut self, username: &str, password: &Secret, target: &Target, until: Timestamp) -> Result<(), Report> {
        let (first, second) = match (self.offers.has_mechanism("PLAIN"), self.offers.has_mechanism("LOGIN")) {
            (true, _) => ("PLAIN", "LOGIN"),
            (false, true) => ("LOGIN", "PLAIN"),
            (false, false) => return Err(credential("neither AUTH PLAIN nor AUTH LOGIN is offered")),
        };
        let mut reply = self.authenticate(first, username, password, target, until).await?;
        let mechanism_refused = reply.code == 504 || reply.code / 100 == 5 && reply.says(&["mechanism", "authentication type"]);
        if mechanism_refused {
            reply = self.authenticate(second, username, password, target, until).await?;
        }
        if reply.is_positive() { Ok(()) } else { Err(refused_at_opening(&reply, Phase::Auth)) }
    }

    async fn authenticate(
        &mut self,
        mechanism: &str,
        username: &str,
        password: &Secret,
        target: &Target,
        until: Timestamp,
    ) -> Result<Reply, Report> {
        let limit = || target.limit(target.settings.timeouts.command, until);
        if mechanism == "PLAIN" {
            let secret = STANDARD.encode(format!("\0{username}\0{}", password.reveal()));
            return self.command(Phase::Auth, format!("AUTH PLAIN {secret}\r\n"), limit()).await;
        }
        // The prompts differ from relay to relay; their order does not.
        let mut reply = self.command(Phase::Auth, "AUTH LOGIN\r\n", limit()).await?;
        for answer in [username, password.reveal()] {
            if reply.code != 334 {
                break;
            }
            reply = self.command(Phase::Auth, format!("{}\r\n", STANDARD.encode(answer)), limit()).await?;
        }
        Ok(reply)
    }
}

/// Looks the name up and tries its addresses in turn, each with its share of the time.
async fn dial(target: &Target, until: Timestamp) -> Result<(TcpStream, SocketAddr), Report> {
    let deadline = Instant::now() + target.limit(target.settings.timeouts.connect, until);
    let late = || unreachable("no connection in time");
    let found = timeout_at(deadline, lookup_host((target.settings.host.as_str(), target.settings.port()))).await.map_err(|_| late())?;
    let addresses: Vec<SocketAddr> = found.map_err(|_| unreachable("the host name was not found"))?.collect();
    let mut report = unreachable("the host name has no address");
    for (position, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - position).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // The last line and the dot are two writes: without this each message waits for a delayed ACK.
                let _ = stream.set_nodelay(true);
                return Ok((stream, *address));
            }
            Ok(Err(_)) => report = unreachable("the connection was refused"),
            Err(_) => report = late(),
        }
    }
    Err(report)
}

/// The greeting and the first EHLO, each with its own limit.
async fn greet(wire: &Wire, hello: &ClientId, target: &Target, until: Timestamp) -> Result<AsyncSmtpConnection, Report> {
    let mut opening = Box::pin(AsyncSmtpConnection::connect_with_transport(Box::new(wire.clone()), hello));
    let greeting = target.limit(target.settings.timeouts.greeting, until);
    let early = tokio::select! {
        opened = &mut opening => Some(opened),
        () = wire.first_write() => None,
        () = tokio::time::sleep(greeting) => return Err(unreachable("no answer at the greeting in time")),
    };
    let opened = match early {
        Some(opened) => opened,
        None => timeout(target.limit(target.settings.timeouts.command, until), opening)
            .await
            .map_err(|_| unreachable("no answer at EHLO in time"))?,
    };
    let phase = if wire.has_written() { Phase::Ehlo } else { Phase::Greeting };
    opened.map_err(|err| match Reply::of_error(&err) {
        Some(reply) => refused_at_opening(&reply, phase),
        None => unreachable(format!("connection lost at {phase}")),
    })
}

async fn encrypt(wire: &Wire, target: &Target, until: Timestamp) -> Result<(), Report> {
    let (Some(trust), Some(stream)) = (&target.trust, wire.take_plain()) else {
        return Err(unreachable("the connection cannot be encrypted"));
    };
    let handshake = Box::pin(trust.connector.connect(trust.name.clone(), stream));
    match timeout(target.limit(target.settings.timeouts.command, until), handshake).await {
        Ok(Ok(stream)) => {
            wire.put_encrypted(stream);
            Ok(())
        }
        Ok(Err(err)) if is_certificate_refused(&err) => Err(credential("the relay's certificate is not trusted")),
        Ok(Err(_)) => Err(unreachable("the TLS handshake failed")),
        Err(_) => Err(unreachable("no TLS handshake in time")),
    }
}
