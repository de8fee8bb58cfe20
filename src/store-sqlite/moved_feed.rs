//! Where readers of another store's feed stand in this one (S-237). There, events of one transaction may share a position and
//! be told apart by a number; here each has a position of its own. So imported events get new positions behind all that
//! were given away, and keep in `n` the place that they had; a place from before is looked up by it.

use sqlx::query_scalar;
use sqlx::sqlite::SqliteConnection;
use tidings_core::moving::{FEED_LEAP, Row, Table, Value};
use tidings_core::store::{FeedPosition, StoreError};

use crate::error::store_error;

/// The setting that says which positions imported events have.
const MOVED: &str = "feed_moved";
/// How many bits of an old place tell the events of one transaction apart.
const BITS: u32 = 20;
/// The last of them.
const LAST: i64 = (1 << BITS) - 1;
/// The number of a transaction that is further from the first than the other bits can tell.
const FURTHEST: i64 = (1 << (62 - BITS)) - 1;

/// The imported part of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The old position of the first event.
    first: Option<i64>,
    /// Imported events lie behind this one, and what readers had been given before it.
    base: i64,
    /// The last position given to one.
    last: i64,
}

impl Moved {
    /// Behind everything that a feed with this end has told.
    pub(crate) const fn behind(feed_end: i64) -> Self {
        let base = feed_end.saturating_add(FEED_LEAP);
        Self { first: None, base, last: base }
    }

    /// Gives events their positions; they come in the order of their old ones.
    pub(crate) fn give(&mut self, table: &Table, rows: &mut [Row]) {
        let (Some(pos), Some(n)) = (table.place("pos"), table.place("n")) else { return };
        for row in rows {
            let (Value::Int(old), Value::Int(number)) = (&row[pos], &row[n]) else { continue };
            let first = *self.first.get_or_insert(*old);
            let held = pack(old.saturating_sub(first), *number);
            self.last = self.last.saturating_add(1);
            (row[pos], row[n]) = (Value::Int(self.last), Value::Int(held));
        }
    }

    /// Notes what was imported; new events come behind it.
    pub(crate) async fn note(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        sqlx::query!("DELETE FROM sqlite_sequence WHERE name = 'events'").execute(&mut *connection).await.map_err(store_error)?;
        sqlx::query!("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?1)", self.last)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
        let value = [self.first.unwrap_or(self.base), self.base, self.last].map(i64::to_be_bytes).concat();
        sqlx::query!("INSERT INTO settings (key, value) VALUES (?1, ?2)", MOVED, value)
            .execute(connection)
            .await
            .map(|_| ())
            .map_err(store_error)
    }

    async fn noted(connection: &mut SqliteConnection) -> Result<Option<Self>, StoreError> {
        let value = query_scalar!("SELECT value FROM settings WHERE key = ?1", MOVED).fetch_optional(connection).await;
        let Some(value) = value.map_err(store_error)? else { return Ok(None) };
        match value.as_chunks::<8>() {
            ([first, base, last], []) => {
                let [first, base, last] = [first, base, last].map(|bytes| i64::from_be_bytes(*bytes));
                Ok(Some(Self { first: Some(first), base, last }))
            }
            _ => Err(StoreError::Unreadable(format!("the setting {MOVED} is not three numbers"))),
        }
    }
}

/// An old place as one number. What does not fit in is told apart no further: `held` by an event it is the greatest, and
/// `stood_at` by a reader one less, who is then told it again.
fn pack(distance: i64, number: i64) -> i64 {
    if distance > FURTHEST { i64::MAX } else { (distance << BITS) | number.clamp(0, LAST) }
}

fn stood_at(distance: i64, number: i32) -> i64 {
    match i64::from(number) {
        _ if distance < 0 => -1,
        _ if distance > FURTHEST => i64::MAX - 1,
        // Behind all of its transaction.
        number if number == i64::from(i32::MAX) => pack(distance, LAST),
        number => pack(distance, number.min(LAST - 1)),
    }
}

/// Where a reader of a tenant's and mode's stream stands here. None where some of what it has not read was purged, here or before.
pub(crate) async fn place(
    connection: &mut SqliteConnection,
    stream: (i32, i16),
    after: FeedPosition,
    floor: Option<FeedPosition>,
) -> Result<Option<i64>, StoreError> {
    let Some(moved) = Moved::noted(connection).await?.filter(|moved| after.pos <= moved.base) else {
        return Ok(floor.is_none_or(|floor| after.pos >= floor.pos).then_some(after.pos));
    };
    // A floor from there is compared with the place from there.
    match floor {
        Some(floor) if floor.pos <= moved.base => {
            if after < floor {
                Ok(None)
            } else {
                found(connection, stream, after, moved).await.map(Some)
            }
        }
        _ => {
            let here = found(connection, stream, after, moved).await?;
            Ok(floor.is_none_or(|floor| here >= floor.pos).then_some(here))
        }
    }
}

/// The position of the last imported event up to a place from before. Places rise with positions, so it is found by halves.
async fn found(connection: &mut SqliteConnection, stream: (i32, i16), after: FeedPosition, moved: Moved) -> Result<i64, StoreError> {
    let (tenant, mode) = stream;
    let place = stood_at(after.pos.saturating_sub(moved.first.unwrap_or(moved.base)), after.n);
    // What lies up to `low` is read, and what lies behind `high` is not.
    let (mut low, mut high) = (moved.base, moved.last);
    while low < high {
        let middle = low + (high - low) / 2;
        let next = sqlx::query!(
            r#"SELECT pos AS "pos!", n AS "n!" FROM events WHERE tenant_id = ?1 AND mode = ?2 AND pos > ?3 AND pos <= ?4
               ORDER BY pos LIMIT 1"#,
            tenant,
            mode,
            middle,
            high
        );
        match next.fetch_optional(&mut *connection).await.map_err(store_error)? {
            Some(event) if event.n <= place => low = event.pos,
            _ => high = middle,
        }
    }
    Ok(low)
}

#[cfg(test)]
#[path = "moved_feed_tests.rs"]
mod tests;
