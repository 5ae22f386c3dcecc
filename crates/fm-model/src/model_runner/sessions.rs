//! The sessions of a runner: those that are open, and those that are kept for others to continue.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use fm_kernels::{
    Backend,
    backend::{DeviceResult, KV_BLOCK_TOKENS},
};

use super::RunnerOptions;
use crate::{
    runner::{Batch, Loading, Piece, PieceBytes, RunError, Saved, SessionId, Transfer},
    session_file::{self, Head, SessionFileError},
    spec::ModelSpec,
    state::{
        ComingMark, Mark, Session,
        delta_state::{DeltaPool, DeltaState},
        kv_blocks::{KvPool, OutOfBlocks},
    },
};

/// See the module. A session's place in `list` changes when another one is closed, its name does not.
#[derive(Debug)]
pub(super) struct Sessions<B: Backend> {
    pub(super) list: Vec<Session<B>>,
    /// In the order of `list`.
    pub(super) names: Vec<SessionId>,
    pub(super) pool: KvPool<B>,
    memories: DeltaPool<B>,
    next_name: u32,
    options: RunnerOptions,
}

impl<B: Backend> Sessions<B> {
    pub(super) fn new(device: &B, spec: &ModelSpec, options: RunnerOptions) -> DeviceResult<Self> {
        Ok(Self {
            list: Vec::new(),
            names: Vec::new(),
            pool: KvPool::new(device, spec.kv_shapes(), (options.kv_blocks, options.kv_format))?,
            memories: DeltaPool::new(spec.delta_layers().map(|layer| layer.shape).collect()),
            next_name: 0,
            options,
        })
    }

    fn at(&self, session: SessionId) -> Option<usize> {
        self.names.iter().position(|name| *name == session)
    }

    /// The place of a session that may take part in steps.
    pub(super) fn stepped(&self, session: SessionId) -> Option<usize> {
        self.at(session).filter(|at| self.list[*at].is_whole())
    }

    /// The place of a session whose batch rested and goes on.
    pub(super) fn woken(&mut self, session: SessionId) -> usize {
        let at = self.at(session).expect("who is in a batch that rests is not closed");
        self.list[at].swept = false;
        at
    }

    fn find(&self, session: SessionId) -> Result<usize, RunError> {
        self.at(session).ok_or(RunError::UnknownSession { session })
    }

    /// A session that will have taken in `tokens`: if any, its memories are anything, and the caller writes them.
    fn new_session(
        &mut self,
        device: &B,
        (context_max, tokens): (u32, u32),
    ) -> Result<Session<B>, RunError> {
        let max = self.options.sessions_max;
        if self.list.iter().filter(|session| !session.kept).count() >= max {
            return Err(RunError::TooManySessions { max });
        }
        let pool = &mut self.memories;
        let delta = if tokens == 0 { pool.take_clear(device)? } else { pool.take(device)? };
        Ok(Session::new(context_max, delta, pool.take(device)?))
    }

    fn add(&mut self, session: Session<B>) -> SessionId {
        let name = SessionId(self.next_name);
        self.next_name += 1;
        self.names.push(name);
        self.list.push(session);
        name
    }

    pub(super) fn open(&mut self, device: &B, context_max: u32) -> Result<SessionId, RunError> {
        let session = self.new_session(device, (context_max, 0))?;
        Ok(self.add(session))
    }

    pub(super) fn fork(
        &mut self,
        device: &B,
        (from, tokens): (SessionId, u32),
        context_max: u32,
    ) -> Result<SessionId, RunError> {
        let at = self.find(from)?;
        let origin = &self.list[at];
        let remembered = tokens == 0 || self.forks_anywhere() || origin.memories(tokens).is_some();
        if !remembered || tokens > origin.position.min(context_max) {
            return Err(RunError::NotThere { session: from, tokens });
        }
        let mut session = self.new_session(device, (context_max, tokens))?;
        let origin = &self.list[at];
        for (from, to) in origin.memories(tokens).into_iter().flatten().zip(&mut session.delta) {
            from.copy_to(device, to)?;
        }
        self.pool.share(&origin.table, tokens, &mut session.table);
        let marks = origin.marks.iter().filter(|mark| mark.position <= tokens);
        session.marks = marks.cloned().collect();
        session.position = tokens;
        session.set_checkpoint(device)?;
        Ok(self.add(session))
    }

    pub(super) fn forks_anywhere(&self) -> bool {
        self.memories.shapes().is_empty()
    }

    pub(super) fn forkable(&self, session: SessionId, tokens: u32) -> u32 {
        let Some(at) = self.at(session) else { return 0 };
        let session = &self.list[at];
        if self.forks_anywhere() {
            return session.position.min(tokens);
        }
        session.remembered(tokens)
    }

    pub(super) fn mark(&mut self, device: &B, session: SessionId) -> Result<bool, RunError> {
        let at = self.find(session)?;
        let position = self.list[at].position;
        if self.forks_anywhere() || self.list[at].marks.iter().any(|mark| mark.position == position)
        {
            return Ok(true);
        }
        if !self.list[at].is_whole() || self.marks_left() == 0 {
            return Ok(false);
        }
        let mut delta = self.memories.take(device)?;
        for (from, to) in self.list[at].delta.iter().zip(&mut delta) {
            from.copy_to(device, to)?;
        }
        self.list[at].marks.push(Mark { position, delta: Arc::new(delta) });
        Ok(true)
    }

    pub(super) fn unmark(&mut self, session: SessionId, position: u32) {
        if let Some(at) = self.at(session) {
            self.list[at].retain_marks(&mut self.memories, |mark| mark.position != position);
        }
    }

    pub(super) fn marks(&self, session: SessionId) -> Vec<u32> {
        let marks = self.at(session).map(|at| self.list[at].marks.iter());
        marks.into_iter().flatten().map(|mark| mark.position).collect()
    }

    pub(super) fn marks_left(&self) -> usize {
        let marks = self.list.iter().flat_map(|session| &session.marks);
        let mut set: Vec<_> = marks.map(|mark| Arc::as_ptr(&mark.delta)).collect();
        set.sort_unstable();
        set.dedup();
        let coming: usize = self.list.iter().map(|session| session.coming.len()).sum();
        self.options.marks_max.saturating_sub(set.len() + coming)
    }

    pub(super) fn keep(&mut self, session: SessionId) -> Result<(), RunError> {
        let at = self.find(session)?;
        let room = self.marks_left() > 0;
        let session = &mut self.list[at];
        let delta = std::mem::take(&mut session.delta);
        let position = session.position;
        let last = session.marks.last().map_or(0, |mark| mark.position);
        if room && !delta.is_empty() && position > last {
            session.marks.push(Mark { position, delta: Arc::new(delta) });
        } else {
            self.memories.give(delta);
        }
        session.forget_checkpoint(&mut self.memories);
        session.kept = true;
        self.pool.truncate(&mut session.table, position);
        Ok(())
    }

    pub(super) fn blocks_wanted(&self, batch: &Batch) -> usize {
        let segments = batch.rows.chunk_by(|a, b| a.session == b.session);
        let wanted = segments.map(|rows| {
            let Some(at) = self.at(rows[0].session) else { return 0 };
            let end = rows[0].position + rows.len() as u32;
            self.pool.wanted(&self.list[at].table, rows[0].position, end)
        });
        wanted.sum()
    }

    /// Gives a session blocks of its own for the positions up to `end`.
    pub(super) fn prepare(&mut self, device: &B, at: usize, end: u32) -> Result<(), OutOfBlocks> {
        let session = &mut self.list[at];
        self.pool.prepare(device, &mut session.table, session.position, end)
    }

    /// Takes memory for marks that a step is to set at these positions, ascending, as far as it is left.
    pub(super) fn prepare_marks(
        &mut self,
        device: &B,
        at: usize,
        positions: impl Iterator<Item = u32>,
    ) -> DeviceResult {
        if self.forks_anywhere() {
            return Ok(());
        }
        for position in positions.take(self.marks_left()) {
            let delta = self.memories.take(device)?;
            self.list[at].coming.push(ComingMark { position, delta });
        }
        Ok(())
    }

    pub(super) fn fall_back(&mut self, device: &B, at: usize) -> DeviceResult {
        self.list[at].fall_back(device, &mut self.pool, &mut self.memories)
    }

    pub(super) fn close(&mut self, session: SessionId) {
        if let Some(at) = self.at(session) {
            self.names.swap_remove(at);
            let session = self.list.swap_remove(at);
            session.forget(&mut self.pool, &mut self.memories);
        }
    }

    pub(super) fn position(&self, session: SessionId) -> Result<u32, RunError> {
        Ok(self.list[self.find(session)?].position)
    }

    pub(super) fn save(
        &self,
        device: &B,
        session: SessionId,
        to: &mut dyn Write,
    ) -> Result<(), RunError> {
        let session = &self.list[self.find(session)?];
        let (position, memories) = (session.position, self.memories.shapes().len());
        let head = Head { position, memories, marks: session_file::marks(session) };
        head.write(self.options.fingerprint, to).map_err(SessionFileError::from)?;
        let blocks = (0..session.table.blocks().len() as u32).map(Piece::Block);
        let mut transfer = Transfer::default();
        for piece in head.marks.into_iter().map(Piece::Memories).chain(blocks) {
            let of = (session, piece);
            while !session_file::write_part(device, of, &self.pool, &mut transfer, to)? {}
        }
        Ok(())
    }

    pub(super) fn load(
        &mut self,
        device: &B,
        context_max: u32,
        from: &mut dyn Saved,
    ) -> Result<SessionId, RunError> {
        let Head { position, memories, marks } = Head::read(self.options.fingerprint, from)?;
        if memories != self.memories.shapes().len() {
            return Err(SessionFileError::NotASession.into());
        }
        if position > context_max {
            return Err(SessionFileError::TooLong { position, context_max }.into());
        }
        let tokens = if memories == 0 { position } else { marks.last().copied().unwrap_or(0) };
        // The last mark is the one that is loaded.
        Head::skip(marks.len().saturating_sub(1), self.piece_bytes(), from)?;
        let mut loading = self.load_begin(device, (context_max, tokens), None)?;
        while loading.next.is_some() {
            self.load_part(device, &mut loading, from)?;
        }
        Ok(loading.session)
    }

    pub(super) fn piece_bytes(&self) -> PieceBytes {
        let checksum = size_of::<u64>() as u64;
        let parts = (0..self.pool.parts()).map(|part| self.pool.part_bytes(part));
        let memories = self.memories.shapes().iter().map(|shape| DeltaState::<B>::bytes(*shape));
        let of = |bytes: u64| if bytes == 0 { 0 } else { bytes + checksum };
        let part_max = parts.clone().chain(memories.clone().map(|bytes| bytes as usize)).max();
        PieceBytes {
            block: of(parts.sum::<usize>() as u64),
            memories: of(memories.sum()),
            part_max: part_max.unwrap_or(0) + size_of::<u64>(),
        }
    }

    pub(super) fn save_part(
        &self,
        device: &B,
        (session, piece): (SessionId, Piece),
        transfer: &mut Transfer,
        to: &mut dyn Write,
    ) -> Result<bool, RunError> {
        let session = &self.list[self.find(session)?];
        Ok(session_file::write_part(device, (session, piece), &self.pool, transfer, to)?)
    }

    pub(super) fn load_begin(
        &mut self,
        device: &B,
        (context_max, tokens): (u32, u32),
        base: Option<(SessionId, u32)>,
    ) -> Result<Loading, RunError> {
        let (base, shared) = match base {
            Some((base, blocks)) => (Some(self.find(base)?), blocks * KV_BLOCK_TOKENS as u32),
            None => (None, 0),
        };
        if tokens > context_max {
            return Err(SessionFileError::TooLong { position: tokens, context_max }.into());
        }
        if let Some(base) = base
            && shared > self.list[base].position.min(tokens)
        {
            return Err(RunError::NotThere { session: self.names[base], tokens: shared });
        }
        let mut session = self.new_session(device, (context_max, tokens))?;
        if let Some(base) = base {
            self.pool.share(&self.list[base].table, shared, &mut session.table);
        }
        if let Err(error) = self.pool.prepare(device, &mut session.table, shared, tokens) {
            session.forget(&mut self.pool, &mut self.memories);
            return Err(error.into());
        }
        let first = session.table.blocks().get(shared as usize / KV_BLOCK_TOKENS);
        let block = first.map(|_| Piece::Block(shared / KV_BLOCK_TOKENS as u32));
        let memories = (tokens > 0 && !self.forks_anywhere()).then_some(Piece::Memories(tokens));
        let next = memories.or(block);
        let at = self.list.len();
        let session = self.add(session);
        let loading =
            Loading { session, tokens, next, base: shared, transfer: Transfer::default() };
        if next.is_none() {
            self.loaded(device, at, tokens)?;
        }
        Ok(loading)
    }

    pub(super) fn load_part(
        &mut self,
        device: &B,
        loading: &mut Loading,
        from: &mut dyn Read,
    ) -> Result<(), RunError> {
        let at = self.find(loading.session)?;
        let Some(piece) = loading.next else { return Ok(()) };
        let (session, transfer) = (&mut self.list[at], &mut loading.transfer);
        let read =
            session_file::read_part(device, (session, piece), &mut self.pool, transfer, from);
        match read {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => {
                self.close(loading.session);
                return Err(error.into());
            }
        }
        let block = match piece {
            Piece::Memories(_) => loading.base / KV_BLOCK_TOKENS as u32,
            Piece::Block(block) => block + 1,
        };
        let there = (block as usize) < self.list[at].table.blocks().len();
        loading.next = there.then_some(Piece::Block(block));
        if loading.next.is_none() {
            self.loaded(device, at, loading.tokens)?;
        }
        Ok(())
    }

    /// All pieces are there: the session is what it was.
    fn loaded(&mut self, device: &B, at: usize, tokens: u32) -> DeviceResult {
        self.list[at].position = tokens;
        self.list[at].set_checkpoint(device)
    }
}
