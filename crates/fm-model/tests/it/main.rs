//! The families against recorded outputs of other implementations, and against the oracle.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(clippy::print_stdout)] // the distances reached are worth reading

#[macro_use]
mod harness;

mod config;
mod gguf;
mod golden;
mod half_kv;
mod kept;
mod latent;
mod packed;
mod refusal;
mod rope;
mod sameness;
mod sessions;
mod ugly;
