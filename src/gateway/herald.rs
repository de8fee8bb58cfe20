//! Passes hints on to the processes that claim, where this one does not: it accepts, or moves rows whose time has come, and
//! others carry them. Hints only; their polling is what guarantees progress (S-024).

use std::sync::Arc;
use std::time::Duration;

use tidings_core::time::Clock as _;
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// How long it sleeps where nothing is due and no hint comes.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Runs until it is stopped: also while the process is on its way down, as it still takes requests then.
pub async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        let now = app.clock.now();
        let (due, next) = app.wake.take_due(now);
        app.wake.others(&due);
        let wait = next.map_or(LONGEST_SLEEP, |at| app.clock.real(at.since(now)).clamp(Duration::from_millis(1), LONGEST_SLEEP));
        tokio::select! {
            () = app.wake.hinted() => {}
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return,
        }
    }
}
