//! The experts of one row, all in two operations: with a fork per product, a layer of eight would wait
//! for threads 24 times.

use crate::{
    backend::{Activation, ExpertCall, ExpertScratch, QMatrix, ViewMut},
    reference::quantise::{BLOCK, Block},
};

use super::{Host, HostActs, Kernels, PANEL_ROWS, RowSelection, acts::QuantisedMut};

/// Experts that are computed together at most.
pub const EXPERTS_TOGETHER_MAX: usize = 16;

/// Tasks per thread: a layer of eight experts is shared out evenly among sixteen threads, and among two
/// whoever is done early waits for little.
const TASKS_PER_THREAD: usize = 8;

/// Tasks of an operation at most: they are listed on the stack.
const TASKS_MAX: usize = 256;

type Calls<'c, 'a> = [Option<ExpertCall<'a, [u8], Vec<f32>>>; EXPERTS_TOGETHER_MAX];

/// What one task computes.
struct Part<'s, const LINES: usize> {
    /// Which call it belongs to.
    at: usize,
    /// The first of its rows of weights.
    first: usize,
    /// Room for its products.
    values: &'s mut [f32],
    /// Where they go to, quantised.
    blocks: &'s mut [Block<LINES>],
}

/// The tasks of an operation.
struct Parts<'s, const LINES: usize> {
    all: [Option<Part<'s, LINES>>; TASKS_MAX],
    len: usize,
}

impl<'s, const LINES: usize> Parts<'s, LINES> {
    fn new() -> Self {
        Self { all: [const { None }; TASKS_MAX], len: 0 }
    }

    fn push(&mut self, part: Part<'s, LINES>) {
        self.all[self.len] = Some(part);
        self.len += 1;
    }

    fn run<K: Kernels>(&mut self, kernels: &K, task: impl Fn(&mut Part<'s, LINES>) + Sync) {
        kernels.for_each_chunk(&mut self.all[..self.len], 1, |_, parts| {
            parts.iter_mut().flatten().for_each(&task);
        });
    }
}

impl<K: Kernels> Host<K> {
    /// Whether these can be computed together: one row each, arranged weights, and no biases.
    pub(super) fn fuses(calls: &[Option<ExpertCall<'_, [u8], Vec<f32>>>]) -> bool {
        let same = |call: &ExpertCall<'_, [u8], Vec<f32>>| {
            let w = &call.weights;
            let arranged = w.gate.arranged && w.up.arranged && w.down.arranged;
            let plain = w.biases.is_none() && w.activation == Activation::Silu;
            let whole = w.gate.shape.rows.is_multiple_of(BLOCK);
            whole && arranged && plain && call.rows.len() == 1
        };
        calls.iter().flatten().all(same)
    }

    /// `out[target] = down(silu(gate x) · up x)` for each call.
    pub(super) fn experts_fused(
        &self,
        calls: &Calls<'_, '_>,
        x: &HostActs,
        scratch: &mut ExpertScratch<Self>,
        mut out: ViewMut<'_, Vec<f32>>,
    ) {
        let count = calls.iter().flatten().count();
        let first = calls[0].as_ref().expect("there are calls");
        let (ffn, hidden) = (first.weights.gate.shape.rows, first.weights.down.shape.rows);
        match scratch.acts.quantised_mut(count, ffn) {
            QuantisedMut::Int8(blocks) => self.gates(calls, x, ffn, blocks),
            QuantisedMut::Int15(blocks) => self.gates(calls, x, ffn, blocks),
        }
        let (acts, kernels) = (&scratch.acts, &self.kernels);
        self.with_scratch(count * hidden, |results| {
            let rows = self.rows_per_part(count, hidden, PANEL_ROWS);
            let mut parts = Parts::<1>::new();
            for (at, results) in results.chunks_exact_mut(hidden).enumerate() {
                for (i, values) in results.chunks_mut(rows).enumerate() {
                    parts.push(Part { at, first: i * rows, values, blocks: &mut [] });
                }
            }
            parts.run(kernels, |Part { at, first, values, .. }| {
                let down = calls[*at].as_ref().expect("counted").weights.down;
                let x = RowSelection::head(acts, *at, count);
                dots(kernels, (down, *first), &x, values);
            });
            for (call, result) in calls.iter().flatten().zip(results.chunks_exact(hidden)) {
                out.row(call.rows[0].target as usize).copy_from_slice(result);
            }
        });
    }

    /// What the last products read: `silu(gate x) · up x`, quantised, a row per call.
    fn gates<const LINES: usize>(
        &self,
        calls: &Calls<'_, '_>,
        x: &HostActs,
        ffn: usize,
        blocks: &mut [Block<LINES>],
    ) {
        let count = calls.iter().flatten().count();
        let (stride, kernels) = (blocks.len() / count, &self.kernels);
        self.with_scratch(count * 2 * ffn, |products| {
            let rows = self.rows_per_part(count, ffn, BLOCK);
            let mut parts = Parts::new();
            let of_calls = products.chunks_exact_mut(2 * ffn).zip(blocks.chunks_exact_mut(stride));
            for (at, (products, blocks)) in of_calls.enumerate() {
                let blocks = blocks[..ffn / BLOCK].chunks_mut(rows / BLOCK);
                for (i, (values, blocks)) in products.chunks_mut(2 * rows).zip(blocks).enumerate() {
                    parts.push(Part { at, first: i * rows, values, blocks });
                }
            }
            parts.run(kernels, |Part { at, first, values, blocks }| {
                let ExpertCall { weights, rows } = calls[*at].as_ref().expect("counted");
                let x = RowSelection::chosen(x, rows);
                let (gate, up) = values.split_at_mut(values.len() / 2);
                for (matrix, out) in [(weights.gate, &mut *gate), (weights.up, &mut *up)] {
                    dots(kernels, (matrix, *first), &x, out);
                }
                kernels.silu_mul(up, gate);
                kernels.quantise(gate, blocks);
            });
        });
    }

    /// Rows of weights that a task takes of each of `count` matrices, a multiple of `align`.
    fn rows_per_part(&self, count: usize, rows: usize, align: usize) -> usize {
        let tasks = self.kernels.threads() * TASKS_PER_THREAD;
        let parts = tasks.div_ceil(count).min(TASKS_MAX / count);
        rows.div_ceil(parts).next_multiple_of(align)
    }
}

/// Rows of arranged weights, from `first` on, times one row of activations.
fn dots(
    kernels: &impl Kernels,
    (matrix, first): (QMatrix<'_, [u8]>, usize),
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    let row_bytes = matrix.shape.row_bytes();
    let panels = &matrix.bytes[first * row_bytes..][..out.len() * row_bytes];
    kernels.arranged_dots(matrix.shape.format, panels, x, &mut [out]);
}
