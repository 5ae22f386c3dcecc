//! A disk that is short, slow in a chosen order, wrong, or dead from the k-th access on.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use fm_format::record::FileIndex;
use fm_store::reader::{Access, Disk, memory::MemoryDisk};

use crate::world::World;

/// What goes wrong, shared with the test.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Accesses so far.
    pub(crate) accesses: AtomicU64,
    /// Accesses that fail, counted from 0.
    pub(crate) failing: Mutex<HashSet<u64>>,
    /// Accesses that return nothing.
    pub(crate) ending: Mutex<HashSet<u64>>,
    /// Bytes whose lowest bit is wrong, and how often they still will be.
    pub(crate) flipped: Mutex<Vec<(FileIndex, u64, u32)>>,
    /// Accesses return at most this many bytes; 0 is no limit.
    pub(crate) longest: AtomicU64,
}

/// A [`MemoryDisk`] with [`Faults`].
#[derive(Debug)]
pub(crate) struct SimDisk {
    pub(crate) disk: MemoryDisk,
    pub(crate) faults: Arc<Faults>,
}

impl SimDisk {
    pub(crate) fn new(world: &World, access: Access) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let disk = MemoryDisk { files: world.files.clone(), access };
        (Self { disk, faults: Arc::clone(&faults) }, faults)
    }
}

impl Disk for SimDisk {
    fn access(&self) -> Access {
        self.disk.access
    }

    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.disk.access == Access::Direct {
            assert!(offset.is_multiple_of(4096), "a direct read starts at a block");
            assert!(into.len().is_multiple_of(4096), "a direct read is whole blocks");
            assert!(
                into.as_ptr().addr().is_multiple_of(4096),
                "a direct read needs aligned memory"
            );
        }
        let access = self.faults.accesses.fetch_add(1, Ordering::Relaxed);
        if self.faults.failing.lock().unwrap().contains(&access) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        if self.faults.ending.lock().unwrap().contains(&access) {
            return Ok(0);
        }
        let longest = match self.faults.longest.load(Ordering::Relaxed) as usize {
            0 => into.len(),
            longest => longest.min(into.len()),
        };
        let read = self.disk.read_at(file, offset, &mut into[..longest])?;
        for (wrong, at, left) in &mut *self.faults.flipped.lock().unwrap() {
            if *wrong == file && (offset..offset + read as u64).contains(at) && *left > 0 {
                into[(*at - offset) as usize] ^= 1;
                *left -= 1;
            }
        }
        Ok(read)
    }
}
