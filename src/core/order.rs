//! What an `ordering_key` and a `collapse_key` do to deliveries that are there already: heads that are stuck let their
//! successor pass (S-078), newer work takes the place of older (S-079). Who comes next is the stores' look-up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::delivery::{Change, Delivery, EventRecord, EventType};
use crate::ids::{DeliveryId, TenantId};
use crate::state::{Event, Facts, Next, State};
use crate::store::{NewDelivery, NewNotification};
use crate::time::Timestamp;
use crate::transition;
use crate::words::{Channel, Class, Reason};

/// How long the head of an ordering key may be under way before its successor may pass.
pub const fn patience(class: Class) -> Duration {
    match class {
        Class::Critical => Duration::from_secs(30),
        Class::Transactional | Class::Bulk => Duration::from_secs(15 * 60),
    }
}

/// The least of all patiences: a head that is younger is not stuck.
pub const LEAST_PATIENCE: Duration = patience(Class::Critical);

/// Tells that the successor of this head may pass; `None` while the head is not stuck. It is stuck when its first call
/// lies back for longer than the patience of its class, and it is ambiguous or waits to be tried again.
pub fn skip(head: &Delivery, first_call: Option<Timestamp>, now: Timestamp) -> Option<Change> {
    let is_held_up = head.state == State::Ambiguous || head.state.is_waiting();
    if !is_held_up || first_call.is_none_or(|first| now < first.plus(patience(head.class))) {
        return None;
    }
    let told = EventRecord { kind: EventType::LaneSkipped, occurred_at: now, smtp_code: None, enhanced_code: None };
    Some(beside(head, vec![told], |_| {}))
}

/// What a newer notification with the same `collapse_key` does to an older delivery (row 24): one that waits ends, one
/// that is or may be on its way is not sent again.
pub fn collapse(older: &Delivery, now: Timestamp) -> Option<Change> {
    let facts = Facts {
        unresolved: older.unresolved,
        called: older.attempt_count > 0,
        was_accepted: false,
        channel: older.channel,
        reason: older.reason,
    };
    match older.state.after(Event::Collapsed, &facts) {
        Next::To(_) => transition::stop(older, Reason::Collapsed, now),
        Next::Same if older.state.is_open() && older.no_resend.is_none() => {
            Some(beside(older, Vec::new(), |after| after.no_resend = Some(Reason::Collapsed)))
        }
        Next::Same | Next::Pending | Next::Refused => None,
    }
}

/// A change that leaves the state as it is.
fn beside(delivery: &Delivery, events: Vec<EventRecord>, set: impl FnOnce(&mut Delivery)) -> Change {
    let mut after = delivery.clone();
    after.version += 1;
    set(&mut after);
    Change { before: delivery.clone(), after, attempt: None, events, copies: None, suppression: None, of_copies: Vec::new() }
}

/// What names a line of deliveries that go out one after the other: tenant, mode as stored, channel and `ordering_key`.
pub type LineName = (TenantId, i16, Channel, String);

/// A line of deliveries with one `ordering_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The number that the next delivery gets; none is left out and none given twice (S-077).
    pub next_seq: i64,
    /// The one that may go.
    pub head: Option<DeliveryId>,
    /// Whether the head is one that was seated just now.
    pub has_new_head: bool,
}

/// The place of a new delivery in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Which delivery.
    pub id: DeliveryId,
    /// Its number.
    pub seq: i64,
    /// Whether it waits for others.
    pub is_blocked: bool,
}

/// The names of the lines in which these notifications stand, in the order in which lines are locked.
pub fn lines_of<'a>(items: impl IntoIterator<Item = &'a NewNotification>) -> BTreeSet<LineName> {
    items.into_iter().flat_map(|item| item.deliveries.iter().filter_map(|delivery| line_of(item, delivery))).collect()
}

fn line_of(item: &NewNotification, delivery: &NewDelivery) -> Option<LineName> {
    Some((item.tenant, item.mode.as_i16(), delivery.channel, item.ordering_key.clone()?))
}

/// Seats the deliveries of these notifications at the ends of their lines, in the order in which they came in.
pub fn seat(lines: &mut BTreeMap<LineName, Line>, items: &[&NewNotification]) -> Vec<Seat> {
    let mut items = items.to_vec();
    items.sort_by_key(|item| item.id);
    let mut seats = Vec::new();
    for (item, delivery) in items.iter().flat_map(|item| item.deliveries.iter().map(move |delivery| (item, delivery))) {
        let Some(line) = line_of(item, delivery).and_then(|name| lines.get_mut(&name)) else { continue };
        seats.push(Seat { id: delivery.id, seq: line.next_seq, is_blocked: line.head.is_some() });
        line.next_seq += 1;
        if line.head.is_none() {
            (line.head, line.has_new_head) = (Some(delivery.id), true);
        }
    }
    seats
}

/// The newest of these deliveries for each `(tenant, mode, channel, address, collapse_key)`: older ones make way for it.
pub fn newest<'a>(items: &[&'a NewNotification]) -> Vec<(&'a NewNotification, &'a NewDelivery)> {
    let mut newest: BTreeMap<_, (&NewNotification, &NewDelivery)> = BTreeMap::new();
    for (item, delivery) in items.iter().flat_map(|item| item.deliveries.iter().map(move |delivery| (*item, delivery))) {
        let Some(key) = &item.collapse_key else { continue };
        let place = (item.tenant, item.mode.as_i16(), delivery.channel, &delivery.address_digest, key);
        match newest.get(&place) {
            Some((_, known)) if known.id > delivery.id => {}
            _ => {
                newest.insert(place, (item, delivery));
            }
        }
    }
    newest.into_values().collect()
}
