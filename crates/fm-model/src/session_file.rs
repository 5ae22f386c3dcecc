//! A session on disk: everything it remembers, tied to the model and the numerics it came from.
//!
//! ```text
//! magic | fingerprint u128 | position u32 | memories u32 | marks u32 | position u32 of each | XXH3-64
//! marks:  f32 … per delta-net layer: convolution history, recurrent memory | XXH3-64
//! blocks: per attention layer: keys, values, in the format that they are kept in | XXH3-64
//! ```
//! All numbers are little-endian. Every piece, the memories at a mark or a block, has its own checksum
//! and a length that is known, so that pieces can lie in other files too, each where it was written first.

use std::io::{self, Read, SeekFrom, Write};

use fm_kernels::{Backend, DeviceError, backend::KV_BLOCK_TOKENS};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    runner::{Piece, PieceBytes, Saved, Transfer},
    state::{Session, kv_blocks::KvPool},
};

const MAGIC: [u8; 8] = *b"fm-ses\x00\x02";

/// Marks that a file may have: a bound for what a damaged head can ask for.
const MARKS_MAX: usize = 4096;

/// Why a saved session cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFileError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not a session at all, or of an unknown version.
    #[error("this is not a saved session of this version")]
    NotASession,
    /// Of another model, or of other numerics: its values would mean nothing here.
    #[error(
        "the session was saved by another model, with other numerics, or with another format of keys and values"
    )]
    OtherModel,
    /// The bytes are not those that were written.
    #[error("the saved session is damaged: checksum {found:016x}, expected {expected:016x}")]
    Corrupt {
        /// Checksum at its end.
        expected: u64,
        /// Checksum of its bytes.
        found: u64,
    },
    /// It does not fit the context.
    #[error("the saved session has {position} tokens, the context holds {context_max}")]
    TooLong {
        /// Tokens of the session.
        position: u32,
        /// Tokens of the context.
        context_max: u32,
    },
    /// A piece that the session does not have.
    #[error("the session has no {piece:?}")]
    NotThere {
        /// The piece.
        piece: Piece,
    },
    /// The device failed while its memory was copied.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Marks of a session on disk: its own, and where it stands, if it has memories there.
pub(crate) fn marks<B: Backend>(session: &Session<B>) -> Vec<u32> {
    let marks = session.marks.iter().map(|mark| mark.position);
    let stands = session.position > session.marks.last().map_or(0, |mark| mark.position);
    let stands = (stands && !session.delta.is_empty()).then_some(session.position);
    marks.chain(stands).collect()
}

/// What stands before the pieces of a saved session.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) position: u32,
    pub(crate) memories: usize,
    pub(crate) marks: Vec<u32>,
}

impl Head {
    pub(crate) fn write(&self, fingerprint: u128, to: &mut dyn Write) -> io::Result<()> {
        let mut to = Hashed { inner: to, hash: Xxh3Default::new() };
        to.put(&MAGIC)?;
        to.put(&fingerprint.to_le_bytes())?;
        let counts = [self.position, self.memories as u32, self.marks.len() as u32];
        for number in counts.iter().chain(&self.marks) {
            to.put(&number.to_le_bytes())?;
        }
        to.put_checksum()
    }

    /// Reads and checks it.
    pub(crate) fn read(fingerprint: u128, from: &mut dyn Saved) -> Result<Self, SessionFileError> {
        let mut from = Hashed { inner: from, hash: Xxh3Default::new() };
        if from.take::<8>()? != MAGIC {
            return Err(SessionFileError::NotASession);
        }
        if u128::from_le_bytes(from.take()?) != fingerprint {
            return Err(SessionFileError::OtherModel);
        }
        let position = from.take_number()?;
        let (memories, marks) = (from.take_number()? as usize, from.take_number()? as usize);
        if marks > MARKS_MAX {
            return Err(SessionFileError::NotASession);
        }
        let marks = (0..marks).map(|_| from.take_number()).collect::<io::Result<_>>()?;
        from.check()?;
        Ok(Self { position, memories, marks })
    }

    /// Goes past so many of the memories.
    pub(crate) fn skip(
        marks: usize,
        bytes: PieceBytes,
        from: &mut dyn Saved,
    ) -> Result<(), SessionFileError> {
        from.seek(SeekFrom::Current((marks as u64 * bytes.memories) as i64))?;
        Ok(())
    }
}

/// Writes the next part of a piece, and a checksum behind the last one. Says whether it was the last.
pub(crate) fn write_part<B: Backend>(
    device: &B,
    (session, piece): (&Session<B>, Piece),
    pool: &KvPool<B>,
    transfer: &mut Transfer,
    to: &mut dyn Write,
) -> Result<bool, SessionFileError> {
    let mut to = Hashed { inner: to, hash: std::mem::take(&mut transfer.hash) };
    let parts = match piece {
        Piece::Memories(position) => {
            let memories =
                session.memories(position).ok_or(SessionFileError::NotThere { piece })?;
            let delta = memories.get(transfer.part).ok_or(SessionFileError::NotThere { piece })?;
            delta.read(device, &mut transfer.values)?;
            to.put_values(&transfer.values)?;
            memories.len()
        }
        Piece::Block(place) => {
            let block = session.table.blocks().get(place as usize);
            let block = *block.ok_or(SessionFileError::NotThere { piece })?;
            let tokens = session.position as usize - place as usize * KV_BLOCK_TOKENS;
            pool.read_part(device, (block, tokens), transfer.part, &mut transfer.bytes)?;
            to.put(&transfer.bytes)?;
            pool.parts()
        }
    };
    transfer.part += 1;
    let last = transfer.part == parts;
    if last {
        to.put_checksum()?;
        transfer.part = 0;
    }
    transfer.hash = to.hash;
    Ok(last)
}

/// Reads the next part of a piece, and the checksum behind the last one. Says whether it was the last.
pub(crate) fn read_part<B: Backend>(
    device: &B,
    (session, piece): (&mut Session<B>, Piece),
    pool: &mut KvPool<B>,
    transfer: &mut Transfer,
    from: &mut dyn Read,
) -> Result<bool, SessionFileError> {
    let part = transfer.part;
    let mut from = Hashed { inner: from, hash: std::mem::take(&mut transfer.hash) };
    let parts = match piece {
        Piece::Memories(_) => {
            let parts = session.delta.len();
            let delta = session.delta.get_mut(part);
            let delta = delta.ok_or(SessionFileError::NotThere { piece })?;
            let values = &mut transfer.values;
            values.resize(delta.len(), 0.0);
            from.take_values(values)?;
            delta.write(device, values)?;
            parts
        }
        Piece::Block(place) => {
            let block = session.table.blocks().get(place as usize);
            let block = *block.ok_or(SessionFileError::NotThere { piece })?;
            let bytes = &mut transfer.bytes;
            bytes.resize(pool.part_bytes(part), 0);
            from.take_bytes(bytes)?;
            pool.write_part(device, block, part, bytes)?;
            pool.parts()
        }
    };
    transfer.part += 1;
    let last = transfer.part == parts;
    if last {
        from.check()?;
        transfer.part = 0;
    }
    transfer.hash = from.hash;
    Ok(last)
}

/// A stream that remembers the hash of what went through.
struct Hashed<T> {
    inner: T,
    hash: Xxh3Default,
}

impl Hashed<&mut dyn Write> {
    /// Writes the checksum of all since the one before.
    fn put_checksum(&mut self) -> io::Result<()> {
        let checksum = std::mem::take(&mut self.hash).digest();
        self.inner.write_all(&checksum.to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }

    fn put_values(&mut self, values: &[f32]) -> io::Result<()> {
        // A few KiB at a time: the caller's writer may be unbuffered.
        let mut bytes = [0; 4096];
        for values in values.chunks(bytes.len() / 4) {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            self.put(&bytes[..values.len() * 4])?;
        }
        Ok(())
    }
}

/// An end where there should be more, in words.
fn early(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, "the file ends early"),
        _ => error,
    }
}

impl<T: Read + ?Sized> Hashed<&mut T> {
    /// Reads the checksum of all since the one before.
    fn check(&mut self) -> Result<(), SessionFileError> {
        let found = std::mem::take(&mut self.hash).digest();
        let mut expected = [0; size_of::<u64>()];
        self.inner.read_exact(&mut expected).map_err(early)?;
        let expected = u64::from_le_bytes(expected);
        if found != expected {
            return Err(SessionFileError::Corrupt { expected, found });
        }
        Ok(())
    }

    fn take_number(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.take_bytes(&mut bytes)?;
        Ok(bytes)
    }

    fn take_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes).map_err(early)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn take_values(&mut self, values: &mut [f32]) -> io::Result<()> {
        let mut bytes = [0; 4096];
        for values in values.chunks_mut(bytes.len() / 4) {
            let bytes = &mut bytes[..values.len() * 4];
            self.take_bytes(bytes)?;
            for (bytes, value) in bytes.chunks_exact(4).zip(values) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Ok(())
    }
}
