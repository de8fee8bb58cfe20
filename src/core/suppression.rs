//! Reasons not to write to an address: how far each reaches, who obeys it, and which refusals are one (S-147 to S-151).
//! Where they are kept is the stores' business; that they are asked at every attempt is `judge`'s.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::address::EmailAddress;
use crate::ids::DeliveryId;
use crate::outcome::{Outcome, Refusal};
use crate::time::Timestamp;
use crate::words::{Class, words};

/// The domain whose addresses rehearse: they are never suppressed, so that a rehearsal works twice.
pub const REHEARSAL_DOMAIN: &str = "sandbox.test";
/// The one local part there that rehearses a suppression.
pub const REHEARSED: &str = "suppressed";

words! {
    /// Why nobody writes to an address. One row for each, so that clearing one keeps the others (S-148).
    pub enum SuppressionReason {
        HardBounce = "hard_bounce", SoftBounce = "soft_bounce", Complaint = "complaint", Unsubscribe = "unsubscribe",
        Stop = "stop", Manual = "manual", Erased = "erased", ProviderSuppressed = "provider_suppressed",
    }
}

impl SuppressionReason {
    /// How far it reaches where nobody says otherwise.
    pub const fn usual_scope(self) -> SuppressionScope {
        match self {
            Self::HardBounce | Self::SoftBounce | Self::Stop | Self::Manual | Self::Erased | Self::ProviderSuppressed => {
                SuppressionScope::All
            }
            Self::Complaint => SuppressionScope::Complaint,
            Self::Unsubscribe => SuppressionScope::Bulk,
        }
    }
}

/// How far a suppression reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuppressionScope {
    /// Every class.
    All,
    /// Bulk and transactional.
    Complaint,
    /// Bulk only.
    Bulk,
    /// Every class, from the author with this canonical address.
    Sender(String),
}

impl SuppressionScope {
    /// Whether a message of this class and author obeys: a hard bounce and a STOP stop everything, marketing choices only
    /// what is optional. An author that is not known may be the one that is meant (S-220).
    pub fn stops(&self, class: Class, sender: Option<&str>) -> bool {
        match (self, class) {
            (Self::All, Class::Critical | Class::Transactional | Class::Bulk) => true,
            (Self::Complaint, Class::Transactional | Class::Bulk) => true,
            (Self::Complaint, Class::Critical) => false,
            (Self::Bulk, Class::Bulk) => true,
            (Self::Bulk, Class::Critical | Class::Transactional) => false,
            (Self::Sender(author), _) => sender.is_none_or(|sender| sender == author),
        }
    }
}

impl fmt::Display for SuppressionScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Complaint => f.write_str("complaint"),
            Self::Bulk => f.write_str("bulk"),
            Self::Sender(author) => write!(f, "sender:{author}"),
        }
    }
}

/// As it is stored. A word of a newer binary reaches everybody (S-220).
impl FromStr for SuppressionScope {
    type Err = Infallible;
    fn from_str(raw: &str) -> Result<Self, Infallible> {
        Ok(match raw {
            "complaint" => Self::Complaint,
            "bulk" => Self::Bulk,
            other => other.strip_prefix("sender:").map_or(Self::All, |author| Self::Sender(author.to_owned())),
        })
    }
}

/// A suppression that an address has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Which one.
    pub id: Uuid,
    /// How far it reaches.
    pub scope: SuppressionScope,
}

/// The suppression that stops a message of this class and author: the oldest of those that do.
pub fn obeyed<'h>(hits: &'h [Hit], class: Class, sender: Option<&str>) -> Option<&'h Hit> {
    hits.iter().filter(|hit| hit.scope.stops(class, sender)).min_by_key(|hit| hit.id)
}

/// What a change of a delivery has to do with suppressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// This one stopped it.
    StoppedBy(Uuid),
    /// A refusal is a reason to write to its address no more.
    Imposes(Imposed),
}

/// A suppression that a refusal leads to. Address and digest are those of the delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imposed {
    /// Its identity, unless there is one for this address, reason and scope already.
    pub id: Uuid,
    /// Why.
    pub reason: SuppressionReason,
    /// How far it reaches.
    pub scope: SuppressionScope,
}

/// What a refusal means for the address: one that is certain about the mailbox, or that comes from the provider's own
/// list, suppresses at once and for good (S-149, S-155); a refusal by policy, content or reputation never does (S-151).
pub fn imposed_by(outcome: &Outcome, delivery: DeliveryId, now: Timestamp) -> Option<Imposed> {
    let reason = match outcome {
        Outcome::Refused { by: Refusal::Recipient { listed: true, .. }, .. } => SuppressionReason::ProviderSuppressed,
        Outcome::Refused { by: Refusal::Recipient { hard: true, .. }, .. } => SuppressionReason::HardBounce,
        _ => return None,
    };
    Some(Imposed { id: id_at(delivery, now), reason, scope: reason.usual_scope() })
}

/// A UUIDv7 of this instant, made unique by the delivery so that nothing random is needed.
fn id_at(delivery: DeliveryId, now: Timestamp) -> Uuid {
    let mut unique = [0; 10];
    unique.copy_from_slice(&delivery.as_uuid().as_bytes()[6..]);
    uuid::Builder::from_unix_timestamp_millis(now.as_millis(), &unique).into_uuid()
}

/// Whether an address may be suppressed at all.
pub fn is_suppressible(address: &EmailAddress) -> bool {
    let local = address.local_part();
    address.domain() != REHEARSAL_DOMAIN || local.split('+').next().unwrap_or(local).eq_ignore_ascii_case(REHEARSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NotificationId;
    use crate::outcome::NotSent;
    use crate::words::Reason;

    fn hit(number: u128, scope: &str) -> Hit {
        Hit { id: Uuid::from_u128(number), scope: scope.parse().unwrap() }
    }

    #[test]
    fn scopes_read_back_and_unknown_ones_reach_everybody() {
        for scope in ["all", "complaint", "bulk", "sender:shop@example.com"] {
            assert_eq!(scope.parse::<SuppressionScope>().unwrap().to_string(), scope);
        }
        assert_eq!("of a newer binary".parse(), Ok(SuppressionScope::All));
    }

    #[test]
    fn a_sender_scope_stops_its_own_author_in_every_class_and_nobody_else() {
        let hits = [hit(1, "sender:shop@example.com")];
        for class in Class::ALL {
            assert_eq!(obeyed(&hits, *class, Some("shop@example.com")), Some(&hits[0]));
            assert_eq!(obeyed(&hits, *class, Some("news@example.com")), None);
            assert_eq!(obeyed(&hits, *class, None), Some(&hits[0]), "an unknown author may be the one that is meant");
        }
    }

    #[test]
    fn the_oldest_that_stops_is_named() {
        let hits = [hit(3, "all"), hit(1, "bulk"), hit(2, "all")];
        assert_eq!(obeyed(&hits, Class::Critical, None), Some(&hits[2]));
        assert_eq!(obeyed(&hits, Class::Bulk, None), Some(&hits[1]));
        assert_eq!(obeyed(&[], Class::Bulk, None), None);
    }

    #[test]
    fn only_a_refusal_that_is_certain_about_the_mailbox_suppresses_it() {
        let delivery = NotificationId::new(Timestamp::from_millis(5), [9; 10]).delivery(3);
        let imposed = |outcome: &Outcome| imposed_by(outcome, delivery, Timestamp::from_millis(70)).map(|imposed| imposed.reason);
        let recipient = |listed, hard| Outcome::Refused { by: Refusal::Recipient { listed, hard }, reason: Reason::RecipientRefused };
        assert_eq!(imposed(&recipient(false, true)), Some(SuppressionReason::HardBounce));
        assert_eq!(imposed(&recipient(true, false)), Some(SuppressionReason::ProviderSuppressed));
        assert_eq!(imposed(&recipient(false, false)), None);
        for by in [Refusal::Content, Refusal::Request, Refusal::Sender] {
            assert_eq!(imposed(&Outcome::Refused { by, reason: Reason::Blocked }), None);
        }
        for outcome in [Outcome::Ambiguous, Outcome::Credential, Outcome::NotSent { why: NotSent::Answered, retry_after: None }] {
            assert_eq!(imposed(&outcome), None);
        }
    }

    #[test]
    fn ids_of_imposed_suppressions_are_of_their_instant_and_delivery() {
        let id = NotificationId::new(Timestamp::from_millis(5), [9; 10]);
        let at = |ordinal| id_at(id.delivery(ordinal), Timestamp::from_millis(70));
        assert!(at(1) != at(2) && at(1).get_version_num() == 7);
        assert!(at(1) > id_at(id.delivery(1), Timestamp::from_millis(69)));
    }

    #[test]
    fn rehearsal_addresses_are_never_suppressed_save_the_one_that_rehearses_it() {
        let may = |raw: &str| is_suppressible(&raw.parse().unwrap());
        assert!(may("bounce@example.com") && may("suppressed@sandbox.test") && may("Suppressed+1@sandbox.test"));
        assert!(!may("bounce@sandbox.test") && !may("bounce+suppressed@sandbox.test"));
    }
}
