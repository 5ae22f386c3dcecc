//! Where the store and a reader's threads meet: records to read, records that were read.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use fm_format::key::ExpertKey;

use super::{Fetch, Fetched, Transfer, Wait};
use crate::{error::StoreError, store::FETCHES_MAX};

/// Two queues behind one lock. Nothing is held for longer than a push or a pop.
#[derive(Debug)]
pub(super) struct Exchange {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bound: [`FETCHES_MAX`], which the store keeps.
    queue: VecDeque<Fetch>,
    /// Bound: [`FETCHES_MAX`], likewise.
    finished: VecDeque<Fetched>,
    /// Records submitted and not given back.
    open: usize,
    closed: bool,
    lost: Option<Lost>,
}

/// Why a reader reads no more.
#[derive(Clone, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "threads are not lost"))]
pub(super) enum Lost {
    Panicked,
    /// Its ring has failed.
    Ring(Arc<io::Error>),
}

impl Lost {
    /// What that means for an expert.
    pub(super) fn error(&self, key: ExpertKey) -> StoreError {
        match self {
            Self::Panicked => StoreError::ReaderPanicked { key },
            Self::Ring(source) => StoreError::RingFailed { key, source: Arc::clone(source) },
        }
    }

    fn fail(&self, fetch: Fetch) -> Fetched {
        let outcome = Err(self.error(fetch.key));
        Fetched::new(fetch, Transfer::default(), outcome)
    }
}

impl Exchange {
    pub(super) fn new() -> Self {
        let state = State {
            queue: VecDeque::with_capacity(FETCHES_MAX),
            finished: VecDeque::with_capacity(FETCHES_MAX),
            open: 0,
            closed: false,
            lost: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() }
    }

    /// The store's side: queues a record.
    pub(super) fn submit(&self, fetch: Fetch) {
        let mut state = self.lock();
        state.open += 1;
        if let Some(lost) = &state.lost {
            let failed = lost.fail(fetch);
            state.finished.push_back(failed);
        } else {
            state.queue.push_back(fetch);
        }
        drop(state);
        self.work.notify_one();
    }

    /// The store's side: takes a record back.
    pub(super) fn reap(&self, wait: Wait) -> Option<Fetched> {
        let mut state = self.lock();
        let ends = |state: &State| state.open == 0 || state.lost.is_some();
        while wait == Wait::Block && state.finished.is_empty() && !ends(&state) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let fetched = state.finished.pop_front()?;
        state.open -= 1;
        Some(fetched)
    }

    /// The store's side: nothing more is wanted, not even what is queued.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.work.notify_all();
    }

    /// The reader's side: waits for a record to read; `None` when closed.
    pub(super) fn take(&self) -> Option<Fetch> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(fetch) = state.queue.pop_front() {
                return Some(fetch);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The reader's side: a record to read, if there is one.
    #[cfg(target_os = "linux")]
    pub(super) fn try_take(&self) -> Option<Fetch> {
        self.lock().queue.pop_front()
    }

    /// The reader's side: whether nothing more is wanted.
    #[cfg(target_os = "linux")]
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The reader's side: gives a record back.
    pub(super) fn finish(&self, fetched: Fetched) {
        self.lock().finished.push_back(fetched);
        self.done.notify_one();
    }

    /// The reader's side: this reader is lost. What is queued, and what will be, has failed.
    #[cfg(target_os = "linux")]
    pub(super) fn abandon(&self, lost: &Lost) {
        let mut state = self.lock();
        state.lost = Some(lost.clone());
        while let Some(fetch) = state.queue.pop_front() {
            state.finished.push_back(lost.fail(fetch));
        }
        drop(state);
        self.done.notify_all();
    }

    /// A panic while the lock is held cannot leave the queues half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
