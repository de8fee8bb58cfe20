//! What the stories share: throw-away databases, the scripted SMTP peer, the gateway as a process, its client.

pub mod client;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod smtp_peer;
pub mod stage;
pub mod store_suite;
