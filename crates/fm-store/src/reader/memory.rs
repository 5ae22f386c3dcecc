//! Files that are bytes in memory, and a reader without threads: for tests and simulations.

use std::{collections::VecDeque, fmt, io, sync::Arc};

use fm_format::record::{Catalog, FileIndex};

use super::{
    Fetch, Fetched, Reader, Transfer, Wait,
    disk::{Access, Disk},
    gather::Gather,
    steps::buffer_bytes,
};
use crate::{
    error::StoreError,
    slots::{self, Buffer},
};

/// The files of a catalog, in its order.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    /// What is in them.
    pub files: Vec<Vec<u8>>,
    /// How they pretend to be read.
    pub access: Access,
}

impl Disk for MemoryDisk {
    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let file = &self.files[file.0 as usize];
        let rest = &file[(offset as usize).min(file.len())..];
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }
}

/// Reads on the caller's thread, when the store blocks and not before, in an order the caller
/// chooses: what a test did once it does again.
pub struct Memory<D> {
    disk: D,
    catalog: Arc<Catalog>,
    staging: Vec<Buffer>,
    /// Bound: 128 records, which the store keeps.
    queue: VecDeque<Fetch>,
    choose: Box<dyn FnMut(usize) -> usize + Send>,
}

impl<D: Disk> Memory<D> {
    /// `choose` is given the number of waiting records and says which is read next.
    ///
    /// # Errors
    /// If there is no memory for staging.
    pub fn open(
        catalog: &Arc<Catalog>,
        disk: D,
        choose: impl FnMut(usize) -> usize + Send + 'static,
    ) -> Result<Self, StoreError> {
        let staging = slots::staging(buffer_bytes(catalog, disk.access()), 1)?;
        let (catalog, choose) = (Arc::clone(catalog), Box::new(choose));
        Ok(Self { disk, catalog, staging, queue: VecDeque::new(), choose })
    }
}

impl<D: Disk> Reader for Memory<D> {
    fn submit(&mut self, fetch: Fetch) {
        self.queue.push_back(fetch);
    }

    fn reap(&mut self, wait: Wait) -> Option<Fetched> {
        if wait == Wait::Poll || self.queue.is_empty() {
            return None;
        }
        let at = (self.choose)(self.queue.len()) % self.queue.len();
        let mut fetch = self.queue.remove(at).expect("the position is inside the queue");
        let mut transfer = Transfer::default();
        let Self { disk, catalog, staging, .. } = self;
        let (key, slot, staging) = (fetch.key, &mut fetch.buffer, &mut staging[0]);
        let outcome = Gather { disk, catalog, key, slot, staging, transfer: &mut transfer }.read();
        Some(Fetched::new(fetch, transfer, outcome))
    }

    fn staging_bytes(&self) -> u64 {
        self.staging[0].len() as u64
    }
}

impl<D> fmt::Debug for Memory<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} waiting)", self.queue.len())
    }
}
