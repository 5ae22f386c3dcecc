//! Gated delta net: linear attention with a recurrent memory.

use fm_kernels::{
    Backend,
    backend::{DeltaInputs, DeltaShape, DeviceResult, Product, View, ViewMut},
};

use crate::{
    error::LoadError,
    load::{Loader, Matrix},
    spec::DeltaNetSpec,
    state::{Session, delta_state::DeltaState},
};

use super::{Segment, StepRows};

/// See the module. Source: Yang, Kautz, Hatamizadeh, 2024, arXiv:2412.06464.
#[derive(Debug)]
pub(crate) struct DeltaNet<B: Backend> {
    shape: DeltaShape,
    /// Which of the model's delta-net layers this is.
    delta_layer: usize,
    qkv: Matrix<B>,
    z: Matrix<B>,
    b: Matrix<B>,
    a: Matrix<B>,
    conv: B::Buf,
    neg_a: B::Buf,
    dt_bias: B::Buf,
    norm: B::Buf,
    out: Matrix<B>,
    norm_eps: f32,
}

/// Work space, enough for the widest delta-net layer.
#[derive(Debug)]
pub(crate) struct DeltaScratch<B: Backend> {
    qkv: B::Buf,
    z: B::Buf,
    a: B::Buf,
    b: B::Buf,
    read: B::Buf,
    acts: B::Acts,
}

impl<B: Backend> DeltaScratch<B> {
    /// Room for `rows` rows of any of the given shapes.
    pub(crate) fn new(
        device: &B,
        rows: usize,
        shapes: impl Iterator<Item = DeltaShape> + Clone,
    ) -> DeviceResult<Self> {
        let channels = shapes.clone().map(|s| s.channels()).max().unwrap_or(0);
        let heads = shapes.clone().map(|s| s.value_heads).max().unwrap_or(0);
        let values = shapes.map(|s| s.value_heads * s.v_dim).max().unwrap_or(0);
        Ok(Self {
            qkv: device.alloc(rows * channels)?,
            z: device.alloc(rows * values)?,
            a: device.alloc(rows * heads)?,
            b: device.alloc(rows * heads)?,
            read: device.alloc(rows * values)?,
            acts: device.acts(rows, values)?,
        })
    }
}

impl<B: Backend> DeltaNet<B> {
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        spec: &DeltaNetSpec,
        delta_layer: usize,
        norm_eps: f32,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            shape: spec.shape,
            delta_layer,
            qkv: loader.matrix(&spec.qkv)?,
            z: loader.matrix(&spec.z)?,
            b: loader.exact(&spec.b)?,
            a: loader.exact(&spec.a)?,
            conv: loader.vector(&spec.conv)?,
            neg_a: loader.vector(&spec.neg_a)?,
            dt_bias: loader.vector(&spec.dt_bias)?,
            norm: loader.vector(&spec.norm)?,
            out: loader.matrix(&spec.out)?,
            norm_eps,
        })
    }

    /// `out = out_proj(norm(read) · silu(z))` for prepared rows `x`; advances the memories.
    pub(crate) fn forward(
        &self,
        device: &B,
        step: &mut StepRows<'_, B>,
        x: &B::Acts,
        scratch: &mut DeltaScratch<B>,
        out: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let rows = step.positions.len();
        let (channels, heads) = (self.shape.channels(), self.shape.value_heads);
        let values = heads * self.shape.v_dim;
        let DeltaScratch { qkv, z, a, b, .. } = &mut *scratch;
        let wide = [
            Product { w: self.qkv.view(), y: ViewMut::new(qkv, rows, channels) },
            Product { w: self.z.view(), y: ViewMut::new(z, rows, values) },
        ];
        device.matmul_each(x, wide)?;
        device.matmul(self.a.view(), x, ViewMut::new(a, rows, heads))?;
        device.matmul(self.b.view(), x, ViewMut::new(b, rows, heads))?;
        for segment in step.segments {
            self.pass_marks(device, segment, &mut step.sessions[segment.session], scratch)?;
        }
        let DeltaScratch { z, read, acts, .. } = scratch;
        let gate = View::new(&*z, rows, values);
        let heads = ViewMut::new(&mut *read, rows, values);
        device.gated_norm_heads(heads, gate, &self.norm, self.norm_eps)?;
        device.prepare(View::new(&*read, rows, values), acts)?;
        device.matmul(self.out.view(), acts, out)
    }

    /// Advances a session's memories, of which those are copied that marks are to have.
    fn pass_marks(
        &self,
        device: &B,
        segment: &Segment,
        session: &mut Session<B>,
        scratch: &mut DeltaScratch<B>,
    ) -> DeviceResult {
        let state = &mut session.delta[self.delta_layer];
        let mut from = segment.position;
        for mark in &mut session.coming {
            self.advance(device, &segment.part(from..mark.position), state, scratch)?;
            state.copy_to(device, &mut mark.delta[self.delta_layer])?;
            from = mark.position;
        }
        let end = segment.position + segment.rows.len() as u32;
        if from == end {
            return Ok(());
        }
        self.advance(device, &segment.part(from..end), state, scratch)
    }

    /// Takes rows into the memories of a layer and reads what they find.
    fn advance(
        &self,
        device: &B,
        segment: &Segment,
        state: &mut DeltaState<B>,
        DeltaScratch { qkv, a, b, read, .. }: &mut DeltaScratch<B>,
    ) -> DeviceResult {
        let (channels, heads) = (self.shape.channels(), self.shape.value_heads);
        device.causal_conv(&self.conv, &mut state.history, segment.of_mut(qkv, channels))?;
        let inputs = DeltaInputs {
            qkv: segment.of_mut(qkv, channels),
            a: segment.of(a, heads),
            b: segment.of(b, heads),
            neg_a: &self.neg_a,
            dt_bias: &self.dt_bias,
        };
        let read = segment.of_mut(read, heads * self.shape.v_dim);
        device.delta_net(self.shape, inputs, &mut state.memory, read)
    }
}
