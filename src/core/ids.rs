//! Identities: what they look like on the wire and how one follows from another.
//! A delivery's id is its notification's id plus an ordinal, so one key range finds all of them.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::time::Timestamp;

/// The largest number of deliveries of one notification; ordinals need 12 bits, so 4,095 would fit.
pub const MAX_DELIVERIES: u16 = 500;

const ORDINAL_BITS: u128 = 0xfff;

/// A prefix of four characters and 32 hex digits.
const LENGTH: usize = 36;

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this kind")]
pub struct NotAnId;

/// One accepted intent. A UUIDv7 whose low 12 bits are zero, written `ntf_` and 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NotificationId(Uuid);

impl NotificationId {
    /// A new id of the instant `now`, unique by the `random` bytes.
    pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
        let made = uuid::Builder::from_unix_timestamp_millis(now.as_millis(), &random).into_uuid();
        Self(Uuid::from_u128(made.as_u128() & !ORDINAL_BITS))
    }

    /// The lowest UUID that an id made at or after `at` can have: the start of a key range.
    pub fn first_at(at: Timestamp) -> Uuid {
        Uuid::from_u128(u128::from(at.as_millis()) << 80)
    }

    /// The id behind a stored UUID; the ordinal is cut off.
    pub fn from_uuid(raw: Uuid) -> Self {
        Self(Uuid::from_u128(raw.as_u128() & !ORDINAL_BITS))
    }

    /// The UUID as stored.
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The delivery with this ordinal, which starts at 1.
    pub fn delivery(self, ordinal: u16) -> DeliveryId {
        DeliveryId(Uuid::from_u128(self.0.as_u128() | (u128::from(ordinal) & ORDINAL_BITS)))
    }

    /// The highest UUID that a delivery of this notification can have: the end of its key range.
    pub fn last_delivery(self) -> DeliveryId {
        self.delivery(0xfff)
    }

    /// When the intent was accepted, to the millisecond (RFC 9562 section 5.7).
    pub fn created_at(self) -> Timestamp {
        created_at(self.0)
    }
}

/// One destination of a notification on one channel, written `dlv_` and 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(Uuid);

impl DeliveryId {
    /// The id behind a stored UUID.
    pub const fn from_uuid(raw: Uuid) -> Self {
        Self(raw)
    }

    /// The UUID as stored.
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The intent that this delivery belongs to.
    pub fn notification(self) -> NotificationId {
        NotificationId::from_uuid(self.0)
    }

    /// Which delivery of its notification this is, from 1.
    pub fn ordinal(self) -> u16 {
        (self.0.as_u128() & ORDINAL_BITS) as u16
    }
}

fn created_at(id: Uuid) -> Timestamp {
    Timestamp::from_millis((id.as_u128() >> 80) as i64)
}

macro_rules! prefixed {
    ($name:ident, $prefix:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.write_to(&mut [0; LENGTH]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl $name {
            /// The text of the id, in one piece: ids are written many times for each message.
            fn write_to(self, text: &mut [u8; LENGTH]) -> &str {
                text[..$prefix.len()].copy_from_slice($prefix.as_bytes());
                self.0.simple().encode_lower(&mut text[$prefix.len()..]);
                str::from_utf8(text).expect("a prefix and hexadecimal digits are ASCII")
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(raw: &str) -> Result<Self, NotAnId> {
                let hex = raw.strip_prefix($prefix).ok_or(NotAnId)?;
                let canonical = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if !canonical {
                    return Err(NotAnId);
                }
                Uuid::try_parse(hex).map(Self).map_err(|_| NotAnId)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.write_to(&mut [0; LENGTH]))
            }
        }
    };
}

prefixed!(NotificationId, "ntf_");
prefixed!(DeliveryId, "dlv_");

/// What travels to a provider and comes back: which logical send of which delivery.
/// 38 characters of `[a-z0-9_]` for a generation of one digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The delivery that is sent.
    pub delivery: DeliveryId,
    /// Which logical send of it, from 1.
    pub generation: u16,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.delivery, self.generation)
    }
}

impl FromStr for Handle {
    type Err = NotAnId;
    fn from_str(raw: &str) -> Result<Self, NotAnId> {
        let (id, generation) = raw.rsplit_once('_').ok_or(NotAnId)?;
        let canonical = !generation.is_empty() && !generation.starts_with('0') && generation.bytes().all(|b| b.is_ascii_digit());
        if !canonical {
            return Err(NotAnId);
        }
        Ok(Self { delivery: id.parse()?, generation: generation.parse().map_err(|_| NotAnId)? })
    }
}

macro_rules! row_ids {
    ($($(#[$meta:meta])* $name:ident,)+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )+};
}

row_ids! {
    /// One isolated project with keys.
    TenantId,
    /// One configured provider; the number outlives its configuration.
    AccountId,
    /// Channel, class and route of a delivery: the unit of claiming.
    LaneId,
    /// One running process.
    InstanceId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_follow_their_notification_and_come_back_to_it() {
        let id = NotificationId::new(Timestamp::from_millis(1_767_225_600_123), [0xff; 10]);
        let delivery = id.delivery(500);
        assert_eq!((delivery.notification(), delivery.ordinal()), (id, 500));
        assert_eq!(id.created_at(), Timestamp::from_millis(1_767_225_600_123));
        assert!(id.as_uuid() < delivery.as_uuid() && delivery <= id.last_delivery());
        assert_eq!(id.as_uuid().get_version_num(), 7);
    }

    #[test]
    fn a_handle_reads_back_and_fits_every_tag_alphabet() {
        let handle = Handle { delivery: NotificationId::new(Timestamp::from_millis(1), [7; 10]).delivery(1), generation: 2 };
        let text = handle.to_string();
        assert_eq!(text.len(), 38);
        assert!(text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        assert_eq!(text.parse(), Ok(handle));
        for wrong in ["", "dlv_", "dlv_00_1", &text[..36], &text.to_uppercase(), &format!("{text}0x"), &text.replace("_2", "_02")] {
            assert_eq!(wrong.parse::<Handle>(), Err(NotAnId), "{wrong}");
        }
    }
}
