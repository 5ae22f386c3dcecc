//! A place that can run the model's arithmetic.
//!
//! Operations enqueue; only [`Backend::read`] waits. Model code is therefore written in order and
//! a device may run behind it. Operands are views into buffers: offset, rows, columns, stride.

use std::fmt;

use fm_format::record::MatrixShape;

use crate::WeightBytes;

mod operands;
mod view;

pub use operands::{
    Activation, AttentionShape, Clamp, Combine, DeltaInputs, DeltaShape, ExpertBiases, ExpertCall,
    ExpertRow, ExpertScratch, ExpertWeights, HeadOrder, KvFormat, KvOverflow, KvView, Product,
    QMatrix, ROUTER_GROUPS_MAX, Rope, RopeLayout, RouterGroups, RouterLogits, RouterScale,
    RouterScoring, RouterSpec, Routes,
};
pub use view::{View, ViewMut};

/// Tokens per block of the KV cache: the unit of the online softmax, of forking and of snapshots.
pub const KV_BLOCK_TOKENS: usize = 64;

/// A device refused or lost work.
#[derive(Debug, thiserror::Error)]
#[error("the device failed while {doing}")]
pub struct DeviceError {
    /// What it was asked to do.
    pub doing: &'static str,
    /// What the driver said.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// What operations return.
pub type DeviceResult<T = ()> = Result<T, DeviceError>;

/// Numerics in force; always printed. See `ARCHITECTURE.md`, invariant 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Numerics {
    /// Scalar f32 in source order.
    Reference,
    /// Fast kernels, f32 activations.
    F32,
    /// As [`Numerics::F32`], but activations that meet arranged weights are integers of 15 bits with
    /// a scale per 64: see [`crate::reference::quantise`].
    Int15,
    /// As [`Numerics::Int15`] with integers of 8 bits.
    Int8,
}

impl Numerics {
    /// Every variant, in the order of the option's help.
    pub const ALL: &'static [Self] = &[Self::Reference, Self::F32, Self::Int15, Self::Int8];

    /// The word of the command line and the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::F32 => "f32",
            Self::Int15 => "int15",
            Self::Int8 => "int8",
        }
    }

    /// Whether activations that meet arranged weights become integers.
    pub fn quantises(self) -> bool {
        matches!(self, Self::Int15 | Self::Int8)
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place that can run the model's arithmetic.
///
/// Required methods are the primitives; provided methods are fusions written with them, which a
/// backend overrides to be faster. Shapes are checked when a model is loaded; a mismatch here is a
/// bug in the caller and panics.
///
/// No operation may let a row depend on which other rows stand beside it (invariant 2).
pub trait Backend: Send + Sized + fmt::Debug + 'static {
    /// f32 values on the device.
    type Buf: Send + Sync + fmt::Debug;
    /// Keys or values of the blocks of an attention layer, in a [`KvFormat`].
    type Kv: Send + Sync + fmt::Debug;
    /// Packed weights the device owns.
    type Packed: AsRef<Self::Bytes> + AsMut<Self::Bytes> + Send + fmt::Debug;
    /// Packed weights, borrowed: of the trunk or of an expert slot.
    type Bytes: ?Sized;
    /// Activations prepared for matrix products.
    type Acts: Send + fmt::Debug;

    /// Numerics in force.
    fn numerics(&self) -> Numerics;

    /// `len` zeros.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn alloc(&self, len: usize) -> DeviceResult<Self::Buf>;
    /// A copy of `values`.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn upload(&self, values: &[f32]) -> DeviceResult<Self::Buf>;
    /// Takes packed weights over.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn upload_packed(&self, bytes: WeightBytes) -> DeviceResult<Self::Packed>;
    /// Whether the device has an order of its own for such a matrix, and kernels for that order.
    fn arranges(&self, shape: MatrixShape) -> bool;
    /// Brings a matrix that [`Backend::arranges`] from rows into the device's own order: from the end of
    /// `bytes` to their start, in place where they are no longer than the matrix.
    ///
    /// # Errors
    /// If the device fails.
    fn arrange(&self, shape: MatrixShape, bytes: &mut Self::Bytes) -> DeviceResult;
    /// Copies device values to the host; waits for everything enqueued before.
    ///
    /// # Errors
    /// If the device failed since the last call.
    fn read(&self, src: View<'_, Self::Buf>, dst: &mut [f32]) -> DeviceResult;
    /// Copies host values to the device.
    ///
    /// # Errors
    /// If the device fails.
    fn write(&self, src: &[f32], dst: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// `dst = src`, on the device.
    ///
    /// # Errors
    /// If the device fails.
    fn copy(&self, src: View<'_, Self::Buf>, dst: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// `dst = 0`.
    ///
    /// # Errors
    /// If the device fails.
    fn zero(&self, dst: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// Drops `guard` once everything enqueued so far has finished. Without it an expert slot could
    /// be refilled while the device still reads it: a wrong token, and no error.
    fn hold<G: Send + 'static>(&self, guard: G);

    /// Room for the activations of up to `rows` rows of up to `cols` values.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn acts(&self, rows: usize, cols: usize) -> DeviceResult<Self::Acts>;
    /// As [`Backend::acts`] for matrices that are not arranged, in any numerics.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn float_acts(&self, rows: usize, cols: usize) -> DeviceResult<Self::Acts>;
    /// Prepares activations once for all matrices that read them.
    ///
    /// # Errors
    /// If the device fails.
    fn prepare(&self, x: View<'_, Self::Buf>, acts: &mut Self::Acts) -> DeviceResult;
    /// `y[i] = W x[i]` for every prepared row; `y` is `[rows, w.rows]`.
    ///
    /// # Errors
    /// If the device fails.
    fn matmul(
        &self,
        w: QMatrix<'_, Self::Bytes>,
        x: &Self::Acts,
        y: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// [`Backend::matmul`] of several matrices that read the same activations, each into its own
    /// result: what is small alone is worth several threads together.
    ///
    /// # Errors
    /// If the device fails.
    fn matmul_each<const N: usize>(
        &self,
        x: &Self::Acts,
        products: [Product<'_, Self::Bytes, Self::Buf>; N],
    ) -> DeviceResult {
        for Product { w, y } in products {
            self.matmul(w, x, y)?;
        }
        Ok(())
    }
    /// As [`Backend::matmul`] for the activations of the given rows only: `y[i] = W x[rows[i]]`.
    ///
    /// # Errors
    /// If the device fails.
    fn matmul_rows(
        &self,
        w: QMatrix<'_, Self::Bytes>,
        x: &Self::Acts,
        rows: &[ExpertRow],
        y: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// Every head has a matrix of its own: `y[i] = W[i % heads] x[i]`. Prepared rows and rows of
    /// `y` are the heads of tokens, heads of a token side by side; `w` is `[heads · y.cols, cols]`.
    ///
    /// # Errors
    /// If the device fails.
    fn matmul_heads(
        &self,
        w: QMatrix<'_, Self::Bytes>,
        heads: usize,
        x: &Self::Acts,
        y: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// `out[i] = table[ids[i]]`, decoded.
    ///
    /// # Errors
    /// If the device fails.
    fn embed(
        &self,
        table: QMatrix<'_, Self::Bytes>,
        ids: &[u32],
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;

    /// `out[i] = x[i] / sqrt(mean(x[i]²) + eps) · weight`. Source: Zhang, Sennrich, 2019,
    /// arXiv:1910.07467.
    ///
    /// # Errors
    /// If the device fails.
    fn rms_norm(
        &self,
        x: View<'_, Self::Buf>,
        weight: &Self::Buf,
        eps: f32,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// [`Backend::rms_norm`] of every head in place: `x` is `[rows, heads · weight.len()]`.
    ///
    /// # Errors
    /// If the device fails.
    fn rms_norm_heads(
        &self,
        x: ViewMut<'_, Self::Buf>,
        weight: &Self::Buf,
        eps: f32,
    ) -> DeviceResult;
    /// `x = rms_norm(x) · silu(z)` per head: norm before gate. `x`, `z` are `[rows, heads · dim]`.
    ///
    /// # Errors
    /// If the device fails.
    fn gated_norm_heads(
        &self,
        x: ViewMut<'_, Self::Buf>,
        z: View<'_, Self::Buf>,
        weight: &Self::Buf,
        eps: f32,
    ) -> DeviceResult;
    /// `x[i] += bias` for every row; `bias` is one row.
    ///
    /// # Errors
    /// If the device fails.
    fn add_bias(&self, bias: View<'_, Self::Buf>, x: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// `acc += x`.
    ///
    /// # Errors
    /// If the device fails.
    fn add(&self, x: View<'_, Self::Buf>, acc: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// `gate = silu(gate) · up`.
    ///
    /// # Errors
    /// If the device fails.
    fn silu_mul(&self, up: View<'_, Self::Buf>, gate: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// `gate = (up + 1) · gate · sigmoid(alpha · gate)` of clamped operands, see [`Clamp`].
    ///
    /// # Errors
    /// If the device fails.
    fn clamped_mul(
        &self,
        clamp: Clamp,
        up: View<'_, Self::Buf>,
        gate: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// `gate = activation(gate, up)`.
    ///
    /// # Errors
    /// If the device fails.
    fn activate(
        &self,
        activation: Activation,
        up: View<'_, Self::Buf>,
        gate: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult {
        match activation {
            Activation::Silu => self.silu_mul(up, gate),
            Activation::Clamped(clamp) => self.clamped_mul(clamp, up, gate),
        }
    }

    /// `x = sigmoid(gate) · x`, element by element, or row by row if `gate` has one column.
    ///
    /// # Errors
    /// If the device fails.
    fn sigmoid_mul(&self, gate: View<'_, Self::Buf>, x: ViewMut<'_, Self::Buf>) -> DeviceResult;

    /// Rotates the pairs of every head: `x` is `[rows, heads · head_dim]`. Source: Su et al.,
    /// 2021, arXiv:2104.09864.
    ///
    /// # Errors
    /// If the device fails.
    fn rope(&self, rope: &Rope<'_, Self::Buf>, x: ViewMut<'_, Self::Buf>) -> DeviceResult;
    /// So many zeros for keys or values.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn kv_alloc(&self, format: KvFormat, len: usize) -> DeviceResult<Self::Kv>;
    /// Puts `rows` rows of one session, from `position` on, into the blocks of `pool`, rounded to its
    /// format: `x` is `[rows, kv_heads · dim]`, `pool` is `[blocks, kv_heads, KV_BLOCK_TOKENS, dim]`.
    ///
    /// Returns the first of the values that are beyond the format, if any. They are cut off there, so that
    /// the session can pass through the layers with its neighbours, but nothing that it says may be used.
    ///
    /// # Errors
    /// If the device fails.
    fn kv_write(
        &self,
        x: View<'_, Self::Buf>,
        position: u32,
        table: &[u32],
        dim: usize,
        pool: &mut Self::Kv,
    ) -> DeviceResult<Option<KvOverflow>>;
    /// Copies one block of `len` values inside a pool: a fork writes into its own copy.
    ///
    /// # Errors
    /// If the device fails.
    fn kv_copy_block(&self, from: u32, to: u32, len: usize, pool: &mut Self::Kv) -> DeviceResult;
    /// Copies values of a pool from value `first` on to the host: little-endian, in its format.
    ///
    /// # Errors
    /// If the device fails.
    fn kv_read(&self, pool: &Self::Kv, first: usize, bytes: &mut [u8]) -> DeviceResult;
    /// The counterpart of [`Backend::kv_read`].
    ///
    /// # Errors
    /// If the device fails.
    fn kv_restore(&self, bytes: &[u8], pool: &mut Self::Kv, first: usize) -> DeviceResult;
    /// Causal attention of the rows of one session; row `i` stands at `position + i` and sees
    /// itself and all before it, or those in its window. `q` is `[rows, heads · k_dim]`, `out` `[rows, heads · v_dim]`.
    /// The softmax runs online, block by block in ascending order. Source: Milakov, Gimelshein,
    /// 2018, arXiv:1805.02867.
    ///
    /// # Errors
    /// If the device fails.
    fn attention(
        &self,
        shape: AttentionShape,
        q: View<'_, Self::Buf>,
        kv: &KvView<'_, Self::Kv, Self::Buf>,
        position: u32,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;

    /// Depthwise causal convolution, then SiLU, of the rows of one session: `x` is
    /// `[rows, channels]`, in place; `weight` is `[taps, channels]`, the last tap multiplies the
    /// current row; `history` is `[taps - 1, channels]`, oldest first, and is advanced.
    ///
    /// # Errors
    /// If the device fails.
    fn causal_conv(
        &self,
        weight: &Self::Buf,
        history: &mut Self::Buf,
        x: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// Gated delta rule over the rows of one session; `memory` is `[value_heads, v_dim, k_dim]`
    /// and is advanced, `out` is `[rows, value_heads · v_dim]`. Source: Yang, Kautz, Hatamizadeh,
    /// *Gated Delta Networks*, 2024, arXiv:2412.06464.
    ///
    /// # Errors
    /// If the device fails.
    fn delta_net(
        &self,
        shape: DeltaShape,
        inputs: DeltaInputs<'_, Self::Buf>,
        memory: &mut Self::Buf,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;

    /// Chooses experts for every row, see [`RouterSpec`]; of equals the lower index.
    ///
    /// # Errors
    /// If the device fails.
    fn route(
        &self,
        spec: RouterSpec,
        router: RouterLogits<'_, Self::Buf>,
        routes: &mut Routes<Self>,
    ) -> DeviceResult;
    /// `out[rows[i].target] = y[i]`, or `+= rows[i].weight · y[i]`.
    ///
    /// # Errors
    /// If the device fails.
    fn scatter_rows(
        &self,
        y: View<'_, Self::Buf>,
        rows: &[ExpertRow],
        combine: Combine,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;
    /// `out[i] += Σ_j weights[i · top_k + j] · y[i · top_k + j]`, in ascending `j`: what
    /// [`Combine::Store`] kept, added in the order and with the rounding of [`Combine::Accumulate`].
    ///
    /// # Errors
    /// If the device fails.
    fn combine_rows(
        &self,
        y: View<'_, Self::Buf>,
        weights: &[f32],
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult;

    /// Fusion: [`Backend::expert_rows`] with [`Combine::Store`] for `count` experts, the `i`-th being
    /// `call(i)`; of one activation and one shape.
    ///
    /// # Errors
    /// If the device fails.
    fn experts<'a>(
        &self,
        count: usize,
        call: &dyn Fn(usize) -> ExpertCall<'a, Self::Bytes, Self::Buf>,
        x: &Self::Acts,
        scratch: &mut ExpertScratch<Self>,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult
    where
        Self::Bytes: 'a,
    {
        let ViewMut { buf, offset, rows, cols, stride } = out;
        for at in 0..count {
            let ExpertCall { weights, rows: chosen } = call(at);
            let out = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
            self.expert_rows(&weights, x, chosen, scratch, Combine::Store, out)?;
        }
        Ok(())
    }

    /// Fusion: one expert over the rows that chose it, `y = down(activation(gate x, up x))`, with
    /// a bias after each product where there are biases.
    ///
    /// # Errors
    /// If the device fails.
    fn expert_rows(
        &self,
        w: &ExpertWeights<'_, Self::Bytes, Self::Buf>,
        x: &Self::Acts,
        rows: &[ExpertRow],
        scratch: &mut ExpertScratch<Self>,
        combine: Combine,
        out: ViewMut<'_, Self::Buf>,
    ) -> DeviceResult {
        expert_by_products(self, w, x, rows, scratch, combine, out)
    }
}

/// [`Backend::expert_rows`], an operation after the other.
pub(crate) fn expert_by_products<B: Backend>(
    device: &B,
    w: &ExpertWeights<'_, B::Bytes, B::Buf>,
    x: &B::Acts,
    rows: &[ExpertRow],
    scratch: &mut ExpertScratch<B>,
    combine: Combine,
    out: ViewMut<'_, B::Buf>,
) -> DeviceResult {
    let (count, ffn, hidden) = (rows.len(), w.gate.shape.rows, w.down.shape.rows);
    device.matmul_rows(w.gate, x, rows, ViewMut::new(&mut scratch.gate, count, ffn))?;
    device.matmul_rows(w.up, x, rows, ViewMut::new(&mut scratch.up, count, ffn))?;
    if let Some(biases) = &w.biases {
        device.add_bias(biases.gate, ViewMut::new(&mut scratch.gate, count, ffn))?;
        device.add_bias(biases.up, ViewMut::new(&mut scratch.up, count, ffn))?;
    }
    let up = View::new(&scratch.up, count, ffn);
    let gate = ViewMut::new(&mut scratch.gate, count, ffn);
    device.activate(w.activation, up, gate)?;
    device.prepare(View::new(&scratch.gate, count, ffn), &mut scratch.acts)?;
    device.matmul(w.down, &scratch.acts, ViewMut::new(&mut scratch.y, count, hidden))?;
    if let Some(biases) = &w.biases {
        device.add_bias(biases.down, ViewMut::new(&mut scratch.y, count, hidden))?;
    }
    device.scatter_rows(View::new(&scratch.y, count, hidden), rows, combine, out)
}
