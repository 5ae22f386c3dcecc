//! How requests begin and end.

use fm_format::key::{ExpertIndex, LayerIndex};

use super::Store;
use crate::{
    entries::{Foreseen, Residence},
    error::StoreError,
    policy::Turn,
    reader::Wait,
    ticket::{ItemState, Purpose, Ticket},
};

impl Store {
    /// Asks for experts: those that are there are kept, reads of the others start. Never blocks.
    ///
    /// # Errors
    /// [`StoreError::TooManyTickets`]. Reads that fail are reported by [`Store::next`].
    ///
    /// # Panics
    /// If `ascending` is not, or names an expert or layer that does not exist.
    pub fn request(
        &mut self,
        layer: LayerIndex,
        ascending: &[ExpertIndex],
    ) -> Result<Ticket, StoreError> {
        self.open_request(layer, ascending, std::iter::once(ascending))
    }

    /// The same for rows of a text, in its order, of which each chose `per_row` of these experts. They count
    /// as if they had been asked for one by one: a prompt says what its text likes, and not only
    /// that nearly every expert was wanted once. Measured in `docs/experiments/0067`.
    ///
    /// # Errors
    /// As [`Store::request`].
    ///
    /// # Panics
    /// As [`Store::request`], or if `chosen` are no whole rows.
    pub fn request_rows(
        &mut self,
        layer: LayerIndex,
        ascending: &[ExpertIndex],
        (chosen, per_row): (&[ExpertIndex], usize),
    ) -> Result<Ticket, StoreError> {
        assert!(chosen.len().is_multiple_of(per_row), "every row chose as many");
        self.open_request(layer, ascending, chosen.chunks_exact(per_row))
    }

    /// A request for a layer's experts that were chosen turn by turn.
    fn open_request<'c>(
        &mut self,
        layer: LayerIndex,
        ascending: &[ExpertIndex],
        turns: impl Iterator<Item = &'c [ExpertIndex]>,
    ) -> Result<Ticket, StoreError> {
        self.check(layer, ascending);
        self.sweep();
        self.collect(Wait::Poll);
        let ticket = self.tickets.open(layer, ascending, Purpose::Demand)?;
        self.pin_all(layer, ascending);
        let entries = self.entries.layer(layer);
        for chosen in turns {
            self.now += 1;
            let turn = Turn { now: self.now, of_layer: self.entries.next_turn(layer) };
            for expert in chosen {
                let standing = &mut self.entries[entries.at(*expert)].standing;
                self.classes[entries.class].policy.used(standing, turn);
            }
        }
        for expert in ascending {
            let at = entries.at(*expert);
            self.map.used(at);
            let entry = &mut self.entries[at];
            let foreseen = std::mem::replace(&mut entry.foreseen, Foreseen::No);
            let (residence, seen) = (entry.residence, entry.seen);
            self.count(residence, seen, foreseen);
        }
        self.issue(self.tickets.position(&ticket));
        self.issue_forecasts();
        Ok(ticket)
    }

    pub(super) fn check(&self, layer: LayerIndex, ascending: &[ExpertIndex]) {
        assert!(ascending.is_sorted_by(|a, b| a < b), "experts ascend, each named once");
        let count = self.entries.layer(layer).count;
        assert!(ascending.last().is_none_or(|last| last.index() < count), "the expert exists");
    }

    /// Experts of an open request stay where they are, or will be.
    pub(super) fn pin_all(&mut self, layer: LayerIndex, experts: &[ExpertIndex]) {
        let entries = self.entries.layer(layer);
        for expert in experts {
            let entry = &mut self.entries[entries.at(*expert)];
            if let (Residence::Resident(slot), 0) = (entry.residence, entry.pins) {
                self.classes[entries.class].pin(slot);
            }
            entry.pins += 1;
        }
    }

    /// A request has taken or given up an expert.
    pub(super) fn unpin(&mut self, layer: LayerIndex, expert: ExpertIndex) {
        let entries = self.entries.layer(layer);
        let class = entries.class;
        let entry = &mut self.entries[entries.at(expert)];
        entry.pins -= 1;
        match entry.residence {
            Residence::Resident(slot) if entry.pins == 0 => {
                self.classes[class].unpin(slot, &entry.standing);
            }
            Residence::Resident(_) | Residence::Loading(_) | Residence::Absent => {}
        }
    }

    /// Ends the requests whose tickets were dropped. What they had under way arrives as residents.
    pub(super) fn sweep(&mut self) {
        while let Some(ticket) = self.tickets.dropped() {
            let layer = self.tickets.get(ticket).layer;
            for at in 0..self.tickets.get(ticket).items.len() {
                let item = self.tickets.get(ticket).items[at];
                if item.state != ItemState::Done {
                    self.unpin(layer, item.expert);
                }
            }
            self.failures.retain(|failure| failure.ticket != ticket);
            self.tickets.close(ticket);
        }
    }
}
