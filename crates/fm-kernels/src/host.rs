//! Backends whose memory is the host's: buffers are vectors, operations finish before they return.
//!
//! [`Host`] is the glue (views, loops, who runs in parallel) and is written once; [`Kernels`] are
//! the inner loops and differ between the scalar reference and the CPU.

use std::cell::RefCell;

use fm_format::record::MatrixShape;

use crate::{
    WeightBytes,
    backend::{
        self, AttentionShape, Backend, Clamp, Combine, DeltaInputs, DeltaShape, DeviceResult,
        ExpertCall, ExpertRow, ExpertScratch, ExpertWeights, KvFormat, KvOverflow, KvView,
        Numerics, Product, QMatrix, Rope, RouterLogits, RouterScoring, RouterSpec, Routes, View,
        ViewMut,
    },
    reference::{
        activation, norm,
        router::{self, Scores},
    },
};

mod acts;
mod attention;
mod buf;
mod delta_net;
mod expert_rows;
mod experts;
mod kernels;
mod kv;
mod matmul;
mod neurons;
mod places;
mod view;

pub(crate) use acts::SpacedRows;
pub use acts::{BlockRows, HostActs, QuantisedRows, RowSelection};
pub use buf::HostBuf;
pub use delta_net::ConvWeight;
pub use expert_rows::EXPERT_ROWS_PER_PASS;
pub use experts::EXPERTS_TOGETHER_MAX;
pub use kernels::{
    DELTA_TOKENS_MAX, Kernels, PANEL_ROWS, Parallel, QUERIES_PER_TASK_MAX, arranging_bytes,
};
pub use kv::{Half, HostKv, HostKvView, Kept, KvLanes};
use places::PlaceLists;

/// Parts of a row that is shared out are whole cache lines: no two threads write to one.
const PART_ALIGN: usize = 64;

/// What an exponential takes as long as, in values that are read.
const VALUES_PER_EXP: usize = 8;

/// A backend in host memory.
pub struct Host<K> {
    kernels: K,
    /// Results of an operation that come out in another order than they are wanted in. Grows to
    /// the largest operation once and is reused from then on.
    scratch: RefCell<Vec<f32>>,
    /// Copies of panels that are being arranged; likewise.
    arranging: RefCell<Vec<u8>>,
    /// Rows that chose an expert; likewise.
    gathered: RefCell<HostActs>,
    /// Where tasks write to; likewise.
    places: PlaceLists,
}

impl<K: Kernels> Host<K> {
    pub(crate) fn new(kernels: K) -> Self {
        let gathered = HostActs::new(0, 0, kernels.numerics()).into();
        let (scratch, arranging) = (RefCell::default(), RefCell::default());
        Self { kernels, scratch, arranging, gathered, places: PlaceLists::default() }
    }

    pub(crate) fn into_kernels(self) -> K {
        self.kernels
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
    type Buf = HostBuf;
    type Kv = HostKv;
    type Packed = WeightBytes;
    type Bytes = [u8];
    type Acts = HostActs;

    fn numerics(&self) -> Numerics {
        self.kernels.numerics()
    }

    fn alloc(&self, len: usize) -> DeviceResult<HostBuf> {
        Ok(HostBuf::zeroed(len))
    }

    fn upload(&self, values: &[f32]) -> DeviceResult<HostBuf> {
        Ok(values.into())
    }

    fn upload_packed(&self, bytes: WeightBytes) -> DeviceResult<WeightBytes> {
        Ok(bytes)
    }

    fn arranges(&self, shape: MatrixShape) -> bool {
        self.kernels.arranges(shape)
    }

    fn arrange(&self, shape: MatrixShape, bytes: &mut [u8]) -> DeviceResult {
        assert!(bytes.len() >= shape.bytes(), "the bytes of a whole matrix");
        self.kernels.arrange(shape, bytes, &mut self.arranging.borrow_mut());
        Ok(())
    }

    fn read(&self, src: View<'_, HostBuf>, dst: &mut [f32]) -> DeviceResult {
        for i in 0..src.rows {
            dst[i * src.cols..][..src.cols].copy_from_slice(src.row(i));
        }
        Ok(())
    }

    fn write(&self, src: &[f32], mut dst: ViewMut<'_, HostBuf>) -> DeviceResult {
        for i in 0..dst.rows {
            let src = &src[i * dst.cols..][..dst.cols];
            dst.row(i).copy_from_slice(src);
        }
        Ok(())
    }

    fn copy(&self, src: View<'_, HostBuf>, mut dst: ViewMut<'_, HostBuf>) -> DeviceResult {
        for i in 0..src.rows {
            dst.row(i).copy_from_slice(src.row(i));
        }
        Ok(())
    }

    fn zero(&self, mut dst: ViewMut<'_, HostBuf>) -> DeviceResult {
        for i in 0..dst.rows {
            dst.row(i).fill(0.0);
        }
        Ok(())
    }

    fn hold<G: Send + 'static>(&self, guard: G) {
        drop(guard); // every operation has finished by the time it returns
    }

    fn acts(&self, rows: usize, cols: usize) -> DeviceResult<HostActs> {
        Ok(HostActs::new(rows, cols, self.kernels.numerics()))
    }

    fn float_acts(&self, rows: usize, cols: usize) -> DeviceResult<HostActs> {
        Ok(HostActs::new(rows, cols, Numerics::F32))
    }

    fn prepare(&self, x: View<'_, HostBuf>, acts: &mut HostActs) -> DeviceResult {
        acts.fill(&x, &self.kernels);
        Ok(())
    }

    fn matmul(&self, w: QMatrix<'_, [u8]>, x: &HostActs, y: ViewMut<'_, HostBuf>) -> DeviceResult {
        self.matmul_selected(w, &RowSelection::all(x), y);
        Ok(())
    }

    fn matmul_each<const N: usize>(
        &self,
        x: &HostActs,
        products: [Product<'_, [u8], HostBuf>; N],
    ) -> DeviceResult {
        let x = RowSelection::all(x);
        if x.rows() > 0 && products.iter().all(|product| product.w.arranged) {
            let ws = products.each_ref().map(|product| product.w);
            self.matmul_arranged(&x, &ws, &mut products.map(|product| product.y));
        } else {
            for Product { w, y } in products {
                self.matmul_selected(w, &x, y);
            }
        }
        Ok(())
    }

    fn matmul_rows(
        &self,
        w: QMatrix<'_, [u8]>,
        x: &HostActs,
        rows: &[ExpertRow],
        y: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        self.matmul_selected(w, &RowSelection::chosen(x, rows), y);
        Ok(())
    }

    fn matmul_heads(
        &self,
        w: QMatrix<'_, [u8]>,
        heads: usize,
        x: &HostActs,
        y: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        self.matmul_by_head(w, heads, x, y);
        Ok(())
    }

    fn embed(
        &self,
        table: QMatrix<'_, [u8]>,
        ids: &[u32],
        mut out: ViewMut<'_, HostBuf>,
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
        x: View<'_, HostBuf>,
        weight: &HostBuf,
        eps: f32,
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        let kernels = &self.kernels;
        out.for_each_row(kernels, |i, out| {
            let row = x.row(i);
            let scale = norm::rms_scale(kernels.dot(row, row), row.len(), eps);
            norm::scale_row(row, scale, weight, out);
        });
        Ok(())
    }

    fn rms_norm_heads(&self, x: ViewMut<'_, HostBuf>, weight: &HostBuf, eps: f32) -> DeviceResult {
        let kernels = &self.kernels;
        x.for_each_row(kernels, |_, row| {
            for head in row.chunks_exact_mut(weight.len()) {
                let scale = norm::rms_scale(kernels.dot(head, head), head.len(), eps);
                norm::scale_row_in_place(head, scale, weight);
            }
        });
        Ok(())
    }

    fn gated_norm_heads(
        &self,
        x: ViewMut<'_, HostBuf>,
        z: View<'_, HostBuf>,
        weight: &HostBuf,
        eps: f32,
    ) -> DeviceResult {
        let (kernels, values) = (&self.kernels, x.cols * VALUES_PER_EXP);
        x.for_each_part(kernels, (weight.len(), values), |i, first, heads| {
            let heads = heads.chunks_exact_mut(weight.len());
            for (head, z) in heads.zip(z.row(i)[first..].chunks_exact(weight.len())) {
                let scale = norm::rms_scale(kernels.dot(head, head), head.len(), eps);
                norm::scale_row_in_place(head, scale, weight);
                kernels.mul_silu(z, head);
            }
        });
        Ok(())
    }

    fn add_bias(&self, bias: View<'_, HostBuf>, x: ViewMut<'_, HostBuf>) -> DeviceResult {
        let (kernels, bias) = (&self.kernels, bias.row(0));
        x.for_each_row(kernels, |_, row| {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        });
        Ok(())
    }

    fn add(&self, x: View<'_, HostBuf>, acc: ViewMut<'_, HostBuf>) -> DeviceResult {
        let kernels = &self.kernels;
        acc.for_each_row(kernels, |i, row| {
            row.iter_mut().zip(x.row(i)).for_each(|(acc, x)| *acc += x);
        });
        Ok(())
    }

    fn silu_mul(&self, up: View<'_, HostBuf>, gate: ViewMut<'_, HostBuf>) -> DeviceResult {
        let kernels = &self.kernels;
        gate.for_each_row(kernels, |i, gate| kernels.silu_mul(up.row(i), gate));
        Ok(())
    }

    fn clamped_mul(
        &self,
        clamp: Clamp,
        up: View<'_, HostBuf>,
        gate: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        let kernels = &self.kernels;
        gate.for_each_row(kernels, |i, gate| kernels.clamped_mul(clamp, up.row(i), gate));
        Ok(())
    }

    fn sigmoid_mul(&self, gate: View<'_, HostBuf>, x: ViewMut<'_, HostBuf>) -> DeviceResult {
        let kernels = &self.kernels;
        x.for_each_row(kernels, |i, x| {
            if let ([gate], true) = (gate.row(i), x.len() > 1) {
                let gate = activation::sigmoid(*gate);
                x.iter_mut().for_each(|x| *x *= gate);
            } else {
                kernels.sigmoid_mul(gate.row(i), x);
            }
        });
        Ok(())
    }

    fn rope(&self, spec: &Rope<'_, HostBuf>, x: ViewMut<'_, HostBuf>) -> DeviceResult {
        let kernels = &self.kernels;
        x.for_each_row(kernels, |i, row| {
            kernels.rope_row(spec, spec.positions[i], row);
        });
        Ok(())
    }

    fn kv_alloc(&self, format: KvFormat, len: usize) -> DeviceResult<HostKv> {
        Ok(HostKv::zeroed(format, len))
    }

    fn kv_write(
        &self,
        x: View<'_, HostBuf>,
        position: u32,
        table: &[u32],
        dim: usize,
        pool: &mut HostKv,
    ) -> DeviceResult<Option<KvOverflow>> {
        Ok(pool.write(&x, position as usize, (table, dim)))
    }

    fn kv_copy_block(&self, from: u32, to: u32, len: usize, pool: &mut HostKv) -> DeviceResult {
        pool.copy_block(from as usize, to as usize, len);
        Ok(())
    }

    fn kv_read(&self, pool: &HostKv, first: usize, bytes: &mut [u8]) -> DeviceResult {
        pool.read(first, bytes);
        Ok(())
    }

    fn kv_restore(&self, bytes: &[u8], pool: &mut HostKv, first: usize) -> DeviceResult {
        pool.restore(bytes, first);
        Ok(())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: View<'_, HostBuf>,
        kv: &KvView<'_, HostKv, HostBuf>,
        position: u32,
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        self.attend(shape, q, kv.into(), position as usize, out);
        Ok(())
    }

    fn causal_conv(
        &self,
        weight: &HostBuf,
        history: &mut HostBuf,
        x: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        self.conv_rows(weight, history, x);
        Ok(())
    }

    fn delta_net(
        &self,
        shape: DeltaShape,
        inputs: DeltaInputs<'_, HostBuf>,
        memory: &mut HostBuf,
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        self.delta_rows(shape, inputs, memory, out);
        Ok(())
    }

    fn route(
        &self,
        spec: RouterSpec,
        router: RouterLogits<'_, HostBuf>,
        routes: &mut Routes<Self>,
    ) -> DeviceResult {
        let RouterLogits { logits, bias } = router;
        let bias = bias.map(|bias| &bias[..]);
        let (rows, experts, top_k) = (logits.rows, logits.cols, spec.top_k);
        routes.top_k = top_k;
        routes.ids.resize(rows * top_k, fm_format::key::ExpertIndex(0));
        routes.weights.resize(rows * top_k, 0.0);
        let ids = routes.ids.chunks_exact_mut(top_k);
        let chosen = ids.zip(routes.weights.chunks_exact_mut(top_k));
        let scores = routes.scores.chunks_exact_mut(experts);
        for (i, ((ids, weights), scores)) in chosen.zip(scores).enumerate() {
            match spec.scoring {
                RouterScoring::Softmax => self.kernels.softmax(logits.row(i), scores),
                RouterScoring::Sigmoid => {
                    scores.fill(1.0);
                    self.kernels.sigmoid_mul(logits.row(i), scores);
                }
                RouterScoring::SoftmaxOfChosen => scores.copy_from_slice(logits.row(i)),
            }
            router::choose(spec, Scores { scores, bias }, ids, weights);
        }
        Ok(())
    }

    fn experts<'a>(
        &self,
        count: usize,
        call: &dyn Fn(usize) -> ExpertCall<'a, [u8], HostBuf>,
        x: &HostActs,
        scratch: &mut ExpertScratch<Self>,
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult
    where
        Self::Bytes: 'a,
    {
        let ViewMut { buf, offset, rows, cols, stride } = out;
        for first in (0..count).step_by(EXPERTS_TOGETHER_MAX) {
            let mut calls = [const { None }; EXPERTS_TOGETHER_MAX];
            let here = EXPERTS_TOGETHER_MAX.min(count - first);
            calls[..here].iter_mut().enumerate().for_each(|(i, at)| *at = Some(call(first + i)));
            if Self::fuses(&calls, &scratch.acts) {
                let out = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
                self.experts_fused(&calls, x, scratch, out);
                continue;
            }
            for ExpertCall { weights, rows: chosen } in calls.iter().flatten() {
                let out = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
                self.expert_rows(weights, x, chosen, scratch, Combine::Store, out)?;
            }
        }
        Ok(())
    }

    fn expert_rows(
        &self,
        w: &ExpertWeights<'_, [u8], HostBuf>,
        x: &HostActs,
        rows: &[ExpertRow],
        scratch: &mut ExpertScratch<Self>,
        combine: Combine,
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        if !Self::fuses_rows(w, rows) {
            return backend::expert_by_products(self, w, x, rows, scratch, combine, out);
        }
        self.expert_rows_fused(w, (x, rows), &mut scratch.acts, (combine, out));
        Ok(())
    }

    fn scatter_rows(
        &self,
        y: View<'_, HostBuf>,
        rows: &[ExpertRow],
        combine: Combine,
        mut out: ViewMut<'_, HostBuf>,
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
        y: View<'_, HostBuf>,
        weights: &[f32],
        out: ViewMut<'_, HostBuf>,
    ) -> DeviceResult {
        let top_k = weights.len() / out.rows.max(1);
        let (kernels, values) = (&self.kernels, (top_k + 1) * out.cols);
        out.for_each_part(kernels, (PART_ALIGN, values), |i, first, out| {
            for (j, weight) in weights[i * top_k..][..top_k].iter().enumerate() {
                let y = &y.row(i * top_k + j)[first..][..out.len()];
                kernels.axpy(*weight, y, out);
            }
        });
        Ok(())
    }
}
