//! Multi-head latent attention: keys and values of all heads are projections of one short vector per
//! token, and only that vector is kept.
//!
//! ```text
//! [q_nope | q_rope] ← q x per head          [c | k_rope] ← kv_a x, shared by all heads
//! c ← norm(c)                               q_rope, k_rope are rotated
//! score = scale · ( q_nope · (k_b c) + q_rope · k_rope )
//! out   = o [ v_b Σ softmax(score) c ]
//! ```
//!
//! The matrices of a head move to the other side of the products: `q_nope · (W c) = (Wᵀ q_nope) · c`
//! and `Σ p (V c) = V (Σ p c)`. All heads then attend to the same keys `[c | k_rope]` and the same
//! values `c`, which are what the KV cache holds: `latent + rope` values per token and layer.
//!
//! Cost per query row, head and token before it: `2 · latent + rope` multiply-adds, where keys and
//! values in full would take `nope + rope + v_dim`, and `heads` times the memory and more.
//!
//! Source: DeepSeek-AI, *DeepSeek-V2*, 2024, arXiv:2405.04434, section 2.1.

use std::ops::Range;

use fm_kernels::{
    Backend,
    backend::{AttentionShape, DeviceResult, View, ViewMut},
};

use crate::{
    error::LoadError,
    load::{Linear, Loader, Matrix},
    spec::{MlaShape, MlaSpec},
};

use super::{StepRows, rotation::Rotation};

/// See the module.
#[derive(Debug)]
pub(crate) struct Mla<B: Backend> {
    shape: MlaShape,
    /// Which of the model's layers with a KV cache this is.
    kv_layer: usize,
    /// Projection and norm of compressed queries.
    q_a: Option<(Linear<B>, B::Buf)>,
    q: Linear<B>,
    kv_a: Linear<B>,
    kv_a_norm: B::Buf,
    k_b: Matrix<B>,
    v_b: Matrix<B>,
    o: Linear<B>,
    rotation: Rotation<B>,
    norm_eps: f32,
}

/// Rows whose heads are worked on at once: what they take is hundreds of times a row of the residual
/// stream, and more rows would decode no weight less often.
pub(crate) const MLA_ROWS_MAX: usize = 96;

/// Work space, enough for the widest latent-attention layer.
#[derive(Debug)]
pub(crate) struct MlaScratch<B: Backend> {
    /// `[rows, latent + rope]`
    key: B::Buf,
    /// `[rows, rank]`
    q_a: B::Buf,
    /// `[rows, heads · (nope + rope)]` where queries are not compressed.
    q_of_all: B::Buf,
    /// `[MLA_ROWS_MAX, heads · (nope + rope)]`
    q: B::Buf,
    /// `[MLA_ROWS_MAX, heads · (latent + rope)]`
    query: B::Buf,
    /// `[MLA_ROWS_MAX, heads · latent]`
    read: B::Buf,
    /// `[MLA_ROWS_MAX, heads · v_dim]`
    mixed: B::Buf,
    /// `[MLA_ROWS_MAX, rank]`, then `[MLA_ROWS_MAX, heads · v_dim]`
    acts: B::Acts,
    /// `[MLA_ROWS_MAX · heads, nope]`, then `[MLA_ROWS_MAX · heads, latent]`
    head_acts: B::Acts,
}

impl MlaSpec {
    /// f32 values of [`MlaScratch`] for every row of a batch.
    pub(crate) fn scratch_row(&self) -> usize {
        let direct = if self.q_a.is_none() { self.shape.heads * self.shape.q_dim() } else { 0 };
        self.shape.key_dim() + self.q_rank() + direct
    }

    /// Names of the matrices that see no more than [`MLA_ROWS_MAX`] rows.
    pub(crate) fn of_few_rows(&self) -> impl Iterator<Item = &str> {
        let q = self.q_a.as_ref().map(|_| &self.q.weight);
        [&self.k_b, &self.v_b].into_iter().chain(q).map(|matrix| matrix.name.as_str())
    }

    /// f32 values for each of up to [`MLA_ROWS_MAX`] rows, with results in weight-row order.
    pub(crate) fn scratch_head_row(&self) -> usize {
        let s = self.shape;
        let values = s.heads * s.v_dim;
        let compressed = if self.q_a.is_some() { s.heads * s.q_dim() } else { 0 };
        // Every head is a row of its own, which is padded by up to two cache lines.
        let acts = self.q_rank().max(values) + 32 + s.heads * (s.nope.max(s.latent) + 32);
        let widest = s.heads * s.latent.max(s.q_dim()).max(s.v_dim);
        compressed + s.heads * (s.key_dim() + s.latent) + values + acts + widest
    }
}

impl<B: Backend> MlaScratch<B> {
    /// Room for `rows` rows of any of the given layers.
    pub(crate) fn new<'a>(
        device: &B,
        rows: usize,
        layers: &(impl Iterator<Item = &'a MlaSpec> + Clone),
    ) -> DeviceResult<Self> {
        let widest = |of: fn(&MlaSpec) -> usize| layers.clone().map(of).max().unwrap_or(0);
        let at_once = rows.min(MLA_ROWS_MAX);
        let rank = widest(MlaSpec::q_rank);
        let values = widest(|l| l.shape.heads * l.shape.v_dim);
        let head = widest(|l| l.shape.nope.max(l.shape.latent));
        let queries = |l: &MlaSpec| l.shape.heads * l.shape.q_dim();
        let direct = layers.clone().filter(|l| l.q_a.is_none()).map(queries).max().unwrap_or(0);
        let compressed = layers.clone().filter(|l| l.q_a.is_some()).map(queries).max();
        Ok(Self {
            key: device.alloc(rows * widest(|l| l.shape.key_dim()))?,
            q_a: device.alloc(rows * rank)?,
            q_of_all: device.alloc(rows * direct)?,
            q: device.alloc(at_once * compressed.unwrap_or(0))?,
            query: device.alloc(at_once * widest(|l| l.shape.heads * l.shape.key_dim()))?,
            read: device.alloc(at_once * widest(|l| l.shape.heads * l.shape.latent))?,
            mixed: device.alloc(at_once * values)?,
            acts: device.acts(at_once, rank.max(values))?,
            head_acts: device.float_acts(at_once * widest(|l| l.shape.heads), head)?,
        })
    }
}

impl<B: Backend> Mla<B> {
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        spec: &MlaSpec,
        kv_layer: usize,
        norm_eps: f32,
    ) -> Result<Self, LoadError> {
        let q_a = spec.q_a.as_ref().map(|q_a| {
            Ok::<_, LoadError>((loader.linear(&q_a.projection)?, loader.vector(&q_a.norm)?))
        });
        Ok(Self {
            shape: spec.shape,
            kv_layer,
            q_a: q_a.transpose()?,
            q: loader.linear(&spec.q)?,
            kv_a: loader.linear(&spec.kv_a)?,
            kv_a_norm: loader.vector(&spec.kv_a_norm)?,
            k_b: loader.exact(&spec.k_b)?,
            v_b: loader.exact(&spec.v_b)?,
            o: loader.linear(&spec.o)?,
            rotation: Rotation::load(loader.device(), &spec.rotary)?,
            norm_eps,
        })
    }

    /// See the module, for prepared rows `x`; advances what is kept.
    pub(crate) fn forward(
        &self,
        device: &B,
        step: &mut StepRows<'_, B>,
        x: &B::Acts,
        scratch: &mut MlaScratch<B>,
        out: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let ViewMut { buf, offset, rows, cols, stride } = out;
        self.keep(device, step, x, &mut scratch.key)?;
        if let Some((q_a_proj, norm)) = &self.q_a {
            let rank = q_a_proj.weight.shape.rows;
            q_a_proj.forward(device, x, ViewMut::new(&mut scratch.q_a, rows, rank))?;
            let short = ViewMut::new(&mut scratch.q_a, rows, rank);
            device.rms_norm_heads(short, norm, self.norm_eps)?;
        } else {
            let queries = self.shape.heads * self.shape.q_dim();
            self.q.forward(device, x, ViewMut::new(&mut scratch.q_of_all, rows, queries))?;
        }
        for first in (0..rows).step_by(MLA_ROWS_MAX) {
            let piece = first..rows.min(first + MLA_ROWS_MAX);
            self.ask(device, &step.positions[piece.clone()], first, scratch)?;
            self.attend(device, step, piece.clone(), scratch)?;
            let (rows, offset) = (piece.len(), offset + first * stride);
            let out = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
            self.o.forward(device, &scratch.acts, out)?;
        }
        Ok(())
    }

    /// Keeps `[norm(c) | k_rope]` of every row.
    fn keep(
        &self,
        device: &B,
        step: &mut StepRows<'_, B>,
        x: &B::Acts,
        key: &mut B::Buf,
    ) -> DeviceResult {
        let (rows, latent, key_dim) =
            (step.positions.len(), self.shape.latent, self.shape.key_dim());
        self.kv_a.forward(device, x, ViewMut::new(key, rows, key_dim))?;
        let latents = ViewMut::new(&mut *key, rows, key_dim).columns(0, latent);
        device.rms_norm_heads(latents, &self.kv_a_norm, self.norm_eps)?;
        let rotation = self.rotation.of_heads(key_dim, latent, step.positions);
        device.rope(&rotation, ViewMut::new(key, rows, key_dim))?;
        for (at, segment) in step.segments.iter().enumerate() {
            step.keep(device, (self.kv_layer, at), segment.of(key, key_dim), None)?;
        }
        Ok(())
    }

    /// Queries of the rows from `first` on as the KV cache is asked: `[k_b q_nope | q_rope]` for
    /// every head.
    fn ask(
        &self,
        device: &B,
        positions: &[u32],
        first: usize,
        scratch: &mut MlaScratch<B>,
    ) -> DeviceResult {
        let MlaShape { heads, nope, rope, latent, .. } = self.shape;
        let (rows, q_dim, key_dim) = (positions.len(), self.shape.q_dim(), self.shape.key_dim());
        let MlaScratch { q_a, q, q_of_all, query, acts, head_acts, .. } = scratch;
        let (q, first) = if let Some((q_a_proj, _)) = &self.q_a {
            let rank = q_a_proj.weight.shape.rows;
            device.prepare(View::new(&*q_a, first + rows, rank).rows(first, rows), acts)?;
            self.q.forward(device, acts, ViewMut::new(q, rows, heads * q_dim))?;
            (q, 0)
        } else {
            (q_of_all, first)
        };
        let rotation = self.rotation.of_heads(q_dim, nope, positions);
        device.rope(&rotation, ViewMut::new(q, first + rows, heads * q_dim).rows(first, rows))?;
        // From here on a head is a row.
        let of_heads = |from, cols| {
            let all = View::new(&*q, (first + rows) * heads, q_dim);
            all.rows(first * heads, rows * heads).columns(from, cols)
        };
        device.prepare(of_heads(0, nope), head_acts)?;
        let to_latent = ViewMut::new(&mut *query, rows * heads, key_dim).columns(0, latent);
        device.matmul_heads(self.k_b.view(), heads, head_acts, to_latent)?;
        let to_rope = ViewMut::new(query, rows * heads, key_dim).columns(latent, rope);
        device.copy(of_heads(nope, rope), to_rope)
    }

    /// What the heads of some rows read, as values, prepared for the last projection.
    fn attend(
        &self,
        device: &B,
        step: &StepRows<'_, B>,
        piece: Range<usize>,
        scratch: &mut MlaScratch<B>,
    ) -> DeviceResult {
        let MlaShape { heads, v_dim, latent, scale, .. } = self.shape;
        let (rows, key_dim) = (piece.len(), self.shape.key_dim());
        let MlaScratch { query, read, mixed, acts, head_acts, .. } = scratch;
        let window = None;
        let shape =
            AttentionShape { heads, kv_heads: 1, k_dim: key_dim, v_dim: latent, scale, window };
        for segment in step.segments {
            let from = segment.rows.start.max(piece.start);
            let count = segment.rows.end.min(piece.end).saturating_sub(from);
            if count == 0 {
                continue;
            }
            let position = segment.position + (from - segment.rows.start) as u32;
            let at = from - piece.start;
            let kv = step.pool.view(self.kv_layer, &step.sessions[segment.session].table);
            let queries = View::new(&*query, rows, heads * key_dim).rows(at, count);
            let read = ViewMut::new(&mut *read, rows, heads * latent).rows(at, count);
            device.attention(shape, queries, &kv, position, read)?;
        }
        device.prepare(View::new(&*read, rows * heads, latent), head_acts)?;
        let of_heads = ViewMut::new(&mut *mixed, rows * heads, v_dim);
        device.matmul_heads(self.v_b.view(), heads, head_acts, of_heads)?;
        device.prepare(View::new(&*mixed, rows, heads * v_dim), acts)
    }
}
