//! What differs between the backends in host memory: who works, and the inner loops.

use std::fmt;

use fm_format::{quant::QuantFormat, record::MatrixShape};

use crate::{
    backend::{AttentionShape, Clamp, Numerics, Rope, View},
    reference::{
        activation, attention,
        delta_net::DeltaStep,
        matmul,
        quantise::{self, Block},
        rope, router,
    },
};

use super::{
    Host, HostBuf, HostKvView, RowSelection,
    delta_net::{self, ConvWeight},
};

/// How the tasks of one operation are shared out. Which thread runs a task never changes a bit.
pub trait Parallel: Send + 'static {
    /// Threads that work on one operation.
    fn threads(&self) -> usize;

    /// Runs `task(i, chunk)` for every chunk of `data`; the last may be shorter.
    fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    );

    /// Runs `task(i, a_chunk, b_chunk)` for the chunks of two slices side by side.
    fn for_each_pair<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    );
}

/// Query heads that share every block of keys and values, at most, while a cache holds it: of all rows
/// of a task.
pub const QUERIES_PER_TASK_MAX: usize = 128;

/// Tokens that some rows of a delta net's memory meet, while a cache holds them, before other rows meet one:
/// `docs/experiments/0071`.
pub const DELTA_TOKENS_MAX: usize = 16;

/// Rows of arranged weights that lie side by side.
pub const PANEL_ROWS: usize = 16;

/// Bytes of rows that are copied at a time while they are arranged, at most: what a second cache keeps of
/// them, or a few panels of long rows.
pub fn arranging_bytes(row_bytes: usize) -> usize {
    (256 << 10).max(4 * PANEL_ROWS * row_bytes)
}

/// Says which kernels, not what they left in its buffers.
impl<K: fmt::Debug> fmt::Debug for Host<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.kernels).finish()
    }
}

/// The inner loops of a host backend.
pub trait Kernels: Parallel + Sync + fmt::Debug {
    /// Numerics that these loops give.
    fn numerics(&self) -> Numerics;

    /// See [`crate::Backend::arranges`].
    fn arranges(&self, _shape: MatrixShape) -> bool {
        false
    }

    /// See [`crate::Backend::arrange`]; `scratch` grows to what it needs once.
    fn arrange(&self, _shape: MatrixShape, _bytes: &mut [u8], _scratch: &mut Vec<u8>) {}

    /// The blocks of a row of activations, see [`quantise::quantise`].
    fn quantise<const LINES: usize>(&self, row: &[f32], blocks: &mut [Block<LINES>]) {
        quantise::quantise(row, blocks);
    }

    /// Whether arranged weights of this format are multiplied faster with so many rows where these lie equally
    /// far from each other.
    fn wants_rows_spaced(&self, _format: &QuantFormat, _rows: usize) -> bool {
        false
    }

    /// `out[t][p · 16 + r] = (row r of panel p) · x[t]` for arranged weights; each result in an order
    /// that depends on the row's length only.
    fn arranged_dots(
        &self,
        format: &'static QuantFormat,
        panels: &[u8],
        x: &RowSelection<'_>,
        out: &mut [&mut [f32]],
    ) {
        matmul::quantised_dots(format, panels, x, out);
    }

    /// `Σ a[i] · b[i]`, in an order that depends on the length only.
    fn dot(&self, a: &[f32], b: &[f32]) -> f32;

    /// `acc += scale · x`.
    fn axpy(&self, scale: f32, x: &[f32], acc: &mut [f32]);

    /// Values that will be read soon: a hint.
    fn ask_for(&self, _values: &[f32]) {}

    /// `out[i] = row · x[i]`; each result in an order that depends on the row's length only.
    fn row_dots(
        &self,
        format: &'static QuantFormat,
        row: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    );

    /// [`Kernels::row_dots`] for a run of weight rows: `out` is `[rows, x.rows()]`.
    fn rows_dots(
        &self,
        format: &'static QuantFormat,
        rows: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    ) {
        let row_bytes = format.row_bytes(x.cols()).expect("the row tiles into blocks");
        for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(x.rows())) {
            self.row_dots(format, row, x, out);
        }
    }

    /// `gate = silu(gate) · up`.
    fn silu_mul(&self, up: &[f32], gate: &mut [f32]) {
        gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = activation::silu(*gate) * up);
    }

    /// See [`crate::Backend::clamped_mul`].
    fn clamped_mul(&self, clamp: Clamp, up: &[f32], gate: &mut [f32]) {
        gate.iter_mut()
            .zip(up)
            .for_each(|(gate, up)| *gate = activation::clamped(clamp, *gate, *up));
    }

    /// `x = x · silu(z)`.
    fn mul_silu(&self, z: &[f32], x: &mut [f32]) {
        x.iter_mut().zip(z).for_each(|(x, z)| *x *= activation::silu(*z));
    }

    /// `x = sigmoid(gate) · x`, element by element.
    fn sigmoid_mul(&self, gate: &[f32], x: &mut [f32]) {
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= activation::sigmoid(*gate));
    }

    /// `scores = softmax(logits)`.
    fn softmax(&self, logits: &[f32], scores: &mut [f32]) {
        router::softmax(logits, scores);
    }

    /// One row of [`crate::Backend::rope`].
    fn rope_row(&self, spec: &Rope<'_, HostBuf>, position: u32, x: &mut [f32]) {
        for head in x.chunks_exact_mut(spec.head_dim) {
            rope::rotate(spec, position, head);
        }
    }

    /// Query heads of some rows of [`crate::Backend::attention`], the first of which is `head` at
    /// `position`; at most [`QUERIES_PER_TASK_MAX`] rows. `q` is
    /// `[rows, heads · k_dim]`, `out` is `[rows, heads · v_dim]`. See [`attention::attend`].
    fn attend(
        &self,
        shape: AttentionShape,
        q: View<'_, HostBuf>,
        (kv, head): (HostKvView<'_>, usize),
        position: usize,
        out: &mut [f32],
    ) where
        Self: Sized,
    {
        let heads = q.cols / shape.k_dim;
        for (i, out) in out.chunks_exact_mut(shape.v_dim).enumerate() {
            let (row, at) = (i / heads, i % heads);
            let q = &q.row(row)[at * shape.k_dim..][..shape.k_dim];
            match kv {
                HostKvView::F32(kv) => {
                    attention::attend(self, shape, q, (kv, head + at), position + row, out);
                }
                HostKvView::F16(kv) => {
                    attention::attend(self, shape, q, (kv, head + at), position + row, out);
                }
            }
        }
    }

    /// One row of [`crate::Backend::causal_conv`], of some channels: `x` and each row of `history` are
    /// `[channels]`.
    fn conv_row(&self, weight: ConvWeight<'_>, history: &mut [&mut [f32]], x: &mut [f32]) {
        delta_net::conv_row(weight, history, x);
    }

    /// Tokens of one delta-net head in order, see [`crate::reference::delta_net::delta_step`]: at least one and no
    /// more than [`DELTA_TOKENS_MAX`]. `out` is `[steps, v_dim]`.
    fn delta_steps(&self, steps: &[DeltaStep<'_>], state: &mut [f32], out: &mut [f32]);
}
