//! What a request took, for `/metrics`, the log and its own `timings`.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use fm_engine::{Stats, generate::Generated};
use serde_json::{Value, json};

use crate::{progress::Progress, serve::App};

/// Why a request ended whose client went first, and one that has failed.
pub(crate) const GONE: &str = "gone";
pub(crate) const FAILED: &str = "error";

/// What became of a request: for the log, never with any of its text.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    /// The path.
    pub path: &'static str,
    /// What it is called in the head of its response.
    pub id: Arc<str>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of it that were there already.
    pub cached_tokens: usize,
    /// Of these, tokens that were read from disk.
    pub restored_tokens: usize,
    /// Tokens written, in all choices.
    pub written_tokens: usize,
    /// Of these, tokens that are no part of the answer.
    pub thinking_tokens: usize,
    /// Tokens of the first choice, which the times are of.
    pub first_tokens: usize,
    /// Until it had a session.
    pub queue: Duration,
    /// From then on until the first token.
    pub prefill: Duration,
    /// After it.
    pub decode: Duration,
    /// The longest time between two tokens.
    pub longest_wait: Duration,
    /// What the expert store did while it ran.
    pub store: Stats,
    /// Types of tools that the model was not told of.
    pub left_out: Vec<&'static str>,
    /// Why it ended; `gone` if its client went first.
    pub finish: &'static str,
    /// The hash of its logits.
    pub logits_hash: u128,
}

impl Requested {
    /// Tokens per second, the first one not counted.
    pub fn decode_tok_s(&self) -> f64 {
        let seconds = self.decode.as_secs_f64();
        if seconds > 0.0 { self.first_tokens.saturating_sub(1) as f64 / seconds } else { 0.0 }
    }

    /// The `timings` object of responses.
    pub(crate) fn timings(&self) -> Value {
        let ms = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "queue_ms": ms(self.queue),
            "prefill_ms": ms(self.prefill),
            "ttft_ms": ms(self.queue + self.prefill),
            "decode_ms": ms(self.decode),
            "decode_tok_s": self.decode_tok_s(),
            "longest_wait_ms": ms(self.longest_wait),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "restored_tokens": self.restored_tokens,
            "written_tokens": self.written_tokens,
            "hit_rate": self.store.hit_rate(),
            "read_bytes": self.store.read_bytes,
            "finish": self.finish,
            "logits_hash": format!("{:032x}", self.logits_hash),
        })
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} prompt={} cached={} restored={} written={} queue={:.3}s prefill={:.3}s ttft={:.3}s decode={:.3}s {:.1} tok/s \
             hits={:.1}% read={} id={}",
            self.path,
            self.prompt_tokens,
            self.cached_tokens,
            self.restored_tokens,
            self.written_tokens,
            self.queue.as_secs_f64(),
            self.prefill.as_secs_f64(),
            (self.queue + self.prefill).as_secs_f64(),
            self.decode.as_secs_f64(),
            self.decode_tok_s(),
            100.0 * self.store.hit_rate(),
            self.store.read_bytes,
            self.id
        )?;
        if !self.left_out.is_empty() {
            write!(f, " left_out={}", self.left_out.join(","))?;
        }
        write!(f, " finish={}", self.finish)
    }
}

/// How much a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Of all its prompts.
    pub(crate) prompt_tokens: usize,
    /// Of each prompt.
    pub(crate) choices: usize,
    /// Of all prompts.
    pub(crate) answers: usize,
}

/// Adds up a request and tells the log when it is dropped. With several choices, times and hash are
/// those of the first.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) app: Arc<App>,
    /// When the request was there.
    arrived: Instant,
    /// Choices of each prompt.
    choices: usize,
    /// Of all prompts, those that have not ended.
    open: usize,
    progress: Arc<Progress>,
    /// When it had a session, and what the store had done by then.
    started: Option<(Instant, Stats)>,
    pub(crate) requested: Requested,
}

impl Tally {
    /// Of what was asked for at `path`, is called `id`, and arrived then.
    pub(crate) fn new(
        (app, progress): (Arc<App>, Arc<Progress>),
        (path, id): (&'static str, Arc<str>),
        Asked { prompt_tokens, choices, answers }: Asked,
        arrived: Instant,
    ) -> Self {
        let requested = Requested { path, id, prompt_tokens, finish: GONE, ..Requested::default() };
        Self { app, arrived, choices, open: answers, progress, started: None, requested }
    }

    /// Nothing more comes of it.
    pub(crate) fn fail(&mut self) {
        self.requested.finish = FAILED;
    }

    pub(crate) fn start(&mut self) {
        if self.started.is_none() {
            self.requested.queue = self.arrived.elapsed();
            self.started = Some((Instant::now(), self.app.watch.gauges.stats()));
        }
    }

    pub(crate) fn done(&mut self, choice: usize, generated: &Generated) {
        self.open -= 1;
        let requested = &mut self.requested;
        requested.written_tokens += generated.tokens.len();
        requested.thinking_tokens += generated.thinking_tokens;
        if choice.is_multiple_of(self.choices) {
            // The first of its prompt, which the others share.
            requested.cached_tokens += generated.reused;
            requested.restored_tokens += generated.restored;
        }
        if choice > 0 {
            return;
        }
        requested.finish = generated.finish.name();
        let (prefill, decode) = (&generated.prefill, &generated.decode);
        requested.first_tokens = generated.tokens.len();
        requested.prefill = prefill.elapsed;
        requested.decode = decode.elapsed;
        requested.longest_wait = generated.longest_wait;
        requested.store = prefill.store + decode.store;
        requested.logits_hash = generated.logits_hash;
    }

    /// Tells of an answer that was given up, or has failed, what had come of it.
    fn give_up(&mut self) {
        let Some((started, before)) = self.started else {
            self.requested.queue = self.arrived.elapsed();
            return;
        };
        let written = self.progress.written();
        let requested = &mut self.requested;
        requested.written_tokens = written.tokens;
        requested.thinking_tokens = written.thinking_tokens;
        if requested.finish != FAILED {
            requested.finish = GONE;
        }
        if requested.first_tokens > 0 {
            // The first choice has ended, and has said what it took.
            return;
        }
        requested.first_tokens = written.first_tokens;
        requested.longest_wait = written.longest_wait;
        let (first, latest) = written.between.unwrap_or_else(|| (Instant::now(), Instant::now()));
        requested.prefill = first.saturating_duration_since(started);
        requested.decode = latest.saturating_duration_since(first);
        requested.store = self.app.watch.gauges.stats() - before;
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if self.open > 0 {
            self.give_up();
        }
        self.app.watch.requested(&self.requested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_choice_whose_time_it_is() {
        let requested = Requested {
            written_tokens: 30,
            first_tokens: 11,
            decode: Duration::from_secs(2),
            ..Requested::default()
        };
        assert_eq!(requested.decode_tok_s(), 5.0);
    }
}
