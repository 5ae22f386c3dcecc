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

/// Work space, enough for the widest latent-attention layer.
#[derive(Debug)]
pub(crate) struct MlaScratch<B: Backend> {
    /// `[rows, rank]`
    q_a: B::Buf,
    /// `[rows, heads · (nope + rope)]`
    q: B::Buf,
    /// `[rows, latent + rope]`
    key: B::Buf,
    /// `[rows, heads · (latent + rope)]`
    query: B::Buf,
    /// `[rows, heads · latent]`
    read: B::Buf,
    /// `[rows, heads · v_dim]`
    mixed: B::Buf,
    /// `[rows, rank]`, then `[rows, heads · v_dim]`
    acts: B::Acts,
    /// `[rows · heads, nope]`, then `[rows · heads, latent]`
    head_acts: B::Acts,
}

impl MlaSpec {
    /// f32 values per row of [`MlaScratch`], in its order.
    pub(crate) fn scratch_len(&self) -> usize {
        let s = self.shape;
        let (rank, values) = (self.q_rank(), s.heads * s.v_dim);
        let acts = rank.max(values);
        // Every head is a row of its own, which is padded by up to two cache lines.
        let head_acts = s.heads * (s.nope.max(s.latent) + 32);
        let buffers = rank + s.heads * (s.q_dim() + s.key_dim() + s.latent) + s.key_dim() + values;
        buffers + acts + head_acts
    }
}

impl<B: Backend> MlaScratch<B> {
    /// Room for `rows` rows of any of the given layers.
    pub(crate) fn new<'a>(
        device: &B,
        rows: usize,
        layers: &(impl Iterator<Item = &'a MlaSpec> + Clone),
    ) -> DeviceResult<Self> {
        let widest = |of: fn(&MlaShape) -> usize| layers.clone().map(|l| of(&l.shape)).max();
        let widest = |of| rows * widest(of).unwrap_or(0);
        let rank = layers.clone().map(MlaSpec::q_rank).max().unwrap_or(0);
        let values = layers.clone().map(|l| l.shape.heads * l.shape.v_dim).max().unwrap_or(0);
        let heads = layers.clone().map(|l| l.shape.heads).max().unwrap_or(0);
        let head = layers.clone().map(|l| l.shape.nope.max(l.shape.latent)).max().unwrap_or(0);
        Ok(Self {
            q_a: device.alloc(rows * rank)?,
            q: device.alloc(widest(|s| s.heads * s.q_dim()))?,
            key: device.alloc(widest(MlaShape::key_dim))?,
            query: device.alloc(widest(|s| s.heads * s.key_dim()))?,
            read: device.alloc(widest(|s| s.heads * s.latent))?,
            mixed: device.alloc(rows * values)?,
            acts: device.acts(rows, rank.max(values))?,
            head_acts: device.acts(rows * heads, head)?,
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
            k_b: loader.matrix(&spec.k_b)?,
            v_b: loader.matrix(&spec.v_b)?,
            o: loader.linear(&spec.o)?,
            rotation: Rotation::load(loader.device, &spec.rotary)?,
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
        let MlaShape { heads, v_dim, latent, scale, .. } = self.shape;
        let (rows, key_dim) = (step.positions.len(), self.shape.key_dim());
        self.queries(device, step.positions, x, scratch)?;
        self.keys(device, step.positions, x, scratch)?;
        let MlaScratch { key, query, read, mixed, acts, head_acts, .. } = scratch;
        let shape = AttentionShape { heads, kv_heads: 1, k_dim: key_dim, v_dim: latent, scale };
        for segment in step.segments {
            let table = &step.sessions[segment.session].table;
            let (place, keys) = ((self.kv_layer, table), segment.of(key, key_dim));
            step.pool.write(device, place, segment.position, keys, None)?;
            let kv = step.pool.view(self.kv_layer, table);
            let queries = segment.of(query, heads * key_dim);
            let read = segment.of_mut(read, heads * latent);
            device.attention(shape, queries, &kv, segment.position, read)?;
        }
        device.prepare(View::new(&*read, rows * heads, latent), head_acts)?;
        let of_heads = ViewMut::new(&mut *mixed, rows * heads, v_dim);
        device.matmul_heads(self.v_b.view(), heads, head_acts, of_heads)?;
        device.prepare(View::new(&*mixed, rows, heads * v_dim), acts)?;
        self.o.forward(device, acts, out)
    }

    /// Queries as the KV cache is asked: `[k_b q_nope | q_rope]` for every head.
    fn queries(
        &self,
        device: &B,
        positions: &[u32],
        x: &B::Acts,
        scratch: &mut MlaScratch<B>,
    ) -> DeviceResult {
        let MlaShape { heads, nope, rope, latent, .. } = self.shape;
        let (rows, q_dim, key_dim) = (positions.len(), self.shape.q_dim(), self.shape.key_dim());
        let MlaScratch { q_a, q, query, acts, head_acts, .. } = scratch;
        let mut from = x;
        if let Some((q_a_proj, norm)) = &self.q_a {
            let rank = q_a_proj.weight.shape.rows;
            q_a_proj.forward(device, x, ViewMut::new(q_a, rows, rank))?;
            device.rms_norm_heads(ViewMut::new(q_a, rows, rank), norm, self.norm_eps)?;
            device.prepare(View::new(&*q_a, rows, rank), acts)?;
            from = &*acts;
        }
        self.q.forward(device, from, ViewMut::new(q, rows, heads * q_dim))?;
        let rotation = self.rotation.of_heads(q_dim, nope, positions);
        device.rope(&rotation, ViewMut::new(q, rows, heads * q_dim))?;
        // From here on a head is a row.
        let of_heads = |first, cols| View::new(&*q, rows * heads, q_dim).columns(first, cols);
        device.prepare(of_heads(0, nope), head_acts)?;
        let to_latent = ViewMut::new(&mut *query, rows * heads, key_dim).columns(0, latent);
        device.matmul_heads(self.k_b.view(), heads, head_acts, to_latent)?;
        let to_rope = ViewMut::new(query, rows * heads, key_dim).columns(latent, rope);
        device.copy(of_heads(nope, rope), to_rope)
    }

    /// What is kept of every row: `[norm(c) | k_rope]`.
    fn keys(
        &self,
        device: &B,
        positions: &[u32],
        x: &B::Acts,
        scratch: &mut MlaScratch<B>,
    ) -> DeviceResult {
        let (rows, key_dim, latent) = (positions.len(), self.shape.key_dim(), self.shape.latent);
        let key = &mut scratch.key;
        self.kv_a.forward(device, x, ViewMut::new(key, rows, key_dim))?;
        let latents = ViewMut::new(&mut *key, rows, key_dim).columns(0, latent);
        device.rms_norm_heads(latents, &self.kv_a_norm, self.norm_eps)?;
        let rotation = self.rotation.of_heads(key_dim, latent, positions);
        device.rope(&rotation, ViewMut::new(key, rows, key_dim))
    }
}
