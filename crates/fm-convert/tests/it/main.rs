//! Conversions of tiny checkpoints: what comes out, what stops them, what survives.

// Test support outside `#[test]` functions panics, too.
#![allow(clippy::unwrap_used)]
#![cfg_attr(not(target_os = "linux"), allow(unused_imports))] // some tests are of one system

mod conversion;
mod crash;
mod harness;
mod hostile;
mod kill;
mod refusal;
mod sim_disk;
mod verify;
