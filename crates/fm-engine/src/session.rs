//! A conversation on disk: its messages and tokens, and what the model remembers of them.
//!
//! ```text
//! one line of JSON | what `Runner::save` wrote
//! ```

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use fm_format::new_file::NewFile;
use fm_model::runner::{RunError, SessionId};
use fm_text::Message;
use serde::{Deserialize, Serialize};

use crate::{engine::Engine, error::EngineError};

/// Version of the first line.
const VERSION: u32 = 1;

/// What stands in the first line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    version: u32,
    /// The messages so far; empty for raw text. Raw text after a chat is in the tokens alone.
    pub messages: Vec<Message>,
    /// All tokens so far, the latest included, which the model has not taken in yet.
    pub tokens: Vec<u32>,
}

/// Why a conversation cannot be saved or continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The file cannot be read or written.
    #[error("cannot transfer the session {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The first line is not a conversation of this version.
    #[error("{} is not a saved session of this version", path.display())]
    NotASession {
        /// The file.
        path: PathBuf,
    },
    /// What the model remembers cannot be written.
    #[error("cannot transfer the session {}", path.display())]
    Unsaved {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RunError,
    },
    /// The model does not accept what follows.
    #[error("the session {} cannot be continued", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RunError,
    },
}

impl Conversation {
    /// A conversation to save.
    pub fn new(messages: Vec<Message>, tokens: Vec<u32>) -> Self {
        Self { version: VERSION, messages, tokens }
    }

    /// Writes a conversation and its session, under a temporary name first: a failure or a crash
    /// leaves the earlier file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(
        &self,
        engine: &mut Engine,
        session: SessionId,
        path: &Path,
    ) -> Result<(), EngineError> {
        let io_error = |source| ConversationError::Io { path: path.to_path_buf(), source };
        let mut file = NewFile::create(path).map_err(io_error)?;
        serde_json::to_writer(&mut file, self).map_err(|error| io_error(error.into()))?;
        file.write_all(b"\n").map_err(io_error)?;
        let unsaved = |source| ConversationError::Unsaved { path: path.to_path_buf(), source };
        engine.runner.save(session, &mut file).map_err(unsaved)?;
        Ok(file.finish().map_err(io_error)?)
    }

    /// Says whether a conversation could be saved as `path`, before the work whose result it is.
    ///
    /// # Errors
    /// If no file can be made there.
    pub fn check(path: &Path) -> Result<(), EngineError> {
        let io_error = |source| ConversationError::Io { path: path.to_path_buf(), source };
        Ok(NewFile::create(path).map(drop).map_err(io_error)?)
    }

    /// Reads a conversation and opens its session.
    ///
    /// # Errors
    /// If the file is damaged, or of another model or other numerics.
    pub fn load(engine: &mut Engine, path: &Path) -> Result<(Self, SessionId), EngineError> {
        let io_error = |source| ConversationError::Io { path: path.to_path_buf(), source };
        let mut file = BufReader::new(File::open(path).map_err(io_error)?);
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line).map_err(io_error)?;
        let conversation: Self = serde_json::from_slice(&line)
            .ok()
            .filter(|conversation: &Self| conversation.version == VERSION)
            .ok_or_else(|| ConversationError::NotASession { path: path.to_path_buf() })?;
        let context = engine.plan.context;
        let session = engine
            .runner
            .load(context, &mut file)
            .map_err(|source| ConversationError::Refused { path: path.to_path_buf(), source })?;
        Ok((conversation, session))
    }
}
