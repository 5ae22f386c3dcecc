//! Jobs that wait for a session: first come, first served, and never more than were allowed.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Job, Update};

/// See the module.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Bound of `State::jobs`.
    max: usize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many wait as may wait.
    #[error("{waiting} requests are waiting already; try again later")]
    Full {
        /// How many wait.
        waiting: usize,
    },
    /// No more jobs are taken.
    #[error("the server is shutting down")]
    Closed,
}

impl Queue {
    pub(super) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), max }
    }

    /// Adds jobs that belong together, all of them or none.
    ///
    /// # Errors
    /// If they would be too many, or no more are taken.
    pub fn push(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.jobs.len() + jobs.len() > self.max {
            // Those whose client has gone make room.
            state.jobs.retain_mut(|job| (job.listener)(Update::Waiting) != ControlFlow::Break(()));
        }
        let waiting = state.jobs.len();
        if waiting + jobs.len() > self.max {
            return Err(Refused::Full { waiting });
        }
        state.jobs.extend(jobs);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.state().jobs.len()
    }

    /// Whether jobs are taken.
    pub fn is_open(&self) -> bool {
        !self.state().closed
    }

    /// Takes no more jobs; those that are there stay.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// The job whose turn it is, if there is one.
    pub(super) fn next(&self) -> Option<Job> {
        self.state().jobs.pop_front()
    }

    /// The job whose turn it is, as soon as there is one; nothing when none will come.
    pub(super) fn wait(&self) -> Option<Job> {
        let idle = |state: &mut State| state.jobs.is_empty() && !state.closed;
        let state = self.changed.wait_while(self.state(), idle);
        state.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()
    }

    /// A listener that panicked leaves the queue as it was.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the queue and lets go of all who wait in it.
pub(super) struct CloseOnDrop(pub(super) Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        let rest = std::mem::take(&mut self.0.state().jobs);
        drop(rest);
    }
}
