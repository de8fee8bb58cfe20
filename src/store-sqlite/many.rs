//! Inserts of many rows in one statement whose values are bound one by one: for rows on the path of every message. Taking
//! each field out of one JSON argument by a function call, as smaller writes do, costs more than the rows themselves.
//!
//! The statement is written for one row, `INSERT ... SELECT * FROM (VALUES (?, ...)) WHERE column1 IS NOT NULL`, and checked
//! at compile time in that form. It is prepared for a few lengths alone; what a length leaves over stays unbound, which is
//! NULL, and the condition steps over it. So the first column is one that is never NULL.

/// Rows of the longest statement; with it 18 columns stay well under SQLite's 32,766 variables.
pub(crate) const LONGEST: usize = 128;

/// The lengths for which statements are prepared.
const LENGTHS: [usize; 5] = [1, 4, 16, 48, LONGEST];

/// Inserts `$rows`, at most `LONGEST` at a time, by a statement for one row; tells how many were written.
macro_rules! insert_many {
    ($connection:expr, $rows:expr => $row:ident: $type:ty, $sql:literal, $($argument:expr),+ $(,)?) => {{
        // Never run: the check at compile time.
        let _one_row = |$row: $type| { let _ = sqlx::query!($sql, $($argument),+); };
        let mut written = 0;
        for rows in $rows.chunks(crate::many::LONGEST) {
            let mut arguments = sqlx::sqlite::SqliteArguments::default();
            for &$row in rows {
                $(crate::many::bind(&mut arguments, $argument)?;)+
            }
            let sql = sqlx::AssertSqlSafe(crate::many::repeated($sql, rows.len()));
            let done = sqlx::query_with(sql, arguments).execute(&mut *$connection).await;
            written += done.map_err(crate::error::store_error)?.rows_affected();
        }
        written
    }};
}
pub(crate) use insert_many;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, Encode, Sqlite, Type};
use tidings_core::store::StoreError;

/// Adds the value of one column.
pub(crate) fn bind<'v>(arguments: &mut SqliteArguments, value: impl Encode<'v, Sqlite> + Type<Sqlite>) -> Result<(), StoreError> {
    arguments.add(value).map_err(StoreError::Refused)
}

/// The statement with its one row of values as often as the next length for `rows` has it.
pub(crate) fn repeated(sql: &str, rows: usize) -> String {
    let length = LENGTHS.into_iter().find(|length| *length >= rows).unwrap_or(LONGEST);
    let Some((head, row, tail)) = one_row(sql) else { return sql.to_owned() };
    let mut all = String::with_capacity(sql.len() + length * (row.len() + 1));
    all.push_str(head);
    for place in 0..length {
        if place > 0 {
            all.push(',');
        }
        all.push_str(row);
    }
    all.push_str(tail);
    all
}

/// What stands before the row of values, the row in its parentheses, and what follows.
fn one_row(sql: &str) -> Option<(&str, &str, &str)> {
    let start = sql.find("(VALUES (")? + "(VALUES ".len();
    let end = start + sql[start..].find(')')? + 1;
    Some((&sql[..start], &sql[start..end], &sql[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "INSERT INTO t (a, b) SELECT * FROM (VALUES (?, ?)) WHERE column1 IS NOT NULL ON CONFLICT (a) DO NOTHING";

    #[test]
    fn a_statement_takes_at_least_the_rows_it_is_made_for() {
        for rows in 1..=LONGEST {
            let sql = repeated(ONE, rows);
            let length = sql.matches("(?, ?)").count();
            assert!(length >= rows && LENGTHS.contains(&length), "{rows} rows: {length}");
            assert!(sql.starts_with("INSERT INTO t (a, b) SELECT * FROM (VALUES (?, ?)"), "{sql}");
            assert!(sql.ends_with("(?, ?)) WHERE column1 IS NOT NULL ON CONFLICT (a) DO NOTHING"), "{sql}");
        }
    }

    #[tokio::test]
    async fn rows_that_a_statement_has_left_over_are_not_written() {
        use sqlx::{Connection as _, query, query_as, query_with};
        let mut connection = sqlx::SqliteConnection::connect("sqlite::memory:").await.expect("opens");
        query("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)").execute(&mut connection).await.expect("made");
        for rows in [1_usize, 2, 5, 100, LONGEST] {
            query("DELETE FROM t").execute(&mut connection).await.expect("emptied");
            let mut arguments = SqliteArguments::default();
            for row in 0..rows {
                bind(&mut arguments, i64::try_from(row).expect("small")).expect("bound");
                bind(&mut arguments, (row % 2 == 0).then_some("even")).expect("bound");
            }
            let sql = sqlx::AssertSqlSafe(repeated(ONE, rows));
            let done = query_with(sql, arguments).execute(&mut connection).await.expect("written");
            assert_eq!(done.rows_affected(), rows as u64);
            let counted: (i64, i64) = query_as("SELECT count(*), count(b) FROM t").fetch_one(&mut connection).await.expect("read");
            assert_eq!(counted, (rows as i64, rows.div_ceil(2) as i64));
        }
    }
}
