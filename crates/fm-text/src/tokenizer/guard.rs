//! Special tokens that a message spells out, told apart from those that its template writes.
//!
//! A template mixes both into one text, so the difference has to be in the text: a noncharacter goes
//! behind the first character of every special token that a message spells, where the search for
//! added tokens does not pass it, and leaves before the words are made.

use std::borrow::Cow;

use super::Tokenizer;

/// A noncharacter: no text that is exchanged may contain it (Unicode Standard, section 23.7).
const GUARD: char = '\u{FDD0}';

impl Tokenizer {
    /// A message such that [`SpecialTokens::ParseTemplate`](super::SpecialTokens::ParseTemplate) makes
    /// no special token of it.
    pub fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // A guard that is there already could guard the template's own tokens.
        let mut text: Cow<'a, str> =
            if text.contains(GUARD) { text.replace(GUARD, "").into() } else { text.into() };
        for (content, id) in &self.added_ids {
            if !self.is_special(*id) || !text.contains(content.as_str()) {
                continue;
            }
            let mut chars = content.chars();
            let first = chars.next().map_or_else(String::new, String::from);
            let rest = chars.as_str();
            // A token of one character cannot be parted; it is not shown to the model at all.
            let guarded =
                if rest.is_empty() { String::new() } else { format!("{first}{GUARD}{rest}") };
            text = text.replace(content.as_str(), &guarded).into();
        }
        text
    }
}

/// The text without its guards.
pub(super) fn unguarded(text: &str) -> Cow<'_, str> {
    if text.contains(GUARD) { text.replace(GUARD, "").into() } else { text.into() }
}
