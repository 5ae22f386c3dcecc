//! One size class: its slots, who lives in them, and who goes next.

use fm_format::key::LayerIndex;

use crate::{
    entries::EntryIndex,
    error::StoreError,
    plan::ClassPlan,
    policy::{Policy, Standing},
    slots::{Buffer, Lease, Slab},
};

/// A slot that is about to be filled, and who had to leave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    pub(crate) evicted: Option<EntryIndex>,
}

/// See the file.
#[derive(Debug)]
pub(crate) struct Class {
    /// Knows who of the residents nobody waits for goes next.
    pub(crate) policy: Box<dyn Policy>,
    plan: ClassPlan,
    slab: Slab,
    /// Slots nobody lives in. Bound: all slots.
    free: Vec<u32>,
    /// Who lives or will live in a slot.
    occupants: Vec<Option<EntryIndex>>,
    /// Slots of mapped chunks.
    mapped: usize,
    /// Those of them that a reader could not give back: their chunks stay mapped.
    lost: usize,
}

impl Class {
    pub(crate) fn open(
        plan: ClassPlan,
        policy: Box<dyn Policy>,
        chunk_bytes: usize,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            policy,
            plan,
            slab: Slab::open((plan.record_bytes, plan.slot_bytes), plan.slots, chunk_bytes)?,
            // Popped from the end: low slots first, so that low chunks fill up first.
            free: (0..plan.slots as u32).rev().collect(),
            occupants: vec![None; plan.slots],
            mapped: plan.slots,
            lost: 0,
        })
    }

    /// A slot for a new expert: a free one, or that of the resident that the policy gives up
    /// first, for the sake of a certain `newcomer` if one is given.
    pub(crate) fn take(&mut self, entry: EntryIndex, newcomer: Option<&Standing>) -> Option<Taken> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.policy.take(newcomer, &|slot| self.slab.is_idle(slot))?,
        };
        Some(Taken { slot, evicted: self.occupants[slot as usize].replace(entry) })
    }

    /// The slot of a certain resident for a new expert, unless it is leased.
    pub(crate) fn take_from(&mut self, slot: u32, entry: EntryIndex) -> Option<Taken> {
        if !self.slab.is_idle(slot) {
            return None;
        }
        self.policy.remove(slot);
        Some(Taken { slot, evicted: self.occupants[slot as usize].replace(entry) })
    }

    /// The bytes of a slot that was just taken.
    pub(crate) fn buffer(&self, slot: u32) -> Buffer {
        self.slab.write(slot).expect("a slot that is taken was idle, and only the store hands out")
    }

    /// The bytes of a resident.
    pub(crate) fn lease(&self, slot: u32) -> Lease {
        self.slab.lease(slot).expect("residents are not being written")
    }

    /// Nobody lives in this slot any more.
    pub(crate) fn vacate(&mut self, slot: u32) {
        self.occupants[slot as usize] = None;
        self.free.push(slot);
    }

    /// Nobody will ever live in this slot again: a reader could not give it back.
    pub(crate) fn lose(&mut self, slot: u32) {
        self.occupants[slot as usize] = None;
        self.lost += 1;
    }

    /// Slots that somebody can live in.
    fn usable(&self) -> usize {
        self.mapped - self.lost
    }

    /// Whoever lives in this slot must go.
    pub(crate) fn evict(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.vacate(slot);
    }

    /// Somebody waits for this resident: it must not go.
    pub(crate) fn pin(&mut self, slot: u32) {
        self.policy.remove(slot);
    }

    /// Nobody waits for this resident any more.
    pub(crate) fn unpin(&mut self, slot: u32, standing: &Standing) {
        self.policy.insert(slot, standing);
    }

    /// The error of a request that finds every slot leased.
    pub(crate) fn exhausted(&self, layer: LayerIndex) -> StoreError {
        StoreError::SlotsExhausted { layer, slots: self.usable() }
    }

    /// Bytes of mapped slots.
    pub(crate) fn bytes(&self) -> u64 {
        self.mapped as u64 * self.plan.slot_bytes as u64
    }

    /// Residents that are neither `needed` nor held leave their slots.
    pub(crate) fn evict_idle(
        &mut self,
        needed: impl Fn(EntryIndex) -> bool,
        mut evicted: impl FnMut(EntryIndex),
    ) {
        // From the last one on, so that low slots are filled first again.
        for slot in (0..self.occupants.len() as u32).rev() {
            let Some(entry) = self.occupants[slot as usize] else { continue };
            if !needed(entry) && self.slab.is_idle(slot) {
                self.evict(slot);
                evicted(entry);
            }
        }
    }

    /// Gives back the chunk that costs least, if the class can spare one: all its slots are idle,
    /// none is `needed`, and the smallest working set stays. Returns its bytes.
    pub(crate) fn release_chunk(
        &mut self,
        needed: impl Fn(EntryIndex) -> bool,
        mut evicted: impl FnMut(EntryIndex),
    ) -> Option<u64> {
        let residents = |chunk: usize| {
            let slots = self.slab.slots_of(chunk);
            slots.filter(|slot| self.occupants[*slot as usize].is_some()).count()
        };
        let idle = |slot: u32| {
            let occupant = self.occupants[slot as usize];
            self.slab.is_idle(slot) && !occupant.is_some_and(&needed)
        };
        let spare = |chunk: &usize| {
            let slots = self.slab.slots_of(*chunk);
            self.slab.is_mapped(*chunk)
                && self.usable() >= self.plan.slots_min + slots.len()
                && slots.into_iter().all(idle)
        };
        let chunk = (0..self.slab.chunk_count()).filter(spare).min_by_key(|c| residents(*c))?;

        let slots = self.slab.slots_of(chunk);
        for slot in slots.clone() {
            self.policy.remove(slot);
            if let Some(entry) = self.occupants[slot as usize].take() {
                evicted(entry);
            }
        }
        self.free.retain(|slot| !slots.contains(slot));
        self.mapped -= slots.len();
        self.slab.unmap(chunk);
        Some(self.slab.chunk_bytes(chunk) as u64)
    }

    /// Maps a chunk that was given back, if there is one. Returns its bytes.
    pub(crate) fn grow_chunk(&mut self) -> Result<Option<u64>, StoreError> {
        let absent = (0..self.slab.chunk_count()).find(|chunk| !self.slab.is_mapped(*chunk));
        let Some(chunk) = absent else { return Ok(None) };
        self.slab.map(chunk)?;
        self.free.extend(self.slab.slots_of(chunk).rev());
        self.mapped += self.slab.slots_of(chunk).len();
        Ok(Some(self.slab.chunk_bytes(chunk) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicyKind, PolicyScope};

    #[test]
    fn slots_that_a_reader_kept_are_none_to_work_with() {
        let (bytes, slots) = (4096, 4);
        let plan = ClassPlan {
            record_bytes: bytes,
            slot_bytes: bytes,
            layers: 1,
            experts: 8,
            slots_min: 2,
            slots,
        };
        let scope = PolicyScope::new(&plan, 2, [Some(8)].into_iter());
        let mut class = Class::open(plan, PolicyKind::Lru.build(scope), bytes).unwrap();
        let kept: Vec<Buffer> = (0..2)
            .map(|entry| {
                let slot = class.take(EntryIndex::new(entry), None).unwrap().slot;
                let buffer = class.buffer(slot);
                class.lose(slot);
                buffer
            })
            .collect();
        // Two are left, and so many are needed.
        assert_eq!(class.release_chunk(|_| false, |_| ()), None);
        let exhausted = class.exhausted(LayerIndex(0));
        assert!(matches!(exhausted, StoreError::SlotsExhausted { slots: 2, .. }), "{exhausted}");
        drop(kept);
    }
}
