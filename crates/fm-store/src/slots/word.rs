//! Who may touch the bytes of a slot: one writer, any number of readers, or nobody.
//!
//! Without the bytes, and without anything else: so a model checker can go through every order in which
//! threads take these steps: `loom/` does.

#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// There is a writer; otherwise the word counts readers.
const WRITER: u32 = 1 << 31;

/// See the file. What somebody did while they had a slot is seen by whoever has it afterwards, but for
/// readers by readers.
#[derive(Debug)]
pub(super) struct Word(AtomicU32);

impl Word {
    /// Of a slot that nobody has.
    pub(super) fn idle() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Of a slot that a writer has from the beginning.
    pub(super) fn writing() -> Self {
        Self(AtomicU32::new(WRITER))
    }

    /// Whether nobody has it.
    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Acquire) == 0
    }

    /// Takes it for writing, unless somebody has it. To be ended by [`Word::end_write`], on any thread.
    pub(super) fn write(&self) -> bool {
        // Acquires what every reader released, not the last one only: each changes the word by an
        // operation that reads it, which carries on what the one before has released.
        self.0.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok()
    }

    pub(super) fn end_write(&self) {
        self.0.store(0, Release);
    }

    /// Takes it for reading, unless a writer has it. To be ended by [`Word::end_read`], on any thread.
    pub(super) fn read(&self) -> bool {
        let one_more = |word: u32| (word < WRITER - 1).then_some(word + 1);
        self.0.fetch_update(Acquire, Relaxed, one_more).is_ok()
    }

    pub(super) fn end_read(&self) {
        self.0.fetch_sub(1, Release);
    }
}
