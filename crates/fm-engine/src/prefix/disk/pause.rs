//! When a write that has failed is tried again.

use std::time::{Duration, Instant};

/// After the first failure; twice as long after each one that follows...
const FIRST: Duration = Duration::from_secs(1);

/// ...up to this.
const LONGEST: Duration = Duration::from_mins(5);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    pub(super) until: Instant,
    wait: Duration,
}

impl Pause {
    /// Begins after a failure, and after another one.
    pub(super) fn after(before: Option<Self>, now: Instant) -> Self {
        let wait = before.map_or(FIRST, |before| (before.wait * 2).min(LONGEST));
        Self { until: now + wait, wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let now = Instant::now();
        let mut pause = None;
        let mut seconds = Vec::new();
        for _ in 0..11 {
            let next = Pause::after(pause, now);
            seconds.push((next.until - now).as_secs());
            pause = Some(next);
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }
}
