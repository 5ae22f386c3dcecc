//! Who takes part in an operation of the pool, which tasks are whose, and when all of it is over.
//!
//! Without what makes a pool: it starts no threads, runs no tasks, and holds no memory but its own
//! counters. So a model checker can go through every order of its steps: `loom/` does.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Looks of the caller before it offers its core to a worker that joined and has not finished.
#[cfg(not(loom))]
const LOOKS_BEFORE_YIELD: u32 = 2_000;

/// Set in [`ForkJoin::state`] while workers may join. Below it: the number of those that joined and
/// have not left. Above: the epoch, one per operation, so that no worker joins twice.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;
const EPOCH_SHIFT: u32 = 32;

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
#[derive(Debug)]
pub(super) struct ForkJoin {
    state: Apart<AtomicU64>,
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
            state: Apart(AtomicU64::new(0)),
            next: (0..threads).map(|_| Apart(AtomicUsize::new(0))).collect(),
            asleep: (0..threads).map(|_| Apart(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Lets workers join an operation of `tasks` tasks, and wakes those that sleep. What the caller
    /// wrote before is seen by everybody who joins. One operation at a time.
    pub(super) fn open(&self, tasks: usize, wake: impl Fn(usize)) {
        for (thread, next) in self.next.iter().enumerate() {
            next.0.store(self.range_start(thread, tasks), Relaxed);
        }
        let epoch = (self.state.0.load(Relaxed) >> EPOCH_SHIFT) + 1;
        self.state.0.store((epoch & 0xffff_ffff) << EPOCH_SHIFT | OPEN, Release);
        // Between this store and the loads below, as between a worker's store and its load in
        // `sleep`: one of the two sees what the other stored.
        fence(SeqCst);
        for (thread, asleep) in self.asleep.iter().enumerate().skip(1) {
            if asleep.0.load(Relaxed) {
                wake(thread);
            }
        }
    }

    /// Lets nobody join any more and waits until those that did have left. What they wrote before is
    /// seen after it.
    pub(super) fn close(&self) {
        let mut seen = self.state.0.fetch_and(!OPEN, AcqRel);
        let mut looks = 0;
        while seen & JOINED != 0 {
            looks += 1;
            pause(looks);
            seen = self.state.0.load(Acquire);
        }
    }

    /// Joins the operation that is open, if there is one that is not `seen`.
    pub(super) fn look(&self, seen: u64) -> Found {
        loop {
            let state = self.state.0.load(Acquire);
            if !Self::is_news(state, seen) {
                let stop = self.stop.load(Relaxed);
                return if stop { Found::Stop } else { Found::Nothing };
            }
            let joined = self.state.0.compare_exchange_weak(state, state + 1, AcqRel, Relaxed);
            if joined.is_ok() {
                return Found::Operation(state >> EPOCH_SHIFT);
            }
        }
    }

    /// A worker that joined has done what it will do.
    pub(super) fn leave(&self) {
        self.state.0.fetch_sub(1, Release);
    }

    /// Parks a worker unless there is news for it.
    pub(super) fn sleep(&self, thread: usize, seen: u64, park: impl FnOnce()) {
        let asleep = &self.asleep[thread].0;
        asleep.store(true, Relaxed);
        // See `open`.
        fence(SeqCst);
        let news = Self::is_news(self.state.0.load(Relaxed), seen);
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
        for other in 0..self.next.len() {
            let owner = (thread + other) % self.next.len();
            let end = self.range_start(owner + 1, tasks);
            loop {
                let i = self.next[owner].0.fetch_add(1, Relaxed);
                if i >= end {
                    break;
                }
                task(i);
            }
        }
    }

    /// The first task of a thread's range; the range ends where the next thread's begins.
    fn range_start(&self, thread: usize, tasks: usize) -> usize {
        tasks * thread / self.next.len()
    }

    /// Whether an operation that a worker has not seen yet takes helpers.
    fn is_news(state: u64, seen: u64) -> bool {
        state & OPEN != 0 && state >> EPOCH_SHIFT != seen
    }
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
