//! Readers fill slots: one file and one row per way of reading.
//!
//! A reader gets whole records ([`Fetch`]), works in the background and gives them back filled or
//! with the reason why not ([`Fetched`]). Repacking, retries and checksums happen there too
//! (`gather.rs`), so that they overlap with computing. What differs between readers is only who
//! moves bytes from a file to memory.

mod disk;
mod exchange;
mod gather;
#[cfg(target_os = "linux")]
mod io_uring;
pub mod memory;
mod pread;
mod steps;

use std::{fmt, sync::Arc, time::Instant};

use fm_format::{
    key::ExpertKey,
    record::{Catalog, MatrixStarts},
};

pub use self::{
    disk::{Access, Disk, PAGE_CACHE_SHARE_MIN},
    pread::Pread,
    steps::staging_bytes,
};
use crate::{error::StoreError, slots::Buffer};

/// A record to be read into a slot.
#[derive(Debug)]
pub struct Fetch {
    /// Which one.
    pub key: ExpertKey,
    /// The slot.
    pub buffer: Buffer,
}

/// A record that was read, or could not be.
#[derive(Debug)]
pub struct Fetched {
    /// Which one.
    pub key: ExpertKey,
    /// Its slot. `None` if the kernel may write to it for ever, so that nobody may have it.
    pub buffer: Option<Buffer>,
    /// What it took.
    pub transfer: Transfer,
    /// When it was done, which may be long before anybody asked.
    pub at: Instant,
    /// Where the matrices of the record now lie in the slot, or why they do not.
    pub outcome: Result<MatrixStarts, StoreError>,
}

impl Fetched {
    /// A record that is done with now.
    fn new(fetch: Fetch, transfer: Transfer, outcome: Result<MatrixStarts, StoreError>) -> Self {
        let Fetch { key, buffer } = fetch;
        Self { key, buffer: Some(buffer), transfer, at: Instant::now(), outcome }
    }
}

/// The cost of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes that came from files, with alignment and repetition.
    pub bytes: u64,
    /// Time from the first read to the finished record.
    pub ns: u64,
    /// Reads that were repeated.
    pub retries: u32,
}

/// Whether [`Reader::reap`] may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Only look.
    Poll,
    /// Until a record is there.
    Block,
}

/// Fills slots in the background.
pub trait Reader: Send + fmt::Debug {
    /// Queues a record; never blocks. The store has at most [`FETCHES_MAX`](crate::FETCHES_MAX) under way.
    fn submit(&mut self, fetch: Fetch);

    /// Gives back a finished record, in any order. Every record comes back exactly once. `None`
    /// means that nothing has finished, with [`Wait::Block`] that nothing is under way.
    fn reap(&mut self, wait: Wait) -> Option<Fetched>;

    /// Memory of its buffers, charged to the store's budget.
    fn staging_bytes(&self) -> u64;
}

/// Whether reads go through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Directly, if the file system can, unless the page cache answers faster: it does where it holds
    /// all experts, and on a slow disk where it holds some.
    #[default]
    Auto,
    /// Directly, or not at all.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// The readers one can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderKind {
    /// io_uring for direct reads where the kernel offers it, else threads.
    #[default]
    Auto,
    /// Threads that read with `pread`.
    Pread,
    /// One thread with an io_uring.
    IoUring,
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct ReaderOptions {
    /// Directly or through the page cache.
    pub io: IoMode,
    /// Which reader.
    pub kind: ReaderKind,
    /// Reads at the device at once: threads, or entries of the ring. Above half a MiB per read 2
    /// to 4 saturate a disk; a few more cover the time until a thread of busy cores hears of a read
    /// that is done, and many more only delay the expert that is waited for.
    pub depth: usize,
    /// What the page cache could reasonably hold.
    pub page_cache_bytes: u64,
    /// What a direct read reaches, if that is known and experts are read again and again.
    pub disk_bytes_per_s: Option<f64>,
}

/// [`ReaderOptions::depth`] unless something better is known.
pub const DEPTH_DEFAULT: usize = 6;

/// [`ReaderOptions::depth`] is brought into this range.
pub const DEPTH_MAX: usize = 64;

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            io: IoMode::Auto,
            kind: ReaderKind::Auto,
            depth: DEPTH_DEFAULT,
            page_cache_bytes: 0,
            disk_bytes_per_s: None,
        }
    }
}

/// What is in force after opening, for the report.
#[derive(Debug)]
pub struct ReaderInfo {
    /// Which reader.
    pub kind: ReaderKind,
    /// Directly or through the page cache.
    pub access: Access,
    /// Reads at the device at once.
    pub depth: usize,
    /// Whether the kernel knows the staging buffers beforehand (io_uring's fixed buffers).
    pub registered: bool,
    /// Why it is not what was preferred.
    pub fallback: Option<StoreError>,
}

impl fmt::Display for ReaderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.access.name())
    }
}

/// Names of [`IoMode`], in its order.
const IO_MODES: [(IoMode, &str); 3] =
    [(IoMode::Auto, "auto"), (IoMode::Direct, "direct"), (IoMode::Buffered, "buffered")];

impl IoMode {
    /// All names, for help.
    pub fn names() -> impl Iterator<Item = &'static str> {
        IO_MODES.iter().map(|row| row.1)
    }

    /// Finds a mode by name.
    pub fn by_name(name: &str) -> Option<Self> {
        IO_MODES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        IO_MODES[self as usize].1
    }
}

impl ReaderKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pread => "pread",
            Self::IoUring => "io_uring",
        }
    }
}

/// Opens the files of a catalog, checks that they are as long as they should be, and starts the
/// reader that `options` ask for, or the best that works here.
///
/// # Errors
/// If a file is missing or truncated, or if what `options` insist on is not to be had.
pub fn open(
    catalog: &Arc<Catalog>,
    options: ReaderOptions,
) -> Result<(Box<dyn Reader>, ReaderInfo), StoreError> {
    disk::check_lengths(catalog)?;
    let depth = options.depth.clamp(1, DEPTH_MAX);
    let (files, fallback) = disk::Files::open(catalog, options)?;
    let access = files.access();

    #[cfg(target_os = "linux")]
    let mut fallback = fallback;
    #[cfg(target_os = "linux")]
    if options.kind == ReaderKind::IoUring
        || (options.kind == ReaderKind::Auto && access == Access::Direct)
    {
        match io_uring::IoUringReader::open(catalog, &files, depth) {
            Ok(reader) => {
                let registered = reader.registered();
                let kind = ReaderKind::IoUring;
                let info = ReaderInfo { kind, access, depth, registered, fallback };
                return Ok((Box::new(reader), info));
            }
            Err(refused) if options.kind == ReaderKind::IoUring => return Err(refused),
            Err(refused) => fallback = Some(refused),
        }
    }
    #[cfg(not(target_os = "linux"))]
    if options.kind == ReaderKind::IoUring {
        return Err(StoreError::RingRefused { source: std::io::ErrorKind::Unsupported.into() });
    }

    let reader = Pread::open(catalog, files, depth)?;
    let info = ReaderInfo { kind: ReaderKind::Pread, access, depth, registered: false, fallback };
    Ok((Box::new(reader), info))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_what_they_name() {
        assert!(IoMode::names().all(|name| IoMode::by_name(name).unwrap().name() == name));
        assert_eq!(IoMode::by_name("mmap"), None);
    }
}
