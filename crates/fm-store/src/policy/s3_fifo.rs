//! S3-FIFO: newcomers wait in a small queue and have to be wanted twice more to get into the large one.
//!
//! ```text
//! small   a tenth of the slots   used twice more: goes to the large one; else it goes and leaves a ghost
//! large   the others             used since: goes round once more for each use, three at most; else it goes
//! ghosts  as many as large       who is used while its ghost is there begins in the large one
//! ```
//!
//! Both are queues: a use moves nobody, it is only counted. Most experts are used once for a long time, and these
//! pass through a tenth of the slots. Costs O(log slots) per step of a queue.
//!
//! Where the paper makes room for one object at a time, a request makes room for several: newcomers
//! stand behind whoever was moved in the same turn, ascending, whatever the order in which they arrive.
//!
//! Source: Yang, Zhang, Qiu, Yue, Vinayak, *FIFO Queues Are All You Need for Cache Eviction*, SOSP 2023.

use super::{
    Policy, Standing, Turn,
    tenants::{Place, Queue, Tenants},
};

/// Of so many slots, one is for newcomers.
const SLOTS_PER_NEWCOMER: usize = 10;

/// Uses beyond these are not counted.
const USES_MAX: u8 = 3;

/// Uses in the small queue that it takes to get into the large one.
const USES_TO_STAY: u8 = 2;

/// Newcomers stand behind whoever is moved in the same turn.
const NEWCOMER: u32 = 1 << 31;

/// What is known of an expert.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Where it lives or will live; `None` if it was never used since it was evicted.
    queue: Option<Queue>,
    place: Place,
    /// Uses since it came or was moved.
    uses: u8,
    /// Its number among all ghosts, from 1; 0 if it left none.
    ghost: u64,
}

/// See the file.
#[derive(Debug)]
pub(super) struct S3Fifo {
    small_slots: usize,
    large_slots: usize,
    /// By expert.
    known: Vec<Known>,
    tenants: Tenants,
    /// Ghosts that there ever were. They are a queue: the latest `large_slots` count.
    ghosts: u64,
    now: u64,
    /// Who was moved in this turn.
    moved: u32,
}

impl S3Fifo {
    pub(super) fn new(slots: usize, experts: usize) -> Self {
        let small_slots = (slots / SLOTS_PER_NEWCOMER).max(1);
        let stranger = Known { queue: None, place: (f64::NEG_INFINITY, 0), uses: 0, ghost: 0 };
        Self {
            small_slots,
            large_slots: slots.saturating_sub(small_slots),
            known: vec![stranger; experts],
            tenants: Tenants::new(slots, experts),
            ghosts: 0,
            now: 0,
            moved: 0,
        }
    }

    /// Moves somebody to the end of the large queue.
    fn move_to_large(&mut self, slot: u32, expert: u32, uses: u8) {
        self.moved += 1;
        let known = &mut self.known[expert as usize];
        (known.queue, known.uses) = (Some(Queue::Proven), uses);
        known.place = (self.now as f64, self.moved);
        self.tenants.insert(slot, expert, Queue::Proven, known.place);
    }

    /// Who goes of the small queue. Whoever gets into the large one on the way may push somebody out there,
    /// unless there is reason to `spare_large`.
    fn take_small(&mut self, spare_large: bool, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        loop {
            let (slot, expert) = self.tenants.take(Queue::New, may_go)?;
            let known = &mut self.known[expert as usize];
            if known.uses < USES_TO_STAY {
                // A forecast that never came true leaves no ghost.
                if known.queue.take().is_some() {
                    self.ghosts += 1;
                    known.ghost = self.ghosts;
                }
                return Some(slot);
            }
            self.move_to_large(slot, expert, 0);
            if !spare_large
                && self.tenants.count(Queue::Proven) > self.large_slots
                && let Some(slot) = self.take_large(may_go)
            {
                return Some(slot);
            }
        }
    }

    fn take_large(&mut self, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        loop {
            let (slot, expert) = self.tenants.take(Queue::Proven, may_go)?;
            let known = &mut self.known[expert as usize];
            if known.uses == 0 {
                known.queue = None;
                return Some(slot);
            }
            let left = known.uses - 1;
            self.move_to_large(slot, expert, left);
        }
    }
}

impl Policy for S3Fifo {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        if self.now != turn.now {
            (self.now, self.moved) = (turn.now, 0);
        }
        let known = &mut self.known[standing.id as usize];
        if known.queue.is_some() {
            known.uses = (known.uses + 1).min(USES_MAX);
            return;
        }
        let remembered = known.ghost > 0 && self.ghosts - known.ghost < self.large_slots as u64;
        let queue = Some(if remembered { Queue::Proven } else { Queue::New });
        *known =
            Known { queue, place: (turn.now as f64, NEWCOMER | standing.id), uses: 0, ghost: 0 };
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        let known = self.known[standing.id as usize];
        let (queue, place) = match known.queue {
            Some(queue) => (queue, known.place),
            None => (Queue::New, (f64::NEG_INFINITY, standing.id)),
        };
        if let Some(lost) = self.tenants.insert(slot, standing.id, queue, place) {
            self.known[lost as usize].queue = None;
        }
    }

    fn remove(&mut self, slot: u32) {
        self.tenants.remove(slot);
    }

    /// A newcomer of the small queue is worth as much as others who pass through it, and less than those
    /// of the large one.
    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let in_large = |it: &Standing| self.known[it.id as usize].queue == Some(Queue::Proven);
        if newcomer.is_some_and(|newcomer| !in_large(newcomer)) {
            return self.take_small(true, may_go);
        }
        if self.tenants.count(Queue::New) >= self.small_slots {
            self.take_small(false, may_go).or_else(|| self.take_large(may_go))
        } else {
            self.take_large(may_go).or_else(|| self.take_small(false, may_go))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{
        PolicyKind,
        one_by_one::{Access, Cache},
    };

    /// The paper's algorithm 1, in queues of experts and their uses.
    struct Paper {
        small_max: usize,
        slots: usize,
        small: VecDeque<(u32, u8)>,
        large: VecDeque<(u32, u8)>,
        /// Who came back stays in, as in the paper's own implementation.
        ghosts: VecDeque<Option<u32>>,
    }

    impl Paper {
        fn new(slots: usize) -> Self {
            let (small, large, ghosts) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            Self { small_max: (slots / 10).max(1), slots, small, large, ghosts }
        }

        fn get(&mut self, x: u32, leased: Option<u32>) -> Access {
            if let Some(known) =
                self.small.iter_mut().chain(&mut self.large).find(|known| known.0 == x)
            {
                known.1 = (known.1 + 1).min(3);
                return Access::Hit;
            }
            let ghost = self.ghosts.iter_mut().find(|ghost| **ghost == Some(x));
            let was_ghost = ghost.map(|ghost| *ghost = None).is_some();
            let evicted = if self.small.len() + self.large.len() < self.slots {
                Access::Filled
            } else {
                Access::Evicted(self.evict(leased))
            };
            if was_ghost { &mut self.large } else { &mut self.small }.push_back((x, 0));
            evicted
        }

        fn evict(&mut self, leased: Option<u32>) -> u32 {
            let evicted = if self.small.len() >= self.small_max {
                self.evict_small(leased).or_else(|| self.evict_large(leased))
            } else {
                self.evict_large(leased).or_else(|| self.evict_small(leased))
            };
            evicted.expect("one lease leaves one that may go")
        }

        fn evict_small(&mut self, leased: Option<u32>) -> Option<u32> {
            loop {
                let at = self.small.iter().position(|known| Some(known.0) != leased)?;
                let (expert, uses) = self.small.remove(at)?;
                if uses > 1 {
                    self.large.push_back((expert, 0));
                    if self.large.len() > self.slots - self.small_max
                        && let Some(evicted) = self.evict_large(leased)
                    {
                        return Some(evicted);
                    }
                } else {
                    self.ghosts.push_back(Some(expert));
                    if self.ghosts.len() > self.slots - self.small_max {
                        self.ghosts.pop_front();
                    }
                    return Some(expert);
                }
            }
        }

        fn evict_large(&mut self, leased: Option<u32>) -> Option<u32> {
            loop {
                let at = self.large.iter().position(|known| Some(known.0) != leased)?;
                let (expert, uses) = self.large.remove(at)?;
                if uses == 0 {
                    return Some(expert);
                }
                self.large.push_back((expert, uses - 1));
            }
        }
    }

    proptest! {
        #[test]
        fn every_eviction_is_the_papers(
            slots in 2..25_usize,
            uses in prop::collection::vec((0..40_u32, 0..60_u32), 1..400),
        ) {
            let mut cache = Cache::new(Box::new(S3Fifo::new(slots, 40)), slots, 1);
            let mut paper = Paper::new(slots);
            for (expert, leased) in uses {
                // Low numbers more often: they come back.
                let (expert, leased) = (expert * expert / 40, Some(leased));
                prop_assert_eq!(cache.get(expert, leased), paper.get(expert, leased));
            }
        }
    }

    #[test]
    fn a_scan_passes_through_the_small_queue() {
        let mut cache = Cache::of(PolicyKind::S3Fifo, 10);
        // Wanted three times each, and ten of them: the first is in the large queue from then on.
        cache.get_all((0..9).flat_map(|expert| [expert; 3]));
        cache.get_all(10..60);
        for expert in 0..9 {
            assert_eq!(cache.get(expert, None), Access::Hit, "{expert}");
        }
    }

    #[test]
    fn who_comes_back_in_time_begins_in_the_large_queue() {
        let mut cache = Cache::of(PolicyKind::S3Fifo, 10);
        cache.get_all(0..10);
        assert_eq!(cache.get(10, None), Access::Evicted(0));
        assert_eq!(cache.get(0, None), Access::Evicted(1));
        // A scan evicts all who were used once, and not the one that came back.
        cache.get_all(20..60);
        assert_eq!(cache.get(0, None), Access::Hit);
        assert_eq!(cache.get(10, None), Access::Evicted(51));
    }

    #[test]
    fn who_passes_through_takes_no_slot_of_the_large_queue() {
        let mut cache = Cache::of(PolicyKind::S3Fifo, 2);
        cache.get_all([1, 1, 1, 2, 2, 2]);
        assert_eq!(cache.get_politely(3), Access::Refused);
        assert_eq!(cache.get(3, None), Access::Evicted(1));
    }
}
