//! Everything that can go wrong between a request and its bytes, with where and how much.

use std::{fmt, io, path::PathBuf, sync::Arc};

use fm_format::key::{ExpertKey, LayerIndex};

/// A part of a record with a checksum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordPart {
    /// `gate_proj` and `up_proj`.
    GateUp,
    /// `down_proj`.
    Down,
}

impl fmt::Display for RecordPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GateUp => "gate and up",
            Self::Down => "down",
        })
    }
}

/// Why the store cannot open or an expert cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file of the catalog cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// A file ends before the last expert that should be in it.
    #[error(
        "{} is truncated: it has {found} bytes and its experts need {expected}; fetch it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes it needs to have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },

    /// Somebody has written into a file since it was opened: nothing that is read of it can be trusted.
    #[error("{} has changed since the model was loaded", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },

    /// Direct reads were asked for, and the file system does not offer them.
    #[error("{} cannot be read directly; choose buffered or automatic reading", path.display())]
    DirectRefused {
        /// The file that was tried.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// io_uring was asked for, and the kernel does not offer it.
    #[error("the kernel refuses an io_uring; choose the pread reader or automatic choice")]
    RingRefused {
        /// What the operating system said.
        source: io::Error,
    },

    /// The reader's threads cannot be started.
    #[error("cannot start the reader's threads")]
    Threads {
        /// What the operating system said.
        source: io::Error,
    },

    /// The smallest working set does not fit.
    #[error(
        "an expert store of {budget} bytes cannot hold {top_k} experts of every record size; \
         give it at least {minimum} bytes"
    )]
    BudgetTooSmall {
        /// What it was given.
        budget: u64,
        /// What it needs.
        minimum: u64,
        /// Experts that one token needs at once.
        top_k: usize,
    },

    /// The operating system has no memory for slots.
    #[error("cannot map {bytes} bytes for expert slots; give the store a smaller budget")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What the operating system said.
        source: io::Error,
    },

    /// The file system failed, again and again.
    #[error(
        "{key}: cannot read {bytes} bytes at offset {offset} of {} ({attempts} attempts)",
        path.display()
    )]
    Read {
        /// The expert that is missing.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// First byte wanted.
        offset: u64,
        /// Bytes wanted.
        bytes: usize,
        /// How often it was tried.
        attempts: u32,
        /// What the operating system said last.
        source: io::Error,
    },

    /// The file gave fewer bytes than its manifest says, again and again.
    #[error(
        "{key}: {} has {found} of the {expected} bytes wanted at offset {offset}", path.display()
    )]
    ShortRead {
        /// The expert that is missing.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// First byte wanted.
        offset: u64,
        /// Bytes wanted.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },

    /// The bytes arrived but are not the bytes that were written.
    #[error(
        "{key} is corrupt: {part} at offset {offset} of {} has checksum {found:016x}, the manifest \
         says {expected:016x}",
        path.display()
    )]
    Corrupt {
        /// The expert that is missing.
        key: ExpertKey,
        /// The part that is wrong.
        part: RecordPart,
        /// The file in which the part begins.
        path: PathBuf,
        /// Where in that file.
        offset: u64,
        /// Checksum in the manifest.
        expected: u64,
        /// Checksum of the bytes that were read twice.
        found: u64,
    },

    /// The reader panicked over this record: its catalog contradicts itself.
    #[error("{key}: the reader panicked; the catalog's pieces do not fit the record")]
    ReaderPanicked {
        /// The expert that is missing.
        key: ExpertKey,
    },

    /// The kernel failed over the ring, which reads nothing more.
    #[error(
        "{key} cannot be read: the io_uring failed; open the store again, or with the pread reader"
    )]
    RingFailed {
        /// The expert that is missing.
        key: ExpertKey,
        /// What the operating system said when it failed.
        source: Arc<io::Error>,
    },

    /// Every slot is leased, so nothing can arrive. The ticket stays valid.
    #[error(
        "all {slots} slots for layer {} are leased; drop a lease (wait for the device) and \
         call again", layer.0
    )]
    SlotsExhausted {
        /// The layer that waits.
        layer: LayerIndex,
        /// Slots of its size class.
        slots: usize,
    },

    /// A trace is to be judged by the scores of all experts.
    #[error("`observe` sees the scores of all experts, and the trace has none")]
    NoScores,

    /// Too many requests are open at once.
    #[error("{limit} requests are already open; finish or drop a ticket first")]
    TooManyTickets {
        /// How many may be.
        limit: usize,
    },
}
