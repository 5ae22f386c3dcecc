//! What others share with the experts of this machine while the model runs.

use std::sync::{Arc, Mutex, atomic::AtomicBool};

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend,
    backend::{DeviceResult, Routes, View},
};
use fm_store::{
    ExpertMap, Stats, Store,
    trace::{TraceError, TraceWriter},
};

use crate::look_ahead::InForce;

/// The store's counters after the latest layer.
pub type SharedStats = Arc<Mutex<Stats>>;

/// The counters behind a handle.
pub fn read_stats(stats: &SharedStats) -> Stats {
    stats.lock().map_or_else(|broken| *broken.into_inner(), |stats| *stats)
}

/// See the file.
#[derive(Clone, Debug)]
pub struct Handles {
    /// The store's counters after the latest layer, for whoever reports them.
    pub stats: SharedStats,
    /// What becomes of every expert, for whoever watches.
    pub map: Arc<ExpertMap>,
    /// How the latest layer was guessed.
    pub in_force: Arc<Mutex<InForce>>,
    /// Where what the routers choose is written, if anybody wants to know.
    pub tap: Arc<Mutex<Option<Tap>>>,
    /// Set by whoever wants the next layer, and all after it, to find no expert in memory.
    pub forget: Arc<AtomicBool>,
}

impl Handles {
    /// Those of a store that was just opened.
    pub(super) fn of(store: &Store) -> Self {
        Self {
            stats: Arc::new(Mutex::new(store.stats())),
            map: store.map(),
            in_force: Arc::default(),
            tap: Arc::default(),
            forget: Arc::default(),
        }
    }

    /// Writes down from now on what the routers choose; ends the trace before, if there was one.
    ///
    /// # Errors
    /// If that one could not be written.
    pub fn record(&self, trace: Option<TraceWriter>) -> Result<(), TraceError> {
        let new = trace.map(Tap::new);
        let old = match self.tap.lock() {
            Ok(mut tap) => std::mem::replace(&mut *tap, new),
            Err(_) => None,
        };
        old.map_or(Ok(()), Tap::finish)
    }
}

/// A trace in the making.
#[derive(Debug)]
pub struct Tap {
    writer: TraceWriter,
    /// Scores on their way from the device.
    scores: Vec<f32>,
    failed: Option<TraceError>,
}

impl Tap {
    /// Writes to `writer` from the next layer on.
    fn new(writer: TraceWriter) -> Self {
        Self { writer, scores: Vec::new(), failed: None }
    }

    /// Ends the trace.
    fn finish(self) -> Result<(), TraceError> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish(),
        }
    }

    /// Adds what the router of a layer said of a batch.
    pub(super) fn layer<B: Backend>(
        &mut self,
        device: &B,
        layer: LayerIndex,
        experts: usize,
        routes: &Routes<B>,
    ) -> DeviceResult {
        if self.failed.is_some() {
            return Ok(());
        }
        let rows = routes.ids.len() / routes.top_k.max(1);
        if self.writer.scores() {
            self.scores.resize(rows * experts, 0.0);
            device.read(View::new(&routes.scores, rows, experts), &mut self.scores)?;
        }
        self.failed = self.writer.layer(layer.0, rows, &routes.ids, &self.scores).err();
        Ok(())
    }
}
