//! The reader alone: how fast experts arrive when nothing is computed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    record::Catalog,
};
use fm_store::{Order, Plan, Store, StoreOptions, Ticket, reader};

use super::Rate;
use crate::{engine::Planned, error::EngineError};

/// Requests that are open at once: one is taken while the next one is read.
const TICKETS: usize = 2;

/// Reads a model's experts, all of them in turn, a token's worth of a layer at a time.
#[derive(Debug)]
pub struct Records {
    store: Store,
    info: reader::ReaderInfo,
    /// Layers with experts, and how many each has.
    layers: Vec<(LayerIndex, usize)>,
    top_k: usize,
    requests: usize,
}

impl Records {
    /// Opens the reader that the model would run with, and as few slots as keep it busy.
    ///
    /// # Errors
    /// If a file is missing, or memory cannot be had.
    pub fn open(planned: &Planned) -> Result<Self, EngineError> {
        let catalog = &planned.spec.catalog;
        let (reader, info) = reader::open(catalog, planned.reader_options(None))?;
        let options = planned.plan.store_options;
        // Bound: one working set more than there are requests, so that none waits for a lease.
        let slots = Plan::minimum(catalog, (TICKETS + 1) * options.top_k, reader.staging_bytes());
        let options = StoreOptions { budget_bytes: slots.bytes(), ..options };
        let store = Store::open(catalog, options, reader)?;
        let layers = layers(catalog);
        Ok(Self { store, info, layers, top_k: options.top_k, requests: 0 })
    }

    /// How it reads, in words.
    pub fn reader(&self) -> String {
        self.info.to_string()
    }

    /// Reads for as long as `time`, from where the last call ended.
    ///
    /// # Errors
    /// If a record cannot be read.
    pub fn read(&mut self, time: Duration) -> Result<Rate, EngineError> {
        let (started, before) = (Instant::now(), self.store.stats().read_bytes);
        let mut ticket = self.request()?;
        loop {
            let more = started.elapsed() < time;
            let next = more.then(|| self.request()).transpose()?;
            while let Some(arrived) = self.store.next(&mut ticket, Order::Arrival)? {
                drop(arrived.record?);
            }
            match next {
                Some(next) => ticket = next,
                None => break,
            }
        }
        let bytes = self.store.stats().read_bytes - before;
        Ok(Rate { bytes, elapsed: started.elapsed() })
    }

    /// The next token's worth of the next layer.
    fn request(&mut self) -> Result<Ticket, EngineError> {
        let (layer, experts) = self.layers[self.requests % self.layers.len()];
        let token = self.requests / self.layers.len();
        self.requests += 1;
        let chosen = (0..self.top_k.min(experts)).map(|j| (token * self.top_k + j) % experts);
        let mut chosen: Vec<ExpertIndex> = chosen.map(|at| ExpertIndex(at as u16)).collect();
        chosen.sort_unstable();
        Ok(self.store.request(layer, &chosen)?)
    }
}

fn layers(catalog: &Arc<Catalog>) -> Vec<(LayerIndex, usize)> {
    let layers = catalog.layers.iter().enumerate();
    let with_experts =
        layers.filter_map(|(at, layer)| Some((LayerIndex(at as u16), layer.as_ref()?)));
    with_experts.map(|(at, layer)| (at, layer.records.len())).collect()
}
