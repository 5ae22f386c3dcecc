//! Threads that read with blocking reads: works everywhere, and is as fast as the disk.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
};

use fm_format::record::Catalog;

use super::{
    Fetch, Fetched, Reader, Transfer, Wait, disk::Disk, exchange::Exchange, gather::Gather,
    steps::buffer_bytes,
};
use crate::{
    error::StoreError,
    slots::{self, Buffer},
};

/// A thread pool over any [`Disk`].
pub struct Pread {
    exchange: Arc<Exchange>,
    /// Bound: the depth it was opened with.
    threads: Vec<JoinHandle<()>>,
    staging_bytes: u64,
}

impl Pread {
    /// Starts `threads` threads, each with a staging buffer of its own.
    ///
    /// # Errors
    /// If threads or their buffers cannot be had.
    pub fn open<D: Disk + 'static>(
        catalog: &Arc<Catalog>,
        disk: D,
        threads: usize,
    ) -> Result<Self, StoreError> {
        let buffer_bytes = buffer_bytes(catalog, disk.access());
        let mut reader = Self {
            exchange: Arc::new(Exchange::new()),
            threads: Vec::with_capacity(threads),
            staging_bytes: slots::staged_bytes(buffer_bytes, threads) as u64,
        };
        let disk = Arc::new(disk);
        for (number, staging) in slots::staging(buffer_bytes, threads)?.into_iter().enumerate() {
            let mut worker = Worker {
                exchange: Arc::clone(&reader.exchange),
                catalog: Arc::clone(catalog),
                disk: Arc::clone(&disk),
                staging,
            };
            let thread = thread::Builder::new().name(format!("read-{number}"));
            let thread = thread.spawn(move || worker.serve());
            reader.threads.push(thread.map_err(|source| StoreError::Threads { source })?);
        }
        Ok(reader)
    }
}

impl Reader for Pread {
    fn submit(&mut self, fetch: Fetch) {
        self.exchange.submit(fetch);
    }

    fn reap(&mut self, wait: Wait) -> Option<Fetched> {
        self.exchange.reap(wait)
    }

    fn staging_bytes(&self) -> u64 {
        self.staging_bytes
    }
}

impl Drop for Pread {
    fn drop(&mut self) {
        self.exchange.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to give back.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Pread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pread({} threads)", self.threads.len())
    }
}

/// What a thread owns.
struct Worker<D> {
    exchange: Arc<Exchange>,
    catalog: Arc<Catalog>,
    disk: Arc<D>,
    staging: Buffer,
}

impl<D: Disk> Worker<D> {
    fn serve(&mut self) {
        while let Some(fetch) = self.exchange.take() {
            let fetched = self.read(fetch);
            self.exchange.finish(fetched);
        }
    }

    /// A panic becomes this record's error: whoever waits for it must not wait for ever.
    fn read(&mut self, mut fetch: Fetch) -> Fetched {
        let (key, mut transfer) = (fetch.key, Transfer::default());
        let reading = AssertUnwindSafe(|| {
            let Self { catalog, disk, staging, .. } = self;
            let (slot, transfer) = (&mut fetch.buffer, &mut transfer);
            Gather { disk: &**disk, catalog, key, slot, staging, transfer }.read()
        });
        let outcome = catch_unwind(reading);
        let outcome = outcome.unwrap_or(Err(StoreError::ReaderPanicked { key }));
        Fetched::new(fetch, transfer, outcome)
    }
}
