//! The prefix store: sessions of texts that have ended, kept for texts that begin alike.
//!
//! ```text
//! a text ends ──► keep ──► find, fork ──► a text that begins alike computes only the rest
//!                   └──► evicted, least recently used first, when somebody needs the memory
//! ```
//!
//! Kept sessions live in the blocks of keys and values that the memory plan has for those who write
//! and that these do not use now. So they cost nothing, and whoever writes comes first. Restored
//! equals computed, bit for bit (invariant 2): what is kept decides when, never what.

mod marks;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use fm_model::{Runner, runner::SessionId};

pub(crate) use self::marks::{is_due, of_prompt};

/// Sessions that are kept in memory: each takes a list of its tokens beside its blocks.
const KEPT_MAX: usize = 64;

/// Marks of one session.
const MARKS_MAX: usize = 8;

/// How long a kept session stays when memory is short: the lesser goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pin {
    /// Until it is the least recently used.
    None,
    /// Longer: a client has given its conversation this name.
    Conversation(String),
}

impl Pin {
    fn rank(&self) -> u8 {
        match self {
            Self::None => 0,
            Self::Conversation(_) => 1,
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
    /// Sessions that had to make room.
    pub evicted: AtomicU64,
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
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// Bound: [`KEPT_MAX`].
    kept: Vec<Kept>,
    clock: u64,
    counts: Arc<PrefixCounts>,
}

/// How many tokens two texts have in common at their beginning.
pub(crate) fn common(a: impl Iterator<Item = u32>, b: &[u32]) -> usize {
    a.zip(b).take_while(|(a, b)| a == *b).count()
}

impl Prefixes {
    pub(crate) fn new(counts: Arc<PrefixCounts>) -> Self {
        Self { kept: Vec::new(), clock: 0, counts }
    }

    /// The kept session that a text beginning with `tokens` takes most from, and how much.
    pub(crate) fn find(&mut self, runner: &dyn Runner, tokens: &[u32]) -> Option<(SessionId, u32)> {
        let usable = |kept: &Kept| {
            let common = common(kept.tokens.iter().copied(), tokens);
            runner.forkable(kept.session, common as u32)
        };
        let (found, at) =
            self.kept.iter().enumerate().map(|(at, kept)| (usable(kept), at)).max()?;
        if found == 0 {
            return None;
        }
        self.clock += 1;
        self.kept[at].used = self.clock;
        Some((self.kept[at].session, found))
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
        self.unpin(&pin);
        if let Some(longer) = self.kept.iter_mut().find(|kept| kept.tokens.starts_with(&tokens)) {
            longer.used = self.clock;
            if pin.rank() > longer.pin.rank() {
                longer.pin = pin;
            }
            return runner.close(session);
        }
        while let Some(at) = self.kept.iter().position(|kept| tokens.starts_with(&kept.tokens)) {
            runner.close(self.kept.swap_remove(at).session);
        }
        if !runner.forks_anywhere() {
            self.room_for_mark(runner, session);
        }
        if runner.keep(session).is_ok() {
            self.kept.push(Kept { session, tokens, pin, used: self.clock });
        }
        while self.kept.len() > KEPT_MAX {
            self.evict(runner);
        }
        self.count();
    }

    /// A conversation has one latest text.
    fn unpin(&mut self, pin: &Pin) {
        for kept in &mut self.kept {
            if kept.pin != Pin::None && kept.pin == *pin {
                kept.pin = Pin::None;
            }
        }
    }

    /// Lets later texts continue a session from where it stands, though it goes on.
    pub(crate) fn mark(&mut self, runner: &mut dyn Runner, session: SessionId) {
        self.room_for_mark(runner, session);
        // Without it, later texts compute more.
        let _ = runner.mark(session);
    }

    /// Frees a mark, of this session if it has its share, else of what is of least use.
    fn room_for_mark(&mut self, runner: &mut dyn Runner, session: SessionId) {
        while let Some(thin) = marks::thin(&runner.marks(session), MARKS_MAX - 1) {
            runner.unmark(session, thin);
        }
        while runner.marks_left() == 0 {
            let least = self.kept.iter().min_by_key(|kept| (kept.pin.rank(), kept.used));
            let Some(least) = least.map(|kept| kept.session) else { break };
            match marks::thin(&runner.marks(least), 1) {
                Some(thin) => runner.unmark(least, thin),
                None => self.evict(runner),
            }
        }
        if runner.marks_left() == 0
            && let Some(thin) = marks::thin(&runner.marks(session), 0)
        {
            runner.unmark(session, thin);
        }
    }

    /// Evicts until so many blocks are free, or nothing is kept any more.
    pub(crate) fn make_room(&mut self, runner: &mut dyn Runner, blocks: usize) {
        while runner.blocks_free() < blocks && !self.kept.is_empty() {
            self.evict(runner);
        }
    }

    /// Closes the session that is of least use.
    fn evict(&mut self, runner: &mut dyn Runner) {
        let by_use = |(_, kept): &(usize, &Kept)| (kept.pin.rank(), kept.used);
        if let Some((at, _)) = self.kept.iter().enumerate().min_by_key(by_use) {
            runner.close(self.kept.swap_remove(at).session);
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            self.count();
        }
    }

    fn count(&self) {
        self.counts.kept.store(self.kept.len(), Ordering::Relaxed);
    }
}
