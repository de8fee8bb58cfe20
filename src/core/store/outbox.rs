//! The path of a message through the store: accepted, claimed, finished, and moved by timers.

use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use crate::delivery::{Change, Delivery, Flags};
use crate::ids::{DeliveryId, InstanceId, LaneId, NotificationId, TenantId};
use crate::judge::ClaimPlan;
use crate::policy::Rules;
use crate::sandbox::SandboxMessage;
use crate::state::State;
use crate::time::Timestamp;
use crate::transition::{Finish, Landed};
use crate::words::{Channel, Class, Mode};

/// An intent that is to be accepted, with everything that its one transaction writes (S-001).
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its identity.
    pub id: NotificationId,
    /// Live or test.
    pub mode: Mode,
    /// The caller's key; unique over `(tenant, mode, key)`.
    pub idempotency_key: String,
    /// The keyed digest of the request (S-004).
    pub fingerprint: Vec<u8>,
    /// The version of the digest.
    pub fingerprint_version: i16,
    /// The shape of the sealed content; a worker leaves newer ones alone (S-231).
    pub schema_version: i16,
    /// The application's name for its kind.
    pub category: String,
    /// How urgent; never changed (S-080).
    pub class: Class,
    /// The digests of the caller's names for the recipients, each once, end to end; `None` where there are none.
    pub ref_digest: Option<Vec<u8>>,
    /// In the caller's order.
    pub tags: Vec<String>,
    /// Sealed `[[key, value], ...]`.
    pub metadata: Option<Vec<u8>>,
    /// The caller's `traceparent`.
    pub trace_context: Option<String>,
    /// When it is to be sent, where that lies ahead.
    pub send_at: Option<Timestamp>,
    /// Not to be sent from here on.
    pub expires_at: Timestamp,
    /// Sealed content.
    pub body: Vec<u8>,
    /// The content is erased when nothing of the notification is open any more (S-214).
    pub is_sensitive: bool,
    /// Deliveries of one tenant, mode and channel with the same key go out one after the other (S-077).
    pub ordering_key: Option<String>,
    /// Newer deliveries of one tenant, mode, channel and address with the same key take the place of older ones (S-079).
    pub collapse_key: Option<String>,
    /// At least one, ordinals from 1 without a gap.
    pub deliveries: Vec<NewDelivery>,
}

/// One destination of a new notification.
#[derive(Debug, Clone)]
pub struct NewDelivery {
    /// Its identity.
    pub id: DeliveryId,
    /// The medium.
    pub channel: Channel,
    /// Where it waits.
    pub lane: LaneId,
    /// `queued` or `scheduled`.
    pub state: State,
    /// When it may be claimed.
    pub available_at: Timestamp,
    /// What the address is matched by.
    pub address_digest: Vec<u8>,
    /// The sealed address, as written and as sent to.
    pub address: Vec<u8>,
    /// The caller's sealed name for the person.
    pub reference: Option<Vec<u8>>,
    /// The canonical author address, for accounts that may not send as everybody.
    pub sender: Option<String>,
    /// Email: the `Message-ID` without angle brackets.
    pub message_id: Option<String>,
    /// Calls that may be answered with a temporary refusal (S-235).
    pub attempt_limit: u16,
}

/// What became of one item of an accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It is committed.
    Taken,
    /// Another notification holds the key; nothing was written for this one.
    KeyHeld(KeyHolder),
    /// The key's holder is not committed yet and did not become so in 2 s (S-006).
    InProgress,
}

/// The notification behind a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHolder {
    /// Its identity.
    pub id: NotificationId,
    /// The digest of its request.
    pub fingerprint: Vec<u8>,
    /// The version of that digest.
    pub fingerprint_version: i16,
}

/// Everything that goes into the next commit. On SQLite one transaction with a savepoint for each part; on PostgreSQL
/// each part is a transaction of its own and they run side by side.
#[derive(Debug, Default)]
pub struct WriteBatch {
    /// Intents to accept.
    pub accept: Vec<Arc<NewNotification>>,
    /// Outcomes to write, fenced by epoch.
    pub finish: Vec<Finish>,
    /// What to claim.
    pub claim: Option<ClaimPlan>,
    /// Messages that the sandbox took.
    pub sandbox: Vec<SandboxMessage>,
}

/// What became of a `WriteBatch`, item by item in the same order.
#[derive(Debug, Default)]
pub struct WriteResults {
    /// One for each accept.
    pub accept: Vec<Result<Accepted, StoreError>>,
    /// One for each finish.
    pub finish: Vec<Result<Landed, StoreError>>,
    /// What was claimed, where a claim was asked for.
    pub claim: Option<Result<Claimed, StoreError>>,
    /// One for each sandbox message.
    pub sandbox: Vec<Result<(), StoreError>>,
}

/// The outcome of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Rows that are now `dispatching` in our name, as they are after the change.
    pub dispatched: Vec<Delivery>,
    /// Since when each of them was due, in the same order.
    pub due: Vec<Timestamp>,
    /// How many candidates ended in the judgement (expired, suppressed).
    pub ended: usize,
    /// Of those, suppressed before their first call, and before a later one.
    pub suppressed: (u64, u64),
    /// What was seen of each lane of the plan, in its order.
    pub lanes: Vec<LaneSeen>,
}

impl Claimed {
    /// What the changes of a claim come to, all of them written.
    pub fn of(changes: impl IntoIterator<Item = Change>, mut lanes: Vec<LaneSeen>, now: Timestamp) -> Self {
        let mut claimed = Self::default();
        for change in changes {
            if change.after.state == State::Dispatching {
                claimed.due.push(change.before.available_at.unwrap_or(now));
                claimed.dispatched.push(change.after);
                continue;
            }
            claimed.ended += 1;
            if change.after.state == State::Suppressed {
                let counted = if change.after.attempt_count == 0 { &mut claimed.suppressed.0 } else { &mut claimed.suppressed.1 };
                *counted += 1;
            }
        }
        for seen in &mut lanes {
            // Whoever was served last stands at the end of the next ring, so that scarce room goes round.
            let served = claimed.dispatched.iter().rev().find(|delivery| delivery.lane == seen.lane);
            seen.cursor = served.map_or(seen.cursor, |delivery| Some(delivery.tenant));
        }
        Self { lanes, ..claimed }
    }
}

/// What a claim saw of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneSeen {
    /// Which lane.
    pub lane: LaneId,
    /// How many due rows were looked at; as many as the limit means that there may be more.
    pub candidates: usize,
    /// Tenants with waiting rows that the ring found, 16 at most.
    pub tenants: usize,
    /// Where the ring goes on: the last tenant looked at, `None` to start over.
    pub cursor: Option<TenantId>,
}

/// Which rows a sweep looks at, and what it asks of `transition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweep {
    /// `dispatching` rows whose lease has ended: `transition::reap`.
    LeaseExpired,
    /// Waiting rows past `expires_at`: `transition::expire`.
    PastExpiry,
    /// `ambiguous` rows whose `check_at` has come: `transition::check`.
    ChecksDue,
}

/// A row that a sweep moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// Which delivery.
    pub id: DeliveryId,
    /// Its lane, for the wake-up.
    pub lane: LaneId,
    /// From where.
    pub from: State,
    /// To where.
    pub to: State,
}

/// What an adapter needs of a claimed delivery, still sealed.
#[derive(Debug, Clone)]
pub struct StoredOutgoing {
    /// Which delivery.
    pub id: DeliveryId,
    /// The caller's key.
    pub idempotency_key: String,
    /// The shape of `body`.
    pub schema_version: i16,
    /// The sealed address.
    pub address: Vec<u8>,
    /// The sealed content; `None` once erased.
    pub body: Option<Vec<u8>>,
    /// Sealed copies with their fate in earlier attempts.
    pub copies: Option<Vec<u8>>,
    /// The `Message-ID`.
    pub message_id: Option<String>,
}

/// The path of a message.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Writes a batch. Parts that fail for anything but busy, conflict or a lost connection are split down to the item,
    /// so that one bad item never costs its batch-mates (S-059). Finishes are decided by `transition::finish`, claims by
    /// `judge::judge`, both inside the transaction. Writes that lose a race (40001, 40P01, busy) are repeated from fresh
    /// reads up to three times (S-027).
    async fn commit(&self, rules: &Rules, batch: WriteBatch, now: Timestamp) -> WriteResults;

    /// How many batches may run side by side: 1 on SQLite.
    fn committers(&self) -> usize;

    /// Renews the leases of running calls `(delivery, epoch)`; returns those that are no longer ours.
    ///
    /// # Errors
    /// When it cannot be written; a caller that cannot renew makes no new calls.
    async fn renew(
        &self,
        instance: InstanceId,
        running: &[(DeliveryId, u16)],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<DeliveryId>, StoreError>;

    /// Moves at most `limit` rows that a timer of theirs has reached.
    ///
    /// # Errors
    /// When they cannot be read or written.
    async fn sweep(&self, rules: &Rules, sweep: Sweep, limit: i64, now: Timestamp) -> Result<Vec<Swept>, StoreError>;

    /// Voids every lease: SQLite at start, where the exclusive lock proves that no owner lives. Does nothing on PostgreSQL.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn void_leases(&self, now: Timestamp) -> Result<u64, StoreError>;

    /// What adapters need of these deliveries, in any order; missing ones are left out.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn outgoing(&self, ids: &[DeliveryId]) -> Result<Vec<StoredOutgoing>, StoreError>;
}

/// The items of an accept that go into the first statement, sorted by key so that two transactions with the same keys
/// cannot deadlock, and those that ride on an earlier item of the same `(tenant, mode, key)`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Grouped {
    /// Indexes of the first item of each key, in key order.
    pub first: Vec<usize>,
    /// `(index, index of the first item with its key)`.
    pub riders: Vec<(usize, usize)>,
}

/// Groups a batch by key before any SQL: the same key twice in one batch would be seen by no unique index in time.
pub fn group_by_key(items: &[Arc<NewNotification>]) -> Grouped {
    let mut order: Vec<usize> = (0..items.len()).collect();
    let key = |index: usize| {
        let item: &NewNotification = &items[index];
        (item.tenant, item.mode, item.idempotency_key.as_str())
    };
    order.sort_by(|a, b| key(*a).cmp(&key(*b)).then(a.cmp(b)));
    let mut grouped = Grouped::default();
    for index in order {
        match grouped.first.last() {
            Some(&first) if key(first) == key(index) => grouped.riders.push((index, first)),
            _ => grouped.first.push(index),
        }
    }
    grouped
}

impl NewNotification {
    /// Whether it has an ordering or a collapse key: others' rows are then part of accepting it.
    pub const fn is_keyed(&self) -> bool {
        self.ordering_key.is_some() || self.collapse_key.is_some()
    }

    /// The facts that its deliveries begin with.
    pub const fn first_flags(&self) -> Flags {
        if self.is_sensitive { Flags::SENSITIVE } else { Flags(0) }
    }

    /// This notification as the holder of its key.
    pub fn as_holder(&self) -> KeyHolder {
        KeyHolder { id: self.id, fingerprint: self.fingerprint.clone(), fingerprint_version: self.fingerprint_version }
    }
}
