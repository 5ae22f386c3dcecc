//! Normalisation, by the Unicode that `tokenizers` has.
//!
//! Its tables are those of Unicode 9: characters that came later have no decomposition and stay
//! where they are. The tables here are newer, so text is normalised between such characters. What
//! Unicode 9 knew never changes (Unicode Standard Annex 15, section 3, on stability).

use std::{borrow::Cow, ops::Range};

use kitoken::{Normalization, Regex, Split, SplitBehavior};

/// The steps of a normaliser.
#[derive(Debug)]
pub(super) struct Normalizer {
    steps: Vec<Normalization>,
    /// Finds runs of characters that Unicode 9 did not have.
    newer: Split,
}

impl Normalizer {
    pub(super) fn new(steps: Vec<Normalization>) -> Normalizer {
        let newer = Regex::new(r"\P{Age=9.0}+").expect("a constant pattern that a test compiles");
        let newer = Split::Pattern { pattern: newer.into(), behavior: SplitBehavior::Match };
        Normalizer { steps, newer }
    }

    /// Normalises a piece that lies at `position` of the whole text.
    pub(super) fn apply(&self, text: &mut Cow<'_, str>, position: Range<usize>) {
        if text.is_empty() {
            return;
        }
        for step in &self.steps {
            match step {
                // Nothing in it would change.
                Normalization::Unicode { .. } if text.is_ascii() => {}
                Normalization::Unicode { .. } => {
                    *text = Cow::Owned(self.between_newer(step, text, &position));
                }
                _ => step.normalize(text, position.clone()),
            }
        }
    }

    fn between_newer(&self, step: &Normalization, text: &str, position: &Range<usize>) -> String {
        let mut normalized = String::with_capacity(text.len());
        let end = (text.len(), text.len());
        let mut done = 0;
        for (start, stop) in self.newer.split(text).into_iter().chain([end]) {
            let mut known = Cow::Borrowed(&text[done..start]);
            step.normalize(&mut known, position.clone());
            normalized.push_str(&known);
            normalized.push_str(&text[start..stop]);
            done = stop;
        }
        normalized
    }
}
