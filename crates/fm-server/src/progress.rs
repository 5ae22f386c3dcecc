//! What has been written of an answer that has not ended: all that is known of one whose client has gone.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

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
