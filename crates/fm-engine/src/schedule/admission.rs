//! Who gets a session, and what it begins with.

use std::sync::atomic::Ordering;

use fm_model::runner::SessionId;

use super::{Crew, Job, Update, queue::Queue};
use crate::{
    prefix::{common, of_prompt},
    writing::{Need, Writing},
};

/// Tokens that are worth waiting for while somebody else computes them.
const WAITED_FOR: u32 = 64;

/// A job that has a place, and waits for a text that begins alike: its prompt is computed once.
pub(super) struct Parked {
    job: Job,
    /// Who computes it.
    session: SessionId,
    /// How much of it.
    tokens: u32,
}

impl Crew<'_> {
    /// Gives places to jobs that wait. Says whether there is work; ends when there never will be.
    pub(super) fn admit(&mut self, queue: &Queue) -> bool {
        self.unpark();
        while self.writings.len() + self.parked.len() < self.options.sessions {
            let idle = self.writings.is_empty() && self.parked.is_empty();
            let job = if idle { queue.wait() } else { queue.next() };
            let Some(job) = job else { break };
            self.place(job);
        }
        self.activity.sessions.store(self.writings.len(), Ordering::Relaxed);
        !self.writings.is_empty()
    }

    /// Places those again who need not wait any longer.
    fn unpark(&mut self) {
        for mut parked in std::mem::take(&mut self.parked) {
            let writer = self.writings.iter().find(|writing| writing.session() == parked.session);
            let waits = writer.is_some_and(|writing| writing.held() < parked.tokens as usize);
            if !waits {
                self.place(parked.job);
            } else if (parked.job.listener)(Update::Waiting).is_continue() {
                self.parked.push(parked);
            }
        }
    }

    /// Begins a job with what is there of its prompt, or parks it beside whoever computes more.
    fn place(&mut self, mut job: Job) {
        if job.request.check(self.runner.vocab()).is_err() {
            return self.begin(job, None);
        }
        // One token at least is computed: its logits choose the next one.
        let prompt = &job.request.prompt[..job.request.prompt.len() - 1];
        let kept = self.prefixes.find(self.runner.as_ref(), prompt);
        let written = self.written(prompt);
        let there = kept.into_iter().chain(written).max_by_key(|(_, tokens)| *tokens);
        let found = there.map_or(0, |(_, tokens)| tokens);
        if let Some((at, tokens)) = self.coming(prompt)
            && tokens >= found + WAITED_FOR
        {
            if (job.listener)(Update::Waiting).is_continue() {
                let writer = &mut self.writings[at];
                if !self.runner.forks_anywhere() {
                    writer.mark_at(&[tokens]);
                }
                self.parked.push(Parked { job, session: writer.session(), tokens });
            }
            return;
        }
        self.begin(job, there);
    }

    /// The most of a prompt that those who write have taken in.
    fn written(&self, prompt: &[u32]) -> Option<(SessionId, u32)> {
        let usable = self.writings.iter().map(|writing| {
            let common = common(writing.tokens(), prompt) as u32;
            (writing.session(), self.runner.forkable(writing.session(), common))
        });
        usable.max_by_key(|(_, tokens)| *tokens).filter(|(_, tokens)| *tokens > 0)
    }

    /// Who is going to take in most of a prompt, and how much.
    fn coming(&self, prompt: &[u32]) -> Option<(usize, u32)> {
        let taking_in = self.writings.iter().enumerate();
        let taking_in = taking_in.filter(|(_, writing)| writing.need() != Need::Next);
        let coming = taking_in.map(|(at, writing)| {
            let own = &writing.request().prompt;
            let common = common(own[..own.len() - 1].iter().copied(), prompt);
            (at, if common > writing.held() { common as u32 } else { 0 })
        });
        coming.max_by_key(|(_, tokens)| *tokens)
    }

    /// Opens a session that begins with what is `there`.
    fn begin(&mut self, job: Job, there: Option<(SessionId, u32)>) {
        let Job { request, mut listener } = job;
        if listener(Update::Started).is_break() {
            return;
        }
        let opened = match there {
            Some((from, tokens)) => self.runner.fork(from, tokens, request.context),
            None => self.runner.open(request.context),
        };
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                let _ = listener(Update::Failed(error.into()));
                return;
            }
        };
        let now = self.now();
        let of = (self.runner.as_ref(), session);
        let mut writing = Writing::new(of, request, self.tokenizer, listener, now);
        if !self.runner.forks_anywhere() {
            let is_control = |token| self.tokenizer.is_some_and(|words| words.is_special(token));
            writing.mark_at(&of_prompt(&writing.request().prompt, is_control));
        }
        let reused = &self.activity.prefixes.reused_tokens;
        reused.fetch_add(writing.held() as u64, Ordering::Relaxed);
        self.writings.push(writing);
    }
}
