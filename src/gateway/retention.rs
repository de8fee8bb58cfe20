//! Erases what has been kept for long enough, once an hour in one of the processes, a chunk at a time with pauses for the
//! live path (S-200, S-215). What is due is decided in core. A run that is cut off goes on in the next hour.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_core::ids::{InstanceId, NotificationId};
use tidings_core::retention::{Kept, Retention};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::keeper::chain;

/// How often it is seen whether a run is due.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// Each window has one run, in whichever process comes first.
const WINDOW: Duration = Duration::from_secs(3_600);
/// Once in this window all addresses that are kept are looked at, in the other runs those that have just come due: rows
/// from which the address is gone stay for months, and would be read again each hour.
const WHOLE_WINDOW: Duration = Duration::from_secs(86_400);
/// How far before the youngest that can be due a run looks: most settle soon after they are accepted, and a run may be missed.
const LOOK_BACK: Duration = Duration::from_secs(4 * 3_600);
/// The least between two chunks.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
/// A store that answers slowly has others to serve: the longest between two chunks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a lock that was not given is asked for again in one run.
const TRIES: u32 = 5;
const JOB: &str = "retention";
const WHOLE_JOB: &str = "retention_whole";

/// Runs until it is stopped.
pub async fn run(app: Arc<App>, instance: InstanceId, stop: CancellationToken) {
    let work = async {
        loop {
            if let Err(error) = run_if_due(&app, instance).await {
                told(&error);
            }
            app.clock.sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}

fn told(error: &StoreError) {
    tracing::warn!(error = %chain(error), "what was kept for long enough could not be erased; it is tried again");
}

/// One run, unless the present window has had one.
async fn run_if_due(app: &App, instance: InstanceId) -> Result<(), StoreError> {
    // What moves must stay as it is exported.
    if app.pauses.is_frozen() {
        return Ok(());
    }
    let (now, keeping) = (app.now(), app.store.keeping());
    if !keeping.take_run(JOB, window(now, WINDOW), instance, now).await? {
        return Ok(());
    }
    let setup = app.setup();
    let keep = &setup.settings.retention;
    let is_whole = keeping.take_run(WHOLE_JOB, window(now, WHOLE_WINDOW), instance, now).await?;
    let destinations_from = if is_whole { None } else { Some(recently_due(keep, now)) };
    // What fails does not keep the others from their turn.
    let count = |done: Result<u64, StoreError>| done.inspect_err(told).unwrap_or_default();
    let content = count(erase(app, keep, Kept::Content, None).await);
    let destinations = count(erase(app, keep, Kept::Destinations, destinations_from).await);
    let records = count(erase(app, keep, Kept::Records, None).await);
    let events = count(purge_events(app, keep).await);
    let others = count(purge_rest(app, keep).await);
    give_back(app, keep).await?;
    if content + destinations + records + events + others > 0 {
        tracing::info!(content, destinations, records, events, others, "what was kept for long enough was erased");
    }
    Ok(())
}

/// The beginning of the window that holds an instant.
fn window(now: Timestamp, length: Duration) -> Timestamp {
    let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_micros().div_euclid(1_000).div_euclid(length) * length)
}

/// Where a walk begins that looks only at what has just come due.
fn recently_due(keep: &Retention, now: Timestamp) -> NotificationId {
    let youngest = keep.youngest(Kept::Destinations, now);
    NotificationId::from_uuid(NotificationId::first_at(youngest.minus(LOOK_BACK)))
}

/// Walks over all that may be due and erases what is.
async fn erase(app: &App, keep: &Retention, kept: Kept, from: Option<NotificationId>) -> Result<u64, StoreError> {
    let keeping = app.store.keeping();
    let (mut after, mut erased) = (from, 0);
    loop {
        let began = Instant::now();
        let due = keeping.due(kept, keep, after, app.now()).await?;
        pause(app, began).await;
        for chunk in due.chunks(keeping.rows_at_once()) {
            let began = Instant::now();
            erased += keeping.erase(kept, keep, chunk, app.now()).await?;
            pause(app, began).await;
        }
        after = due.next;
        if after.is_none() {
            return Ok(erased);
        }
    }
}

/// As long as the chunk took that began then: at most half the time goes into this, and less where the store is busy.
async fn pause(app: &App, began: Instant) {
    app.clock.sleep(began.elapsed().clamp(LEAST_PAUSE, LONGEST_PAUSE)).await;
}

async fn purge_events(app: &App, keep: &Retention) -> Result<u64, StoreError> {
    let (mut purged, mut refused) = (0, 0);
    loop {
        let (began, before) = (Instant::now(), app.now().minus(keep.events));
        match app.store.keeping().purge_events(before).await {
            Ok(0) => return Ok(purged),
            Ok(some) => purged += some,
            // Readers or writers were at it: nobody is to wait behind us for long.
            Err(StoreError::Busy(_)) if refused < TRIES => refused += 1,
            Err(error) => return Err(error),
        }
        pause(app, began).await;
    }
}

async fn purge_rest(app: &App, keep: &Retention) -> Result<u64, StoreError> {
    let mut purged = 0;
    loop {
        let began = Instant::now();
        match app.store.keeping().purge_rest(keep, app.now()).await? {
            0 => return Ok(purged),
            some => purged += some,
        }
        pause(app, began).await;
    }
}

async fn give_back(app: &App, keep: &Retention) -> Result<(), StoreError> {
    loop {
        let began = Instant::now();
        if !app.store.keeping().give_back(keep, app.now()).await? {
            return Ok(());
        }
        pause(app, began).await;
    }
}
