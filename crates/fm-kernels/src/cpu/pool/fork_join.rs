//! Who takes part in an operation of the pool, which tasks are whose, and when all of it is over.
//!
//! Without what makes a pool: it starts no threads, runs no tasks, and holds no memory but its own
//! counters. So a model checker can go through every order of its steps: `loom/` does.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Looks of the caller before it offers its core to a worker that joined and has not finished.
#[cfg(not(loom))]
const LOOKS_BEFORE_YIELD: u32 = 2_000;

/// What the word of a worker says, in its lowest bits: there is nothing to join, or no longer.
const IDLE: u64 = 0;
/// It may join the operation of this epoch.
const OPEN: u64 = 1;
/// It has, and has not left.
const JOINED: u64 = 2;
const PHASE: u64 = 3;
/// Above the phase: the epoch, one per operation, so that no worker joins twice.
const EPOCH_SHIFT: u32 = 2;

/// Keeps what different threads write on different cache lines (and their prefetched neighbours).
#[repr(align(128))]
#[derive(Debug, Default)]
struct Apart<T>(T);

/// What a worker finds that looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An operation, which it has joined: it must work, and [`ForkJoin::leave`].
    Operation(u64),
    /// Nothing that it has not seen.
    Nothing,
    /// There will be no more.
    Stop,
}

/// See the file. Thread 0 is the caller, the others are workers.
///
/// Every worker joins and leaves by a word of its own, and watches no other. A word for all would go from
/// core to core for each of them while all look at it: what a fork costs would grow with the square of their
/// number (`docs/experiments/0050`).
#[derive(Debug)]
pub(super) struct ForkJoin {
    /// The last operation. Only the caller needs it.
    epoch: AtomicU64,
    /// Epoch and phase of every worker; the caller's is not used.
    words: Vec<Apart<AtomicU64>>,
    /// The next task of every thread's range; the caller's range is the first.
    next: Vec<Apart<AtomicUsize>>,
    /// Whether a worker sleeps or is about to; the caller's is not used.
    asleep: Vec<Apart<AtomicBool>>,
    stop: AtomicBool,
}

impl ForkJoin {
    /// For `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            words: (0..threads).map(|_| Apart(AtomicU64::new(0))).collect(),
            next: (0..threads).map(|_| Apart(AtomicUsize::new(0))).collect(),
            asleep: (0..threads).map(|_| Apart(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Lets workers join an operation of `tasks` tasks, no more than have one, and wakes those of them
    /// that sleep. What the caller wrote before is seen by everybody who joins. One operation at a time.
    pub(super) fn open(&self, tasks: usize, wake: impl Fn(usize)) {
        let crew = self.crew(tasks);
        for (thread, next) in self.next[..crew].iter().enumerate() {
            next.0.store(range_start(thread, crew, tasks), Relaxed);
        }
        let epoch = self.epoch.load(Relaxed) + 1;
        self.epoch.store(epoch, Relaxed);
        for word in &self.words[1..crew] {
            word.0.store(epoch << EPOCH_SHIFT | OPEN, Release);
        }
        // Between these stores and the loads below, as between a worker's store and its load in
        // `sleep`: one of the two sees what the other stored.
        fence(SeqCst);
        for (thread, asleep) in self.asleep[..crew].iter().enumerate().skip(1) {
            if asleep.0.load(Relaxed) {
                wake(thread);
            }
        }
    }

    /// Lets nobody join any more and waits until those that did have left. What they wrote before is
    /// seen after it.
    pub(super) fn close(&self) {
        for word in &self.words[1..] {
            let seen = word.0.load(Relaxed);
            if seen & PHASE == OPEN {
                // Fails if it joins at this moment; the loop below waits for it then.
                let _ = word.0.compare_exchange(seen, seen & !PHASE | IDLE, Relaxed, Relaxed);
            }
        }
        for word in &self.words[1..] {
            let mut looks = 0;
            while word.0.load(Acquire) & PHASE == JOINED {
                looks += 1;
                pause(looks);
            }
        }
    }

    /// Joins the operation that is open to this worker, if there is one that is not `seen`.
    pub(super) fn look(&self, thread: usize, seen: u64) -> Found {
        let word = &self.words[thread].0;
        let state = word.load(Relaxed);
        if !is_news(state, seen) {
            let stop = self.stop.load(Relaxed);
            return if stop { Found::Stop } else { Found::Nothing };
        }
        let joined = word.compare_exchange(state, state & !PHASE | JOINED, Acquire, Relaxed);
        // Fails if the caller has closed it at this moment.
        joined.map_or(Found::Nothing, |state| Found::Operation(state >> EPOCH_SHIFT))
    }

    /// A worker that joined `epoch` has done what it will do.
    pub(super) fn leave(&self, thread: usize, epoch: u64) {
        self.words[thread].0.store(epoch << EPOCH_SHIFT | IDLE, Release);
    }

    /// Parks a worker unless there is news for it.
    pub(super) fn sleep(&self, thread: usize, seen: u64, park: impl FnOnce()) {
        let asleep = &self.asleep[thread].0;
        asleep.store(true, Relaxed);
        // See `open`.
        fence(SeqCst);
        let news = is_news(self.words[thread].0.load(Relaxed), seen);
        if !news && !self.stop.load(Relaxed) {
            park();
        }
        asleep.store(false, Relaxed);
    }

    /// Tells all workers that there will be nothing more. Whoever calls it wakes them afterwards,
    /// asleep or not.
    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
    }

    /// Takes tasks until none is left: those of `thread`'s own range, then those of the others.
    pub(super) fn drain(&self, thread: usize, tasks: usize, mut task: impl FnMut(usize)) {
        let crew = self.crew(tasks);
        for other in 0..crew {
            let owner = (thread + other) % crew;
            let (next, end) = (&self.next[owner].0, range_start(owner + 1, crew, tasks));
            // A look first: many may read a counter at the same time, but only one may add to it.
            while next.load(Relaxed) < end {
                let i = next.fetch_add(1, Relaxed);
                if i >= end {
                    break;
                }
                task(i);
            }
        }
    }

    /// Threads that an operation of so many tasks is shared by.
    fn crew(&self, tasks: usize) -> usize {
        self.next.len().min(tasks).max(1)
    }
}

/// The first task of a thread's range; the range ends where the next thread's begins.
fn range_start(thread: usize, crew: usize, tasks: usize) -> usize {
    tasks * thread / crew
}

/// Whether a worker's word says that it may join an operation it has not seen yet.
fn is_news(word: u64, seen: u64) -> bool {
    word & PHASE == OPEN && word >> EPOCH_SHIFT != seen
}

#[cfg(not(loom))]
fn pause(looks: u32) {
    if looks > LOOKS_BEFORE_YIELD {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}
