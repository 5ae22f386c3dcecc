//! When things happened to a text.

use std::time::{Duration, Instant};

use fm_model::{Runner, runner::StepTimes};
use fm_store::Stats;

use crate::generate::Phase;

/// A moment, with the counters that tell what happens between two of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(super) at: Instant,
    store: Stats,
    times: StepTimes,
}

impl Mark {
    pub(crate) fn now(runner: &dyn Runner, store_stats: &dyn Fn() -> Stats) -> Self {
        Self { at: Instant::now(), store: store_stats(), times: runner.times() }
    }

    pub(super) fn until(self, later: Self, tokens: usize) -> Phase {
        Phase {
            tokens,
            elapsed: later.at - self.at,
            store: later.store - self.store,
            times: later.times - self.times,
        }
    }
}

/// How long a text has waited for its tokens.
#[derive(Debug, Default)]
pub(super) struct Waits {
    latest: Option<Instant>,
    /// The longest time between two tokens.
    pub(super) longest: Duration,
}

impl Waits {
    /// A token is there.
    pub(super) fn token(&mut self) {
        let now = Instant::now();
        let waited = self.latest.replace(now).map_or(Duration::ZERO, |latest| now - latest);
        self.longest = self.longest.max(waited);
    }
}
