//! What a session remembers: key/value blocks of its attention layers, memories of its delta nets.

pub mod delta_state;
pub mod kv_blocks;

use fm_kernels::{Backend, backend::DeviceResult};

use delta_state::DeltaState;
use kv_blocks::{BlockTable, KvPool, OutOfBlocks};

/// One timeline of tokens.
#[derive(Debug)]
pub struct Session<B: Backend> {
    /// Tokens that have been taken in.
    pub(crate) position: u32,
    /// Longest it may become.
    pub(crate) context_max: u32,
    /// Blocks of its keys and values.
    pub(crate) table: BlockTable,
    /// One per delta-net layer.
    pub(crate) delta: Vec<DeltaState<B>>,
    /// The delta nets' memories at an earlier position, to fall back to.
    checkpoint: Checkpoint<B>,
}

/// A position to fall back to. Keys and values need no copy: falling back forgets the later ones.
#[derive(Debug)]
struct Checkpoint<B: Backend> {
    position: u32,
    delta: Vec<DeltaState<B>>,
}

impl<B: Backend> Session<B> {
    /// An empty timeline. `delta` are zeros, and so is `spare`, which holds checkpoints.
    pub(crate) fn new(
        context_max: u32,
        delta: Vec<DeltaState<B>>,
        spare: Vec<DeltaState<B>>,
    ) -> Self {
        let table = BlockTable::with_room_for(context_max);
        let checkpoint = Checkpoint { position: 0, delta: spare };
        Self { position: 0, context_max, table, delta, checkpoint }
    }

    /// Remembers the present position as the one to fall back to.
    pub(crate) fn set_checkpoint(&mut self, device: &B) -> DeviceResult {
        self.checkpoint.position = self.position;
        for (from, to) in self.delta.iter().zip(&mut self.checkpoint.delta) {
            from.copy_to(device, to)?;
        }
        Ok(())
    }

    /// Forgets what a failed step left behind: back to where the memories are whole. Without delta
    /// nets that is where the step began.
    pub(crate) fn fall_back(&mut self, device: &B, pool: &mut KvPool<B>) -> DeviceResult {
        if self.delta.is_empty() {
            pool.truncate(&mut self.table, self.position);
            return Ok(());
        }
        self.position = self.checkpoint.position;
        for (from, to) in self.checkpoint.delta.iter().zip(&mut self.delta) {
            from.copy_to(device, to)?;
        }
        pool.truncate(&mut self.table, self.position);
        Ok(())
    }

    /// Makes `other`, freshly opened, a continuation of this one: shares its blocks, copies its
    /// memories and its checkpoint.
    pub(crate) fn fork_into(
        &self,
        device: &B,
        pool: &mut KvPool<B>,
        other: &mut Self,
    ) -> Result<(), OutOfBlocks> {
        other.position = self.position;
        other.checkpoint.position = self.checkpoint.position;
        pool.share(&self.table, &mut other.table);
        let live = self.delta.iter().zip(&mut other.delta);
        let saved = self.checkpoint.delta.iter().zip(&mut other.checkpoint.delta);
        for (from, to) in live.chain(saved) {
            from.copy_to(device, to)?;
        }
        Ok(())
    }
}
