//! Control tokens that a message spells out, told apart from those that its template writes.
//!
//! A template mixes both into one text, so the difference has to be in the text: a noncharacter goes
//! behind the first character of every control token that a message spells, where the search for
//! added tokens does not pass it, and leaves before the words are made.

use std::borrow::Cow;

use serde_json::Value;

use super::{Tokenizer, added::AddedMatcher};

/// A noncharacter: no text that is exchanged may contain it (Unicode Standard, section 23.7).
const GUARD: char = '\u{FDD0}';

impl Tokenizer {
    /// A message such that [`SpecialTokens::ParseTemplate`](super::SpecialTokens::ParseTemplate) makes
    /// no control token of it.
    pub fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // A guard that is there already could guard the template's own tokens.
        let mut text = unguarded(text);
        part(&mut text, &self.added);
        if self.added_normalized.is_empty() {
            return text;
        }
        // As in the middle of a text. Other characters than a token's may be normalised to them.
        let mut normalized = text.clone();
        self.normalizer.apply(&mut normalized, 1..2);
        if self.added_normalized.next_control(&normalized, 0).is_none() {
            return text;
        }
        part(&mut normalized, &self.added);
        part(&mut normalized, &self.added_normalized);
        normalized
    }

    /// [`guard`](Self::guard) for all texts of a value, the names of its fields too.
    pub fn guard_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.guard(text).into_owned(),
            Value::Array(list) => list.iter_mut().for_each(|value| self.guard_value(value)),
            Value::Object(map) => {
                let entries = std::mem::take(map).into_iter().map(|(key, mut value)| {
                    self.guard_value(&mut value);
                    (self.guard(&key).into_owned(), value)
                });
                *map = entries.collect();
            }
            _ => {}
        }
    }
}

/// Puts a guard into every control token among `tokens` that the text spells.
fn part(text: &mut Cow<'_, str>, tokens: &AddedMatcher) {
    let (mut parted, mut done) = (String::new(), 0);
    while let Some((start, token)) = tokens.next_control(text, done) {
        let first = text[start..].chars().next().map_or(0, char::len_utf8);
        // A token of one character cannot be parted; it is not shown to the model at all.
        let shown = if first < token.content.len() { start + first } else { start };
        parted.push_str(&text[done..shown]);
        parted.push(GUARD);
        done = start + first;
    }
    if done > 0 {
        parted.push_str(&text[done..]);
        *text = parted.into();
    }
}

/// The text without its guards.
pub(crate) fn unguarded(text: &str) -> Cow<'_, str> {
    if text.contains(GUARD) { text.replace(GUARD, "").into() } else { text.into() }
}
