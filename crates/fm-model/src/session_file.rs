//! A session on disk: everything it remembers, tied to the model and the numerics it came from.
//!
//! ```text
//! magic | fingerprint u128 | position u32 | memories u32 | marks u32 | position u32 of each | XXH3-64
//! marks:  f32 … per delta-net layer: convolution history, recurrent memory | XXH3-64
//! blocks: f32 … per attention layer: keys, values | XXH3-64
//! ```
//! All numbers are little-endian. Every piece has its own checksum and a length that is known, so that
//! the beginning of a session can be read alone.

use std::io::{self, Read, SeekFrom, Write};

use fm_kernels::{Backend, DeviceError, backend::KV_BLOCK_TOKENS};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    runner::Saved,
    state::{Session, delta_state::DeltaState, kv_blocks::KvPool},
};

const MAGIC: [u8; 8] = *b"fm-ses\x00\x02";

/// Marks that a file may have: a bound for what a damaged head can ask for.
const MARKS_MAX: usize = 4096;

/// Why a saved session cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFileError {
    /// Reading or writing failed.
    #[error("cannot transfer the session")]
    Io(#[from] io::Error),
    /// Not a session at all, or of an unknown version.
    #[error("this is not a saved session of this version")]
    NotASession,
    /// Of another model, or of other numerics: its values would mean nothing here.
    #[error("the session was saved by another model or with other numerics")]
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
    /// The device failed while its memory was copied.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Writes a session of a model with so many recurrent memories.
pub(crate) fn save<B: Backend>(
    device: &B,
    (fingerprint, memories): (u128, usize),
    session: &Session<B>,
    pool: &KvPool<B>,
    to: &mut dyn Write,
) -> Result<(), SessionFileError> {
    let mut to = Hashed { inner: to, hash: Xxh3Default::new() };
    let marks = session.marks.iter().map(|mark| mark.position);
    let stands = session.position > session.marks.last().map_or(0, |mark| mark.position);
    let stands = (stands && !session.delta.is_empty()).then_some(session.position);
    let marks: Vec<u32> = marks.chain(stands).collect();
    to.put(&MAGIC)?;
    to.put(&fingerprint.to_le_bytes())?;
    for number in [session.position, memories as u32, marks.len() as u32].iter().chain(&marks) {
        to.put(&number.to_le_bytes())?;
    }
    to.put_checksum()?;
    let mut values = Vec::new();
    for mark in marks {
        for delta in session.memories(mark).into_iter().flatten() {
            delta.read(device, &mut values)?;
            to.put_values(&values)?;
        }
        to.put_checksum()?;
    }
    for (i, &block) in session.table.blocks().iter().enumerate() {
        let tokens = session.position as usize - i * KV_BLOCK_TOKENS;
        let mut put = |values: &[f32]| Ok(to.put_values(values)?);
        pool.read_block(device, (block, tokens), &mut values, &mut put)?;
        to.put_checksum()?;
    }
    Ok(())
}

/// What the head of a saved session says.
pub(crate) struct Head {
    position: u32,
    memories: usize,
    marks: Vec<u32>,
}

impl Head {
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

    /// The longest beginning of at most `tokens` tokens that a session can be made of.
    pub(crate) fn beginning(&self, tokens: u32, context_max: u32) -> Result<u32, SessionFileError> {
        let beginning = if self.memories == 0 {
            self.position.min(tokens)
        } else {
            self.marks.iter().copied().filter(|mark| *mark <= tokens).max().unwrap_or(0)
        };
        if beginning > context_max {
            return Err(SessionFileError::TooLong { position: beginning, context_max });
        }
        Ok(beginning)
    }

    /// Reads the memories at `position`, a beginning, and goes on to where the blocks are.
    pub(crate) fn read_memories<B: Backend>(
        &self,
        device: &B,
        position: u32,
        session: &mut Session<B>,
        from: &mut dyn Saved,
    ) -> Result<(), SessionFileError> {
        if self.memories != session.delta.len() {
            return Err(SessionFileError::NotASession);
        }
        let values: usize = session.delta.iter().map(DeltaState::len).sum();
        let bytes = (4 * values + size_of::<u64>()) as i64;
        let at = self.marks.iter().position(|mark| *mark == position);
        let (before, after) = match at {
            Some(at) => (at, self.marks.len() - at - 1),
            None => (self.marks.len(), 0),
        };
        from.seek(SeekFrom::Current(before as i64 * bytes))?;
        if at.is_some() {
            let mut from = Hashed { inner: &mut *from, hash: Xxh3Default::new() };
            let mut values = Vec::new();
            for delta in &mut session.delta {
                values.resize(delta.len(), 0.0);
                from.take_values(&mut values)?;
                delta.write(device, &values)?;
            }
            from.check()?;
        }
        from.seek(SeekFrom::Current(after as i64 * bytes))?;
        Ok(())
    }
}

/// Reads one block.
pub(crate) fn read_block<B: Backend>(
    device: &B,
    block: u32,
    pool: &mut KvPool<B>,
    from: &mut dyn Saved,
) -> Result<(), SessionFileError> {
    let mut from = Hashed { inner: from, hash: Xxh3Default::new() };
    let mut take = |values: &mut [f32]| Ok(from.take_values(values)?);
    pool.write_block(device, block, &mut Vec::new(), &mut take)?;
    from.check()
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

impl<T: Read + ?Sized> Hashed<&mut T> {
    /// Reads the checksum of all since the one before.
    fn check(&mut self) -> Result<(), SessionFileError> {
        let found = std::mem::take(&mut self.hash).digest();
        let mut expected = [0; size_of::<u64>()];
        self.inner.read_exact(&mut expected)?;
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
        self.inner.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        Ok(bytes)
    }

    fn take_values(&mut self, values: &mut [f32]) -> io::Result<()> {
        let mut bytes = [0; 4096];
        for values in values.chunks_mut(bytes.len() / 4) {
            let bytes = &mut bytes[..values.len() * 4];
            self.inner.read_exact(bytes)?;
            self.hash.update(bytes);
            for (bytes, value) in bytes.chunks_exact(4).zip(values) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Ok(())
    }
}
