//! Whose turn it is: those who write, with a step, or those whose prompts are taken in, with a part of a
//! sweep.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fm_model::runner::{Lane, SessionId, StepError};

use super::{Crew, queue::Queue};
use crate::{
    error::EngineError,
    writing::{self, Hear, Need, Part, Writing},
};

/// Sweeps of prompts through the layers that are under way. A prompt that is short enough overtakes the
/// others: whoever asks a question waits for a layer of somebody else's long prompt, and not for all of them.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    long: Option<Sweep>,
    short: Option<Sweep>,
    /// Whose prompt came first in the latest one of each lane: the next one begins behind it.
    first: [Option<SessionId>; 2],
}

#[derive(Debug, Default)]
struct Sweep {
    rows: usize,
    /// What its longest layer took.
    layer: Duration,
}

impl Sweeps {
    fn of(&mut self, lane: Lane) -> &mut Option<Sweep> {
        match lane {
            Lane::Long => &mut self.long,
            Lane::Short => &mut self.short,
        }
    }

    /// Whether prompts are on their way.
    pub(super) fn are_under_way(&self) -> bool {
        self.long.is_some() || self.short.is_some()
    }

    /// Whether a prompt is in one of them.
    pub(super) fn hold<S: Hear>(&self, writing: &Writing<'_, S>) -> bool {
        let is_in = |lane| writing.is_in(Part::Prompts(lane));
        self.long.is_some() && is_in(Lane::Long) || self.short.is_some() && is_in(Lane::Short)
    }
}

impl Crew<'_> {
    /// Computes a row of every text that is being written, or goes on with prompts.
    pub(super) fn step(&mut self, queue: &Queue) {
        let writes = self.someone_writes();
        if writes && self.pace.owes() && self.step_of_texts() {
            return;
        }
        if let Some(lane) = self.lane(writes) {
            return self.sweep(lane, queue, writes);
        }
        if writes && self.step_of_texts() {
            return;
        }
        // Whoever has a session and wants no row waits for what may come next in its text.
        self.writings.iter_mut().find(|writing| !writing.has_ended()).map(Writing::wait);
    }

    pub(super) fn someone_writes(&self) -> bool {
        self.writings.iter().any(|writing| !writing.has_ended() && writing.need() == Need::Next)
    }

    /// One row of every text that is being written; false if nobody wants one now. A step has a row for every
    /// session ([`crate::memory_plan::PlanError::ChunkTooSmall`]), so that nobody comes away empty.
    fn step_of_texts(&mut self) -> bool {
        self.batch.rows.clear();
        let mut room = self.runner.rows_max();
        for writing in self.writings.iter_mut().filter(|writing| writing.need() == Need::Next) {
            room -= writing.ask(room, &mut self.batch);
        }
        if self.batch.rows.is_empty() {
            return false;
        }
        self.make_room();
        let started = Instant::now();
        let texts = (self.writings.as_mut_slice(), Part::Texts);
        let result = writing::step(self.runner.as_mut(), &self.batch, texts);
        self.pace.wrote(started.elapsed());
        let rows = result.unwrap_or_else(|error| {
            self.fail(Part::Texts, error);
            0
        });
        let longest = self.writings.iter().map(Writing::longest_wait).max().unwrap_or_default();
        let activity = self.activity;
        activity.longest_wait_us.fetch_max(longest.as_micros() as u64, Ordering::Relaxed);
        activity.written_tokens.fetch_add(rows as u64, Ordering::Relaxed);
        activity.steps.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whose turn it is of prompts, if there are any; begins their sweep where there is none.
    fn lane(&mut self, writes: bool) -> Option<Lane> {
        let long = self.sweeps.long.is_some() || self.begin_sweep(Lane::Long, writes);
        if !long {
            self.pace.forget_long();
        }
        let overtakes = self.pace.owed_long().is_zero()
            && (self.sweeps.short.is_some() || self.begin_sweep(Lane::Short, writes));
        if overtakes { Some(Lane::Short) } else { long.then_some(Lane::Long) }
    }

    /// Goes on with the sweep of a lane until it has ended or rests: for those who write, for who comes,
    /// for short prompts, and for what is read from disk.
    fn sweep(&mut self, lane: Lane, queue: &Queue, writes: bool) {
        let has_place = self.taken() < self.options.sessions;
        let reads = !writes && !self.restores.is_empty();
        let overtaken =
            lane == Lane::Long && (self.sweeps.short.is_some() || self.is_short_there());
        let Some(mut sweep) = self.sweeps.of(lane).take() else { return };
        let started = Instant::now();
        let mut latest = started;
        let pace = &self.pace;
        let writings = self.writings.as_mut_slice();
        let result = writing::sweep(self.runner.as_mut(), (writings, lane), &mut || {
            let now = Instant::now();
            sweep.layer = sweep.layer.max(now - latest);
            latest = now;
            queue.expire(now);
            (has_place && queue.waiting() > 0)
                || reads
                || (overtaken && now - started >= pace.owed_long())
                || (writes && pace.rests(now - started, sweep.layer))
        });
        let elapsed = started.elapsed();
        self.pace.went_on(lane, elapsed);
        if writes {
            self.pace.waited(elapsed);
        }
        let rows = match result {
            Ok(Some(rows)) => {
                self.pace.swept(sweep.rows, sweep.layer);
                rows
            }
            Ok(None) => {
                *self.sweeps.of(lane) = Some(sweep);
                self.activity.rests.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(error) => {
                self.fail(Part::Prompts(lane), error);
                0
            }
        };
        self.activity.steps.fetch_add(1, Ordering::Relaxed);
        self.activity.prompt_tokens.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Tokens that a prompt wants taken in, if it is in no sweep.
    fn wants(&self, writing: &Writing<'_, super::Listener>) -> Option<usize> {
        match writing.need() {
            Need::Prompt(tokens) if !writing.has_ended() && !self.sweeps.hold(writing) => {
                Some(tokens)
            }
            _ => None,
        }
    }

    fn is_short_there(&self) -> bool {
        let short = self.runner.short_rows_max();
        self.writings.iter().filter_map(|writing| self.wants(writing)).any(|tokens| tokens <= short)
    }

    /// Begins a sweep of the prompts that wait, if there are any for this lane. Short ones are apart from
    /// long ones, whose rows they would wait for. One that cannot begin fails.
    fn begin_sweep(&mut self, lane: Lane, writes: bool) -> bool {
        self.batch.rows.clear();
        let short = self.runner.short_rows_max();
        let wanted = self.writings.iter().filter_map(|writing| self.wants(writing));
        let are_apart = wanted.max().is_some_and(|most| most > short);
        let most = match lane {
            Lane::Long => self.runner.rows_max(),
            Lane::Short => short,
        };
        let mut room = if writes { self.pace.rows().min(most) } else { most };
        let first = self.sweeps.first[lane as usize];
        let latest = self.writings.iter().position(|writing| Some(writing.session()) == first);
        let (count, start) = (self.writings.len(), latest.map_or(0, |at| at + 1));
        for at in 0..count {
            let at = (start + at) % count;
            let Some(tokens) = self.wants(&self.writings[at]) else { continue };
            let is_here = match lane {
                Lane::Long => tokens > short || !are_apart,
                Lane::Short => tokens <= short,
            };
            if is_here {
                room -= self.writings[at].ask_in(lane, room, &mut self.batch);
            }
        }
        let rows = self.batch.rows.len();
        let Some(row) = self.batch.rows.first() else { return false };
        self.sweeps.first[lane as usize] = Some(row.session);
        self.make_room();
        match self.runner.sweep_begin(lane, &self.batch) {
            Ok(()) => *self.sweeps.of(lane) = Some(Sweep { rows, layer: Duration::ZERO }),
            Err(error) => self.fail(Part::Prompts(lane), error),
        }
        true
    }

    /// Lets kept sessions give back what the batch takes.
    fn make_room(&mut self) {
        let blocks = self.runner.blocks_wanted(&self.batch);
        self.prefixes.make_room(self.runner.as_mut(), blocks);
        if self.runner.forks_anywhere() {
            return;
        }
        let mut marks = 0;
        let sessions = self.batch.rows.chunk_by_mut(|a, b| a.session == b.session);
        for rows in sessions.filter(|rows| rows.iter().any(|row| row.wants.mark)) {
            let session = rows[0].session;
            let writing = self.writings.iter().find(|writing| writing.session() == session);
            let borders: Vec<u32> = writing.iter().flat_map(|writing| writing.borders()).collect();
            marks += self.prefixes.place_marks(self.runner.as_mut(), rows, &borders, marks);
        }
    }

    /// All of a step or sweep failed: everybody who was in it hears why.
    fn fail(&mut self, part: Part, error: StepError) {
        let source = Arc::new(error);
        for writing in self.writings.iter_mut().filter(|writing| writing.is_in(part)) {
            writing.fail(EngineError::SharedStep { source: Arc::clone(&source) });
        }
    }
}
