//! What moves from one installation to another, and in which form: one description of all tables, neutral between the
//! databases (S-237). How a table is read and written in SQL is the stores' business, where the lines go to the gateway's.
//!
//! Rows travel as lists of plain values by a description instead of as one struct for each table: two dozen tables with
//! three hundred columns that nothing here decides about would otherwise stand in the code four times. That no column is
//! forgotten is what the stores' tests hold the description to; that types fit is what the databases check at the import.

mod dump;
mod tables;

pub use dump::{Counted, DumpFault, DumpReader, DumpWriter, FORMAT, Header, Read};
pub use tables::{COLUMNS_LEFT, TABLES, TABLES_LEFT};

/// What a value of a column is, whatever the database calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Int,
    /// Yes or no, as 1 or 0.
    Flag,
    /// Microseconds since 1970; the greatest number for never.
    Instant,
    /// Days since 1970.
    Day,
    /// Words of people and machines.
    Text,
    /// A UUID, as text.
    Id,
    /// A list of texts, as JSON.
    Words,
    /// A JSON document, as text.
    Json,
    /// Bytes.
    Bytes,
}

/// A column of a moving table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its neutral name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// A table that moves.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its neutral name.
    pub name: &'static str,
    /// Its columns, in the order of a row's values.
    pub columns: &'static [Column],
}

impl Table {
    /// Where a column stands in a row.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Which of its rows move, as the end of a statement of either database.
    pub fn those_that_move(&self) -> String {
        match self.name {
            "settings" => format!(" WHERE key NOT IN ('{}')", SETTINGS_LEFT.join("', '")),
            _ => String::new(),
        }
    }
}

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Null,
    /// Of `Int`, `Flag`, `Instant` and `Day`.
    Int(i64),
    /// Of `Text`, `Id`, `Words` and `Json`.
    Text(String),
    /// Of `Bytes`.
    Bytes(Vec<u8>),
}

impl Value {
    /// About how much room it takes.
    pub const fn size(&self) -> usize {
        match self {
            Self::Null | Self::Int(_) => 8,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The values of one row, in the order of its table's columns.
pub type Row = Vec<Value>;

/// Settings that stay where they are: the secret itself, and what belongs to a database rather than to an installation.
pub const SETTINGS_LEFT: &[&str] = &["master_secret", "feed_base", "feed_home", "feed_moved", "schema_requires", FROZEN];

/// The setting that says since when a store takes nothing and sends nothing, in microseconds as eight bytes.
pub const FROZEN: &str = "frozen";

/// By how much positions of events leap at a move or a restore: more transactions than anybody makes between the last
/// event that is known and the last place that a reader was given, so that no new event comes to lie behind a reader.
pub const FEED_LEAP: i64 = 1 << 32;

/// Rows that one chunk holds at most.
const CHUNK_ROWS: usize = 500;
/// About how many bytes one chunk holds before it is passed on.
const CHUNK_BYTES: usize = 4 << 20;

/// Rows of one table that gather until they are worth passing on: no more of them are in memory at a time.
#[derive(Debug, Default)]
pub struct Chunk {
    rows: Vec<Row>,
    size: usize,
}

impl Chunk {
    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.size += row.iter().map(Value::size).sum::<usize>();
        self.rows.push(row);
    }

    /// Whether it is to be passed on.
    pub const fn is_full(&self) -> bool {
        self.rows.len() >= CHUNK_ROWS || self.size >= CHUNK_BYTES
    }

    /// What has gathered; it begins anew.
    pub fn take(&mut self) -> Vec<Row> {
        self.size = 0;
        std::mem::take(&mut self.rows)
    }
}
