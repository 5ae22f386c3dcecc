//! What the store did, as plain counters: cheap to copy, subtractable.

use std::ops::Sub;

/// Counters since the store was opened, or between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Experts requested that were resident or already on their way.
    pub hits: u64,
    /// Experts requested that had never been loaded.
    pub cold_misses: u64,
    /// Experts requested that had been loaded and evicted since.
    pub capacity_misses: u64,
    /// Residents that gave way to another expert.
    pub evictions: u64,
    /// Hits that gave way before they were taken, because a union did not fit; read again.
    pub sacrifices: u64,
    /// Records that arrived whole.
    pub records_read: u64,
    /// Bytes that came from files, with alignment and repetition.
    pub read_bytes: u64,
    /// Time from the start to the end of each record's reads, summed over records.
    pub read_ns: u64,
    /// Records whose reads a forecast started.
    pub foreseen_records: u64,
    /// Of these, the ones that were requested before they had to go. They count as misses too.
    pub foreseen_used: u64,
    /// Bytes of slots that were given back because memory was short.
    pub released_bytes: u64,
    /// Bytes of slots that were taken again.
    pub taken_back_bytes: u64,
    /// Time the caller was blocked in `next`.
    pub wait_ns: u64,
    /// Time during which the reader had something to read.
    pub busy_ns: u64,
    /// Reads that were repeated.
    pub retries: u64,
    /// Experts that failed after all retries.
    pub io_errors: u64,
}

impl Stats {
    /// All experts requested that had to be read.
    pub fn misses(&self) -> u64 {
        self.cold_misses + self.capacity_misses
    }

    /// Share of requested experts that needed no read; 0 before the first request.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses()).max(1) as f64
    }
}

impl Sub for Stats {
    type Output = Self;

    /// What happened between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            hits: self.hits - earlier.hits,
            cold_misses: self.cold_misses - earlier.cold_misses,
            capacity_misses: self.capacity_misses - earlier.capacity_misses,
            evictions: self.evictions - earlier.evictions,
            sacrifices: self.sacrifices - earlier.sacrifices,
            records_read: self.records_read - earlier.records_read,
            read_bytes: self.read_bytes - earlier.read_bytes,
            read_ns: self.read_ns - earlier.read_ns,
            foreseen_records: self.foreseen_records - earlier.foreseen_records,
            foreseen_used: self.foreseen_used - earlier.foreseen_used,
            released_bytes: self.released_bytes - earlier.released_bytes,
            taken_back_bytes: self.taken_back_bytes - earlier.taken_back_bytes,
            wait_ns: self.wait_ns - earlier.wait_ns,
            busy_ns: self.busy_ns - earlier.busy_ns,
            retries: self.retries - earlier.retries,
            io_errors: self.io_errors - earlier.io_errors,
        }
    }
}
