//! The families against recorded outputs of other implementations, and against the oracle.

mod golden;
mod harness;
mod refusal;
mod sameness;
mod ugly;
