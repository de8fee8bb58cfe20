//! How a notification stands now: every delivery with what is known of it and how sure that is (S-020).

use std::collections::{BTreeMap, HashMap};

use serde::{Serialize, Serializer};
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::delivery::{AttemptRecord, Delivery, Flags};
use tidings_core::ids::{AccountId, DeliveryId, NotificationId};
use tidings_core::route::is_patient;
use tidings_core::secrets::{CannotOpen, Keyring};
use tidings_core::state::{Certainty, State};
use tidings_core::status::{Circumstances, held_by, summary, wait_reason};
use tidings_core::store::{Behind, StoredDelivery, StoredNotification};
use tidings_core::switches::Paused;
use tidings_core::time::Timestamp;
use tidings_core::words::{AttemptOutcome, Channel, Class, Mode, Reason, WaitReason};

use super::suppressions::{SuppressionId, shown_scope};
use super::view::{Instant, NotificationView, Opened, Pairs, StatusUrl, metadata, status, to_json};
use crate::routing::Routing;
use crate::sealed;
use crate::slots::Slots;

/// What a read needs beside the stored notification.
pub(super) struct Reader<'a> {
    /// Opens what is sealed.
    pub(super) keyring: &'a Keyring,
    /// Accounts and lanes as configured.
    pub(super) routing: &'a Routing,
    /// Names of accounts that are no longer configured.
    pub(super) former_accounts: &'a HashMap<AccountId, String>,
    /// The names of senders.
    pub(super) senders: &'a BTreeMap<String, Mailbox>,
    /// The tenant is disabled.
    pub(super) is_disabled: bool,
    /// What operators have paused.
    pub(super) paused: Paused,
    /// Whether the reader may see addresses.
    pub(super) sees_addresses: bool,
    /// What hinders each account of this process now.
    pub(super) slots: &'a Slots,
    /// The present instant.
    pub(super) now: Timestamp,
}

impl Reader<'_> {
    /// The body of a read.
    ///
    /// # Errors
    /// When what is sealed in it cannot be opened.
    pub(super) fn render(&self, stored: &StoredNotification) -> Result<Vec<u8>, CannotOpen> {
        let metadata = metadata(self.keyring, stored)?;
        let opened = stored.deliveries.iter().map(|delivery| Opened::open(self.keyring, delivery)).collect::<Result<Vec<_>, _>>()?;
        let view = NotificationView {
            id: stored.id,
            idempotency_key: &stored.idempotency_key,
            mode: stored.mode,
            status: status(stored),
            open: stored.deliveries.iter().any(|stored| stored.delivery.state.is_open()),
            version: stored.deliveries.iter().map(|stored| i64::from(stored.delivery.version)).sum(),
            category: &stored.category,
            class: stored.class,
            created_at: Instant(stored.id.created_at()),
            // Acts move single deliveries; the notification as it was accepted stays as it was.
            send_at: stored.deliveries.iter().filter_map(|stored| stored.send_at).max().or(stored.send_at).map(Instant),
            expires_at: Instant(stored.deliveries.iter().map(|stored| stored.delivery.expires_at).max().unwrap_or(stored.expires_at)),
            tags: &stored.tags,
            metadata: Pairs(&metadata),
            status_url: StatusUrl(stored.id),
            deliveries: stored
                .deliveries
                .iter()
                .zip(&opened)
                .map(|(stored, opened)| self.delivery(stored, opened))
                .collect::<Result<Vec<_>, _>>()?,
        };
        Ok(to_json(&view))
    }

    /// Opens what is sealed in a delivery.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(&self, stored: &StoredDelivery) -> Result<Opened, CannotOpen> {
        Opened::open(self.keyring, stored)
    }

    /// The body of a read of the first delivery alone.
    ///
    /// # Errors
    /// When what is sealed in it cannot be opened.
    pub(super) fn render_delivery(&self, stored: &StoredNotification) -> Result<Vec<u8>, CannotOpen> {
        let first = stored.deliveries.first().ok_or(CannotOpen)?;
        let opened = Opened::open(self.keyring, first)?;
        let view = TimelineView {
            delivery: self.delivery(first, &opened)?,
            notification_id: stored.id,
            idempotency_key: &stored.idempotency_key,
            mode: stored.mode,
            category: &stored.category,
            class: stored.class,
            created_at: Instant(stored.id.created_at()),
            send_at: first.send_at.or(stored.send_at).map(Instant),
            receipts: [],
        };
        Ok(to_json(&view))
    }

    /// How one delivery is shown.
    ///
    /// # Errors
    /// When what is sealed in it cannot be opened.
    pub(super) fn delivery<'s>(&'s self, stored: &'s StoredDelivery, opened: &'s Opened) -> Result<DeliveryView<'s>, CannotOpen> {
        let delivery = &stored.delivery;
        let (held_by, next_account) = self.lane(delivery);
        let waits_for = wait_reason(delivery, held_by, self.now);
        let account = delivery.account.and_then(|id| self.account(id));
        let address = opened.address.as_ref();
        let attempts: Vec<AttemptView<'_>> =
            stored.attempts.iter().map(|record| self.attempt(delivery.id, record)).chain(self.running(delivery)).collect();
        Ok(DeliveryView {
            id: delivery.id,
            channel: delivery.channel,
            to: address.map(|address| self.shown(&address.written, || address.mailbox.email.masked())),
            reference: opened.reference.as_deref(),
            hop: 1,
            state: delivery.state,
            open: delivery.state.is_open(),
            certainty: delivery.certainty(),
            reason: delivery.reason,
            wait_reason: waits_for,
            suppression: stored
                .suppression
                .as_ref()
                .filter(|_| !delivery.state.is_open())
                .map(|behind| SuppressionView::of(self.senders, behind)),
            summary: summary(delivery, &Circumstances { waits_for, account, next_account }),
            available_at: delivery.available_at.filter(|_| delivery.state.is_waiting() && !delivery.blocked).map(Instant),
            expires_at: Instant(delivery.expires_at),
            account,
            provider_message_id: stored.attempts.iter().rev().find_map(|attempt| attempt.provider_message_id.as_deref()),
            attempt_count: delivery.attempt_count,
            generation: delivery.generation,
            via_failover: delivery.flags.has(Flags::VIA_FAILOVER),
            possible_duplicate: delivery.flags.has(Flags::POSSIBLE_DUPLICATE),
            late_bounce: delivery.flags.has(Flags::LATE_BOUNCE),
            duplicate_sent: delivery.flags.has(Flags::DUPLICATE_SENT),
            unresolved: delivery.unresolved,
            copies: self.copies(stored)?,
            message_id: stored.message_id.as_deref(),
            settled_at: delivery.settled_at.map(Instant),
            complained: delivery.flags.has(Flags::COMPLAINED),
            opened: delivery.flags.has(Flags::OPENED),
            clicked: delivery.flags.has(Flags::CLICKED),
            sandbox: delivery.flags.has(Flags::SANDBOX),
            version: delivery.version,
            updated_at: Instant(stored.updated_at),
            metadata: address.map(|address| address.metadata.as_slice()).filter(|own| !own.is_empty()).map(Pairs),
            attempts,
        })
    }

    /// What holds up the lane of a delivery as a whole, and the account that takes it next where there can be only one.
    fn lane(&self, delivery: &Delivery) -> (Option<WaitReason>, Option<&str>) {
        let route = self.routing.of_lane(delivery.lane);
        let able: Vec<_> = route
            .into_iter()
            .flat_map(|route| route.order(delivery))
            .filter(|account| account.is_on && account.may_carry(delivery))
            .collect();
        if self.is_disabled {
            return (Some(WaitReason::Tenant), None);
        }
        if self.paused.holds(delivery) {
            return (Some(WaitReason::Paused), None);
        }
        if route.is_none() {
            // Another process made the lane and carries it; this one learns of it in a moment.
            return (None, None);
        }
        let first = able.first().map(|account| account.id);
        let is_spared = |id: AccountId| self.paused.spares(id, Some(id) == first);
        let hindered =
            |id: AccountId| if is_spared(id) { Some(WaitReason::Paused) } else { self.slots.wait_reason(id, delivery.class, self.now) };
        let free: Vec<_> = able.iter().filter(|account| !is_spared(account.id)).collect();
        let next_account = if let [only] = free.as_slice() { Some(only.name.as_str()) } else { None };
        // Out of tokens it is merely busy: what is drawn for it does not ask yet whether another has room.
        let waits_for_share = |drawn: &AccountId| {
            let is_kept = is_patient(delivery, self.now) && route.is_some_and(|route| route.draws(*drawn));
            is_kept && hindered(*drawn) == Some(WaitReason::Rate) && self.slots.hindrance(*drawn, self.now).is_none()
        };
        if first.filter(waits_for_share).is_some() {
            return (Some(WaitReason::Rate), next_account);
        }
        (held_by(able.iter().map(|account| hindered(account.id))), next_account)
    }

    fn account(&self, id: AccountId) -> Option<&str> {
        let configured = self.routing.account(id).map(|account| account.name.as_str());
        configured.or_else(|| self.former_accounts.get(&id).map(String::as_str))
    }

    fn shown(&self, plain: &str, masked: impl FnOnce() -> String) -> String {
        if self.sees_addresses { plain.to_owned() } else { masked() }
    }

    fn attempt<'s>(&'s self, delivery: DeliveryId, record: &'s AttemptRecord) -> AttemptView<'s> {
        AttemptView {
            id: AttemptId(delivery, record.number),
            number: record.number,
            generation: record.generation,
            account: record.account.and_then(|id| self.account(id)),
            started_at: Instant(record.started_at),
            finished_at: record.finished_at.map(Instant),
            outcome: record.outcome,
            provider_message_id: record.provider_message_id.as_deref(),
            detail: detail(record),
        }
    }

    /// The call that has no record yet.
    fn running<'s>(&'s self, delivery: &'s Delivery) -> Option<AttemptView<'s>> {
        let started_at = delivery.attempt_started_at.filter(|_| delivery.state == State::Dispatching)?;
        Some(AttemptView {
            id: AttemptId(delivery.id, delivery.attempt_number),
            number: delivery.attempt_number,
            generation: delivery.generation,
            account: delivery.account.and_then(|id| self.account(id)),
            started_at: Instant(started_at),
            finished_at: None,
            outcome: AttemptOutcome::InFlight,
            provider_message_id: None,
            detail: None,
        })
    }

    fn copies(&self, stored: &StoredDelivery) -> Result<Vec<CopyView>, CannotOpen> {
        let Some(sealed) = stored.copies.as_deref() else { return Ok(Vec::new()) };
        let copies = sealed::open_copies(self.keyring, stored.delivery.id, sealed)?;
        let accepted = copies.accepted.iter().map(|address| CopyView { to: self.copy_address(address), state: "accepted", code: None });
        let refused = copies.refused.iter().map(|copy| CopyView {
            to: self.copy_address(&copy.address),
            state: "refused",
            code: Some(copy.code.clone()),
        });
        let suppressed =
            copies.suppressed.iter().map(|address| CopyView { to: self.copy_address(address), state: "suppressed", code: None });
        Ok(accepted.chain(refused).chain(suppressed).collect())
    }

    fn copy_address(&self, address: &str) -> String {
        let masked = || address.parse().map_or_else(|_| "***".to_owned(), |email: EmailAddress| email.masked());
        self.shown(address, masked)
    }
}

/// The provider's code and our sentence, whichever there are.
fn detail(record: &AttemptRecord) -> Option<String> {
    match (&record.provider_code, &record.detail) {
        (Some(code), Some(detail)) => Some(format!("{code}: {detail}")),
        (one, other) => one.as_ref().or(other.as_ref()).cloned(),
    }
}

#[derive(Serialize)]
pub(super) struct DeliveryView<'a> {
    id: DeliveryId,
    channel: Channel,
    to: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<&'a str>,
    hop: u8,
    state: State,
    open: bool,
    certainty: Certainty,
    reason: Option<Reason>,
    wait_reason: Option<WaitReason>,
    suppression: Option<SuppressionView<'a>>,
    summary: String,
    available_at: Option<Instant>,
    expires_at: Instant,
    account: Option<&'a str>,
    provider_message_id: Option<&'a str>,
    attempt_count: u16,
    generation: u16,
    via_failover: bool,
    possible_duplicate: bool,
    late_bounce: bool,
    duplicate_sent: bool,
    unresolved: u16,
    copies: Vec<CopyView>,
    message_id: Option<&'a str>,
    settled_at: Option<Instant>,
    complained: bool,
    opened: bool,
    clicked: bool,
    sandbox: bool,
    version: i32,
    updated_at: Instant,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Pairs<'a>>,
    attempts: Vec<AttemptView<'a>>,
}

/// One delivery with what there is to know about it beside its notification.
#[derive(Serialize)]
struct TimelineView<'a> {
    #[serde(flatten)]
    delivery: DeliveryView<'a>,
    notification_id: NotificationId,
    idempotency_key: &'a str,
    mode: Mode,
    category: &'a str,
    class: Class,
    created_at: Instant,
    send_at: Option<Instant>,
    /// What providers reported. No adapter takes reports yet.
    receipts: [(); 0],
}

/// Why a delivery was stopped, or what its refusal led to. Once the suppression is removed, its id alone.
#[derive(Serialize)]
struct SuppressionView<'a> {
    id: SuppressionId,
    reason: Option<&'a str>,
    scope: Option<String>,
    created_at: Option<Instant>,
}

impl<'a> SuppressionView<'a> {
    fn of(senders: &BTreeMap<String, Mailbox>, behind: &'a Behind) -> Self {
        Self {
            id: SuppressionId(behind.id),
            reason: behind.reason.as_deref(),
            scope: behind.scope.as_deref().map(|scope| shown_scope(senders, scope)),
            created_at: behind.created_at.map(Instant),
        }
    }
}

#[derive(Serialize)]
struct CopyView {
    to: String,
    state: &'static str,
    code: Option<String>,
}

#[derive(Serialize)]
struct AttemptView<'a> {
    id: AttemptId,
    number: u16,
    generation: u16,
    account: Option<&'a str>,
    started_at: Instant,
    finished_at: Option<Instant>,
    outcome: AttemptOutcome,
    provider_message_id: Option<&'a str>,
    detail: Option<String>,
}

/// `att_<delivery>_<number>`.
struct AttemptId(DeliveryId, u16);

impl Serialize for AttemptId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("att_{}_{}", self.0.as_uuid().simple(), self.1))
    }
}

#[cfg(test)]
mod tests;
