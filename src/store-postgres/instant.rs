//! Instants as `timestamptz`, both infinities included.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};
use tidings_core::time::Timestamp;

/// A `timestamptz`: microseconds since 2000 on the wire, with both ends of the range for the infinities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At(pub(crate) Timestamp);

const MICROS_UNTIL_2000: i64 = 946_684_800_000_000;

impl At {
    /// `infinity`: when a row comes that waits behind another one.
    pub(crate) const NEVER: Self = Self(Timestamp::from_micros(i64::MAX));
    /// `-infinity`: before everything.
    pub(crate) const ALWAYS: Self = Self(Timestamp::from_micros(i64::MIN));
}

impl Type<Postgres> for At {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for At {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for At {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let raw = match self.0.as_micros() {
            end @ (i64::MIN | i64::MAX) => end,
            micros => micros.saturating_sub(MICROS_UNTIL_2000),
        };
        <i64 as Encode<'_, Postgres>>::encode(raw, buffer)
    }
}

impl Decode<'_, Postgres> for At {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let raw = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        let micros = match raw {
            end @ (i64::MIN | i64::MAX) => end,
            raw => raw.saturating_add(MICROS_UNTIL_2000),
        };
        Ok(Self(Timestamp::from_micros(micros)))
    }
}

/// An instant that may be missing, as it is stored.
pub(crate) fn at(instant: Option<Timestamp>) -> Option<At> {
    instant.map(At)
}
