//! Stop strings, found in text that arrives in pieces.
//!
//! Text that might be the start of a stop string is held back until the next piece decides; all
//! other text passes through at once. A stop string is not shown, nor is anything after it.

use crate::error::TextError;

/// Looks for the earliest of several strings in a stream.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that is not shown yet. Between two calls it is a proper prefix of a stop string.
    held: String,
    shown: String,
    stopped: bool,
}

/// What one piece of text led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPush<'a> {
    /// Text that is safe to show.
    pub emit: &'a str,
    /// Whether a stop string has been found, now or before.
    pub stopped: bool,
}

impl StopStrings {
    /// Where several strings match, the match that starts first wins; an empty list never stops.
    ///
    /// # Errors
    /// If one of the strings is empty: it would match everywhere.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, TextError> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStopString { index });
        }
        Ok(StopStrings { stops, held: String::new(), shown: String::new(), stopped: false })
    }

    /// Adds text. After a match, nothing is shown any more.
    pub fn push(&mut self, text: &str) -> StopPush<'_> {
        self.shown.clear();
        if self.stopped {
            return StopPush { emit: "", stopped: true };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        // A match that is complete may be preceded by one that is not: "bc" is here, but the "abcd"
        // around it, should it come, starts earlier. Only text before both is decided.
        let undecided = self.first_possible_start();
        let decided = match found {
            Some(start) if start <= undecided => {
                self.stopped = true;
                start
            }
            _ => undecided,
        };
        self.shown.push_str(&self.held[..decided]);
        self.held.drain(..decided);
        if self.stopped {
            self.held.clear();
        }
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// Ends the stream: text held back for a stop string that did not come.
    pub fn finish(&mut self) -> StopPush<'_> {
        self.shown.clear();
        // A complete match may have waited for a longer one that started before it.
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        self.stopped |= found.is_some();
        self.shown.push_str(&self.held[..found.unwrap_or(self.held.len())]);
        self.held.clear();
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// The first place in the held text from where on it is the start of a stop string.
    fn first_possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let starts = (from..self.held.len()).filter(|&start| self.held.is_char_boundary(start));
        let could_start = |rest: &str| {
            self.stops.iter().any(|stop| stop.len() > rest.len() && stop.starts_with(rest))
        };
        starts
            .into_iter()
            .find(|&start| could_start(&self.held[start..]))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed(stops: &[String], pieces: &[String]) -> (String, bool) {
        let mut matcher = StopStrings::new(stops).unwrap();
        let mut shown = String::new();
        for piece in pieces {
            shown.push_str(matcher.push(piece).emit);
        }
        let last = matcher.finish();
        (shown + last.emit, last.stopped)
    }

    fn on_the_whole_text(stops: &[String], text: &str) -> (String, bool) {
        let found = (0..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(|&at| stops.iter().any(|stop| text[at..].starts_with(stop.as_str())));
        (text[..found.unwrap_or(text.len())].to_owned(), found.is_some())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn pieces_do_not_change_where_it_stops(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let expected = on_the_whole_text(&stops, &pieces.concat());
            prop_assert_eq!(streamed(&stops, &pieces), expected);
        }

        #[test]
        fn holds_back_only_what_could_become_a_stop_string(
            stops in prop::collection::vec("[ab]{1,4}", 1..4),
            pieces in prop::collection::vec("[abc]{0,5}", 1..8),
        ) {
            let mut matcher = StopStrings::new(&stops).unwrap();
            let (mut text, mut shown) = (String::new(), 0);
            for piece in &pieces {
                text.push_str(piece);
                let push = matcher.push(piece);
                shown += push.emit.len();
                if push.stopped {
                    break;
                }
                let held = &text[shown..];
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.len() > held.len() && s.starts_with(held)));
            }
        }
    }

    #[test]
    fn waits_for_the_longer_string_that_started_first() {
        let mut matcher = StopStrings::new(["abcd", "bc"]).unwrap();
        assert_eq!(matcher.push("xabc"), StopPush { emit: "x", stopped: false });
        assert_eq!(matcher.push("d"), StopPush { emit: "", stopped: true });
        assert_eq!(matcher.push("y"), StopPush { emit: "", stopped: true });

        let mut matcher = StopStrings::new(["abcd", "bc"]).unwrap();
        matcher.push("xabc");
        assert_eq!(matcher.push("e"), StopPush { emit: "a", stopped: true });
        let mut matcher = StopStrings::new(["abcd", "bc"]).unwrap();
        matcher.push("xabc");
        assert_eq!(matcher.finish(), StopPush { emit: "a", stopped: true });
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let refused = StopStrings::new(["a", ""]).map(drop);
        assert!(matches!(refused, Err(TextError::EmptyStopString { index: 1 })));
    }
}
