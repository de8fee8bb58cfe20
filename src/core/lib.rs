//! The decisions of Tidings: states, retries, routing, ambiguity, validation, and the ports that carry them out.
//!
//! Nothing here touches a clock, a socket, a database or randomness: time, random bytes and stored facts come in as
//! arguments, decisions go out as values. The stores, the send adapters and the webhook dialects stand around this
//! crate and depend on it; it depends on none of them.

pub mod acts;
pub mod adapter;
pub mod address;
pub mod content;
pub mod crash;
pub mod daily;
pub mod delivery;
pub mod differs;
pub mod events;
pub mod fault;
pub mod fingerprint;
pub mod ids;
pub mod json;
pub mod judge;
pub mod key_expiry;
pub mod listing;
pub mod moving;
pub mod nearest;
pub mod operational;
pub mod order;
pub mod outcome;
pub mod owners;
pub mod pace;
pub mod pointer;
pub mod policy;
pub mod pool;
pub mod rate;
pub mod request;
pub mod retention;
pub mod route;
#[cfg(test)]
mod sample;
pub mod sandbox;
pub mod secrets;
pub mod senders;
pub mod slices;
pub mod state;
pub mod status;
pub mod store;
pub mod suppression;
pub mod switches;
pub mod time;
pub mod transition;
pub mod words;
