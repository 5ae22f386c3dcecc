//! `logprobs` as completions had them before there were chats: four lists side by side.

use std::collections::BTreeMap;

use fm_text::Tokenizer;
use serde_json::{Value, json};

use crate::answer::TokenOdds;

/// Tokens of the text that comes next, and how much of the text has been told.
#[derive(Clone, Debug, Default)]
pub(super) struct LegacyOdds {
    pub(super) waiting: Vec<TokenOdds>,
    /// Bytes of the answer that have been told.
    bytes: usize,
    /// Characters that begin in them, and in what stands before the answer.
    chars: usize,
}

impl LegacyOdds {
    /// Behind a text that stands before all tokens.
    pub(super) fn behind(text: &str) -> Self {
        Self { waiting: Vec::new(), bytes: 0, chars: text.chars().count() }
    }

    /// What is known of the tokens that begin in the next piece of the text.
    pub(super) fn write(&mut self, tokenizer: &Tokenizer, text: &str) -> Value {
        let own = std::mem::take(&mut self.waiting);
        let mut rest = text.as_bytes();
        let offsets = own.iter().map(|odds| {
            let (before, behind) = rest.split_at(odds.at - self.bytes);
            self.pass(before);
            rest = behind;
            self.chars
        });
        let offsets: Vec<usize> = offsets.collect();
        self.pass(rest);
        let spelled = |token: u32| spelled(tokenizer.token_bytes(token).unwrap_or_default());
        let top = own.iter().map(|odds| {
            // The one that was chosen is among them, likely or not.
            let top = odds.likeliest.iter().copied().chain([(odds.token, odds.logprob)]);
            top.map(|(token, logprob)| (spelled(token), logprob)).collect::<BTreeMap<_, _>>()
        });
        json!({
            "tokens": own.iter().map(|odds| spelled(odds.token)).collect::<Vec<_>>(),
            "token_logprobs": own.iter().map(|odds| odds.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }

    fn pass(&mut self, text: &[u8]) {
        let begins = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
        self.bytes += text.len();
        self.chars += text.iter().filter(begins).count();
    }
}

/// A token as text; bytes that are no characters by their numbers, as the original writes them.
fn spelled(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let hex = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
    ["bytes:".to_owned()].into_iter().chain(hex).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn offsets_count_the_characters_that_begin_before_a_token() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let tokenizer = Tokenizer::open(&demo, None).unwrap();
        let odds = |at| TokenOdds { token: 5, at, logprob: 0.0, likeliest: Vec::new() };
        let mut legacy = LegacyOdds::behind("an é");
        // The halves of a character, what is none, and a letter; then the next piece.
        legacy.waiting = [0, 1, 2, 5].map(odds).to_vec();
        assert_eq!(legacy.write(&tokenizer, "é\u{FFFD}xy")["text_offset"], json!([4, 5, 5, 6]));
        legacy.waiting = vec![odds(8)];
        assert_eq!(legacy.write(&tokenizer, "é")["text_offset"], json!([9]));
    }

    #[test]
    fn bytes_that_are_no_characters_are_numbers() {
        assert_eq!(spelled("é".as_bytes()), "é");
        assert_eq!(spelled(&[0xc3]), "bytes:\\xc3");
    }
}
