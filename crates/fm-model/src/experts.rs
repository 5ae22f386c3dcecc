//! Routed experts, seen from a layer: activations in, weighted sums out.

use std::{error::Error, fmt, sync::Arc};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    record::{LayerRecords, MatrixRole, MatrixStarts, RecordLayout},
};
use fm_kernels::{
    Backend,
    backend::{
        Activation, DeviceResult, ExpertBiases, ExpertRow, ExpertScratch, ExpertWeights, QMatrix,
        Routes, View, ViewMut,
    },
};

/// Experts that could not be had, and why. Rows that did not choose them are complete.
#[derive(Debug)]
pub struct ExpertsLost {
    /// The layer.
    pub layer: LayerIndex,
    /// The experts, ascending, each with why it was lost.
    pub experts: Vec<(ExpertIndex, LossCause)>,
}

/// Why an expert was lost. All sessions that chose it are told.
pub type LossCause = Arc<dyn Error + Send + Sync>;

impl ExpertsLost {
    /// Those that are among the chosen ones, if any: what a session lost, whatever its neighbours did.
    pub fn among(&self, chosen: &[ExpertIndex]) -> Option<Self> {
        let own = self.experts.iter().filter(|(expert, _)| chosen.contains(expert));
        let own = Self { layer: self.layer, experts: own.cloned().collect() };
        (!own.experts.is_empty()).then_some(own)
    }
}

impl fmt::Display for ExpertsLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, layer) = (self.experts.len(), self.layer.0);
        write!(f, "{count} of the experts of layer {layer} could not be read")
    }
}

impl Error for ExpertsLost {
    /// Of the first of them.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let (_, cause) = self.experts.first()?;
        Some(cause.as_ref())
    }
}

/// What the experts of a layer have besides their records.
#[derive(Debug)]
pub struct ExpertForm<B: Backend> {
    /// What becomes of gate and up.
    pub activation: Activation,
    /// Added to the products, where they have such.
    pub biases: Option<LayerBiases<B>>,
}

/// Biases of a layer's experts, a row each.
#[derive(Debug)]
pub struct LayerBiases<B: Backend> {
    /// `[experts, ffn]`.
    pub gate: B::Buf,
    /// `[experts, ffn]`.
    pub up: B::Buf,
    /// `[experts, hidden]`.
    pub down: B::Buf,
}

/// The operands of a layer's routed experts.
#[derive(Debug)]
pub struct ExpertBatch<'a, B: Backend> {
    /// The layer.
    pub layer: LayerIndex,
    /// What its experts have besides their records.
    pub form: &'a ExpertForm<B>,
    /// Which experts each row chose.
    pub routes: &'a Routes<B>,
    /// `[rows, hidden]`, prepared.
    pub x: &'a B::Acts,
    /// `[rows, hidden]`; the weighted sums are added to it.
    pub out: ViewMut<'a, B::Buf>,
    /// Work space.
    pub scratch: &'a mut MoeScratch<B>,
}

/// Work space of the routed experts.
#[derive(Debug)]
pub struct MoeScratch<B: Backend> {
    /// Of one expert over the rows that chose it.
    pub expert: ExpertScratch<B>,
    /// `[ARRIVAL_ROWS_MAX · top_k, hidden]`: results that wait for their turn.
    pub results: B::Buf,
}

/// Batches of up to this many rows compute experts as they arrive and add them up afterwards;
/// larger ones take them in ascending order, because keeping every result would cost
/// `rows · top_k · hidden` floats.
pub const ARRIVAL_ROWS_MAX: usize = 16;

/// Who holds the experts' bytes and who multiplies is the implementor's business.
pub trait RoutedExperts<B: Backend>: Send {
    /// A request in flight.
    type Ticket;

    /// Whether a guess at the next layer's routes is worth a router more. Asked once per layer with
    /// up to [`ARRIVAL_ROWS_MAX`] rows; nobody guesses for more.
    fn wants_guess(&mut self) -> bool {
        false
    }

    /// What a layer that comes next will probably choose: for reads in idle time. It may be wrong,
    /// and nothing but speed depends on it.
    fn foresee(&mut self, _layer: LayerIndex, _guess: &Routes<B>) {}

    /// Starts to bring in what `routes` chose; returns at once.
    ///
    /// # Errors
    /// If the request cannot be made at all.
    fn begin(
        &mut self,
        layer: LayerIndex,
        routes: &Routes<B>,
    ) -> Result<Self::Ticket, ExpertsFailed>;

    /// `out[row] += Σ weight · expert(x[row])`, in ascending expert order whatever the arrival.
    ///
    /// # Errors
    /// [`ExpertsFailed::Lost`] after all other experts have been added.
    fn finish(
        &mut self,
        device: &B,
        ticket: Self::Ticket,
        batch: ExpertBatch<'_, B>,
    ) -> Result<(), ExpertsFailed>;
}

/// Why a layer's experts did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsFailed {
    /// Some experts could not be had; everything else was computed.
    #[error(transparent)]
    Lost(#[from] ExpertsLost),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] fm_kernels::DeviceError),
}

/// The rows of a batch, grouped by the expert they chose. Reused from step to step.
#[derive(Debug, Default)]
pub struct RowsByExpert {
    /// The union of all chosen experts, ascending.
    pub union: Vec<ExpertIndex>,
    /// `rows[starts[i]..starts[i + 1]]` chose `union[i]`.
    starts: Vec<u32>,
    rows: Vec<ExpertRow>,
}

impl RowsByExpert {
    /// Groups the rows of `routes`. `target` says which row of the output the `j`-th choice of row
    /// `i` writes to.
    pub fn group<B: Backend>(
        &mut self,
        routes: &Routes<B>,
        target: impl Fn(usize, usize) -> usize,
    ) {
        self.union.clear();
        self.union.extend_from_slice(&routes.ids);
        self.union.sort_unstable();
        self.union.dedup();
        self.starts.clear();
        self.starts.resize(self.union.len() + 1, 0);
        for id in &routes.ids {
            self.starts[position(&self.union, *id) + 1] += 1;
        }
        for i in 1..self.starts.len() {
            self.starts[i] += self.starts[i - 1];
        }
        let unset = ExpertRow { row: 0, target: 0, weight: 0.0 };
        self.rows.clear();
        self.rows.resize(routes.ids.len(), unset);
        // Rows go in ascending order into their group; `starts` is the cursor and is put back.
        for (choice, (id, weight)) in routes.ids.iter().zip(&routes.weights).enumerate() {
            let (row, j) = (choice / routes.top_k, choice % routes.top_k);
            let group = position(&self.union, *id);
            let at = self.starts[group] as usize;
            self.starts[group] += 1;
            let target = target(row, j) as u32;
            self.rows[at] = ExpertRow { row: row as u32, target, weight: *weight };
        }
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// The rows that chose an expert of the union.
    ///
    /// # Panics
    /// If nobody chose it.
    pub fn rows(&self, expert: ExpertIndex) -> &[ExpertRow] {
        let group = position(&self.union, expert);
        &self.rows[self.starts[group] as usize..self.starts[group + 1] as usize]
    }
}

fn position(union: &[ExpertIndex], id: ExpertIndex) -> usize {
    union.binary_search(&id).expect("the union holds every chosen expert")
}

/// Brings the matrices of a record from where their rows lie in a slot to where they belong, in the
/// device's own order.
///
/// # Errors
/// If the device fails.
pub fn arrange_record<B: Backend<Bytes = [u8]>>(
    device: &B,
    layout: &RecordLayout,
    slot: &mut [u8],
    starts: MatrixStarts,
) -> DeviceResult {
    for (role, start) in MatrixRole::ALL.into_iter().zip(starts) {
        let shape = layout.shape(role);
        if device.arranges(shape) {
            device.arrange(shape, &mut slot[layout.offset(role)..start + shape.bytes()])?;
        } else {
            layout.settle(role, slot, start);
        }
    }
    Ok(())
}

/// An expert whose record lies in host memory, see [`arrange_record`].
pub fn expert_weights<'a, B: Backend<Bytes = [u8]>>(
    device: &B,
    layer: &LayerRecords,
    form: &'a ExpertForm<B>,
    expert: ExpertIndex,
    record: &'a [u8],
) -> ExpertWeights<'a, [u8], B::Buf> {
    let matrix = |role: MatrixRole| {
        let shape = layer.layout.shape(role);
        let bytes = &record[layer.layout.offset(role)..][..shape.bytes()];
        QMatrix { bytes, shape, arranged: device.arranges(shape) }
    };
    ExpertWeights {
        gate: matrix(MatrixRole::Gate),
        up: matrix(MatrixRole::Up),
        down: matrix(MatrixRole::Down),
        activation: form.activation,
        biases: form.biases.as_ref().map(|biases| {
            let row = |of: &'a B::Buf, role: MatrixRole| {
                let cols = layer.layout.shape(role).rows;
                View { offset: expert.index() * cols, ..View::new(of, 1, cols) }
            };
            ExpertBiases {
                gate: row(&biases.gate, MatrixRole::Gate),
                up: row(&biases.up, MatrixRole::Up),
                down: row(&biases.down, MatrixRole::Down),
            }
        }),
    }
}

impl<B: Backend> MoeScratch<B> {
    /// Room for `rows` rows of experts of the given dimensions.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(device: &B, rows: usize, dims: MoeDims) -> DeviceResult<Self> {
        let MoeDims { hidden, ffn, top_k } = dims;
        let arrivals = rows.min(ARRIVAL_ROWS_MAX) * top_k;
        Ok(Self {
            expert: ExpertScratch {
                gate: device.alloc(rows * ffn)?,
                up: device.alloc(rows * ffn)?,
                // Experts of a few rows are computed together, each with rows of its own.
                acts: device.acts(rows.max(arrivals), ffn)?,
                y: device.alloc(rows * hidden)?,
            },
            results: device.alloc(arrivals * hidden)?,
        })
    }
}

/// Largest dimensions of any feed-forward network of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoeDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Widest intermediate.
    pub ffn: usize,
    /// Experts per row.
    pub top_k: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_kernels::reference::Reference;

    #[test]
    fn rows_are_grouped_ascending_and_keep_their_weights() {
        let ids = [1, 7, 0, 7, 1, 2].map(ExpertIndex).to_vec();
        let weights = vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        let routes: Routes<Reference> =
            Routes { scores: Vec::new().into(), ids, weights, top_k: 2 };
        let mut groups = RowsByExpert::default();
        for _ in 0..2 {
            groups.group(&routes, |row, j| row * 2 + j);
            assert_eq!(groups.union, [0, 1, 2, 7].map(ExpertIndex));
            let row = |row, target, weight| ExpertRow { row, target, weight };
            assert_eq!(groups.rows(ExpertIndex(1)), [row(0, 0, 0.1), row(2, 4, 0.5)]);
            assert_eq!(groups.rows(ExpertIndex(7)), [row(0, 1, 0.2), row(1, 3, 0.4)]);
            assert_eq!(groups.rows(ExpertIndex(2)), [row(2, 5, 0.6)]);
        }
    }
}
