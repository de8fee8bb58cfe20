//! How core's values stand in rows: words and counters, the two shapes of a delivery, attempts.
//! Which rows are read is the business of the other modules.

use std::borrow::Cow;
use std::str::FromStr;

use tidings_core::delivery::{AttemptRecord, Delivery, Flags};
use tidings_core::ids::{AccountId, DeliveryId, InstanceId, LaneId, TenantId};
use tidings_core::store::StoreError;
use tidings_core::words::{Mode, Reason, UnknownWord};
use uuid::Uuid;

use crate::instant::At;

/// A word of a closed vocabulary; an unknown one comes from a newer binary (S-231).
pub(crate) fn word<T: FromStr<Err = UnknownWord>>(raw: &str) -> Result<T, StoreError> {
    raw.parse().map_err(|unknown: UnknownWord| StoreError::Unreadable(unknown.to_string()))
}

/// A counter as it is stored; it stays at the end of its range.
pub(crate) fn small(count: u16) -> i16 {
    i16::try_from(count).unwrap_or(i16::MAX)
}

pub(crate) fn count(raw: i16) -> Result<u16, StoreError> {
    u16::try_from(raw).map_err(|_| StoreError::Unreadable("a counter is negative".to_owned()))
}

/// What a provider wrote, without the one character that the database has no place for.
pub(crate) fn without_nul(text: Option<&str>) -> Option<Cow<'_, str>> {
    text.map(|text| if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) })
}

/// A text array as `PostgreSQL` writes it: arrays of arrays of different lengths do not exist, texts do.
pub(crate) fn text_array(items: &[String]) -> String {
    let mut literal = String::from("{");
    for (index, item) in items.iter().enumerate() {
        literal.push_str(if index == 0 { "\"" } else { ",\"" });
        for c in item.chars() {
            if matches!(c, '"' | '\\') {
                literal.push('\\');
            }
            literal.push(c);
        }
        literal.push('"');
    }
    literal.push('}');
    literal
}

/// A row of `queue` with its lane.
pub(crate) struct OpenRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i32,
    pub(crate) mode: i16,
    pub(crate) lane: i32,
    pub(crate) channel: String,
    pub(crate) class: String,
    pub(crate) category: String,
    pub(crate) state: String,
    pub(crate) available_at: Option<At>,
    pub(crate) lease_expires_at: Option<At>,
    pub(crate) lease_owner: Option<i32>,
    pub(crate) account_id: Option<i32>,
    pub(crate) attempt_number: i16,
    pub(crate) attempt_started_at: Option<At>,
    pub(crate) generation: i16,
    pub(crate) attempt_count: i16,
    pub(crate) attempts_used: i16,
    pub(crate) attempt_limit: i16,
    pub(crate) lost_count: i16,
    pub(crate) build_failures: i16,
    pub(crate) unresolved: i16,
    pub(crate) flags: i32,
    pub(crate) no_resend: Option<String>,
    pub(crate) version: i32,
    pub(crate) ambiguous_since: Option<At>,
    pub(crate) check_at: Option<At>,
    pub(crate) rung: i16,
    pub(crate) expires_at: At,
    pub(crate) sender: Option<String>,
    /// Whether its tenant may send, and how far suppressions of its address reach, where that was asked for.
    pub(crate) tenant_active: Option<bool>,
    pub(crate) suppressed: Option<Vec<String>>,
    pub(crate) siblings: i16,
    pub(crate) is_ordered: bool,
    pub(crate) is_collapsible: bool,
}

/// `SELECT` of `OpenRow`s, perhaps with further columns; `q` and `l` are the row and its lane in what follows.
macro_rules! open_rows {
    ($tail:literal, $($argument:expr),+ $(,)?) => {
        $crate::rows::open_rows!("NULL::bool AS tenant_active, NULL::text[] AS suppressed " ; $tail, $($argument),+)
    };
    ($facts:literal ; $tail:literal, $($argument:expr),+ $(,)?) => {
        sqlx::query_as!(
            $crate::rows::OpenRow,
            "SELECT q.id, q.tenant_id, q.mode, q.lane, l.channel, l.class, q.category, q.state, q.available_at, \
             q.lease_expires_at, q.lease_owner, q.account_id, q.attempt_number, q.attempt_started_at, q.generation, \
             q.attempt_count, q.attempts_used, q.attempt_limit, q.lost_count, q.build_failures, q.unresolved, q.flags, \
             q.no_resend, q.version, q.ambiguous_since, q.check_at, q.rung, q.expires_at, q.sender, q.siblings, \
             q.ordering_key IS NOT NULL AS \"is_ordered!\", q.collapse_key IS NOT NULL AS \"is_collapsible!\", " + $facts + $tail,
            $($argument),+
        )
    };
}
pub(crate) use open_rows;

impl OpenRow {
    /// The delivery, or `None` and a word in the log: a row that this binary cannot read keeps its place, and holds nobody
    /// up (S-059, S-231).
    pub(crate) fn readable(self) -> Option<Delivery> {
        let id = DeliveryId::from_uuid(self.id);
        self.delivery().inspect_err(|err| tracing::error!(delivery_id = %id, error = %err, "an open delivery cannot be read")).ok()
    }

    pub(crate) fn delivery(self) -> Result<Delivery, StoreError> {
        Ok(Delivery {
            id: DeliveryId::from_uuid(self.id),
            tenant: TenantId(self.tenant_id),
            mode: Mode::from_i16(self.mode),
            channel: word(&self.channel)?,
            class: word(&self.class)?,
            lane: LaneId(self.lane),
            category: self.category,
            state: word(&self.state)?,
            version: self.version,
            generation: count(self.generation)?,
            attempt_number: count(self.attempt_number)?,
            attempt_count: count(self.attempt_count)?,
            attempts_used: count(self.attempts_used)?,
            attempt_limit: count(self.attempt_limit)?,
            lost_count: count(self.lost_count)?,
            build_failures: count(self.build_failures)?,
            unresolved: count(self.unresolved)?,
            no_resend: self.no_resend.as_deref().map(word::<Reason>).transpose()?,
            available_at: self.available_at.map(|at| at.0),
            blocked: self.available_at == Some(At::NEVER),
            lease_expires_at: self.lease_expires_at.map(|at| at.0),
            lease_owner: self.lease_owner.map(InstanceId),
            account: self.account_id.map(AccountId),
            attempt_started_at: self.attempt_started_at.map(|at| at.0),
            ambiguous_since: self.ambiguous_since.map(|at| at.0),
            check_at: self.check_at.map(|at| at.0),
            rung: count(self.rung)?,
            expires_at: self.expires_at.0,
            sender: self.sender,
            flags: Flags(self.flags),
            reason: None,
            settled_at: None,
            siblings: count(self.siblings)?,
            is_ordered: self.is_ordered,
            is_collapsible: self.is_collapsible,
        })
    }
}

/// A row of `deliveries`.
pub(crate) struct RecordRow {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i32,
    pub(crate) mode: i16,
    pub(crate) lane: i32,
    pub(crate) channel: String,
    pub(crate) class: String,
    pub(crate) state: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) version: i32,
    pub(crate) generation: i16,
    pub(crate) attempt_number: i16,
    pub(crate) attempt_count: i16,
    pub(crate) unresolved: i16,
    pub(crate) flags: i32,
    pub(crate) account_id: Option<i32>,
    pub(crate) expires_at: At,
    pub(crate) settled_at: Option<At>,
    pub(crate) updated_at: At,
    pub(crate) address: Option<Vec<u8>>,
    pub(crate) reference: Option<Vec<u8>>,
    pub(crate) copies: Option<Vec<u8>>,
    pub(crate) message_id: Option<String>,
    pub(crate) send_at: Option<At>,
    pub(crate) suppression_id: Option<Uuid>,
}

/// `SELECT` of `RecordRow`s; `d` is the row in what follows.
macro_rules! records {
    ($tail:literal, $($argument:expr),+ $(,)?) => {
        sqlx::query_as!(
            $crate::rows::RecordRow,
            "SELECT d.id, d.tenant_id, d.mode, d.lane, d.channel, d.class, d.state, d.reason, d.version, d.generation, \
             d.attempt_number, d.attempt_count, d.unresolved, d.flags, d.account_id, d.expires_at, d.settled_at, \
             d.updated_at, d.address, d.ref AS reference, d.copies, d.message_id, d.send_at, d.suppression_id " + $tail,
            $($argument),+
        )
    };
}
pub(crate) use records;

impl RecordRow {
    /// The delivery as its record tells it; `None` while it is in the queue, where the truth is. What the record does not
    /// hold is neutral: it speaks of calls that are no longer to be made.
    pub(crate) fn delivery(&self) -> Result<Option<Delivery>, StoreError> {
        let Some(state) = &self.state else { return Ok(None) };
        Ok(Some(Delivery {
            id: DeliveryId::from_uuid(self.id),
            tenant: TenantId(self.tenant_id),
            mode: Mode::from_i16(self.mode),
            channel: word(&self.channel)?,
            class: word(&self.class)?,
            lane: LaneId(self.lane),
            category: String::new(),
            state: word(state)?,
            version: self.version,
            generation: count(self.generation)?,
            attempt_number: count(self.attempt_number)?,
            attempt_count: count(self.attempt_count)?,
            attempts_used: 0,
            attempt_limit: 0,
            lost_count: 0,
            build_failures: 0,
            unresolved: count(self.unresolved)?,
            no_resend: None,
            available_at: None,
            blocked: false,
            lease_expires_at: None,
            lease_owner: None,
            account: self.account_id.map(AccountId),
            attempt_started_at: None,
            ambiguous_since: None,
            check_at: None,
            rung: 0,
            expires_at: self.expires_at.0,
            sender: None,
            flags: Flags(self.flags),
            reason: self.reason.as_deref().map(word::<Reason>).transpose()?,
            settled_at: self.settled_at.map(|at| at.0),
            siblings: 0,
            is_ordered: false,
            is_collapsible: false,
        }))
    }
}

/// A row of `attempts`.
pub(crate) struct AttemptRow {
    pub(crate) delivery_id: Uuid,
    pub(crate) number: i16,
    pub(crate) generation: i16,
    pub(crate) account_id: Option<i32>,
    pub(crate) started_at: At,
    pub(crate) finished_at: Option<At>,
    pub(crate) outcome: String,
    pub(crate) accepted_at: Option<At>,
    pub(crate) late: bool,
    pub(crate) provider_code: Option<String>,
    pub(crate) provider_message_id: Option<String>,
    pub(crate) match_key: Option<String>,
    pub(crate) detail: Option<String>,
}

impl AttemptRow {
    pub(crate) fn record(self) -> Result<AttemptRecord, StoreError> {
        Ok(AttemptRecord {
            number: count(self.number)?,
            generation: count(self.generation)?,
            account: self.account_id.map(AccountId),
            started_at: self.started_at.0,
            finished_at: self.finished_at.map(|at| at.0),
            outcome: word(&self.outcome)?,
            accepted_at: self.accepted_at.map(|at| at.0),
            late: self.late,
            provider_code: self.provider_code,
            provider_message_id: self.provider_message_id,
            match_key: self.match_key,
            detail: self.detail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_array_keeps_quotes_backslashes_and_commas() {
        assert_eq!(text_array(&[]), "{}");
        assert_eq!(text_array(&["a".to_owned(), "b,\"c\\".to_owned(), String::new()]), r#"{"a","b,\"c\\",""}"#);
    }
}
