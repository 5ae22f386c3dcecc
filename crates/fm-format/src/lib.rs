//! What bytes mean: checkpoint files, quant formats, expert records, the container.
//!
//! Knows names, offsets, blocks and checksums; knows neither networks nor devices, and reads
//! nothing but headers and manifests.

#![forbid(unsafe_code)]

pub mod key;
pub mod quant;
pub mod record;
