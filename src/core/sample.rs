//! A delivery for tests to start from. What matters to a test it says itself, with `..sample::waiting(..)` for the rest.

use crate::delivery::{Delivery, Flags};
use crate::ids::{LaneId, NotificationId, TenantId};
use crate::state::State;
use crate::time::Timestamp;
use crate::words::{Channel, Class, Mode};

/// An email as its intake left it: it may go out from `at` on and for a while.
pub(crate) fn waiting(at: Timestamp) -> Delivery {
    Delivery {
        id: NotificationId::new(at, [1; 10]).delivery(1),
        tenant: TenantId(1),
        mode: Mode::Live,
        channel: Channel::Email,
        class: Class::Transactional,
        lane: LaneId(1),
        category: "receipt".to_owned(),
        state: State::Queued,
        version: 1,
        generation: 1,
        attempt_number: 0,
        attempt_count: 0,
        attempts_used: 0,
        attempt_limit: 10,
        lost_count: 0,
        build_failures: 0,
        unresolved: 0,
        no_resend: None,
        available_at: Some(at),
        blocked: false,
        lease_expires_at: None,
        lease_owner: None,
        account: None,
        attempt_started_at: None,
        ambiguous_since: None,
        check_at: None,
        rung: 0,
        expires_at: at.plus(std::time::Duration::from_secs(600)),
        sender: None,
        flags: Flags::default(),
        reason: None,
        settled_at: None,
        siblings: 1,
        is_ordered: false,
        is_collapsible: false,
    }
}
