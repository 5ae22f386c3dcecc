//! Tokens to text, one token at a time, in whole characters.
//!
//! A byte-level token may end in the middle of a character. The detokeniser keeps the unfinished
//! bytes (at most three) until the next token, and writes U+FFFD for what can no longer become a
//! character: one for each maximal subpart of an ill-formed sequence, as the Unicode Standard
//! recommends (section 3.9) and [`String::from_utf8_lossy`] does. So the pieces put together are
//! the lossy conversion of all bytes put together, wherever the tokens ended.

use crate::{
    error::TextError,
    tokenizer::{Tokenizer, decoder::Start},
};

/// What to do with special tokens such as `<|im_end|>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// They leave no trace in the text.
    Skip,
    /// They are written out.
    Keep,
}

/// What a token added to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spelled<'a> {
    /// The characters that are complete now; often none.
    pub text: &'a str,
    /// Where the token's own bytes begin in the text from here on, behind those that completed a character
    /// of the tokens before it. Nothing if it has none.
    pub begins: Option<usize>,
}

/// Turns one stream of tokens into text.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: SpecialText,
    /// Special tokens that are written out all the same.
    kept: Vec<u32>,
    /// What the next token with bytes loses.
    start: Start,
    utf8: Utf8Stream,
}

impl<'t> Detokenizer<'t> {
    /// Starts at a character border.
    pub fn new(tokenizer: &'t Tokenizer, special: SpecialText) -> Detokenizer<'t> {
        let utf8 = Utf8Stream::default();
        Detokenizer { tokenizer, special, kept: Vec::new(), start: Start::Kept, utf8 }
    }

    /// Of a text that begins here, and does not go on: without the space that the tokenizer's decoder takes away
    /// from the start of a text.
    #[must_use]
    pub fn from_start(mut self) -> Self {
        self.start = self.tokenizer.start();
        self
    }

    /// Writes out these special tokens: marks that somebody reads who comes after.
    pub fn keeping(mut self, texts: &[&str]) -> Self {
        self.kept = texts.iter().filter_map(|text| self.tokenizer.token_id(text)).collect();
        self
    }

    /// Adds a token and returns the characters that are complete now; often none.
    ///
    /// Allocates nothing once the longest token has been seen.
    ///
    /// An id of the model that has no token spells nothing: embeddings are padded, and nothing keeps the model
    /// from choosing a row that stands for nothing.
    ///
    /// # Errors
    /// If the model has no such id; nothing changed then.
    pub fn push(&mut self, id: u32) -> Result<&str, TextError> {
        Ok(self.spell(id)?.text)
    }

    /// The same, and where in it the token begins.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn spell(&mut self, id: u32) -> Result<Spelled<'_>, TextError> {
        let skip = self.special == SpecialText::Skip && self.tokenizer.is_special(id);
        if skip && !self.kept.contains(&id) {
            return Ok(Spelled { text: "", begins: None });
        }
        let vocab_len = self.tokenizer.vocab_len();
        if id as usize >= vocab_len {
            return Err(TextError::UnknownToken { id, vocab_len });
        }
        match self.tokenizer.token_bytes(id) {
            Some(bytes) if !bytes.is_empty() => {
                let start = std::mem::take(&mut self.start);
                Ok(self.utf8.push(&start.of(bytes)))
            }
            _ => Ok(Spelled { text: "", begins: None }),
        }
    }

    /// Sequences of bytes so far that could not become characters.
    pub fn ill_formed(&self) -> usize {
        self.utf8.ill_formed
    }

    /// Ends the stream: what is left of an unfinished character, as U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.utf8.finish()
    }
}

/// Bytes in, whole characters out.
#[derive(Debug, Default)]
struct Utf8Stream {
    /// The start of a character; so far it could still become one.
    pending: Vec<u8>,
    text: String,
    ill_formed: usize,
}

impl Utf8Stream {
    fn push(&mut self, bytes: &[u8]) -> Spelled<'_> {
        self.text.clear();
        let unfinished = self.pending.len();
        let mut begins = unfinished;
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if at_end && could_become_char(invalid) {
                break;
            }
            done += invalid.len();
            if !invalid.is_empty() {
                self.ill_formed += 1;
                self.text.push(char::REPLACEMENT_CHARACTER);
                if done == unfinished {
                    // What was unfinished is another number of bytes now.
                    begins = self.text.len();
                }
            }
        }
        self.pending.drain(..done);
        Spelled { text: &self.text, begins: Some(begins).filter(|_| !bytes.is_empty()) }
    }

    fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            // A prefix of a character is one maximal subpart.
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.text
    }
}

/// Whether more bytes could make a character of `bytes`.
fn could_become_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use super::*;

    fn streamed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        for piece in pieces {
            text.push_str(stream.push(piece).text);
        }
        text + stream.finish()
    }

    /// Bytes in which characters, halves of characters and nonsense are all frequent.
    fn torn_text() -> impl Strategy<Value = Vec<u8>> {
        let char_bytes = any::<char>().prop_map(|c| c.to_string().into_bytes());
        let torn_char = any::<char>().prop_flat_map(|c| {
            let bytes = c.to_string().into_bytes();
            (0..=bytes.len()).prop_map(move |len| bytes[..len].to_vec())
        });
        let edge = prop::sample::select(vec![
            0xE0, 0xED, 0xF0, 0xF4, 0xC0, 0xF5, 0x80, 0x9F, 0xA0, 0x90, 0xBF,
        ]);
        let byte = prop_oneof![any::<u8>(), edge].prop_map(|byte| vec![byte]);
        prop::collection::vec(prop_oneof![char_bytes, torn_char, byte], 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    /// Pieces of these sizes, again and again.
    fn cut<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
        let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
        std::iter::from_fn(move || {
            let size = (*sizes.next()?).min(rest.len());
            let (piece, after) = rest.split_at(size);
            rest = after;
            (size > 0).then_some(piece)
        })
    }

    /// Where every byte stands in the text that all of them are.
    fn places(bytes: &[u8]) -> Vec<usize> {
        let (mut places, mut at) = (Vec::new(), 0);
        for chunk in bytes.utf8_chunks() {
            let (valid, invalid) = (chunk.valid().len(), chunk.invalid().len());
            places.extend(at..at + valid + invalid);
            at += valid + if invalid > 0 { char::REPLACEMENT_CHARACTER.len_utf8() } else { 0 };
        }
        places
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn every_piece_says_where_it_begins(
            bytes in torn_text(),
            sizes in prop::collection::vec(1usize..5, 1..8),
        ) {
            let places = places(&bytes);
            let (mut stream, mut from, mut told) = (Utf8Stream::default(), 0, 0);
            for piece in cut(&bytes, &sizes) {
                let Spelled { text, begins } = stream.push(piece);
                prop_assert_eq!(begins.map(|begins| told + begins), Some(places[from]));
                told += text.len();
                from += piece.len();
                prop_assert_eq!(stream.push(&[]), Spelled { text: "", begins: None });
            }
        }

        #[test]
        fn any_split_of_any_bytes_reads_like_the_whole(
            bytes in torn_text(),
            cuts in prop::collection::vec(1usize..5, 1..8),
        ) {
            prop_assert_eq!(streamed(cut(&bytes, &cuts)), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn every_character_is_shown_with_its_last_byte() {
        let mut stream = Utf8Stream::default();
        let shown: Vec<String> =
            "é€🚀".bytes().map(|byte| stream.push(&[byte]).text.to_owned()).collect();
        assert_eq!(shown, ["", "é", "", "", "€", "", "", "", "🚀"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn hopeless_bytes_are_not_held_back() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xFF").text, "a\u{FFFD}");
        assert_eq!(stream.push(b"\xE2\x82").text, "");
        assert_eq!(stream.push(b"b").text, "\u{FFFD}b");
        assert_eq!(stream.push(b"\xF0\x9F").text, "");
        assert_eq!(stream.finish(), "\u{FFFD}");
    }

    #[test]
    fn special_tokens_can_be_left_out() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let tokenizer = Tokenizer::open(&demo, None).unwrap();
        let id = |text| tokenizer.token_id(text).unwrap();
        let ids = [id("<|im_start|>"), id("<think>"), id("a"), id("<|im_end|>")];
        let read = |special| {
            let mut detokenizer = Detokenizer::new(&tokenizer, special);
            ids.map(|id| detokenizer.push(id).unwrap().to_owned()).concat() + detokenizer.finish()
        };
        assert_eq!(read(SpecialText::Skip), "<think>a");
        assert_eq!(read(SpecialText::Keep), "<|im_start|><think>a<|im_end|>");
    }

    #[test]
    fn a_text_begins_without_the_space_that_its_decoder_takes_away() {
        let pieces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/pieces");
        let tokenizer = Tokenizer::open(&pieces, None).unwrap();
        let ids = tokenizer.encode(" a b", crate::SpecialTokens::Parse).unwrap();
        let start = tokenizer.token_id("<s>").unwrap();
        let read = |mut detokenizer: Detokenizer<'_>| {
            let ids = [start].into_iter().chain(ids.clone());
            ids.map(|id| detokenizer.push(id).unwrap().to_owned()).collect::<String>()
        };
        let new = || Detokenizer::new(&tokenizer, SpecialText::Skip);
        // The encoder puts one before the text.
        assert_eq!((read(new()), read(new().from_start())), ("  a b".into(), " a b".into()));
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let tokenizer = Tokenizer::open(&demo, None).unwrap();
        let the = tokenizer.token_id(" the").unwrap();
        let mut kept = Detokenizer::new(&tokenizer, SpecialText::Skip).from_start();
        assert_eq!(kept.push(the).unwrap(), " the");
    }

    #[test]
    fn ids_of_the_model_without_a_token_leave_no_trace() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let mut json: serde_json::Value =
            serde_json::from_slice(&fs::read(demo.join("tokenizer.json")).unwrap()).unwrap();
        // A gap and, with more rows than tokens, an end: 2041 to 2049.
        json["added_tokens"].as_array_mut().unwrap().retain(|token| token["id"] != 2041);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path(), None).unwrap().for_model(2050);
        let halves = tokenizer.encode("é𐂅", crate::SpecialTokens::Parse).unwrap();
        for special in [SpecialText::Skip, SpecialText::Keep] {
            let mut detokenizer = Detokenizer::new(&tokenizer, special);
            let mut text = String::new();
            for id in halves.iter().flat_map(|half| [2041, *half, 2048, 2049]) {
                text.push_str(detokenizer.push(id).unwrap());
            }
            assert_eq!(text + detokenizer.finish(), "é𐂅");
            for id in [2050, u32::MAX] {
                let unknown = detokenizer.push(id).map(drop);
                let expected = format!("token {id} is not in the vocabulary of 2050 tokens");
                assert_eq!(unknown.unwrap_err().to_string(), expected);
            }
        }
        let own = Tokenizer::open(&demo, None).unwrap().for_model(7);
        assert_eq!(Detokenizer::new(&own, SpecialText::Keep).push(2041).unwrap(), "<|im_end|>");
    }
}
