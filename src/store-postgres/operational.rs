//! Events that are about no delivery, written in the transaction of what they tell. What they say is decided in the core.

use sqlx::{Connection as _, PgConnection};
use tidings_core::delivery::EventType;
use tidings_core::ids::TenantId;
use tidings_core::operational::{Cause, Occurrence, ToldSuppression, of_suppression};
use tidings_core::store::StoreError;
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{before, committing};
use crate::instant::At;

/// A row of `suppressions` that was made, changed or removed.
pub(crate) struct Touched {
    pub(crate) id: Uuid,
    pub(crate) tenant_id: i32,
    pub(crate) mode: i16,
    pub(crate) channel: String,
    pub(crate) reason: String,
    pub(crate) scope: String,
    pub(crate) source: String,
    pub(crate) expires_at: Option<At>,
}

impl Touched {
    pub(crate) fn told(self, kind: EventType, cause: &Cause, at: Timestamp) -> Occurrence {
        let told = ToldSuppression {
            id: self.id,
            tenant: TenantId(self.tenant_id),
            mode: Mode::from_i16(self.mode),
            channel: self.channel,
            reason: self.reason,
            scope: self.scope,
            source: self.source,
            expires_at: self.expires_at.map(|at| at.0),
        };
        of_suppression(kind, &told, cause, at)
    }
}

/// Writes events in the caller's transaction, numbered on from `told`, which counts those that it has written so far.
pub(crate) async fn tell(conn: &mut PgConnection, occurrences: &[Occurrence], told: &mut i32) -> Result<(), StoreError> {
    let Ok(count) = i32::try_from(occurrences.len()) else { return Err(StoreError::Unreadable("too many events at once".to_owned())) };
    if count == 0 {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO events (tenant_id, mode, pos, n, at, delivery_id, version, type, state, certainty, generation, attempt_count, flags,
            occurred_at, detail)
         SELECT x.tenant_id, x.mode, (SELECT feed_position()), $1 + x.n::int, x.at, x.id, 0, x.type, '', '', 0, 0, 0, x.at, x.detail
         FROM unnest($2::int[], $3::smallint[], $4::timestamptz[], $5::uuid[], $6::text[], $7::text[]) WITH ORDINALITY
            AS x (tenant_id, mode, at, id, type, detail, n)",
        *told,
        &occurrences.iter().map(|told| told.tenant.0).collect::<Vec<_>>()[..],
        &occurrences.iter().map(|told| told.mode.as_i16()).collect::<Vec<_>>()[..],
        occurrences.iter().map(|told| At(told.at)).collect::<Vec<_>>() as _,
        &occurrences.iter().map(Occurrence::id).collect::<Vec<_>>()[..],
        occurrences.iter().map(|told| told.kind.as_str()).collect::<Vec<_>>() as _,
        occurrences.iter().map(|told| told.data.as_str()).collect::<Vec<_>>() as _,
    )
    .execute(conn)
    .await
    .map_err(before)?;
    *told = told.saturating_add(count);
    Ok(())
}

/// Writes events in a transaction of their own.
pub(crate) async fn tell_alone(store: &PostgresStore, occurrences: &[Occurrence]) -> Result<(), StoreError> {
    let mut conn = store.connection().await?;
    let mut tx = conn.begin().await.map_err(before)?;
    tell(&mut tx, occurrences, &mut 0).await?;
    tx.commit().await.map_err(committing)
}
