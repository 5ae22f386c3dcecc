//! Who gets a session, and what it begins with.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use fm_model::runner::SessionId;

use super::{Crew, Job, Update, queue::Queue};
use crate::{
    prefix::{EntryId, WORTH_READING, common, of_prompt, of_turns},
    writing::{Mark, Need, Writing},
};

/// How long is written to disk between two looks at the queue, while nobody asks for anything: who comes waits for
/// half of it.
const IDLE_SLICE: Duration = Duration::from_micros(500);

/// Tokens that are worth waiting for while somebody else computes them.
const WAITED_FOR: u32 = 64;

/// A job that has a place, and waits for a text that begins alike: its prompt is computed, or read, once.
pub(super) struct Parked {
    job: Job,
    /// Whose it will be.
    session: SessionId,
    /// How much of it.
    tokens: u32,
}

/// Where the beginning of a prompt is, or will be.
enum Beginning {
    /// In memory, in this session and so far; or nowhere.
    There(Option<(SessionId, u32)>),
    /// In a session that computes it, or reads it for somebody else, as soon as that holds so many tokens.
    Comes { session: SessionId, tokens: u32 },
    /// On disk, so far.
    OnDisk(EntryId, u32),
}

impl Crew<'_> {
    /// Gives places to jobs that wait. Says whether there is work; ends when there never will be.
    pub(super) fn admit(&mut self, queue: &Queue) -> bool {
        loop {
            self.restore();
            self.unpark();
            queue.expire(Instant::now());
            while self.taken() < self.options.sessions {
                let job = if self.taken() == 0 { self.idle(queue) } else { queue.next() };
                let Some(job) = job else { break };
                self.place(job);
            }
            if !self.writings.is_empty() || self.restores.is_empty() {
                break;
            }
        }
        self.activity.sessions.store(self.writings.len(), Ordering::Relaxed);
        !self.writings.is_empty()
    }

    /// Places that jobs have.
    pub(super) fn taken(&self) -> usize {
        self.writings.len() + self.parked.len() + self.restores.len()
    }

    /// Writes to disk what is kept, and waits for a job.
    fn idle(&mut self, queue: &Queue) -> Option<Job> {
        loop {
            let more = self.prefixes.spill(self.runner.as_mut(), Instant::now() + IDLE_SLICE);
            let resumes = self.prefixes.resumes();
            let job = if more { queue.next() } else { queue.wait(resumes) };
            if !queue.is_open() {
                // One may have come before it closed, but after it was looked for.
                return job.or_else(|| queue.next());
            }
            if job.is_some() || !more && resumes.is_none() {
                return job;
            }
        }
    }

    /// Places those again who need not wait any longer.
    fn unpark(&mut self) {
        let now = Instant::now();
        for mut parked in std::mem::take(&mut self.parked) {
            if parked.job.expires(now) {
                continue;
            }
            let writer = self.writings.iter().find(|writing| writing.session() == parked.session);
            let read = self.restores.iter().any(|restore| restore.session() == parked.session);
            let waits = writer.is_some_and(|writing| writing.held() < parked.tokens as usize);
            if !waits && !read {
                self.place(parked.job);
            } else if (parked.job.listener)(Update::Waiting).is_continue() {
                self.parked.push(parked);
            }
        }
    }

    /// Begins a job with what is there of its prompt, or parks it beside whoever computes or reads more.
    pub(super) fn place(&mut self, mut job: Job) {
        if job.request.check(self.runner.vocab()).is_err() {
            return self.begin(job, None);
        }
        // One token at least is computed: its logits choose the next one.
        match self.most_of(&job.request.prompt[..job.request.prompt.len() - 1]) {
            Beginning::There(there) => self.begin(job, there),
            Beginning::Comes { session, tokens } => {
                if (job.listener)(Update::Waiting).is_continue() {
                    let writer = self.writings.iter_mut().find(|of| of.session() == session);
                    if let Some(writer) = writer.filter(|_| !self.runner.forks_anywhere()) {
                        writer.mark_at(&[tokens]);
                    }
                    self.parked.push(Parked { job, session, tokens });
                }
            }
            Beginning::OnDisk(entry, tokens) => {
                if (job.listener)(Update::Started).is_continue()
                    && let Some(job) = self.read(job, (entry, tokens))
                {
                    // What was there may have made room.
                    self.compute(job);
                }
            }
        }
    }

    /// Where most of a prompt is, or will be. What would have to be waited for or read must be worth it.
    fn most_of(&mut self, prompt: &[u32]) -> Beginning {
        let there = self.there(prompt);
        let found = there.map_or(0, |(_, tokens)| tokens);
        let on_disk = self.prefixes.disk().and_then(|disk| disk.find(prompt));
        let on_disk = on_disk.filter(|(_, tokens)| *tokens >= found + WORTH_READING);
        let readable = on_disk.map_or(0, |(_, tokens)| tokens);
        let computed = self.coming(prompt).filter(|(at, tokens)| {
            // The prompt's own last token is computed, too.
            let left = prompt.len() + 1 - found as usize;
            *tokens > readable && !self.slips_in(left, *at)
        });
        let computed = computed.map(|(at, tokens)| (self.writings[at].session(), tokens));
        let read = || self.reading(prompt).filter(|(_, tokens)| *tokens >= readable);
        let worth_it = |(_, tokens): &(SessionId, u32)| *tokens >= found + WAITED_FOR;
        let comes = computed.filter(worth_it).or_else(|| read().filter(worth_it));
        match (comes, on_disk) {
            (Some((session, tokens)), _) => Beginning::Comes { session, tokens },
            (None, Some((entry, tokens))) => Beginning::OnDisk(entry, tokens),
            (None, None) => Beginning::There(there),
        }
    }

    /// Begins a job with what is in memory of its prompt.
    pub(super) fn compute(&mut self, job: Job) {
        let there = self.there(&job.request.prompt[..job.request.prompt.len() - 1]);
        self.begin(job, there);
    }

    /// The session in memory that a prompt takes most from, and how much.
    fn there(&mut self, prompt: &[u32]) -> Option<(SessionId, u32)> {
        let kept = self.prefixes.find(self.runner.as_ref(), prompt);
        kept.into_iter().chain(self.written(prompt)).max_by_key(|(_, tokens)| *tokens)
    }

    /// The most of a prompt that is read for somebody else.
    fn reading(&self, prompt: &[u32]) -> Option<(SessionId, u32)> {
        let anywhere = self.runner.forks_anywhere();
        let comes = self.restores.iter().map(|of| (of.session(), of.comes(prompt, anywhere)));
        comes.max_by_key(|(_, tokens)| *tokens)
    }

    /// The most of a prompt that those who write have taken in.
    fn written(&self, prompt: &[u32]) -> Option<(SessionId, u32)> {
        let usable = self.writings.iter().map(|writing| {
            let common = writing.common(prompt) as u32;
            (writing.session(), self.runner.forkable(writing.session(), common))
        });
        usable.max_by_key(|(_, tokens)| *tokens).filter(|(_, tokens)| *tokens > 0)
    }

    /// Whether what is left of a prompt is computed between two layers of a longer one, and need not wait for its end.
    fn slips_in(&self, left: usize, longer: usize) -> bool {
        let (short, writing) = (self.runner.short_rows_max(), &self.writings[longer]);
        left <= short && writing.request().prompt.len() - writing.held() > short
    }

    /// Who is going to take in most of a prompt, and how much.
    fn coming(&self, prompt: &[u32]) -> Option<(usize, u32)> {
        let taking_in = self.writings.iter().enumerate();
        let taking_in = taking_in.filter(|(_, writing)| writing.need() != Need::Next);
        let coming = taking_in.map(|(at, writing)| {
            let own = &writing.request().prompt;
            let common = common(&own[..own.len() - 1], prompt);
            // In a sweep that is under way no more marks can be set than it sets already.
            let passes = !self.runner.forks_anywhere() && common < writing.will_hold();
            let borders = writing.borders().filter(|border| *border <= common as u32);
            let comes = if passes { borders.max().unwrap_or(0) } else { common as u32 };
            (at, if comes > writing.held() as u32 { comes } else { 0 })
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
        self.write((Job { request, listener }, now), session, 0);
    }

    /// Goes on with a job in a session that has a beginning of its prompt, of which so many tokens were
    /// read from disk.
    pub(super) fn write(&mut self, (job, started): (Job, Mark), session: SessionId, restored: u32) {
        let Job { request, listener } = job;
        let of = (self.runner.as_ref(), session);
        let writing = Writing::new(of, request, self.tokenizer, listener, started);
        let mut writing = writing.restored(restored as usize);
        if !self.runner.forks_anywhere() {
            let is_control = |token| self.tokenizer.is_some_and(|words| words.is_special(token));
            let parts = of_prompt(&writing.request().prompt, is_control);
            let turns = of_turns(&writing.request().turns, writing.held() as u32, &parts);
            writing.mark_at(&parts);
            writing.mark_at(&turns);
        }
        let reused = &self.activity.prefixes.reused_tokens;
        reused.fetch_add(writing.held() as u64, Ordering::Relaxed);
        self.writings.push(writing);
    }
}
