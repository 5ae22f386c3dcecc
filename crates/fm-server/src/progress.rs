//! What has been written of an answer that has not ended: all that is known of one whose client has gone.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use fm_engine::gauges::Gauges;
use fm_text::Channel;

/// See the module. The scheduler's thread writes it, and nobody reads it before the answer is given up.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Written>);

/// Tokens of all choices, and the times of the first one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) tokens: usize,
    pub(crate) thinking_tokens: usize,
    pub(crate) first_tokens: usize,
    pub(crate) longest_wait: Duration,
    /// When its first and its latest token came.
    pub(crate) between: Option<(Instant, Instant)>,
}

impl Progress {
    /// Notes a token of a choice.
    pub(crate) fn token(&self, choice: usize, channel: Channel) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.tokens += 1;
        written.thinking_tokens += usize::from(channel == Channel::Thinking);
        if choice > 0 {
            return;
        }
        let now = Instant::now();
        let (first, latest) = written.between.unwrap_or((now, now));
        written.first_tokens += 1;
        written.longest_wait = written.longest_wait.max(now - latest);
        written.between = Some((first, now));
    }

    pub(crate) fn written(&self) -> Written {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the store has done, or did between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) read_bytes: u64,
}

impl Stored {
    pub(crate) fn now(gauges: &Gauges) -> Self {
        let stats = gauges.stats();
        Self { hits: stats.hits, misses: stats.misses(), read_bytes: stats.read_bytes }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            read_bytes: self.read_bytes - before.read_bytes,
        }
    }

    /// The share of what was asked for that was there.
    pub(crate) fn hit_rate(self) -> f64 {
        let asked = self.hits + self.misses;
        if asked == 0 { 1.0 } else { self.hits as f64 / asked as f64 }
    }
}
