//! How much of a prompt fits between two tokens of somebody else.
//!
//! What a step takes is not known before it is done: experts may come from a disk. So the piece of a
//! prompt grows and shrinks with what the latest one took. Between two pieces, those who write have a
//! share of the time for themselves.

use std::time::Duration;

/// The first piece, while nothing is known.
const ROWS_FIRST: usize = 16;

/// A piece aims at this part of what is allowed: steps differ.
const AIM: f64 = 0.7;

/// So much longer than they write alone may prompts be taken in, where both is waited for.
const PROMPT_SHARE: u32 = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    stall_max: Duration,
    rows: usize,
    /// What those who write have coming, in time without prompts.
    owed: Duration,
}

impl Pace {
    pub(super) fn new(stall_max: Duration) -> Self {
        Self { stall_max, rows: ROWS_FIRST, owed: Duration::ZERO }
    }

    /// Rows of prompts for the next step, while somebody writes; at most `room`.
    pub(super) fn rows(&self, room: usize) -> usize {
        if self.owed > Duration::ZERO { 0 } else { self.rows.min(room) }
    }

    /// Learns from a step of rows of texts and rows of prompts.
    pub(super) fn took(&mut self, written: usize, prompt: usize, elapsed: Duration) {
        if prompt == 0 {
            self.owed = self.owed.saturating_sub(elapsed);
            return;
        }
        self.owed = if written > 0 { elapsed / PROMPT_SHARE } else { Duration::ZERO };
        let aim = self.stall_max.as_secs_f64() * AIM;
        let fitting = prompt as f64 * aim / elapsed.as_secs_f64().max(1e-6);
        // A short piece says little about a long one: reads are shared by all its rows.
        let most = self.rows.max(prompt).saturating_mul(2);
        self.rows = (fitting as usize).clamp(1, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(2);

    /// Rows of ten steps with a text, each of `fixed + each · rows` seconds.
    fn pieces(fixed: f64, each: f64) -> Vec<usize> {
        let mut pace = Pace::new(STALL);
        (0..10)
            .map(|_| {
                while pace.rows(4096) == 0 {
                    pace.took(1, 0, Duration::from_millis(50));
                }
                let rows = pace.rows(4096);
                pace.took(1, rows, Duration::from_secs_f64(fixed + each * rows as f64));
                rows
            })
            .collect()
    }

    #[test]
    fn pieces_grow_to_what_the_stall_allows_and_not_beyond() {
        assert_eq!(pieces(0.0, 0.01), [16, 32, 64, 128, 140, 140, 140, 140, 140, 140]);
        let steps = pieces(1.0, 0.01);
        let longest = steps.iter().map(|rows| 1.0 + 0.01 * *rows as f64).fold(0.0, f64::max);
        assert!(longest <= 2.0 && steps[9] >= 30, "{steps:?}");
    }

    #[test]
    fn a_piece_that_took_too_long_is_followed_by_a_shorter_one() {
        let steps = pieces(0.0, 1.0);
        assert_eq!(steps[..3], [16, 1, 1], "one row takes a second");
    }

    #[test]
    fn those_who_write_have_a_quarter_of_the_time_for_themselves() {
        let mut pace = Pace::new(STALL);
        pace.took(2, 16, Duration::from_millis(600));
        let mut alone = 0;
        while pace.rows(4096) == 0 {
            pace.took(2, 0, Duration::from_millis(50));
            alone += 1;
        }
        assert_eq!(alone, 4, "200 ms for 600");
        pace.took(0, 2048, Duration::from_secs(9));
        assert_eq!(pace.rows(4096), 318, "nobody waited, and the speed is known now");
    }
}
