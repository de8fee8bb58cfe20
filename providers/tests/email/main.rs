//! Stories of the SMTP adapter and the MIME builder, told to a scripted server on loopback.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

mod dkim;
mod messages;
mod mime;
mod patience;
mod pool;
mod sessions;
mod stories;
mod transport;
mod trust;
