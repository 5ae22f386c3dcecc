//! Backends whose memory is the host's: buffers are vectors, operations finish before they return.
//!
//! [`Host`] is the glue (views, loops, who runs in parallel) and is written once; [`Kernels`] are
//! the inner loops and differ between the scalar reference and the CPU.

use std::cell::RefCell;

use fm_format::quant::QuantFormat;

use crate::{
    backend::{
        AttentionShape, Backend, Combine, DeltaInputs, DeltaShape, DeviceResult, ExpertRow, KvView,
        Numerics, QMatrix, Rope, RouterSpec, Routes, View, ViewMut,
    },
    reference::{activation, attention, delta_net::DeltaStep, norm, rope, router},
};

mod delta_net;
mod matmul;
mod view;

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

/// The inner loops of a host backend.
pub trait Kernels: Parallel + Sync {
    /// Numerics that these loops give.
    const NUMERICS: Numerics;

    /// `Σ a[i] · b[i]`, in an order that depends on the length only.
    fn dot(&self, a: &[f32], b: &[f32]) -> f32;

    /// `acc += scale · x`.
    fn axpy(&self, scale: f32, x: &[f32], acc: &mut [f32]);

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

    /// One row of [`Backend::rope`].
    fn rope_row(&self, spec: &Rope<'_, Vec<f32>>, position: u32, x: &mut [f32]) {
        for head in x.chunks_exact_mut(spec.head_dim) {
            rope::rotate_half_split(&mut head[..2 * spec.pairs], position, spec.inv_freq);
        }
    }

    /// One query head of one row of [`Backend::attention`], see [`attention::attend`].
    fn attend(
        &self,
        shape: AttentionShape,
        q: &[f32],
        (kv, head): (&KvView<'_, Vec<f32>>, usize),
        position: usize,
        out: &mut [f32],
    ) where
        Self: Sized,
    {
        attention::attend(self, shape, q, (kv, head), position, out);
    }

    /// One row of [`Backend::causal_conv`]: `x` is `[channels]`.
    fn conv_row(&self, weight: &[f32], history: &mut [f32], x: &mut [f32]) {
        delta_net::conv_row(weight, history, x);
    }

    /// One token of one delta-net head, see [`crate::reference::delta_net::delta_step`].
    fn delta_step(&self, step: DeltaStep<'_>, state: &mut [f32], out: &mut [f32]);
}

/// Rows of activations are filled up with zeros to a multiple of this many values: one cache line,
/// and the widest vector of any machine.
const ACTS_ALIGN: usize = 16;

/// Activations of a host backend, row by row.
#[derive(Debug)]
pub struct HostActs {
    values: Vec<f32>,
    /// Where the first row begins: at a cache line, because a vector that lies across two costs two
    /// loads.
    start: usize,
    rows: usize,
    cols: usize,
}

impl HostActs {
    /// Row stride: one cache line more than the row, because rows at a stride of 2048 or 4096
    /// bytes fall into the same few sets of the L1 cache.
    fn stride(cols: usize) -> usize {
        cols.next_multiple_of(ACTS_ALIGN) + ACTS_ALIGN
    }

    fn new(rows: usize, cols: usize) -> Self {
        let values = vec![0.0; rows * Self::stride(cols) + ACTS_ALIGN];
        // A Vec that is never resized stays where it is.
        let start = values.as_ptr().align_offset(ACTS_ALIGN * size_of::<f32>()).min(ACTS_ALIGN);
        Self { values, start, rows: 0, cols: 0 }
    }

    /// Row `i` and what follows it.
    fn tail_from(&self, i: usize) -> &[f32] {
        &self.values[self.start + i * Self::stride(self.cols)..]
    }
}

/// The activations that one matrix product reads: all prepared rows, or those that chose an expert.
#[derive(Clone, Copy, Debug)]
pub struct RowSelection<'a> {
    acts: &'a HostActs,
    chosen: Option<&'a [ExpertRow]>,
}

impl<'a> RowSelection<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.chosen.map_or(self.acts.rows, <[_]>::len)
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.acts.cols
    }

    /// The `i`-th selected row.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.acts.tail_from(self.acts_row(i))[..self.acts.cols]
    }

    /// The `i`-th selected row, filled up with zeros to a multiple of sixteen.
    pub(crate) fn padded_row(&self, i: usize) -> &'a [[f32; ACTS_ALIGN]] {
        let values = self.acts.tail_from(self.acts_row(i));
        values[..self.acts.cols.next_multiple_of(ACTS_ALIGN)].as_chunks().0
    }

    fn acts_row(&self, i: usize) -> usize {
        self.chosen.map_or(i, |chosen| chosen[i].row as usize)
    }
}

/// A backend in host memory.
#[derive(Debug)]
pub struct Host<K> {
    kernels: K,
    /// Results of an operation that come out in another order than they are wanted in. Grows to
    /// the largest operation once and is reused from then on.
    scratch: RefCell<Vec<f32>>,
}

impl<K: Kernels> Host<K> {
    pub(crate) fn new(kernels: K) -> Self {
        Self { kernels, scratch: RefCell::default() }
    }

    pub(crate) fn kernels(&self) -> &K {
        &self.kernels
    }

    /// Threads that work on one operation.
    pub fn threads(&self) -> usize {
        self.kernels.threads()
    }
}

impl<K: Kernels> Backend for Host<K> {
    type Buf = Vec<f32>;
    type Packed = Vec<u8>;
    type Bytes = [u8];
    type Acts = HostActs;

    fn numerics(&self) -> Numerics {
        K::NUMERICS
    }

    fn alloc(&self, len: usize) -> DeviceResult<Vec<f32>> {
        Ok(vec![0.0; len])
    }

    fn upload(&self, values: &[f32]) -> DeviceResult<Vec<f32>> {
        Ok(values.to_vec())
    }

    fn upload_packed(&self, bytes: Vec<u8>) -> DeviceResult<Vec<u8>> {
        Ok(bytes)
    }

    fn read(&self, src: View<'_, Vec<f32>>, dst: &mut [f32]) -> DeviceResult {
        for i in 0..src.rows {
            dst[i * src.cols..][..src.cols].copy_from_slice(src.row(i));
        }
        Ok(())
    }

    fn write(&self, src: &[f32], mut dst: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..dst.rows {
            let src = &src[i * dst.cols..][..dst.cols];
            dst.row(i).copy_from_slice(src);
        }
        Ok(())
    }

    fn copy(&self, src: View<'_, Vec<f32>>, mut dst: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..src.rows {
            dst.row(i).copy_from_slice(src.row(i));
        }
        Ok(())
    }

    fn zero(&self, mut dst: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..dst.rows {
            dst.row(i).fill(0.0);
        }
        Ok(())
    }

    fn hold<G: Send + 'static>(&self, guard: G) {
        drop(guard); // every operation has finished by the time it returns
    }

    fn acts(&self, rows: usize, cols: usize) -> DeviceResult<HostActs> {
        Ok(HostActs::new(rows, cols))
    }

    fn prepare(&self, x: View<'_, Vec<f32>>, acts: &mut HostActs) -> DeviceResult {
        (acts.rows, acts.cols) = (x.rows, x.cols);
        let rows = acts.values[acts.start..].chunks_exact_mut(HostActs::stride(x.cols));
        for (i, row) in rows.take(x.rows).enumerate() {
            row[..x.cols].copy_from_slice(x.row(i));
            row[x.cols..].fill(0.0);
        }
        Ok(())
    }

    fn matmul(&self, w: QMatrix<'_, [u8]>, x: &HostActs, y: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        self.matmul_selected(w, &RowSelection { acts: x, chosen: None }, y);
        Ok(())
    }

    fn matmul_rows(
        &self,
        w: QMatrix<'_, [u8]>,
        x: &HostActs,
        rows: &[ExpertRow],
        y: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        self.matmul_selected(w, &RowSelection { acts: x, chosen: Some(rows) }, y);
        Ok(())
    }

    fn embed(
        &self,
        table: QMatrix<'_, [u8]>,
        ids: &[u32],
        mut out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        let row_bytes = table.shape.row_bytes();
        for (i, id) in ids.iter().enumerate() {
            let row = &table.bytes[*id as usize * row_bytes..][..row_bytes];
            table.shape.format.decode_row(row, out.row(i));
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: View<'_, Vec<f32>>,
        weight: &Vec<f32>,
        eps: f32,
        mut out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        for i in 0..x.rows {
            let row = x.row(i);
            let scale = norm::rms_scale(self.kernels.dot(row, row), row.len(), eps);
            norm::scale_row(row, scale, weight, out.row(i));
        }
        Ok(())
    }

    fn rms_norm_heads(
        &self,
        mut x: ViewMut<'_, Vec<f32>>,
        weight: &Vec<f32>,
        eps: f32,
    ) -> DeviceResult {
        for i in 0..x.rows {
            for head in x.row(i).chunks_exact_mut(weight.len()) {
                let scale = norm::rms_scale(self.kernels.dot(head, head), head.len(), eps);
                norm::scale_row_in_place(head, scale, weight);
            }
        }
        Ok(())
    }

    fn gated_norm_heads(
        &self,
        mut x: ViewMut<'_, Vec<f32>>,
        z: View<'_, Vec<f32>>,
        weight: &Vec<f32>,
        eps: f32,
    ) -> DeviceResult {
        for i in 0..x.rows {
            let heads = x.row(i).chunks_exact_mut(weight.len());
            for (head, z) in heads.zip(z.row(i).chunks_exact(weight.len())) {
                let scale = norm::rms_scale(self.kernels.dot(head, head), head.len(), eps);
                norm::scale_row_in_place(head, scale, weight);
                self.kernels.mul_silu(z, head);
            }
        }
        Ok(())
    }

    fn add_bias(&self, bias: &Vec<f32>, mut x: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..x.rows {
            x.row(i).iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        Ok(())
    }

    fn add(&self, x: View<'_, Vec<f32>>, mut acc: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..x.rows {
            acc.row(i).iter_mut().zip(x.row(i)).for_each(|(acc, x)| *acc += x);
        }
        Ok(())
    }

    fn silu_mul(&self, up: View<'_, Vec<f32>>, mut gate: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..up.rows {
            self.kernels.silu_mul(up.row(i), gate.row(i));
        }
        Ok(())
    }

    fn sigmoid_mul(&self, gate: View<'_, Vec<f32>>, mut x: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for i in 0..x.rows {
            if let [gate] = gate.row(i) {
                let gate = activation::sigmoid(*gate);
                x.row(i).iter_mut().for_each(|x| *x *= gate);
            } else {
                self.kernels.sigmoid_mul(gate.row(i), x.row(i));
            }
        }
        Ok(())
    }

    fn rope(&self, spec: &Rope<'_, Vec<f32>>, mut x: ViewMut<'_, Vec<f32>>) -> DeviceResult {
        for (i, position) in spec.positions.iter().enumerate() {
            self.kernels.rope_row(spec, *position, x.row(i));
        }
        Ok(())
    }

    fn kv_write(
        &self,
        x: View<'_, Vec<f32>>,
        position: u32,
        table: &[u32],
        dim: usize,
        pool: &mut Vec<f32>,
    ) -> DeviceResult {
        view::kv_write(&x, position as usize, table, dim, pool);
        Ok(())
    }

    fn kv_copy_block(&self, from: u32, to: u32, len: usize, pool: &mut Vec<f32>) -> DeviceResult {
        let from = from as usize * len;
        pool.copy_within(from..from + len, to as usize * len);
        Ok(())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: View<'_, Vec<f32>>,
        kv: &KvView<'_, Vec<f32>>,
        position: u32,
        mut out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        let kernels = &self.kernels;
        kernels.for_each_chunk(out.contiguous(), shape.v_dim, |task, out| {
            let (row, head) = (task / shape.heads, task % shape.heads);
            let q = &q.row(row)[head * shape.k_dim..][..shape.k_dim];
            let position = position as usize + row;
            kernels.attend(shape, q, (kv, head), position, out);
        });
        Ok(())
    }

    fn causal_conv(
        &self,
        weight: &Vec<f32>,
        history: &mut Vec<f32>,
        mut x: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        for i in 0..x.rows {
            self.kernels.conv_row(weight, history, x.row(i));
        }
        Ok(())
    }

    fn delta_net(
        &self,
        shape: DeltaShape,
        inputs: DeltaInputs<'_, Vec<f32>>,
        memory: &mut Vec<f32>,
        out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        self.delta_rows(shape, inputs, memory, out);
        Ok(())
    }

    fn route(
        &self,
        spec: RouterSpec,
        logits: View<'_, Vec<f32>>,
        routes: &mut Routes<Self>,
    ) -> DeviceResult {
        let (rows, experts, top_k) = (logits.rows, logits.cols, spec.top_k);
        routes.top_k = top_k;
        routes.ids.resize(rows * top_k, fm_format::key::ExpertIndex(0));
        routes.weights.resize(rows * top_k, 0.0);
        let ids = routes.ids.chunks_exact_mut(top_k);
        let chosen = ids.zip(routes.weights.chunks_exact_mut(top_k));
        let scores = routes.scores.chunks_exact_mut(experts);
        for (i, ((ids, weights), scores)) in chosen.zip(scores).enumerate() {
            self.kernels.softmax(logits.row(i), scores);
            router::choose(scores, spec.scale, ids, weights);
        }
        Ok(())
    }

    fn scatter_rows(
        &self,
        y: View<'_, Vec<f32>>,
        rows: &[ExpertRow],
        combine: Combine,
        mut out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        for (i, row) in rows.iter().enumerate() {
            let out = out.row(row.target as usize);
            match combine {
                Combine::Store => out.copy_from_slice(y.row(i)),
                Combine::Accumulate => self.kernels.axpy(row.weight, y.row(i), out),
            }
        }
        Ok(())
    }

    fn combine_rows(
        &self,
        y: View<'_, Vec<f32>>,
        weights: &[f32],
        mut out: ViewMut<'_, Vec<f32>>,
    ) -> DeviceResult {
        let top_k = weights.len() / out.rows.max(1);
        for (i, weights) in weights.chunks_exact(top_k.max(1)).enumerate() {
            for (j, weight) in weights.iter().enumerate() {
                self.kernels.axpy(*weight, y.row(i * top_k + j), out.row(i));
            }
        }
        Ok(())
    }
}
