//! The store against a model of itself, against disks that fail, and against real files.
#![allow(clippy::unwrap_used, reason = "in a test the panic is the message")]

mod ahead;
mod failures;
mod files;
mod model;
mod replay;
mod sim_disk;
mod streaming;
mod warm;
mod world;
