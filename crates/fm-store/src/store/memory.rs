//! Memory that the store gives back and takes again while it runs, and residents that it gives up.

use super::{Store, Wait};
use crate::{class::Class, entries::EntryIndex, error::StoreError};

impl Store {
    /// Bytes of the experts that one token uses.
    pub fn working_set_bytes(&self) -> u64 {
        let classes = self.plan.classes.iter();
        classes.map(|class| (class.slots_min * class.layers * class.slot_bytes) as u64).sum()
    }

    /// Gives back chunks until `bytes` are reached or no more can be spared, see
    /// [`Store::release_chunk`], and returns their bytes.
    pub fn release(&mut self, bytes: u64) -> u64 {
        let mut released = 0;
        while released < bytes
            && let Some(chunk) = self.release_chunk()
        {
            released += chunk;
        }
        self.stats.released_bytes += released;
        released
    }

    /// Takes back chunks that were given back, until `bytes` are reached, all are there again or the
    /// system has no memory for more, and returns their bytes. Fewer slots cost speed, at most.
    pub fn take_back(&mut self, bytes: u64) -> u64 {
        let mut taken = 0;
        while taken < bytes
            && let Ok(Some(chunk)) = self.grow_chunk()
        {
            taken += chunk;
        }
        self.stats.taken_back_bytes += taken;
        taken
    }

    /// Evicts every expert that nobody asked for or holds, so that what is asked for next is read, as
    /// after opening. What is known of their popularity stays, and so does the memory.
    pub fn evict_all(&mut self) {
        self.sweep();
        self.wait_for_reads();
        let Self { classes, entries, map, stats, .. } = self;
        for class in classes {
            let mut evicted = Vec::new();
            class.evict_idle(|entry| entries[entry].pins > 0, |entry| evicted.push(entry));
            stats.evictions += evicted.len() as u64;
            evicted.into_iter().for_each(|entry| entries.evicted(entry, map));
        }
    }

    /// Gives back a chunk of slots, evicting who lives there, and returns its bytes. Chunks with slots in use stay,
    /// and so does the smallest working set.
    pub fn release_chunk(&mut self) -> Option<u64> {
        self.sweep();
        self.collect(Wait::Poll);
        let Self { classes, entries, map, stats, .. } = self;
        let mut largest_first: Vec<&mut Class> = classes.iter_mut().collect();
        largest_first.sort_unstable_by_key(|class| std::cmp::Reverse(class.bytes()));
        largest_first.into_iter().find_map(|class| {
            let mut evicted = Vec::new();
            let needed = |entry: EntryIndex| entries[entry].pins > 0;
            let bytes = class.release_chunk(needed, |entry| evicted.push(entry))?;
            stats.evictions += evicted.len() as u64;
            evicted.into_iter().for_each(|entry| entries.evicted(entry, map));
            Some(bytes)
        })
    }

    /// Takes back a chunk that was given back, if there is one, and returns its bytes.
    ///
    /// # Errors
    /// If the memory is not there.
    pub fn grow_chunk(&mut self) -> Result<Option<u64>, StoreError> {
        for class in &mut self.classes {
            let bytes = class.grow_chunk()?;
            if bytes.is_some() {
                return Ok(bytes);
            }
        }
        Ok(None)
    }
}
