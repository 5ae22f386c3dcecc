//! The gated feed-forward network of dense layers and shared experts.

use fm_kernels::{
    Backend,
    backend::{Activation, DeviceResult, ExpertScratch, Product, View, ViewMut},
};

use crate::{
    error::LoadError,
    load::{Loader, Matrix},
    spec::MlpSpec,
};

/// `down(activation(gate x, up x))`. Source: Shazeer, 2020, arXiv:2002.05202.
#[derive(Debug)]
pub(crate) struct Mlp<B: Backend> {
    gate: Matrix<B>,
    up: Matrix<B>,
    down: Matrix<B>,
    activation: Activation,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, spec: &MlpSpec) -> Result<Self, LoadError> {
        Ok(Self {
            gate: loader.matrix(&spec.gate)?,
            up: loader.matrix(&spec.up)?,
            down: loader.matrix(&spec.down)?,
            activation: spec.activation,
        })
    }

    /// `out` is `[rows, hidden]`.
    pub(crate) fn forward(
        &self,
        device: &B,
        x: &B::Acts,
        scratch: &mut ExpertScratch<B>,
        out: ViewMut<'_, B::Buf>,
    ) -> DeviceResult {
        let (rows, ffn) = (out.rows, self.gate.shape.rows);
        let each = [
            Product { w: self.gate.view(), y: ViewMut::new(&mut scratch.gate, rows, ffn) },
            Product { w: self.up.view(), y: ViewMut::new(&mut scratch.up, rows, ffn) },
        ];
        device.matmul_each(x, each)?;
        let up = View::new(&scratch.up, rows, ffn);
        device.activate(self.activation, up, ViewMut::new(&mut scratch.gate, rows, ffn))?;
        device.prepare(View::new(&scratch.gate, rows, ffn), &mut scratch.acts)?;
        device.matmul(self.down.view(), &scratch.acts, out)
    }
}
