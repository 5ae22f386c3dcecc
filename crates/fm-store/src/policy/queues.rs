//! Residents that may go, by layer and class, the oldest first.
//!
//! Linked lists through one array: all operations are O(1), but for an insertion behind
//! younger residents, and none allocates after construction.

use fm_format::key::ExpertIndex;

use super::Standing;

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot's place in its queue.
#[derive(Clone, Copy, Debug)]
struct Place {
    is_in: bool,
    /// Position in `ends`, of the latest queue it was in.
    queue: u32,
    older: u32,
    younger: u32,
    age: Age,
}

/// Orders a queue: the last use, in turns of the layer, then the expert, so that it does not matter
/// in which order reads have arrived.
type Age = (u32, ExpertIndex);

/// Both ends of a queue.
#[derive(Clone, Copy, Debug)]
struct Queue {
    oldest: u32,
    youngest: u32,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Queues<const CLASSES: usize> {
    /// By slot.
    places: Vec<Place>,
    /// By layer and class.
    ends: Vec<Queue>,
    /// By layer: see [`Self::take_change`].
    changed: Vec<bool>,
    /// Slots that were looked at and found in use. Bound: all slots.
    skipped: Vec<u32>,
}

impl<const CLASSES: usize> Queues<CLASSES> {
    pub(super) fn new(slots: usize, layers: usize) -> Self {
        let place =
            Place { is_in: false, queue: 0, older: NONE, younger: NONE, age: (0, ExpertIndex(0)) };
        let queue = Queue { oldest: NONE, youngest: NONE };
        Self {
            places: vec![place; slots],
            ends: vec![queue; layers * CLASSES],
            changed: vec![true; layers],
            skipped: Vec::with_capacity(slots),
        }
    }

    /// Takes a slot out, for good if it may go, else until [`Self::put_back_skipped`].
    pub(super) fn take(&mut self, slot: u32, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.remove(slot);
        if may_go(slot) {
            return Some(slot);
        }
        self.skipped.push(slot);
        None
    }

    /// Those that could not be taken are where they were.
    pub(super) fn put_back_skipped(&mut self) {
        while let Some(slot) = self.skipped.pop() {
            self.link(slot);
        }
    }

    /// The slot that goes first of a layer and class.
    pub(super) fn oldest(&self, layer: usize, class: usize) -> Option<u32> {
        let slot = self.ends[layer * CLASSES + class].oldest;
        (slot != NONE).then_some(slot)
    }

    /// When the expert in a slot was last used, in turns of its layer.
    pub(super) fn last_turn(&self, slot: u32) -> u32 {
        self.places[slot as usize].age.0
    }

    /// Adds a slot that is in none.
    pub(super) fn insert(&mut self, slot: u32, standing: &Standing) {
        let queue = standing.key.layer.index() * CLASSES + usize::from(standing.class);
        let place = &mut self.places[slot as usize];
        place.queue = queue as u32;
        place.age = (standing.last_turn, standing.key.expert);
        self.link(slot);
    }

    /// Takes a slot out if it is in.
    pub(super) fn remove(&mut self, slot: u32) {
        let Place { is_in, queue, older, younger, .. } = self.places[slot as usize];
        if !is_in {
            return;
        }
        self.places[slot as usize].is_in = false;
        match self.places.get_mut(older as usize) {
            Some(older) => older.younger = younger,
            None => self.ends[queue as usize].oldest = younger,
        }
        match self.places.get_mut(younger as usize) {
            Some(younger) => younger.older = older,
            None => self.ends[queue as usize].youngest = older,
        }
        self.changed[queue as usize / CLASSES] = true;
    }

    /// Whether anybody came or went of a layer since this was asked last, or ever.
    pub(super) fn take_change(&mut self, layer: usize) -> bool {
        std::mem::take(&mut self.changed[layer])
    }

    /// Puts a slot behind everybody who was used before it.
    fn link(&mut self, slot: u32) {
        let Place { is_in, queue, age, .. } = self.places[slot as usize];
        debug_assert!(!is_in, "a slot is in once");
        let mut older = self.ends[queue as usize].youngest;
        while older != NONE && self.places[older as usize].age > age {
            older = self.places[older as usize].older;
        }
        let younger = match self.places.get_mut(older as usize) {
            Some(older) => std::mem::replace(&mut older.younger, slot),
            None => std::mem::replace(&mut self.ends[queue as usize].oldest, slot),
        };
        match self.places.get_mut(younger as usize) {
            Some(younger) => younger.older = slot,
            None => self.ends[queue as usize].youngest = slot,
        }
        let place = &mut self.places[slot as usize];
        (place.is_in, place.older, place.younger) = (true, older, younger);
        self.changed[queue as usize / CLASSES] = true;
    }
}

#[cfg(test)]
mod tests {
    use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert { slot: u32, layer: u16, class: u8, last_turn: u32 },
        Remove(u32),
        PutBack(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            2 => (0..12_u32, 0..2_u16, 0..2_u8, 0..9_u32).prop_map(
                |(slot, layer, class, last_turn)| Op::Insert { slot, layer, class, last_turn }
            ),
            1 => (0..12_u32).prop_map(Op::Remove),
            1 => (0..12_u32).prop_map(Op::PutBack),
        ]
    }

    proptest! {
        #[test]
        fn the_oldest_is_the_oldest_of_a_list(ops in prop::collection::vec(op(), 1..200)) {
            let mut queues = Queues::<2>::new(12, 2);
            // Layer, class and last turn of every slot that is or was in; whether it is.
            let mut list: Vec<Option<(u16, u8, u32, bool)>> = vec![None; 12];
            for op in ops {
                match op {
                    Op::Insert { slot, layer, class, last_turn } => {
                        let (layer_index, expert) = (LayerIndex(layer), ExpertIndex(0));
                        let key = ExpertKey { layer: layer_index, expert };
                        queues.remove(slot);
                        queues.insert(slot, &Standing { last_turn, class, ..Standing::new(key, 0) });
                        list[slot as usize] = Some((layer, class, last_turn, true));
                    }
                    Op::Remove(slot) => {
                        queues.remove(slot);
                        if let Some(entry) = &mut list[slot as usize] {
                            entry.3 = false;
                        }
                    }
                    Op::PutBack(slot) => {
                        if let Some(entry @ (.., false)) = &mut list[slot as usize] {
                            queues.link(slot);
                            entry.3 = true;
                        }
                    }
                }
                for (layer, class) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let ours = list.iter().flatten().filter(|entry| {
                        (entry.0, entry.1, entry.3) == (layer, class, true)
                    });
                    let expected = ours.map(|entry| entry.2).min();
                    let found = queues.oldest(usize::from(layer), usize::from(class));
                    prop_assert_eq!(found.map(|slot| queues.last_turn(slot)), expected);
                }
            }
        }
    }
}
