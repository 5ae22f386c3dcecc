//! The experts of one row, all in two operations: with a fork per product, a layer of eight would wait
//! for threads 24 times.

use crate::{
    backend::{Activation, ExpertCall, ExpertScratch, ViewMut},
    reference::quantise::{BLOCK, Block},
};

use super::{Host, HostActs, Kernels, RowSelection, acts::QuantisedMut};

/// Experts that are computed together at most.
pub const EXPERTS_TOGETHER_MAX: usize = 16;

/// Parts of an expert's last product, so that no thread waits long for another.
const PARTS: usize = 2;

type Calls<'c, 'a> = [Option<ExpertCall<'a, [u8], Vec<f32>>>; EXPERTS_TOGETHER_MAX];

impl<K: Kernels> Host<K> {
    /// Whether these can be computed together: one row each, arranged weights, and no biases.
    pub(super) fn fuses(calls: &[Option<ExpertCall<'_, [u8], Vec<f32>>>]) -> bool {
        let same = |call: &ExpertCall<'_, [u8], Vec<f32>>| {
            let w = &call.weights;
            let whole = w.gate.shape.rows.is_multiple_of(BLOCK)
                && w.down.shape.rows.is_multiple_of(PARTS * super::PANEL_ROWS);
            let arranged = w.gate.arranged && w.up.arranged && w.down.arranged;
            let plain = w.biases.is_none() && w.activation == Activation::Silu;
            whole && arranged && plain && call.rows.len() == 1
        };
        calls.len() > 1 && calls.iter().flatten().all(same)
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
            let part = hidden / PARTS;
            kernels.for_each_chunk(results, part, |task, results| {
                let (at, part) = (task / PARTS, task % PARTS);
                let down = calls[at].as_ref().expect("counted").weights.down;
                let bytes = down.bytes.len() / PARTS;
                let x = RowSelection::head(acts, at, count);
                let panels = &down.bytes[part * bytes..][..bytes];
                kernels.arranged_dots(down.shape.format, panels, &x, &mut [results]);
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
            let products = (products, 2 * ffn);
            kernels.for_each_pair(products, (blocks, stride), |at, products, blocks| {
                let ExpertCall { weights, rows } = calls[at].as_ref().expect("counted");
                let x = RowSelection::chosen(x, rows);
                let (gate, up) = products.split_at_mut(ffn);
                for (matrix, out) in [(weights.gate, &mut *gate), (weights.up, &mut *up)] {
                    kernels.arranged_dots(matrix.shape.format, matrix.bytes, &x, &mut [out]);
                }
                kernels.silu_mul(up, gate);
                kernels.quantise(gate, &mut blocks[..ffn / BLOCK]);
            });
        });
    }
}
