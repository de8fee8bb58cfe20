//! Rows as SQLite holds them, and the types of the core that they stand for.
//! A row with a word or a number that this binary does not know is reported, never guessed at (S-231).

use serde::Serialize;
use tidings_core::delivery::{AttemptRecord, Delivery, Flags};
use tidings_core::ids::{AccountId, DeliveryId, InstanceId, LaneId, TenantId};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

/// The `available_at` of a row that waits behind the head of its ordering key.
pub(crate) const NEVER: i64 = i64::MAX;

/// Selects open deliveries from `queue q` and `lanes l`; the argument says from where and which.
macro_rules! open_rows {
    ($from:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            crate::rows::DeliveryRow,
            r#"SELECT q.id AS "id!: Uuid", q.tenant_id AS "tenant_id!", q.mode AS "mode!", l.channel AS "channel!", l.class AS "class!",
                q.lane AS "lane!", q.category AS "category!", q.state AS "state!", q.version AS "version!", q.generation AS "generation!",
                q.attempt_number AS "attempt_number!", q.attempt_count AS "attempt_count!", q.attempts_used AS "attempts_used!",
                q.attempt_limit AS "attempt_limit!", q.lost_count AS "lost_count!", q.build_failures AS "build_failures!",
                q.unresolved AS "unresolved!", q.no_resend AS "no_resend?", q.available_at AS "available_at?",
                q.lease_expires_at AS "lease_expires_at?", q.lease_owner AS "lease_owner?", q.account_id AS "account_id?",
                q.attempt_started_at AS "attempt_started_at?", q.ambiguous_since AS "ambiguous_since?", q.check_at AS "check_at?",
                q.rung AS "rung!", q.expires_at AS "expires_at!", q.sender AS "sender?", q.flags AS "flags!", NULL AS "reason?: String",
                NULL AS "settled_at?: i64", q.siblings AS "siblings!", q.ordering_key IS NOT NULL AS "is_ordered!: bool",
                q.collapse_key IS NOT NULL AS "is_collapsible!: bool" "# + $from
            $(, $argument)*
        )
    };
}
pub(crate) use open_rows;

/// A delivery, from its queue row or from its record.
pub(crate) struct DeliveryRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i64,
    pub(crate) mode: i64,
    pub(crate) channel: String,
    pub(crate) class: String,
    pub(crate) lane: i64,
    pub(crate) category: String,
    pub(crate) state: String,
    pub(crate) version: i64,
    pub(crate) generation: i64,
    pub(crate) attempt_number: i64,
    pub(crate) attempt_count: i64,
    pub(crate) attempts_used: i64,
    pub(crate) attempt_limit: i64,
    pub(crate) lost_count: i64,
    pub(crate) build_failures: i64,
    pub(crate) unresolved: i64,
    pub(crate) no_resend: Option<String>,
    pub(crate) available_at: Option<i64>,
    pub(crate) lease_expires_at: Option<i64>,
    pub(crate) lease_owner: Option<i64>,
    pub(crate) account_id: Option<i64>,
    pub(crate) attempt_started_at: Option<i64>,
    pub(crate) ambiguous_since: Option<i64>,
    pub(crate) check_at: Option<i64>,
    pub(crate) rung: i64,
    pub(crate) expires_at: i64,
    pub(crate) sender: Option<String>,
    pub(crate) flags: i64,
    pub(crate) reason: Option<String>,
    pub(crate) settled_at: Option<i64>,
    pub(crate) siblings: i64,
    pub(crate) is_ordered: bool,
    pub(crate) is_collapsible: bool,
}

impl DeliveryRow {
    /// The delivery, or `None` and a word in the log: a row that this binary cannot read keeps its place, and holds nobody
    /// up (S-059, S-231).
    pub(crate) fn readable(self) -> Option<Delivery> {
        let id = DeliveryId::from_uuid(self.id);
        self.into_delivery().inspect_err(|err| tracing::error!(delivery_id = %id, error = %err, "an open delivery cannot be read")).ok()
    }

    pub(crate) fn into_delivery(self) -> Result<Delivery, StoreError> {
        Ok(Delivery {
            id: DeliveryId::from_uuid(self.id),
            tenant: TenantId(number(self.tenant_id)?),
            mode: mode(self.mode)?,
            channel: word(&self.channel)?,
            class: word(&self.class)?,
            lane: LaneId(number(self.lane)?),
            category: self.category,
            state: word(&self.state)?,
            version: number(self.version)?,
            generation: number(self.generation)?,
            attempt_number: number(self.attempt_number)?,
            attempt_count: number(self.attempt_count)?,
            attempts_used: number(self.attempts_used)?,
            attempt_limit: number(self.attempt_limit)?,
            lost_count: number(self.lost_count)?,
            build_failures: number(self.build_failures)?,
            unresolved: number(self.unresolved)?,
            no_resend: self.no_resend.as_deref().map(word).transpose()?,
            available_at: self.available_at.map(Timestamp::from_micros),
            blocked: self.available_at == Some(NEVER),
            lease_expires_at: self.lease_expires_at.map(Timestamp::from_micros),
            lease_owner: self.lease_owner.map(number).transpose()?.map(InstanceId),
            account: self.account_id.map(number).transpose()?.map(AccountId),
            attempt_started_at: self.attempt_started_at.map(Timestamp::from_micros),
            ambiguous_since: self.ambiguous_since.map(Timestamp::from_micros),
            check_at: self.check_at.map(Timestamp::from_micros),
            rung: number(self.rung)?,
            expires_at: Timestamp::from_micros(self.expires_at),
            sender: self.sender,
            flags: Flags(number(self.flags)?),
            reason: self.reason.as_deref().map(word).transpose()?,
            settled_at: self.settled_at.map(Timestamp::from_micros),
            siblings: number(self.siblings)?,
            is_ordered: self.is_ordered,
            is_collapsible: self.is_collapsible,
        })
    }
}

/// A finished attempt.
pub(crate) struct AttemptRow {
    pub(crate) delivery_id: Uuid,
    pub(crate) number: i64,
    pub(crate) generation: i64,
    pub(crate) account_id: Option<i64>,
    pub(crate) started_at: i64,
    pub(crate) finished_at: Option<i64>,
    pub(crate) outcome: String,
    pub(crate) accepted_at: Option<i64>,
    pub(crate) late: i64,
    pub(crate) provider_code: Option<String>,
    pub(crate) provider_message_id: Option<String>,
    pub(crate) match_key: Option<String>,
    pub(crate) detail: Option<String>,
}

impl AttemptRow {
    pub(crate) fn into_record(self) -> Result<AttemptRecord, StoreError> {
        Ok(AttemptRecord {
            number: number(self.number)?,
            generation: number(self.generation)?,
            account: self.account_id.map(number).transpose()?.map(AccountId),
            started_at: Timestamp::from_micros(self.started_at),
            finished_at: self.finished_at.map(Timestamp::from_micros),
            outcome: word(&self.outcome)?,
            accepted_at: self.accepted_at.map(Timestamp::from_micros),
            late: self.late != 0,
            provider_code: self.provider_code,
            provider_message_id: self.provider_message_id,
            match_key: self.match_key,
            detail: self.detail,
        })
    }
}

/// A word of a closed vocabulary.
pub(crate) fn word<T: std::str::FromStr>(raw: &str) -> Result<T, StoreError>
where
    T::Err: std::fmt::Display,
{
    raw.parse().map_err(|err: T::Err| StoreError::Unreadable(err.to_string()))
}

/// A number in the range that the core gives it.
pub(crate) fn number<T: TryFrom<i64>>(raw: i64) -> Result<T, StoreError> {
    T::try_from(raw).map_err(|_| StoreError::Unreadable(format!("the number {raw} is out of its range")))
}

pub(crate) fn mode(raw: i64) -> Result<Mode, StoreError> {
    number(raw).map(Mode::from_i16)
}

/// A batch as the one JSON argument of a statement. Statements that read many fields of each element take it apart with
/// `jsonb_each`: `json_each` writes an element out as text again for every field that is read.
pub(crate) fn json<T: Serialize>(batch: &T) -> String {
    serde_json::to_string(batch).expect("rows of texts and numbers can always be written as JSON")
}

/// Ids as the one JSON argument of a statement.
pub(crate) fn ids_json(ids: impl IntoIterator<Item = DeliveryId>) -> String {
    json(&ids.into_iter().map(Hex::of).collect::<Vec<_>>())
}

/// Bytes on their way through JSON: SQLite reads them back with `unhex`.
pub(crate) struct Hex<T>(T);

impl Hex<uuid::Bytes> {
    pub(crate) fn of(id: DeliveryId) -> Self {
        Self::uuid(id.as_uuid())
    }

    pub(crate) fn uuid(id: Uuid) -> Self {
        Self(id.into_bytes())
    }
}

impl<'a> Hex<&'a [u8]> {
    pub(crate) const fn bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<T: AsRef<[u8]>> Serialize for Hex<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}
