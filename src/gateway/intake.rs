//! From a sound request to the rows of a notification: category and class, author, route, deadline, what is sealed.
//! Whether the request is sound in itself is decided in core; whether its key is free, by the store.

use std::sync::Arc;

use tidings_core::address::Mailbox;
use tidings_core::content::{Content, EmailContent};
use tidings_core::differs::Asked;
use tidings_core::fault::{FaultCode, Faults};
use tidings_core::ids::NotificationId;
use tidings_core::nearest::nearest;
use tidings_core::pointer::Pointer;
use tidings_core::policy::DEFAULT_CATEGORY;
use tidings_core::request::{Recipient, Request};
use tidings_core::secrets::FINGERPRINT_VERSION;
use tidings_core::state::State;
use tidings_core::store::{NewDelivery, NewNotification};
use tidings_core::time::Timestamp;
use tidings_core::words::{Channel, Class};

use crate::api::auth::{Caller, Scope};
use crate::api::view::{First, FirstDelivery};
use crate::app::App;
use crate::sealed::{self, SCHEMA_VERSION};
use crate::setup::Setup;
use guests::guests;
use places::{Place, author, check, places};

mod guests;
mod places;

/// What is known of a call besides its body.
pub struct Call<'a> {
    /// Who calls.
    pub caller: &'a Caller,
    /// The caller's key for the notification; without one the notification's id is its key.
    pub idempotency_key: Option<&'a str>,
    /// The keyed digest of the request.
    pub fingerprint: [u8; 32],
    /// The caller's `traceparent`.
    pub trace_context: Option<String>,
    /// When the call came in.
    pub now: Timestamp,
}

/// A notification that is ready to be committed.
pub struct Intake {
    /// Everything that is written.
    pub notification: Arc<NewNotification>,
    /// The body of the answer, should it be taken.
    pub answer: Vec<u8>,
}

impl Intake {
    /// What it costs of its tenant's rate: a token for each message (S-084).
    pub fn cost(&self) -> u32 {
        u32::try_from(self.notification.deliveries.len()).unwrap_or(u32::MAX).max(1)
    }
}

/// Why a sound request is not taken.
#[derive(Debug)]
pub enum Refusal {
    /// Something in it does not fit this installation.
    Faults(Faults),
    /// Its class is critical, and the key may not send that.
    CriticalScopeMissing,
}

/// Prepares a notification; all faults at once.
///
/// # Errors
/// Why it is not taken.
pub fn prepare(app: &App, call: &Call<'_>, request: Request) -> Result<Intake, Refusal> {
    let (mut faults, setup) = (Faults::new(), call.caller.setup.as_ref());
    let category = request.category.clone().unwrap_or_else(|| DEFAULT_CATEGORY.to_owned());
    let class = class_of(setup, &category, request.category.is_some(), &mut faults);
    if class == Class::Critical && !call.caller.has(Scope::SendCritical) {
        return Err(Refusal::CriticalScopeMissing);
    }

    let places: Vec<Place<'_>> = places(call.caller, &category, class, &request.recipients, &mut faults);
    guests(call.caller, &request, &mut faults);
    let from = author(call.caller, &category, request.email.from.as_ref(), &places, &mut faults);
    let asked = Asked::of(&request);
    let Request { recipients, email, send_at, expires_at, tags, metadata, ordering_key, collapse_key, .. } = request;
    let Some(from) = from else { return Err(Refusal::Faults(faults)) };
    let content = Content::Email(email.into_content(from));
    let Content::Email(EmailContent { from, .. }) = &content;
    check(&places, from, &content, &mut faults);
    if !faults.is_empty() {
        return Err(Refusal::Faults(faults));
    }

    let id = NotificationId::new(call.now, rand::random());
    let expires_at = expires_at.unwrap_or_else(|| deadline(setup, &category, class, send_at.unwrap_or(call.now)));
    let attempt_limit = setup.rules.of(class).retry.attempts;
    let drafts = recipients.iter().zip(&places).zip(1_u16..);
    let deliveries = drafts
        .map(|((recipient, place), ordinal)| delivery(app, id, ordinal, recipient, place, from, send_at, call.now, attempt_limit))
        .collect();
    let notification = NewNotification {
        tenant: call.caller.tenant,
        id,
        mode: call.caller.mode,
        idempotency_key: call.idempotency_key.map_or_else(|| id.to_string(), str::to_owned),
        fingerprint: call.fingerprint.to_vec(),
        fingerprint_version: FINGERPRINT_VERSION,
        schema_version: SCHEMA_VERSION,
        is_sensitive: setup.rules.categories.get(&category).is_some_and(|rules| rules.is_sensitive),
        ordering_key,
        collapse_key,
        category,
        class,
        ref_digest: ref_digest(app, &recipients),
        tags,
        metadata: sealed::seal_metadata(&app.keyring, id, &metadata),
        trace_context: call.trace_context.clone(),
        send_at,
        expires_at,
        body: sealed::seal_content(&app.keyring, id, &content, &asked),
        deliveries,
    };
    let answer = answer(&notification, &metadata, &recipients);
    Ok(Intake { notification: Arc::new(notification), answer })
}

fn answer(notification: &NewNotification, metadata: &[(String, String)], recipients: &[Recipient]) -> Vec<u8> {
    let deliveries = notification.deliveries.iter().zip(recipients);
    let first = First {
        id: notification.id,
        idempotency_key: &notification.idempotency_key,
        mode: notification.mode,
        category: &notification.category,
        class: notification.class,
        send_at: notification.send_at,
        expires_at: notification.expires_at,
        tags: &notification.tags,
        metadata,
        deliveries: deliveries
            .map(|(delivery, recipient)| FirstDelivery {
                id: delivery.id,
                channel: delivery.channel,
                to: Some(&recipient.written),
                reference: recipient.reference.as_deref(),
            })
            .collect(),
    };
    first.render()
}

/// By which the notification is found again: the digest of each `ref`, once.
fn ref_digest(app: &App, recipients: &[Recipient]) -> Option<Vec<u8>> {
    let mut references: Vec<&str> = recipients.iter().filter_map(|recipient| recipient.reference.as_deref()).collect();
    references.sort_unstable();
    references.dedup();
    (!references.is_empty()).then(|| references.into_iter().flat_map(|reference| app.keyring.reference_digest(reference)).collect())
}

/// The category's class. An undeclared one is transactional, or a fault as soon as the operator has declared any:
/// a mistyped name of a critical category must not quietly lose its urgency.
fn class_of(setup: &Setup, category: &str, is_named: bool, faults: &mut Faults) -> Class {
    let is_declared = setup.rules.categories.contains_key(category);
    if !is_declared && is_named && category != DEFAULT_CATEGORY && !setup.settings.takes_undeclared_categories() {
        let declared = setup.rules.categories.keys().map(String::as_str);
        let detail = match nearest(category, declared) {
            Some(meant) => format!("the configuration does not declare this category; did you mean \"{meant}\"?"),
            None => "the configuration does not declare this category (categories.NAME)".to_owned(),
        };
        faults.add(&Pointer::ROOT.name("category"), FaultCode::UnknownCategory, detail);
    }
    setup.rules.class_of(category)
}

/// The deadline of a request that names none, counted from when it is due.
fn deadline(setup: &Setup, category: &str, class: Class, due: Timestamp) -> Timestamp {
    due.plus(setup.rules.deadline(category, class))
}

#[allow(clippy::too_many_arguments, reason = "each is one fact of the row, and there is one caller")]
fn delivery(
    app: &App,
    notification: NotificationId,
    ordinal: u16,
    recipient: &Recipient,
    place: &Place<'_>,
    from: &Mailbox,
    send_at: Option<Timestamp>,
    now: Timestamp,
    attempt_limit: u16,
) -> NewDelivery {
    let id = notification.delivery(ordinal);
    let address =
        sealed::Address { written: recipient.written.clone(), mailbox: recipient.mailbox.clone(), metadata: recipient.metadata.clone() };
    NewDelivery {
        id,
        channel: Channel::Email,
        lane: place.route.lane,
        state: State::first(send_at.is_some()),
        available_at: send_at.unwrap_or(now),
        address_digest: app.keyring.address_digest(Channel::Email, &recipient.mailbox.email.canonical()),
        address: sealed::seal_address(&app.keyring, id, &address),
        reference: recipient.reference.as_deref().map(|reference| sealed::seal_reference(&app.keyring, id, reference)),
        sender: Some(from.email.canonical()),
        message_id: Some(format!("{id}@{}", from.email.domain())),
        attempt_limit,
    }
}
