//! `logprobs` as completions had them before there were chats: four lists side by side.

use std::collections::BTreeMap;

use fm_text::Tokenizer;
use serde_json::{Value, json};

use crate::answer::TokenOdds;

/// Tokens that wait for their text, and how much of the text has been told.
#[derive(Clone, Debug, Default)]
pub(super) struct LegacyOdds {
    pub(super) waiting: Vec<TokenOdds>,
    /// Characters that begin before the next token.
    chars: usize,
}

impl LegacyOdds {
    /// Behind a text that stands before all tokens.
    pub(super) fn behind(text: &str) -> Self {
        Self { waiting: Vec::new(), chars: text.chars().count() }
    }

    /// What is known of the tokens that wait.
    pub(super) fn write(&mut self, tokenizer: &Tokenizer) -> Value {
        let own = std::mem::take(&mut self.waiting);
        let offsets = own.iter().map(|odds| {
            let offset = self.chars;
            self.chars += width(tokenizer, odds.token);
            offset
        });
        let offsets: Vec<usize> = offsets.collect();
        let spelled = |token: u32| spelled(tokenizer.token_bytes(token).unwrap_or_default());
        let top = own.iter().map(|odds| {
            let top = odds.likeliest.iter();
            top.map(|(token, logprob)| (spelled(*token), *logprob)).collect::<BTreeMap<_, _>>()
        });
        json!({
            "tokens": own.iter().map(|odds| spelled(odds.token)).collect::<Vec<_>>(),
            "token_logprobs": own.iter().map(|odds| odds.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }

    /// The same of a whole text, without the tokens of a stop string behind it.
    pub(super) fn write_all(mut self, tokenizer: &Tokenizer, text: &str) -> Value {
        let end = self.chars + text.chars().count();
        let mut at = self.chars;
        self.waiting.retain(|odds| {
            let within = at < end;
            at += width(tokenizer, odds.token);
            within
        });
        self.write(tokenizer)
    }
}

/// Characters that begin in a token. Special tokens are no text.
fn width(tokenizer: &Tokenizer, token: u32) -> usize {
    let bytes = tokenizer.token_bytes(token).filter(|_| !tokenizer.is_special(token));
    let begins = |byte: &&u8| **byte & 0b1100_0000 != 0b1000_0000;
    bytes.unwrap_or_default().iter().filter(begins).count()
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
    use super::*;

    #[test]
    fn bytes_that_are_no_characters_are_numbers() {
        assert_eq!(spelled("é".as_bytes()), "é");
        assert_eq!(spelled(&[0xc3]), "bytes:\\xc3");
    }
}
