//! Softmax attention with grouped key/value heads, head norms, rotary positions and, in some
//! families, a sigmoid gate on the output.

use fm_kernels::{
    Backend,
    backend::{AttentionShape, DeviceResult, KvView, View, ViewMut},
};

use crate::{
    error::LoadError,
    load::{Linear, Loader},
    spec::AttentionSpec,
};

use super::{StepRows, rotation::Rotation};

/// See the module.
#[derive(Debug)]
pub(crate) struct Attention<B: Backend> {
    shape: AttentionShape,
    /// Which of the model's attention layers this is.
    kv_layer: usize,
    q: Linear<B>,
    gate: Option<Linear<B>>,
    k: Linear<B>,
    v: Linear<B>,
    o: Linear<B>,
    sinks: Option<B::Buf>,
    q_norm: Option<B::Buf>,
    k_norm: Option<B::Buf>,
    rotation: Rotation<B>,
    norm_eps: f32,
}

/// Work space, enough for the widest attention layer.
#[derive(Debug)]
pub(crate) struct AttentionScratch<B: Backend> {
    q: B::Buf,
    gate: B::Buf,
    k: B::Buf,
    v: B::Buf,
    mixed: B::Buf,
    acts: B::Acts,
}

impl<B: Backend> AttentionScratch<B> {
    /// Room for `rows` rows of any of the given layers.
    pub(crate) fn new<'a>(
        device: &B,
        rows: usize,
        layers: &(impl Iterator<Item = &'a AttentionSpec> + Clone),
    ) -> DeviceResult<Self> {
        let widest = |of: fn(&AttentionShape) -> usize| layers.clone().map(|l| of(&l.shape)).max();
        let q = widest(|s| s.heads * s.k_dim).unwrap_or(0);
        let mixed = widest(|s| s.heads * s.v_dim).unwrap_or(0);
        let k = widest(|s| s.kv_heads * s.k_dim).unwrap_or(0);
        let v = widest(|s| s.kv_heads * s.v_dim).unwrap_or(0);
        Ok(Self {
            q: device.alloc(rows * q)?,
            gate: device.alloc(rows * mixed)?,
            k: device.alloc(rows * k)?,
            v: device.alloc(rows * v)?,
            mixed: device.alloc(rows * mixed)?,
            acts: device.acts(rows, mixed)?,
        })
    }
}

impl<B: Backend> Attention<B> {
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        spec: &AttentionSpec,
        kv_layer: usize,
        norm_eps: f32,
    ) -> Result<Self, LoadError> {
        let vector = |v: &Option<_>| v.as_ref().map(|v| loader.vector(v)).transpose();
        Ok(Self {
            shape: spec.shape,
            kv_layer,
            q: loader.linear(&spec.q)?,
            gate: spec.gate.as_ref().map(|gate| loader.linear(gate)).transpose()?,
            k: loader.linear(&spec.k)?,
            v: loader.linear(&spec.v)?,
            o: loader.linear(&spec.o)?,
            sinks: vector(&spec.sinks)?,
            q_norm: vector(&spec.q_norm)?,
            k_norm: vector(&spec.k_norm)?,
            rotation: Rotation::load(loader.device(), &spec.rotary)?,
            norm_eps,
        })
    }

    /// `out = o(gate · attend(q, k, v))` for prepared rows `x`; advances keys and values.
    pub(crate) fn forward(
        &self,
        device: &B,
        step: &mut StepRows<'_, B>,
        x: &B::Acts,
        scratch: &mut AttentionScratch<B>,
        out: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let rows = step.positions.len();
        let AttentionShape { heads, kv_heads, k_dim, v_dim, .. } = self.shape;
        let AttentionScratch { q, gate, k, v, mixed, acts } = scratch;
        let each = [
            (&self.q, ViewMut::new(q, rows, heads * k_dim)),
            (&self.k, ViewMut::new(k, rows, kv_heads * k_dim)),
            (&self.v, ViewMut::new(v, rows, kv_heads * v_dim)),
        ];
        Linear::forward_each(device, x, each)?;
        self.place(
            device,
            step.positions,
            self.q_norm.as_ref(),
            ViewMut::new(q, rows, heads * k_dim),
        )?;
        self.place(
            device,
            step.positions,
            self.k_norm.as_ref(),
            ViewMut::new(k, rows, kv_heads * k_dim),
        )?;
        for (at, segment) in step.segments.iter().enumerate() {
            let keys = segment.of(k, kv_heads * k_dim);
            let values = segment.of(v, kv_heads * v_dim);
            step.keep(device, (self.kv_layer, at), keys, Some(values))?;
            let table = &step.sessions[segment.session].table;
            let sinks = self.sinks.as_ref();
            let kv = KvView { sinks, ..step.pool.view(self.kv_layer, table) };
            let queries = segment.of(q, heads * k_dim);
            let mixed = segment.of_mut(mixed, heads * v_dim);
            device.attention(self.shape, queries, &kv, segment.position, mixed)?;
        }
        if let Some(gate_proj) = &self.gate {
            gate_proj.forward(device, x, ViewMut::new(gate, rows, heads * v_dim))?;
            let gate = View::new(&*gate, rows, heads * v_dim);
            device.sigmoid_mul(gate, ViewMut::new(mixed, rows, heads * v_dim))?;
        }
        device.prepare(View::new(&*mixed, rows, heads * v_dim), acts)?;
        self.o.forward(device, acts, out)
    }

    /// Norm and rotation of query or key heads.
    fn place(
        &self,
        device: &B,
        positions: &[u32],
        norm: Option<&B::Buf>,
        x: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let ViewMut { buf, offset, rows, cols, stride } = x;
        if let Some(weight) = norm {
            let x = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
            device.rms_norm_heads(x, weight, self.norm_eps)?;
        }
        let rope = self.rotation.of_heads(self.shape.k_dim, 0, positions);
        device.rope(&rope, ViewMut { buf, offset, rows, cols, stride })
    }
}
