//! Why a step, or a session, came to nothing.

use fm_kernels::DeviceError;

use super::SessionId;
use crate::{session_file::SessionFileError, state::kv_blocks::OutOfBlocks};

/// Why a step gave nothing at all. All sessions of the batch have fallen back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The caller broke off.
    #[error("cancelled")]
    Cancelled,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No room for more keys and values.
    #[error("session {} cannot grow", session.0)]
    OutOfBlocks {
        /// The session.
        session: SessionId,
        /// How many there are.
        source: OutOfBlocks,
    },
    /// A batch rests, and another one was to begin in its lane.
    #[error("a batch rests between two layers; another one cannot begin before it has ended")]
    SweepRests,
    /// A row names a session that is not open, or is in the batch that rests.
    #[error("session {} is not open", session.0)]
    UnknownSession {
        /// The session.
        session: SessionId,
    },
    /// A row does not continue its session.
    #[error("session {} stands at position {expected}, the row at {found}", session.0)]
    Position {
        /// The session.
        session: SessionId,
        /// The session's next position.
        expected: u32,
        /// The row's.
        found: u32,
    },
    /// A row that is to be fallen back to has others of its session behind it: see [`Wants::checkpoint`](super::Wants::checkpoint).
    #[error("session {} cannot fall back to position {position}, which is no step's end", session.0)]
    CheckpointWithin {
        /// The session.
        session: SessionId,
        /// The row's.
        position: u32,
    },
    /// A session would outgrow its context.
    #[error("session {} is full: its context has {context_max} tokens", session.0)]
    ContextFull {
        /// The session.
        session: SessionId,
        /// Its context.
        context_max: u32,
    },
    /// A token that the model has no embedding for.
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// More rows than were planned for.
    #[error("a batch has room for {max} rows, this one has {found}")]
    TooManyRows {
        /// Rows a batch may have.
        max: usize,
        /// Rows it has.
        found: usize,
    },
}

/// Why a session could not be opened, forked, saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The session is not open.
    #[error("session {} is not open", session.0)]
    UnknownSession {
        /// The session.
        session: SessionId,
    },
    /// As many sessions are open as were planned for.
    #[error("all {max} sessions that memory was planned for are open")]
    TooManySessions {
        /// Sessions that may be open.
        max: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A fork cannot start there: the session is not that long, or its recurrent memories at that
    /// position are gone.
    #[error("session {} cannot be continued from its first {tokens} tokens", session.0)]
    NotThere {
        /// The session.
        session: SessionId,
        /// Tokens that the fork was to begin with.
        tokens: u32,
    },
    /// No room for keys and values.
    #[error(transparent)]
    OutOfBlocks(#[from] OutOfBlocks),
    /// The saved session cannot be used.
    #[error(transparent)]
    File(#[from] SessionFileError),
}
