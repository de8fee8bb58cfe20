//! The port to the database: coarse, batch-shaped commands and what they carry.
//!
//! A store method is one statement or one transaction. Stores select facts, call the decisions of this crate inside
//! the transaction (`judge`, `transition`) and write what those say, guarded by version; SQL decides nothing and reads
//! no clock. Both stores have the same files and the same order of methods.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::delivery::{AttemptRecord, Delivery};
use crate::ids::{AccountId, DeliveryId, InstanceId, LaneId, NotificationId, TenantId};
use crate::judge::ClaimPlan;
use crate::policy::Rules;
use crate::sandbox::SandboxMessage;
use crate::state::State;
use crate::time::Timestamp;
use crate::transition::{Finish, Landed};
use crate::words::{Channel, Class, Mode, words};

/// What a database error carries with it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a command did not succeed, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Locked or in conflict for longer than the store is willing to wait; nothing happened.
    #[error("the store is busy")]
    Busy(#[source] BoxError),
    /// No connection, or it broke before the commit; nothing happened.
    #[error("the store could not be reached")]
    Unreachable(#[source] BoxError),
    /// The disk is full or the database read-only; nothing happened.
    #[error("the store cannot be written")]
    NotWritable(#[source] BoxError),
    /// The connection broke during the commit: it may have happened.
    #[error("the connection broke during the commit")]
    CommitUnknown(#[source] BoxError),
    /// The database refused this very item.
    #[error("the store refused the data")]
    Refused(#[source] BoxError),
    /// A stored row cannot be read: it comes from a newer binary or is damaged.
    #[error("a stored row could not be read: {0}")]
    Unreadable(String),
}

impl StoreError {
    /// Whether the same command may simply be given again.
    pub const fn is_repeatable(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Unreachable(_) | Self::NotWritable(_) => true,
            // It may have happened: read before doing it again.
            Self::CommitUnknown(_) | Self::Refused(_) | Self::Unreadable(_) => false,
        }
    }
}

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
    /// How many candidates ended in the judgement (expired, suppressed).
    pub ended: usize,
    /// What was seen of each lane of the plan, in its order.
    pub lanes: Vec<LaneSeen>,
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

/// A notification as it is read back.
#[derive(Debug, Clone)]
pub struct StoredNotification {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its identity.
    pub id: NotificationId,
    /// Live or test.
    pub mode: Mode,
    /// The caller's key.
    pub idempotency_key: String,
    /// The application's name for its kind.
    pub category: String,
    /// How urgent.
    pub class: Class,
    /// In the caller's order.
    pub tags: Vec<String>,
    /// Sealed metadata.
    pub metadata: Option<Vec<u8>>,
    /// When it was to be sent.
    pub send_at: Option<Timestamp>,
    /// When it was to be dropped.
    pub expires_at: Timestamp,
    /// In order of their ordinals.
    pub deliveries: Vec<StoredDelivery>,
}

/// A delivery as it is read back.
#[derive(Debug, Clone)]
pub struct StoredDelivery {
    /// The row itself.
    pub delivery: Delivery,
    /// The sealed address.
    pub address: Option<Vec<u8>>,
    /// The caller's sealed name for the person.
    pub reference: Option<Vec<u8>>,
    /// Sealed copies with their fate.
    pub copies: Option<Vec<u8>>,
    /// Email: the `Message-ID`.
    pub message_id: Option<String>,
    /// When the record was written last.
    pub updated_at: Timestamp,
    /// Finished attempts in order; a running one is in the delivery's own columns.
    pub attempts: Vec<AttemptRecord>,
}

words! {
    /// A relation between rows that must always hold and does not (S-031).
    pub enum Violation {
        /// A `queue` row whose record is missing or says that it has ended.
        OpenWithoutRecord = "open_without_record",
        /// A record that says it is open, without a `queue` row.
        RecordWithoutQueue = "record_without_queue",
        /// A notification with another number of deliveries than it was accepted with.
        DeliveriesMissing = "deliveries_missing",
        /// A `dispatching` row long after its lease.
        LeaseOverdue = "lease_overdue",
        /// An `ambiguous` row long after its hold.
        HoldOverdue = "hold_overdue",
    }
}

/// What the auditor found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which relation is broken.
    pub violation: Violation,
    /// How many rows break it.
    pub count: i64,
    /// One of them: a delivery, or the notification whose deliveries are not all there.
    pub sample: Uuid,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its number.
    pub id: TenantId,
    /// Its name, unique.
    pub name: String,
    /// Whether it may send.
    pub active: bool,
}

/// An API key as stored; the key itself is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the whole key.
    pub key_hash: Vec<u8>,
    /// `live`, `test` or `team`.
    pub kind: String,
    /// In the order given.
    pub scopes: Vec<String>,
    /// Not valid from here on.
    pub expires_at: Option<Timestamp>,
    /// Not valid since.
    pub revoked_at: Option<Timestamp>,
}

/// A page of the sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// A canonical address in the envelope.
    pub to: Option<String>,
    /// One channel.
    pub channel: Option<Channel>,
    /// One intent.
    pub notification: Option<NotificationId>,
    /// The intent with this key.
    pub idempotency_key: Option<String>,
    /// Only messages older than this one.
    pub before: Option<Uuid>,
    /// How many at most.
    pub limit: i64,
}

/// The database behind everything. Times come in as arguments.
#[async_trait]
pub trait Store: Send + Sync {
    // --- opening ---------------------------------------------------------------------------------------------------

    /// What the people who run it call it: `SQLite in ./data` or `PostgreSQL at host/name`, without credentials.
    fn describe(&self) -> String;

    /// Brings the schema up to this binary's, under one lock.
    ///
    /// # Errors
    /// Also when the schema says that it needs a newer binary.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// The database's own time, for anchoring the process clock; `None` where the process clock is the database's.
    ///
    /// # Errors
    /// When it cannot be asked.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Proves that something can be written, by writing it.
    ///
    /// # Errors
    /// Why it cannot.
    async fn prove_writable(&self, instance: InstanceId, now: Timestamp) -> Result<(), StoreError>;

    /// Gives back what is held open. Calls that run go on.
    async fn close(&self);

    // --- settings, tenants, keys, accounts, lanes, instances -------------------------------------------------------

    /// A value of `settings`.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn setting(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets a value that nobody has set yet, and returns the one that holds: any number of processes agree at once.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn settle_setting(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError>;

    /// The tenant of this name, made where there is none.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn ensure_tenant(&self, name: &str) -> Result<Tenant, StoreError>;

    /// Every tenant.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;

    /// Adds a key; the same hash again is nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn add_key(&self, key: &ApiKey) -> Result<(), StoreError>;

    /// Every key, revoked and expired ones too.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// The key with this hash.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn key_by_hash(&self, key_hash: &[u8]) -> Result<Option<ApiKey>, StoreError>;

    /// The numbers of accounts by name, made where there is none, in the order given.
    ///
    /// # Errors
    /// When they cannot be written.
    async fn ensure_accounts(&self, accounts: &[(String, String)]) -> Result<Vec<AccountId>, StoreError>;

    /// The names of all accounts that ever were.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn account_names(&self) -> Result<Vec<(AccountId, String)>, StoreError>;

    /// The numbers of lanes by channel, class and route, made where there is none, in the order given.
    ///
    /// # Errors
    /// When they cannot be written.
    async fn ensure_lanes(&self, lanes: &[(Channel, Class, String)]) -> Result<Vec<LaneId>, StoreError>;

    /// Every lane that ever was.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn lanes(&self) -> Result<Vec<(LaneId, Channel, Class, String)>, StoreError>;

    /// A new process.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn register_instance(&self, now: Timestamp, config_digest: &[u8]) -> Result<InstanceId, StoreError>;

    // --- the path of a message -------------------------------------------------------------------------------------

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

    // --- reading ---------------------------------------------------------------------------------------------------

    /// Which notification holds a key; read from the primary (S-011).
    ///
    /// # Errors
    /// When it cannot be read.
    async fn by_key(&self, tenant: TenantId, mode: Mode, idempotency_key: &str) -> Result<Option<KeyHolder>, StoreError>;

    /// A notification with its deliveries and their attempts; `None` for other tenants' and the other mode's.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn notification(&self, tenant: TenantId, mode: Mode, id: NotificationId) -> Result<Option<StoredNotification>, StoreError>;

    /// For each lane with waiting rows: when its next row is due (not those blocked by ordering).
    ///
    /// # Errors
    /// When it cannot be read.
    async fn next_due(&self) -> Result<Vec<(LaneId, Timestamp)>, StoreError>;

    /// Looks for rows that break a relation: all of `queue`, and records accepted between `since` and `until`, which the
    /// caller keeps short. Rows whose timer ran out before `overdue` should have been moved by a sweep.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn audit(&self, since: Timestamp, until: Timestamp, overdue: Timestamp) -> Result<Vec<Finding>, StoreError>;

    /// How many rows are open: waiting, dispatching, ambiguous.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn open_count(&self) -> Result<i64, StoreError>;

    // --- sandbox ---------------------------------------------------------------------------------------------------

    /// What the sandbox took, newest first.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn sandbox_messages(
        &self,
        tenant: TenantId,
        mode: Option<Mode>,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxMessage>, StoreError>;

    /// One message of the sandbox.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn sandbox_message(&self, tenant: TenantId, mode: Option<Mode>, id: Uuid) -> Result<Option<SandboxMessage>, StoreError>;

    /// Empties the sandbox of a tenant and mode.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn clear_sandbox(&self, tenant: TenantId, mode: Option<Mode>) -> Result<u64, StoreError>;
}

/// A statement and a lock wait take no longer than this (S-022).
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(2);

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
    /// This notification as the holder of its key.
    pub fn as_holder(&self) -> KeyHolder {
        KeyHolder { id: self.id, fingerprint: self.fingerprint.clone(), fingerprint_version: self.fingerprint_version }
    }
}
