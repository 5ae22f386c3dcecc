//! Opened files of a checkpoint, for what is read once: the trunk.
//!
//! Tensors with checksums are checked while they are read. Whoever reads a tensor in another order
//! than it is stored, or only some of its rows, leaves that to [`Files::check_rest`].

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    error::FormatError,
    record::{Extent, FileIndex},
    together::together,
};

/// Bytes that are read for a checksum at once: they stay in the cache of a core.
const CHECK_BYTES: usize = 1 << 20;

/// See the module. Several threads may read at once.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    opened: Vec<OnceLock<File>>,
    /// Ascending by file and offset.
    expected: Vec<Expected>,
}

/// What the bytes of a tensor should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorChecksum {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub extent: Extent,
    /// XXH3-64 of its bytes.
    pub checksum: u64,
}

#[derive(Debug)]
struct Expected {
    tensor: TensorChecksum,
    state: AtomicU8,
}

/// Nobody has read the tensor.
const UNREAD: u8 = 0;
/// Somebody has read something of it.
const READ: u8 = 1;
/// Its bytes have been found right.
const CHECKED: u8 = 2;

impl Files {
    /// Prepares to read from `paths`; nothing is opened yet.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let opened = paths.iter().map(|_| OnceLock::new()).collect();
        Self { paths, opened, expected: Vec::new() }
    }

    /// The same files, of which some tensors have checksums.
    #[must_use]
    pub fn with_checksums(mut self, mut tensors: Vec<TensorChecksum>) -> Self {
        tensors.sort_by_key(|tensor| (tensor.extent.file, tensor.extent.offset));
        let unread = |tensor| Expected { tensor, state: AtomicU8::new(UNREAD) };
        self.expected = tensors.into_iter().map(unread).collect();
        self
    }

    fn open(&self, file: FileIndex) -> io::Result<&File> {
        let slot = &self.opened[file.0 as usize];
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        let opened = File::open(&self.paths[file.0 as usize])?;
        Ok(slot.get_or_init(|| opened))
    }

    /// The tensor with a checksum that holds this byte.
    fn expected_at(&self, file: FileIndex, offset: u64) -> Option<&Expected> {
        let after = self.expected.partition_point(|expected| {
            let Extent { file: other, offset: first, .. } = expected.tensor.extent;
            (other, first) <= (file, offset)
        });
        let found = self.expected.get(after.checked_sub(1)?)?;
        let Extent { file: other, offset: first, bytes } = found.tensor.extent;
        (other == file && offset < first + bytes).then_some(found)
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If the file cannot be opened or ends early: a short read is an error, never zeros.
    pub fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let read = self.open(file).and_then(|opened| read_exact_at(opened, offset, out));
        read.map_err(|source| FormatError::Io {
            path: self.paths[file.0 as usize].clone(),
            source,
        })?;
        if let Some(expected) = self.expected_at(file, offset) {
            let (relaxed, read) = (Ordering::Relaxed, READ);
            let _ = expected.state.compare_exchange(UNREAD, read, relaxed, relaxed);
        }
        Ok(())
    }

    /// Reads a whole extent, and checks it if it is a tensor with a checksum.
    ///
    /// # Errors
    /// As [`Files::read`], and if the bytes are wrong.
    pub fn read_extent(&self, extent: Extent) -> Result<Vec<u8>, FormatError> {
        let mut bytes = vec![0; extent.bytes as usize];
        self.read(extent.file, extent.offset, &mut bytes)?;
        let mut check = self.check(extent);
        check.update(&bytes);
        check.finish()?;
        Ok(bytes)
    }

    /// Begins to check a tensor whose bytes the caller reads from first to last. Nothing happens if
    /// it has no checksum.
    pub fn check(&self, extent: Extent) -> TensorCheck<'_> {
        let expected = self.expected_at(extent.file, extent.offset);
        let whole = expected.filter(|expected| expected.tensor.extent == extent);
        TensorCheck { files: self, running: whole.map(|whole| (whole, Xxh3Default::new())) }
    }

    /// Reads again, with so many threads, every tensor that was read but could not be checked.
    ///
    /// # Errors
    /// If a read fails or the bytes are wrong.
    pub fn check_rest(&self, threads: usize) -> Result<(), FormatError> {
        let read = |expected: &&Expected| expected.state.load(Ordering::Relaxed) == READ;
        let rest: Vec<&Expected> = self.expected.iter().filter(read).collect();
        let next = AtomicUsize::new(0);
        let check_some = || {
            let mut buffer = Vec::new();
            while let Some(expected) = rest.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.check_again(expected.tensor.extent, &mut buffer)?;
            }
            Ok(())
        };
        together(threads.min(rest.len()), check_some).into_iter().collect()
    }

    fn check_again(&self, extent: Extent, buffer: &mut Vec<u8>) -> Result<(), FormatError> {
        let mut check = self.check(extent);
        let end = extent.offset + extent.bytes;
        for offset in (extent.offset..end).step_by(CHECK_BYTES) {
            buffer.resize((end - offset).min(CHECK_BYTES as u64) as usize, 0);
            self.read(extent.file, offset, buffer)?;
            check.update(buffer);
        }
        check.finish()
    }
}

/// A tensor on its way from the disk.
#[expect(missing_debug_implementations, reason = "a running hash has nothing to show")]
pub struct TensorCheck<'a> {
    files: &'a Files,
    running: Option<(&'a Expected, Xxh3Default)>,
}

impl TensorCheck<'_> {
    /// The next bytes of the tensor.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some((_, hash)) = &mut self.running {
            hash.update(bytes);
        }
    }

    /// Compares, now that all bytes have come by.
    ///
    /// # Errors
    /// If they are not those that were written.
    pub fn finish(self) -> Result<(), FormatError> {
        let Some((Expected { tensor, state }, hash)) = self.running else { return Ok(()) };
        let (found, expected) = (hash.digest(), tensor.checksum);
        if found != expected {
            let path = self.files.paths[tensor.extent.file.0 as usize].clone();
            let tensor = tensor.name.clone();
            return Err(FormatError::TensorCorrupt { path, tensor, expected, found });
        }
        state.store(CHECKED, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => (out, offset) = (&mut out[read..], offset + read as u64),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    /// Two tensors of a file, the second with a flipped bit.
    fn files() -> (tempfile::TempDir, Files, [Extent; 2]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let mut bytes: Vec<u8> =
            (0..5_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let extent = |offset, bytes| Extent { file: FileIndex(0), offset, bytes };
        let extents = [extent(100, 3_000_000), extent(3_000_100, 1_999_900)];
        let sum = |extent: Extent, bytes: &[u8]| {
            xxh3_64(&bytes[extent.offset as usize..][..extent.bytes as usize])
        };
        let checksums = [0, 1].map(|i| TensorChecksum {
            name: format!("tensor {i}"),
            extent: extents[i],
            checksum: sum(extents[i], &bytes),
        });
        bytes[4_000_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let files = Files::new(vec![path]).with_checksums(checksums.into_iter().rev().collect());
        (dir, files, extents)
    }

    #[test]
    fn whole_tensors_are_checked_as_they_are_read() {
        let (_dir, files, [first, second]) = files();
        assert_eq!(files.read_extent(first).unwrap().len(), 3_000_000);
        let error = files.read_extent(second).unwrap_err();
        assert!(error.to_string().contains("tensor 1 in "), "{error}");
    }

    #[test]
    fn what_was_read_in_parts_is_checked_afterwards_and_nothing_else() {
        let (_dir, files, [first, second]) = files();
        files.read(first.file, first.offset + 7, &mut [0; 90]).unwrap();
        files.check_rest(2).unwrap();
        // A byte far from the wrong one.
        files.read(second.file, second.offset, &mut [0]).unwrap();
        let error = files.check_rest(2).unwrap_err();
        assert!(matches!(error, FormatError::TensorCorrupt { .. }), "{error}");
    }

    #[test]
    fn a_short_file_is_an_error() {
        let (_dir, files, [first, _]) = files();
        let error = files.read(first.file, 4_999_999, &mut [0; 2]).unwrap_err();
        assert!(matches!(error, FormatError::Io { .. }), "{error}");
    }
}
