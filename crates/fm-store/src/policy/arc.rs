//! ARC: residents used once, residents used again, and how many of each is learned from regrets.
//!
//! ```text
//! once,  again          residents by last use                          T1, T2 in the paper
//! ghosts of both        evicted lately, without their bytes            B1, B2
//! target                how many residents used once there should be   p
//!
//! a ghost of once comes back:   target += max(1, |ghosts of again| / |ghosts of once|)
//! a ghost of again comes back:  target -= max(1, |ghosts of once| / |ghosts of again|)
//! goes next: the oldest of once if there are more than target, else the oldest of again
//! ```
//!
//! A scan is used once and pushes out only what was used once. Residents used once and their ghosts are
//! together no more than slots, all residents and ghosts no more than twice as many. Costs O(log experts).
//!
//! A request asks for several experts at once where the paper asks for one page: all are noted first, then
//! room is made for each. What is under way counts as a resident when it may go for the first time.
//!
//! Source: Megiddo, Modha, *ARC: A Self-Tuning, Low Overhead Replacement Cache*, FAST 2003.

use super::{
    Policy, Standing, Turn,
    tenants::{Queue, Tenants},
    victims::Victims,
};

/// Where an expert stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Forgotten,
    Once,
    Again,
    GhostOfOnce,
    GhostOfAgain,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Arc {
    slots: usize,
    target: f64,
    /// By expert.
    lists: Vec<List>,
    /// New ones were used once, proven ones again.
    tenants: Tenants,
    /// By queue, by expert: in the order of their evictions. Bound: see the file.
    ghosts: [Victims; 2],
    evictions: u64,
    /// Whether who was missing last was a ghost of [`List::Again`].
    regrets_again: bool,
}

impl Arc {
    pub(super) fn new(slots: usize, experts: usize) -> Self {
        Self {
            slots,
            target: 0.0,
            lists: vec![List::Forgotten; experts],
            tenants: Tenants::new(slots, experts),
            ghosts: [Victims::new(experts), Victims::new(experts)],
            evictions: 0,
            regrets_again: false,
        }
    }

    fn remember(&mut self, expert: u32) {
        let (list, queue) = match self.lists[expert as usize] {
            List::Once => (List::GhostOfOnce, Queue::New),
            List::Again => (List::GhostOfAgain, Queue::Proven),
            // A forecast that never came true leaves things as they were.
            List::Forgotten | List::GhostOfOnce | List::GhostOfAgain => return,
        };
        self.lists[expert as usize] = list;
        self.evictions += 1;
        self.ghosts[queue as usize].insert(expert, self.evictions as f64, expert);
    }

    /// Forgets the oldest ghosts that are too many.
    fn forget(&mut self) {
        let once = self.tenants.count(Queue::New);
        let all = once + self.tenants.count(Queue::Proven);
        loop {
            let [of_once, of_again] = &mut self.ghosts;
            let ghosts = if once + of_once.len() > self.slots {
                of_once
            } else if all + of_once.len() + of_again.len() > 2 * self.slots {
                of_again
            } else {
                return;
            };
            let Some(expert) = ghosts.take(f64::INFINITY, |_| true) else { return };
            self.lists[expert as usize] = List::Forgotten;
        }
    }
}

impl Policy for Arc {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        standing.rank = turn.now as f64;
        let [of_once, of_again] = &mut self.ghosts;
        let list = &mut self.lists[standing.id as usize];
        let before = std::mem::replace(list, List::Again);
        match before {
            List::Forgotten => *list = List::Once,
            List::Once | List::Again => {}
            List::GhostOfOnce => {
                let step = of_again.len() as f64 / of_once.len() as f64;
                self.target = (self.target + step.max(1.0)).min(self.slots as f64);
                of_once.remove(standing.id);
            }
            List::GhostOfAgain => {
                let step = of_once.len() as f64 / of_again.len() as f64;
                self.target = (self.target - step.max(1.0)).max(0.0);
                of_again.remove(standing.id);
            }
        }
        if *list == List::Again {
            self.tenants.prove(standing.id);
        }
        if !matches!(before, List::Once | List::Again) {
            self.regrets_again = before == List::GhostOfAgain;
        }
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        let again = self.lists[standing.id as usize] == List::Again;
        let queue = if again { Queue::Proven } else { Queue::New };
        let place = (standing.rank, standing.id);
        if let Some(lost) = self.tenants.insert(slot, standing.id, queue, place) {
            let list = &mut self.lists[lost as usize];
            if matches!(*list, List::Once | List::Again) {
                *list = List::Forgotten;
            }
        }
        self.forget();
    }

    fn remove(&mut self, slot: u32) {
        self.tenants.remove(slot);
    }

    /// A newcomer that was used once is worth as much as whoever was used once, and less than the others.
    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let once = self.tenants.count(Queue::New) as f64;
        let too_many = if self.regrets_again { once >= self.target } else { once > self.target };
        let first = if too_many { Queue::New } else { Queue::Proven };
        let only_new =
            newcomer.is_some_and(|newcomer| self.lists[newcomer.id as usize] != List::Again);
        let queues = if only_new { [Queue::New; 2] } else { [first, first.other()] };
        let (slot, expert) =
            queues.into_iter().find_map(|queue| self.tenants.take(queue, may_go))?;
        self.remember(expert);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{
        PolicyKind,
        one_by_one::{Access, Cache},
    };

    /// The paper's figure 4, in lists of which the last is the most recent.
    struct Paper {
        slots: usize,
        p: f64,
        t1: Vec<u32>,
        t2: Vec<u32>,
        b1: Vec<u32>,
        b2: Vec<u32>,
    }

    impl Paper {
        fn new(slots: usize) -> Self {
            let (t1, t2, b1, b2) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            Self { slots, p: 0.0, t1, t2, b1, b2 }
        }

        fn get(&mut self, x: u32, leased: Option<u32>) -> Access {
            let out = |list: &mut Vec<u32>| {
                list.iter().position(|at| *at == x).map(|at| list.remove(at)).is_some()
            };
            let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
            if out(&mut self.t1) || out(&mut self.t2) {
                self.t2.push(x);
                return Access::Hit;
            }
            if self.b1.contains(&x) {
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.slots as f64);
                let evicted = self.replace(false, leased);
                out(&mut self.b1);
                self.t2.push(x);
                return evicted;
            }
            if self.b2.contains(&x) {
                self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
                let evicted = self.replace(true, leased);
                out(&mut self.b2);
                self.t2.push(x);
                return evicted;
            }
            let evicted = self.replace(false, leased);
            self.t1.push(x);
            if self.t1.len() + self.b1.len() > self.slots {
                self.b1.remove(0);
            } else if self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() > 2 * self.slots
            {
                self.b2.remove(0);
            }
            evicted
        }

        fn replace(&mut self, x_in_b2: bool, leased: Option<u32>) -> Access {
            if self.t1.len() + self.t2.len() < self.slots {
                return Access::Filled;
            }
            let t1 = self.t1.len() as f64;
            let first = !self.t1.is_empty() && (t1 > self.p || (x_in_b2 && t1 >= self.p));
            for from_t1 in [first, !first] {
                let (list, ghosts) = if from_t1 {
                    (&mut self.t1, &mut self.b1)
                } else {
                    (&mut self.t2, &mut self.b2)
                };
                if let Some(at) = list.iter().position(|at| Some(*at) != leased) {
                    let evicted = list.remove(at);
                    ghosts.push(evicted);
                    return Access::Evicted(evicted);
                }
            }
            unreachable!("one lease leaves one that may go")
        }
    }

    proptest! {
        #[test]
        fn every_eviction_is_the_papers(
            slots in 2..7_usize,
            uses in prop::collection::vec((0..16_u32, 0..24_u32), 1..400),
        ) {
            let mut cache = Cache::new(Box::new(Arc::new(slots, 16)), slots, 1);
            let mut paper = Paper::new(slots);
            for (expert, leased) in uses {
                let leased = Some(leased);
                prop_assert_eq!(cache.get(expert, leased), paper.get(expert, leased));
            }
        }
    }

    #[test]
    fn a_scan_leaves_what_was_used_again() {
        let mut cache = Cache::of(PolicyKind::Arc, 4);
        cache.get_all([1, 2, 1, 2]);
        cache.get_all(10..60);
        assert_eq!(cache.get(1, None), Access::Hit);
        assert_eq!(cache.get(2, None), Access::Hit);
    }

    #[test]
    fn regrets_move_the_target() {
        let used = |arc: &mut Arc, id: u32, now| {
            let mut standing = Cache::standing(id, 1);
            arc.used(&mut standing, Turn { now, of_layer: now as u32 });
            standing
        };
        let mut arc = Arc::new(2, 8);
        for (id, now) in (0..2).zip(1..) {
            let standing = used(&mut arc, id, now);
            arc.insert(id, &standing);
        }
        arc.remove(0);
        let again = used(&mut arc, 0, 3);
        arc.insert(0, &again);
        // One of each: the one used once is more than a target of 0, and leaves a ghost.
        let third = used(&mut arc, 2, 4);
        assert_eq!(arc.take(None, &|_| true), Some(1));
        arc.insert(1, &third);
        assert_eq!(arc.lists[1], List::GhostOfOnce);
        // It comes back, and from now on one of those used once may stay.
        used(&mut arc, 1, 5);
        assert!((arc.target - 1.0).abs() < f64::EPSILON);
        assert_eq!(arc.take(None, &|_| true), Some(0), "the oldest used again");
        assert_eq!(arc.lists[0], List::GhostOfAgain);
        used(&mut arc, 0, 6);
        assert!(arc.target.abs() < f64::EPSILON);
    }

    #[test]
    fn who_was_used_once_takes_no_slot_of_who_was_used_again() {
        let mut cache = Cache::of(PolicyKind::Arc, 2);
        cache.get_all([1, 2, 1, 2]);
        assert_eq!(cache.get_politely(3), Access::Refused);
        assert_eq!(cache.get(4, None), Access::Evicted(1));
        // A ghost is no stranger.
        assert_eq!(cache.get_politely(1), Access::Evicted(4));
    }
}
