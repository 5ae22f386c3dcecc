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
    stopped: Option<usize>,
}

/// What one piece of text led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPush<'a> {
    /// Text that is safe to show.
    pub emit: &'a str,
    /// The stop string that has been found, now or before, by its place in the list.
    pub stopped: Option<usize>,
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
        Ok(StopStrings { stops, held: String::new(), shown: String::new(), stopped: None })
    }

    /// Adds text. After a match, nothing is shown any more.
    pub fn push(&mut self, text: &str) -> StopPush<'_> {
        self.shown.clear();
        if self.stopped.is_some() {
            return StopPush { emit: "", stopped: self.stopped };
        }
        self.held.push_str(text);
        let found = self.first_match();
        // A match that is complete may be preceded by one that is not: "bc" is here, but the "abcd"
        // around it, should it come, starts earlier. Only text before both is decided.
        let undecided = self.first_possible_start();
        let decided = match found {
            Some((start, stop)) if start <= undecided => {
                self.stopped = Some(stop);
                start
            }
            _ => undecided,
        };
        self.shown.push_str(&self.held[..decided]);
        self.held.drain(..decided);
        if self.stopped.is_some() {
            self.held.clear();
        }
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// Ends the stream: text held back for a stop string that did not come.
    pub fn finish(&mut self) -> StopPush<'_> {
        self.shown.clear();
        // A complete match may have waited for a longer one that started before it.
        let found = self.first_match();
        self.stopped = self.stopped.or(found.map(|(_, stop)| stop));
        self.shown.push_str(&self.held[..found.map_or(self.held.len(), |(start, _)| start)]);
        self.held.clear();
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// Where the earliest match starts, and which of the stop strings it is.
    fn first_match(&self) -> Option<(usize, usize)> {
        let stops = self.stops.iter().enumerate();
        let matches = stops.filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)));
        // Of two that start together the shorter one is complete first, however the text arrives.
        matches.min_by_key(|(start, i)| (*start, self.stops[*i].len(), *i))
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

    fn streamed(stops: &[String], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(stops).unwrap();
        let mut shown = String::new();
        for piece in pieces {
            shown.push_str(matcher.push(piece).emit);
        }
        let last = matcher.finish();
        (shown + last.emit, last.stopped)
    }

    fn on_the_whole_text(stops: &[String], text: &str) -> (String, Option<usize>) {
        let here = |at: usize| {
            let matching = (0..stops.len()).filter(|&i| text[at..].starts_with(&stops[i]));
            matching.min_by_key(|&i| (stops[i].len(), i))
        };
        let mut places = (0..text.len()).filter(|&at| text.is_char_boundary(at));
        let found = places.find_map(|at| Some((at, here(at)?)));
        (text[..found.map_or(text.len(), |(at, _)| at)].to_owned(), found.map(|(_, stop)| stop))
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
                if push.stopped.is_some() {
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
        assert_eq!(matcher.push("xabc"), StopPush { emit: "x", stopped: None });
        assert_eq!(matcher.push("d"), StopPush { emit: "", stopped: Some(0) });
        assert_eq!(matcher.push("y"), StopPush { emit: "", stopped: Some(0) });

        let mut matcher = StopStrings::new(["abcd", "bc"]).unwrap();
        matcher.push("xabc");
        assert_eq!(matcher.push("e"), StopPush { emit: "a", stopped: Some(1) });
        let mut matcher = StopStrings::new(["abcd", "bc"]).unwrap();
        matcher.push("xabc");
        assert_eq!(matcher.finish(), StopPush { emit: "a", stopped: Some(1) });
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let refused = StopStrings::new(["a", ""]).map(drop);
        assert!(matches!(refused, Err(TextError::EmptyStopString { index: 1 })));
    }
}
