//! Gated delta net on the host: heads are shared out, tokens run in order.

use crate::{
    backend::{DeltaInputs, DeltaShape, View, ViewMut},
    reference::{
        activation::{sigmoid, silu, softplus},
        delta_net::DeltaStep,
    },
};

use super::{
    DELTA_TOKENS_MAX, Host, HostBuf, Kernels,
    places::{cut, list_rows},
    view::rows_per_task,
};

/// A task of a convolution has whole vectors of channels.
const CHANNELS_ALIGN: usize = 16;

/// Added to the sum of squares before a query or key is normalised.
const L2_EPS: f32 = 1e-6;

impl<K: Kernels> Host<K> {
    /// See [`crate::Backend::delta_net`].
    pub(super) fn delta_rows(
        &self,
        shape: DeltaShape,
        inputs: DeltaInputs<'_, HostBuf>,
        memory: &mut [f32],
        mut out: ViewMut<'_, HostBuf>,
    ) {
        let DeltaInputs { qkv, a, b, neg_a, dt_bias } = inputs;
        let ViewMut { buf, offset, rows, cols, stride } = qkv;
        self.normalise(shape, ViewMut { buf: &mut *buf, offset, rows, cols, stride });
        let qkv = View { buf: &*buf, offset, rows, cols, stride };
        let keys_at = shape.key_heads * shape.k_dim;
        let values_at = 2 * keys_at;
        let kernels = &self.kernels;
        let step_of = |head: usize, i: usize| {
            let (row, key_head) = (qkv.row(i), shape.key_head(head));
            let decay = neg_a[head] * softplus(a.row(i)[head] + dt_bias[head]);
            DeltaStep {
                query: &row[key_head * shape.k_dim..][..shape.k_dim],
                key: &row[keys_at + key_head * shape.k_dim..][..shape.k_dim],
                value: &row[values_at + head * shape.v_dim..][..shape.v_dim],
                decay: decay.exp(),
                beta: sigmoid(b.row(i)[head]),
            }
        };
        let head_rows = |head: usize, memory: &mut [f32], out: &mut [f32]| {
            for (part, out) in out.chunks_mut(DELTA_TOKENS_MAX * shape.v_dim).enumerate() {
                let first = part * DELTA_TOKENS_MAX;
                let mut steps = [step_of(head, first); DELTA_TOKENS_MAX];
                let steps = &mut steps[..out.len() / shape.v_dim];
                for (i, step) in steps.iter_mut().enumerate().skip(1) {
                    *step = step_of(head, first + i);
                }
                kernels.delta_steps(steps, memory, out);
            }
        };
        let head_memory = (memory, shape.v_dim * shape.k_dim);
        if rows == 1 {
            let out = (out.row(0), shape.v_dim);
            return self.kernels.for_each_pair(head_memory, out, head_rows);
        }
        let needed = rows * shape.value_heads * shape.v_dim;
        let mut scratch = self.scratch.borrow_mut();
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        let by_head = (&mut scratch[..needed], rows * shape.v_dim);
        self.kernels.for_each_pair(head_memory, by_head, head_rows);
        let by_head = &scratch[..needed];
        let kernels = &self.kernels;
        out.for_each_row(kernels, |i, row| {
            for (head, out) in row.chunks_exact_mut(shape.v_dim).enumerate() {
                out.copy_from_slice(&by_head[(head * rows + i) * shape.v_dim..][..shape.v_dim]);
            }
        });
    }

    /// See [`crate::Backend::causal_conv`]: channels are shared out, rows run in order.
    pub(super) fn conv_rows(
        &self,
        weight: &[f32],
        history: &mut [f32],
        mut x: ViewMut<'_, HostBuf>,
    ) {
        let (channels, taps, kernels) = (x.cols, history.len() / x.cols, &self.kernels);
        // Of one row, weights and history are most of what is read.
        let values = weight.len() + history.len() + x.rows * channels;
        let channels_per_task = rows_per_task(kernels, channels, values);
        let len = channels_per_task.next_multiple_of(CHANNELS_ALIGN);
        self.places.with(|rows| {
            rows.extend(history.chunks_exact_mut(channels));
            list_rows(&mut x, rows);
            let count = rows.len();
            self.places.with(|places| {
                cut(rows, len, places);
                kernels.for_each_chunk(places, count, |task, rows| {
                    let weight = ConvWeight { all: weight, channels, first: task * len };
                    let (history, rows) = rows.split_at_mut(taps);
                    rows.iter_mut().for_each(|x| kernels.conv_row(weight, history, x));
                });
            });
        });
    }

    /// Brings queries and keys to unit length, and queries to `k_dim^-0.5` on top.
    fn normalise(&self, shape: DeltaShape, qkv: ViewMut<'_, HostBuf>) {
        let query_scale = (shape.k_dim as f32).sqrt().recip();
        let kernels = &self.kernels;
        qkv.for_each_row(kernels, |_, row| {
            let queries_keys = &mut row[..2 * shape.key_heads * shape.k_dim];
            for (head, x) in queries_keys.chunks_exact_mut(shape.k_dim).enumerate() {
                let unit = (kernels.dot(x, x) + L2_EPS).sqrt().recip();
                let scale = if head < shape.key_heads { unit * query_scale } else { unit };
                x.iter_mut().for_each(|x| *x *= scale);
            }
        });
    }
}

/// What some channels of a convolution are multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct ConvWeight<'a> {
    /// `[taps, channels]` of all channels.
    all: &'a [f32],
    channels: usize,
    /// The first of those that are meant.
    first: usize,
}

impl<'a> ConvWeight<'a> {
    /// Tap `tap` of `len` channels from `at` on.
    #[inline]
    pub(crate) fn at(&self, tap: usize, at: usize, len: usize) -> &'a [f32] {
        &self.all[tap * self.channels + self.first + at..][..len]
    }
}

/// One row of the causal convolution of some channels, see [`crate::Backend::causal_conv`]: `x` and
/// each of `history` are `[channels]`.
pub(super) fn conv_row(weight: ConvWeight<'_>, history: &mut [&mut [f32]], x: &mut [f32]) {
    let taps = history.len();
    for (channel, x) in x.iter_mut().enumerate() {
        let weight = |tap| weight.at(tap, channel, 1)[0];
        let mut sum = weight(taps) * *x;
        for (tap, past) in history.iter().enumerate() {
            sum += weight(tap) * past[channel];
        }
        for tap in 1..taps {
            history[tap - 1][channel] = history[tap][channel];
        }
        if let Some(newest) = history.last_mut() {
            newest[channel] = *x;
        }
        *x = silu(sum);
    }
}
