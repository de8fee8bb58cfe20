//! A delivery as decisions see it, and a decided change of it as stores write it.
//! What changes is decided in `transition` and `judge`; how it is written is the stores' business.

use crate::ids::{AccountId, DeliveryId, InstanceId, LaneId, TenantId};
use crate::state::{Certainty, State};
use crate::store::NewSuppression;
use crate::suppression::Note;
use crate::time::Timestamp;
use crate::words::{AttemptOutcome, Channel, Class, Mode, Reason, words};

/// Facts beside the state, stored as bits of `flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub i32);

impl Flags {
    /// It bounced after it was reported delivered.
    pub const LATE_BOUNCE: Self = Self(1);
    /// The person complained.
    pub const COMPLAINED: Self = Self(1 << 1);
    /// It went out by another account than the first of its route that may carry it: the one that is drawn, where the route has
    /// weights.
    pub const VIA_FAILOVER: Self = Self(1 << 2);
    /// It was sent again while an earlier send may have been taken.
    pub const POSSIBLE_DUPLICATE: Self = Self(1 << 3);
    /// Two sends were taken.
    pub const DUPLICATE_SENT: Self = Self(1 << 4);
    /// The sandbox took it.
    pub const SANDBOX: Self = Self(1 << 5);
    /// It was opened.
    pub const OPENED: Self = Self(1 << 6);
    /// A link in it was followed.
    pub const CLICKED: Self = Self(1 << 7);
    /// Its acceptance or end is proven by a receipt, a look-up or an operator.
    pub const CONFIRMED: Self = Self(1 << 8);
    /// An operator asked for this generation though an earlier one was taken: that acceptance does not stop it.
    pub const ASKED_AGAIN: Self = Self(1 << 9);
    /// Its content is erased as soon as nothing of the notification is open any more (S-214).
    pub const SENSITIVE: Self = Self(1 << 10);

    /// Whether all bits of `flag` are set.
    pub const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 == flag.0
    }

    /// With the bits of `flag` set as well.
    #[must_use]
    pub const fn with(self, flag: Self) -> Self {
        Self(self.0 | flag.0)
    }

    /// Without the bits of `flag`.
    #[must_use]
    pub const fn without(self, flag: Self) -> Self {
        Self(self.0 & !flag.0)
    }
}

/// A delivery: its `queue` row while it is open, its record afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its identity, which also names its notification.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Live or test.
    pub mode: Mode,
    /// The medium.
    pub channel: Channel,
    /// How urgent.
    pub class: Class,
    /// Channel, class and route.
    pub lane: LaneId,
    /// The application's name for its kind. Empty once it has left the queue.
    pub category: String,
    /// Where it stands.
    pub state: State,
    /// Rises by one with every change: the guard of every write.
    pub version: i32,
    /// Which logical send this is, from 1.
    pub generation: u16,
    /// The number of the newest attempt and the lease's epoch; 0 before the first claim.
    pub attempt_number: u16,
    /// Calls so far, those `not_started` left out.
    pub attempt_count: u16,
    /// Calls that count against `attempt_limit`.
    pub attempts_used: u16,
    /// How many of them the policy at intake allowed (S-235).
    pub attempt_limit: u16,
    /// Attempts closed by lease loss (S-040).
    pub lost_count: u16,
    /// How often it could not be built.
    pub build_failures: u16,
    /// Attempts that may have been taken and for which no evidence came.
    pub unresolved: u16,
    /// Why no resend by policy may happen any more: cancelled, collapsed, erased.
    pub no_resend: Option<Reason>,
    /// Waiting: when it may be claimed. `None` otherwise.
    pub available_at: Option<Timestamp>,
    /// Waiting behind the head of its `ordering_key`; stored as an `available_at` that never comes.
    pub blocked: bool,
    /// Dispatching: when the lease ends.
    pub lease_expires_at: Option<Timestamp>,
    /// Dispatching: which process holds it.
    pub lease_owner: Option<InstanceId>,
    /// The account of the newest attempt.
    pub account: Option<AccountId>,
    /// When the newest attempt started.
    pub attempt_started_at: Option<Timestamp>,
    /// Ambiguous: since when.
    pub ambiguous_since: Option<Timestamp>,
    /// Ambiguous: the next look-up or the hold's end.
    pub check_at: Option<Timestamp>,
    /// Ambiguous: how many look-ups were made.
    pub rung: u16,
    /// Not to be sent from here on.
    pub expires_at: Timestamp,
    /// The canonical address of the author, for accounts that may not send as everybody; `None` where the row does not tell.
    pub sender: Option<String>,
    /// Facts beside the state.
    pub flags: Flags,
    /// Why it is where it is, for ends.
    pub reason: Option<Reason>,
    /// From when on nothing more is expected; `None` while open.
    pub settled_at: Option<Timestamp>,
    /// Open: how many deliveries its notification has; 0 where that is not written down.
    pub siblings: u16,
    /// Open: it has an `ordering_key`.
    pub is_ordered: bool,
    /// Open: it has a `collapse_key`.
    pub is_collapsible: bool,
}

impl Delivery {
    /// How sure we are that `state` is the whole truth.
    pub const fn certainty(&self) -> Certainty {
        match self.state {
            State::Dispatching | State::Ambiguous | State::Unknown => Certainty::Unknown,
            State::Accepted if !self.flags.has(Flags::CONFIRMED) => Certainty::Unconfirmed,
            State::Failed | State::Expired | State::Dead if self.unresolved > 0 => Certainty::Unknown,
            State::Queued | State::Scheduled | State::RetryWait | State::Deferred => Certainty::Confirmed,
            State::Accepted | State::Delivered | State::Bounced | State::Failed | State::Suppressed => Certainty::Confirmed,
            State::Cancelled | State::Expired | State::Superseded | State::Dead => Certainty::Confirmed,
        }
    }

    /// Whether this is in the list of dead letters: `dead` and `unknown`, until an operator discards it (S-060).
    pub const fn needs_attention(&self) -> bool {
        matches!(self.state, State::Dead | State::Unknown) && !matches!(self.reason, Some(Reason::Discarded))
    }
}

words! {
    /// What Tidings tells the application; `wire_name` is how it is called there.
    pub enum EventType {
        Accepted = "accepted", Delivered = "delivered", Deferred = "deferred", Ambiguous = "ambiguous", Bounced = "bounced",
        Failed = "failed", Suppressed = "suppressed", Cancelled = "cancelled", Expired = "expired", Superseded = "superseded",
        Dead = "dead", Unknown = "unknown", Complained = "complained", Opened = "opened", Clicked = "clicked",
        Unsubscribed = "unsubscribed", LateBounce = "late_bounce", DuplicateSent = "duplicate_sent", LaneSkipped = "lane_skipped",
        Completed = "completed",
        // Of no delivery: `operational` says what these tell. They are stored under their whole names.
        SuppressionCreated = "suppression.created", SuppressionUpdated = "suppression.updated",
        SuppressionRemoved = "suppression.removed", SwitchPaused = "switch.paused", SwitchResumed = "switch.resumed",
        AccountParked = "account.parked", AccountRecovered = "account.recovered",
    }
}

impl EventType {
    /// How the application knows it, from the word in which it is stored. Words of a newer binary are told as they are.
    pub fn wire_name(stored: &str) -> String {
        if stored.contains('.') {
            return stored.to_owned();
        }
        let of = if stored == Self::Completed.as_str() { "notification" } else { "delivery" };
        format!("{of}.{stored}")
    }

    /// The event for entering a state; waiting states and `dispatching` have none.
    pub const fn of_entry(state: State) -> Option<Self> {
        match state {
            State::Queued | State::Scheduled | State::RetryWait | State::Deferred | State::Dispatching => None,
            State::Ambiguous => Some(Self::Ambiguous),
            State::Accepted => Some(Self::Accepted),
            State::Delivered => Some(Self::Delivered),
            State::Bounced => Some(Self::Bounced),
            State::Failed => Some(Self::Failed),
            State::Suppressed => Some(Self::Suppressed),
            State::Cancelled => Some(Self::Cancelled),
            State::Expired => Some(Self::Expired),
            State::Superseded => Some(Self::Superseded),
            State::Dead => Some(Self::Dead),
            State::Unknown => Some(Self::Unknown),
        }
    }
}

/// One call to a provider as it is recorded: written once by its outcome or by the reaper, completed by late evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The lease's epoch at which it ran.
    pub number: u16,
    /// Which logical send it was.
    pub generation: u16,
    /// By which account.
    pub account: Option<AccountId>,
    /// When its claim was committed.
    pub started_at: Timestamp,
    /// When its outcome was known.
    pub finished_at: Option<Timestamp>,
    /// What it meant.
    pub outcome: AttemptOutcome,
    /// Set for the first acceptance of its generation alone; the unique index over it is the guard of S-112.
    pub accepted_at: Option<Timestamp>,
    /// The result came after the lease was lost.
    pub late: bool,
    /// The provider's code, such as `550 5.1.1`.
    pub provider_code: Option<String>,
    /// The provider's id, normalised.
    pub provider_message_id: Option<String>,
    /// The id by which receipts find the attempt; `None` where ids repeat (SMTP queue ids) or our handle comes back.
    pub match_key: Option<String>,
    /// One sentence of ours.
    pub detail: Option<String>,
}

/// One event row; everything else it shows is taken from the delivery after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// What happened.
    pub kind: EventType,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// The provider's SMTP reply code, where there is one.
    pub smtp_code: Option<i16>,
    /// The enhanced status code (RFC 3463), where there is one.
    pub enhanced_code: Option<String>,
}

/// A decided change of one delivery, to be written in one transaction with what it was decided on.
///
/// The store writes it guarded by `before.version` and `before.attempt_number`; a row that moved meanwhile is left
/// alone and reported as fenced. `after.version` is `before.version + 1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The delivery it was decided on.
    pub before: Delivery,
    /// The delivery as it is to be.
    pub after: Delivery,
    /// The attempt to insert or complete.
    pub attempt: Option<AttemptRecord>,
    /// The events to tell.
    pub events: Vec<EventRecord>,
    /// Refused copies, sealed; replaces what the record holds. `None` leaves it.
    pub copies: Option<Vec<u8>>,
    /// The suppression that stopped it, or that its refusal leads to.
    pub suppression: Option<Note>,
    /// Suppressions of its copies, whose refusal moves no delivery.
    pub of_copies: Vec<NewSuppression>,
}
