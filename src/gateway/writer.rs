//! The group commit: what arrives during one commit becomes the next one, critical first. No delay is added anywhere.
//! What the commands mean is the store's and core's business; this decides what rides together and how much may queue.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use tidings_core::ids::LaneId;
use tidings_core::judge::ClaimPlan;
use tidings_core::policy::Rules;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::store::{Accepted, Claimed, NewNotification, Store, StoreError, WriteBatch, WriteResults};
use tidings_core::time::{Clock, Timestamp};
use tidings_core::transition::{Finish, Landed};
use tidings_core::words::Class;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use crate::metrics::{Metrics, Part};
use crate::wake::Wake;
use desk::Desk;

mod desk;

/// Rows in one transaction: an accept is two. Enough that the wait for the disk and the ways to the writer and back are
/// shared by many; above this a commit would hold up a critical message.
const BATCH_ROWS: usize = 256;
/// Accepts that may wait; beyond it callers are told to come back (S-091).
const ACCEPT_QUEUE: usize = 4_096;

/// Why a command got no answer from the store.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// More accepts wait than may; nothing happened.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// The process is stopping, or the writer died; it may have happened.
    #[error("the writer has stopped")]
    Stopped,
    /// What the store says.
    #[error(transparent)]
    Store(#[from] StoreError),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// An intent that waits for its commit.
struct Accepting {
    notification: Arc<NewNotification>,
    /// The memory that its body takes, held until it is decided.
    _room: Option<OwnedSemaphorePermit>,
    desk: Desk,
    reply: Reply<Accepted>,
}

/// A claim, and the rules that it was planned with.
struct Claiming {
    plan: ClaimPlan,
    rules: Arc<Rules>,
}

enum Command {
    Accept(Accepting),
    Finish(Box<Finish>, Reply<Landed>),
    Claim(Box<Claiming>, Reply<Claimed>),
    Sandbox(Box<SandboxMessage>, Reply<()>),
}

impl Command {
    fn rows(&self) -> usize {
        match self {
            Self::Accept(accepting) => 1 + accepting.notification.deliveries.len(),
            Self::Finish(..) | Self::Sandbox(..) => 1,
            // The claim itself is short; its limit says how many rows it may write.
            Self::Claim(claiming, _) => claiming.plan.lanes.iter().map(|lane| usize::from(lane.limit)).sum::<usize>() / 2,
        }
    }
}

#[derive(Default)]
struct Queue {
    critical: VecDeque<Command>,
    others: VecDeque<Command>,
    accepts: usize,
    closed: bool,
    /// Writer tasks that still run.
    running: usize,
}

/// Gives commands to the writer task; cheap to clone.
#[derive(Clone)]
pub struct Writer {
    queue: Arc<(Mutex<Queue>, Notify)>,
    /// About how many rows are open: what was counted last, and what was accepted since.
    open_rows: Arc<AtomicI64>,
    /// By which outcomes are judged.
    rules: Arc<ArcSwap<Rules>>,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// Starts the writer tasks, as many as the store can use.
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, rules: Arc<Rules>, wake: Arc<Wake>, metrics: Arc<Metrics>) -> Self {
        let writer = Self { queue: Arc::default(), open_rows: Arc::default(), rules: Arc::new(ArcSwap::new(rules)), metrics };
        for _ in 0..store.committers().max(1) {
            writer.lock().running += 1;
            tokio::spawn(run(writer.clone(), store.clone(), clock.clone(), wake.clone()));
        }
        writer
    }

    /// Commits an intent and wakes its lanes. Both go on when the caller goes away (S-013); `room` is given back when
    /// it is decided.
    ///
    /// # Errors
    /// When it was not taken, or when that is not known.
    pub async fn accept(&self, notification: Arc<NewNotification>, room: Option<OwnedSemaphorePermit>) -> Result<Accepted, WriteError> {
        let is_critical = notification.class == Class::Critical;
        let accept = |reply| Command::Accept(Accepting { notification, _room: room, desk: Desk::here(), reply });
        let since = Instant::now();
        let accepted = self.give(is_critical, accept).await;
        self.metrics.accept_seconds.observe(since.elapsed().as_secs_f64());
        accepted
    }

    /// Commits several intents, in as few commits as it takes. Either all of them wait or none does.
    ///
    /// # Errors
    /// When too many wait already; nothing happened.
    pub fn accept_all(
        &self,
        notifications: Vec<Arc<NewNotification>>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Vec<impl Future<Output = Result<Accepted, WriteError>> + use<>>, WriteError> {
        let (mut answers, last) = (Vec::with_capacity(notifications.len()), notifications.len());
        let mut room = room;
        {
            let mut queue = self.lock();
            if queue.closed {
                return Err(WriteError::Stopped);
            }
            // A batch that is larger than the queue would never be taken.
            if queue.accepts > 0 && queue.accepts + last > ACCEPT_QUEUE {
                return Err(WriteError::Overloaded);
            }
            queue.accepts += last;
            for (place, notification) in notifications.into_iter().enumerate() {
                let (reply, answer) = oneshot::channel();
                let first = notification.class == Class::Critical;
                // The memory is given back with the last of them.
                let room = if place + 1 == last { room.take() } else { None };
                let command = Command::Accept(Accepting { notification, _room: room, desk: Desk::here(), reply });
                if first {
                    queue.critical.push_back(command)
                } else {
                    queue.others.push_back(command)
                }
                answers.push(async move { answer.await.map_err(|_| WriteError::Stopped)?.map_err(WriteError::Store) });
            }
        }
        self.queue.1.notify_one();
        Ok(answers)
    }

    /// About how many rows wait, are sent or are ambiguous.
    pub fn open_rows(&self) -> i64 {
        self.open_rows.load(Ordering::Relaxed)
    }

    /// Says how many rows are open, as the store counts them.
    pub fn count_open(&self, rows: i64) {
        self.open_rows.store(rows, Ordering::Relaxed);
    }

    /// Judges by these rules from now on.
    pub fn go_by(&self, rules: Arc<Rules>) {
        self.rules.store(rules);
    }

    /// Writes an outcome.
    ///
    /// # Errors
    /// When it was not written, or when that is not known.
    pub async fn finish(&self, finish: Finish) -> Result<Landed, WriteError> {
        self.give(true, |reply| Command::Finish(Box::new(finish), reply)).await
    }

    /// Claims what is due, by the rules that the plan was made with.
    ///
    /// # Errors
    /// When it failed; a claim whose commit is unknown is found by the reaper.
    pub async fn claim(&self, plan: ClaimPlan, rules: Arc<Rules>) -> Result<Claimed, WriteError> {
        self.give(true, |reply| Command::Claim(Box::new(Claiming { plan, rules }), reply)).await
    }

    /// Keeps a message of the sandbox.
    ///
    /// # Errors
    /// When it was not kept, or when that is not known.
    pub async fn keep(&self, message: SandboxMessage) -> Result<(), WriteError> {
        self.give(false, |reply| Command::Sandbox(Box::new(message), reply)).await
    }

    /// Takes no more commands; those that wait are still committed.
    pub fn close(&self) {
        self.lock().closed = true;
        self.queue.1.notify_waiters();
        self.queue.1.notify_one();
    }

    /// Returns when everything that waited is committed; call after `close`.
    pub async fn drained(&self) {
        while self.lock().running > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn give<T>(&self, first: bool, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        {
            let mut queue = self.lock();
            if queue.closed {
                return Err(WriteError::Stopped);
            }
            if matches!(command, Command::Accept(..)) {
                if queue.accepts >= ACCEPT_QUEUE {
                    return Err(WriteError::Overloaded);
                }
                queue.accepts += 1;
            }
            if first { queue.critical.push_back(command) } else { queue.others.push_back(command) }
        }
        self.queue.1.notify_one();
        answer.await.map_err(|_| WriteError::Stopped)?.map_err(WriteError::Store)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        // The queue is whole between any two statements: a panic elsewhere does not spoil it.
        self.queue.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What rides in the next commit; `None` when the writer is closed and empty.
    async fn next(&self) -> Option<Vec<Command>> {
        loop {
            let woken = self.queue.1.notified();
            {
                let mut queue = self.lock();
                let taken = take(&mut queue);
                if !taken.is_empty() {
                    if !queue.critical.is_empty() || !queue.others.is_empty() {
                        self.queue.1.notify_one();
                    }
                    return Some(taken);
                }
                if queue.closed {
                    self.queue.1.notify_one();
                    return None;
                }
            }
            woken.await;
        }
    }
}

/// Takes critical commands first and at most one claim, up to the row limit; one command always fits.
fn take(queue: &mut Queue) -> Vec<Command> {
    let (mut taken, mut rows, mut claims) = (Vec::new(), 0, 0);
    loop {
        let from = if queue.critical.is_empty() { &mut queue.others } else { &mut queue.critical };
        let Some(next) = from.front() else { break };
        let is_claim = matches!(next, Command::Claim(..));
        if !taken.is_empty() && (rows + next.rows() > BATCH_ROWS || (is_claim && claims > 0)) {
            break;
        }
        rows += next.rows();
        claims += usize::from(is_claim);
        let Some(next) = from.pop_front() else { break };
        queue.accepts -= usize::from(matches!(next, Command::Accept(..)));
        taken.push(next);
    }
    taken
}

async fn run(writer: Writer, store: Arc<dyn Store>, clock: Arc<dyn Clock>, wake: Arc<Wake>) {
    while let Some(commands) = writer.next().await {
        let (mut batch, mut rules) = (WriteBatch::default(), writer.rules.load_full());
        let (mut accepts, mut finishes, mut claim, mut messages) = (Vec::new(), Vec::new(), None, Vec::new());
        for command in commands {
            match command {
                Command::Accept(accepting) => {
                    batch.accept.push(accepting.notification.clone());
                    accepts.push(accepting);
                }
                Command::Finish(item, reply) => {
                    batch.finish.push(*item);
                    finishes.push(reply);
                }
                Command::Claim(claiming, reply) => {
                    // One commit goes by one set of rules: a claim must not be judged by others than its accounts belong to.
                    rules = claiming.rules;
                    batch.claim = Some(claiming.plan);
                    claim = Some(reply);
                }
                Command::Sandbox(message, reply) => {
                    batch.sandbox.push(*message);
                    messages.push(reply);
                }
            }
        }
        let (sizes, since) = ([("accept", batch.accept.len()), ("finish", batch.finish.len())], Instant::now());
        let results = store.commit(&rules, batch, clock.now()).await;
        writer.metrics.commit_seconds.observe(since.elapsed().as_secs_f64());
        for (part, size) in sizes.into_iter().filter(|(_, size)| *size > 0) {
            writer.metrics.batch_rows.get_or_create(&Part { part }).observe(size as f64);
        }
        let is_told = tells(&results);
        wake_lanes(&wake, &accepts, &results.accept);
        writer.open_rows.fetch_add(new_rows(&accepts, &results.accept), Ordering::Relaxed);
        Desk::hand_over(accepts.into_iter().zip(results.accept).map(|(accepting, result)| (accepting.desk, (accepting.reply, result))));
        if is_told {
            wake.arrived();
        }
        answer(finishes, results.finish);
        answer(claim.into_iter().collect(), results.claim.into_iter().collect());
        answer(messages, results.sandbox);
    }
    writer.lock().running -= 1;
}

fn new_rows(accepts: &[Accepting], results: &[Result<Accepted, StoreError>]) -> i64 {
    let taken = accepts.iter().zip(results).filter(|(_, result)| matches!(result, Ok(Accepted::Taken)));
    taken.map(|(accepting, _)| i64::try_from(accepting.notification.deliveries.len()).unwrap_or_default()).sum()
}

/// Whether something was written that held calls may wait for: a message of the sandbox, or an event.
fn tells(results: &WriteResults) -> bool {
    let has_moved = |landed: &Result<Landed, StoreError>| matches!(landed, Ok(Landed::Moved(..)) | Err(StoreError::CommitUnknown(_)));
    let has_ended = |claim: &Result<Claimed, StoreError>| claim.as_ref().is_ok_and(|claimed| claimed.ended > 0);
    results.sandbox.iter().any(Result::is_ok) || results.finish.iter().any(has_moved) || results.claim.iter().any(has_ended)
}

/// A hint for each lane in which something was written or may have been, at the instant from which it is due.
fn wake_lanes(wake: &Wake, accepts: &[Accepting], results: &[Result<Accepted, StoreError>]) {
    let mut due: Vec<(LaneId, Timestamp)> = Vec::with_capacity(2);
    let written =
        accepts.iter().zip(results).filter(|(_, result)| matches!(result, Ok(Accepted::Taken) | Err(StoreError::CommitUnknown(_))));
    for delivery in written.flat_map(|(accepting, _)| &accepting.notification.deliveries) {
        match due.iter_mut().find(|(lane, _)| *lane == delivery.lane) {
            Some((_, earliest)) => *earliest = delivery.available_at.min(*earliest),
            None => due.push((delivery.lane, delivery.available_at)),
        }
    }
    for (lane, at) in due {
        wake.lane(lane, at);
    }
}

fn answer<T>(replies: Vec<Reply<T>>, results: Vec<Result<T, StoreError>>) {
    for (reply, result) in replies.into_iter().zip(results) {
        // Who has gone away reads the outcome by key.
        let _ = reply.send(result);
    }
}
