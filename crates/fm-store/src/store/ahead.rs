//! Look-ahead: experts that will probably be wanted, read while the disk has nothing else to do.
//!
//! A forecast is a request that nobody waits for. It keeps what is there, so that it is still there
//! when it is wanted, and reads the rest, but only when every read that somebody does wait for has
//! been started. It changes no rank and counts no hit: a forecast that comes true is counted when it
//! does, and one that does not leaves experts with the rank they had, which go first.

use fm_format::key::{ExpertIndex, LayerIndex};

use super::Store;
use crate::{
    entries::{Foreseen, Residence},
    error::StoreError,
    ticket::{Purpose, TICKETS_MAX, Ticket},
};

impl Store {
    /// Says which experts will probably be wanted. Up to `records` of them may be on their way at
    /// once. The ticket is good for nothing but being dropped: when the request that was foreseen
    /// has been made, or is not to be expected any more.
    ///
    /// # Errors
    /// [`StoreError::TooManyTickets`].
    ///
    /// # Panics
    /// If `ascending` is not, or names an expert or layer that does not exist.
    pub fn foresee(
        &mut self,
        layer: LayerIndex,
        ascending: &[ExpertIndex],
        records: usize,
    ) -> Result<Ticket, StoreError> {
        self.check(layer, ascending);
        self.sweep();
        let ticket = self.tickets.open(layer, ascending, Purpose::Forecast { records })?;
        self.pin_all(layer, ascending);
        self.issue_forecasts();
        Ok(ticket)
    }

    /// Starts reads of forecasts, if nobody waits for a read that has not been started.
    pub(super) fn issue_forecasts(&mut self) {
        for at in 0..TICKETS_MAX {
            let demanded =
                self.tickets.is_open(at) && self.tickets.get(at).purpose == Purpose::Demand;
            if demanded && self.next_absent(at).is_some() {
                return;
            }
        }
        for at in 0..TICKETS_MAX {
            if self.tickets.is_open(at)
                && let Purpose::Forecast { records } = self.tickets.get(at).purpose
            {
                self.issue_forecast(at, records);
            }
        }
    }

    fn issue_forecast(&mut self, ticket: usize, records: usize) {
        while self.under_way < records {
            let Some((_, entry)) = self.next_absent(ticket) else { return };
            let class = self.entries.layer(self.tickets.get(ticket).layer).class;
            let Some(taken) = self.classes[class].take(entry, None) else { return };
            let seen = self.entries[entry].seen;
            self.start(entry, class, taken);
            self.entries[entry].foreseen = if seen { Foreseen::Again } else { Foreseen::New };
            self.stats.foreseen_records += 1;
        }
    }

    /// Counts an expert that a request names: found, or read for it, be it ahead of time.
    pub(super) fn count(&mut self, residence: Residence, seen: bool, foreseen: Foreseen) {
        let stats = &mut self.stats;
        stats.foreseen_used += u64::from(foreseen != Foreseen::No);
        *match (residence, seen, foreseen) {
            (_, _, Foreseen::New) | (Residence::Absent, false, Foreseen::No) => {
                &mut stats.cold_misses
            }
            (_, _, Foreseen::Again) | (Residence::Absent, true, Foreseen::No) => {
                &mut stats.capacity_misses
            }
            (Residence::Loading(_) | Residence::Resident(_), _, Foreseen::No) => &mut stats.hits,
        } += 1;
    }
}
