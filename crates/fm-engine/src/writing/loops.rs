//! Finds a text that goes round in a circle: the same few tokens again and again.
//!
//! What tables, code and lists repeat differs from row to row. What is found here is exact: token by
//! token the same, in at least [`REPEATS_MIN`] rounds and over at least [`TOKENS_MIN`] tokens.

/// The longest circle that is looked for. One comparison per token and length.
pub(super) const PERIOD_MAX: usize = 128;

/// Tokens that repeat what stands a circle before them.
const TOKENS_MIN: usize = 400;

/// Rounds, the first one not counted.
const REPEATS_MIN: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct LoopFinder {
    /// By length of the circle, less one: how many tokens up to the latest repeat it.
    runs: Box<[u32; PERIOD_MAX]>,
    /// Tokens that are no longer looked at.
    start: usize,
}

impl LoopFinder {
    pub(super) fn new() -> Self {
        Self { runs: Box::new([0; PERIOD_MAX]), start: 0 }
    }

    /// Looks at the latest of `tokens`; says how long the circle is, if the text goes round.
    pub(super) fn found(&mut self, tokens: &[u32]) -> Option<usize> {
        let [before @ .., latest] = &tokens[self.start..] else { return None };
        let mut found = None;
        for (period, run) in (1..).zip(self.runs.iter_mut()) {
            let repeats = before.len() >= period && before[before.len() - period] == *latest;
            *run = if repeats { *run + 1 } else { 0 };
            let goes_round = *run as usize >= TOKENS_MIN.max(period * REPEATS_MIN);
            found = found.or(goes_round.then_some(period));
        }
        found
    }

    /// Begins anew behind `tokens`.
    pub(super) fn forget(&mut self, tokens: &[u32]) {
        self.runs.fill(0);
        self.start = tokens.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens until a loop is found.
    fn found(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let (mut loops, mut text) = (LoopFinder::new(), Vec::new());
        for token in tokens {
            text.push(token);
            if loops.found(&text).is_some() {
                return Some(text.len());
            }
        }
        None
    }

    #[test]
    fn a_circle_is_found_when_it_is_long_and_has_many_rounds() {
        assert_eq!(found(std::iter::repeat_n(7, 1000)), Some(TOKENS_MIN + 1));
        let story = (0..50).map(|at| at + 1000);
        let round = |length: u32| (0..4000_u32).map(move |at| at % length);
        assert_eq!(found(story.chain(round(20))), Some(50 + 20 + TOKENS_MIN));
        assert_eq!(found(round(100)), Some(100 + 100 * REPEATS_MIN));
        assert_eq!(found(round(PERIOD_MAX as u32)), Some(PERIOD_MAX * (1 + REPEATS_MIN)));
    }

    #[test]
    fn what_differs_from_round_to_round_is_none() {
        // Rows of a table with a number that counts, of ten equal cells each.
        let table = (0..400_u32).flat_map(|row| [1, 2, 1, 2, 1, 2, 1, 2, 1, 100 + row, 3]);
        assert_eq!(found(table), None);
        // A line of the same letter, as long as a page is wide, again and again with a word between.
        let lines = (0..100_u32).flat_map(|line| std::iter::repeat_n(5, 120).chain([900 + line]));
        assert_eq!(found(lines), None);
        assert_eq!(found(std::iter::repeat_n(5, TOKENS_MIN)), None);
    }

    #[test]
    fn what_was_before_is_forgotten() {
        let (mut loops, mut text) = (LoopFinder::new(), vec![1; TOKENS_MIN]);
        loops.forget(&text);
        for _ in 0..TOKENS_MIN {
            text.push(1);
            assert_eq!(loops.found(&text), None);
        }
        text.push(1);
        assert_eq!(loops.found(&text), Some(1), "the shortest");
    }
}
