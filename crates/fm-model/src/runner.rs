//! A loaded model, seen from the engine: sessions by handle, one call per step.

mod border;
mod error;
mod pieces;

use std::{
    io::{Read, Write},
    ops::ControlFlow,
    time::Duration,
};

use fm_format::key::LayerIndex;
use fm_kernels::backend::KvOverflow;

pub use self::{
    border::{Border, Halt, Progress},
    error::{RunError, StepError},
    pieces::{Loading, Piece, PieceBytes, Saved, Transfer},
};
use crate::experts::ExpertsLost;

/// Name of a session inside its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

/// What a row feeds in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowInput {
    /// A token of the vocabulary.
    Token(u32),
}

/// What a row gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "any of them may be wanted with any other")]
pub struct Wants {
    /// The logits after this row.
    pub logits: bool,
    /// The residual stream after [`Batch::hidden_layer`].
    pub hidden: bool,
    /// A position to fall back to, should a later step fail. Only a session's last row in a batch may be one:
    /// memories exist at the end of a step only.
    pub checkpoint: bool,
    /// That forks can continue the session from behind this row, as far as memory is left for marks: see
    /// [`Runner::mark`]. Nothing where they can anyway.
    pub mark: bool,
}

/// One position of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub session: SessionId,
    /// What goes in.
    pub input: RowInput,
    /// Where: the session's next position, then counting up.
    pub position: u32,
    /// What comes out.
    pub wants: Wants,
}

/// Rows that are computed together. Rows of one session stand side by side. Prefill chunks,
/// concurrent sessions and drafted tokens are all the same call.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The rows.
    pub rows: Vec<Row>,
    /// The layer after which [`Wants::hidden`] looks.
    pub hidden_layer: Option<LayerIndex>,
}

/// Which of the batches that may rest between two layers: there is one in each lane, and each goes on
/// while the other rests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Up to [`Runner::rows_max`] rows.
    #[default]
    Long,
    /// Up to [`Runner::short_rows_max`] rows, which overtake.
    Short,
}

/// What a step gave.
#[derive(Debug)]
pub struct Output<'a> {
    /// One row of `vocab` values for every row that wanted logits, in order. Rows of spoiled
    /// sessions are there and mean nothing.
    pub logits: &'a [f32],
    /// One row of `hidden` values for every row that wanted them, in order.
    pub hidden: &'a [f32],
    /// Sessions that cannot go on from here, though the others can.
    pub spoiled: Vec<Spoiled>,
}

/// A session whose step was lost. It has fallen back; [`Runner::position`] says where to.
#[derive(Debug)]
pub struct Spoiled {
    /// The session.
    pub session: SessionId,
    /// Why.
    pub reason: SpoiledReason,
}

/// Why a session's step was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpoiledReason {
    /// Its own rows chose experts that could not be read.
    #[error(transparent)]
    Experts(#[from] ExpertsLost),
    /// Its own rows have a key or a value that cannot be kept.
    #[error("keys and values of layer {} cannot be kept", layer.0)]
    KvOverflow {
        /// The layer.
        layer: LayerIndex,
        /// The first of them.
        source: KvOverflow,
    },
}

/// Time spent in steps, by kind of work. A device that runs behind its caller books the time where
/// the caller waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Attention layers' mixers.
    pub attention: Duration,
    /// Delta-net layers' mixers.
    pub delta_net: Duration,
    /// Feed-forward networks with routed experts, waiting for reads included.
    pub moe: Duration,
    /// Dense feed-forward networks.
    pub mlp: Duration,
    /// Final norm and head.
    pub head: Duration,
}

impl std::ops::Sub for StepTimes {
    type Output = Self;

    /// What was spent between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            attention: self.attention.saturating_sub(earlier.attention),
            delta_net: self.delta_net.saturating_sub(earlier.delta_net),
            moe: self.moe.saturating_sub(earlier.moe),
            mlp: self.mlp.saturating_sub(earlier.mlp),
            head: self.head.saturating_sub(earlier.head),
        }
    }
}

/// A loaded model. Object-safe: backend and family are erased here, once per step.
pub trait Runner: Send {
    /// Opens an empty session of up to `context_max` tokens.
    ///
    /// # Errors
    /// If no memory was planned for another session.
    fn open(&mut self, context_max: u32) -> Result<SessionId, RunError>;

    /// Opens a session that continues the first `tokens` tokens of `from`, with its marks up to there;
    /// blocks of keys and values are shared until one of them writes.
    ///
    /// # Errors
    /// If `from` is not open, [`Runner::forkable`] says something else, or no memory was planned for
    /// another session.
    fn fork(
        &mut self,
        from: SessionId,
        tokens: u32,
        context_max: u32,
    ) -> Result<SessionId, RunError>;

    /// The longest beginning of a session, of `tokens` tokens at most, that a fork can continue: all
    /// of it, unless the model has recurrent memories. Those exist where it stands, and at marks.
    fn forkable(&self, session: SessionId, tokens: u32) -> u32;

    /// Whether a fork can continue any beginning of a session, so that marks are not needed.
    fn forks_anywhere(&self) -> bool;

    /// Lets forks continue a session from where it stands now, also when it has gone on. Says whether
    /// they can: no more marks are set than memory was planned for.
    ///
    /// # Errors
    /// If it is not open.
    fn mark(&mut self, session: SessionId) -> Result<bool, RunError>;

    /// Forgets a mark.
    fn unmark(&mut self, session: SessionId, position: u32);

    /// The marks of a session, ascending.
    fn marks(&self, session: SessionId) -> Vec<u32>;

    /// Marks that memory is left for.
    fn marks_left(&self) -> usize;

    /// Sets a session aside: it takes part in no more steps and does not count as open; others are
    /// forked from it until it is closed. It is marked where it stands, if there is memory for it.
    ///
    /// # Errors
    /// If it is not open.
    fn keep(&mut self, session: SessionId) -> Result<(), RunError>;

    /// Blocks of keys and values that nobody uses.
    fn blocks_free(&self) -> usize;

    /// Blocks of keys and values that a batch would take.
    fn blocks_wanted(&self, batch: &Batch) -> usize;

    /// Forgets a session.
    fn close(&mut self, session: SessionId);

    /// Tokens that a session has taken in.
    ///
    /// # Errors
    /// If it is not open.
    fn position(&self, session: SessionId) -> Result<u32, RunError>;

    /// Writes everything a session remembers, its marks too.
    ///
    /// # Errors
    /// If it is not open or writing fails.
    fn save(&mut self, session: SessionId, to: &mut dyn Write) -> Result<(), RunError>;

    /// Opens a session from what [`Runner::save`] wrote.
    ///
    /// # Errors
    /// If the bytes are damaged, or of another model or other numerics.
    fn load(&mut self, context_max: u32, from: &mut dyn Saved) -> Result<SessionId, RunError>;

    /// What pieces take on disk.
    fn piece_bytes(&self) -> PieceBytes;

    /// Writes the next part of a piece of a session. Says whether that was the last; then `transfer` is
    /// ready for another piece.
    ///
    /// # Errors
    /// If the session does not have it, or writing fails.
    fn save_part(
        &mut self,
        of: (SessionId, Piece),
        transfer: &mut Transfer,
        to: &mut dyn Write,
    ) -> Result<bool, RunError>;

    /// Opens a session that will have `tokens` tokens, of which the first whole blocks, so many, are those of
    /// another session that begins with the same tokens. It is empty until all other pieces are loaded.
    ///
    /// # Errors
    /// If `base` does not have the blocks, or no memory was planned for another session.
    fn load_begin(
        &mut self,
        context_max: u32,
        tokens: u32,
        base: Option<(SessionId, u32)>,
    ) -> Result<Loading, RunError>;

    /// Reads the next part of the piece that [`Loading::next`] names, from its beginning or from where the
    /// part before has ended.
    ///
    /// # Errors
    /// If the bytes are damaged; the session is closed.
    fn load_part(&mut self, loading: &mut Loading, from: &mut dyn Read) -> Result<(), RunError>;

    /// Computes a batch. `at_layer` is called after every layer and may break off, or let sessions leave.
    ///
    /// # Errors
    /// If nothing could be computed; see [`StepError`]. Sessions that are not in the batch are
    /// never touched.
    fn step(
        &mut self,
        batch: &Batch,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<()>,
    ) -> Result<Output<'_>, StepError>;

    /// Begins a batch that may rest between layers: [`Runner::sweep`] computes it. Until it has ended,
    /// those of its sessions that have not left do nothing else and are not to be closed or kept, no other
    /// batch can begin in its lane, and steps of others have at most [`Runner::logits_rows_max`] rows.
    ///
    /// # Errors
    /// As [`Runner::step`]; then nothing has begun.
    fn sweep_begin(&mut self, lane: Lane, batch: &Batch) -> Result<(), StepError>;

    /// Goes on with the batch that [`Runner::sweep_begin`] began in this lane. `at_layer` is called after every layer.
    /// Nothing comes of it where it rests, or where none has begun.
    ///
    /// # Errors
    /// As [`Runner::step`]; then the batch has ended.
    fn sweep(
        &mut self,
        lane: Lane,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<Halt>,
    ) -> Result<Option<Output<'_>>, StepError>;

    /// Where the time of all steps so far went.
    fn times(&self) -> StepTimes;

    /// Rows of a batch.
    fn rows_max(&self) -> usize;

    /// Rows of a batch in [`Lane::Short`]; 0 if no room was planned for any.
    fn short_rows_max(&self) -> usize;

    /// Rows of a batch whose logits may be wanted.
    fn logits_rows_max(&self) -> usize;

    /// Values of a row of logits.
    fn vocab(&self) -> usize;
}
