//! Residents in two queues: who is new, and who has shown that it comes back.
//!
//! A queue knows who goes next among those that may, and how many live in it, those that must stay
//! included. Nobody says when a slot is taken without asking (memory that runs short, a hit that gives
//! way): that is found out when the next one moves in.

use super::victims::Victims;

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    New,
    Proven,
}

impl Queue {
    pub(super) fn other(self) -> Self {
        match self {
            Self::New => Self::Proven,
            Self::Proven => Self::New,
        }
    }
}

/// A place in a queue: when it was taken, in turns of all layers, and in which order within the turn.
pub(super) type Place = (f64, u32);

/// See the file.
#[derive(Debug)]
pub(super) struct Tenants {
    /// Who may go: of [`Queue::New`], of [`Queue::Proven`].
    victims: [Victims; 2],
    /// By slot: the expert that lives there.
    residents: Vec<Option<(u32, Queue)>>,
    /// By expert: where it lives.
    homes: Vec<Option<u32>>,
    counts: [usize; 2],
}

impl Tenants {
    pub(super) fn new(slots: usize, experts: usize) -> Self {
        Self {
            victims: [Victims::new(slots), Victims::new(slots)],
            residents: vec![None; slots],
            homes: vec![None; experts],
            counts: [0; 2],
        }
    }

    /// Slots of a queue, those that must stay included.
    pub(super) fn count(&self, queue: Queue) -> usize {
        self.counts[queue as usize]
    }

    /// An expert that lives in a slot may go: the lowest place of its queue goes first. Returns who
    /// lived there before, if its slot was taken without asking.
    pub(super) fn insert(
        &mut self,
        slot: u32,
        expert: u32,
        queue: Queue,
        (rank, tie): Place,
    ) -> Option<u32> {
        let before = self.leave(slot);
        if let Some(home) = self.homes[expert as usize] {
            self.leave(home);
        }
        self.residents[slot as usize] = Some((expert, queue));
        self.homes[expert as usize] = Some(slot);
        self.counts[queue as usize] += 1;
        self.victims[queue as usize].insert(slot, rank, tie);
        before.filter(|before| *before != expert)
    }

    /// An expert counts as proven from now on, and not only when it may go again.
    pub(super) fn prove(&mut self, expert: u32) {
        let Some(home) = self.homes[expert as usize] else { return };
        let (_, queue) =
            self.residents[home as usize].as_mut().expect("a home is where somebody lives");
        self.counts[*queue as usize] -= 1;
        *queue = Queue::Proven;
        self.counts[*queue as usize] += 1;
    }

    /// A resident must stay, or is gone.
    pub(super) fn remove(&mut self, slot: u32) {
        self.victims.iter_mut().for_each(|victims| victims.remove(slot));
    }

    /// Takes out who goes first of a queue: its slot and the expert.
    pub(super) fn take(
        &mut self,
        queue: Queue,
        may_go: &dyn Fn(u32) -> bool,
    ) -> Option<(u32, u32)> {
        let slot = self.victims[queue as usize].take(f64::INFINITY, may_go)?;
        let expert = self.leave(slot).expect("who may go lives somewhere");
        Some((slot, expert))
    }

    /// The tenant of a slot moves out.
    fn leave(&mut self, slot: u32) -> Option<u32> {
        let (expert, queue) = self.residents[slot as usize].take()?;
        self.homes[expert as usize] = None;
        self.counts[queue as usize] -= 1;
        Some(expert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lost_a_slot_unasked_is_found_out_and_counted_no_more() {
        let mut tenants = Tenants::new(2, 4);
        assert_eq!(tenants.insert(0, 1, Queue::Proven, (1.0, 1)), None);
        tenants.remove(0);
        assert_eq!(tenants.count(Queue::Proven), 1, "who must stay still lives there");
        assert_eq!(tenants.insert(0, 1, Queue::Proven, (2.0, 1)), None, "it was never gone");
        tenants.remove(0);
        // It was read again into another slot before anybody moved into its own.
        assert_eq!(tenants.insert(1, 1, Queue::Proven, (2.0, 1)), None);
        assert_eq!(tenants.insert(0, 2, Queue::New, (3.0, 2)), None);
        tenants.remove(0);
        assert_eq!(tenants.insert(0, 3, Queue::New, (3.0, 3)), Some(2));
        assert_eq!([Queue::New, Queue::Proven].map(|queue| tenants.count(queue)), [1, 1]);
        assert_eq!(tenants.take(Queue::New, &|_| true), Some((0, 3)));
        assert_eq!(tenants.take(Queue::New, &|_| true), None);
        assert_eq!(tenants.take(Queue::Proven, &|slot| slot != 1), None);
    }
}
