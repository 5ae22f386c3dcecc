//! What can stop a conversion or a verification.

use std::{io, path::PathBuf};

use fm_format::FormatError;
use fm_model::LoadError;

/// Why there is no container, or why it could not be checked. Messages say what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// Bytes on disk are not what they should be.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// The checkpoint is of no family this build runs.
    #[error(transparent)]
    Load(#[from] LoadError),

    /// There is nothing to convert.
    #[error("{} is a container already", path.display())]
    ContainerSource {
        /// The directory.
        path: PathBuf,
    },

    /// The container would change the directory it is made from.
    #[error(
        "{} lies inside the checkpoint {}, which is never changed; choose another place",
        out.display(), checkpoint.display()
    )]
    InsideSource {
        /// Where the container should go.
        out: PathBuf,
        /// What it is made from.
        checkpoint: PathBuf,
    },

    /// Something is there that no conversion has put there.
    #[error(
        "{} holds {}, which is not ours; choose an empty or a new directory",
        out.display(), entry.display()
    )]
    Occupied {
        /// Where the container should go.
        out: PathBuf,
        /// What is in the way.
        entry: PathBuf,
    },

    /// Something lies amid half a conversion that it has not put there.
    #[error(
        "{} holds {}, which is not ours; remove it, and the conversion goes on",
        out.display(), entry.display()
    )]
    InTheWay {
        /// Where the container goes.
        out: PathBuf,
        /// What is in the way.
        entry: PathBuf,
    },

    /// A container, or a part of one, made from something else.
    #[error(
        "{} was made from another checkpoint; choose another directory, or delete it",
        out.display()
    )]
    OtherSource {
        /// Where the container should go.
        out: PathBuf,
    },

    /// The note of what is finished cannot be read.
    #[error("{} is damaged, so nothing can be resumed; delete its directory", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
    },

    /// Somebody else is at it.
    #[error("another process is converting into {}", out.display())]
    Busy {
        /// Where the container should go.
        out: PathBuf,
    },

    /// The container would not fit; nothing was written.
    #[error(
        "not enough space for {}: it needs {needed} more bytes, {free} are free; \
         free at least {}", out.display(), needed.saturating_sub(*free)
    )]
    NoSpace {
        /// Where the container should go.
        out: PathBuf,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes the file system has left.
        free: u64,
    },

    /// The file system filled up on the way.
    #[error(
        "the file system is full, {bytes} bytes into {}; \
         free some space and run the same command again", path.display()
    )]
    DiskFull {
        /// The file that could not be written.
        path: PathBuf,
        /// How much of it was.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },

    /// The file system refused something else.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file or directory that has to be looked at cannot be.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The caller asked to stop.
    #[error("stopped; run it again to continue")]
    Cancelled,

    /// A published checkpoint has no checksums of its own.
    #[error("no checksums are known for {}; record them first", dir.display())]
    NotRecorded {
        /// The checkpoint.
        dir: PathBuf,
    },

    /// The files are not those that were recorded.
    #[error("{} is another file than was recorded: its name, its length or its header is another", path.display())]
    Replaced {
        /// The first of them.
        path: PathBuf,
    },

    /// The files are those that were recorded, and something else makes another model of them.
    #[error("{} has other tensors than were recorded", dir.display())]
    OtherTensors {
        /// The checkpoint.
        dir: PathBuf,
    },

    /// What was recorded cannot be read.
    #[error("the checksums that were recorded of {} are damaged; record them again", dir.display())]
    RecordDamaged {
        /// The checkpoint.
        dir: PathBuf,
    },
}
