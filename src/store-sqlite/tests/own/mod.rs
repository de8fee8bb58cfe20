//! What SQLite alone promises: one process, one transaction for a whole batch, plans that use their indexes.

#![allow(clippy::unwrap_used, reason = "a promise that cannot be checked is broken")]

mod fresh;
mod one_writer;
mod opening;
mod plans;
mod scale;

pub(crate) use fresh::fresh;
