//! Prompts that are on disk, on their way into memory: read in slices between the steps of others.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use fm_model::runner::{Loading, SessionId};

use super::{Crew, Job, Update};
use crate::{
    KV_BLOCK_TOKENS,
    prefix::{Damage, EntryId, Source, common},
    writing::Mark,
};

/// How long is read between two steps, and between two looks at the queue.
const SLICE: Duration = Duration::from_millis(30);

/// A job whose prompt, or the beginning of it, is read.
pub(super) struct Restore {
    job: Job,
    loading: Loading,
    source: Source,
    /// Tokens that are read: the first ones may be in memory.
    tokens: u32,
    started: Mark,
}

impl Restore {
    pub(super) fn session(&self) -> SessionId {
        self.loading.session
    }

    /// What of a prompt is on its way.
    pub(super) fn comes(&self, prompt: &[u32], forks_anywhere: bool) -> u32 {
        let tokens = self.loading.tokens;
        let common = common(&self.job.request.prompt[..tokens as usize], prompt) as u32;
        if forks_anywhere || common == tokens { common } else { 0 }
    }
}

impl Crew<'_> {
    /// Begins to read the first `tokens` tokens of a job's prompt. Gives it back if that cannot be done.
    pub(super) fn read(&mut self, job: Job, (id, tokens): (EntryId, u32)) -> Option<Job> {
        let Some(source) = self.prefixes.disk().and_then(|disk| disk.open(id)) else {
            return Some(job);
        };
        let prompt = &job.request.prompt[..job.request.prompt.len() - 1];
        let shared = self.base(prompt, tokens).map_or(0, |base| base.1);
        let blocks = self.runner.piece_bytes().blocks(tokens) - shared;
        self.prefixes.make_room(self.runner.as_mut(), blocks as usize);
        // It may have had to make room itself.
        let base = self.base(prompt, tokens);
        let begun = self.runner.load_begin(job.request.context, tokens, base);
        let Ok(loading) = begun else {
            self.close(&source, None);
            return Some(job);
        };
        let tokens = tokens - base.map_or(0, |base| base.1 * KV_BLOCK_TOKENS as u32);
        let started = self.now();
        self.restores.push(Restore { job, loading, source, tokens, started });
        None
    }

    /// The session in memory whose first blocks are those of the first `tokens` tokens of a prompt, and
    /// how many are.
    fn base(&mut self, prompt: &[u32], tokens: u32) -> Option<(SessionId, u32)> {
        let kept = self.prefixes.alike(prompt);
        let written = self.writings.iter().map(|writing| {
            let common = writing.common(prompt).min(writing.held());
            (writing.session(), common as u32)
        });
        let (session, common) =
            kept.into_iter().chain(written).max_by_key(|(_, common)| *common)?;
        let whole = common.min(tokens) / KV_BLOCK_TOKENS as u32;
        let blocks = whole.min(self.runner.piece_bytes().blocks(tokens));
        (blocks > 0).then_some((session, blocks))
    }

    /// Reads for a while. A job whose prompt is there begins; one whose prompt is damaged computes it.
    pub(super) fn restore(&mut self) {
        let most = self.options.stall_max / 4;
        // Nobody but a prompt waits: between two of its layers there is time for more.
        let longer = self.sweeps.are_under_way() && !self.someone_writes();
        let until = Instant::now() + if longer { most } else { SLICE.min(most) };
        self.leave_restores();
        while let Some(restore) = self.restores.first_mut() {
            let damage = loop {
                if restore.loading.next().is_none() {
                    break None;
                }
                let runner = self.runner.as_mut();
                if let Err(damage) = restore.source.load_part(runner, &mut restore.loading) {
                    break Some(damage);
                }
                if Instant::now() >= until && restore.loading.next().is_some() {
                    return;
                }
            };
            let Restore { job, loading, source, tokens, started } = self.restores.remove(0);
            let lasting = damage.as_ref().map(Damage::is_lasting);
            self.close(&source, damage);
            if let Some(lasting) = lasting {
                self.runner.close(loading.session);
                // What stays although it cannot be read would be found again.
                if lasting {
                    self.place(job);
                } else {
                    self.compute(job);
                }
                continue;
            }
            self.activity.prefixes.restored_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
            if !self.runner.forks_anywhere() {
                self.prefixes.mark(self.runner.as_mut(), loading.session, &[]);
            }
            self.write((job, started), loading.session, tokens);
        }
    }

    /// Ends those whose time is over, or whose client has gone: the one that is read, and those behind it.
    fn leave_restores(&mut self) {
        for mut restore in std::mem::take(&mut self.restores) {
            let job = &mut restore.job;
            if job.expires(Instant::now()) || (job.listener)(Update::Waiting).is_break() {
                self.runner.close(restore.loading.session);
                self.close(&restore.source, None);
            } else {
                self.restores.push(restore);
            }
        }
    }

    fn close(&mut self, source: &Source, damage: Option<Damage>) {
        if let Some(disk) = self.prefixes.disk() {
            disk.close(source, damage);
        }
    }
}
