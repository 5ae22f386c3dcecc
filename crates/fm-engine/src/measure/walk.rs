//! Whole models: prompts, and sessions that write side by side.
//!
//! What is written is dictated. The likeliest token of a model that nobody asked anything loops among
//! a few tokens soon, whose experts are all in memory after a round: figures of an expert store
//! that never misses.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use fm_model::runner::{Batch, Row, RowInput, SessionId, Wants};
use fm_store::Stats;
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    engine::Engine,
    error::EngineError,
    generate::{Generated, Generation, Request},
    local::read_stats,
    logits_hash::LogitsHash,
    sampler::{Sampler, Sampling},
};

/// A prompt that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompted {
    /// Its tokens.
    pub tokens: usize,
    /// Until the first token was chosen.
    pub elapsed: Duration,
    /// What the expert store did meanwhile.
    pub store: Stats,
    /// Over the logits that the first token was chosen from.
    pub logits_hash: u128,
}

/// Some tokens that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Steps of the model, each a token of every session.
    pub steps: usize,
    /// Position of the first of them.
    pub position: u32,
    /// How long it took.
    pub elapsed: Duration,
    /// What the expert store did meanwhile.
    pub store: Stats,
    /// Over the f32 bits of all logits, step by step, session by session.
    pub logits_hash: u128,
    /// The same of every session alone: what a run of only its text has.
    pub session_hashes: Vec<u128>,
}

/// One hash of the hashes of several windows, in order.
pub fn combined_hash(hashes: impl IntoIterator<Item = u128>) -> u128 {
    let mut all = Xxh3Default::new();
    hashes.into_iter().for_each(|hash| all.update(&hash.to_le_bytes()));
    all.digest128()
}

/// Continues `session`, which holds a beginning of `text`, by up to `max_tokens` of the most likely
/// tokens. No token ends it.
///
/// # Errors
/// If a step fails.
pub fn generate(
    engine: &mut Engine,
    session: SessionId,
    text: Vec<u32>,
    max_tokens: usize,
) -> Result<Generated, EngineError> {
    let stats = engine.stats_handle();
    let read_stats = || read_stats(&stats);
    let request = Request {
        prompt: text,
        max_tokens: Some(max_tokens),
        context: engine.plan.context,
        ..Request::default()
    };
    let runner = engine.runner.as_mut();
    let generation = Generation::new(runner, session, request, None, &read_stats)?;
    generation.run(&mut |_| ControlFlow::Continue(()))
}

/// Sessions that write side by side, each a text of its own.
#[derive(Debug)]
pub struct Walk {
    walkers: Vec<Walker>,
    batch: Batch,
}

#[derive(Debug)]
struct Walker {
    session: SessionId,
    sampler: Sampler,
    /// What it writes, from the first token behind the prompt on.
    rest: std::vec::IntoIter<u32>,
}

impl Walk {
    /// Opens a session for every text and takes in its first `prompt` tokens, one after the other.
    ///
    /// # Errors
    /// If a session cannot be opened, or a step fails.
    ///
    /// # Panics
    /// If a text is shorter than `prompt`.
    pub fn start(
        engine: &mut Engine,
        texts: impl IntoIterator<Item = Vec<u32>>,
        prompt: usize,
    ) -> Result<(Self, Vec<Prompted>), EngineError> {
        let (mut walkers, mut prompted) = (Vec::new(), Vec::new());
        for mut text in texts {
            let session = engine.runner.open(engine.plan.context)?;
            let rest = text.split_off(prompt).into_iter();
            let sampler = Sampler::new(Sampling::default(), engine.runner.vocab(), &text);
            let generated = generate(engine, session, text, 1)?;
            walkers.push(Walker { session, sampler, rest });
            prompted.push(Prompted {
                tokens: prompt,
                elapsed: generated.first_token.expect("it was not cancelled"),
                store: generated.prefill.store,
                logits_hash: generated.logits_hash,
            });
        }
        Ok((Self { walkers, batch: Batch::default() }, prompted))
    }

    /// Writes on by `steps` tokens in every session. A token is chosen each time, as always, and then
    /// the text says another.
    ///
    /// # Errors
    /// If a step fails.
    ///
    /// # Panics
    /// If a text has fewer tokens left.
    pub fn write(&mut self, engine: &mut Engine, steps: usize) -> Result<Window, EngineError> {
        let stats = engine.stats_handle();
        let position = self.position(engine)?;
        let mut hashes = Hashes::of(self.walkers.len());
        let (before, started) = (read_stats(&stats), Instant::now());
        for _ in 0..steps {
            self.step(engine, &mut hashes)?;
        }
        Ok(Window {
            steps,
            position,
            elapsed: started.elapsed(),
            store: read_stats(&stats) - before,
            logits_hash: hashes.all.digest(),
            session_hashes: hashes.by_session(),
        })
    }

    /// The position that is written next.
    fn position(&self, engine: &Engine) -> Result<u32, EngineError> {
        let first = self.walkers.first().map(|walker| engine.runner.position(walker.session));
        Ok(first.transpose()?.unwrap_or(0))
    }

    fn step(&mut self, engine: &mut Engine, hashes: &mut Hashes) -> Result<(), EngineError> {
        self.batch.rows.clear();
        for walker in &mut self.walkers {
            let token = walker.rest.next().expect("the text goes on");
            self.batch.rows.push(Row {
                session: walker.session,
                input: RowInput::Token(token),
                position: engine.runner.position(walker.session)?,
                wants: Wants { logits: true, ..Wants::default() },
            });
        }
        let vocab = engine.runner.vocab();
        let output = engine.runner.step(&self.batch, &mut |_| ControlFlow::Continue(()))?;
        if let Some(spoiled) = output.spoiled.into_iter().next() {
            return Err(spoiled.reason.into());
        }
        let walkers = self.walkers.iter_mut().zip(output.logits.chunks_exact(vocab));
        for (session, (walker, logits)) in walkers.enumerate() {
            hashes.row(session, logits);
            walker.sampler.sample(logits)?;
        }
        Ok(())
    }

    /// Closes the sessions.
    pub fn end(self, engine: &mut Engine) {
        self.walkers.iter().for_each(|walker| engine.runner.close(walker.session));
    }
}

/// Of all logits in order, and of those of every session.
struct Hashes {
    all: LogitsHash,
    /// Empty where there is one session: its hash is that of all.
    of_sessions: Vec<LogitsHash>,
}

impl Hashes {
    fn of(sessions: usize) -> Self {
        let several = if sessions > 1 { sessions } else { 0 };
        Self { all: LogitsHash::default(), of_sessions: vec![LogitsHash::default(); several] }
    }

    fn row(&mut self, session: usize, logits: &[f32]) {
        self.all.row(logits);
        if let Some(hash) = self.of_sessions.get_mut(session) {
            hash.row(logits);
        }
    }

    fn by_session(&self) -> Vec<u128> {
        if self.of_sessions.is_empty() {
            return vec![self.all.digest()];
        }
        self.of_sessions.iter().map(LogitsHash::digest).collect()
    }
}
