//! Text in pieces, each of which is merged alone.
//!
//! `kitoken` says what to split at, and does not search: it panics where an expression gives up. One that matches
//! neither control nor private characters is tried at every character of a run of them, and 167 thousand NULs take more
//! than the million steps back that it would be allowed.

use std::{iter, ops::Range};

use fancy_regex::{Regex, RegexBuilder};
use kitoken::SplitBehavior;
use serde::{Deserialize, Serialize};

use crate::error::TextError;

/// Steps back of one search: 16 for each byte of the longest texts that are read (64 MiB). They take seconds; an
/// expression that takes more, which a hostile file may have, would not end.
const STEPS_BACK_MAX: usize = 1 << 30;

/// A step of splitting: each splits what the one before it has left in one piece.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(super) pattern: Pattern,
    pub(super) behavior: SplitBehavior,
}

/// What a text is split at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Pattern {
    Text(String),
    Regex(String),
}

/// How a text is split.
#[derive(Debug)]
pub(super) struct Splitter(Vec<(Search, SplitBehavior)>);

#[derive(Debug)]
enum Search {
    Text(String),
    Regex(Regex),
}

impl Splitter {
    /// # Panics
    /// If an expression is none.
    pub(super) fn new(steps: Vec<Step>) -> Self {
        let search = |pattern| match pattern {
            Pattern::Text(text) => Search::Text(text),
            Pattern::Regex(regex) => {
                let regex = RegexBuilder::new(&regex).backtrack_limit(STEPS_BACK_MAX).build();
                Search::Regex(regex.expect("the converter has compiled it"))
            }
        };
        Self(steps.into_iter().map(|step| (search(step.pattern), step.behavior)).collect())
    }

    /// The pieces of `text`, none of them empty.
    ///
    /// # Errors
    /// If an expression exhausts its stack, or takes too many steps back.
    pub(super) fn pieces(&self, text: &str) -> Result<Vec<Range<usize>>, TextError> {
        let (mut pieces, mut finer): (Vec<_>, _) =
            (iter::once(0..text.len()).collect(), Vec::new());
        for (search, behavior) in &self.0 {
            for piece in pieces.drain(..) {
                let whole = piece.start;
                let mut joined =
                    Joined { behavior: *behavior, whole, last: None, pieces: &mut finer };
                search.segments(&text[piece], &mut |segment, found| joined.add(segment, found))?;
            }
            std::mem::swap(&mut pieces, &mut finer);
        }
        pieces.retain(|piece| !piece.is_empty());
        Ok(pieces)
    }
}

impl Search {
    /// Gives what is and what is not the pattern, and which of both.
    fn segments(
        &self,
        text: &str,
        give: &mut impl FnMut(Range<usize>, bool),
    ) -> Result<(), TextError> {
        let mut done = 0;
        let mut add = |found: Range<usize>| {
            if done < found.start {
                give(done..found.start, false);
            }
            done = found.end;
            give(found, true);
        };
        match self {
            Self::Text(pattern) => {
                text.match_indices(pattern).for_each(|(at, found)| add(at..at + found.len()));
            }
            Self::Regex(regex) => {
                for found in regex.find_iter(text) {
                    let found = found.map_err(|source| TextError::Split {
                        bytes: text.len(),
                        source: Box::new(source),
                    })?;
                    add(found.range());
                }
            }
        }
        if done < text.len() {
            give(done..text.len(), false);
        }
        Ok(())
    }
}

/// Pieces of what was one, as segments become them.
struct Joined<'a> {
    behavior: SplitBehavior,
    /// Where it began.
    whole: usize,
    /// Whether the segment before was the pattern.
    last: Option<bool>,
    pieces: &'a mut Vec<Range<usize>>,
}

impl Joined<'_> {
    fn add(&mut self, segment: Range<usize>, found: bool) {
        let (stays, joins) = match (self.behavior, self.last) {
            (SplitBehavior::Match, _) => (found, false),
            (SplitBehavior::Remove, _) => (!found, false),
            (SplitBehavior::Isolate, _) | (_, None) => (true, false),
            (SplitBehavior::Merge, Some(last)) => (true, last && found),
            (SplitBehavior::MergeLeft, Some(last)) => (true, !last && found),
            (SplitBehavior::MergeRight, Some(last)) => (true, last && !found),
        };
        self.last = Some(found);
        let (start, end) = (self.whole + segment.start, self.whole + segment.end);
        match self.pieces.last_mut() {
            Some(piece) if joins => piece.end = end,
            _ if stays => self.pieces.push(start..end),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kitoken::Split;

    use super::*;

    fn pieces<'a>(steps: &[Step], text: &'a str) -> Vec<&'a str> {
        let pieces = Splitter::new(steps.to_vec()).pieces(text).unwrap();
        pieces.into_iter().map(|piece| &text[piece]).collect()
    }

    /// The documentation of `SplitDelimiterBehavior` in `tokenizers` has this text; what `kitoken` made of these was
    /// held against it before the search was ours.
    #[test]
    fn neighbours_join_as_the_behaviour_says() {
        use SplitBehavior::{Isolate, Match, Merge, MergeLeft, MergeRight, Remove};
        let text = "the-final--countdown-";
        for (behavior, expected) in [
            (Match, vec!["-", "-", "-", "-"]),
            (Remove, vec!["the", "final", "countdown"]),
            (Isolate, vec!["the", "-", "final", "-", "-", "countdown", "-"]),
            (Merge, vec!["the", "-", "final", "--", "countdown", "-"]),
            (MergeLeft, vec!["the-", "final-", "-", "countdown-"]),
            (MergeRight, vec!["the", "-final", "-", "-countdown", "-"]),
        ] {
            let step = Step { pattern: Pattern::Text("-".to_owned()), behavior };
            assert_eq!(pieces(&[step], text), expected, "{behavior:?}");
            let split = Split::Pattern { pattern: "-".into(), behavior };
            let theirs: Vec<&str> =
                split.split(text).into_iter().map(|(start, end)| &text[start..end]).collect();
            assert_eq!(theirs, expected, "{behavior:?}");
        }
    }

    #[test]
    fn a_step_splits_what_the_one_before_it_made() {
        let step = |pattern, behavior| Step { pattern, behavior };
        let steps = [
            step(Pattern::Regex(r"\p{N}{1,3}".to_owned()), SplitBehavior::Isolate),
            step(Pattern::Text(" ".to_owned()), SplitBehavior::MergeRight),
        ];
        assert_eq!(pieces(&steps, "a b1234 c"), ["a", " b", "123", "4", " c"]);
        assert_eq!(pieces(&steps, ""), [""; 0]);
    }
}
