//! `[retention]`: how long what is kept is kept. When that is over is decided in `tidings_core::retention`.

use std::time::Duration;

use tidings_core::retention::Retention;

use super::table::Table;

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn read(table: &Table<'_>) -> Retention {
    let usual = Retention::default();
    let at_least = |name: &str, least: Duration, why: &str, usual: Duration| {
        let setting = table.get(name);
        let kept = setting.duration();
        if kept.is_some_and(|kept| kept < least) {
            setting.fault(why.to_owned());
        }
        kept.unwrap_or(usual)
    };
    let content = at_least("content", Duration::ZERO, "", usual.content);
    let content_dead = at_least("content_dead", content, "may not be shorter than retention.content", usual.content_dead);
    Retention {
        content,
        content_dead,
        events: at_least("events", DAY, "may be 1d at least: readers of the feed need time to come back", usual.events),
    }
}
