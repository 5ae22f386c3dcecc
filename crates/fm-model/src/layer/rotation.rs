//! The rotary embedding of a layer, on a device.

use fm_kernels::{
    Backend,
    backend::{DeviceResult, Rope, RopeLayout},
};

use crate::spec::Rotary;

/// Frequencies on a device, and what else every rotation of a layer has in common.
#[derive(Debug)]
pub(super) struct Rotation<B: Backend> {
    inv_freq: B::Buf,
    pairs: usize,
    layout: RopeLayout,
    amplitude: f32,
}

impl<B: Backend> Rotation<B> {
    pub(super) fn load(device: &B, rotary: &Rotary) -> DeviceResult<Self> {
        Ok(Self {
            inv_freq: device.upload(&rotary.inv_freq())?,
            pairs: rotary.pairs(),
            layout: rotary.layout,
            amplitude: rotary.amplitude(),
        })
    }

    /// The rotation of heads of `head_dim` values, of which the first rotated one is `start`.
    pub(super) fn of_heads<'a>(
        &'a self,
        head_dim: usize,
        start: usize,
        positions: &'a [u32],
    ) -> Rope<'a, B::Buf> {
        let Self { inv_freq, pairs, layout, amplitude } = self;
        Rope {
            head_dim,
            start,
            pairs: *pairs,
            layout: *layout,
            inv_freq,
            amplitude: *amplitude,
            positions,
        }
    }
}
