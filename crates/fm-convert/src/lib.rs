//! From published checkpoints to containers: streaming, resumable, in bounded memory. And the check
//! that bytes are still what they were.
//!
//! * [`Conversion`] writes a container; killed at any point, the same call finishes it.
//! * [`verify`](verify::verify) re-reads everything and compares it with its checksums.
//! * [`record`](record::record) makes checksums for a checkpoint that was published without.
//!
//! The layout of a container is in `docs/container.md` and in [`fm_format::container`].

#![forbid(unsafe_code)]

mod convert;
pub mod disk;
mod error;
mod fingerprint;
mod journal;
mod output;
pub mod progress;
pub mod record;
mod records;
mod source;
mod staged;
mod trunk;
pub mod verify;

pub use convert::{BUFFER_BYTES, Conversion, Outcome};
pub use error::ConvertError;
pub use progress::{Phase, Progress};
