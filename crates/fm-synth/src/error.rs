//! Why a synthetic checkpoint was not written.

use std::{io, path::PathBuf};

/// What can go wrong. A failed run leaves nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// Weights of this width have no published layout.
    #[error("cannot write weights of {bits} bits; choose 2, 3, 4, 5, 6, 8, or 16 for plain bf16")]
    Bits {
        /// What was asked for.
        bits: u8,
    },

    /// More layers than the geometry has, or none.
    #[error("{geometry} has {max} layers; {layers} is not between 1 and {max}")]
    Layers {
        /// Name of the geometry.
        geometry: &'static str,
        /// What was asked for.
        layers: usize,
        /// What the true model has.
        max: usize,
    },

    /// There is something where the checkpoint should go.
    #[error("{} is not an empty directory; name a new one", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },

    /// The file system is too small.
    #[error(
        "the checkpoint takes {needed} bytes, but the file system of {} has {available} free; \
         write fewer layers or fewer bits, or write elsewhere", path.display()
    )]
    DiskFull {
        /// The directory.
        path: PathBuf,
        /// Bytes of all weight files.
        needed: u64,
        /// Bytes a user may still write.
        available: u64,
    },

    /// The file system failed.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The progress callback asked to stop.
    #[error("stopped after {bytes_done} of {bytes_total} bytes; nothing was kept")]
    Cancelled {
        /// Bytes written until then.
        bytes_done: u64,
        /// Bytes of the whole checkpoint.
        bytes_total: u64,
    },
}
