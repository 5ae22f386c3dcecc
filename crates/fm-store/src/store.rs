//! The store: request → next → drop.
//!
//! Everything here runs on the caller's thread and is driven by its calls; only readers work in
//! the background. What a request waits for is not stored with the request but follows from the
//! state of its experts, so that a resident may be taken away again before it is handed out and is
//! simply read once more. That is what keeps a union larger than all slots, or two requests that
//! want the same slots, from locking up.

mod ahead;
mod memory;
mod request;
mod warm;

use std::{convert::Infallible, sync::Arc, time::Instant};

use fm_format::{
    key::ExpertKey,
    record::{Catalog, MatrixRole, MatrixStarts},
};

use crate::{
    class::{Class, Taken},
    entries::{Entries, EntryIndex, Foreseen, LayerEntries, Residence},
    error::StoreError,
    map::ExpertMap,
    plan::{Plan, StoreOptions},
    policy::PolicyScope,
    reader::{Fetch, Fetched, Reader, Wait},
    stats::Stats,
    ticket::{Arrived, Failure, ItemState, Order, Purpose, TICKETS_MAX, Ticket, TicketTable},
};

/// Records that may be on their way at once, over all requests: enough to keep any disk busy while
/// the caller computes something else, few enough that an abandoned request does not delay the next
/// one by more than a layer of a prompt.
pub const FETCHES_MAX: usize = 128;

/// With this many records on their way a disk is busy. Reading further ahead is no reason to evict
/// an expert that is more popular than the one it would make room for: a long scan takes slots in
/// turn and leaves the rest of the cache as it is.
pub(crate) const BUSY_READS: usize = 8;

/// Reads that an ascending walk keeps under way even if it has to give up hits it needs later:
/// one travels while one is computed with.
const STREAM_DEPTH: usize = 2;

/// The expert store of one model. See the crate for how it is used.
#[derive(Debug)]
pub struct Store {
    plan: Plan,
    reader: Box<dyn Reader>,
    entries: Entries,
    map: Arc<ExpertMap>,
    classes: Vec<Class>,
    tickets: TicketTable,
    /// Records that the reader has. Bound: [`FETCHES_MAX`].
    under_way: usize,
    /// When the reader got something to read after it had nothing.
    busy_since: Instant,
    /// Bound: one per item of an open request.
    failures: Vec<Failure>,
    /// Turns so far: the policies' clock.
    now: u64,
    stats: Stats,
}

impl Store {
    /// Maps slots as [`Plan::new`] says and takes charge of the reader.
    ///
    /// # Errors
    /// If the budget is too small or the memory is not there.
    pub fn open(
        catalog: &Arc<Catalog>,
        options: StoreOptions,
        reader: Box<dyn Reader>,
    ) -> Result<Self, StoreError> {
        let plan = Plan::new(catalog, options, reader.staging_bytes())?;
        let experts = || catalog.layers.iter().map(|layer| Some(layer.as_ref()?.records.len()));
        let classes = plan.classes.iter().map(|class| {
            let scope = PolicyScope::new(class, options.top_k, experts());
            Class::open(*class, options.policy.build(scope), options.chunk_bytes)
        });
        let classes = classes.collect::<Result<_, _>>()?;
        let entries = Entries::new(catalog, &plan);
        Ok(Self {
            plan,
            reader,
            tickets: TicketTable::new(entries.layer_count_max()),
            entries,
            map: Arc::new(ExpertMap::new(catalog)),
            classes,
            under_way: 0,
            busy_since: Instant::now(),
            failures: Vec::new(),
            now: 0,
            stats: Stats::default(),
        })
    }

    /// The next expert of a request, each exactly once, `None` when all have been handed out.
    ///
    /// Waits only for reads.
    ///
    /// # Errors
    /// [`StoreError::SlotsExhausted`] if leases that the caller holds are all that is missing; call
    /// again when some have been dropped. What concerns one expert is in [`Arrived::record`].
    ///
    /// # Panics
    /// If another store gave the ticket.
    pub fn next(
        &mut self,
        ticket: &mut Ticket,
        order: Order,
    ) -> Result<Option<Arrived>, StoreError> {
        let pending = self.tickets.get(self.tickets.position(ticket));
        let layout = self.entries.layer(pending.layer).layout;
        let settled = |slot: &mut [u8], starts| -> Result<_, Infallible> {
            for (role, start) in MatrixRole::ALL.into_iter().zip(starts) {
                layout.settle(role, slot, start);
            }
            Ok(())
        };
        let Ok(next) = self.next_arranged(ticket, order, settled);
        next
    }

    /// Whether [`Store::next`] would hand something out without waiting.
    ///
    /// # Panics
    /// If another store gave the ticket.
    pub fn is_ready(&mut self, ticket: &Ticket, order: Order) -> bool {
        self.collect(Wait::Poll);
        self.find_ready(self.tickets.position(ticket), order).is_some()
    }

    /// As [`Store::next`] for a caller that wants records in another order of bytes: `arrange` is
    /// called with the slot of every record after it was read, before it is handed out for the first
    /// time, and where the rows of its matrices begin there. It has to leave each matrix where
    /// `RecordLayout` says.
    ///
    /// # Errors
    /// The outer one is that of `arrange`. Its record is not kept: the request goes on with the others, and
    /// whoever else waits for this one has it read again. The inner one is that of [`Store::next`].
    ///
    /// # Panics
    /// As [`Store::next`].
    pub fn next_arranged<E>(
        &mut self,
        ticket: &mut Ticket,
        order: Order,
        arrange: impl FnOnce(&mut [u8], MatrixStarts) -> Result<(), E>,
    ) -> Result<Result<Option<Arrived>, StoreError>, E> {
        let (at, item) = match self.next_ready(ticket, order) {
            Ok(Some(ready)) => ready,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(Some(self.hand_out(at, item, arrange)?)))
    }

    /// Waits until an item of a request can be handed out: the request's place, and the item's in it.
    fn next_ready(
        &mut self,
        ticket: &Ticket,
        order: Order,
    ) -> Result<Option<(usize, usize)>, StoreError> {
        let ticket = self.tickets.position(ticket);
        self.sweep();
        loop {
            self.collect(Wait::Poll);
            self.issue(ticket);
            if order == Order::Ascending && self.under_way < STREAM_DEPTH {
                self.issue_next_over_later_hits(ticket);
            }
            self.issue_forecasts();
            if let Some(item) = self.find_ready(ticket, order) {
                return Ok(Some((ticket, item)));
            }
            let pending = self.tickets.get(ticket);
            if pending.done_until == pending.items.len() {
                return Ok(None);
            }
            if self.under_way > 0 {
                self.collect(Wait::Block);
            } else if !self.issue_over_other_requests(ticket) {
                let layer = self.tickets.get(ticket).layer;
                return Err(self.classes[self.entries.layer(layer).class].exhausted(layer));
            }
        }
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// All experts at a glance, for another thread to watch.
    pub fn map(&self) -> Arc<ExpertMap> {
        Arc::clone(&self.map)
    }

    /// The slots it was opened with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether an expert could be had without reading.
    pub fn is_resident(&self, key: ExpertKey) -> bool {
        let entry = self.entries.find(key);
        matches!(self.entries[entry].residence, Residence::Resident(_))
    }

    /// Memory that slots and staging take now; falls with [`Store::release_chunk`].
    pub fn bytes(&self) -> u64 {
        self.plan.staging_bytes + self.classes.iter().map(Class::bytes).sum::<u64>()
    }

    /// Waits until no read is under way, not even for an abandoned request.
    pub fn wait_for_reads(&mut self) {
        while self.under_way > 0 {
            self.collect(Wait::Block);
        }
    }

    /// Starts reads of what a request lacks, as far as there are slots nobody needs.
    fn issue(&mut self, ticket: usize) {
        while self.under_way < FETCHES_MAX {
            let Some((_, entry)) = self.next_absent(ticket) else { return };
            let class = self.entries.layer(self.tickets.get(ticket).layer).class;
            let standing = &self.entries[entry].standing;
            let newcomer = (self.under_way >= BUSY_READS).then_some(standing);
            let Some(taken) = self.classes[class].take(entry, newcomer) else { return };
            self.start(entry, class, taken);
        }
    }

    /// The first item of a request that has to be read and is not being read.
    fn next_absent(&mut self, ticket: usize) -> Option<(usize, EntryIndex)> {
        let entries = self.entries.layer(self.tickets.get(ticket).layer);
        let pending = self.tickets.get_mut(ticket);
        let not_issued = pending.items.iter().enumerate().skip(pending.issued_until);
        for (at, item) in not_issued {
            let entry = entries.at(item.expert);
            let absent = self.entries[entry].residence == Residence::Absent;
            if item.state == ItemState::Waiting && absent {
                pending.issued_until = at;
                return Some((at, entry));
            }
        }
        pending.issued_until = pending.items.len();
        None
    }

    /// Where all slots hold experts that an ascending walk needs later, the latest give way.
    fn issue_next_over_later_hits(&mut self, ticket: usize) {
        while self.under_way < STREAM_DEPTH {
            let Some((at, entry)) = self.next_absent(ticket) else { return };
            if !self.issue_over(entry, ticket, at + 1) {
                return;
            }
        }
    }

    /// Where all slots hold experts that other requests have not taken, the latest give way.
    fn issue_over_other_requests(&mut self, ticket: usize) -> bool {
        let Some((_, entry)) = self.next_absent(ticket) else { return false };
        let class = self.entries.layer(self.tickets.get(ticket).layer).class;
        // Nothing below opens or closes a request.
        (0..TICKETS_MAX).any(|other| {
            other != ticket
                && self.tickets.is_open(other)
                && self.entries.layer(self.tickets.get(other).layer).class == class
                && self.issue_over(entry, other, 0)
        })
    }

    /// Reads an expert into the slot of the last hit among a request's items from `from` on.
    fn issue_over(&mut self, entry: EntryIndex, victims_of: usize, from: usize) -> bool {
        let pending = self.tickets.get(victims_of);
        let entries = self.entries.layer(pending.layer);
        let later = pending.items.iter().skip(from).rev();
        for item in later.filter(|item| item.state == ItemState::Waiting) {
            let Residence::Resident(slot) = self.entries[entries.at(item.expert)].residence else {
                continue;
            };
            if let Some(taken) = self.classes[entries.class].take_from(slot, entry) {
                self.stats.sacrifices += 1;
                self.start(entry, entries.class, taken);
                self.tickets.reissue();
                return true;
            }
        }
        false
    }

    /// Hands a record to the reader.
    fn start(&mut self, entry: EntryIndex, class: usize, taken: Taken) {
        if let Some(evicted) = taken.evicted {
            self.entries.evicted(evicted, &self.map);
            self.stats.evictions += 1;
        }
        let entry = &mut self.entries[entry];
        entry.residence = Residence::Loading(taken.slot);
        let buffer = self.classes[class].buffer(taken.slot);
        if self.under_way == 0 {
            self.busy_since = Instant::now();
        }
        self.reader.submit(Fetch { key: entry.key, buffer });
        self.under_way += 1;
    }

    /// Takes over what the reader has finished; with [`Wait::Block`] at least one record.
    fn collect(&mut self, wait: Wait) {
        if self.under_way == 0 {
            return;
        }
        if wait == Wait::Block {
            let waiting = Instant::now();
            let fetched = self.reader.reap(Wait::Block);
            self.stats.wait_ns += waiting.elapsed().as_nanos() as u64;
            self.settle(fetched.expect("a reader returns every record it was given"));
        }
        while self.under_way > 0 {
            let Some(fetched) = self.reader.reap(Wait::Poll) else { return };
            self.settle(fetched);
        }
    }

    /// Makes a record resident, or sends its error to one of those who wait for it; the others
    /// will try for themselves.
    fn settle(&mut self, fetched: Fetched) {
        let Fetched { key, buffer, transfer, at: finished, outcome } = fetched;
        let is_ours = buffer.is_some();
        drop(buffer);
        self.under_way -= 1;
        if self.under_way == 0 {
            self.stats.busy_ns += (finished - self.busy_since).as_nanos() as u64;
        }
        self.stats.read_bytes += transfer.bytes;
        self.stats.read_ns += transfer.ns;
        self.stats.retries += u64::from(transfer.retries);
        let class = self.entries.layer(key.layer).class;
        let at = self.entries.find(key);
        let entry = &mut self.entries[at];
        let Residence::Loading(slot) = entry.residence else {
            unreachable!("the reader returns what it was given, once")
        };
        match outcome {
            Ok(starts) => {
                self.map.read(at);
                entry.residence = Residence::Resident(slot);
                entry.seen = true;
                entry.left_at = Some(starts);
                self.stats.records_read += 1;
                if entry.pins == 0 {
                    self.classes[class].unpin(slot, &entry.standing);
                }
            }
            Err(error) => {
                (entry.residence, entry.foreseen) = (Residence::Absent, Foreseen::No);
                if is_ours {
                    self.classes[class].vacate(slot);
                } else {
                    self.classes[class].lose(slot);
                }
                self.stats.io_errors += 1;
                self.tickets.reissue();
                self.tickets.give_up_forecasts(key);
                self.report(key, error);
            }
        }
    }

    fn report(&mut self, key: ExpertKey, error: StoreError) {
        let waits = |at: &usize| {
            let pending = self.tickets.get(*at);
            pending.purpose == Purpose::Demand && pending.is_waiting(key)
        };
        let ticket = self.tickets.open_ones().find(waits);
        if let Some(ticket) = ticket {
            self.tickets.get_mut(ticket).fail(key.expert);
            self.failures.push(Failure { ticket, expert: key.expert, error });
        }
    }

    /// The item of a request that can be handed out now.
    fn find_ready(&self, ticket: usize, order: Order) -> Option<usize> {
        let pending = self.tickets.get(ticket);
        let entries = self.entries.layer(pending.layer);
        let ready = |at: &usize| {
            let item = pending.items[*at];
            let residence = self.entries[entries.at(item.expert)].residence;
            match item.state {
                ItemState::Waiting => matches!(residence, Residence::Resident(_)),
                ItemState::Failed => true,
                ItemState::Done => false,
            }
        };
        let mut not_done = pending.done_until..pending.items.len();
        match order {
            Order::Arrival => not_done.find(ready),
            Order::Ascending => not_done.next().filter(ready),
        }
    }

    fn hand_out<E>(
        &mut self,
        ticket: usize,
        at: usize,
        arrange: impl FnOnce(&mut [u8], MatrixStarts) -> Result<(), E>,
    ) -> Result<Arrived, E> {
        let pending = self.tickets.get_mut(ticket);
        let (layer, item) = (pending.layer, pending.items[at]);
        pending.finish(at);
        let LayerEntries { class, layout, .. } = self.entries.layer(layer);
        self.unpin(layer, item.expert);
        if item.state == ItemState::Failed {
            let ours =
                |failure: &Failure| failure.ticket == ticket && failure.expert == item.expert;
            let at = self.failures.iter().position(ours).expect("a failed item has its error");
            let error = self.failures.swap_remove(at).error;
            return Ok(Arrived { expert: item.expert, record: Err(error) });
        }
        let entry = self.entries.layer(layer).at(item.expert);
        let Residence::Resident(slot) = self.entries[entry].residence else {
            unreachable!("only residents are ready")
        };
        if let Some(starts) = self.entries[entry].left_at.take() {
            let mut buffer = self.classes[class].buffer(slot);
            let arranged = arrange(&mut buffer, starts);
            layout.clear_padding(&mut buffer);
            drop(buffer);
            arranged.inspect_err(|_| self.discard(entry, slot))?;
        }
        Ok(Arrived { expert: item.expert, record: Ok(self.classes[class].lease(slot)) })
    }

    /// Gives up a resident whose bytes nobody may use. It was never handed out, so nobody does.
    fn discard(&mut self, entry: EntryIndex, slot: u32) {
        let class = self.entries.layer(self.entries[entry].key.layer).class;
        self.classes[class].evict(slot);
        self.entries.evicted(entry, &self.map);
        self.stats.evictions += 1;
        self.tickets.reissue();
    }
}
