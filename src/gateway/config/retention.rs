//! `[retention]`: how long what is kept is kept. When that is over is decided in `tidings_core::retention`.

use std::time::Duration;

use tidings_core::key_expiry::KEY_RETENTION;
use tidings_core::retention::{LEAST_METADATA, Retention};

use super::table::Table;

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn read(table: &Table<'_>) -> Retention {
    let usual = Retention::default();
    let at_least = |name: &str, usual: Duration, bounds: &[(Duration, &str)]| {
        let setting = table.get(name);
        let kept = setting.duration();
        if let Some((_, why)) = bounds.iter().find(|(least, _)| kept.is_some_and(|kept| kept < *least)) {
            setting.fault((*why).to_owned());
        }
        kept.unwrap_or(usual)
    };
    let content = at_least("content", usual.content, &[]);
    let content_dead = at_least("content_dead", usual.content_dead, &[(content, "may not be shorter than retention.content")]);
    let destination = at_least(
        "destination",
        usual.destination,
        &[
            (KEY_RETENTION, "may be 30d at least: until the key is free, the answer to a repeated request repeats the address"),
            (content_dead, "may not be shorter than retention.content_dead: without its address content tells nobody anything"),
        ],
    );
    let events = at_least("events", usual.events, &[(DAY, "may be 1d at least: readers of the feed need time to come back")]);
    let metadata = at_least(
        "metadata",
        usual.metadata,
        &[
            (LEAST_METADATA, "may be 33d at least: bounces come late, and are then matched with their record"),
            (destination, "may not be shorter than retention.destination"),
            (events, "may not be shorter than retention.events: an event is told with the words of its record"),
        ],
    );
    Retention { content, content_dead, destination, metadata, events }
}
