//! One message over one connection, MAIL to the reply to its dot, and what came of it (S-049, S-050).
//! Before the dot everything is certainly not taken; after it only a clear reply says anything.

use lettre::Address;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::MailParameter;
use tidings_core::adapter::Outgoing;
use tidings_core::outcome::{Outcome, Refusal, RefusedCopy, Report};
use tidings_core::words::{Class, Reason};

use super::connection::{Connection, Sent};
use super::letter::Letter;
use super::opening::Target;
use super::reply::Reply;
use super::verdict::{Phase, Situation, refused, unreachable};

/// How a transaction ended.
pub(super) enum Ended {
    /// The call is over.
    Done {
        report: Report,
        /// Whether the connection may carry another message.
        reusable: bool,
    },
    /// The connection was dead before MAIL was accepted: nothing has happened.
    Stale,
}

/// Why a transaction stopped before the dot.
struct Stop {
    report: Report,
    reusable: bool,
}

/// The connection is of no use any more.
impl From<Report> for Stop {
    fn from(report: Report) -> Self {
        Self { report, reusable: false }
    }
}

/// Sends the letter. A connection that `was_kept` from an earlier call may turn out to be stale.
pub(super) async fn deliver(connection: &mut Connection, was_kept: bool, letter: Letter, outgoing: &Outgoing, target: &Target) -> Ended {
    let mut transaction = Transaction { letter, outgoing, target };
    connection.messages += 1;
    match transaction.mail(connection).await {
        Ok(()) => {}
        Err(stop) if was_kept && !stop.reusable => return Ended::Stale,
        Err(Stop { report, reusable }) => return Ended::Done { report, reusable },
    }
    let ended = transaction.carry_on(connection).await;
    let (report, reusable) = ended.unwrap_or_else(|Stop { report, reusable }| (report, reusable));
    Ended::Done { report: Report { dead_copies: transaction.letter.dead, ..report }, reusable }
}

struct Transaction<'a> {
    letter: Letter,
    outgoing: &'a Outgoing,
    target: &'a Target,
}

impl Transaction<'_> {
    async fn mail(&self, connection: &mut Connection) -> Result<(), Stop> {
        let size = self.letter.message.len();
        let mut parameters = Vec::new();
        match connection.offers.size {
            Some(Some(limit)) if limit < size as u64 => return Err(too_large()),
            Some(_) => parameters.push(MailParameter::Size(size)),
            None => {}
        }
        if self.letter.is_utf8 {
            parameters.push(MailParameter::SmtpUtfEight);
        }
        let command = Mail::new(Some(address(&self.letter.sender)), parameters);
        let reply = connection.command(Phase::Mail, command, self.command_limit()).await?;
        if reply.is_positive() {
            return Ok(());
        }
        let mut stop = self.refused(connection, &reply, Phase::Mail);
        // Some relays count the messages of a connection and refuse the next one with any 4yz.
        stop.reusable &= !(reply.code / 100 == 4 && reply.says(&["connection", "session"]));
        Err(stop)
    }

    async fn carry_on(&mut self, connection: &mut Connection) -> Result<(Report, bool), Stop> {
        let accepted_copies = self.recipients(connection).await?;
        let block = || self.target.limit(self.target.settings.timeouts.data, self.outgoing.expires_at);
        let reply = connection.command(Phase::Data, Data, block()).await?;
        if reply.code != 354 {
            return Err(self.refused(connection, &reply, Phase::Data));
        }
        let dot = || self.target.limit(self.target.settings.timeouts.dot.min(self.outgoing.patience), self.outgoing.expires_at);
        match connection.message(&self.letter.message, block, dot, &self.outgoing.crossing).await {
            Sent::Answered(reply, message_id) if reply.is_positive() => {
                let refused_copies = std::mem::take(&mut self.letter.refused);
                let accepted_copies = if refused_copies.is_empty() { Vec::new() } else { accepted_copies };
                let report = Report::new(Outcome::Accepted { message_id, refused_copies }).with_code(reply.record());
                Ok((Report { accepted_copies, ..report }, connection.is_in_step()))
            }
            Sent::Answered(reply, _) => Err(self.refused(connection, &reply, Phase::Dot)),
            Sent::Unknown(detail) => Err(Report::new(Outcome::Ambiguous).with_detail(detail).into()),
            Sent::BeforeDot(detail) => Err(unreachable(detail).into()),
        }
    }

    /// RCPT for everybody: without `to` nobody gets the message, a refused copy stays behind. Returns the accepted copies.
    async fn recipients(&mut self, connection: &mut Connection) -> Result<Vec<String>, Stop> {
        let mut accepted = Vec::new();
        let recipients = std::mem::take(&mut self.letter.recipients);
        for (position, recipient) in recipients.iter().enumerate() {
            let command = Rcpt::new(Address::new_dangerous(recipient.local_part(), recipient.domain()), Vec::new());
            let reply = connection.command(Phase::Rcpt, command, self.command_limit()).await?;
            let is_copy = position > 0;
            match reply.is_positive() {
                true if is_copy => accepted.push(recipient.as_str().to_owned()),
                true => {}
                false if is_copy && reply.code != 421 => {
                    let address = recipient.as_str().to_owned();
                    if is_dead(&reply, self.outgoing.class) {
                        self.letter.dead.push(address.clone());
                    }
                    self.letter.refused.push(RefusedCopy { address, code: reply.record() });
                }
                false => return Err(self.refused(connection, &reply, Phase::Rcpt)),
            }
        }
        self.letter.recipients = recipients;
        Ok(accepted)
    }

    fn refused(&self, connection: &mut Connection, reply: &Reply, phase: Phase) -> Stop {
        connection.needs_reset = true;
        let alone = self.letter.recipients.len() + self.letter.refused.len() == 1;
        let report = refused(reply, Situation { phase, class: self.outgoing.class, alone });
        // A yes in the wrong place, and 421 anywhere, end the connection.
        let reusable = reply.code != 421 && matches!(reply.code / 100, 4 | 5) && connection.is_in_step();
        Stop { report, reusable }
    }

    fn command_limit(&self) -> std::time::Duration {
        self.target.limit(self.target.settings.timeouts.command, self.outgoing.expires_at)
    }
}

/// Whether the refusal of a copy is certain about its mailbox, as that of `to` would be.
fn is_dead(reply: &Reply, class: Class) -> bool {
    let meant = refused(reply, Situation { phase: Phase::Rcpt, class, alone: false });
    matches!(meant.outcome, Outcome::Refused { by: Refusal::Recipient { hard: true, .. }, .. })
}

fn address(text: &str) -> Address {
    let (local, domain) = text.rsplit_once('@').unwrap_or((text, ""));
    Address::new_dangerous(local, domain)
}

fn too_large() -> Stop {
    let outcome = Outcome::Refused { by: Refusal::Request, reason: Reason::TooLarge };
    Stop { report: Report::new(outcome).with_detail("the message is larger than the relay's SIZE"), reusable: true }
}
