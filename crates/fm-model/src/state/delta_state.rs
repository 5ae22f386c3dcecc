//! Memory of one delta-net layer in one session, and the pool that sessions take theirs from.

use std::sync::Arc;

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

    /// As if it had seen nothing.
    pub(crate) fn clear(&mut self, device: &B) -> DeviceResult {
        let (history, memory) = (self.shape.history_len(), self.shape.memory_len());
        device.zero(ViewMut::new(&mut self.history, 1, history))?;
        device.zero(ViewMut::new(&mut self.memory, 1, memory))
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

/// Memories of all delta-net layers at one position of a session.
pub(crate) type DeltaMemories<B> = Vec<DeltaState<B>>;

/// What sessions, their checkpoints and marks take their memories from and give them back to.
///
/// A session of a large hybrid has 77 to 380 MB of them. From the system they come page by page when
/// they are first written: of 77 MB that is 20 ms where memory is free and 100 where it has to be found;
/// those that a session has had are there already. There are never more than were in use at once, because
/// everybody takes from here first, and of sessions and marks there are as many as the plan says.
#[derive(Debug)]
pub(crate) struct DeltaPool<B: Backend> {
    shapes: Vec<DeltaShape>,
    free: Vec<DeltaMemories<B>>,
}

impl<B: Backend> DeltaPool<B> {
    /// A pool of memories of these shapes, one per delta-net layer.
    pub(crate) fn new(shapes: Vec<DeltaShape>) -> Self {
        Self { shapes, free: Vec::new() }
    }

    /// One per delta-net layer.
    pub(crate) fn shapes(&self) -> &[DeltaShape] {
        &self.shapes
    }

    /// Memories that have seen nothing.
    pub(crate) fn take_clear(&mut self, device: &B) -> DeviceResult<DeltaMemories<B>> {
        let Some(mut memories) = self.free.pop() else { return self.allocate(device) };
        memories.iter_mut().try_for_each(|state| state.clear(device))?;
        Ok(memories)
    }

    /// Memories for someone who overwrites them: they may have seen anything.
    pub(crate) fn take(&mut self, device: &B) -> DeviceResult<DeltaMemories<B>> {
        self.free.pop().map_or_else(|| self.allocate(device), Ok)
    }

    fn allocate(&self, device: &B) -> DeviceResult<DeltaMemories<B>> {
        self.shapes.iter().map(|shape| DeltaState::new(device, *shape)).collect()
    }

    /// Takes back what nobody reads any more.
    pub(crate) fn give(&mut self, memories: DeltaMemories<B>) {
        if !memories.is_empty() {
            self.free.push(memories);
        }
    }

    /// The same of memories that others may have, too: the last one gives them back.
    pub(crate) fn give_shared(&mut self, memories: Arc<DeltaMemories<B>>) {
        Arc::into_inner(memories).into_iter().for_each(|memories| self.give(memories));
    }
}

#[cfg(test)]
mod tests {
    use fm_kernels::{backend::HeadOrder, reference::Reference};

    use super::*;

    fn pool() -> (Reference, DeltaPool<Reference>) {
        let head_order = HeadOrder::Grouped;
        let shape = DeltaShape {
            key_heads: 1,
            value_heads: 2,
            head_order,
            k_dim: 3,
            v_dim: 5,
            conv_taps: 4,
        };
        (Reference::open(), DeltaPool::new(vec![shape; 2]))
    }

    #[test]
    fn memories_come_back_and_are_clear_where_that_is_asked_for() {
        let (device, mut pool) = pool();
        let mut memories = pool.take(&device).unwrap();
        let there = memories[1].memory.as_ptr();
        let seen: Vec<f32> = (1..=memories[1].len()).map(|i| i as f32).collect();
        memories.iter_mut().for_each(|state| state.write(&device, &seen).unwrap());
        pool.give(memories);

        let memories = pool.take_clear(&device).unwrap();
        assert_eq!(memories[1].memory.as_ptr(), there, "nothing new is asked of the system");
        let mut values = Vec::new();
        for state in &memories {
            state.read(&device, &mut values).unwrap();
            assert!(values.iter().all(|value| *value == 0.0), "{values:?}");
        }
        assert!(pool.free.is_empty());
    }

    #[test]
    fn the_last_of_those_who_share_memories_gives_them_back() {
        let (device, mut pool) = pool();
        let memories = Arc::new(pool.take(&device).unwrap());
        pool.give_shared(Arc::clone(&memories));
        assert!(pool.free.is_empty(), "somebody still reads them");
        pool.give_shared(memories);
        assert_eq!(pool.free.len(), 1);
    }
}
