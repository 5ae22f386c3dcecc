//! All experts at a glance, for whoever watches: which are resident, how often each was used and read.
//!
//! The store writes a word where something changes and knows nothing of watchers; a watcher compares
//! with what it saw last. So watching takes no lock, and not being watched costs one plain write.

use std::sync::atomic::{AtomicU32, Ordering};

use fm_format::record::Catalog;

use crate::entries::EntryIndex;

const RESIDENT: u32 = 1;
const READ: u32 = 1 << 1;
const USED: u32 = 1 << 16;

/// See the module. Bound: four bytes for every expert of the catalog.
#[derive(Debug)]
pub struct ExpertMap {
    /// Experts of every layer; 0 for layers without routed experts.
    layers: Box<[usize]>,
    /// By layer, then by expert.
    glances: Box<[AtomicU32]>,
}

/// What is seen of one expert. Counters wrap, so only two glances together tell something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance(u32);

impl ExpertMap {
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let count =
            catalog.layers.iter().map(|layer| layer.as_ref().map_or(0, |l| l.records.len()));
        let layers: Box<[usize]> = count.collect();
        let glances = (0..layers.iter().sum()).map(|_| AtomicU32::new(0)).collect();
        Self { layers, glances }
    }

    /// Experts of every layer; 0 for layers without routed experts.
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// All experts, by layer, then by expert.
    pub fn glances(&self) -> impl Iterator<Item = Glance> {
        self.glances.iter().map(|glance| Glance(glance.load(Ordering::Relaxed)))
    }

    pub(crate) fn used(&self, at: EntryIndex) {
        self.change(at, |glance| glance.wrapping_add(USED));
    }

    pub(crate) fn read(&self, at: EntryIndex) {
        // Fifteen bits count reads: they wrap before they reach the uses.
        self.change(at, |glance| {
            glance & !(USED - 1) | glance.wrapping_add(READ) & (USED - 1) | RESIDENT
        });
    }

    pub(crate) fn evicted(&self, at: EntryIndex) {
        self.change(at, |glance| glance & !RESIDENT);
    }

    /// The store is the only writer: nothing comes between.
    fn change(&self, at: EntryIndex, change: impl FnOnce(u32) -> u32) {
        let glance = &self.glances[at.index()];
        glance.store(change(glance.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl Glance {
    /// Whether the expert could be had without reading.
    pub fn is_resident(self) -> bool {
        self.0 & RESIDENT != 0
    }

    /// Whether it was requested since `earlier`.
    pub fn was_used_since(self, earlier: Self) -> bool {
        self.0 / USED != earlier.0 / USED
    }

    /// Whether it was read since `earlier`.
    pub fn was_read_since(self, earlier: Self) -> bool {
        self.0 % USED / READ != earlier.0 % USED / READ
    }

    /// Whether it had to go since `earlier`; one that is there again does not tell.
    pub fn was_evicted_since(self, earlier: Self) -> bool {
        earlier.is_resident() && !self.is_resident()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_glances_tell_what_happened_between_however_often() {
        let map = ExpertMap { layers: [2].into(), glances: (0..2).map(|_| 0.into()).collect() };
        let (at, other) = (EntryIndex::new(1), EntryIndex::new(0));
        let see = || map.glances().last().unwrap();
        let mut before = see();
        // More often than either counter can tell.
        for _ in 0..70_000 {
            map.used(at);
            assert!(see().was_used_since(before) && !see().was_read_since(before));
            before = see();
            map.read(at);
            assert!(see().was_read_since(before) && !see().was_used_since(before));
            assert!(see().is_resident() && !see().was_evicted_since(before));
            before = see();
            map.evicted(at);
            assert!(see().was_evicted_since(before) && !see().is_resident());
            assert!(!see().was_read_since(before) && !see().was_used_since(before));
            before = see();
        }
        assert_eq!(map.glances().next().unwrap(), Glance::default());
        map.used(other);
        assert_eq!(see(), before, "neighbours are apart");
    }
}
