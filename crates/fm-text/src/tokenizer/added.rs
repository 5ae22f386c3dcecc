//! Added tokens: the strings that are cut out of the text before anything else looks at it.
//!
//! Follows `tokenizers` (`AddedVocabulary::find_matches`): leftmost match, the longest where
//! several start at one place; a token that shall be read as text is skipped *after* it matched, so
//! it still hides what overlaps it.

use std::ops::Range;

use kitoken::{Regex, Split, SplitBehavior};
use serde::{Deserialize, Serialize};

use super::file::METASPACE;

/// One entry of `added_tokens` in `tokenizer.json`.
// The four flags are the file format's.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(crate) special: bool,
}

impl AddedToken {
    /// A token that is found as it is, wherever it stands.
    pub(crate) fn new(id: u32, content: &str, special: bool) -> AddedToken {
        AddedToken {
            id,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special,
        }
    }

    /// Whether it tells the model something that is not said in letters. Files call few of these tokens
    /// special (often neither `<think>` nor `<tool_call>`, some not even `<｜User｜>`), but all are spelled with
    /// signs. What else is added is text: white space, words, letters that the merges do not reach.
    pub(crate) fn is_control(&self) -> bool {
        let is_sign = |c: char| !(c.is_alphanumeric() || c.is_whitespace() || c == METASPACE);
        self.special || (self.content.chars().nth(1).is_some() && self.content.contains(is_sign))
    }
}

/// Finds added tokens in text.
#[derive(Debug)]
pub(crate) struct AddedMatcher {
    /// Longest first, so that the first hit at a place is the longest.
    tokens: Vec<AddedToken>,
    /// Which tokens can start with a byte; most bytes start none.
    by_first_byte: Vec<Vec<u32>>,
    /// `\w` as regular expressions have it: letters, marks, decimal digits, connectors, joiners.
    word: Split,
}

/// A cut of the text: an added token, or text between two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Token(u32),
    Text(Range<usize>),
}

impl AddedMatcher {
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> AddedMatcher {
        tokens.retain(|token| !token.content.is_empty());
        tokens.sort_by_key(|token| std::cmp::Reverse(token.content.len()));
        let mut by_first_byte = vec![Vec::new(); 256];
        for (index, token) in tokens.iter().enumerate() {
            by_first_byte[usize::from(token.content.as_bytes()[0])].push(index as u32);
        }
        let word = Regex::new(r"\w").expect("a constant pattern that a test compiles").into();
        let word = Split::Pattern { pattern: word, behavior: SplitBehavior::Match };
        AddedMatcher { tokens, by_first_byte, word }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Cuts `text` at its added tokens; `skip_control` leaves control tokens in the text.
    pub(crate) fn cut(&self, text: &str, skip_control: bool) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let (mut done, mut at) = (0, 0);
        while let Some((start, token)) = self.next_match(text, at, |_| true) {
            let stop = start + token.content.len();
            at = stop;
            if (skip_control && token.is_control())
                || (token.single_word && !self.alone(text, start, stop))
            {
                continue;
            }
            let start = if token.lstrip { text[..start].trim_end().len().max(done) } else { start };
            let spaces = |rest: &str| rest.len() - rest.trim_start().len();
            let stop = if token.rstrip { stop + spaces(&text[stop..]) } else { stop };
            if done < start {
                cuts.push(Cut::Text(done..start));
            }
            cuts.push(Cut::Token(token.id));
            done = stop;
        }
        if done < text.len() {
            cuts.push(Cut::Text(done..text.len()));
        }
        cuts
    }

    /// The first control token that begins at `from` or behind it.
    pub(crate) fn next_control(&self, text: &str, from: usize) -> Option<(usize, &AddedToken)> {
        self.next_match(text, from, AddedToken::is_control)
    }

    fn next_match(
        &self,
        text: &str,
        from: usize,
        wanted: impl Fn(&AddedToken) -> bool,
    ) -> Option<(usize, &AddedToken)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|start| {
            self.by_first_byte.get(usize::from(bytes[start]))?.iter().find_map(|&index| {
                let token = &self.tokens[index as usize];
                let is_here = bytes[start..].starts_with(token.content.as_bytes());
                (is_here && wanted(token)).then_some((start, token))
            })
        })
    }

    /// Whether no word character touches the range from either side.
    fn alone(&self, text: &str, start: usize, stop: usize) -> bool {
        let neighbours = [text[..start].chars().next_back(), text[stop..].chars().next()];
        let is_word = |c: char| !self.word.split(c.encode_utf8(&mut [0; 4])).is_empty();
        !neighbours.into_iter().flatten().any(is_word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken::new(id, content, false)
    }

    #[test]
    fn takes_the_longest_token_at_the_leftmost_place() {
        let matcher = AddedMatcher::new(vec![token(1, "<a"), token(2, "<a>"), token(3, "a>b")]);
        assert_eq!(matcher.cut("x<a>b", false), [Cut::Text(0..1), Cut::Token(2), Cut::Text(4..5)]);
    }

    #[test]
    fn stripping_tokens_swallow_the_spaces_beside_them() {
        let strip = AddedToken { lstrip: true, rstrip: true, ..token(1, "<s>") };
        let matcher = AddedMatcher::new(vec![strip]);
        assert_eq!(
            matcher.cut("a  <s> <s>\n b", false),
            [Cut::Text(0..1), Cut::Token(1), Cut::Token(1), Cut::Text(12..13)]
        );
    }

    #[test]
    fn a_single_word_token_is_not_found_inside_a_word() {
        let word = AddedToken { single_word: true, ..token(1, "day") };
        let matcher = AddedMatcher::new(vec![word]);
        assert_eq!(matcher.cut("monday", false), [Cut::Text(0..6)]);
        assert_eq!(matcher.cut("a day!", false), [Cut::Text(0..2), Cut::Token(1), Cut::Text(5..6)]);
    }

    #[test]
    fn what_is_spelled_with_signs_controls_and_words_do_not() {
        let control = |content: &str| token(1, content).is_control();
        for content in ["<think>", "</tool_call>", "<｜User｜>", "[INST]", "/nothink", "]~b]"] {
            assert!(control(content), "{content}");
        }
        for content in ["\n\n", "   ", "▁▁", "ö", "÷", "東京", "day", "don t"] {
            assert!(!control(content), "{content}");
        }
        assert!(AddedToken::new(1, "end", true).is_control());
    }
}
