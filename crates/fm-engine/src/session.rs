//! A conversation on disk: its messages and tokens, and what the model remembers of them.
//!
//! ```text
//! one line: XXH3 of what follows in it, a space, a conversation in JSON | what `Runner::save` wrote
//! ```

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use fm_format::new_file::NewFile;
use fm_model::runner::{RunError, SessionId};
use fm_text::Message;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{engine::Engine, error::EngineError, prefix::common};

/// Version of the first line.
const VERSION: u32 = 2;

/// A line is no longer than this: another file may have none.
const LINE_BYTES_MAX: u64 = 256 << 20;

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
    #[error("cannot read or write the session {}", path.display())]
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
    /// The first line is not what was written.
    #[error("the session {} is damaged: its messages and tokens are not those that were saved", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// What the model remembers cannot be written.
    #[error("cannot read or write the session {}", path.display())]
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
        let mut file = NewFile::create_private(path).map_err(io_error)?;
        let json = serde_json::to_string(self).map_err(|error| io_error(error.into()))?;
        writeln!(file, "{:016x} {json}", xxh3_64(json.as_bytes())).map_err(io_error)?;
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
        Ok(NewFile::create_private(path).map(drop).map_err(io_error)?)
    }

    /// Reads a conversation and opens its session.
    ///
    /// # Errors
    /// If the file is damaged, or of another model or other numerics.
    pub fn load(engine: &mut Engine, path: &Path) -> Result<(Self, SessionId), EngineError> {
        let io_error = |source| ConversationError::Io { path: path.to_path_buf(), source };
        let mut file = BufReader::new(File::open(path).map_err(io_error)?);
        let mut line = Vec::new();
        file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(io_error)?;
        let conversation = Self::read(&line, path)?;
        let context = engine.plan.context;
        let session = engine
            .runner
            .load(context, &mut file)
            .map_err(|source| ConversationError::Refused { path: path.to_path_buf(), source })?;
        Ok((conversation, session))
    }

    /// The session of this conversation as far as a prompt goes on from it, and how many of its tokens that are: a template
    /// may write earlier turns differently than they were generated. Models with recurrent layers go on from its end
    /// only. One token of the prompt at least is left to be computed.
    ///
    /// # Errors
    /// If the session is not open.
    pub fn reuse(
        &self,
        engine: &mut Engine,
        session: SessionId,
        prompt: &[u32],
    ) -> Result<(SessionId, u32), EngineError> {
        let (runner, context) = (engine.runner.as_mut(), engine.plan.context);
        let held = runner.position(session)?;
        let most = held.min(prompt.len().saturating_sub(1) as u32);
        let common = common(&self.tokens, &prompt[..most as usize]) as u32;
        if common == held {
            return Ok((session, held));
        }
        let shared = runner.forkable(session, common);
        let fork = (shared > 0).then(|| {
            // Set aside it does not count as open.
            runner.keep(session)?;
            runner.fork(session, shared, context)
        });
        runner.close(session);
        match fork {
            Some(Ok(fork)) => Ok((fork, shared)),
            // There may be no room for both.
            _ => Ok((runner.open(context)?, 0)),
        }
    }

    /// The conversation that a first line is.
    fn read(line: &[u8], path: &Path) -> Result<Self, ConversationError> {
        let not_a_session = || ConversationError::NotASession { path: path.to_path_buf() };
        let line = str::from_utf8(line).map_err(|_| not_a_session())?.trim_end_matches('\n');
        let (checksum, json) = line.split_once(' ').ok_or_else(not_a_session)?;
        let checksum = u64::from_str_radix(checksum, 16).map_err(|_| not_a_session())?;
        if checksum != xxh3_64(json.as_bytes()) {
            return Err(ConversationError::Damaged { path: path.to_path_buf() });
        }
        let conversation: Option<Self> = serde_json::from_str(json).ok();
        conversation.filter(|found| found.version == VERSION).ok_or_else(not_a_session)
    }
}
