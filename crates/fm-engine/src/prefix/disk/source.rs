//! Reads a session's pieces from its segments, one behind the other.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

use fm_model::{
    Runner,
    runner::{Loading, Piece, PieceBytes, RunError},
    session_file::SessionFileError,
};

use super::entry::{Entry, Place, SEGMENT_HEAD, segment_head};

/// Bytes that are read at once: parts of blocks that are longer go past the buffer.
pub(super) const READ_BYTES: usize = 1 << 15;

/// Why a session on disk cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A file cannot be read, or is too short.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// A file does not say what it should.
    #[error("it is no part of a kept prompt, or of another model's")]
    Foreign,
    /// The model does not accept it.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Damage {
    /// Whether the files themselves are not what they were. A system that is short of open files or of memory
    /// says nothing of them.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::Foreign => true,
            Self::Io(error) | Self::Run(RunError::File(SessionFileError::Io(error))) => {
                is_lasting(error)
            }
            Self::Run(RunError::File(error)) => !matches!(error, SessionFileError::Device(_)),
            Self::Run(_) => false,
        }
    }
}

/// See [`Damage::is_lasting`].
fn is_lasting(error: &io::Error) -> bool {
    let gone = matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound | io::ErrorKind::InvalidData
    );
    #[cfg(unix)]
    let gone = gone || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::IO);
    gone
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Source {
    pub(super) entry: Arc<Entry>,
    pub(super) dir: PathBuf,
    pub(super) fingerprint: u128,
    pub(super) bytes: PieceBytes,
    /// The segment that is open, and where it is read.
    pub(super) open: Option<(u64, BufReader<File>)>,
    /// The piece that is on its way.
    pub(super) piece: Option<Piece>,
}

impl Source {
    /// Reads a part more of what a session lacks.
    pub(crate) fn load_part(
        &mut self,
        runner: &mut dyn Runner,
        loading: &mut Loading,
    ) -> Result<(), Damage> {
        let Some(piece) = loading.next() else { return Ok(()) };
        if self.piece != Some(piece) {
            let place = self.entry.place(piece, self.bytes).ok_or(Damage::Foreign)?;
            self.piece = Some(piece);
            self.go_to(place)?;
        }
        let (_, from) = self.open.as_mut().ok_or(Damage::Foreign)?;
        Ok(runner.load_part(loading, from)?)
    }

    fn go_to(&mut self, place: Place) -> Result<(), Damage> {
        if let Some((segment, file)) = &mut self.open
            && *segment == place.segment
        {
            let from = file.stream_position()?;
            file.seek_relative(place.offset as i64 - from as i64)?;
            return Ok(());
        }
        let path = super::segment_path(&self.dir, place.segment);
        let file = File::open(path)?;
        is_read_in_order(&file);
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let mut head = [0; SEGMENT_HEAD];
        file.read_exact(&mut head)?;
        if head != segment_head(self.fingerprint, place.segment) {
            return Err(Damage::Foreign);
        }
        file.seek(SeekFrom::Start(place.offset))?;
        self.open = Some((place.segment, file));
        Ok(())
    }
}

/// Lets the system read further ahead of what it is asked for; what it does not know costs time only. A range that
/// is announced as needed would come in single pages, at half the speed (`docs/experiments/0084`).
#[cfg(target_os = "linux")]
fn is_read_in_order(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
}

#[cfg(not(target_os = "linux"))]
fn is_read_in_order(_: &File) {}
