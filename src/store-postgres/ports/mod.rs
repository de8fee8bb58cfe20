//! The ports of `tidings-core` that the store keeps, each as calls of the modules that hold the SQL. `Store` itself, which
//! hands them out, is in the crate's root.

mod governing;
mod sending;
mod showing;
