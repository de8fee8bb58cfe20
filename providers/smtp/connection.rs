//! One open connection to a relay and single steps on it, each with its own deadline.
//! How it is opened is `opening`'s business, what the steps of a message mean `transaction`'s.
//!
//! lettre's connection speaks, driven by hand: its own `send` and pool cannot tell what may have been taken, and its
//! `starttls` and `auth` write QUIT and wait without a limit when they are refused.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use lettre::transport::smtp::Error;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Noop, Quit, Rset};
use lettre::transport::smtp::response::Response;
use tidings_core::adapter::Crossing;
use tidings_core::crash::fail_point;
use tidings_core::outcome::Report;
use tidings_core::time::{Clock, Timestamp};
use tokio::time::{Instant, sleep_until, timeout};

use super::opening::Target;
use super::reply::{Reply, provider_message_id};
use super::verdict::{Phase, unreachable};
use super::wire::Wire;

/// How long a farewell and the proof of an idle connection may take.
const SHORTLY: Duration = Duration::from_secs(2);
/// The message goes out in blocks of this size, each with its own deadline.
const BLOCK: usize = 64 * 1_024;

/// What the relay said that it can do, after TLS.
#[derive(Debug, Clone, Default)]
pub(super) struct Offers {
    pub(super) starttls: bool,
    pub(super) smtputf8: bool,
    /// Whether `SIZE=` may be given, and the limit where one is named (RFC 1870).
    pub(super) size: Option<Option<u64>>,
    mechanisms: Vec<String>,
}

/// An open connection.
pub(super) struct Connection {
    smtp: AsyncSmtpConnection,
    wire: Wire,
    pub(super) offers: Offers,
    pub(super) messages: u32,
    pub(super) used_at: Timestamp,
    /// A refused message may have left recipients behind: RSET before the next.
    pub(super) needs_reset: bool,
}

/// What came of the message itself.
pub(super) enum Sent {
    /// A clear answer to the dot, and the relay's id for the message where it said yes.
    Answered(Reply, Option<String>),
    /// The dot may have left, and no clear answer came.
    Unknown(&'static str),
    /// The connection ended or stood still before the dot.
    BeforeDot(&'static str),
}

impl Connection {
    /// What is left of opening one: greeted, and not yet encrypted or logged in where that is still to come.
    pub(super) const fn new(smtp: AsyncSmtpConnection, wire: Wire, offers: Offers, now: Timestamp) -> Self {
        Self { smtp, wire, offers, messages: 0, used_at: now, needs_reset: false }
    }

    /// One command and its reply. An error means that the connection is of no use any more.
    pub(super) async fn command(&mut self, phase: Phase, command: impl Display, limit: Duration) -> Result<Reply, Report> {
        if self.wire.has_unread() {
            return Err(unreachable(format!("the relay spoke out of turn before {phase}")));
        }
        match timeout(limit, self.smtp.command(command)).await {
            Ok(answer) => replied(&answer).ok_or_else(|| unreachable(format!("connection lost at {phase}"))),
            Err(_) => Err(unreachable(format!("no answer at {phase} in time"))),
        }
    }

    /// Writes the message and its dot, and reads the answer to the dot. `block` limits each block, `dot` the answer;
    /// `crossing` is passed before the first byte of the dot may leave.
    pub(super) async fn message(
        &mut self,
        message: &[u8],
        block: impl Fn() -> Duration,
        dot: impl Fn() -> Duration,
        crossing: &Crossing,
    ) -> Sent {
        if self.wire.has_unread() {
            return Sent::BeforeDot("the relay spoke out of turn before the message body");
        }
        // lettre ends the last line itself, together with the dot.
        let message = message.strip_suffix(b"\r\n").unwrap_or(message);
        let deadline = Mutex::new(Instant::now() + block());
        let until = || *deadline.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = message.chunks(BLOCK);
        let wire = self.wire.clone();
        // lettre asks for the next block once the last was flushed, and writes the dot when there is none left.
        let blocks = std::iter::from_fn(|| {
            let next = blocks.next();
            let limit = if next.is_some() {
                block()
            } else {
                fail_point("send.after_body");
                crossing.pass();
                wire.expect_dot();
                dot()
            };
            *deadline.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + limit;
            next
        });
        let mut sending = Box::pin(self.smtp.message_iter(blocks));
        let mut alarm = Box::pin(sleep_until(until()));
        let answer = std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = sending.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            // The next block, or the dot, has a deadline of its own.
            if alarm.deadline() != until() {
                alarm.as_mut().reset(until());
            }
            alarm.as_mut().poll(cx).map(|()| None)
        })
        .await;
        drop(sending);
        fail_point("send.after_reply");
        match (answer, crossing.is_passed()) {
            (Some(answer), true) => match replied(&answer) {
                Some(reply) if matches!(reply.code / 100, 2 | 4 | 5) => {
                    Sent::Answered(reply, answer.ok().as_ref().and_then(provider_message_id))
                }
                _ => Sent::Unknown("no clear answer at the end of the message"),
            },
            (None, true) => Sent::Unknown("no answer at the end of the message in time"),
            (Some(_), false) => Sent::BeforeDot("connection lost at the message body"),
            (None, false) => Sent::BeforeDot("the message body was not taken in time"),
        }
    }

    /// Whether the connection may carry another message: it is still there, and it is ready.
    pub(super) async fn is_ready(&mut self, target: &Target) -> bool {
        if !self.wire.is_quiet().await {
            return false;
        }
        let limit = target.clock.real(SHORTLY);
        let fresh = target.clock.now().since(self.used_at) < Duration::from_secs(1);
        let proof = match (self.needs_reset, fresh) {
            (true, _) => self.command(Phase::Mail, Rset, limit).await,
            (false, true) => return true,
            (false, false) => self.command(Phase::Mail, Noop, limit).await,
        };
        self.needs_reset = false;
        proof.is_ok_and(|reply| reply.is_positive())
    }

    /// Whether nothing unasked for has been read.
    pub(super) fn is_in_step(&self) -> bool {
        !self.wire.has_unread()
    }

    /// The stream below.
    pub(super) const fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Says good-bye; what comes back does not matter.
    pub(super) async fn farewell(&mut self, clock: &dyn Clock) {
        let _ = timeout(clock.real(SHORTLY), self.smtp.command(Quit)).await;
    }

    /// Says good-bye and closes.
    pub(super) async fn quit(mut self, clock: &dyn Clock) {
        self.farewell(clock).await;
    }
}

impl Offers {
    /// Reads the lines of the reply to EHLO.
    pub(super) fn of(lines: &[String]) -> Self {
        let mut offers = Self::default();
        for line in lines.iter().skip(1) {
            // Some relays still write AUTH=LOGIN.
            let line = line.to_ascii_uppercase().replace('=', " ");
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("STARTTLS") => offers.starttls = true,
                Some("SMTPUTF8") => offers.smtputf8 = true,
                Some("SIZE") => offers.size = Some(words.next().and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0)),
                Some("AUTH") => offers.mechanisms.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        offers
    }

    pub(super) fn has_mechanism(&self, name: &str) -> bool {
        self.mechanisms.iter().any(|mechanism| mechanism == name)
    }
}

/// The clear reply, if one came.
fn replied(answer: &Result<Response, Error>) -> Option<Reply> {
    match answer {
        Ok(response) => Some(Reply::of(response)),
        Err(err) => Reply::of_error(err),
    }
}
