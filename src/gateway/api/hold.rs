//! Holds a call open until what it asks for is there (`wait`). A held call has no connection to the store; it looks at
//! every hint of this process, and every second for what other processes commit.

use std::time::{Duration, Instant};

use tidings_core::time::parse_duration;
use tokio::sync::Semaphore;

use super::Api;
use super::problem::{Code, Problem};
use super::query::Query;

/// The longest `wait`: proxies give up on silent connections after a minute.
const LONGEST: Duration = Duration::from_secs(60);
/// How often a held call looks without a hint.
const POLL: Duration = Duration::from_secs(1);
/// How soon it looks again after a hint that came to nothing: what was committed may show a moment later.
const SECOND_LOOK: Duration = Duration::from_millis(100);
/// The least time between two looks: hints may come with every commit.
const BREATH: Duration = Duration::from_millis(20);
/// Calls that may be held at once; more are answered at once.
const PLACES: usize = 1_000;

/// Room for held calls.
pub(super) struct Places(Semaphore);

impl Places {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(PLACES))
    }
}

/// The parameter `wait`; zero where there is none.
///
/// # Errors
/// `invalid_field` for what is no duration up to a minute.
pub(super) fn patience(query: &Query<'_>) -> Result<Duration, Problem> {
    let Some(text) = query.get("wait") else { return Ok(Duration::ZERO) };
    let parsed = parse_duration(text).ok().filter(|patience| *patience <= LONGEST);
    parsed.ok_or_else(|| Problem::new(Code::InvalidField, "the parameter wait must be a duration from 0s to 60s, such as \"20s\""))
}

/// Asks until the answer is not empty, `patience` is over or the process stops; the last answer counts, empty or not.
///
/// # Errors
/// Those of the question.
pub(super) async fn until_there<T>(
    api: &Api,
    patience: Duration,
    is_empty: impl Fn(&T) -> bool,
    ask: impl AsyncFn() -> Result<T, Problem>,
) -> Result<T, Problem> {
    let deadline = Instant::now() + patience;
    let place = api.places.0.try_acquire();
    let mut poll = POLL;
    loop {
        // Before the question: what is committed while it is on its way is not missed.
        let mut arrival = std::pin::pin!(api.app.wake.arrival());
        arrival.as_mut().enable();
        let answer = ask().await?;
        let left = deadline.saturating_duration_since(Instant::now());
        let is_stopping = api.app.readiness.stopping.load(std::sync::atomic::Ordering::Relaxed);
        if !is_empty(&answer) || left.is_zero() || place.is_err() || is_stopping {
            return Ok(answer);
        }
        let is_hinted = tokio::time::timeout(left.min(poll), arrival).await.is_ok();
        poll = if is_hinted { SECOND_LOOK } else { POLL };
        if is_hinted {
            tokio::time::sleep(left.min(BREATH)).await;
        }
    }
}
