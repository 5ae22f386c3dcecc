//! `tokenizer.json`, made exact.
//!
//! `kitoken` converts the file, and departs from `tokenizers` in places that are repaired here or
//! refused (`tokenizer/exact.rs`), because another id is another prompt:
//!
//! * it merges by the *resulting token*, `tokenizers` by the *pair*, so it gets the vocabulary for
//!   which that is the same ([`Reached`]);
//! * it leaves added tokens out of the vocabulary, where text may still merge to them, and takes
//!   byte tokens (`<0x41>`) for bytes without a fallback: its vocabulary is not used at all;
//! * its split pattern of a plain `ByteLevel` pre-tokenizer is not GPT-2's, and where it splits at
//!   a single character it takes that for one byte;
//! * its `Metaspace` split keeps runs of `▁` together;
//! * it splits text at added tokens even where they shall be read as text. Added tokens are cut by
//!   [`AddedMatcher`](super::added::AddedMatcher) instead and never reach it;
//! * it pads and truncates if the file says so, which `transformers` never does by itself.

use std::{collections::HashMap, path::Path, thread};

use kitoken::{
    Definition, Fallback, Model, Normalization, Processing, Regex, SpecialTokenKind, Split,
    SplitBehavior, SplitPattern,
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    added::AddedToken, beside::Beside, decoder::Start, exact, frame::Frame, reach::Reached,
    token_table::TokenTable,
};
use crate::{error::TextError, meanwhile::meanwhile};

/// Everything a tokenizer is made of; what the cache file stores.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The converted tokenizer, repaired, without added tokens.
    pub(crate) definition: Definition,
    /// The added tokens.
    pub(crate) added: Vec<AddedToken>,
    /// Tokens that only a whole piece of split text can be, never the result of merges
    /// (`ignore_merges`); usually none.
    pub(crate) whole_pieces: Vec<(u32, Vec<u8>)>,
    /// The bytes of every token.
    pub(crate) table: TokenTable,
    /// What stands around a text that no chat template made.
    pub(crate) frame: Frame,
    /// What its text loses where it begins.
    pub(crate) start: Start,
}

/// `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct TokenizerJson {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    pub(super) model: BpeJson,
}

/// `model` of `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct BpeJson {
    pub(super) vocab: HashMap<String, u32>,
    pub(super) merges: Vec<MergeJson>,
    pub(super) ignore_merges: Option<bool>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) unk_token: Option<String>,
    pub(super) dropout: Option<f32>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum MergeJson {
    Joined(String),
    Pair(String, String),
}

impl MergeJson {
    pub(super) fn pair(&self) -> Option<(&str, &str)> {
        match self {
            MergeJson::Joined(joined) => joined.split_once(' '),
            MergeJson::Pair(left, right) => Some((left, right)),
        }
    }
}

/// What the Llama lineage writes for a space.
pub(super) const METASPACE: char = '▁';

impl Parts {
    /// Converts the text of `tokenizer.json`, and takes what lies beside it; `path` is for errors.
    pub(super) fn from_json(json: &[u8], beside: Beside, path: &Path) -> Result<Parts, TextError> {
        let unsupported =
            |feature| TextError::UnsupportedTokenizer { path: path.to_owned(), feature };
        let (definition, json) = thread::scope(|scope| {
            let parsed = meanwhile(scope, || serde_json::from_slice::<TokenizerJson>(json));
            (Definition::from_tokenizers_slice(json), parsed())
        });
        let mut definition =
            definition.map_err(|source| TextError::Convert { path: path.to_owned(), source })?;
        let Model::BytePair { vocab, chars } = &mut definition.model else {
            return Err(unsupported("a model other than BPE"));
        };
        let json = json.map_err(|source| TextError::Json { path: path.to_owned(), source })?;
        if let Some(feature) = exact::unsupported_feature(&json, *chars) {
            return Err(unsupported(feature));
        }
        let start = Start::of_decoder(&json.decoder, *chars).map_err(unsupported)?;
        let Reached { vocab: reached, whole_pieces, has_byte_fallback } =
            Reached::of(&json.model, *chars).map_err(unsupported)?;
        // The converter asks for bytes of at least one token.
        if reached.is_empty() {
            return Err(unsupported("an empty vocabulary"));
        }
        *vocab = reached;
        let frame = Frame::of(&json.post_processor)
            .ok_or_else(|| unsupported("a post-processor that is not known"))?;

        let bytes = |text: &str| if *chars { char_bytes(text) } else { byte_bytes(text) };
        let table = |added: &[AddedToken]| {
            let vocab = json.model.vocab.iter().map(|(text, &id)| (id, bytes(text)));
            TokenTable::new(
                vocab.chain(added.iter().map(|t| (t.id, t.content.clone().into_bytes()))),
            )
        };
        let known = json.added_tokens.len();
        let mut whole = table(&json.added_tokens);
        let added = beside.merge(json.added_tokens, (&json.model.vocab, &whole))?;
        if added.iter().any(|token| token.normalized) && exact::normalizes_late(&json.pre_tokenizer)
        {
            return Err(unsupported("normalized added tokens and spaces written as text is split"));
        }
        if added.len() > known {
            whole = table(&added);
        }
        keep_unknown_token_only(&mut definition);
        repair_splits(&mut definition);
        let config = &mut definition.config;
        config.fallback.retain(|fallback| has_byte_fallback || *fallback != Fallback::Bytes);
        config.processing.retain(|step| matches!(step, Processing::Collapse { .. }));
        Ok(Parts { definition, added, whole_pieces, table: whole, frame, start })
    }
}

/// The unknown token is a fallback of the encoder and stays; all others are cut out before.
fn keep_unknown_token_only(definition: &mut Definition) {
    definition.specials.retain(|special| special.kind == SpecialTokenKind::Unknown);
    for special in &mut definition.specials {
        // An extracted token would end a piece of text wherever it is mentioned.
        special.extract = false;
    }
}

/// Puts the split patterns of `tokenizers` where the converter wrote its own.
fn repair_splits(definition: &mut Definition) {
    const CONVERTED_BYTE_LEVEL: &str =
        r"'(?:[sdmt]|ll|ve|re)|\s?\p{L}+|\s?\p{N}+|\s?[^\s\p{L}\p{N}]+";
    const GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let spaces = format!("{METASPACE}+");
    for split in &mut definition.config.split {
        let Split::Pattern { pattern, behavior } = split else { continue };
        match &*pattern {
            // It takes every character for one byte.
            SplitPattern::Character(c) => *pattern = SplitPattern::String(c.to_string()),
            SplitPattern::Regex(regex) if &**regex == CONVERTED_BYTE_LEVEL => {
                let gpt2 = Regex::new(GPT2).expect("a constant pattern that a test compiles");
                *pattern = gpt2.into();
            }
            SplitPattern::Regex(regex)
                if **regex == *spaces && *behavior == SplitBehavior::MergeRight =>
            {
                *pattern = SplitPattern::String(METASPACE.to_string());
            }
            _ => {}
        }
    }
}

/// Takes the normalisation out of a definition: it runs before added tokens are cut a second
/// time, so it cannot run inside the encoder.
pub(crate) fn take_normalization(definition: &mut Definition) -> Vec<Normalization> {
    std::mem::take(&mut definition.config.normalization)
}

/// Bytes of a byte-level token: every character stands for one byte.
pub(super) fn byte_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Inverse of GPT-2's `bytes_to_unicode`: printable Latin-1 is itself, the other 68 bytes were
/// moved to U+0100 and up, in order.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        code @ (33..=126 | 161..=172 | 174..=255) => code,
        code @ 256..=288 => code - 256, // 0 to 32
        289 => 127,
        code @ 290..=322 => code - 162, // 128 to 160
        323 => 173,
        _ => return None,
    };
    Some(byte as u8)
}

/// Bytes of a token of the Llama lineage: `▁` is a space, `<0x0A>` a byte.
fn char_bytes(text: &str) -> Vec<u8> {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => text.replace(METASPACE, " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn knows_the_byte_of_every_character_of_the_byte_alphabet() {
        assert_eq!(byte_bytes("ĠaÄĊ"), [b' ', b'a', 0xC4, b'\n']);
        assert_eq!(byte_bytes("Ń€"), [0xAD, 0xE2, 0x82, 0xAC]);
        let alphabet: HashSet<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(alphabet.len(), 256);
    }

    #[test]
    fn knows_the_bytes_of_llama_tokens() {
        assert_eq!(char_bytes("▁the▁"), b" the ");
        assert_eq!(char_bytes("<0x0A>"), b"\n");
        assert_eq!(char_bytes("<0x0>"), b"<0x0>");
    }
}
