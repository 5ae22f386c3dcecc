//! Memory of one delta-net layer in one session.

use fm_kernels::{
    Backend,
    backend::{DeltaShape, DeviceResult, View, ViewMut},
};

/// Convolution history and recurrent memory. Always f32: quantised memories drift.
#[derive(Debug)]
pub struct DeltaState<B: Backend> {
    /// `[conv_taps - 1, channels]`, oldest first.
    pub(crate) history: B::Buf,
    /// `[value_heads, v_dim, k_dim]`.
    pub(crate) memory: B::Buf,
    shape: DeltaShape,
}

impl<B: Backend> DeltaState<B> {
    /// A layer that has seen nothing.
    pub(crate) fn new(device: &B, shape: DeltaShape) -> DeviceResult<Self> {
        let history = device.alloc(shape.history_len())?;
        Ok(Self { history, memory: device.alloc(shape.memory_len())?, shape })
    }

    /// Bytes on the device.
    pub fn bytes(shape: DeltaShape) -> u64 {
        4 * (shape.history_len() + shape.memory_len()) as u64
    }

    /// `to = self`.
    pub(crate) fn copy_to(&self, device: &B, to: &mut Self) -> DeviceResult {
        let (history, memory) = (self.shape.history_len(), self.shape.memory_len());
        let from = View::new(&self.history, 1, history);
        device.copy(from, ViewMut::new(&mut to.history, 1, history))?;
        let from = View::new(&self.memory, 1, memory);
        device.copy(from, ViewMut::new(&mut to.memory, 1, memory))
    }

    /// Everything as host values: history, then memory.
    pub(crate) fn read(&self, device: &B, out: &mut Vec<f32>) -> DeviceResult {
        out.resize(self.shape.history_len() + self.shape.memory_len(), 0.0);
        let (history, memory) = out.split_at_mut(self.shape.history_len());
        if !history.is_empty() {
            device.read(View::new(&self.history, 1, history.len()), history)?;
        }
        device.read(View::new(&self.memory, 1, memory.len()), memory)
    }

    /// The counterpart of [`DeltaState::read`].
    pub(crate) fn write(&mut self, device: &B, values: &[f32]) -> DeviceResult {
        let (history, memory) = values.split_at(self.shape.history_len());
        if !history.is_empty() {
            device.write(history, ViewMut::new(&mut self.history, 1, history.len()))?;
        }
        device.write(memory, ViewMut::new(&mut self.memory, 1, memory.len()))
    }

    /// Number of f32 values of [`DeltaState::read`].
    pub(crate) fn len(&self) -> usize {
        self.shape.history_len() + self.shape.memory_len()
    }
}
