//! A session on disk: everything it remembers, tied to the model and the numerics it came from.
//!
//! ```text
//! magic | fingerprint u128 | position u32 | memories u32 | blocks u32
//! memories: f32 …           one per delta-net layer: convolution history, recurrent memory
//! blocks:   f32 …           by position; every layer's keys, then its values
//! XXH3-64 of all before
//! ```
//! All numbers are little-endian.

use std::io::{self, Read, Write};

use fm_kernels::{Backend, DeviceError};
use xxhash_rust::xxh3::Xxh3Default;

use crate::state::{Session, kv_blocks::KvPool};

const MAGIC: [u8; 8] = *b"fm-ses\x00\x01";

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

/// Writes a session.
pub(crate) fn save<B: Backend>(
    device: &B,
    fingerprint: u128,
    session: &Session<B>,
    pool: &KvPool<B>,
    to: &mut dyn Write,
) -> Result<(), SessionFileError> {
    let mut to = Hashed { inner: to, hash: Xxh3Default::new() };
    let blocks = session.table.blocks();
    to.put(&MAGIC)?;
    to.put(&fingerprint.to_le_bytes())?;
    for number in [session.position, session.delta.len() as u32, blocks.len() as u32] {
        to.put(&number.to_le_bytes())?;
    }
    let mut values = Vec::new();
    for delta in &session.delta {
        delta.read(device, &mut values)?;
        to.put_values(&values)?;
    }
    values.resize(pool.block_len(), 0.0);
    for (i, &block) in blocks.iter().enumerate() {
        let first = i * fm_kernels::backend::KV_BLOCK_TOKENS;
        pool.read_block(device, block, session.position as usize - first, &mut values)?;
        to.put_values(&values)?;
    }
    let checksum = to.hash.digest();
    to.inner.write_all(&checksum.to_le_bytes())?;
    Ok(())
}

/// What the head of a saved session says.
pub(crate) struct Head {
    pub(crate) position: u32,
    memories: u32,
    blocks: u32,
    hash: Xxh3Default,
}

/// Reads and checks the head.
pub(crate) fn read_head(
    fingerprint: u128,
    context_max: u32,
    from: &mut dyn Read,
) -> Result<Head, SessionFileError> {
    let mut from = Hashed { inner: from, hash: Xxh3Default::new() };
    if from.take::<8>()? != MAGIC {
        return Err(SessionFileError::NotASession);
    }
    if u128::from_le_bytes(from.take()?) != fingerprint {
        return Err(SessionFileError::OtherModel);
    }
    let position = u32::from_le_bytes(from.take()?);
    if position > context_max {
        return Err(SessionFileError::TooLong { position, context_max });
    }
    let memories = u32::from_le_bytes(from.take()?);
    let blocks = u32::from_le_bytes(from.take()?);
    Ok(Head { position, memories, blocks, hash: from.hash })
}

/// Fills a session, whose blocks are already there, with what follows the head.
pub(crate) fn load_body<B: Backend>(
    device: &B,
    head: Head,
    session: &mut Session<B>,
    pool: &mut KvPool<B>,
    from: &mut dyn Read,
) -> Result<(), SessionFileError> {
    let blocks = session.table.blocks();
    if (head.memories as usize, head.blocks as usize) != (session.delta.len(), blocks.len()) {
        return Err(SessionFileError::NotASession);
    }
    let mut from = Hashed { inner: from, hash: head.hash };
    let mut values = Vec::new();
    for delta in &mut session.delta {
        values.resize(delta.len(), 0.0);
        from.take_values(&mut values)?;
        delta.write(device, &values)?;
    }
    values.resize(pool.block_len(), 0.0);
    for &block in blocks {
        from.take_values(&mut values)?;
        pool.write_block(device, block, &values)?;
    }
    let found = from.hash.digest();
    let mut expected = [0; 8];
    from.inner.read_exact(&mut expected)?;
    let expected = u64::from_le_bytes(expected);
    if found != expected {
        return Err(SessionFileError::Corrupt { expected, found });
    }
    session.position = head.position;
    session.set_checkpoint(device)?;
    Ok(())
}

/// A stream that remembers the hash of what went through.
struct Hashed<T> {
    inner: T,
    hash: Xxh3Default,
}

impl Hashed<&mut dyn Write> {
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

impl Hashed<&mut dyn Read> {
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
