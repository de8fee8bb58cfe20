//! One batch, one transaction: finishes first, so that the claim sees what they freed, then claims, accepts, sandbox.
//! It is tried as a whole first. Where an item is to blame it is written again with a savepoint for each part, and a part
//! that fails for an item of its own is halved down to that item (S-059). What fails for the store takes the whole
//! transaction with it, and a lost race starts it over from fresh reads (S-027).

use std::ops::Range;
use std::time::Duration;

use tidings_core::crash::fail_point;
use tidings_core::policy::Rules;
use tidings_core::store::{StoreError, WriteBatch, WriteResults};
use tidings_core::time::Timestamp;

use crate::error::{blames_an_item, copy_of};
use crate::writer::Writer;
use crate::{SqliteStore, accept, claim, finish, sandbox};

/// How often a batch that lost a race is written again.
const REPEATS: u32 = 3;

/// What the connection waits for a lock before it says busy is long; this only keeps two that collide from marching in step.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn commit(store: &SqliteStore, rules: &Rules, batch: &WriteBatch, now: Timestamp) -> WriteResults {
    let (mut repeats, mut in_parts) = (0, false);
    loop {
        match commit_once(store, rules, batch, in_parts, now).await {
            Ok(results) => return results,
            Err(err) if !in_parts && blames_an_item(&err) => in_parts = true,
            Err(StoreError::Busy(_)) if repeats < REPEATS => {
                repeats += 1;
                tokio::time::sleep(PAUSE * repeats).await;
            }
            Err(err) => return failed(batch, &err),
        }
    }
}

async fn commit_once(
    store: &SqliteStore,
    rules: &Rules,
    batch: &WriteBatch,
    in_parts: bool,
    now: Timestamp,
) -> Result<WriteResults, StoreError> {
    let mut writer = store.writer().await?;
    if in_parts {
        writer.begin().await?
    } else {
        writer.begin_whole().await?
    }
    let written = write_all(&mut writer, rules, batch, now).await;
    let results = writer.end(written).await?;
    if !batch.accept.is_empty() {
        fail_point("accept.after_commit");
    }
    if has_claimed(&results) {
        fail_point("claim.after_commit");
    }
    if !batch.finish.is_empty() {
        fail_point("finish.after_commit");
    }
    Ok(results)
}

fn has_claimed(results: &WriteResults) -> bool {
    results.claim.as_ref().is_some_and(|claimed| claimed.as_ref().is_ok_and(|claimed| !claimed.dispatched.is_empty()))
}

async fn write_all(writer: &mut Writer, rules: &Rules, batch: &WriteBatch, now: Timestamp) -> Result<WriteResults, StoreError> {
    let mut results = WriteResults::default();
    if !batch.finish.is_empty() {
        results.finish = finish::finish(writer, rules, &batch.finish, now).await?;
        fail_point("finish.before_commit");
    }
    if let Some(plan) = &batch.claim {
        writer.savepoint().await?;
        let claimed = claim::claim(writer.connection(), rules, plan, now).await;
        results.claim = Some(end_part(writer, claimed).await?);
        if has_claimed(&results) {
            fail_point("claim.before_commit");
        }
    }
    if !batch.accept.is_empty() {
        results.accept = accept::accept(writer, &batch.accept, now).await?;
        fail_point("accept.before_commit");
    }
    if !batch.sandbox.is_empty() {
        results.sandbox = sandbox::add(writer, &batch.sandbox).await?;
    }
    Ok(results)
}

/// Ends the savepoint of a part. The outer error takes the transaction with it, the inner one only the part.
pub(crate) async fn end_part<T>(writer: &mut Writer, part: Result<T, StoreError>) -> Result<Result<T, StoreError>, StoreError> {
    match part {
        Ok(written) => {
            writer.keep_part().await?;
            Ok(Ok(written))
        }
        Err(err) if writer.has_savepoints() && blames_an_item(&err) => {
            writer.undo_part().await?;
            Ok(Err(err))
        }
        Err(err) => Err(err),
    }
}

/// The ranges of a batch that are still to be written.
pub(crate) struct Parts(Vec<Range<usize>>);

impl Parts {
    /// The whole batch in one.
    pub(crate) fn of(len: usize) -> Self {
        Self(std::iter::once(0..len).filter(|all| !all.is_empty()).collect())
    }

    /// The next range.
    pub(crate) fn next(&mut self) -> Option<Range<usize>> {
        self.0.pop()
    }

    /// Puts back the halves of a range that failed; false where it is one item, which is then to blame.
    pub(crate) fn halve(&mut self, part: &Range<usize>) -> bool {
        if part.len() < 2 {
            return false;
        }
        let middle = part.start + part.len() / 2;
        self.0.push(middle..part.end);
        self.0.push(part.start..middle);
        true
    }
}

fn failed(batch: &WriteBatch, err: &StoreError) -> WriteResults {
    WriteResults {
        accept: batch.accept.iter().map(|_| Err(copy_of(err))).collect(),
        finish: batch.finish.iter().map(|_| Err(copy_of(err))).collect(),
        claim: batch.claim.as_ref().map(|_| Err(copy_of(err))),
        sandbox: batch.sandbox.iter().map(|_| Err(copy_of(err))).collect(),
    }
}
