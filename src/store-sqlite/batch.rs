//! How a batch of rows travels into one statement: what rows have in common once, bytes as bytes.
//!
//! SQLite takes every field of a batch out of its argument by a function call, and those calls cost more than the rows
//! themselves. So a statement that writes many columns has two arguments. `?1` is JSON, `[[shape, [row, ...]], ...]`: a
//! shape is an object of the columns that its rows share, taken apart once (in a CTE that is MATERIALIZED), and a row
//! holds the others. `?2` is the bytes of all rows end to end: ids and digests go without hex and without decoding.

use serde::Serialize;

use crate::rows::json;

/// How many shapes back an equal one is looked for: most batches have one or two.
const LOOK_BACK: usize = 8;

/// Rows of one statement.
pub(crate) struct Batch<S, R> {
    shapes: Vec<(S, Vec<R>)>,
    look_back: usize,
    len: usize,
    bytes: Vec<u8>,
}

impl<S: PartialEq + Serialize, R: Serialize> Batch<S, R> {
    /// Rows that may be written in any order.
    pub(crate) const fn new() -> Self {
        Self { shapes: Vec::new(), look_back: LOOK_BACK, len: 0, bytes: Vec::new() }
    }

    /// Rows that are written in the order in which they are added.
    pub(crate) fn in_order() -> Self {
        Self { look_back: 1, ..Self::new() }
    }

    /// Adds bytes behind those that are there; tells where they begin, counted from 1 as `substr` does.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> usize {
        let place = self.bytes.len() + 1;
        self.bytes.extend_from_slice(bytes);
        place
    }

    /// Adds bytes that may be missing; tells how many they are.
    pub(crate) fn more(&mut self, bytes: Option<&[u8]>) -> Option<usize> {
        bytes.map(|bytes| {
            self.bytes(bytes);
            bytes.len()
        })
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, shape: S, row: R) {
        self.len += 1;
        match self.shapes.iter_mut().rev().take(self.look_back).find(|(known, _)| *known == shape) {
            Some((_, rows)) => rows.push(row),
            None => self.shapes.push((shape, vec![row])),
        }
    }

    /// How many rows were added.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The two arguments.
    pub(crate) fn into_arguments(self) -> (String, Vec<u8>) {
        (json(&self.shapes), self.bytes)
    }
}
