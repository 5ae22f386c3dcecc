//! Reading a header that may be a lie: nothing is allocated for bytes that are not there.

use std::io::Read;

use super::{GgufError, error::HeaderError};

/// A place in a file of known length.
pub(super) struct Cursor<R> {
    reader: R,
    at: u64,
    end: u64,
    /// What is being read, for errors.
    pub(super) field: String,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(reader: R, file_bytes: u64) -> Self {
        Self { reader, at: 0, end: file_bytes, field: "header".to_owned() }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Checks that `count` things of at least `bytes` bytes each can still come.
    pub(super) fn expect(&self, count: u64, bytes: u64) -> Result<(), GgufError> {
        let (needed, left) = (count.saturating_mul(bytes), self.end - self.at);
        if needed <= left {
            return Ok(());
        }
        Err(GgufError::Short { field: self.field.clone(), at: self.at, needed, left })
    }

    pub(super) fn bytes(&mut self, count: u64) -> Result<Vec<u8>, HeaderError> {
        self.expect(count, 1)?;
        let mut bytes = vec![0; count as usize];
        self.reader.read_exact(&mut bytes).map_err(HeaderError::Io)?;
        self.at += count;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        self.expect(N as u64, 1)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(HeaderError::Io)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, HeaderError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, HeaderError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Length and text.
    pub(super) fn text(&mut self) -> Result<String, HeaderError> {
        let bytes = self.u64()?;
        let at = self.at;
        let text = String::from_utf8(self.bytes(bytes)?);
        text.map_err(|_| GgufError::Text { field: self.field.clone(), at }.into())
    }
}
