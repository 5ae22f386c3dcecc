//! A batch on its way through the layers. It may rest between two of them, while others pass.
//!
//! Between layers a batch is its residual stream, what became of its rows so far, and the memories of
//! its sessions, which nobody else touches. So one that rests keeps its stream, and everything else of
//! the workspace is free. Others have a stream of their own then: batches of the short lane always, and
//! steps of sessions that write while a batch of the long one rests, as long as each needs it.

use std::{ops::ControlFlow, time::Instant};

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend,
    backend::{DeviceResult, View},
};

use super::ModelRunner;
use crate::{
    decoder::{FfnKind, LayerResult, MixerKind, Workspace},
    experts::RoutedExperts,
    layer::{Segment, StepRows},
    runner::{
        Batch, Border, Halt, Lane, Progress, Row, RowInput, SessionId, Spoiled, SpoiledReason,
        StepError,
    },
};

/// What a batch needs on the host; reused, so that a steady step allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Rows that its residual stream has room for.
    rows_max: usize,
    pub(super) batch: Batch,
    /// The layer that comes next.
    next: usize,
    /// Whether it waits there.
    pub(super) rests: bool,
    ids: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) segments: Vec<Segment>,
    /// Rows that go on through the last feed-forward network.
    pub(super) kept: Vec<usize>,
    /// Which sessions are spoiled, by segment, and what spoiled them first.
    pub(super) spoiled: Vec<Option<SpoiledReason>>,
    /// Sessions that go no further than the layer that has just been computed.
    pub(super) leavers: Vec<SessionId>,
    pub(super) hidden: Vec<f32>,
}

impl Sweep {
    pub(super) fn with_room(rows_max: usize) -> Self {
        Self { rows_max, ..Self::default() }
    }
}

/// Room beside the workspace's for a batch and its residual stream.
#[derive(Debug)]
pub(super) struct Room<B: Backend> {
    pub(super) step: Sweep,
    /// The residual stream, `[rows_max, hidden]`.
    hidden: B::Buf,
}

impl<B: Backend> Room<B> {
    pub(super) fn new(device: &B, rows_max: usize, hidden: usize) -> DeviceResult<Self> {
        let hidden = device.alloc(rows_max * hidden)?;
        Ok(Self { step: Sweep::with_room(rows_max), hidden })
    }

    /// Takes this batch in hand; again, the other one is.
    pub(super) fn swap(&mut self, step: &mut Sweep, workspace: &mut Workspace<B>) {
        std::mem::swap(step, &mut self.step);
        std::mem::swap(&mut workspace.hidden, &mut self.hidden);
    }
}

impl<B: Backend, E: RoutedExperts<B>> ModelRunner<B, E> {
    /// Takes the batch of a lane in hand; again, gives it back.
    pub(super) fn swap_lane(&mut self, lane: Lane) {
        match lane {
            Lane::Long => {}
            Lane::Short => self.short.swap(&mut self.step, &mut self.workspace),
        }
    }

    /// Nobody touches the sessions of the batch in hand until it goes on.
    pub(super) fn rest(&mut self) {
        self.step.rests = true;
        for segment in &self.step.segments {
            self.sessions.list[segment.session].swept = true;
        }
    }

    /// Takes up the batch that rests. Sessions may have other places by now.
    pub(super) fn wake(&mut self) {
        self.step.rests = false;
        let Sweep { segments, batch, .. } = &mut self.step;
        for segment in segments {
            let session = batch.rows[segment.rows.start].session;
            segment.session = self.sessions.woken(session);
        }
    }

    /// Takes a batch in, up to its first layer.
    pub(super) fn begin(&mut self, batch: &Batch) -> Result<(), StepError> {
        self.take_in(batch)?;
        self.reserve(batch)?;
        self.step.batch.rows.clone_from(&batch.rows);
        self.step.batch.hidden_layer = batch.hidden_layer;
        self.step.hidden.clear();
        self.step.leavers.clear();
        self.step.next = 0;
        self.step.kept.clear();
        self.step.kept.extend(0..batch.rows.len());
        let embedded = self.decoder.embed(&self.device, &self.step.ids, &mut self.workspace);
        if embedded.is_err() {
            self.fall_back_all()?;
        }
        Ok(embedded?)
    }

    /// Computes the layers that are left, and who was lost. Nothing comes of it if it rests before the end.
    pub(super) fn go_on(
        &mut self,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<Halt>,
    ) -> Result<Option<Vec<Spoiled>>, StepError> {
        let swept = self.sweep_layers(at_layer).and_then(|ended| {
            let started = Instant::now();
            if ended {
                self.read_logits()?;
                self.times.head += started.elapsed();
            }
            Ok(ended)
        });
        match swept {
            Ok(true) => self.settle().map(Some),
            Ok(false) => Ok(None),
            Err(error) => {
                self.fall_back_all()?;
                Err(error)
            }
        }
    }

    /// Checks the batch against the sessions and cuts it into segments.
    pub(super) fn take_in(&mut self, batch: &Batch) -> Result<(), StepError> {
        let (rows, max) = (&batch.rows, self.step.rows_max);
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
        self.step.spoiled.clear();
        self.step.spoiled.resize_with(self.step.segments.len(), || None);
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
            if rows[i - 1].wants.checkpoint {
                return Err(StepError::CheckpointWithin { session, position: expected - 1 });
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

    /// Gives every segment its blocks of keys and values, and room for the marks that its rows want.
    pub(super) fn reserve(&mut self, batch: &Batch) -> Result<(), StepError> {
        for segment in &self.step.segments {
            let end = segment.position + segment.rows.len() as u32;
            let prepared = self.sessions.prepare(&self.device, segment.session, end);
            if let Err(source) = prepared {
                let session = self.sessions.names[segment.session];
                self.fall_back_all()?;
                return Err(StepError::OutOfBlocks { session, source });
            }
            let rows = batch.rows[segment.rows.clone()].iter().filter(|row| row.wants.mark);
            let ends = rows.map(|row| row.position + 1);
            if let Err(error) = self.sessions.prepare_marks(&self.device, segment.session, ends) {
                self.fall_back_all()?;
                return Err(error.into());
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

    /// Runs the layers that are left; says whether none is. Marks segments that are spoiled, and does
    /// without those that leave.
    fn sweep_layers(
        &mut self,
        at_layer: &mut dyn FnMut(&mut Border<'_>) -> ControlFlow<Halt>,
    ) -> Result<bool, StepError> {
        let layers = self.decoder.layers();
        while self.step.next < layers {
            let layer = self.step.next;
            self.step.next += 1;
            self.layer(layer)?;
            let spoiled = &self.step.spoiled;
            if spoiled.iter().all(Option::is_some) && !spoiled.is_empty() {
                self.step.next = layers;
                break;
            }
            let progress = Progress { layer: LayerIndex(layer as u16), layers: layers as u16 };
            let border = &mut Border { progress, leavers: &mut self.step.leavers };
            let flow = at_layer(border);
            self.drop_leavers()?;
            match flow {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Halt::Rest) => return Ok(false),
                ControlFlow::Break(Halt::Cancel) => return Err(StepError::Cancelled),
            }
        }
        Ok(true)
    }

    fn layer(&mut self, layer: usize) -> Result<(), StepError> {
        let (mixer, ffn) = self.decoder.kinds(layer);
        let started = Instant::now();
        self.mix(layer)?;
        let mixed = Instant::now();
        *match mixer {
            MixerKind::Attention => &mut self.times.attention,
            MixerKind::DeltaNet => &mut self.times.delta_net,
        } += mixed - started;
        let looks = self.step.batch.hidden_layer == Some(LayerIndex(layer as u16));
        if layer + 1 == self.decoder.layers() {
            let Sweep { kept, batch, .. } = &mut self.step;
            let wanted = |row: &Row| row.wants.logits || looks && row.wants.hidden;
            kept.retain(|row| wanted(&batch.rows[*row]));
            self.decoder.keep_rows(&self.device, &self.step.kept, &mut self.workspace)?;
        }
        self.feed_forward(layer)?;
        *match ffn {
            FfnKind::Moe => &mut self.times.moe,
            FfnKind::Mlp => &mut self.times.mlp,
        } += mixed.elapsed();
        if looks { self.look() } else { Ok(()) }
    }

    pub(super) fn mix(&mut self, layer: usize) -> DeviceResult {
        let mut rows = StepRows {
            segments: &self.step.segments,
            positions: &self.step.positions,
            sessions: &mut self.sessions.list,
            pool: &mut self.sessions.pool,
            layer: LayerIndex(layer as u16),
            spoiled: &mut self.step.spoiled,
        };
        self.decoder.mix(&self.device, layer, &mut rows, &mut self.workspace)
    }

    pub(super) fn feed_forward(&mut self, layer: usize) -> DeviceResult {
        let rows = self.step.kept.len();
        if rows == 0 {
            return Ok(());
        }
        let (experts, workspace) = (&mut self.experts, &mut self.workspace);
        let result = self.decoder.feed_forward(&self.device, experts, (layer, rows), workspace)?;
        let LayerResult::Lost(lost) = result else { return Ok(()) };
        let routes = self.workspace.routes();
        let Sweep { kept, segments, spoiled, .. } = &mut self.step;
        let fine = segments.iter().zip(spoiled).filter(|(_, spoiled)| spoiled.is_none());
        for (segment, spoiled) in fine {
            let choices = kept.iter().zip(routes.ids.chunks_exact(routes.top_k));
            let own = choices.filter(|(row, _)| segment.rows.contains(row));
            let chosen: Vec<_> = own.flat_map(|(_, chosen)| chosen).copied().collect();
            *spoiled = lost.among(&chosen).map(SpoiledReason::Experts);
        }
        Ok(())
    }

    /// Copies the residual stream of the rows that want it.
    fn look(&mut self) -> Result<(), StepError> {
        let hidden = self.decoder.hidden;
        for (at, &row) in self.step.kept.iter().enumerate() {
            if self.step.batch.rows[row].wants.hidden {
                let start = self.step.hidden.len();
                self.step.hidden.resize(start + hidden, 0.0);
                let stream = View::new(&self.workspace.hidden, at + 1, hidden).rows(at, 1);
                self.device.read(stream, &mut self.step.hidden[start..])?;
            }
        }
        Ok(())
    }

    fn read_logits(&mut self) -> Result<(), StepError> {
        // Of the kept rows, those that want logits.
        let Sweep { kept, batch, .. } = &mut self.step;
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
        self.logits.resize(rows * self.decoder.vocab, 0.0);
        if rows > 0 {
            let logits = &mut self.logits;
            self.decoder.logits(&self.device, rows, &mut self.workspace, logits)?;
        }
        Ok(())
    }

    /// Moves the sessions on, or back where they are spoiled.
    fn settle(&mut self) -> Result<Vec<Spoiled>, StepError> {
        let mut spoiled = Vec::new();
        for (segment, reason) in self.step.segments.iter().zip(&mut self.step.spoiled) {
            if let Some(reason) = reason.take() {
                self.sessions.fall_back(&self.device, segment.session)?;
                spoiled.push(Spoiled { session: self.sessions.names[segment.session], reason });
                continue;
            }
            let session = &mut self.sessions.list[segment.session];
            session.advance(segment.position + segment.rows.len() as u32);
            if self.step.batch.rows[segment.rows.end - 1].wants.checkpoint {
                session.set_checkpoint(&self.device)?;
            }
        }
        Ok(spoiled)
    }
}
