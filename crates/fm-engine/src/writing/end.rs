//! When a writing's time is over, and what it came to.

use std::time::Instant;

use super::{Hear, Mark, Writing, within::Within};
use crate::{
    error::EngineError,
    generate::{FinishReason, Generated},
};

impl<S: Hear> Writing<'_, S> {
    /// Ends when its time is over.
    pub(super) fn look_at_the_clock(&mut self) {
        if self.request.is_late(Instant::now()) && self.end.is_none() {
            let complete = |within: &mut Within| within.is_complete() == Ok(true);
            self.end = Some(if self.tokens.is_empty() {
                Err(EngineError::Late)
            } else if self.within.as_mut().is_some_and(complete) {
                // Somebody's sweep may lie between its last token and now.
                Ok(FinishReason::Stop)
            } else {
                Ok(FinishReason::Deadline)
            });
        }
    }

    /// What it came to, and who listened. The session then holds the prompt and all but the last
    /// token.
    pub(crate) fn finish(mut self, now: Mark) -> (Result<Generated, EngineError>, S) {
        let mut finish = match self.end.take() {
            Some(Ok(finish)) => finish,
            Some(Err(error)) => return (Err(error), self.sink),
            None => FinishReason::Cancelled,
        };
        if let (Some(text), true) = (&mut self.text, finish != FinishReason::Cancelled) {
            finish = text.finish(finish, &mut self.sink).unwrap_or(finish);
        }
        let (text, thinking, calls) = match self.text.map(|text| text.told) {
            Some(told) => (Some(told.answer), Some(told.thinking), told.calls),
            None => (None, None, Vec::new()),
        };
        let first = self.first.unwrap_or(now);
        // Of a prompt that was broken off, what was taken in.
        let taken_in = self.held.clamp(self.reused, self.request.prompt.len()) - self.reused;
        let generated = Generated {
            text,
            thinking: thinking.filter(|thinking| !thinking.is_empty()),
            calls,
            finish,
            reused: self.reused,
            restored: self.restored,
            thinking_tokens: self.thinking_tokens,
            first_token: (!self.tokens.is_empty() || finish != FinishReason::Cancelled)
                .then(|| first.at - self.started.at),
            prefill: self.started.until(first, taken_in),
            decode: first.until(now, self.tokens.len().saturating_sub(1)),
            longest_wait: self.waits.longest,
            tokens: self.tokens,
            logits_hash: self.hash.digest(),
        };
        (Ok(generated), self.sink)
    }
}
