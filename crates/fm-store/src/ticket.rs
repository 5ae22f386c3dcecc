//! Tickets: which experts of a request have not been handed out yet.
//!
//! The state lives in the store and is reused; the caller holds a [`Ticket`], and dropping it is
//! how a request ends, however far it came.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};

use crate::{error::StoreError, slots::Lease};

/// Requests that may be open at once: one per layer in work, a few in look-ahead.
pub(crate) const TICKETS_MAX: usize = 8;

/// A request under way. Drop it whenever you like; what it pinned is free again.
pub struct Ticket {
    at: usize,
    dropped: Arc<AtomicBool>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.at)
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Somebody waits for it.
    Demand,
    /// Somebody may wait for it later.
    Forecast {
        /// Reads of it go on while fewer than this are under way.
        records: usize,
    },
}

/// In which order a request's experts are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What is there comes first: for few rows, where every wait counts.
    Arrival,
    /// By expert index: for many rows, where sums are accumulated as they come.
    Ascending,
}

/// An expert of a request, with its bytes or the reason why there are none.
#[derive(Debug)]
pub struct Arrived {
    /// Which one.
    pub expert: ExpertIndex,
    /// Its record. An error concerns this expert only: the ticket goes on with the others, and the
    /// next request tries again.
    pub record: Result<Lease, StoreError>,
}

/// An error on its way to the request that waits for the expert.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) ticket: usize,
    pub(crate) expert: ExpertIndex,
    pub(crate) error: StoreError,
}

/// How far one expert of a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemState {
    /// Not handed out. Whether it can be is a matter of the expert, not of the request.
    Waiting,
    /// Its error waits to be handed out.
    Failed,
    /// Handed out.
    Done,
}

/// One expert of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) expert: ExpertIndex,
    pub(crate) state: ItemState,
}

/// A request, seen from the store.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) layer: LayerIndex,
    pub(crate) purpose: Purpose,
    /// Ascending. Bound: the experts of a layer.
    pub(crate) items: Vec<Item>,
    /// Every item before this one is done.
    pub(crate) done_until: usize,
    /// Every item before this one is done, resident or on its way.
    pub(crate) issued_until: usize,
    open: bool,
    dropped: Arc<AtomicBool>,
}

/// All requests that are open.
#[derive(Debug)]
pub(crate) struct TicketTable {
    /// Bound: [`TICKETS_MAX`].
    pending: Vec<Pending>,
}

impl TicketTable {
    /// `experts_max` is the most experts a request can name.
    pub(crate) fn new(experts_max: usize) -> Self {
        let pending = || Pending {
            layer: LayerIndex(0),
            purpose: Purpose::Demand,
            items: Vec::with_capacity(experts_max),
            done_until: 0,
            issued_until: 0,
            open: false,
            dropped: Arc::new(AtomicBool::new(false)),
        };
        Self { pending: (0..TICKETS_MAX).map(|_| pending()).collect() }
    }

    pub(crate) fn open(
        &mut self,
        layer: LayerIndex,
        experts: &[ExpertIndex],
        purpose: Purpose,
    ) -> Result<Ticket, StoreError> {
        let at = self.pending.iter().position(|pending| !pending.open);
        let at = at.ok_or(StoreError::TooManyTickets { limit: TICKETS_MAX })?;
        let pending = &mut self.pending[at];
        let waiting = |expert: &ExpertIndex| Item { expert: *expert, state: ItemState::Waiting };
        pending.items.clear();
        pending.items.extend(experts.iter().map(waiting));
        (pending.layer, pending.open, pending.purpose) = (layer, true, purpose);
        (pending.done_until, pending.issued_until) = (0, 0);
        pending.dropped.store(false, Ordering::Relaxed);
        Ok(Ticket { at, dropped: Arc::clone(&pending.dropped) })
    }

    /// Where the state of a ticket is.
    ///
    /// # Panics
    /// If another store gave the ticket.
    pub(crate) fn position(&self, ticket: &Ticket) -> usize {
        let ours = Arc::ptr_eq(&self.pending[ticket.at].dropped, &ticket.dropped);
        assert!(ours, "a ticket is used with the store that gave it");
        ticket.at
    }

    pub(crate) fn get(&self, at: usize) -> &Pending {
        &self.pending[at]
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Pending {
        &mut self.pending[at]
    }

    /// Requests that are open.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = usize> {
        (0..TICKETS_MAX).filter(|at| self.is_open(*at))
    }

    /// Whether there is a request at this position of the table.
    pub(crate) fn is_open(&self, at: usize) -> bool {
        self.pending[at].open
    }

    /// Forecasts do not try again what could not be read.
    pub(crate) fn give_up_forecasts(&mut self, key: ExpertKey) {
        for pending in self.pending.iter_mut().filter(|pending| pending.open) {
            if pending.purpose != Purpose::Demand && pending.is_waiting(key) {
                pending.fail(key.expert);
            }
        }
    }

    /// Finds a request whose ticket was dropped.
    pub(crate) fn dropped(&self) -> Option<usize> {
        self.open_ones().find(|at| self.pending[*at].dropped.load(Ordering::Acquire))
    }

    pub(crate) fn close(&mut self, at: usize) {
        self.pending[at].open = false;
    }

    /// Looks for absent experts from the start again: one that was there has gone.
    pub(crate) fn reissue(&mut self) {
        for pending in &mut self.pending {
            pending.issued_until = pending.done_until;
        }
    }
}

impl Pending {
    /// Whether this request still waits for an expert.
    pub(crate) fn is_waiting(&self, key: ExpertKey) -> bool {
        let at = self.items.binary_search_by_key(&key.expert, |item| item.expert);
        let waiting = |at: usize| self.items[at].state == ItemState::Waiting;
        self.layer == key.layer && at.is_ok_and(waiting)
    }

    /// Marks an expert this request waits for as failed.
    pub(crate) fn fail(&mut self, expert: ExpertIndex) {
        let at = self.items.binary_search_by_key(&expert, |item| item.expert);
        self.items[at.expect("the request waits for it")].state = ItemState::Failed;
    }

    /// Marks an item as handed out.
    pub(crate) fn finish(&mut self, at: usize) {
        self.items[at].state = ItemState::Done;
        while self.items.get(self.done_until).is_some_and(|item| item.state == ItemState::Done) {
            self.done_until += 1;
        }
        self.issued_until = self.issued_until.max(self.done_until);
    }
}
