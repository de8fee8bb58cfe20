//! The store suite on SQLite, and what SQLite alone promises.

#[allow(unreachable_pub, reason = "the suite is a module of more than one crate")]
#[path = "../../../tests/store_suite/mod.rs"]
pub mod store_suite;

mod own;

store_suite!(own::fresh);
