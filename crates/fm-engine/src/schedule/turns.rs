//! Whose turn it is: those who write, with a step, or those whose prompts are taken in, with a part of a
//! sweep.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fm_model::runner::StepError;

use super::Crew;
use crate::{
    error::EngineError,
    writing::{self, Need, Part, Writing},
};

/// A sweep of prompts through the layers.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    rows: usize,
    /// What its longest layer took.
    layer: Duration,
}

impl Crew<'_> {
    /// Computes a row of every text that is being written, or goes on with prompts.
    pub(super) fn step(&mut self) {
        let writes = self.someone_writes();
        let wrote = writes && self.pace.owes() && self.step_of_texts();
        if wrote || self.sweep_of_prompts(writes) || (writes && self.step_of_texts()) {
            return;
        }
        // Whoever has a session and wants no row waits for what may come next in its text.
        self.writings.iter_mut().find(|writing| !writing.has_ended()).map(Writing::wait);
    }

    fn someone_writes(&self) -> bool {
        self.writings.iter().any(|writing| !writing.has_ended() && writing.need() == Need::Next)
    }

    /// One row of every text that is being written; false if nobody wants one now.
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
        if let Err(error) = result {
            self.fail(Part::Texts, error);
        }
        let longest = self.writings.iter().map(Writing::longest_wait).max().unwrap_or_default();
        let rows = self.batch.rows.len() as u64;
        let activity = self.activity;
        activity.longest_wait_us.fetch_max(longest.as_micros() as u64, Ordering::Relaxed);
        activity.written_tokens.fetch_add(rows, Ordering::Relaxed);
        activity.steps.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Goes on with a sweep, or begins one; false if there is no prompt.
    fn sweep_of_prompts(&mut self, writes: bool) -> bool {
        if self.sweep.is_none() && !self.begin_sweep(writes) {
            return false;
        }
        let Some(mut sweep) = self.sweep.take() else { return true };
        let started = Instant::now();
        let mut latest = started;
        let pace = &self.pace;
        let result = writing::sweep(self.runner.as_mut(), &mut self.writings, &mut || {
            let now = Instant::now();
            sweep.layer = sweep.layer.max(now - latest);
            latest = now;
            writes && pace.rests(now - started, sweep.layer)
        });
        if writes {
            self.pace.waited(started.elapsed());
        }
        match result {
            Ok(false) => {
                self.sweep = Some(sweep);
                self.activity.rests.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Ok(true) => self.pace.swept(sweep.rows, sweep.layer),
            Err(error) => self.fail(Part::Prompts, error),
        }
        self.activity.steps.fetch_add(1, Ordering::Relaxed);
        self.activity.prompt_tokens.fetch_add(sweep.rows as u64, Ordering::Relaxed);
        true
    }

    /// Begins a sweep of the prompts that wait, if there are any. One that cannot begin fails.
    fn begin_sweep(&mut self, writes: bool) -> bool {
        self.batch.rows.clear();
        let room = self.runner.rows_max();
        let mut room = if writes { self.pace.rows().min(room) } else { room };
        let count = self.writings.len();
        for at in 0..count {
            let writing = &mut self.writings[(self.turn + at) % count];
            if writing.need() != Need::Next {
                room -= writing.ask(room, &mut self.batch);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        let rows = self.batch.rows.len();
        if rows == 0 {
            return false;
        }
        self.make_room();
        match self.runner.sweep_begin(&self.batch) {
            Ok(()) => self.sweep = Some(Sweep { rows, layer: Duration::ZERO }),
            Err(error) => self.fail(Part::Prompts, error),
        }
        true
    }

    /// Lets kept sessions give back what the batch takes.
    fn make_room(&mut self) {
        let blocks = self.runner.blocks_wanted(&self.batch);
        self.prefixes.make_room(self.runner.as_mut(), blocks);
    }

    /// All of a step or sweep failed: everybody who was in it hears why.
    fn fail(&mut self, part: Part, error: StepError) {
        let source = Arc::new(error);
        for writing in self.writings.iter_mut().filter(|writing| writing.is_in(part)) {
            writing.fail(EngineError::SharedStep { source: Arc::clone(&source) });
        }
    }
}
