//! Whether looking ahead pays, measured while the model runs.
//!
//! Steps are timed in windows. Now and then one window goes the other way and is compared with its
//! two neighbours, so that a cache that warms up, or a text that changes, moves both alike.

use std::time::Duration;

/// Steps of a window; their median counts, so that a pause in a conversation does not.
const WINDOW: usize = 8;

/// A window goes the other way after so many that did not, at first...
const PERIOD_FIRST: u32 = 1;

/// ...and when so many have been compared, after so many: what the slower way costs is then a
/// sixteenth of its difference.
const COMPARED_FIRST: u32 = 4;
const PERIOD: u32 = 15;

/// The latest comparison counts this much at least.
const WEIGHT_MIN: f64 = 0.125;

/// Looking ahead has to gain this much of a step's time: less is noise, and reads more.
const GAIN_MIN: f64 = 0.02;

/// See the file. Begins without looking ahead.
#[derive(Debug, Default)]
pub(super) struct Trial {
    ahead: bool,
    trying: bool,
    /// Steps of the window so far. Bound: [`WINDOW`].
    steps: [Duration; WINDOW],
    filled: usize,
    /// Median of the window before a trial, and of the trial.
    neighbour: Option<f64>,
    tried: Option<f64>,
    /// Windows since the last trial.
    since: u32,
    compared: u32,
    /// Natural logarithm of the time without over the time with.
    gain: f64,
}

impl Trial {
    /// Whether the step that comes next looks ahead.
    pub(super) fn looks_ahead(&self) -> bool {
        self.ahead != self.trying
    }

    /// Whether looking ahead is what is done between trials.
    pub(super) fn prefers_ahead(&self) -> bool {
        self.ahead
    }

    /// Share of the time of a step that looking ahead saves, as far as that is known.
    pub(super) fn gain(&self) -> Option<f64> {
        (self.compared > 0).then(|| 1.0 - (-self.gain).exp())
    }

    /// A step of the kind that is compared took so long.
    pub(super) fn step(&mut self, took: Duration) {
        self.steps[self.filled] = took;
        self.filled += 1;
        if self.filled == WINDOW {
            self.steps.sort_unstable();
            self.filled = 0;
            self.window(self.steps[WINDOW / 2].as_secs_f64());
        }
    }

    /// Steps are of another kind from now on: nothing compares with what was before.
    pub(super) fn interrupt(&mut self) {
        (self.filled, self.neighbour, self.tried) = (0, None, None);
        self.trying = false;
    }

    fn window(&mut self, median: f64) {
        if self.trying {
            (self.trying, self.tried, self.since) = (false, Some(median), 0);
            return;
        }
        if let (Some(before), Some(tried)) = (self.neighbour, self.tried.take())
            && self.compare(f64::midpoint(before, median), tried) == Turn::Other
        {
            // What comes compares with windows of the new way.
            return self.interrupt();
        }
        self.neighbour = Some(median);
        self.since += 1;
        let period = if self.compared < COMPARED_FIRST { PERIOD_FIRST } else { PERIOD };
        self.trying = self.since >= period;
    }

    fn compare(&mut self, usual: f64, tried: f64) -> Turn {
        let slower = (tried / usual).ln();
        let gain = if self.ahead { slower } else { -slower };
        self.compared += 1;
        self.gain += (gain - self.gain) * WEIGHT_MIN.max(1.0 / f64::from(self.compared));
        let before = std::mem::replace(&mut self.ahead, self.gain > GAIN_MIN);
        if before == self.ahead { Turn::Same } else { Turn::Other }
    }
}

/// Which way it goes on after a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Same,
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that look ahead, of `count` that take so many microseconds with and without.
    fn run(trial: &mut Trial, count: u64, with: u64, without: u64) -> u64 {
        let step = |at: u64| {
            let ahead = trial.looks_ahead();
            // A tenth up and down, and a user who thinks.
            let pause = if at % 50 == 49 { 5_000_000 } else { 0 };
            let took = if ahead { with } else { without } * (90 + at * 7 % 21) / 100 + pause;
            trial.step(Duration::from_micros(took));
            u64::from(ahead)
        };
        (0..count).map(step).sum()
    }

    #[test]
    fn what_is_faster_is_done_nearly_always() {
        let mut trial = Trial::default();
        run(&mut trial, 200, 80_000, 100_000);
        assert!(trial.prefers_ahead());
        let ahead = run(&mut trial, 2_000, 80_000, 100_000);
        assert!((1_800..1_950).contains(&ahead), "{ahead}");
        let gain = trial.gain().unwrap();
        assert!((0.15..0.25).contains(&gain), "{gain}");
    }

    #[test]
    fn what_is_slower_or_no_faster_is_hardly_ever_done() {
        for with in [120_000, 100_000, 99_000] {
            let mut trial = Trial::default();
            let ahead = run(&mut trial, 4_000, with, 100_000);
            assert!(!trial.prefers_ahead());
            // A sixteenth, and the first trials.
            assert!((200..300).contains(&ahead), "{with}: {ahead}");
        }
    }

    #[test]
    fn a_change_is_noticed_in_both_directions() {
        let mut trial = Trial::default();
        run(&mut trial, 500, 80_000, 100_000);
        assert!(trial.prefers_ahead());
        run(&mut trial, 2_000, 130_000, 100_000);
        assert!(!trial.prefers_ahead());
        run(&mut trial, 2_000, 70_000, 100_000);
        assert!(trial.prefers_ahead());
    }

    #[test]
    fn a_drift_is_no_gain() {
        let mut trial = Trial::default();
        for at in 0..500 {
            // The cache fills: every step is faster than the one before.
            trial.step(Duration::from_micros(1_000_000 - at * 1_500));
        }
        assert!(!trial.prefers_ahead(), "{:?}", trial.gain());
    }

    #[test]
    fn steps_of_another_kind_are_not_compared() {
        let mut trial = Trial::default();
        for at in 0..200 {
            trial.interrupt();
            run(&mut trial, 12, 50_000, 100_000 + at);
        }
        assert_eq!(trial.gain(), None);
        assert!(!trial.prefers_ahead());
    }
}
