//! The routed experts of one layer alone, all of them in memory: how fast, and whether right.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    record::Catalog,
};
use fm_kernels::{
    Backend,
    backend::{Numerics, Routes, View, ViewMut},
    reference::Reference,
    tolerance,
};
use fm_model::{
    experts::{
        ARRIVAL_ROWS_MAX, ExpertBatch, ExpertForm, ExpertsFailed, LayerBiases, MoeDims, MoeScratch,
        RoutedExperts,
    },
    load::read_vector,
    runner::SpoiledReason,
    spec::{FfnSpec, MoeSpec},
};
use fm_store::{Plan, Store, StoreOptions, reader};

use super::{Rate, Rated, activations};
use crate::{backends::on_device, engine::Planned, error::EngineError, local::Local};

/// Rows of the comparison: as many as are computed in order of arrival, and more.
const ROWS: [usize; 2] = [3, ARRIVAL_ROWS_MAX + 8];

/// The first layer with routed experts; `None` if there is none.
pub fn first_layer(planned: &Planned) -> Option<LayerIndex> {
    let layers = &planned.spec.catalog.layers;
    layers.iter().position(Option::is_some).map(|at| LayerIndex(at as u16))
}

/// Whether a layer has routed experts.
pub fn has_experts(planned: &Planned, layer: LayerIndex) -> bool {
    planned.spec.catalog.layers.get(layer.index()).is_some_and(Option::is_some)
}

/// A round over all experts of a layer, one row at a time, on the device the model would run on.
///
/// # Errors
/// If an expert cannot be read or memory cannot be had.
///
/// # Panics
/// If the layer has no routed experts.
pub fn round(planned: &Planned, layer: LayerIndex) -> Result<Rated, EngineError> {
    on_device!(planned, device => round_on(device, planned, layer))
}

fn round_on<B: Backend<Bytes = [u8]>>(
    device: B,
    planned: &Planned,
    layer: LayerIndex,
) -> Result<Rated, EngineError> {
    let mut experts = LayerExperts::open(device, planned, layer, 1)?;
    let tokens = experts.count.div_ceil(experts.top_k);
    // The first round brings them in.
    for token in 0..tokens {
        experts.run(1, token)?;
    }
    let numerics = experts.device.numerics();
    let round = move || {
        let mut rate = Rate::default();
        for token in 0..tokens {
            rate.elapsed += experts.run(1, token)?.elapsed;
            rate.bytes += (experts.top_k * experts.weight_bytes) as u64;
        }
        Ok(rate)
    };
    Ok(Rated { numerics, round: Box::new(round) })
}

/// How far the device's experts are from the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verified {
    /// Arithmetic of the device.
    pub numerics: Numerics,
    /// Values that were compared.
    pub values: usize,
    /// The largest difference, relative to the largest value.
    pub difference: f64,
    /// The most that rounding explains.
    pub tolerance: f64,
}

impl Verified {
    /// Whether rounding explains the difference.
    pub fn is_right(&self) -> bool {
        self.difference <= self.tolerance
    }
}

/// Computes noise with the experts of a layer on the model's device and on the reference.
///
/// # Errors
/// If an expert cannot be read or memory cannot be had.
///
/// # Panics
/// If the layer has no routed experts.
pub fn verify(planned: &Planned, layer: LayerIndex) -> Result<Verified, EngineError> {
    let want = outputs(Reference::in_numerics(planned.numerics), planned, layer)?.1;
    let (numerics, got) = on_device!(planned, device => outputs(device, planned, layer)?);
    Ok(Verified {
        numerics,
        values: got.len(),
        difference: difference(&want, &got),
        tolerance: f64::from(tolerance::chained(numerics)),
    })
}

/// The largest difference, relative to the largest value; infinite where one is not a number, which no
/// tolerance allows.
fn difference(want: &[f32], got: &[f32]) -> f64 {
    let largest = want.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let differences = want.iter().zip(got).map(|(a, b)| (a - b).abs());
    let furthest = differences.map(|d| if d.is_nan() { f32::INFINITY } else { d });
    f64::from(furthest.fold(0.0, f32::max) / largest)
}

fn outputs<B: Backend<Bytes = [u8]>>(
    device: B,
    planned: &Planned,
    layer: LayerIndex,
) -> Result<(Numerics, Vec<f32>), EngineError> {
    let rows_max = ROWS.into_iter().max().unwrap_or(1);
    let mut experts = LayerExperts::open(device, planned, layer, rows_max)?;
    let mut all = Vec::new();
    for rows in ROWS {
        all.extend(experts.run(rows, 0)?.values);
    }
    Ok((experts.device.numerics(), all))
}

/// All experts of one layer on one device.
struct LayerExperts<B: Backend> {
    device: B,
    layer: LayerIndex,
    local: Local,
    form: ExpertForm<B>,
    routes: Routes<B>,
    x: B::Buf,
    acts: B::Acts,
    out: B::Buf,
    scratch: MoeScratch<B>,
    hidden: usize,
    count: usize,
    top_k: usize,
    weight_bytes: usize,
}

/// What a run gave.
struct Outcome {
    values: Vec<f32>,
    elapsed: Duration,
}

impl<B: Backend<Bytes = [u8]>> LayerExperts<B> {
    fn open(
        device: B,
        planned: &Planned,
        layer: LayerIndex,
        rows: usize,
    ) -> Result<Self, EngineError> {
        let spec = &planned.spec;
        let FfnSpec::Moe(moe) = &spec.layers[layer.index()].ffn else {
            panic!("layer {} has no routed experts", layer.0)
        };
        let catalog = only(&spec.catalog, layer);
        let records = catalog.layer(layer);
        let (count, layout) = (records.records.len(), records.layout);
        let (reader, _) = reader::open(&catalog, planned.reader_options(None))?;
        // Every expert has a slot.
        let slots = Plan::minimum(&catalog, count, reader.staging_bytes());
        let top_k = planned.plan.store_options.top_k;
        let options = StoreOptions { budget_bytes: slots.bytes(), ..planned.plan.store_options };
        let store = Store::open(&catalog, options, reader)?;
        let (hidden, ffn) = (layout.gate.cols, layout.gate.rows);
        Ok(Self {
            layer,
            form: form(&device, planned, moe)?,
            routes: Routes {
                scores: device.alloc(0)?,
                ids: Vec::new(),
                weights: Vec::new(),
                top_k,
            },
            x: device.upload(&activations(rows * hidden))?,
            acts: device.acts(rows, hidden)?,
            out: device.alloc(rows * hidden)?,
            scratch: MoeScratch::new(&device, rows, MoeDims { hidden, ffn, top_k })?,
            local: Local::new(catalog, store),
            hidden,
            count,
            top_k,
            weight_bytes: layout.weight_bytes(),
            device,
        })
    }

    /// `rows` rows, each with `top_k` experts in turn, from those of the `token`-th row on.
    fn run(&mut self, rows: usize, token: usize) -> Result<Outcome, EngineError> {
        self.routes.ids.clear();
        self.routes.weights.clear();
        for row in token..token + rows {
            let from = self.routes.ids.len();
            let chosen = (0..self.top_k).map(|j| (row * self.top_k + j) % self.count);
            self.routes.ids.extend(chosen.map(|at| ExpertIndex(at as u16)));
            self.routes.ids[from..].sort_unstable();
            let weights = (1..=self.top_k).map(|j| j as f32 / self.top_k as f32);
            self.routes.weights.extend(weights);
        }
        let started = Instant::now();
        let device = &self.device;
        device.prepare(View::new(&self.x, rows, self.hidden), &mut self.acts)?;
        device.zero(ViewMut::new(&mut self.out, rows, self.hidden))?;
        let ticket = self.local.begin(self.layer, &self.routes).map_err(failed)?;
        let batch = ExpertBatch {
            layer: self.layer,
            form: &self.form,
            routes: &self.routes,
            x: &self.acts,
            out: ViewMut::new(&mut self.out, rows, self.hidden),
            scratch: &mut self.scratch,
        };
        self.local.finish(device, ticket, batch).map_err(failed)?;
        let mut values = vec![0.0; rows * self.hidden];
        device.read(View::new(&self.out, rows, self.hidden), &mut values)?;
        Ok(Outcome { values, elapsed: started.elapsed() })
    }
}

/// The catalog without the experts of other layers.
fn only(catalog: &Catalog, layer: LayerIndex) -> Arc<Catalog> {
    let layers = catalog.layers.iter().enumerate();
    let layers = layers.map(|(at, records)| records.clone().filter(|_| at == layer.index()));
    Arc::new(Catalog { files: catalog.files.clone(), layers: layers.collect() })
}

fn form<B: Backend>(
    device: &B,
    planned: &Planned,
    moe: &MoeSpec,
) -> Result<ExpertForm<B>, EngineError> {
    let files = planned.open_files();
    let upload = |vector| -> Result<B::Buf, EngineError> {
        Ok(device.upload(&read_vector(&files, vector)?)?)
    };
    let biases = moe.biases.as_ref().map(|biases| {
        Ok::<_, EngineError>(LayerBiases {
            gate: upload(&biases.gate)?,
            up: upload(&biases.up)?,
            down: upload(&biases.down)?,
        })
    });
    Ok(ExpertForm { activation: moe.activation, biases: biases.transpose()? })
}

fn failed(error: ExpertsFailed) -> EngineError {
    match error {
        ExpertsFailed::Device(error) => error.into(),
        ExpertsFailed::Lost(lost) => SpoiledReason::from(lost).into(),
        error => unreachable!("experts fail in two ways: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn what_is_not_a_number_is_infinitely_wrong() {
        assert_eq!(difference(&[2.0, -4.0], &[2.0, -3.0]), 0.25);
        for wrong in [[f32::NAN, -4.0], [2.0, f32::NAN]] {
            assert_eq!(difference(&[2.0, -4.0], &wrong), f64::INFINITY, "{wrong:?}");
        }
    }
}
