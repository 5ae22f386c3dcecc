//! Whole models through the engine: the same bits under every circumstance, and faults that spoil
//! nothing but what they touch.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![cfg_attr(not(target_os = "linux"), allow(unused_imports))] // some tests are of one system

mod cancelled;
mod channels;
mod eval;
mod faults;
mod fingerprint;
mod generation;
mod grammar;
mod harness;
mod io;
mod options_document;
mod packed;
mod prefix;
mod prefix_disk;
mod prefix_places;
mod prefix_room;
mod report_document;
mod sameness;
mod schedule;
mod stalls;
mod traces;
mod walk;
mod warm_start;
