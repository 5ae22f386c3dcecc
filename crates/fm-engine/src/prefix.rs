//! The prefix store: sessions of texts that have ended, kept for texts that begin alike.
//!
//! ```text
//! a text ends ──► keep ──► find, fork ──► a text that begins alike computes only the rest
//!                   │└──► evicted, least recently used first, when somebody needs the memory
//!                   └──► written to disk between steps ──► found there, read ──► as above
//! ```
//!
//! Kept sessions live in the blocks of keys and values that the memory plan has for those who write
//! and that these do not use now. So they cost nothing, and whoever writes comes first. Restored
//! equals computed, bit for bit (invariant 2): what is kept decides when, never what.

mod disk;
pub(crate) mod fingerprint;
mod marks;

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fm_model::{
    Runner,
    runner::{Row, SessionId},
};

use self::disk::Spilled;
pub use self::disk::{Damage, DiskError, DiskOptions, Notice, Notices};
pub(crate) use self::{
    disk::{BUFFERS, BUFFERS_BYTES, Disk, EntryId, Source, WORTH_READING},
    marks::{is_due, of_prompt, of_turns},
};

/// Sessions that are kept in memory.
const KEPT_MAX: usize = 64;

/// Conversations that are pinned, in memory and on disk: what else is kept needs room as well, and nobody says of a
/// conversation that it is over.
const PINNED_MAX: usize = KEPT_MAX / 2;

/// Tokens of all of them, unless there is one alone: each takes a list of its own beside blocks that it may share,
/// 4 MB in all.
const KEPT_TOKENS_MAX: usize = 1 << 20;

/// Marks of one session.
const MARKS_MAX: usize = 8;

/// The longest that a step waits for sessions that have to leave memory and are not on disk yet. What
/// takes longer is lost, and computed again.
const LEAVE_MAX: Duration = Duration::from_millis(500);

/// Where that was too short, the disk is too slow: of the time one part in so many is spent waiting for it.
const LEAVE_SHARE: u32 = 20;

/// How long a kept session stays when memory or disk are short: the lesser goes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// Until it is the least recently used.
    #[default]
    None,
    /// Longer: a client has given its conversation this name, and this is its latest text.
    Conversation(String),
    /// Longest: whoever started the program wants it there.
    Prefilled,
}

impl Pin {
    fn is_conversation(&self) -> bool {
        matches!(self, Self::Conversation(_))
    }

    fn rank(&self) -> u8 {
        match self {
            Self::None => 0,
            Self::Conversation(_) => 1,
            Self::Prefilled => 2,
        }
    }
}

/// What the store has done, for whoever watches it.
#[derive(Debug, Default)]
pub struct PrefixCounts {
    /// Sessions that are kept in memory now.
    pub kept: AtomicUsize,
    /// Tokens of prompts that did not have to be computed.
    pub reused_tokens: AtomicU64,
    /// Sessions that had to make room in memory.
    pub evicted: AtomicU64,
    /// Sessions that had to make room on disk.
    pub evicted_from_disk: AtomicU64,
    /// Sessions that are on disk now.
    pub on_disk: AtomicUsize,
    /// Bytes of the directory that they are in.
    pub disk_bytes: AtomicU64,
    /// Bytes written there.
    pub spilled_bytes: AtomicU64,
    /// Tokens that were read from there.
    pub restored_tokens: AtomicU64,
    /// Sessions there that could not be used.
    pub damaged: AtomicU64,
    /// Sessions that could not be written; most are tried again.
    pub write_failures: AtomicU64,
}

/// Whether a kept session is on disk too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    NotYet,
    There(EntryId),
    /// It will not be.
    Never,
}

/// A session that nobody writes to any more.
#[derive(Debug)]
struct Kept {
    session: SessionId,
    /// What it holds.
    tokens: Vec<u32>,
    pin: Pin,
    /// When it was last of use.
    used: u64,
    written: Written,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// Bound: [`KEPT_MAX`].
    kept: Vec<Kept>,
    clock: u64,
    disk: Option<Disk>,
    counts: Arc<PrefixCounts>,
    /// See [`LEAVE_MAX`]: less where no step may take so long.
    leave_max: Duration,
    /// Until then sessions leave without waiting.
    leaves_at_once: Option<Instant>,
}

/// Ends pins for a text that comes: that of an earlier text of its conversation, which has one latest text, and of more
/// conversations than may be pinned those of the least recently used.
fn make_way<'p>(pins: impl Iterator<Item = (&'p mut Pin, u64)>, coming: &Pin) {
    let mut pinned: Vec<_> = pins.filter(|(pin, _)| pin.is_conversation()).collect();
    pinned.sort_by_key(|(pin, used)| (**pin == *coming, Reverse(*used)));
    let earlier = pinned.iter().filter(|(pin, _)| **pin == *coming).count();
    let room = PINNED_MAX - usize::from(coming.is_conversation());
    let stay = room.min(pinned.len() - earlier);
    pinned.into_iter().skip(stay).for_each(|(pin, _)| *pin = Pin::None);
}

/// How many tokens two texts have in common at their beginning.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    // Whoever comes is compared with all that is kept: whole runs at a time, then within the one that differs.
    const RUN: usize = 64;
    let alike = a.chunks_exact(RUN).zip(b.chunks_exact(RUN)).take_while(|(a, b)| a == b);
    let runs = alike.count() * RUN;
    runs + a[runs..].iter().zip(&b[runs..]).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    pub(crate) fn new(disk: Option<Disk>, counts: Arc<PrefixCounts>, stall_max: Duration) -> Self {
        let leave_max = LEAVE_MAX.min(stall_max / 4);
        Self { kept: Vec::new(), clock: 0, disk, counts, leave_max, leaves_at_once: None }
    }

    /// The kept session that a text beginning with `tokens` takes most from, and how much.
    pub(crate) fn find(&mut self, runner: &dyn Runner, tokens: &[u32]) -> Option<(SessionId, u32)> {
        let usable = |kept: &Kept| {
            let common = common(&kept.tokens, tokens);
            runner.forkable(kept.session, common as u32)
        };
        let (found, at) =
            self.kept.iter().enumerate().map(|(at, kept)| (usable(kept), at)).max()?;
        if found == 0 {
            return None;
        }
        self.clock += 1;
        self.kept[at].used = self.clock;
        if let (Some(disk), Written::There(id)) = (&mut self.disk, self.kept[at].written) {
            disk.touch(id);
        }
        Some((self.kept[at].session, found))
    }

    /// The kept session that has most tokens in common with a text, and how many. It is of use.
    pub(crate) fn alike(&mut self, tokens: &[u32]) -> Option<(SessionId, u32)> {
        self.clock += 1;
        let alike = self.kept.iter_mut().map(|kept| (common(&kept.tokens, tokens) as u32, kept));
        let (common, kept) = alike.max_by_key(|(common, kept)| (*common, kept.used))?;
        kept.used = self.clock;
        Some((kept.session, common))
    }

    /// Where kept sessions are on disk, if they are.
    pub(crate) fn disk(&mut self) -> Option<&mut Disk> {
        self.disk.as_mut()
    }

    /// Keeps the session of a text with these tokens, of which it holds as many as its position says.
    /// Shorter ones that it continues are not needed any more.
    pub(crate) fn keep(
        &mut self,
        runner: &mut dyn Runner,
        session: SessionId,
        mut tokens: Vec<u32>,
        pin: Pin,
    ) {
        let position = runner.position(session).unwrap_or(0) as usize;
        tokens.truncate(position);
        if tokens.is_empty() {
            return runner.close(session);
        }
        self.clock += 1;
        make_way(self.kept.iter_mut().map(|kept| (&mut kept.pin, kept.used)), &pin);
        if let Some(longer) = self.kept.iter_mut().find(|kept| kept.tokens.starts_with(&tokens)) {
            longer.used = self.clock;
            if pin.rank() > longer.pin.rank() {
                longer.pin = pin;
                longer.written = Written::NotYet;
            }
            return runner.close(session);
        }
        let continued =
            |kept: &Kept| kept.pin.rank() <= pin.rank() && tokens.starts_with(&kept.tokens);
        while let Some(at) = self.kept.iter().position(continued) {
            self.close(runner, at);
        }
        if !runner.forks_anywhere() {
            self.room_for_mark(runner, session, MARKS_MAX - 1, &[]);
        }
        let kept = runner.keep(session).is_ok();
        if kept && !runner.forks_anywhere() && runner.marks(session).is_empty() {
            // There is no memory for marks: nobody could go on from it, and others would have to go for it.
            runner.close(session);
        } else if kept {
            self.kept.push(Kept {
                session,
                tokens,
                pin,
                used: self.clock,
                written: Written::NotYet,
            });
        }
        let deadline = Instant::now() + self.leave_max;
        while self.kept.len() > KEPT_MAX || self.kept.len() > 1 && self.tokens() > KEPT_TOKENS_MAX {
            self.evict(runner, deadline);
        }
        self.count();
    }

    /// Tokens of all kept sessions.
    fn tokens(&self) -> usize {
        self.kept.iter().map(|kept| kept.tokens.len()).sum()
    }

    /// Lets later texts continue a session from where it stands, though it goes on. Of its share of marks,
    /// `borders` are left theirs, those ahead too, and its end.
    pub(crate) fn mark(&mut self, runner: &mut dyn Runner, session: SessionId, borders: &[u32]) {
        let position = runner.position(session).unwrap_or(0);
        let ahead = borders.iter().filter(|border| **border > position).count();
        let max = (MARKS_MAX - 2).saturating_sub(ahead).max(1);
        self.room_for_mark(runner, session, max, borders);
        // Without it, later texts compute more.
        let _ = runner.mark(session);
    }

    /// Makes room for the marks that rows of a session want; those want none for which there is no room beside
    /// `others` of the same batch. Says how many are left. Of the session's share, `borders` are left theirs, and
    /// its end.
    pub(crate) fn place_marks(
        &mut self,
        runner: &mut dyn Runner,
        rows: &mut [Row],
        borders: &[u32],
        others: usize,
    ) -> usize {
        let wanting = rows.iter().filter(|row| row.wants.mark);
        let mut marks: Vec<u32> = wanting.map(|row| row.position + 1).collect();
        let Some(first) = rows.first().copied() else { return 0 };
        let ahead = borders.iter().filter(|border| **border > first.position).count();
        let max = (MARKS_MAX - 1).saturating_sub(ahead).max(1);
        self.room_for_mark(runner, first.session, max, borders);
        while runner.marks_left() < others + marks.len() && self.thin_others(runner) {}
        while let Some(least) = marks::thin(&marks, runner.marks_left().saturating_sub(others), &[])
        {
            marks.retain(|mark| *mark != least);
        }
        rows.iter_mut().for_each(|row| row.wants.mark = marks.contains(&(row.position + 1)));
        marks.len()
    }

    /// Frees a mark of a kept session that has others. Says whether there was one.
    fn thin_others(&self, runner: &mut dyn Runner) -> bool {
        let thin =
            |kept: &&Kept| Some((kept.session, marks::thin(&runner.marks(kept.session), 1, &[])?));
        let mut by_use: Vec<&Kept> = self.kept.iter().collect();
        by_use.sort_by_key(|kept| (kept.pin.rank(), kept.used));
        let least = by_use.iter().find_map(thin);
        least.inspect(|(session, mark)| runner.unmark(*session, *mark)).is_some()
    }

    /// Frees a mark, of this session if it has more than `max`, those that are `spared` last, else of what is of
    /// least use.
    fn room_for_mark(
        &mut self,
        runner: &mut dyn Runner,
        session: SessionId,
        max: usize,
        spared: &[u32],
    ) {
        while let Some(thin) = marks::thin(&runner.marks(session), max, spared) {
            runner.unmark(session, thin);
        }
        let deadline = Instant::now() + self.leave_max;
        while runner.marks_left() == 0 {
            let least = self.kept.iter().min_by_key(|kept| (kept.pin.rank(), kept.used));
            let Some(least) = least.map(|kept| kept.session) else { break };
            match marks::thin(&runner.marks(least), 1, &[]) {
                Some(thin) => runner.unmark(least, thin),
                None => self.evict(runner, deadline),
            }
        }
        if runner.marks_left() == 0
            && let Some(thin) = marks::thin(&runner.marks(session), 0, &[])
        {
            runner.unmark(session, thin);
        }
    }

    /// Evicts until so many blocks are free, or nothing is kept any more.
    pub(crate) fn make_room(&mut self, runner: &mut dyn Runner, blocks: usize) {
        let deadline = Instant::now() + self.leave_max;
        while runner.blocks_free() < blocks && !self.kept.is_empty() {
            self.evict(runner, deadline);
        }
    }

    /// Closes the session that is of least use; those go first that are on disk.
    fn evict(&mut self, runner: &mut dyn Runner, deadline: Instant) {
        let by_use = |(_, kept): &(usize, &Kept)| {
            (kept.pin.rank(), kept.written == Written::NotYet, kept.used)
        };
        let Some((at, _)) = self.kept.iter().enumerate().min_by_key(by_use) else { return };
        if self.leaves_at_once.is_none_or(|until| until <= Instant::now()) {
            self.write(runner, at, deadline);
        }
        self.close(runner, at);
        self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        self.count();
    }

    fn close(&mut self, runner: &mut dyn Runner, at: usize) {
        let session = self.kept.swap_remove(at).session;
        if let Some(disk) = &mut self.disk {
            disk.closes(session);
        }
        runner.close(session);
    }

    /// Writes a session now, as far as the time allows.
    fn write(&mut self, runner: &mut dyn Runner, at: usize, deadline: Instant) {
        while self.is_to_be_written(at) {
            if Instant::now() >= deadline {
                self.leaves_at_once = Some(Instant::now() + self.leave_max * LEAVE_SHARE);
                return;
            }
            if self.disk.as_ref().and_then(Disk::spilling).is_none() {
                self.begin(runner, at);
            }
            self.advance(runner, deadline);
        }
    }

    /// Whether a session would be lost if it were closed, and can be written.
    fn is_to_be_written(&self, at: usize) -> bool {
        let Kept { session, written, .. } = self.kept[at];
        let writable = |disk: &Disk| !disk.has_copied(session);
        written == Written::NotYet && !self.pauses() && self.disk.as_ref().is_some_and(writable)
    }

    /// Writes until then what is not on disk yet. Says whether there is more to write.
    pub(crate) fn spill(&mut self, runner: &mut dyn Runner, until: Instant) -> bool {
        if self.disk.is_none() {
            return false;
        }
        loop {
            if self.pauses() {
                return false;
            }
            if self.disk.as_ref().and_then(Disk::spilling).is_none() {
                let kept = self.kept.iter().enumerate();
                let waiting = kept.filter(|(_, kept)| kept.written == Written::NotYet);
                let Some((at, _)) = waiting.min_by_key(|(_, kept)| kept.used) else { return false };
                self.begin(runner, at);
            }
            self.advance(runner, until);
            if Instant::now() >= until {
                return true;
            }
        }
    }

    /// Whether nothing is written just now, as writing has failed.
    fn pauses(&self) -> bool {
        let until = self.disk.as_ref().and_then(Disk::pauses_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// When writing goes on, if it has failed and there is something to write.
    pub(crate) fn resumes(&self) -> Option<Instant> {
        let waits = self.kept.iter().any(|kept| kept.written == Written::NotYet);
        self.disk.as_ref().and_then(Disk::pauses_until).filter(|_| waits)
    }

    /// Tries again now what could not be written.
    pub(crate) fn retry(&mut self) {
        self.disk.iter_mut().for_each(Disk::retry);
    }

    fn begin(&mut self, runner: &dyn Runner, at: usize) {
        let (Some(disk), kept) = (&mut self.disk, &self.kept[at]) else { return };
        let session = kept.session;
        if let Some(spilled) = disk.begin(runner, session, &kept.tokens, &kept.pin) {
            self.note(session, spilled);
        }
    }

    fn advance(&mut self, runner: &mut dyn Runner, until: Instant) {
        let Some(disk) = &mut self.disk else { return };
        if let Some((session, spilled)) = disk.advance(runner, until) {
            self.note(session, spilled);
        }
    }

    fn note(&mut self, session: SessionId, spilled: Spilled) {
        // It may be closed by now.
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.session == session) {
            kept.written = match spilled {
                Spilled::There(id) => Written::There(id),
                Spilled::Refused => Written::Never,
                Spilled::Changed | Spilled::Failed => Written::NotYet,
            };
        }
    }

    fn count(&self) {
        self.counts.kept.store(self.kept.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_disk_that_is_not_there() {
        let mut prefixes = Prefixes::new(None, Arc::default(), LEAVE_MAX);
        let pin = Pin::Conversation("mine".to_owned());
        let (session, tokens, written) = (SessionId(0), vec![5], Written::NotYet);
        prefixes.kept.push(Kept { session, tokens, pin, used: 1, written });
        assert!(!prefixes.is_to_be_written(0));
    }

    #[test]
    fn texts_have_in_common_what_stands_before_the_first_difference() {
        let text: Vec<u32> = (0..200).collect();
        for differs in 0..200 {
            let mut other = text.clone();
            other[differs] = 1000;
            assert_eq!(common(&text, &other), differs);
            assert_eq!(common(&text[..differs], &text), differs, "shorter");
            assert_eq!(common(&text, &text[..differs]), differs, "shorter");
        }
    }
}
