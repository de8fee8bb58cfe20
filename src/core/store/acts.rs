//! Acts on deliveries that exist, and the list of those that ask for one.

use async_trait::async_trait;
use uuid::Uuid;

use super::{StoreError, StoredDelivery};
use crate::acts::{Act, Refusal};
use crate::delivery::Delivery;
use crate::ids::TenantId;
use crate::policy::Rules;
use crate::state::State;
use crate::time::Timestamp;
use crate::words::{Channel, Class, Mode, Reason};

/// The most acts in one batch: a background chunk, so that live traffic is not held up (S-022).
pub const MOST_ACTS: usize = 100;

/// What became of one act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acted {
    /// The answer; see `acts::Decision`.
    pub answer: Result<(), Refusal>,
    /// Every delivery that changed, as it is now.
    pub changed: Vec<Delivery>,
}

/// Which dead letters.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// `dead` or `unknown`.
    pub state: Option<State>,
    /// Why.
    pub reason: Option<Reason>,
    /// One medium.
    pub channel: Option<Channel>,
    /// One class.
    pub class: Option<Class>,
    /// One kind of message.
    pub category: Option<String>,
    /// Accepted at this instant or later.
    pub since: Option<Timestamp>,
    /// Accepted before this instant.
    pub until: Option<Timestamp>,
    /// Only those older than this one.
    pub before: Option<Uuid>,
    /// How many at most.
    pub limit: i64,
}

/// A delivery that ended without anybody knowing what to do, with all that is needed to judge it (S-060).
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The delivery with its attempts.
    pub stored: StoredDelivery,
    /// The caller's key.
    pub idempotency_key: String,
    /// The application's name for its kind.
    pub category: String,
    /// The shape of its content.
    pub schema_version: i16,
    /// Whether address and content are still there.
    pub has_content: bool,
    /// How often it was replayed in bulk.
    pub replays: u16,
}

/// Acts, and what asks for them.
#[async_trait]
pub trait Acts: Send + Sync {
    /// Carries out at most `MOST_ACTS` acts, each decided by `acts::decide` from its locked deliveries, with its row of
    /// the audit log, in one transaction; one bad item never costs its batch-mates (S-059). In the order given.
    async fn act(&self, rules: &Rules, acts: &[Act], now: Timestamp) -> Vec<Result<Acted, StoreError>>;

    /// Dead letters, newest first.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn dead_letters(&self, tenant: TenantId, mode: Mode, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError>;
}
