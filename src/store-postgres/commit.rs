//! Writing a batch: its parts side by side, each a transaction of its own. A part that fails for its data is split in
//! halves down to the item (S-059); one that lost a race is repeated from fresh reads (S-027).

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_core::judge::ClaimPlan;
use tidings_core::policy::Rules;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::store::{Accepted, Claimed, NewNotification, StoreError, WriteBatch, WriteResults, group_by_key};
use tidings_core::time::Timestamp;
use tidings_core::transition::{Finish, Landed};

use crate::error::{again, is_about_items, is_lock_timeout, is_lost_race, silent_commit};
use crate::{PostgresStore, accept, claim, finish, sandbox};

/// How often a part that lost a race is repeated.
const REPEATS: usize = 3;
/// No answer to a part within this time: the connection is given up. Every statement ends by itself long before.
const PART_LIMIT: Duration = Duration::from_secs(10);
/// How long an accept waits for keys that another transaction is about to commit, all in all (S-006).
const KEY_PATIENCE: Duration = Duration::from_millis(1_800);
/// How long a whole batch does; then its parts are tried and only the ones with such keys go on waiting.
const BATCH_PATIENCE: Duration = Duration::from_millis(400);
/// How long a part of a batch does.
const PART_PATIENCE: Duration = Duration::from_millis(30);

type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Writes a batch; results stand in the order of the items.
pub(crate) async fn commit(store: &PostgresStore, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults {
    let (finish, claim, accept, sandbox) = tokio::join!(
        Box::pin(finish_all(store, rules, &batch.finish, now)),
        Box::pin(claim_all(store, rules, batch.claim.as_ref(), now)),
        Box::pin(accept_all(store, &batch.accept, now)),
        Box::pin(sandbox_all(store, &batch.sandbox)),
    );
    WriteResults { accept, finish, claim, sandbox }
}

async fn finish_all(store: &PostgresStore, rules: &Rules, items: &[Finish], now: Timestamp) -> Vec<Result<Landed, StoreError>> {
    in_parts(items, is_about_items, |part| Box::pin(finish::finish(store, rules, part, now))).await
}

async fn claim_all(store: &PostgresStore, rules: &Rules, plan: Option<&ClaimPlan>, now: Timestamp) -> Option<Result<Claimed, StoreError>> {
    let plan = plan?;
    Some(repeated(|| Box::pin(claim::claim(store, rules, plan, now))).await)
}

async fn sandbox_all(store: &PostgresStore, messages: &[SandboxMessage]) -> Vec<Result<(), StoreError>> {
    in_parts(messages, is_about_items, |part| Box::pin(sandbox::add(store, part))).await
}

async fn accept_all(store: &PostgresStore, items: &[Arc<NewNotification>], now: Timestamp) -> Vec<Result<Accepted, StoreError>> {
    let started = Instant::now();
    let mut results: Vec<Option<Result<Accepted, StoreError>>> = items.iter().map(|_| None).collect();
    let mut round: Vec<usize> = (0..items.len()).collect();
    while !round.is_empty() {
        let batch: Vec<Arc<NewNotification>> = round.iter().map(|index| Arc::clone(&items[*index])).collect();
        let grouped = group_by_key(&batch);
        let first: Vec<Arc<NewNotification>> = grouped.first.iter().map(|place| Arc::clone(&batch[*place])).collect();
        for (place, outcome) in grouped.first.iter().zip(accept_first(store, &first, started, now).await) {
            results[round[*place]] = Some(outcome);
        }
        let mut next = Vec::new();
        for (place, first) in grouped.riders {
            match results[round[first]].as_ref().and_then(|outcome| ride(outcome, &batch[first])) {
                Some(outcome) => results[round[place]] = Some(outcome),
                None => next.push(round[place]),
            }
        }
        round = next;
    }
    // Every item was the first of its key in some round, or rode on one.
    results.into_iter().flatten().collect()
}

/// Accepts items with different keys, in the order of their keys.
async fn accept_first(
    store: &PostgresStore,
    items: &[Arc<NewNotification>],
    started: Instant,
    now: Timestamp,
) -> Vec<Result<Accepted, StoreError>> {
    let divides = |error: &StoreError| is_about_items(error) || is_lock_timeout(error);
    let run = |part| accept_part(store, part, items.len(), started, now);
    let outcomes = in_parts(items, divides, run).await.into_iter().map(Result::flatten);
    outcomes
        .map(|outcome| match outcome {
            Err(error) if is_lock_timeout(&error) => Ok(Accepted::InProgress),
            other => other,
        })
        .collect()
}

fn accept_part<'a>(
    store: &'a PostgresStore,
    part: &'a [Arc<NewNotification>],
    whole: usize,
    started: Instant,
    now: Timestamp,
) -> Running<'a, Vec<Result<Accepted, StoreError>>> {
    Box::pin(accept::accept(store, part, patience(part.len(), whole, started), now))
}

/// What becomes of an item whose key an earlier item of the same batch has; `None` where that one was refused and never
/// held it.
fn ride(outcome: &Result<Accepted, StoreError>, first: &NewNotification) -> Option<Result<Accepted, StoreError>> {
    match outcome {
        Ok(Accepted::Taken) => Some(Ok(Accepted::KeyHeld(first.as_holder()))),
        Ok(other) => Some(Ok(other.clone())),
        Err(error) if is_about_items(error) => None,
        Err(error) => Some(Err(again(error))),
    }
}

/// How long this part of an accept may wait for others' keys.
fn patience(part: usize, whole: usize, started: Instant) -> Duration {
    match (part, whole) {
        (1, 1) => KEY_PATIENCE,
        (1, _) => KEY_PATIENCE.saturating_sub(started.elapsed()).max(PART_PATIENCE),
        (part, whole) if part == whole => BATCH_PATIENCE,
        _ => PART_PATIENCE,
    }
}

/// Runs a batch, and its halves where it fails with an error that `divides`.
pub(crate) async fn in_parts<'a, T, R>(
    items: &'a [T],
    divides: impl Fn(&StoreError) -> bool,
    run: impl Fn(&'a [T]) -> Running<'a, Vec<R>>,
) -> Vec<Result<R, StoreError>> {
    let mut results = Vec::with_capacity(items.len());
    // Parts still to run, the next one last, so that results come in order.
    let mut parts = vec![items];
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        match repeated(|| run(part)).await {
            Ok(outcomes) => results.extend(outcomes.into_iter().map(Ok)),
            Err(error) if part.len() > 1 && divides(&error) => {
                let (left, right) = part.split_at(part.len() / 2);
                parts.extend([right, left]);
            }
            Err(error) => results.extend(part.iter().map(|_| Err(again(&error)))),
        }
    }
    results
}

/// Runs something again that lost a race, after a short random pause.
async fn repeated<'a, T>(run: impl Fn() -> Running<'a, T>) -> Result<T, StoreError> {
    for _ in 0..REPEATS {
        match limited(run()).await {
            Err(error) if is_lost_race(&error) => tokio::time::sleep(pause()).await,
            other => return other,
        }
    }
    limited(run()).await
}

async fn limited<T>(running: Running<'_, T>) -> Result<T, StoreError> {
    tokio::time::timeout(PART_LIMIT, running).await.unwrap_or_else(|_| Err(silent_commit()))
}

/// 10 to 100 ms, so that two that collided do not collide again.
fn pause() -> Duration {
    Duration::from_millis(10 + RandomState::new().hash_one(()) % 91)
}
