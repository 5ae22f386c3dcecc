//! Least-Stale: who was not used in the last pass goes first, and of these whose turn is farthest.
//!
//! Layers have their turns one after the other, so it is known how far everybody's next chance is:
//!
//! ```text
//! stale     = not used in the latest turn of its layer
//! distance  = layers until its layer's turn comes again: all of them for the current one
//! goes next = stale before fresh, then the greatest distance, then the longest unused, then the lowest expert
//! ```
//!
//! This is a reading of the abstract, without the prefetching around it; what it costs against recency is in
//! `docs/experiments/0030-cache-policies.md`. Costs O(layers) per eviction.
//!
//! Source: Hoang, Jaiswal, Samragh, Cho, *SpecMD: A Comprehensive Study On Speculative Expert Prefetching*,
//! 2026, arXiv:2602.03921.

use std::cmp::Reverse;

use super::{Policy, Standing, Turn, queues::Queues};

/// Lower goes first: whether it is fresh, and how far its turn is.
type Worth = (bool, Reverse<usize>);

/// See the file.
#[derive(Debug)]
pub(super) struct LeastStale {
    /// Of a layer's residents, the longest unused first.
    queues: Queues<1>,
    /// By layer of the model: its turns so far.
    turns: Vec<u32>,
    /// The layer whose turn it is.
    current: usize,
}

impl LeastStale {
    pub(super) fn new(slots: usize, layers: usize) -> Self {
        Self { queues: Queues::new(slots, layers), turns: vec![0; layers], current: 0 }
    }

    fn worth(&self, layer: usize, last_turn: u32) -> Worth {
        let distance = if layer > self.current { 0 } else { self.turns.len() };
        let fresh = last_turn > 0 && last_turn == self.turns[layer];
        (fresh, Reverse(layer + distance - self.current))
    }

    /// Who goes next of all.
    fn first(&self) -> Option<(Worth, u32)> {
        let oldest = (0..self.turns.len()).filter_map(|layer| {
            let slot = self.queues.oldest(layer, 0)?;
            Some((self.worth(layer, self.queues.last_turn(slot)), slot))
        });
        oldest.min_by_key(|(worth, _)| *worth)
    }
}

impl Policy for LeastStale {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        self.current = standing.key.layer.index();
        self.turns[self.current] = turn.of_layer;
        standing.last_turn = turn.of_layer;
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        self.queues.insert(slot, standing);
    }

    fn remove(&mut self, slot: u32) {
        self.queues.remove(slot);
    }

    /// A newcomer was just used: it may displace who is stale, and fresh ones whose turn is no nearer.
    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let limit = newcomer.map(|it| self.worth(it.key.layer.index(), it.last_turn));
        let mut taken = None;
        while taken.is_none()
            && let Some((worth, slot)) = self.first()
            && limit.is_none_or(|limit| worth <= limit)
        {
            taken = self.queues.take(slot, may_go);
        }
        self.queues.put_back_skipped();
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::one_by_one::{Access, Cache};

    const LAYERS: u32 = 4;

    /// All residents in a list, looked through at every eviction.
    #[derive(Default)]
    struct Naive {
        turns: [u32; LAYERS as usize],
        current: u32,
        residents: Vec<(u32, u32)>,
    }

    impl Naive {
        fn get(&mut self, expert: u32, slots: usize, leased: Option<u32>) -> Access {
            let layer_of = |expert: u32| expert / (64 / LAYERS);
            self.current = layer_of(expert);
            self.turns[self.current as usize] += 1;
            let used = (expert, self.turns[self.current as usize]);
            if let Some(known) = self.residents.iter_mut().find(|known| known.0 == expert) {
                *known = used;
                return Access::Hit;
            }
            let access = if self.residents.len() < slots {
                Access::Filled
            } else {
                let order = |known: &(u32, u32)| {
                    let layer = layer_of(known.0);
                    let fresh = known.1 == self.turns[layer as usize];
                    let nearness = (layer + LAYERS - self.current - 1) % LAYERS;
                    (fresh, LAYERS - nearness, known.1, known.0)
                };
                let may_go = self.residents.iter().filter(|known| Some(known.0) != leased);
                let evicted = *may_go.min_by_key(|known| order(known)).unwrap();
                self.residents.retain(|known| *known != evicted);
                Access::Evicted(evicted.0)
            };
            self.residents.push(used);
            access
        }
    }

    proptest! {
        #[test]
        fn every_eviction_is_that_of_a_list(
            slots in 2..12_usize,
            uses in prop::collection::vec((0..64_u32, 0..64_u32), 1..300),
        ) {
            let policy = Box::new(LeastStale::new(slots, LAYERS as usize));
            let (mut cache, mut naive) = (Cache::new(policy, slots, LAYERS), Naive::default());
            for (expert, leased) in uses {
                // Four of a layer, so that they come back.
                let (expert, leased) = (expert / 4 * 4 % 64, Some(leased / 4 * 4));
                let expected = naive.get(expert, slots, leased);
                prop_assert_eq!(cache.get(expert, leased), expected);
            }
        }
    }

    #[test]
    fn the_stale_go_first_and_then_the_farthest() {
        let mut cache = Cache::new(Box::new(LeastStale::new(4, 4)), 4, 4);
        // Layers 0 to 2 use one expert each; then layer 0 uses another one, which makes its first one stale.
        cache.get_all([0, 16, 32, 1]);
        assert_eq!(cache.get(17, None), Access::Evicted(16), "stale too, and farther than layer 0");
        assert_eq!(cache.get(33, None), Access::Evicted(32));
        assert_eq!(cache.get(48, None), Access::Evicted(0));
        // All are fresh: the current layer's is the farthest.
        assert_eq!(cache.get(2, None), Access::Evicted(1), "stale as of now");
        assert_eq!(cache.get_politely(34), Access::Evicted(33));
    }

    #[test]
    fn a_newcomer_leaves_fresh_ones_whose_turn_is_nearer() {
        let mut cache = Cache::new(Box::new(LeastStale::new(2, 4)), 2, 4);
        cache.get_all([0, 16]);
        assert_eq!(cache.get_politely(32), Access::Refused);
        assert_eq!(cache.get(32, None), Access::Evicted(16));
    }
}
