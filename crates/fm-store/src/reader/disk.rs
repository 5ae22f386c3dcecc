//! Files, opened directly or through the page cache: the seam where a test puts a disk that fails.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    sync::Arc,
};

use fm_format::record::{Catalog, FileIndex};

use super::{IoMode, ReaderOptions};
use crate::error::StoreError;

/// What reads from the page cache reach, in bytes per second. Measured with two cores, as is the next
/// (`docs/experiments/0033-buffered-or-direct.md`).
const CACHED_BYTES_PER_S: f64 = 4.5e9;

/// What reads through the page cache reach at most of a disk that is faster: pages are taken from
/// other data, filled and copied.
const THROUGH_BYTES_PER_S: f64 = 0.65e9;

/// What the page cache has to promise: it may hold less than it should, and a direct read leaves it to
/// others.
const GAIN_MIN: f64 = 1.25;

/// Below this share of the experts the page cache is no gain, however slow the disk is.
pub const PAGE_CACHE_SHARE_MIN: f64 = 1.0 - 1.0 / GAIN_MIN;

/// Whether reads through a page cache with room for a share of the experts are faster than direct
/// ones.
fn page_cache_is_faster(share: f64, disk_bytes_per_s: Option<f64>) -> bool {
    let Some(disk) = disk_bytes_per_s.filter(|_| share < 1.0) else { return share >= 1.0 };
    let buffered = share / CACHED_BYTES_PER_S + (1.0 - share) / disk.min(THROUGH_BYTES_PER_S);
    1.0 / disk > GAIN_MIN * buffered
}

/// How bytes travel from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache, in whole blocks of 4096 bytes, to aligned memory.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Access {
    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

/// Something that has the files of a catalog.
pub trait Disk: Send + Sync {
    /// Whether offsets, lengths and memory must be aligned.
    fn access(&self) -> Access;

    /// Reads at `offset` what is there, at most `into.len()` bytes, and says how many; blocks.
    ///
    /// # Errors
    /// What the operating system says; the caller retries.
    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// The files of a catalog, in its order.
#[derive(Clone, Debug)]
pub(super) struct Files {
    access: Access,
    files: Arc<[File]>,
}

impl Files {
    /// Opens all files, directly where `options` say so. The error that comes along is why direct
    /// reads were preferred but are not in force.
    pub(super) fn open(
        catalog: &Catalog,
        options: ReaderOptions,
    ) -> Result<(Self, Option<StoreError>), StoreError> {
        let direct = match options.io {
            IoMode::Direct => true,
            IoMode::Buffered => false,
            IoMode::Auto => {
                let share = options.page_cache_bytes as f64 / catalog.bytes().max(1) as f64;
                !page_cache_is_faster(share, options.disk_bytes_per_s)
            }
        };
        let mut fallback = None;
        if direct {
            match Self::open_all(catalog, Access::Direct) {
                Ok(files) => return Ok((files, None)),
                Err(error) if options.io == IoMode::Direct => return Err(error),
                Err(error) => fallback = Some(error),
            }
        }
        Ok((Self::open_all(catalog, Access::Buffered)?, fallback))
    }

    fn open_all(catalog: &Catalog, access: Access) -> Result<Self, StoreError> {
        let files = catalog.files.iter().map(|path| match access {
            Access::Direct => open_direct(path),
            Access::Buffered => open_buffered(path),
        });
        Ok(Self { access, files: files.collect::<Result<_, _>>()? })
    }

    #[cfg(target_os = "linux")]
    pub(super) fn handles(&self) -> &[File] {
        &self.files
    }
}

impl Disk for Files {
    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        read_file_at(&self.files[file.0 as usize], offset, into)
    }
}

#[cfg(unix)]
fn read_file_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn read_file_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

fn open_buffered(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new().read(true).open(path);
    let file = file.map_err(|source| StoreError::Open { path: path.to_owned(), source })?;
    // Records lie scattered: reading ahead of one fetches what nobody asked for. Only advice.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    Ok(file)
}

/// Opens a file past the page cache and tries it: some file systems refuse only the first read.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Result<File, StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    let refused = |source| StoreError::DirectRefused { path: path.to_owned(), source };
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(refused)?;
    let mut blocks = crate::slots::staging(super::steps::BLOCK, 1)?;
    read_file_at(&file, 0, &mut blocks[0]).map_err(refused)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(path: &Path) -> Result<File, StoreError> {
    let source = io::ErrorKind::Unsupported.into();
    Err(StoreError::DirectRefused { path: path.to_owned(), source })
}

/// Finds a file that ends before its last extent does.
pub(super) fn check_lengths(catalog: &Catalog) -> Result<(), StoreError> {
    let mut ends = vec![0; catalog.files.len()];
    let records = catalog.layers.iter().flatten().flat_map(|layer| &layer.records);
    for piece in records.flat_map(|record| &record.pieces) {
        let end: &mut u64 = &mut ends[piece.extent.file.0 as usize];
        *end = (*end).max(piece.extent.offset + piece.extent.bytes);
    }
    for (path, expected) in catalog.files.iter().zip(ends) {
        let metadata = fs::metadata(path);
        let metadata =
            metadata.map_err(|source| StoreError::Open { path: path.clone(), source })?;
        if metadata.len() < expected {
            let found = metadata.len();
            return Err(StoreError::Truncated { path: path.clone(), expected, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was measured with 28, 52 and 77 % of the experts in the page cache; where both were alike,
    /// or the page cache a fifth faster, either is right.
    #[test]
    fn the_page_cache_is_taken_where_it_measured_faster() {
        let chosen = |disk: f64| {
            [0.28, 0.52, 0.77].map(|share| page_cache_is_faster(share, Some(disk * 1e9)))
        };
        assert_eq!(chosen(0.5), [true, true, true]);
        assert_eq!(chosen(1.0), [false, false, true]);
        assert_eq!(chosen(2.0), [false, false, false]);
        assert_eq!(chosen(3.8), [false, false, false]);
    }

    #[test]
    fn of_an_unknown_disk_only_what_fits_is_read_through_the_page_cache() {
        assert!(!page_cache_is_faster(0.99, None) && page_cache_is_faster(1.0, None));
        assert!(page_cache_is_faster(1.0, Some(9e9)));
        assert!(!page_cache_is_faster(PAGE_CACHE_SHARE_MIN, Some(1.0)));
        assert!(page_cache_is_faster(PAGE_CACHE_SHARE_MIN + 0.01, Some(1.0)));
    }
}
