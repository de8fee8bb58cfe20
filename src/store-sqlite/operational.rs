//! Events that are about no delivery, written in the transaction of what they tell. What they say is decided in the core.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;
use tidings_core::delivery::EventType;
use tidings_core::ids::TenantId;
use tidings_core::operational::{Cause, Occurrence, ToldSuppression, of_suppression};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use uuid::Uuid;

use crate::error::store_error;
use crate::rows::{Hex, json, mode, number};

/// A row of `suppressions` that was made, changed or removed.
pub(crate) struct Touched {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i64,
    pub(crate) mode: i64,
    pub(crate) channel: String,
    pub(crate) reason: String,
    pub(crate) scope: String,
    pub(crate) source: String,
    pub(crate) expires_at: Option<i64>,
}

impl Touched {
    pub(crate) fn told(self, kind: EventType, cause: &Cause, at: Timestamp) -> Result<Occurrence, StoreError> {
        let told = ToldSuppression {
            id: self.id,
            tenant: TenantId(number(self.tenant_id)?),
            mode: mode(self.mode)?,
            channel: self.channel,
            reason: self.reason,
            scope: self.scope,
            source: self.source,
            expires_at: self.expires_at.map(Timestamp::from_micros),
        };
        Ok(of_suppression(kind, &told, cause, at))
    }
}

/// Writes events in the caller's transaction.
pub(crate) async fn tell(connection: &mut SqliteConnection, occurrences: &[Occurrence]) -> Result<(), StoreError> {
    if occurrences.is_empty() {
        return Ok(());
    }
    let row = |told: &Occurrence| {
        let whose = (told.tenant.0, told.mode.as_i16());
        (whose.0, whose.1, told.at.as_micros(), Hex::uuid(told.id()), told.kind.as_str(), told.data.clone())
    };
    let rows = json(&occurrences.iter().map(row).collect::<Vec<_>>());
    query!(
        "INSERT INTO events (tenant_id, mode, at, delivery_id, version, type, state, certainty, generation, attempt_count, flags, occurred_at,
            detail)
         SELECT x.value->>0, x.value->>1, x.value->>2, unhex(x.value->>3), 0, x.value->>4, '', '', 0, 0, 0, x.value->>2, x.value->>5
         FROM json_each(?1) x ORDER BY x.key",
        rows
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(store_error)
}
