//! Tokens of texts that nobody is going to answer, which may be much longer than a context.
//!
//! A long one is encoded in pieces: between two of them it is asked whether anybody still waits. A piece ends where
//! no token reaches over: what is around the cut is encoded as a whole and in its two parts, and has to be the same.
//! Where there is no such place among those that are tried, as in a text of nothing but digits that the vocabulary
//! takes three at a time, a piece may have a token more than the whole would.

use std::sync::Weak;

use fm_text::{SpecialTokens, TextError, Tokenizer};

use crate::{
    kept::Kept,
    model::{Conversation, Model},
    problem::Problem,
};

/// Bytes of what is counted in one go, well within a second.
pub(crate) const SHORT_MAX: usize = 1 << 20;

/// Bytes of a piece: some 50 ms.
const PIECE_BYTES: usize = 170 * AROUND;

/// Bytes on either side of a cut that are encoded to see whether a token reaches over it: a multiple of what
/// vocabularies take repeated letters by, powers of two and threes.
const AROUND: usize = 384;

/// Places of each kind that are tried.
const TRIES: usize = 4;

/// Whoever asked, as long as it waits: it has the other end.
pub(crate) type Waits = Weak<()>;

impl Model {
    /// Tokens of a conversation, however many: who asks wants to know how much to leave out.
    pub(crate) fn count(
        &self,
        conversation: Conversation,
        kept: &Kept,
        waits: &Waits,
    ) -> Result<usize, Problem> {
        let (rendered, _) = self.render(conversation, kept, None)?;
        tokens(&self.tokenizer, &rendered, waits)
    }
}

/// Counts the tokens of a text that a template made.
fn tokens(tokenizer: &Tokenizer, text: &str, waits: &Waits) -> Result<usize, Problem> {
    let (mut tokens, mut rest) = (0, text);
    while text.len() > SHORT_MAX && rest.len() > PIECE_BYTES {
        if waits.strong_count() == 0 {
            return Err(Problem::Gone);
        }
        let (piece, behind) = rest.split_at(cut(tokenizer, rest)?);
        tokens += encode(tokenizer, piece)?.len();
        rest = behind;
    }
    Ok(tokens + encode(tokenizer, rest)?.len())
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TextError> {
    tokenizer.encode(text, SpecialTokens::ParseTemplate)
}

/// Where the first piece of a text ends: before a line, else before a space, else anywhere.
fn cut(tokenizer: &Tokenizer, text: &str) -> Result<usize, TextError> {
    let end = text.floor_char_boundary(PIECE_BYTES);
    let start = text.floor_char_boundary(PIECE_BYTES / 2);
    let bytes = text.as_bytes();
    let is_word = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let lines = (start..end).rev().filter(|at| bytes[at - 1] == b'\n' && is_word(*at));
    let spaces = (start..end).rev().filter(|at| bytes[*at] == b' ' && is_word(at + 1));
    let spaces = spaces.filter(|at| is_word(at - 1));
    let any = (start..=end).rev().filter(|at| text.is_char_boundary(*at));
    for at in lines.take(TRIES).chain(spaces.take(TRIES)).chain(any.take(TRIES)) {
        if is_seam(tokenizer, text, at)? {
            return Ok(at);
        }
    }
    Ok(end)
}

/// Whether what is around this place is the same tokens in two parts.
fn is_seam(tokenizer: &Tokenizer, text: &str, at: usize) -> Result<bool, TextError> {
    let (start, end) = (at.saturating_sub(AROUND), (at + AROUND).min(text.len()));
    let (start, end) = (text.floor_char_boundary(start), text.floor_char_boundary(end));
    let whole = encode(tokenizer, &text[start..end])?;
    let before = encode(tokenizer, &text[start..at])?;
    Ok(whole == [before, encode(tokenizer, &text[at..end])?].concat())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fm_testkit::golden::demo_dir;

    use super::*;

    #[test]
    fn a_long_text_has_the_tokens_that_it_has_in_one_go() {
        let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
        let (asks, source) = (Arc::new(()), include_str!("count.rs"));
        let crlf = source.replace('\n', "\r\n");
        for part in
            [source, &crlf, "1", "<|im_start|>user\n", "a  b\t\n\n \n", "é東京e\u{301}", "=+ "]
        {
            let text = part.repeat((SHORT_MAX + 3 * PIECE_BYTES) / part.len());
            let text = text.replace("count", "<|im_end|>");
            let whole = encode(&tokenizer, &text).unwrap().len();
            let counted = tokens(&tokenizer, &text, &Arc::downgrade(&asks)).unwrap();
            assert_eq!(counted, whole, "{part:?}");
        }
    }

    #[test]
    fn what_nobody_waits_for_is_not_counted_on() {
        let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
        let gone = Weak::new();
        let long = tokens(&tokenizer, &"word ".repeat(SHORT_MAX), &gone);
        assert!(matches!(long, Err(Problem::Gone)));
        assert!(
            tokens(&tokenizer, "word", &gone).unwrap() > 0,
            "one that is short has been counted by then"
        );
    }
}
