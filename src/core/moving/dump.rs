//! The form of a dump: JSON lines, a header first, one line for each row, counts and hashes last. A dump without its last
//! line, or with a line that is not as it was written, is told apart from a whole one.
//!
//! Nothing in here is secret that was not so in the database: content and addresses are sealed, keys are digests, and the
//! master secret is not among the rows. Who has the dump and the master secret has everything.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::{Kind, Row, TABLES, Table, Value};
use crate::time::Timestamp;

/// The newest form that this binary reads, and the one that it writes.
pub const FORMAT: u32 = 1;

/// What stands in the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The form of the lines.
    pub format: u32,
    /// The version that wrote it.
    pub version: String,
    /// The newest migration of the store that it comes from.
    pub schema: i64,
    /// What kind of store that is.
    pub source: String,
    /// Since when that store is frozen.
    pub frozen_at: Timestamp,
    /// The highest position that its feed has given away.
    pub feed_end: i64,
    /// The oldest instant of a row; none where there are no rows.
    pub oldest: Option<Timestamp>,
    /// Tells the master secret from others, in base64.
    pub master_check: String,
}

/// How many rows of a table there are, and what their lines hash to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// How many.
    pub rows: u64,
    /// SHA-256 of their lines, in hexadecimal.
    pub sha256: String,
}

/// What is wrong with a dump, and in which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the dump: {what}")]
pub struct DumpFault {
    /// Counted from 1.
    pub line: u64,
    /// What is wrong.
    pub what: String,
}

#[derive(Serialize, Deserialize)]
struct First {
    tidings_export: Header,
}

#[derive(Serialize, Deserialize)]
struct Last {
    header_sha256: String,
    tables: BTreeMap<String, Counted>,
}

/// Hashes of what went by, table for table.
struct Tally {
    header: String,
    tables: Vec<(u64, Sha256)>,
}

impl Tally {
    fn new(header: &[u8]) -> Self {
        Self { header: hex::encode(Sha256::digest(header)), tables: TABLES.iter().map(|_| (0, Sha256::new())).collect() }
    }

    fn count(&mut self, table: usize, line: &[u8]) {
        let (rows, hash) = &mut self.tables[table];
        *rows += 1;
        hash.update(line);
        hash.update(b"\n");
    }

    fn last(self) -> Last {
        let counted = |(rows, hash): (u64, Sha256)| Counted { rows, sha256: hex::encode(hash.finalize()) };
        let tables = TABLES.iter().zip(self.tables).map(|(table, tally)| (table.name.to_owned(), counted(tally)));
        Last { header_sha256: self.header, tables: tables.collect() }
    }
}

/// Makes the lines of a dump.
pub struct DumpWriter(Tally);

impl DumpWriter {
    /// Begins with this header; its line goes to `out`.
    pub fn begin(header: Header, out: &mut Vec<u8>) -> Self {
        let line = line_of(&First { tidings_export: header });
        let tally = Tally::new(&line);
        out.extend_from_slice(&line);
        out.push(b'\n');
        Self(tally)
    }

    /// Appends the line of a row to `out`.
    pub fn row(&mut self, table: &'static Table, row: &Row, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&line_of(&RowLine { table: table.name, row: Fields { table, row } }));
        if let Some(place) = TABLES.iter().position(|known| std::ptr::eq(known, table)) {
            self.0.count(place, &out[from..]);
        }
        out.push(b'\n');
    }

    /// Appends the last line to `out`, and says what there was.
    pub fn end(self, out: &mut Vec<u8>) -> BTreeMap<String, Counted> {
        let last = self.0.last();
        out.extend_from_slice(&line_of(&serde_json::json!({ "end": &last })));
        out.push(b'\n');
        last.tables
    }
}

fn line_of(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts, numbers, lists and maps with text names always have a JSON form")
}

#[derive(Serialize)]
struct RowLine<'a> {
    table: &'a str,
    row: Fields<'a>,
}

/// A row as an object; what is nothing is left out.
struct Fields<'a> {
    table: &'static Table,
    row: &'a Row,
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (column, value) in self.table.columns.iter().zip(self.row) {
            match value {
                Value::Null => {}
                Value::Int(number) => map.serialize_entry(column.name, number)?,
                Value::Text(text) => map.serialize_entry(column.name, text)?,
                Value::Bytes(bytes) => map.serialize_entry(column.name, &STANDARD.encode(bytes))?,
            }
        }
        map.end()
    }
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A row.
    Row(&'static Table, Row),
    /// The last line, and everything before it is as it was written.
    End(BTreeMap<String, Counted>),
}

/// Reads the lines of a dump, given one after the other without their ends.
pub struct DumpReader {
    tally: Option<Tally>,
    line: u64,
    /// Which table the rows are of now; they come in the order of `TABLES`.
    table: usize,
}

#[derive(Deserialize)]
struct AnyLine<'a> {
    table: Option<&'a str>,
    #[serde(borrow)]
    row: Option<BTreeMap<&'a str, &'a RawValue>>,
    #[serde(borrow)]
    end: Option<&'a RawValue>,
}

impl DumpReader {
    /// Reads the first line.
    ///
    /// # Errors
    /// When it is not the first line of a dump that this binary can read.
    pub fn begin(line: &[u8]) -> Result<(Self, Header), DumpFault> {
        let fault = |what: &str| DumpFault { line: 1, what: what.to_owned() };
        #[derive(Deserialize)]
        struct Form {
            tidings_export: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
            version: String,
        }
        let form: Form = serde_json::from_slice(line).map_err(|_| fault("this is not what \"tidings export --freeze\" writes"))?;
        let Version { format, version } = form.tidings_export;
        if format > FORMAT {
            return Err(fault(&format!(
                "it has format {format}, of Tidings {version}; this binary reads format {FORMAT}: use a newer one"
            )));
        }
        let First { tidings_export } = serde_json::from_slice(line).map_err(|err| fault(&format!("the header cannot be read: {err}")))?;
        Ok((Self { tally: Some(Tally::new(line)), line: 1, table: 0 }, tidings_export))
    }

    /// Reads one more line.
    ///
    /// # Errors
    /// When it is not as it was written, as far as that can be told already.
    pub fn line(&mut self, line: &[u8]) -> Result<Read, DumpFault> {
        self.line += 1;
        let read = self.read(line);
        read.map_err(|what| DumpFault { line: self.line, what })
    }

    /// The fault of a dump that ends here.
    pub fn cut_short(&self) -> DumpFault {
        DumpFault { line: self.line + 1, what: "the dump ends before its last line: it was cut short".to_owned() }
    }

    fn read(&mut self, line: &[u8]) -> Result<Read, String> {
        if self.tally.is_none() {
            return Err("something stands behind the last line".to_owned());
        }
        let any: AnyLine<'_> = serde_json::from_slice(line).map_err(|err| format!("it cannot be read: {err}"))?;
        match any {
            AnyLine { table: Some(name), row: Some(row), end: None } => {
                let place = TABLES.iter().position(|table| table.name == name);
                let place = place.ok_or_else(|| format!("there is no table {name:?} here: use a newer binary"))?;
                if place < self.table {
                    return Err(format!("rows of {name} stand behind those of {}", TABLES[self.table].name));
                }
                self.table = place;
                if let Some(tally) = &mut self.tally {
                    tally.count(place, line);
                }
                Ok(Read::Row(&TABLES[place], values(&TABLES[place], row)?))
            }
            AnyLine { table: None, row: None, end: Some(end) } => self.end(end).map(Read::End),
            _ => Err("it is neither a row nor the last line".to_owned()),
        }
    }

    fn end(&mut self, end: &RawValue) -> Result<BTreeMap<String, Counted>, String> {
        let said: Last = serde_json::from_str(end.get()).map_err(|err| format!("the last line cannot be read: {err}"))?;
        let Some(tally) = self.tally.take() else { return Err("it stands twice".to_owned()) };
        let found = tally.last();
        if found.header_sha256 != said.header_sha256 {
            return Err("the header is not as it was written".to_owned());
        }
        for (name, said) in &said.tables {
            match found.tables.get(name) {
                None => return Err(format!("there is no table {name:?} here: use a newer binary")),
                Some(found) if found.rows != said.rows => {
                    return Err(format!("{name} has {} rows, but {} were written", found.rows, said.rows));
                }
                Some(found) if found.sha256 != said.sha256 => return Err(format!("the rows of {name} are not as they were written")),
                Some(_) => {}
            }
        }
        if let Some((name, _)) = found.tables.iter().find(|(name, found)| found.rows > 0 && !said.tables.contains_key(*name)) {
            return Err(format!("the rows of {name} were not counted"));
        }
        Ok(found.tables)
    }
}

fn values(table: &'static Table, mut fields: BTreeMap<&str, &RawValue>) -> Result<Row, String> {
    let mut row = Vec::with_capacity(table.columns.len());
    for column in table.columns {
        let Some(raw) = fields.remove(column.name) else {
            row.push(Value::Null);
            continue;
        };
        let value = value(column.kind, raw.get());
        row.push(value.ok_or_else(|| format!("{} of {} is not what it should be", column.name, table.name))?);
    }
    match fields.keys().next() {
        Some(unknown) => Err(format!("{} has no {unknown:?} here: use a newer binary", table.name)),
        None => Ok(row),
    }
}

fn value(kind: Kind, raw: &str) -> Option<Value> {
    match kind {
        Kind::Int | Kind::Flag | Kind::Instant | Kind::Day => serde_json::from_str(raw).ok().map(Value::Int),
        Kind::Text | Kind::Id | Kind::Words | Kind::Json => serde_json::from_str(raw).ok().map(Value::Text),
        Kind::Bytes => STANDARD.decode(serde_json::from_str::<String>(raw).ok()?).ok().map(Value::Bytes),
    }
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
