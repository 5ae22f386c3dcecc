//! Jobs that wait for a session: clients take turns, each of them is served in the order it came, and
//! there are never more than were allowed.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::{Job, Update};

/// See the module.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Bound of the jobs in `State::lines`.
    max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// One for each client that waits; the first is the next to be served.
    lines: VecDeque<Line>,
    closed: bool,
}

/// What one client waits for; never empty.
#[derive(Debug)]
struct Line {
    client: u64,
    jobs: VecDeque<Job>,
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
    /// They are more than may ever wait.
    #[error("it asks for {jobs} answers at once, and {max} requests may wait")]
    TooMany {
        /// How many were to be added together.
        jobs: usize,
        /// How many may wait.
        max: usize,
    },
    /// No more jobs are taken.
    #[error("the server is shutting down")]
    Closed,
}

impl State {
    fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.jobs.len()).sum()
    }

    fn add(&mut self, job: Job) {
        let client = job.request.client;
        match self.lines.iter_mut().find(|line| line.client == client) {
            Some(line) => line.jobs.push_back(job),
            None => self.lines.push_back(Line { client, jobs: [job].into() }),
        }
    }

    /// The first job of the client whose turn it is, who is then the last.
    fn next(&mut self) -> Option<Job> {
        let mut line = self.lines.pop_front()?;
        let job = line.jobs.pop_front();
        if !line.jobs.is_empty() {
            self.lines.push_back(line);
        }
        job
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Job) -> bool) {
        self.lines.iter_mut().for_each(|line| line.jobs.retain_mut(&mut keep));
        self.lines.retain(|line| !line.jobs.is_empty());
    }
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
        if jobs.len() > self.max {
            return Err(Refused::TooMany { jobs: jobs.len(), max: self.max });
        }
        if state.waiting() + jobs.len() > self.max {
            // Those whose client has gone make room.
            state.retain(|job| (job.listener)(Update::Waiting) != ControlFlow::Break(()));
        }
        let waiting = state.waiting();
        if waiting + jobs.len() > self.max {
            return Err(Refused::Full { waiting });
        }
        jobs.into_iter().for_each(|job| state.add(job));
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting()
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
        self.state().next()
    }

    /// The job whose turn it is, as soon as there is one; nothing when none will come, or none has come
    /// until then.
    pub(super) fn wait(&self, until: Option<Instant>) -> Option<Job> {
        let idle = |state: &mut State| state.lines.is_empty() && !state.closed;
        let Some(until) = until else {
            let state = self.changed.wait_while(self.state(), idle);
            return state.unwrap_or_else(PoisonError::into_inner).next();
        };
        let wait = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.state(), wait, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.next()
    }

    /// Lets go of those whose time is over.
    pub(super) fn expire(&self, now: Instant) {
        self.state().retain(|job| !job.expires(now));
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
        let rest = std::mem::take(&mut self.0.state().lines);
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::EngineError;
    use crate::generate::Request;

    fn job(client: u64, number: usize) -> Job {
        let request = Request { client, max_tokens: Some(number), ..Request::default() };
        Job { request, listener: Box::new(|_| ControlFlow::Continue(())) }
    }

    #[test]
    fn clients_take_turns_and_each_is_served_in_its_order() {
        let queue = Queue::new(40);
        queue.push((0..30).map(|number| job(1, number)).collect()).unwrap();
        queue.push(vec![job(2, 0), job(2, 1)]).unwrap();
        queue.push(vec![job(3, 0)]).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| queue.next())
            .map(|job| (job.request.client, job.request.max_tokens.unwrap()))
            .collect();
        assert_eq!(order[..7], [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
        assert_eq!((order.len(), queue.waiting()), (33, 0));
        queue.push((0..40).map(|number| job(number, 0)).collect()).unwrap();
        assert_eq!(queue.push(vec![job(99, 0)]), Err(Refused::Full { waiting: 40 }));
    }

    #[test]
    fn who_waits_too_long_hears_of_it() {
        let queue = Queue::new(4);
        let (told, now) = (Arc::new(Mutex::new(0)), Instant::now());
        for wait in [None, Some(Duration::ZERO), Some(Duration::from_mins(1))] {
            let told = Arc::clone(&told);
            let mut job = job(1, 0);
            job.request.deadline = wait.map(|wait| now + wait);
            job.listener = Box::new(move |update| {
                assert!(matches!(update, Update::Failed(EngineError::Late)));
                *told.lock().unwrap() += 1;
                ControlFlow::Continue(())
            });
            queue.push(vec![job]).unwrap();
        }
        queue.expire(now);
        assert_eq!((*told.lock().unwrap(), queue.waiting()), (1, 2));
    }
}
