//! What a session remembers: key/value blocks of its attention layers, memories of its delta nets.

pub mod delta_state;
pub mod kv_blocks;

use std::sync::Arc;

use fm_kernels::{Backend, backend::DeviceResult};

use delta_state::{DeltaMemories, DeltaPool, DeltaState};
use kv_blocks::{BlockTable, KvPool};

/// One timeline of tokens.
#[derive(Debug)]
pub struct Session<B: Backend> {
    /// Tokens that have been taken in.
    pub(crate) position: u32,
    /// Longest it may become.
    pub(crate) context_max: u32,
    /// Blocks of its keys and values.
    pub(crate) table: BlockTable,
    /// One per delta-net layer; none in a session that is kept.
    pub(crate) delta: DeltaMemories<B>,
    /// The delta nets' memories at an earlier position, to fall back to.
    checkpoint: Checkpoint<B>,
    /// The same at positions that forks may start from, ascending.
    pub(crate) marks: Vec<Mark<B>>,
    /// Those that the step in hand sets on its way, ascending.
    pub(crate) coming: Vec<ComingMark<B>>,
    /// Whether it is set aside: it takes part in no step, and others are forked from it.
    pub(crate) kept: bool,
    /// Whether it is in a batch that rests between two layers: some of its memories are ahead of others.
    pub(crate) swept: bool,
}

/// The delta nets' memories at a position. Keys and values need no copy: falling back forgets the
/// later ones.
#[derive(Debug)]
struct Checkpoint<B: Backend> {
    position: u32,
    /// Anything at position 0, where memories are known to be clear.
    delta: DeltaMemories<B>,
}

/// The same where nobody writes any more: forks have the marks of their origin.
#[derive(Debug)]
pub(crate) struct Mark<B: Backend> {
    pub(crate) position: u32,
    pub(crate) delta: Arc<DeltaMemories<B>>,
}

/// A mark that a step sets when it ends well; each layer writes its own memories.
#[derive(Debug)]
pub(crate) struct ComingMark<B: Backend> {
    pub(crate) position: u32,
    pub(crate) delta: DeltaMemories<B>,
}

impl<B: Backend> Clone for Mark<B> {
    fn clone(&self) -> Self {
        Self { position: self.position, delta: Arc::clone(&self.delta) }
    }
}

impl<B: Backend> Session<B> {
    /// An empty timeline. `delta` are clear; `spare` will hold checkpoints.
    pub(crate) fn new(context_max: u32, delta: DeltaMemories<B>, spare: DeltaMemories<B>) -> Self {
        let table = BlockTable::with_room_for(context_max);
        let checkpoint = Checkpoint { position: 0, delta: spare };
        Self {
            position: 0,
            context_max,
            table,
            delta,
            checkpoint,
            marks: Vec::new(),
            coming: Vec::new(),
            kept: false,
            swept: false,
        }
    }

    /// Remembers the present position as the one to fall back to.
    pub(crate) fn set_checkpoint(&mut self, device: &B) -> DeviceResult {
        self.checkpoint.position = self.position;
        if self.position == 0 {
            return Ok(());
        }
        for (from, to) in self.delta.iter().zip(&mut self.checkpoint.delta) {
            from.copy_to(device, to)?;
        }
        Ok(())
    }

    /// Gives the memory of the checkpoint back.
    pub(crate) fn forget_checkpoint(&mut self, memories: &mut DeltaPool<B>) {
        memories.give(std::mem::take(&mut self.checkpoint.delta));
        self.checkpoint.position = 0;
    }

    /// Goes on to where a step has led it, with the marks that were set on the way.
    pub(crate) fn advance(&mut self, position: u32) {
        self.position = position;
        let set = self.coming.drain(..);
        let set = set.map(|ComingMark { position, delta }| Mark { position, delta: delta.into() });
        self.marks.extend(set);
    }

    /// Gives back the marks that a step would have set.
    fn forget_coming(&mut self, memories: &mut DeltaPool<B>) {
        self.coming.drain(..).for_each(|mark| memories.give(mark.delta));
    }

    /// Gives back the marks that `keep` does not name.
    pub(crate) fn retain_marks(
        &mut self,
        memories: &mut DeltaPool<B>,
        keep: impl Fn(&Mark<B>) -> bool,
    ) {
        let gone = self.marks.extract_if(.., |mark| !keep(mark));
        gone.for_each(|mark| memories.give_shared(mark.delta));
    }

    /// Gives back everything it remembers.
    pub(crate) fn forget(mut self, blocks: &mut KvPool<B>, memories: &mut DeltaPool<B>) {
        blocks.truncate(&mut self.table, 0);
        self.forget_checkpoint(memories);
        self.forget_coming(memories);
        self.retain_marks(memories, |_| false);
        memories.give(self.delta);
    }

    /// Forgets what a failed step left behind: back to where the memories are whole. Without delta
    /// nets that is where the step began.
    pub(crate) fn fall_back(
        &mut self,
        device: &B,
        blocks: &mut KvPool<B>,
        memories: &mut DeltaPool<B>,
    ) -> DeviceResult {
        if self.delta.is_empty() {
            blocks.truncate(&mut self.table, self.position);
            return Ok(());
        }
        self.forget_coming(memories);
        let position = self.checkpoint.position;
        self.position = position;
        self.retain_marks(memories, |mark| mark.position <= position);
        for (from, to) in self.checkpoint.delta.iter().zip(&mut self.delta) {
            if position == 0 {
                to.clear(device)?;
            } else {
                from.copy_to(device, to)?;
            }
        }
        blocks.truncate(&mut self.table, self.position);
        Ok(())
    }

    /// Whether its memories are those of the position where it stands.
    pub(crate) fn is_whole(&self) -> bool {
        !self.kept && !self.swept
    }

    /// The last position up to `position` whose memories are there: a mark, or where it stands.
    pub(crate) fn remembered(&self, position: u32) -> u32 {
        if self.is_whole() && self.position <= position {
            return self.position;
        }
        let marks = self.marks.iter().map(|mark| mark.position);
        marks.filter(|mark| *mark <= position).max().unwrap_or(0)
    }

    /// The memories at a position.
    pub(crate) fn memories(&self, position: u32) -> Option<&[DeltaState<B>]> {
        let mark = self.marks.iter().find(|mark| mark.position == position);
        let live = (self.is_whole() && self.position == position).then_some(&self.delta);
        mark.map(|mark| mark.delta.as_ref()).or(live).map(Vec::as_slice)
    }
}
