//! Added tokens: the strings that are cut out of the text before anything else looks at it.
//!
//! Follows `tokenizers` (`AddedVocabulary::find_matches`): leftmost match, the longest where
//! several start at one place; a token that shall be read as text is skipped *after* it matched, so
//! it still hides what overlaps it.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
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
    all: Search,
    /// Those that are control tokens.
    control: Search,
    /// `\w` as regular expressions have it: letters, marks, decimal digits, connectors, joiners.
    word: Split,
}

/// Finds some of them, in a time that does not depend on how many there are.
#[derive(Debug)]
struct Search {
    tokens: Vec<AddedToken>,
    search: AhoCorasick,
}

impl Search {
    fn new(tokens: Vec<AddedToken>) -> Self {
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.content))
            .expect("fewer than two thousand million bytes of tokens");
        Self { tokens, search }
    }

    /// The first that begins at `from` or behind it, the longest of those that begin there.
    fn next(&self, text: &str, from: usize) -> Option<(usize, &AddedToken)> {
        let found = self.search.find(Input::new(text).range(from..))?;
        Some((found.start(), &self.tokens[found.pattern().as_usize()]))
    }
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
        let word = Regex::new(r"\w").expect("a constant pattern that a test compiles").into();
        let word = Split::Pattern { pattern: word, behavior: SplitBehavior::Match };
        let control = tokens.iter().filter(|token| token.is_control()).cloned().collect();
        AddedMatcher { all: Search::new(tokens), control: Search::new(control), word }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.tokens.is_empty()
    }

    /// Cuts `text` at its added tokens; `skip_control` leaves control tokens in the text.
    pub(crate) fn cut(&self, text: &str, skip_control: bool) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let (mut done, mut at) = (0, 0);
        while let Some((start, token)) = self.all.next(text, at) {
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
        self.control.next(text, from)
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
    use std::cmp::Reverse;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken::new(id, content, false)
    }

    #[test]
    fn takes_the_longest_token_at_the_leftmost_place() {
        let matcher = AddedMatcher::new(vec![token(1, "<a"), token(2, "<a>"), token(3, "a>b")]);
        assert_eq!(matcher.cut("x<a>b", false), [Cut::Text(0..1), Cut::Token(2), Cut::Text(4..5)]);
    }

    proptest! {
        #[test]
        fn finds_what_a_look_at_every_place_finds(
            text in "[ab<|>é]{0,24}",
            contents in vec("[ab<|>é]{1,4}", 0..8),
        ) {
            let tokens: Vec<_> = (0..).zip(&contents).map(|(id, text)| token(id, text)).collect();
            let at = |start: usize| {
                let here = tokens.iter().filter(|token| text[start..].starts_with(&token.content));
                // Of two that are alike the first.
                let longest = here.max_by_key(|token| (token.content.len(), Reverse(token.id)));
                longest.map(|token| (start, token.id))
            };
            let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
            let search = Search::new(tokens.clone());
            for &from in &starts {
                let found = search.next(&text, from).map(|(start, token)| (start, token.id));
                prop_assert_eq!(found, starts.iter().filter(|start| **start >= from).find_map(|&start| at(start)));
            }
        }
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
