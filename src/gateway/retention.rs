//! Erases what has been kept for long enough, once an hour in one of the processes, a chunk at a time with pauses for the
//! live path (S-200, S-215). What is due is decided in core. A run that is cut off goes on in the next hour.

use std::sync::Arc;
use std::time::Duration;

use tidings_core::ids::InstanceId;
use tidings_core::retention::Retention;
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::keeper::chain;

/// How often it is seen whether a run is due.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// Each window has one run, in whichever process comes first.
const WINDOW: Duration = Duration::from_secs(3_600);
/// Between two chunks.
const PAUSE: Duration = Duration::from_millis(50);
const JOB: &str = "retention";

/// Runs until it is stopped.
pub async fn run(app: Arc<App>, instance: InstanceId, stop: CancellationToken) {
    let work = async {
        loop {
            if let Err(error) = run_if_due(&app, instance).await {
                tracing::warn!(error = %chain(&error), "what was kept for long enough could not be erased; it is tried again");
            }
            app.clock.sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}

/// One run, unless the present window has had one.
async fn run_if_due(app: &App, instance: InstanceId) -> Result<(), StoreError> {
    let now = app.now();
    if !app.store.keeping().take_run(JOB, window(now), instance, now).await? {
        return Ok(());
    }
    let kept = app.setup().settings.retention;
    let content = erase_content(app, &kept).await?;
    let events = purge_events(app, &kept).await?;
    while app.store.keeping().give_back().await? {
        app.clock.sleep(PAUSE).await;
    }
    if content > 0 || events > 0 {
        tracing::info!(content, events, "what was kept for long enough was erased");
    }
    Ok(())
}

/// The beginning of the window that holds an instant.
fn window(now: Timestamp) -> Timestamp {
    let length = i64::try_from(WINDOW.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_micros().div_euclid(1_000).div_euclid(length) * length)
}

async fn erase_content(app: &App, kept: &Retention) -> Result<u64, StoreError> {
    let (mut after, mut erased) = (None, 0);
    loop {
        let walked = app.store.keeping().erase_content(kept, after, app.now()).await?;
        erased += walked.erased;
        after = walked.next;
        if after.is_none() {
            return Ok(erased);
        }
        app.clock.sleep(PAUSE).await;
    }
}

async fn purge_events(app: &App, kept: &Retention) -> Result<u64, StoreError> {
    let mut purged = 0;
    loop {
        let before = app.now().minus(kept.events);
        match app.store.keeping().purge_events(before).await? {
            0 => return Ok(purged),
            some => purged += some,
        }
        app.clock.sleep(PAUSE).await;
    }
}
