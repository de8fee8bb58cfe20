//! How an event looks: the one rendering behind the feed, and behind whatever carries events elsewhere. Ids, states and the
//! caller's own words; never content or an address (S-209). Everything in it is fixed when the event is written, so that
//! the same event has the same bytes wherever and whenever it is told.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tidings_core::delivery::{EventType, Flags};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::secrets::Keyring;
use tidings_core::state::State;
use tidings_core::store::{EventSubject, StoredEvent};
use tidings_core::words::{Channel, Class, Mode};

use crate::api::view::{Instant, Pairs};
use crate::sealed;

/// An event as JSON. `account` is the name of its account.
pub fn render(keyring: &Keyring, mode: Mode, event: &StoredEvent, account: Option<&str>) -> Box<RawValue> {
    if let Some(detail) = &event.detail {
        return of_no_delivery(mode, event, detail);
    }
    let subject = event.subject.as_ref();
    let notification = event.delivery.notification();
    let own = Own::open(keyring, event, subject);
    let view = EventView {
        id: EventId { delivery: event.delivery, version: event.version, kind: &event.kind },
        kind: EventType::wire_name(&event.kind),
        timestamp: Instant(event.at),
        mode,
        seq: event.version,
        data: if event.kind == EventType::Completed.as_str() {
            Data::Notification(of_notification(notification, event, subject, &own))
        } else {
            Data::Delivery(of_delivery(notification, event, subject, &own, account))
        },
    };
    serde_json::value::to_raw_value(&view).expect("texts, numbers and maps with text names always have a JSON form")
}

/// An event that is about no delivery: what it tells was fixed when it was written, and there is no version of it.
fn of_no_delivery(mode: Mode, event: &StoredEvent, detail: &str) -> Box<RawValue> {
    let data = serde_json::from_str::<&RawValue>(detail).inspect_err(|error| {
        // It must not hold up all events behind it.
        tracing::error!(kind = event.kind, %error, "what an event tells cannot be read");
    });
    let view = OperationalView {
        id: format!("evt_{}", event.delivery.as_uuid().simple()),
        kind: EventType::wire_name(&event.kind),
        timestamp: Instant(event.at),
        mode,
        seq: None,
        data: data.ok(),
    };
    serde_json::value::to_raw_value(&view).expect("texts, numbers and JSON always have a JSON form")
}

/// `evt_<delivery>_<version>_<type>`: stable and unique, whatever carries it.
struct EventId<'a> {
    delivery: DeliveryId,
    version: i32,
    kind: &'a str,
}

impl fmt::Display for EventId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evt_{}_{}_{}", self.delivery.as_uuid().simple(), self.version, self.kind)
    }
}

impl Serialize for EventId<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The caller's own words, opened.
#[derive(Default)]
struct Own {
    metadata: Vec<(String, String)>,
    reference: Option<String>,
}

impl Own {
    /// What cannot be opened is left out: it must not hold up all events behind it.
    fn open(keyring: &Keyring, event: &StoredEvent, subject: Option<&EventSubject>) -> Self {
        let Some(subject) = subject else { return Self::default() };
        let note = |error: &tidings_core::secrets::CannotOpen| {
            tracing::error!(delivery_id = %event.delivery, %error, "what an event shows of its record cannot be opened");
        };
        let metadata = subject.metadata.as_deref().map(|sealed| sealed::open_metadata(keyring, event.delivery.notification(), sealed));
        let reference = subject.reference.as_deref().map(|sealed| sealed::open_reference(keyring, event.delivery, sealed));
        Self {
            metadata: metadata.and_then(|opened| opened.inspect_err(note).ok()).unwrap_or_default(),
            reference: reference.and_then(|opened| opened.inspect_err(note).ok()),
        }
    }
}

#[derive(Serialize)]
struct EventView<'a> {
    id: EventId<'a>,
    #[serde(rename = "type")]
    kind: String,
    timestamp: Instant,
    mode: Mode,
    seq: i32,
    data: Data<'a>,
}

#[derive(Serialize)]
struct OperationalView<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    timestamp: Instant,
    mode: Mode,
    seq: Option<i32>,
    data: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Delivery(DeliveryData<'a>),
    Notification(NotificationData<'a>),
}

#[derive(Serialize)]
struct DeliveryData<'a> {
    notification_id: NotificationId,
    delivery_id: DeliveryId,
    idempotency_key: Option<&'a str>,
    #[serde(rename = "ref")]
    reference: Option<&'a str>,
    metadata: Pairs<'a>,
    tags: &'a [String],
    category: Option<&'a str>,
    class: Option<Class>,
    channel: Option<Channel>,
    state: &'a str,
    previous_state: Option<&'a str>,
    certainty: &'a str,
    reason: Option<&'a str>,
    account: Option<&'a str>,
    provider_message_id: Option<&'a str>,
    generation: i64,
    attempt_count: i64,
    via_failover: bool,
    possible_duplicate: bool,
    occurred_at: Instant,
    bounce: Option<Bounce<'a>>,
}

#[derive(Serialize)]
struct NotificationData<'a> {
    notification_id: NotificationId,
    idempotency_key: Option<&'a str>,
    metadata: Pairs<'a>,
    tags: &'a [String],
    category: Option<&'a str>,
    class: Option<Class>,
    status: &'a str,
    occurred_at: Instant,
}

/// Why it was not taken, in the words of the mail system.
#[derive(Serialize)]
struct Bounce<'a> {
    class: Option<&'a str>,
    smtp_code: Option<i64>,
    enhanced_code: Option<&'a str>,
}

fn of_delivery<'a>(
    notification: NotificationId,
    event: &'a StoredEvent,
    subject: Option<&'a EventSubject>,
    own: &'a Own,
    account: Option<&'a str>,
) -> DeliveryData<'a> {
    let is = |states: &[State]| states.iter().any(|state| state.as_str() == event.state);
    let (class, smtp_code, enhanced_code) = (event.bounce_class.as_deref(), event.smtp_code, event.enhanced_code.as_deref());
    let says_why = is(&[State::Bounced, State::Failed, State::Suppressed]) && (class.is_some() || smtp_code.is_some());
    // Before an acceptance there is no id, and it must not appear in an event that was told without it.
    let was_accepted = is(&[State::Accepted, State::Delivered, State::Bounced]);
    DeliveryData {
        notification_id: notification,
        delivery_id: event.delivery,
        idempotency_key: subject.map(|subject| subject.idempotency_key.as_str()),
        reference: own.reference.as_deref(),
        metadata: Pairs(&own.metadata),
        tags: subject.map_or(&[], |subject| &subject.tags),
        category: subject.map(|subject| subject.category.as_str()),
        class: subject.map(|subject| subject.class),
        channel: subject.map(|subject| subject.channel),
        state: &event.state,
        previous_state: event.previous.as_deref(),
        certainty: &event.certainty,
        reason: event.reason.as_deref(),
        account,
        provider_message_id: subject.and_then(|subject| subject.provider_message_id.as_deref()).filter(|_| was_accepted),
        generation: event.generation,
        attempt_count: event.attempt_count,
        via_failover: event.flags.has(Flags::VIA_FAILOVER),
        possible_duplicate: event.flags.has(Flags::POSSIBLE_DUPLICATE),
        occurred_at: Instant(event.occurred_at),
        bounce: says_why.then_some(Bounce { class, smtp_code, enhanced_code }),
    }
}

fn of_notification<'a>(
    notification: NotificationId,
    event: &'a StoredEvent,
    subject: Option<&'a EventSubject>,
    own: &'a Own,
) -> NotificationData<'a> {
    NotificationData {
        notification_id: notification,
        idempotency_key: subject.map(|subject| subject.idempotency_key.as_str()),
        metadata: Pairs(&own.metadata),
        tags: subject.map_or(&[], |subject| &subject.tags),
        category: subject.map(|subject| subject.category.as_str()),
        class: subject.map(|subject| subject.class),
        status: &event.state,
        occurred_at: Instant(event.occurred_at),
    }
}
