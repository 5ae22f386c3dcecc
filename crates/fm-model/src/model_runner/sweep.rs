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
pub(super) struct Pass {
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

impl Pass {
    pub(super) fn with_room(rows_max: usize) -> Self {
        Self { rows_max, ..Self::default() }
    }
}

/// Which batch is worked on.
#[derive(Clone, Copy)]
pub(super) enum Hand {
    /// That of a lane, which may rest.
    Lane(Lane),
    /// One that does not, beside them.
    Aside,
}

/// Room beside the workspace's for a batch and its residual stream.
#[derive(Debug)]
pub(super) struct Room<B: Backend> {
    pub(super) pass: Pass,
    /// The residual stream, `[rows_max, hidden]`.
    hidden: B::Buf,
}

impl<B: Backend> Room<B> {
    pub(super) fn new(device: &B, rows_max: usize, hidden: usize) -> DeviceResult<Self> {
        let hidden = device.alloc(rows_max * hidden)?;
        Ok(Self { pass: Pass::with_room(rows_max), hidden })
    }

    /// Takes this batch in hand; again, the other one is.
    fn swap(&mut self, pass: &mut Pass, workspace: &mut Workspace<B>) {
        std::mem::swap(pass, &mut self.pass);
        std::mem::swap(&mut workspace.hidden, &mut self.hidden);
    }
}

impl<B: Backend, E: RoutedExperts<B>> ModelRunner<B, E> {
    /// Works on one of the batches, which is the one in hand meanwhile.
    pub(super) fn in_hand<T>(&mut self, hand: Hand, work: impl FnOnce(&mut Self) -> T) -> T {
        self.swap(hand);
        let done = work(self);
        self.swap(hand);
        done
    }

    /// What came of it.
    pub(super) fn pass_of(&self, hand: Hand) -> &Pass {
        match hand {
            Hand::Lane(Lane::Long) => &self.pass,
            Hand::Lane(Lane::Short) => &self.short.pass,
            Hand::Aside => &self.aside.pass,
        }
    }

    fn swap(&mut self, hand: Hand) {
        match hand {
            // It is the one in hand while there is no other.
            Hand::Lane(Lane::Long) => {}
            Hand::Lane(Lane::Short) => self.short.swap(&mut self.pass, &mut self.workspace),
            Hand::Aside => self.aside.swap(&mut self.pass, &mut self.workspace),
        }
    }

    /// Nobody touches the sessions of the batch in hand until it goes on.
    pub(super) fn rest(&mut self) {
        self.pass.rests = true;
        for segment in &self.pass.segments {
            self.sessions.list[segment.session].swept = true;
        }
    }

    /// Takes up the batch that rests. Sessions may have other places by now.
    pub(super) fn wake(&mut self) {
        self.pass.rests = false;
        let Pass { segments, batch, .. } = &mut self.pass;
        for segment in segments {
            let session = batch.rows[segment.rows.start].session;
            segment.session = self.sessions.woken(session);
        }
    }

    /// Takes a batch in, up to its first layer.
    pub(super) fn begin(&mut self, batch: &Batch) -> Result<(), StepError> {
        self.take_in(batch)?;
        self.reserve(batch)?;
        self.pass.batch.rows.clone_from(&batch.rows);
        self.pass.batch.hidden_layer = batch.hidden_layer;
        self.pass.hidden.clear();
        self.pass.leavers.clear();
        self.pass.next = 0;
        self.pass.kept.clear();
        self.pass.kept.extend(0..batch.rows.len());
        let embedded = self.decoder.embed(&self.device, &self.pass.ids, &mut self.workspace);
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
        let (rows, max) = (&batch.rows, self.pass.rows_max);
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
        self.pass.ids.clear();
        self.pass.positions.clear();
        self.pass.segments.clear();
        for (i, row) in rows.iter().enumerate() {
            let RowInput::Token(token) = row.input;
            if token as usize >= self.decoder.vocab {
                return Err(StepError::UnknownToken { token, vocab: self.decoder.vocab });
            }
            self.pass.ids.push(token);
            self.pass.positions.push(row.position);
            self.extend_segments(rows, i)?;
        }
        self.pass.spoiled.clear();
        self.pass.spoiled.resize_with(self.pass.segments.len(), || None);
        Ok(())
    }

    fn extend_segments(&mut self, rows: &[Row], i: usize) -> Result<(), StepError> {
        let Row { session, position: found, .. } = rows[i];
        if i > 0 && rows[i - 1].session == session {
            let segment = self.pass.segments.last_mut().expect("the row before is in one");
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
            let expected = match self.pass.segments.iter().find(|s| s.session == at) {
                Some(segment) => segment.position + segment.rows.len() as u32,
                None => self.sessions.list[at].position,
            };
            if found != expected || self.pass.segments.iter().any(|s| s.session == at) {
                return Err(StepError::Position { session, expected, found });
            }
            self.pass.segments.push(Segment { session: at, rows: i..i + 1, position: found });
        }
        let segment = self.pass.segments.last().expect("just made");
        let context_max = self.sessions.list[segment.session].context_max;
        if found >= context_max {
            return Err(StepError::ContextFull { session, context_max });
        }
        Ok(())
    }

    /// Gives every segment its blocks of keys and values, and room for the marks that its rows want.
    pub(super) fn reserve(&mut self, batch: &Batch) -> Result<(), StepError> {
        for segment in &self.pass.segments {
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
        for segment in &self.pass.segments {
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
        while self.pass.next < layers {
            let layer = self.pass.next;
            self.pass.next += 1;
            self.layer(layer)?;
            let spoiled = &self.pass.spoiled;
            if spoiled.iter().all(Option::is_some) && !spoiled.is_empty() {
                self.pass.next = layers;
                break;
            }
            let progress = Progress { layer: LayerIndex(layer as u16), layers: layers as u16 };
            let border = &mut Border { progress, leavers: &mut self.pass.leavers };
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
        let looks = self.pass.batch.hidden_layer == Some(LayerIndex(layer as u16));
        if layer + 1 == self.decoder.layers() {
            let Pass { kept, batch, .. } = &mut self.pass;
            let wanted = |row: &Row| row.wants.logits || looks && row.wants.hidden;
            kept.retain(|row| wanted(&batch.rows[*row]));
            self.decoder.keep_rows(&self.device, &self.pass.kept, &mut self.workspace)?;
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
            segments: &self.pass.segments,
            positions: &self.pass.positions,
            sessions: &mut self.sessions.list,
            pool: &mut self.sessions.pool,
            layer: LayerIndex(layer as u16),
            spoiled: &mut self.pass.spoiled,
        };
        self.decoder.mix(&self.device, layer, &mut rows, &mut self.workspace)
    }

    pub(super) fn feed_forward(&mut self, layer: usize) -> DeviceResult {
        let rows = self.pass.kept.len();
        if rows == 0 {
            return Ok(());
        }
        let (experts, workspace) = (&mut self.experts, &mut self.workspace);
        let result = self.decoder.feed_forward(&self.device, experts, (layer, rows), workspace)?;
        let LayerResult::Lost(lost) = result else { return Ok(()) };
        let routes = self.workspace.routes();
        let Pass { kept, segments, spoiled, .. } = &mut self.pass;
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
        for (at, &row) in self.pass.kept.iter().enumerate() {
            if self.pass.batch.rows[row].wants.hidden {
                let start = self.pass.hidden.len();
                self.pass.hidden.resize(start + hidden, 0.0);
                let stream = View::new(&self.workspace.hidden, at + 1, hidden).rows(at, 1);
                self.device.read(stream, &mut self.pass.hidden[start..])?;
            }
        }
        Ok(())
    }

    fn read_logits(&mut self) -> Result<(), StepError> {
        // Of the kept rows, those that want logits.
        let Pass { kept, batch, .. } = &mut self.pass;
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
        for (segment, reason) in self.pass.segments.iter().zip(&mut self.pass.spoiled) {
            if let Some(reason) = reason.take() {
                self.sessions.fall_back(&self.device, segment.session)?;
                spoiled.push(Spoiled { session: self.sessions.names[segment.session], reason });
                continue;
            }
            let session = &mut self.sessions.list[segment.session];
            session.advance(segment.position + segment.rows.len() as u32);
            if self.pass.batch.rows[segment.rows.end - 1].wants.checkpoint {
                session.set_checkpoint(&self.device)?;
            }
        }
        Ok(spoiled)
    }
}
