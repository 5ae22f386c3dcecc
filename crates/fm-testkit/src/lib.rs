//! What the other crates are tested with, and what none of them is built with.
//!
//! * [`noise`]: the same random numbers on every machine, from a seed.
//! * [`tiny_checkpoint`]: checkpoints of a few hundred kilobytes, made of noise, in the layouts
//!   and spellings of the real ones; [`ugly`] lists shapes that break wrong assumptions.
//! * [`oracle`]: the model families a second time, in f64, written from the equations and
//!   from nothing else, so that a mistake has to be made twice to stay hidden.
//! * [`golden`]: what the official implementations answered, read from `golden/`.
//! * [`hub`]: a hub with its CDN on this machine, and what can go wrong with them.
//! * [`counting_alloc`]: a global allocator that counts.
//!
//! This is test support: everything here panics instead of returning an error.

#![deny(unsafe_code)]
// A panic is how test support reports a problem, so a section on it in every item says nothing.
#![allow(clippy::missing_panics_doc)]

pub mod compare;
#[allow(unsafe_code)] // a global allocator cannot be written without
pub mod counting_alloc;
pub mod golden;
pub mod hub;
pub mod noise;
pub mod oracle;
pub mod tiny_checkpoint;
pub mod ugly;
