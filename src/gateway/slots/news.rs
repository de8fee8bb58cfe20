//! Tells in the feed that an account was parked or has recovered, as this process sees it (`account.parked`,
//! `account.recovered`). When that is so is decided in `slots`; sending waits for nothing in here.
//!
//! It is told as well as can be: while the store cannot be written it is tried again for some minutes, of much news the
//! oldest is given up, and what is not told when the process ends is gone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_core::ids::InstanceId;
use tidings_core::operational::{Health, of_account};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::keeper::chain;

/// News that waits at most.
const MOST: usize = 64;
/// How often one is tried: with the pauses between, for about five minutes.
const TRIES: u32 = 12;
/// A write that takes longer is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How an account is from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Its name.
    pub account: String,
    /// How it is.
    pub health: Health,
    /// Since when.
    pub at: Timestamp,
}

/// News in the order in which it happened, until it is told.
#[derive(Default)]
pub struct AccountNews {
    waiting: Mutex<VecDeque<News>>,
    there: Notify,
}

impl AccountNews {
    /// Adds some; where there is too much the oldest goes.
    pub(super) fn put(&self, news: News) {
        let mut waiting = self.lock();
        if waiting.len() >= MOST
            && let Some(oldest) = waiting.pop_front()
        {
            given_up(&oldest);
        }
        waiting.push_back(news);
        drop(waiting);
        self.there.notify_one();
    }

    /// Takes the oldest.
    pub fn take(&self) -> Option<News> {
        self.lock().pop_front()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<News>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells what comes, until `stop`.
pub async fn run(app: Arc<App>, instance: InstanceId, stop: CancellationToken) {
    loop {
        while let Some(news) = app.slots.news.take() {
            tokio::select! {
                () = tell(&app, instance, &news) => {}
                () = stop.cancelled() => return,
            }
        }
        tokio::select! {
            () = app.slots.news.there.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn tell(app: &App, instance: InstanceId, news: &News) {
    let told = [of_account(&news.account, news.health, instance, news.at)];
    let mut pause = FIRST_PAUSE;
    for left in (0..TRIES).rev() {
        // Nothing is written into a store that is being copied.
        if !app.pauses.is_frozen() {
            match tokio::time::timeout(PATIENCE, app.store.feed().tell(&told)).await {
                Ok(Ok(())) => return app.wake.arrived(),
                Ok(Err(error @ (StoreError::Refused(_) | StoreError::Unreadable(_)))) => {
                    tracing::warn!(account = news.account, error = %chain(&error), "news of an account cannot be told");
                    return;
                }
                // It may be there all the same: told twice it has the same id.
                Ok(Err(error)) => tracing::debug!(error = %chain(&error), "news of an account could not be told; it is tried again"),
                Err(_) => tracing::debug!("news of an account could not be told in time; it is tried again"),
            }
        }
        if left > 0 {
            app.clock.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    given_up(news);
}

fn given_up(news: &News) {
    tracing::warn!(account = news.account, news = ?news.health, "news of an account is not told in the feed");
}
