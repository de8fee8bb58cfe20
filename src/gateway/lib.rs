//! The Tidings service: HTTP, workers and the command line around the decisions of `tidings-core`.

pub mod accounts;
pub mod acts;
pub mod api;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod copies;
pub mod dispatch;
pub mod event;
pub mod freeze;
pub mod herald;
pub mod intake;
pub mod keeper;
pub mod keys;
pub mod logging;
pub mod metrics;
pub mod notify;
pub mod pauses;
pub mod pump;
pub mod reload;
pub mod retention;
pub mod routing;
pub mod sealed;
pub mod serve;
pub mod setup;
pub mod slots;
pub mod store;
#[cfg(test)]
mod structure;
pub mod wake;
pub mod writer;
