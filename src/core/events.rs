//! Which rows of `events` follow from changes: what each delivery tells, and once that a notification is completed.
//! How they are written is the stores' business, how they look on the wire the gateway's.

use std::collections::BTreeMap;

use crate::delivery::{Change, EventRecord, EventType, Flags};
use crate::ids::NotificationId;
use crate::state::State;
use crate::status::Status;
use crate::time::Timestamp;
use crate::words::Reason;

/// A notification of which nothing is open any more.
///
/// It is told each time `open` turns false: once, unless somebody has a delivery sent again after it ended; then once
/// more when that has ended too. Evidence that moves an ended delivery (`unknown` to `delivered`) opens nothing, so it
/// completes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The change that ended the last delivery that was open.
    pub last: &'a Change,
    /// How the notification stands.
    pub status: Status,
    /// The sum of its deliveries' versions.
    pub version: i32,
}

impl Completion<'_> {
    /// Whether its content goes in the same transaction (S-214).
    pub const fn erases_content(&self) -> bool {
        self.last.before.flags.has(Flags::SENSITIVE)
    }

    /// Which notification.
    pub fn notification(&self) -> NotificationId {
        self.last.after.id.notification()
    }
}

/// The deliveries that a batch of changes ended, by what has to be asked to know whether a notification is completed.
#[derive(Debug, Default)]
pub struct Ended<'a> {
    /// The only deliveries of their notifications: these are completed.
    pub alone: Vec<Completion<'a>>,
    /// The last change of each notification that may have others.
    pub among_others: BTreeMap<NotificationId, &'a Change>,
}

impl<'a> Ended<'a> {
    /// Looks through changes that were written.
    pub fn of(changes: impl IntoIterator<Item = &'a Change>) -> Self {
        let mut ended = Self::default();
        for change in changes {
            if !change.before.state.is_open() || change.after.state.is_open() {
                continue;
            }
            if change.before.siblings == 1 {
                ended.alone.push(Completion { last: change, status: Status::of([change.after.state]), version: change.after.version });
            } else {
                ended.among_others.insert(change.after.id.notification(), change);
            }
        }
        ended
    }
}

/// The completion of a notification with several deliveries, given how all of them stand now; `None` while one is open.
pub fn completion<'a>(last: &'a Change, deliveries: &[(State, i32)]) -> Option<Completion<'a>> {
    if deliveries.is_empty() || deliveries.iter().any(|(state, _)| state.is_open()) {
        return None;
    }
    let version = deliveries.iter().fold(0_i32, |sum, (_, version)| sum.saturating_add(*version));
    Some(Completion { last, status: Status::of(deliveries.iter().map(|(state, _)| *state)), version })
}

/// One row of `events`; what it does not hold itself stands in `change.after`.
#[derive(Debug, Clone, Copy)]
pub struct EventRow<'a> {
    /// The change that it tells of.
    pub change: &'a Change,
    /// Its type.
    pub kind: EventType,
    /// `seq`: the delivery's version, or the notification's.
    pub version: i32,
    /// From where.
    pub previous: Option<State>,
    /// The state, or the status of a notification.
    pub state: &'static str,
    /// Why.
    pub reason: Option<Reason>,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// The provider's SMTP reply code.
    pub smtp_code: Option<i16>,
    /// The enhanced status code.
    pub enhanced_code: Option<&'a str>,
}

/// The rows to write for changes, in their order, and for what they completed.
pub fn rows<'a>(changes: impl IntoIterator<Item = &'a Change>, completed: &[Completion<'a>], now: Timestamp) -> Vec<EventRow<'a>> {
    let told = |change: &'a Change| change.events.iter().map(move |event| of_change(change, event));
    changes.into_iter().flat_map(told).chain(completed.iter().map(|completion| of_completion(completion, now))).collect()
}

fn of_change<'a>(change: &'a Change, event: &'a EventRecord) -> EventRow<'a> {
    EventRow {
        change,
        kind: event.kind,
        version: change.after.version,
        previous: Some(change.before.state),
        state: change.after.state.as_str(),
        reason: change.after.reason,
        occurred_at: event.occurred_at,
        smtp_code: event.smtp_code,
        enhanced_code: event.enhanced_code.as_deref(),
    }
}

fn of_completion<'a>(completion: &Completion<'a>, now: Timestamp) -> EventRow<'a> {
    EventRow {
        change: completion.last,
        kind: EventType::Completed,
        version: completion.version,
        previous: None,
        state: completion.status.as_str(),
        reason: None,
        occurred_at: now,
        smtp_code: None,
        enhanced_code: None,
    }
}
