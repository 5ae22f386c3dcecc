//! What bytes mean: checkpoint files, quant formats, expert records, the container.
//!
//! Knows names, offsets, blocks and checksums; knows neither networks nor devices.

#![forbid(unsafe_code)]

pub mod container;
pub mod error;
pub mod key;
pub mod new_file;
pub mod quant;
pub mod record;
pub mod source;
pub mod together;

pub use error::FormatError;

/// Bytes of files are counted in `usize`.
const _: () = assert!(usize::BITS >= 64);
