//! Sessions on disk, in pieces that others share.

use std::io::{Read, Seek};

use fm_kernels::backend::KV_BLOCK_TOKENS;
use xxhash_rust::xxh3::Xxh3Default;

use super::SessionId;

/// Where a saved session is read from.
pub trait Saved: Read + Seek {}

impl<T: Read + Seek> Saved for T {}

/// A piece of a session on disk. Sessions that begin with the same tokens have the same blocks there, and
/// the same memories, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// The recurrent memories at a mark.
    Memories(u32),
    /// A block of keys and values, by its place in the session.
    Block(u32),
}

/// What pieces take on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PieceBytes {
    /// A block of keys and values; 0 if the model has none.
    pub block: u64,
    /// The memories at a mark; 0 if the model has none.
    pub memories: u64,
    /// The most that [`Runner::save_part`](super::Runner::save_part) writes.
    pub part_max: usize,
}

impl PieceBytes {
    /// What one of them takes.
    pub fn of(self, piece: Piece) -> u64 {
        match piece {
            Piece::Memories(_) => self.memories,
            Piece::Block(_) => self.block,
        }
    }

    /// Blocks of a session with so many tokens.
    pub fn blocks(self, tokens: u32) -> u32 {
        if self.block == 0 { 0 } else { tokens.div_ceil(KV_BLOCK_TOKENS as u32) }
    }
}

/// How far a piece is on its way: it moves in parts, a layer's at a time, so that nobody waits for long.
#[derive(Default)]
pub struct Transfer {
    pub(crate) part: usize,
    pub(crate) hash: Xxh3Default,
    /// Of memories.
    pub(crate) values: Vec<f32>,
    /// Of blocks.
    pub(crate) bytes: Vec<u8>,
}

impl Transfer {
    /// Forgets a piece that was given up half way; the memory of its parts is kept for others.
    pub fn restart(&mut self) {
        self.part = 0;
        self.hash = Xxh3Default::default();
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("part", &self.part).finish_non_exhaustive()
    }
}

/// A saved session on its way into memory.
#[derive(Debug)]
pub struct Loading {
    /// What it will be.
    pub session: SessionId,
    /// Tokens that it will have.
    pub tokens: u32,
    pub(crate) next: Option<Piece>,
    /// Tokens whose blocks are those of another session.
    pub(crate) base: u32,
    pub(crate) transfer: Transfer,
}

impl Loading {
    /// The piece that comes next; nothing once the session is there.
    pub fn next(&self) -> Option<Piece> {
        self.next
    }
}
