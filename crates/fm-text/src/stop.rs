//! Stop strings, found in text that arrives in pieces.
//!
//! Text that might be the start of a stop string is held back until the next piece decides; all
//! other text passes through at once. A stop string is not shown, nor is anything after it.
//!
//! A byte of text costs a constant number of steps per string, on average: the strings come from clients,
//! and the text passes on a thread that all of them share.

use crate::error::TextError;

/// Looks for the earliest of several strings in a stream.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<Stop>,
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

/// One of the strings, and how much of it has come.
///
/// Source: Knuth, Morris, Pratt, *Fast Pattern Matching in Strings*, 1977.
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For every beginning of `text`, the longest shorter beginning that it ends with.
    borders: Vec<usize>,
    /// The longest beginning of `text` that what has come ends with, but not all of it.
    begun: usize,
    /// Where in the held text it was found first.
    found: Option<usize>,
}

impl StopStrings {
    /// Where several strings match, the match that starts first wins; an empty list never stops.
    ///
    /// # Errors
    /// If one of the strings is empty: it would match everywhere.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, TextError> {
        let stops: Vec<Stop> = stops.into_iter().map(|text| Stop::new(text.into())).collect();
        if let Some(index) = stops.iter().position(|stop| stop.text.is_empty()) {
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
        self.stops.iter_mut().for_each(|stop| stop.read(text, self.held.len()));
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
        self.stops.iter_mut().filter_map(|stop| stop.found.as_mut()).for_each(|at| *at -= decided);
        if self.stopped.is_some() {
            self.held.clear();
        }
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// Ends a text: what was held back for a stop string that did not come. What is pushed then is another text.
    pub fn finish(&mut self) -> StopPush<'_> {
        self.shown.clear();
        // A complete match may have waited for a longer one that started before it.
        let found = self.first_match();
        self.stopped = self.stopped.or(found.map(|(_, stop)| stop));
        self.shown.push_str(&self.held[..found.map_or(self.held.len(), |(start, _)| start)]);
        self.held.clear();
        self.stops.iter_mut().for_each(|stop| (stop.begun, stop.found) = (0, None));
        StopPush { emit: &self.shown, stopped: self.stopped }
    }

    /// Where the earliest match starts, and which of the stop strings it is.
    fn first_match(&self) -> Option<(usize, usize)> {
        let stops = self.stops.iter().enumerate();
        let matches = stops.filter_map(|(i, stop)| Some((stop.found?, i)));
        // Of two that start together the shorter one is complete first, however the text arrives.
        matches.min_by_key(|(start, i)| (*start, self.stops[*i].text.len(), *i))
    }

    /// The first place in the held text from where on it is the start of a stop string.
    fn first_possible_start(&self) -> usize {
        self.held.len() - self.stops.iter().map(|stop| stop.begun).max().unwrap_or(0)
    }
}

impl Stop {
    fn new(text: String) -> Self {
        let text = text.into_bytes();
        let mut borders = vec![0; text.len()];
        for end in 1..text.len() {
            borders[end] = longer(&text, &borders, borders[end - 1], text[end]);
        }
        Self { text, borders, begun: 0, found: None }
    }

    /// Reads more text, which begins at `at` of the held text.
    fn read(&mut self, more: &str, at: usize) {
        if self.found.is_some() {
            // Matches that end later start later.
            return;
        }
        for (byte, end) in more.bytes().zip(at + 1..) {
            self.begun = longer(&self.text, &self.borders, self.begun, byte);
            if self.begun == self.text.len() {
                (self.begun, self.found) = (0, Some(end - self.text.len()));
                return;
            }
        }
    }
}

/// How long a beginning of `text` it is that ends with `byte`, behind one of `begun` bytes.
fn longer(text: &[u8], borders: &[usize], mut begun: usize, byte: u8) -> usize {
    while begun > 0 && text[begun] != byte {
        begun = borders[begun - 1];
    }
    begun + usize::from(text[begun] == byte)
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

    proptest! {
        /// As around a call: what stands behind it is another text, whatever was held back before.
        #[test]
        fn what_comes_after_the_end_of_a_text_begins_anew(
            stops in prop::collection::vec("[ab]{1,4}", 1..4),
            texts in prop::collection::vec(prop::collection::vec("[abc]{0,4}", 0..4), 1..4),
        ) {
            let mut matcher = StopStrings::new(&stops).unwrap();
            for pieces in &texts {
                let expected = on_the_whole_text(&stops, &pieces.concat());
                let mut shown = String::new();
                for piece in pieces {
                    shown.push_str(matcher.push(piece).emit);
                }
                let last = matcher.finish();
                prop_assert_eq!((shown + last.emit, last.stopped), expected.clone());
                if expected.1.is_some() {
                    break;
                }
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
    fn a_long_stop_string_that_nearly_came_costs_no_more_than_its_length() {
        // A comparison for every place would be 10^13 bytes.
        let nearly = "a".repeat(1 << 22);
        let mut matcher = StopStrings::new([format!("{nearly}b")]).unwrap();
        let mut push = |text: &str| {
            let push = matcher.push(text);
            (push.emit.len(), push.stopped)
        };
        assert_eq!(push(&nearly), (0, None));
        assert_eq!(push("ac"), (nearly.len() + 2, None));
        assert_eq!(push(&nearly), (0, None));
        assert_eq!(push("ab"), (1, Some(0)));
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let refused = StopStrings::new(["a", ""]).map(drop);
        assert!(matches!(refused, Err(TextError::EmptyStopString { index: 1 })));
    }
}
