//! Who is evicted next: residents nobody waits for, ordered by rank.
//!
//! Equal ranks are ordered by a number of the caller's, so that a run can be repeated whatever the
//! order in which reads have arrived.
//!
//! A binary heap that knows where each slot stands, so that any slot can leave. All operations are
//! O(log n) and, after construction, none allocates.

/// Marks a slot that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// Slots by ascending rank.
#[derive(Debug)]
pub(crate) struct Victims {
    /// Bound: all slots of the class.
    heap: Vec<u32>,
    /// Position in `heap`, per slot.
    position: Vec<u32>,
    rank: Vec<(f64, u32)>,
    /// Slots that were looked at and found in use. Bound: all slots of the class.
    skipped: Vec<u32>,
}

impl Victims {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            heap: Vec::with_capacity(slots),
            position: vec![ABSENT; slots],
            rank: vec![(0.0, 0); slots],
            skipped: Vec::with_capacity(slots),
        }
    }

    /// Slots that are in.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Adds a slot that is not in. Of equal ranks, the lower `tie` goes first.
    pub(crate) fn insert(&mut self, slot: u32, rank: f64, tie: u32) {
        self.rank[slot as usize] = (rank, tie);
        self.put_in(slot);
    }

    fn put_in(&mut self, slot: u32) {
        debug_assert_eq!(self.position[slot as usize], ABSENT, "a slot is in once");
        self.heap.push(slot);
        self.up(self.heap.len() - 1);
    }

    /// Takes a slot out if it is in.
    pub(crate) fn remove(&mut self, slot: u32) {
        let at = self.position[slot as usize];
        if at == ABSENT {
            return;
        }
        let at = at as usize;
        self.position[slot as usize] = ABSENT;
        let last = self.heap.pop().expect("the slot is in");
        if at < self.heap.len() {
            self.heap[at] = last;
            self.up(at);
            self.down(self.position[last as usize] as usize);
        }
    }

    /// Takes out the slot with the lowest rank among those that may go, if that is
    /// not above `limit`.
    ///
    /// Costs O(log n) for each slot that may not: the few that are leased.
    pub(crate) fn take(&mut self, limit: f64, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let mut taken = None;
        while let Some(&slot) = self.heap.first() {
            if self.rank[slot as usize].0 > limit {
                break;
            }
            self.remove(slot);
            if may_go(slot) {
                taken = Some(slot);
                break;
            }
            self.skipped.push(slot);
        }
        while let Some(slot) = self.skipped.pop() {
            self.put_in(slot);
        }
        taken
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let ((rank_a, tie_a), (rank_b, tie_b)) = (self.rank[a as usize], self.rank[b as usize]);
        rank_a.total_cmp(&rank_b).then(tie_a.cmp(&tie_b)).is_lt()
    }

    fn up(&mut self, mut at: usize) {
        let slot = self.heap[at];
        while at > 0 && self.before(slot, self.heap[(at - 1) / 2]) {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.put(at, slot);
    }

    fn down(&mut self, mut at: usize) {
        let slot = self.heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.before(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if !self.before(self.heap[child], slot) {
                break;
            }
            self.put(at, self.heap[child]);
            at = child;
        }
        self.put(at, slot);
    }

    fn put(&mut self, at: usize, slot: u32) {
        self.heap[at] = slot;
        self.position[slot as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, u8),
        Remove(u32),
        Take { limit: u8, but_not: u32 },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..20_u32, any::<u8>()).prop_map(|(slot, rank)| Op::Insert(slot, rank)),
            1 => (0..20_u32).prop_map(Op::Remove),
            1 => (any::<u8>(), 0..20_u32)
                .prop_map(|(limit, but_not)| Op::Take { limit, but_not }),
        ]
    }

    proptest! {
        #[test]
        fn takes_what_a_sorted_list_would_take(ops in prop::collection::vec(op(), 1..200)) {
            let mut victims = Victims::new(20);
            let mut list: Vec<(u8, u32)> = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(slot, rank) => {
                        victims.remove(slot);
                        victims.insert(slot, f64::from(rank), slot);
                        list.retain(|entry| entry.1 != slot);
                        list.push((rank, slot));
                    }
                    Op::Remove(slot) => {
                        victims.remove(slot);
                        list.retain(|entry| entry.1 != slot);
                    }
                    Op::Take { limit, but_not } => {
                        list.sort_unstable();
                        let goes = |entry: &(u8, u32)| entry.1 != but_not && entry.0 <= limit;
                        let expected = list.iter().position(goes).map(|at| list.remove(at).1);
                        let taken = victims.take(f64::from(limit), |slot| slot != but_not);
                        prop_assert_eq!(taken, expected);
                    }
                }
            }
        }
    }
}
