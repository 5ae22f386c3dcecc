//! Routed experts of this machine: bytes from the store, arithmetic on the device.

mod handles;
mod same_files;

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    record::Catalog,
};
use fm_kernels::{
    Backend,
    backend::{Combine, ExpertCall, Routes, View, ViewMut},
    host::EXPERTS_TOGETHER_MAX,
};
use fm_model::experts::{
    ARRIVAL_ROWS_MAX, ExpertBatch, ExpertsFailed, ExpertsLost, LossCause, RoutedExperts,
    RowsByExpert, arrange_record, expert_weights,
};
use fm_store::{Arrived, Lease, Order, Store, StoreError, Ticket};

pub use self::handles::{Handles, SharedStats, Tap, read_stats};
use self::same_files::SameFiles;
use crate::{
    look_ahead::{Foresight, GUESSED_RECORDS, LookAhead, RouterChoice, SWEPT_RECORDS, sweeps},
    pressure::MemoryGuard,
    warm_start::{HeatFile, HeatIgnored, HeatKeeper},
};

/// See the module.
#[derive(Debug)]
pub struct Local {
    catalog: Arc<Catalog>,
    store: Store,
    grouped: RowsByExpert,
    /// Records in the device's hands. Bound: [`EXPERTS_TOGETHER_MAX`].
    leases: Vec<(ExpertIndex, Lease)>,
    foresight: Foresight,
    same_files: SameFiles,
    /// Whether it may have too much memory.
    guard: Option<MemoryGuard>,
    /// Room for the experts of a layer.
    everyone: Vec<ExpertIndex>,
    /// Keeps what was foreseen until its layer has asked for itself.
    forecast: Option<Ticket>,
    handles: Handles,
    /// Where to leave word of what was used.
    heat: Option<HeatKeeper>,
}

impl Local {
    /// Serves the records of `catalog` from `store`.
    pub fn new(catalog: Arc<Catalog>, store: Store) -> Self {
        let handles = Handles::of(&store);
        let foresight = Foresight::new(LookAhead::Off, catalog.layers.len());
        let grouped = RowsByExpert::default();
        let read_once = store.plan().holds_everything();
        Self {
            same_files: SameFiles::of(&catalog, read_once, Instant::now()),
            catalog,
            store,
            grouped,
            leases: Vec::with_capacity(EXPERTS_TOGETHER_MAX),
            foresight,
            guard: None,
            everyone: Vec::new(),
            forecast: None,
            handles,
            heat: None,
        }
    }

    /// Reads ahead what will probably be needed. Experts that all have slots are read once: there
    /// is nothing that [`LookAhead::Auto`] could find out.
    #[must_use]
    pub fn looking_ahead(mut self, mode: LookAhead) -> Self {
        let idle = mode == LookAhead::Auto && self.store.plan().holds_everything();
        let mode = if idle { LookAhead::Off } else { mode };
        self.foresight = Foresight::new(mode, self.catalog.layers.len());
        self
    }

    /// Lets the store give memory back when the machine runs short of it.
    #[must_use]
    pub fn guarded(mut self, guard: MemoryGuard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Knows what earlier runs used, and writes to the same file now and then. A file that cannot be
    /// used is replaced then.
    pub(crate) fn remembering(mut self, file: HeatFile) -> (Self, Option<HeatIgnored>) {
        let ignored = match file.read(&self.catalog) {
            Ok(heat) => {
                heat.iter().for_each(|heat| self.store.warm(heat));
                None
            }
            Err(ignored) => Some(ignored),
        };
        self.heat = Some(HeatKeeper::new(file, Instant::now()));
        (self, ignored)
    }

    /// A large batch that needed nearly all experts of a layer needs nearly all of the next one's.
    /// Of the last layer it needs few: most rows skip it.
    fn foresee_sweep(&mut self, layer: LayerIndex) {
        let next = LayerIndex(layer.0 + 1);
        let Some(Some(records)) = self.catalog.layers.get(next.index()) else { return };
        let count = records.records.len();
        let last = next.index() + 1 == self.catalog.layers.len();
        if !last && sweeps(self.grouped.union.len(), count) {
            self.everyone.clear();
            self.everyone.extend((0..count as u16).map(ExpertIndex));
            self.forecast = self.store.foresee(next, &self.everyone, SWEPT_RECORDS).ok();
        }
    }

    /// What others share with it.
    pub fn handles(&self) -> Handles {
        self.handles.clone()
    }

    fn publish_stats(&self) {
        if let Ok(mut stats) = self.handles.stats.lock() {
            *stats = self.store.stats();
        }
        if let Ok(mut in_force) = self.handles.in_force.lock() {
            *in_force = self.foresight.in_force();
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(heat) = &self.heat {
            heat.keep(self.store.heat());
        }
    }
}

/// Why a record could not be used.
#[derive(Debug, thiserror::Error)]
#[error("the expert store gave up")]
struct GaveUp(#[from] StoreError);

impl<B: Backend<Bytes = [u8]>> RoutedExperts<B> for Local {
    type Ticket = Result<Ticket, StoreError>;

    fn wants_guess(&mut self) -> bool {
        self.foresight.wants_guess()
    }

    fn foresee(&mut self, layer: LayerIndex, guess: &Routes<B>) {
        let Routes { ids, weights, top_k, .. } = guess;
        let chosen = RouterChoice { ids, weights, top_k: *top_k };
        let wanted = self.foresight.guessed(layer, chosen);
        // A forecast that cannot be made costs speed, at most.
        self.forecast = self.store.foresee(layer, wanted, GUESSED_RECORDS).ok();
    }

    fn begin(
        &mut self,
        layer: LayerIndex,
        routes: &Routes<B>,
    ) -> Result<Self::Ticket, ExpertsFailed> {
        let rows = routes.ids.len() / routes.top_k.max(1);
        let top_k = routes.top_k;
        let now = Instant::now();
        self.foresight.begins(layer, rows, now);
        if let Some(heat) = &mut self.heat {
            heat.look(now, || self.store.heat());
        }
        if self.handles.forget.swap(false, Ordering::Relaxed) {
            self.store.evict_all();
        }
        let few = rows <= ARRIVAL_ROWS_MAX;
        self.grouped.group(routes, |row, j| if few { row * top_k + j } else { row });
        if let Some(guard) = &mut self.guard {
            guard.tend(&mut self.store);
        }
        let union = &self.grouped.union;
        let ticket = match self.same_files.look(now, self.store.stats().records_read) {
            Err(changed) => Err(changed),
            Ok(()) if few => self.store.request(layer, union),
            Ok(()) => self.store.request_rows(layer, union, (&routes.ids, top_k)),
        };
        // What was foreseen is held by the request now, or was foreseen wrongly.
        self.forecast = None;
        if few {
            let Self { foresight, store, forecast, .. } = self;
            foresight.happened(layer, &routes.ids);
            let Routes { ids, weights, top_k, .. } = routes;
            let chosen = RouterChoice { ids, weights, top_k: *top_k };
            if let Some((next, wanted)) = foresight.remember(layer, chosen) {
                *forecast = store.foresee(next, wanted, GUESSED_RECORDS).ok();
            }
        } else {
            self.foresee_sweep(layer);
        }
        // A request that fails loses every expert; `finish` says so.
        Ok(ticket)
    }

    fn finish(
        &mut self,
        device: &B,
        ticket: Self::Ticket,
        batch: ExpertBatch<'_, B>,
    ) -> Result<(), ExpertsFailed> {
        let finished = self.compute(device, ticket, batch);
        // Where it broke off, the device may still be reading them.
        self.release(device);
        finished
    }
}

impl Local {
    fn compute<B: Backend<Bytes = [u8]>>(
        &mut self,
        device: &B,
        ticket: Result<Ticket, StoreError>,
        batch: ExpertBatch<'_, B>,
    ) -> Result<(), ExpertsFailed> {
        let ExpertBatch { layer, form, routes, x, out, scratch } = batch;
        let ViewMut { buf, offset, rows, cols, stride } = out;
        let few = rows <= ARRIVAL_ROWS_MAX;
        let catalog = Arc::clone(&self.catalog);
        let records = catalog.layer(layer);
        if let Ok(Some(tap)) = self.handles.tap.lock().as_deref_mut() {
            tap.layer(device, layer, records.records.len(), routes)?;
        }
        let mut losses = Losses::of(layer);
        let mut ticket = match ticket {
            Ok(ticket) => ticket,
            Err(error) => return Err(losses.all(&self.grouped, error).into()),
        };
        loop {
            let order = if few { Order::Arrival } else { Order::Ascending };
            let more = self.gather(device, &mut ticket, order, &mut losses)?;
            let (held, grouped) = (&self.leases, &self.grouped);
            let call = |at: usize| {
                let (expert, lease): &(ExpertIndex, Lease) = &held[at];
                let weights = expert_weights(device, records, form, *expert, lease);
                ExpertCall { weights, rows: grouped.rows(*expert) }
            };
            if few {
                let results = rows * routes.top_k;
                let target = ViewMut::new(&mut scratch.results, results, cols);
                device.experts(held.len(), &call, x, &mut scratch.expert, target)?;
            } else if !held.is_empty() {
                let ExpertCall { weights, rows: chosen } = call(0);
                let target = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
                let combine = Combine::Accumulate;
                device.expert_rows(&weights, x, chosen, &mut scratch.expert, combine, target)?;
            }
            self.release(device);
            if more.is_break() {
                break;
            }
        }
        if few {
            let results = View::new(&scratch.results, rows * routes.top_k, cols);
            let out = ViewMut { buf, offset, rows, cols, stride };
            device.combine_rows(results, &routes.weights, out)?;
        }
        self.publish_stats();
        losses.into_result()
    }

    /// Takes experts of a request, until it ends: in the order of arrival whatever is there, together;
    /// in ascending order one.
    fn gather<B: Backend<Bytes = [u8]>>(
        &mut self,
        device: &B,
        ticket: &mut Ticket,
        order: Order,
        losses: &mut Losses,
    ) -> Result<ControlFlow<()>, ExpertsFailed> {
        let Self { store, leases, grouped, catalog, .. } = self;
        let layout = &catalog.layer(losses.layer).layout;
        let together = if order == Order::Arrival { EXPERTS_TOGETHER_MAX } else { 1 };
        while leases.is_empty() || leases.len() < together && store.is_ready(ticket, order) {
            let arrange = |slot: &mut [u8], starts| arrange_record(device, layout, slot, starts);
            match store.next_arranged(ticket, order, arrange)? {
                Ok(Some(Arrived { expert, record: Ok(lease) })) => leases.push((expert, lease)),
                Ok(Some(Arrived { expert, record: Err(error) })) => losses.add(expert, error),
                Ok(None) => return Ok(ControlFlow::Break(())),
                Err(error) => return Err(losses.all(grouped, error).into()),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Records that were gathered are the device's, for as long as it reads them.
    fn release<B: Backend<Bytes = [u8]>>(&mut self, device: &B) {
        self.leases.drain(..).for_each(|(_, lease)| device.hold(lease));
    }
}

/// Experts of one layer that could not be had. Empty, and without allocation, nearly always.
#[derive(Debug)]
struct Losses {
    layer: LayerIndex,
    lost: Vec<(ExpertIndex, StoreError)>,
}

impl Losses {
    fn of(layer: LayerIndex) -> Self {
        Self { layer, lost: Vec::new() }
    }

    fn add(&mut self, expert: ExpertIndex, error: StoreError) {
        self.lost.push((expert, error));
    }

    /// Nothing more can be had: every expert of the request counts as lost, for what was lost first.
    fn all(&mut self, grouped: &RowsByExpert, error: StoreError) -> ExpertsLost {
        let first = self.lost.drain(..).next().map_or(error, |(_, first)| first);
        let cause: LossCause = Arc::new(GaveUp(first));
        let experts = grouped.union.iter().map(|expert| (*expert, Arc::clone(&cause))).collect();
        ExpertsLost { layer: self.layer, experts }
    }

    fn into_result(mut self) -> Result<(), ExpertsFailed> {
        if self.lost.is_empty() {
            return Ok(());
        }
        self.lost.sort_unstable_by_key(|(expert, _)| *expert);
        let lost = self.lost.into_iter();
        let experts = lost.map(|(expert, error)| (expert, Arc::new(error) as LossCause)).collect();
        Err(ExpertsLost { layer: self.layer, experts }.into())
    }
}
