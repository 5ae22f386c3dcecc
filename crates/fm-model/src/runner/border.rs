//! The border between two layers: how far a batch is, who of it goes no further, and whether it goes on.

use fm_format::key::LayerIndex;

use super::SessionId;

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The layer that has just been computed.
    pub layer: LayerIndex,
    /// Layers of the model.
    pub layers: u16,
}

/// Where a batch stands between two layers, and who of it goes no further.
#[derive(Debug)]
pub struct Border<'a> {
    /// How far it is.
    pub progress: Progress,
    pub(crate) leavers: &'a mut Vec<SessionId>,
}

impl Border<'_> {
    /// The rows of this session are wanted no more: the layers that are left do without them, and nothing
    /// of what they wanted is in the [`Output`](super::Output). The session falls back, as if the batch
    /// had been broken off. If all leave, that is what happens.
    pub fn leave(&mut self, session: SessionId) {
        self.leavers.push(session);
    }
}

/// Why a batch does not go on after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It keeps its place, and goes on later.
    Rest,
    /// Nobody wants it any more.
    Cancel,
}
