//! What a machine can compute: the [`Backend`] trait and the backends that live in host memory.
//!
//! `reference` is scalar, safe and obviously right; `cpu` is fast. Both are the same [`host`]
//! glue over different inner loops, and the conformance suite holds one to the other.

pub mod backend;
pub mod conformance;
pub mod cpu;
mod ffi;
pub mod host;
pub mod reference;
pub mod tolerance;
mod weight_bytes;

pub use backend::{Backend, DeviceError};
pub use cpu::Cpu;
pub use weight_bytes::{WeightBytes, WeightSlab};
