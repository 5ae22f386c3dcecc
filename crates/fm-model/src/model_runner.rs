//! The runner of a decoder on a device: sessions, batches, and what happens when an expert is lost.

mod sessions;

use std::{
    io::{Read, Write},
    ops::ControlFlow,
    time::Instant,
};

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend,
    backend::{DeviceResult, Routes, View, ViewMut},
};

use self::sessions::Sessions;
use crate::{
    decoder::{Decoder, DecoderOptions, FfnKind, LayerResult, MixerKind, Workspace},
    experts::{ExpertsLost, RoutedExperts},
    layer::{Segment, StepRows},
    runner::{
        Batch, Loading, Output, Piece, PieceBytes, Progress, Row, RowInput, RunError, Runner,
        Saved, SessionId, Spoiled, SpoiledReason, StepError, StepTimes, Transfer, Wants,
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
    /// Marks that may be set, if there are recurrent memories.
    pub marks_max: usize,
    /// Identifies model and numerics in saved sessions.
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
    step: StepBuffers,
    times: StepTimes,
}

/// What a step needs on the host; reused, so that a steady step allocates nothing.
#[derive(Debug, Default)]
struct StepBuffers {
    ids: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<Segment>,
    /// Rows that go on through the last feed-forward network.
    kept: Vec<usize>,
    /// Sessions, by segment, that have lost an expert.
    lost: Vec<bool>,
    logits: Vec<f32>,
    hidden: Vec<f32>,
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
        Ok(Self {
            workspace: Workspace::new(&device, spec, options.decoder)?,
            sessions: Sessions::new(&device, spec, options)?,
            device,
            experts,
            decoder,
            options,
            step: StepBuffers::default(),
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
        self.take_in(&Batch { rows: (0..rows as u32).map(row).collect(), hidden_layer: None })?;
        self.reserve()?;
        let stream = ViewMut::new(&mut self.workspace.hidden, rows, hidden);
        self.device.write(residual, stream)?;
        self.step.kept.clear();
        self.step.kept.extend(0..rows);
        self.mix(layer.index())?;
        self.feed_forward(layer.index())?;
        let mut out = vec![0.0; residual.len()];
        self.device.read(View::new(&self.workspace.hidden, rows, hidden), &mut out)?;
        Ok(out)
    }

    /// What the router of the latest MoE layer chose for its rows.
    pub fn routes(&self) -> &Routes<B> {
        self.workspace.routes()
    }

    /// Checks the batch against the sessions and cuts it into segments.
    fn take_in(&mut self, batch: &Batch) -> Result<(), StepError> {
        let (rows, max) = (&batch.rows, self.options.decoder.rows_max);
        if rows.len() > max {
            return Err(StepError::TooManyRows { max, found: rows.len() });
        }
        let (found, max) = (
            rows.iter().filter(|row| row.wants.logits).count(),
            self.options.decoder.logits_rows_max,
        );
        if found > max {
            return Err(StepError::TooManyRows { max, found });
        }
        self.step.ids.clear();
        self.step.positions.clear();
        self.step.segments.clear();
        for (i, row) in rows.iter().enumerate() {
            let RowInput::Token(token) = row.input;
            if token as usize >= self.decoder.vocab {
                return Err(StepError::UnknownToken { token, vocab: self.decoder.vocab });
            }
            self.step.ids.push(token);
            self.step.positions.push(row.position);
            self.extend_segments(rows, i)?;
        }
        Ok(())
    }

    fn extend_segments(&mut self, rows: &[Row], i: usize) -> Result<(), StepError> {
        let Row { session, position: found, .. } = rows[i];
        if i > 0 && rows[i - 1].session == session {
            let segment = self.step.segments.last_mut().expect("the row before is in one");
            let expected = segment.position + segment.rows.len() as u32;
            if found != expected {
                return Err(StepError::Position { session, expected, found });
            }
            segment.rows.end = i + 1;
        } else {
            let at = self.sessions.stepped(session);
            let at = at.ok_or(StepError::UnknownSession { session })?;
            // A session that comes twice is one whose rows do not stand side by side.
            let expected = match self.step.segments.iter().find(|s| s.session == at) {
                Some(segment) => segment.position + segment.rows.len() as u32,
                None => self.sessions.list[at].position,
            };
            if found != expected || self.step.segments.iter().any(|s| s.session == at) {
                return Err(StepError::Position { session, expected, found });
            }
            self.step.segments.push(Segment { session: at, rows: i..i + 1, position: found });
        }
        let segment = self.step.segments.last().expect("just made");
        let context_max = self.sessions.list[segment.session].context_max;
        if found >= context_max {
            return Err(StepError::ContextFull { session, context_max });
        }
        Ok(())
    }

    /// Gives every segment its blocks of keys and values.
    fn reserve(&mut self) -> Result<(), StepError> {
        for segment in &self.step.segments {
            let end = segment.position + segment.rows.len() as u32;
            let prepared = self.sessions.prepare(&self.device, segment.session, end);
            if let Err(source) = prepared {
                let session = self.sessions.names[segment.session];
                self.fall_back_all()?;
                return Err(StepError::OutOfBlocks { session, source });
            }
        }
        Ok(())
    }

    fn fall_back_all(&mut self) -> DeviceResult {
        for segment in &self.step.segments {
            self.sessions.fall_back(&self.device, segment.session)?;
        }
        Ok(())
    }

    /// Runs the layers. Marks segments that lose an expert.
    fn sweep(
        &mut self,
        batch: &Batch,
        at_layer: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<ExpertsLost>, StepError> {
        let mut first_loss = None;
        self.step.lost.clear();
        self.step.lost.resize(self.step.segments.len(), false);
        self.step.kept.clear();
        self.step.kept.extend(0..batch.rows.len());
        self.decoder.embed(&self.device, &self.step.ids, &mut self.workspace)?;
        let layers = self.decoder.layers();
        for layer in 0..layers {
            let (mixer, ffn) = self.decoder.kinds(layer);
            let started = Instant::now();
            self.mix(layer)?;
            let mixed = Instant::now();
            *match mixer {
                MixerKind::Attention => &mut self.times.attention,
                MixerKind::DeltaNet => &mut self.times.delta_net,
            } += mixed - started;
            let index = LayerIndex(layer as u16);
            let looks = batch.hidden_layer == Some(index);
            if layer + 1 == layers {
                let wanted = |row: &Row| row.wants.logits || looks && row.wants.hidden;
                self.step.kept.retain(|row| wanted(&batch.rows[*row]));
                self.decoder.keep_rows(&self.device, &self.step.kept, &mut self.workspace)?;
            }
            if let Some(lost) = self.feed_forward(layer)? {
                first_loss.get_or_insert(lost);
            }
            *match ffn {
                FfnKind::Moe => &mut self.times.moe,
                FfnKind::Mlp => &mut self.times.mlp,
            } += mixed.elapsed();
            if looks {
                self.look(batch)?;
            }
            if self.step.lost.iter().all(|lost| *lost) && !self.step.lost.is_empty() {
                break;
            }
            if at_layer(Progress { layer: index, layers: layers as u16 }).is_break() {
                return Err(StepError::Cancelled);
            }
        }
        Ok(first_loss)
    }

    fn mix(&mut self, layer: usize) -> DeviceResult {
        let mut rows = StepRows {
            segments: &self.step.segments,
            positions: &self.step.positions,
            sessions: &mut self.sessions.list,
            pool: &mut self.sessions.pool,
        };
        self.decoder.mix(&self.device, layer, &mut rows, &mut self.workspace)
    }

    fn feed_forward(&mut self, layer: usize) -> Result<Option<ExpertsLost>, StepError> {
        let rows = self.step.kept.len();
        if rows == 0 {
            return Ok(None);
        }
        let (experts, workspace) = (&mut self.experts, &mut self.workspace);
        let result = self.decoder.feed_forward(&self.device, experts, (layer, rows), workspace)?;
        let LayerResult::Lost(lost) = result else { return Ok(None) };
        let routes = self.workspace.routes();
        let mut choices = routes.ids.chunks_exact(routes.top_k);
        for &row in &self.step.kept {
            let chosen = choices.next().expect("every row has its routes");
            if chosen.iter().any(|id| lost.experts.binary_search(id).is_ok()) {
                let segment = self.step.segments.iter().position(|s| s.rows.contains(&row));
                self.step.lost[segment.expect("every row is in a segment")] = true;
            }
        }
        Ok(Some(lost))
    }

    /// Copies the residual stream of the rows that want it.
    fn look(&mut self, batch: &Batch) -> Result<(), StepError> {
        let hidden = self.decoder.hidden;
        for (at, &row) in self.step.kept.iter().enumerate() {
            if batch.rows[row].wants.hidden {
                let start = self.step.hidden.len();
                self.step.hidden.resize(start + hidden, 0.0);
                let stream = View::new(&self.workspace.hidden, at + 1, hidden).rows(at, 1);
                self.device.read(stream, &mut self.step.hidden[start..])?;
            }
        }
        Ok(())
    }

    fn read_logits(&mut self, batch: &Batch) -> Result<(), StepError> {
        // Of the kept rows, those that want logits.
        let kept = &mut self.step.kept;
        let mut at = 0..;
        let before = kept.len();
        kept.retain_mut(|row| {
            let position = at.next().expect("a range without end");
            let wants = batch.rows[*row].wants.logits;
            *row = position;
            wants
        });
        if kept.len() < before {
            self.decoder.keep_rows(&self.device, kept, &mut self.workspace)?;
        }
        let rows = kept.len();
        self.step.logits.resize(rows * self.decoder.vocab, 0.0);
        if rows > 0 {
            let logits = &mut self.step.logits;
            self.decoder.logits(&self.device, rows, &mut self.workspace, logits)?;
        }
        Ok(())
    }

    /// Moves the sessions on, or back where they lost an expert.
    fn settle(
        &mut self,
        batch: &Batch,
        mut first_loss: Option<ExpertsLost>,
    ) -> Result<Vec<Spoiled>, StepError> {
        let mut spoiled = Vec::new();
        for (segment, lost) in self.step.segments.iter().zip(&self.step.lost) {
            if *lost {
                self.sessions.fall_back(&self.device, segment.session)?;
                let reason = match first_loss.take() {
                    Some(lost) => SpoiledReason::Experts(lost),
                    None => SpoiledReason::AsAbove,
                };
                spoiled.push(Spoiled { session: self.sessions.names[segment.session], reason });
                continue;
            }
            let session = &mut self.sessions.list[segment.session];
            session.position = segment.position + segment.rows.len() as u32;
            if batch.rows[segment.rows.end - 1].wants.checkpoint {
                session.set_checkpoint(&self.device)?;
            }
        }
        Ok(spoiled)
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
        at_layer: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Output<'_>, StepError> {
        self.take_in(batch)?;
        self.reserve()?;
        self.step.hidden.clear();
        let swept = self.sweep(batch, at_layer).and_then(|loss| {
            let started = Instant::now();
            self.read_logits(batch)?;
            self.times.head += started.elapsed();
            Ok(loss)
        });
        let first_loss = match swept {
            Ok(loss) => loss,
            Err(error) => {
                self.fall_back_all()?;
                return Err(error);
            }
        };
        let spoiled = self.settle(batch, first_loss)?;
        Ok(Output { logits: &self.step.logits, hidden: &self.step.hidden, spoiled })
    }

    fn times(&self) -> StepTimes {
        self.times
    }

    fn rows_max(&self) -> usize {
        self.options.decoder.rows_max
    }

    fn logits_rows_max(&self) -> usize {
        self.options.decoder.logits_rows_max
    }

    fn vocab(&self) -> usize {
        self.decoder.vocab
    }
}
