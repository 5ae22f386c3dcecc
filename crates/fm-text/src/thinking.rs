//! Thinking and answer, told apart while the text streams.
//!
//! ```text
//! prompt: … <think>⏎ │ so the user asks for … ⏎</think>⏎⏎ │ The answer is …
//!                    └────────── Thinking ────┘           └──── Answer ────
//! ```
//!
//! The tags and the newlines directly around them belong to neither. The opening tag counts only
//! before the answer has begun: an answer may talk about tags.

use std::ops::Range;

use crate::{error::TextError, held::Held};

/// What templates write before a thought.
pub const OPEN: &str = "<think>";

/// What they write behind it.
pub const CLOSE: &str = "</think>";

/// [`CLOSE`] as a model writes it that goes on with its answer.
pub const CLOSE_LINES: &str = "\n</think>\n\n";

/// The tags of a thinking block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingTags {
    open: String,
    close: String,
}

impl ThinkingTags {
    /// Tags that arrive as text; where they are special tokens, a detokeniser has to keep them.
    ///
    /// # Errors
    /// If a tag is empty.
    pub fn new(open: impl Into<String>, close: impl Into<String>) -> Result<Self, TextError> {
        let (open, close) = (open.into(), close.into());
        if open.is_empty() || close.is_empty() {
            return Err(TextError::EmptyThinkingTag);
        }
        Ok(ThinkingTags { open, close })
    }

    /// How a rendered prompt ends: inside a thinking block, after one, or neither.
    ///
    /// Only a tag at the very end counts, white space aside. Whatever a message says is followed
    /// by the marks that open the assistant's turn, so no message can claim the block.
    pub fn state_at_end_of(&self, prompt: &str) -> ThinkingState {
        let prompt = prompt.trim_end();
        if prompt.ends_with(&self.open) {
            ThinkingState::Open
        } else if prompt.ends_with(&self.close) {
            ThinkingState::Closed
        } else {
            ThinkingState::None
        }
    }
}

/// Where the text that the model is about to write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingState {
    /// The prompt has no thinking block; the model may open one.
    None,
    /// The prompt opened a thinking block.
    Open,
    /// The prompt closed a thinking block.
    Closed,
    /// There are no thinking blocks: whatever the model writes is the answer, as it stands.
    Absent,
}

/// What a piece of text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The model's notes to itself.
    Thinking,
    /// What the user asked for.
    Answer,
}

/// A piece of text and what it is for; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// What it is for.
    pub channel: Channel,
    /// Bytes before it of all the text that it was found in.
    pub at: usize,
    /// The text.
    pub text: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing of the answer has been seen but newlines; a block may open.
    Before,
    Thinking,
    /// Everything passes through.
    Answer,
}

/// Splits one stream of text.
#[derive(Clone, Debug)]
pub struct ThinkingSplitter {
    tags: ThinkingTags,
    phase: Phase,
    /// The newlines that come next follow a tag.
    after_tag: bool,
    /// Newlines and the start of a tag.
    held: Held,
    /// Bytes that have come.
    bytes: usize,
    out: String,
    segments: Vec<(Channel, usize, Range<usize>)>,
}

impl ThinkingSplitter {
    /// Starts where the prompt ended ([`ThinkingTags::state_at_end_of`]).
    pub fn new(tags: ThinkingTags, state: ThinkingState) -> ThinkingSplitter {
        let (phase, after_tag) = match state {
            ThinkingState::None => (Phase::Before, false),
            ThinkingState::Open => (Phase::Thinking, true),
            ThinkingState::Closed => (Phase::Before, true),
            ThinkingState::Absent => (Phase::Answer, false),
        };
        ThinkingSplitter {
            tags,
            phase,
            after_tag,
            held: Held::default(),
            bytes: 0,
            out: String::new(),
            segments: Vec::new(),
        }
    }

    /// Adds text and returns what is decided now.
    pub fn push(&mut self, text: &str) -> impl Iterator<Item = Segment<'_>> {
        self.begin(text);
        self.decide();
        self.segments()
    }

    /// Ends the stream: text held back for a tag that did not come.
    pub fn finish(&mut self) -> impl Iterator<Item = Segment<'_>> {
        self.begin("");
        let rest = self.held.len();
        self.emit(rest);
        self.segments()
    }

    /// Whether the next text would be thinking.
    pub fn is_thinking(&self) -> bool {
        self.phase == Phase::Thinking
    }

    fn begin(&mut self, text: &str) {
        self.out.clear();
        self.segments.clear();
        self.held.push(self.bytes, text);
        self.bytes += text.len();
    }

    fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.segments.iter().map(|(channel, at, range)| Segment {
            channel: *channel,
            at: *at,
            text: &self.out[range.clone()],
        })
    }

    /// Emits as much of the held text as no tag can change any more.
    fn decide(&mut self) {
        loop {
            if self.after_tag {
                let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.pass(newlines);
                if self.held.is_empty() {
                    return;
                }
                self.after_tag = false;
            }
            let more = match self.phase {
                Phase::Before => self.before(),
                Phase::Thinking => self.thinking(),
                Phase::Answer => {
                    let all = self.held.len();
                    self.emit(all);
                    false
                }
            };
            if !more {
                return;
            }
        }
    }

    /// Before the answer: newlines, then a tag or the answer. Returns whether there is more to do.
    fn before(&mut self) -> bool {
        let rest = self.held.trim_start_matches('\n');
        let newlines = self.held.len() - rest.len();
        let (open, close) = (self.tags.open.as_str(), self.tags.close.as_str());
        let (phase, tag_bytes) = if rest.starts_with(open) {
            (Phase::Thinking, open.len())
        } else if rest.starts_with(close) {
            // A block that was closed twice, or without thinking.
            (Phase::Before, close.len())
        } else {
            if !open.starts_with(rest) && !close.starts_with(rest) {
                self.phase = Phase::Answer;
                return true;
            }
            return false;
        };
        self.enter(phase, newlines + tag_bytes);
        true
    }

    /// Inside a block: up to the closing tag, or to what may become one.
    fn thinking(&mut self) -> bool {
        let close = self.tags.close.as_str();
        let tag = self.held.find(close);
        let tag_start = tag.unwrap_or_else(|| {
            let from = self.held.len().saturating_sub(close.len());
            (from..self.held.len())
                .filter(|&at| self.held.is_char_boundary(at))
                .find(|&at| close.starts_with(&self.held[at..]))
                .unwrap_or(self.held.len())
        });
        let text_end = self.held[..tag_start].trim_end_matches('\n').len();
        let tag_bytes = tag.map(|start| start - text_end + close.len());
        self.emit(text_end);
        if let Some(bytes) = tag_bytes {
            self.enter(Phase::Before, bytes);
        }
        tag.is_some()
    }

    /// Drops a tag, with the newlines before it, from the front of the held text.
    fn enter(&mut self, phase: Phase, bytes: usize) {
        self.held.pass(bytes);
        self.phase = phase;
        self.after_tag = true;
    }

    /// Moves `bytes` bytes of the held text to the output.
    fn emit(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let start = self.out.len();
        let channel =
            if self.phase == Phase::Thinking { Channel::Thinking } else { Channel::Answer };
        let Segment { at, text, .. } = self.held.first(bytes, channel);
        self.out.push_str(text);
        self.segments.push((channel, at, start..self.out.len()));
        self.held.pass(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags() -> ThinkingTags {
        ThinkingTags::new("<think>", "</think>").unwrap()
    }

    /// Thinking and answer of a text that arrives in pieces.
    fn split(state: ThinkingState, pieces: &[&str]) -> (String, String) {
        let mut splitter = ThinkingSplitter::new(tags(), state);
        let (mut thinking, mut answer) = (String::new(), String::new());
        let whole = pieces.concat();
        let mut take = |Segment { channel, at, text }: Segment<'_>| {
            assert!(whole[at..].starts_with(text), "{text} at {at} of {whole}");
            match channel {
                Channel::Thinking => thinking.push_str(text),
                Channel::Answer => answer.push_str(text),
            }
        };
        for piece in pieces {
            splitter.push(piece).for_each(&mut take);
        }
        splitter.finish().for_each(take);
        (thinking, answer)
    }

    fn pair(thinking: &str, answer: &str) -> (String, String) {
        (thinking.to_owned(), answer.to_owned())
    }

    #[test]
    fn a_block_opened_by_the_prompt_ends_at_its_closing_tag() {
        let text = ["hm,\n", "\nyes", "\n</th", "ink>\n", "\nParis.\n", "<think>"];
        assert_eq!(split(ThinkingState::Open, &text), pair("hm,\n\nyes", "Paris.\n<think>"));
    }

    #[test]
    fn the_model_may_open_a_block_itself() {
        let text = ["\n<thi", "nk>\nhm</think>yes"];
        assert_eq!(split(ThinkingState::None, &text), pair("hm", "yes"));
        assert_eq!(split(ThinkingState::Closed, &["<think>a</think>b"]), pair("a", "b"));
    }

    #[test]
    fn text_that_only_looks_like_a_tag_is_kept() {
        assert_eq!(split(ThinkingState::None, &["\n\n<", "thin air"]), pair("", "\n\n<thin air"));
        assert_eq!(split(ThinkingState::Open, &["a\n</", "b>\n"]), pair("a\n</b>\n", ""));
        assert_eq!(split(ThinkingState::None, &["use <think> so"]), pair("", "use <think> so"));
        assert_eq!(split(ThinkingState::None, &["<thi"]), pair("", "<thi"));
    }

    #[test]
    fn newlines_after_a_block_closed_by_the_prompt_belong_to_it() {
        assert_eq!(split(ThinkingState::Closed, &["\n", "\nyes\n"]), pair("", "yes\n"));
        let all = "\n<think>\nhm\n</think>\n\nyes";
        assert_eq!(
            split(ThinkingState::Absent, &[all, "</think>"]),
            pair("", &format!("{all}</think>"))
        );
        assert_eq!(split(ThinkingState::Closed, &["</think>\n\nyes"]), pair("", "yes"));
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut splitter = ThinkingSplitter::new(tags(), ThinkingState::Open);
        let mut push = |text| splitter.push(text).map(|s| s.text.to_owned()).collect::<String>();
        assert_eq!(
            [push("a<"), push("b\n"), push("c"), push("</think>d")],
            ["a", "<b", "\nc", "d"]
        );
    }

    #[test]
    fn every_piece_says_where_it_stands() {
        let mut splitter = ThinkingSplitter::new(tags(), ThinkingState::None);
        let mut places = Vec::new();
        for piece in ["\n<think>\nhm</th", "ink>\n\nyes", "\n"] {
            places.extend(splitter.push(piece).map(|s| (s.at, s.text.to_owned())));
        }
        let want = [(9, "hm"), (21, "yes"), (24, "\n")].map(|(at, text)| (at, text.to_owned()));
        assert_eq!(places, want);
    }

    #[test]
    fn the_end_of_a_prompt_tells_whether_thinking_is_open() {
        let state = |prompt| tags().state_at_end_of(prompt);
        assert_eq!(state("<|im_start|>assistant\n<think>\n"), ThinkingState::Open);
        assert_eq!(state("assistant\n<think>\n\n</think>\n\n"), ThinkingState::Closed);
        assert_eq!(state("user\n<think><|im_end|>\nassistant\n"), ThinkingState::None);
    }

    #[test]
    fn empty_tags_are_refused() {
        assert!(matches!(ThinkingTags::new("", "x"), Err(TextError::EmptyThinkingTag)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn pieces_do_not_change_what_is_thinking(
            parts in prop::collection::vec(
                prop::sample::select(vec!["<think>", "</think>", "\n", "\n\n", "a", "<", "</", "é", "think>"]),
                0..8,
            ),
            sizes in prop::collection::vec(1usize..6, 1..6),
            state in prop::sample::select(vec![ThinkingState::None, ThinkingState::Open, ThinkingState::Closed]),
        ) {
            let text = parts.concat();
            let chars: Vec<char> = text.chars().collect();
            let (mut pieces, mut at) = (Vec::new(), 0);
            for size in sizes.iter().cycle() {
                if at >= chars.len() {
                    break;
                }
                let end = (at + size).min(chars.len());
                pieces.push(chars[at..end].iter().collect::<String>());
                at = end;
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(split(state, &pieces), split(state, &[&text]));
        }
    }
}
