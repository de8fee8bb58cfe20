//! The store suite on PostgreSQL, with one process and with four on one database (S-247), and what only PostgreSQL has.

#[path = "../../../tests/store_suite/mod.rs"]
pub mod store_suite;

#[allow(dead_code, reason = "stories use the rest")]
#[path = "../../../tests/postgres.rs"]
pub mod postgres;

mod fresh;
mod only;

mod one_process {
    crate::store_suite!(crate::fresh::one_store);
}

mod four_processes {
    crate::store_suite!(crate::fresh::four_stores);
}
