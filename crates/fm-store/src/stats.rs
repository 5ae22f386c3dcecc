//! What the store did, as plain counters: cheap to copy, subtractable.

use std::{
    iter::Sum,
    ops::{Add, Sub},
};

/// Counters since the store was opened, or between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Experts requested that were there, or on their way for another request.
    pub hits: u64,
    /// Experts requested that were read, for the request or on a forecast, for the first time.
    pub cold_misses: u64,
    /// Experts requested that were read, for the request or on a forecast, and had been there before.
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

    /// Share of requested experts that needed no read; 1 where none was requested.
    pub fn hit_rate(&self) -> f64 {
        let requested = self.hits + self.misses();
        if requested == 0 { 1.0 } else { self.hits as f64 / requested as f64 }
    }

    /// Counter by counter.
    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            hits: of(self.hits, other.hits),
            cold_misses: of(self.cold_misses, other.cold_misses),
            capacity_misses: of(self.capacity_misses, other.capacity_misses),
            evictions: of(self.evictions, other.evictions),
            sacrifices: of(self.sacrifices, other.sacrifices),
            records_read: of(self.records_read, other.records_read),
            read_bytes: of(self.read_bytes, other.read_bytes),
            read_ns: of(self.read_ns, other.read_ns),
            foreseen_records: of(self.foreseen_records, other.foreseen_records),
            foreseen_used: of(self.foreseen_used, other.foreseen_used),
            released_bytes: of(self.released_bytes, other.released_bytes),
            taken_back_bytes: of(self.taken_back_bytes, other.taken_back_bytes),
            wait_ns: of(self.wait_ns, other.wait_ns),
            busy_ns: of(self.busy_ns, other.busy_ns),
            retries: of(self.retries, other.retries),
            io_errors: of(self.io_errors, other.io_errors),
        }
    }
}

impl Sub for Stats {
    type Output = Self;

    /// What happened between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        self.each(earlier, |now, earlier| now - earlier)
    }
}

impl Add for Stats {
    type Output = Self;

    /// What happened in both times.
    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
