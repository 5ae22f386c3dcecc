//! The runner of a decoder on a device: sessions, batches, and what happens when an expert is lost.

mod leave;
mod sessions;
mod sweep;

use std::{
    io::{Read, Write},
    ops::ControlFlow,
};

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend,
    backend::{DeviceResult, KvFormat, Routes, View, ViewMut},
};

use self::{
    sessions::Sessions,
    sweep::{Hand, Pass, Room},
};
use crate::{
    decoder::{Decoder, DecoderOptions, Workspace},
    experts::RoutedExperts,
    runner::{
        Batch, Border, Halt, Lane, Loading, Output, Piece, PieceBytes, Row, RowInput, RunError,
        Runner, Saved, SessionId, StepError, StepTimes, Transfer, Wants,
    },
    spec::ModelSpec,
};

/// What the memory plan allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerOptions {
    /// Size of a step.
    pub decoder: DecoderOptions,
    /// Sessions that may be open at once.
    pub sessions_max: usize,
    /// Blocks of keys and values for all of them, and for those that are kept.
    pub kv_blocks: usize,
    /// What they are kept in.
    pub kv_format: KvFormat,
    /// Marks that may be set, if there are recurrent memories.
    pub marks_max: usize,
    /// Identifies model, numerics and format of keys and values in saved sessions.
    pub fingerprint: u128,
}

/// See the module.
#[derive(Debug)]
pub struct ModelRunner<B: Backend, E> {
    device: B,
    experts: E,
    decoder: Decoder<B>,
    workspace: Workspace<B>,
    sessions: Sessions<B>,
    options: RunnerOptions,
    /// The batch in hand: that of the long lane, where no other one is taken.
    pass: Pass,
    /// For steps while the long lane's batch rests.
    aside: Room<B>,
    short: Room<B>,
    logits: Vec<f32>,
    times: StepTimes,
}

impl<B: Backend, E: RoutedExperts<B>> ModelRunner<B, E> {
    /// Puts a loaded decoder and its experts to work.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(
        device: B,
        decoder: Decoder<B>,
        experts: E,
        spec: &ModelSpec,
        options: RunnerOptions,
    ) -> DeviceResult<Self> {
        let DecoderOptions { rows_max, logits_rows_max, short_rows_max, .. } = options.decoder;
        Ok(Self {
            workspace: Workspace::new(&device, spec, options.decoder)?,
            aside: Room::new(&device, logits_rows_max.min(rows_max), spec.hidden)?,
            short: Room::new(&device, short_rows_max.min(rows_max), spec.hidden)?,
            sessions: Sessions::new(&device, spec, options)?,
            device,
            experts,
            decoder,
            options,
            pass: Pass::with_room(rows_max),
            logits: Vec::new(),
            times: StepTimes::default(),
        })
    }

    /// The experts, for their statistics.
    pub fn experts(&self) -> &E {
        &self.experts
    }

    /// The experts, to be changed.
    pub fn experts_mut(&mut self) -> &mut E {
        &mut self.experts
    }

    /// Runs one layer alone on a given residual stream, `[rows, hidden]`, from the first position
    /// of an empty session on, and returns the stream after it: teacher forcing, for comparisons
    /// with recorded activations. The routes it chose are in [`ModelRunner::routes`].
    ///
    /// # Errors
    /// As [`Runner::step`].
    ///
    /// # Panics
    /// If the session is spoiled.
    pub fn layer_alone(
        &mut self,
        session: SessionId,
        layer: LayerIndex,
        residual: &[f32],
    ) -> Result<Vec<f32>, StepError> {
        let hidden = self.decoder.hidden;
        let rows = residual.len() / hidden;
        let row = |position| Row {
            session,
            input: RowInput::Token(0),
            position,
            wants: Wants::default(),
        };
        let batch = Batch { rows: (0..rows as u32).map(row).collect(), hidden_layer: None };
        self.take_in(&batch)?;
        self.reserve(&batch)?;
        let stream = ViewMut::new(&mut self.workspace.hidden, rows, hidden);
        self.device.write(residual, stream)?;
        self.pass.kept.clear();
        self.pass.kept.extend(0..rows);
        self.mix(layer.index())?;
        self.feed_forward(layer.index())?;
        assert!(matches!(self.pass.spoiled[..], [None]), "spoiled: {:?}", self.pass.spoiled);
        let mut out = vec![0.0; residual.len()];
        self.device.read(View::new(&self.workspace.hidden, rows, hidden), &mut out)?;
        Ok(out)
    }

    /// What the router of the latest MoE layer chose for its rows.
    pub fn routes(&self) -> &Routes<B> {
        self.workspace.routes()
    }
}

impl<B: Backend, E: RoutedExperts<B>> Runner for ModelRunner<B, E> {
    fn open(&mut self, context_max: u32) -> Result<SessionId, RunError> {
        self.sessions.open(&self.device, context_max)
    }

    fn fork(
        &mut self,
        from: SessionId,
        tokens: u32,
        context_max: u32,
    ) -> Result<SessionId, RunError> {
        self.sessions.fork(&self.device, (from, tokens), context_max)
    }

    fn forkable(&self, session: SessionId, tokens: u32) -> u32 {
        self.sessions.forkable(session, tokens)
    }

    fn forks_anywhere(&self) -> bool {
        self.sessions.forks_anywhere()
    }

    fn mark(&mut self, session: SessionId) -> Result<bool, RunError> {
        self.sessions.mark(&self.device, session)
    }

    fn unmark(&mut self, session: SessionId, position: u32) {
        self.sessions.unmark(session, position);
    }

    fn marks(&self, session: SessionId) -> Vec<u32> {
        self.sessions.marks(session)
    }

    fn marks_left(&self) -> usize {
        self.sessions.marks_left()
    }

    fn keep(&mut self, session: SessionId) -> Result<(), RunError> {
        self.sessions.keep(session)
    }

    fn blocks_free(&self) -> usize {
        self.sessions.pool.free_blocks()
    }

    fn blocks_wanted(&self, batch: &Batch) -> usize {
        self.sessions.blocks_wanted(batch)
    }

    fn close(&mut self, session: SessionId) {
        self.sessions.close(session);
    }

    fn position(&self, session: SessionId) -> Result<u32, RunError> {
        self.sessions.position(session)
    }

    fn save(&mut self, session: SessionId, to: &mut dyn Write) -> Result<(), RunError> {
        self.sessions.save(&self.device, session, to)
    }

    fn load(&mut self, context_max: u32, from: &mut dyn Saved) -> Result<SessionId, RunError> {
        self.sessions.load(&self.device, context_max, from)
    }

    fn piece_bytes(&self) -> PieceBytes {
        self.sessions.piece_bytes()
    }

    fn save_part(
        &mut self,
        of: (SessionId, Piece),
        transfer: &mut Transfer,
        to: &mut dyn Write,
    ) -> Result<bool, RunError> {
        self.sessions.save_part(&self.device, of, transfer, to)
    }

    fn load_begin(
        &mut self,
        context_max: u32,
        tokens: u32,
        base: Option<(SessionId, u32)>,
    ) -> Result<Loading, RunError> {
        self.sessions.load_begin(&self.device, (context_max, tokens), base)
    }

    fn load_part(&mut self, loading: &mut Loading, from: &mut dyn Read) -> Result<(), RunError> {
        self.sessions.load_part(&self.device, loading, from)
    }

    fn step(
        &mut self,
        batch: &Batch,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<()>,
    ) -> Result<Output<'_>, StepError> {
        let hand = if self.pass.rests { Hand::Aside } else { Hand::Lane(Lane::Long) };
        let cancel = &mut |border: &mut Border<'_>| at_layer(border).map_break(|()| Halt::Cancel);
        let swept =
            self.in_hand(hand, |runner| runner.begin(batch).and_then(|()| runner.go_on(cancel)));
        let spoiled = swept?.expect("nobody let it rest");
        Ok(Output { logits: &self.logits, hidden: &self.pass_of(hand).hidden, spoiled })
    }

    fn sweep_begin(&mut self, lane: Lane, batch: &Batch) -> Result<(), StepError> {
        self.in_hand(Hand::Lane(lane), |runner| {
            if runner.pass.rests {
                return Err(StepError::SweepRests);
            }
            runner.begin(batch)?;
            runner.rest();
            Ok(())
        })
    }

    fn sweep(
        &mut self,
        lane: Lane,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<Halt>,
    ) -> Result<Option<Output<'_>>, StepError> {
        let hand = Hand::Lane(lane);
        let swept: Result<_, StepError> = self.in_hand(hand, |runner| {
            if !runner.pass.rests {
                return Ok(None);
            }
            runner.wake();
            let swept = runner.go_on(at_layer)?;
            if swept.is_none() {
                runner.rest();
            }
            Ok(swept)
        });
        let Some(spoiled) = swept? else { return Ok(None) };
        Ok(Some(Output { logits: &self.logits, hidden: &self.pass_of(hand).hidden, spoiled }))
    }

    fn times(&self) -> StepTimes {
        self.times
    }

    fn rows_max(&self) -> usize {
        self.options.decoder.rows_max
    }

    fn short_rows_max(&self) -> usize {
        self.options.decoder.short_rows_max.min(self.rows_max())
    }

    fn logits_rows_max(&self) -> usize {
        self.options.decoder.logits_rows_max
    }

    fn vocab(&self) -> usize {
        self.decoder.vocab
    }
}
