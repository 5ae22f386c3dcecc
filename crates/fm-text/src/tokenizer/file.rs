//! `tokenizer.json`, made exact.
//!
//! `kitoken` converts the file, and departs from `tokenizers` in places that are repaired here or
//! refused (`tokenizer/exact.rs`), because another id is another prompt:
//!
//! * it merges by the *resulting token*, `tokenizers` by the *pair*; it leaves added tokens out of the
//!   vocabulary, where text may still merge to them, and takes byte tokens (`<0x41>`) for bytes without
//!   a fallback: its vocabulary is not used at all, see [`Reached`];
//! * its split pattern of a plain `ByteLevel` pre-tokenizer is not GPT-2's, and where it splits at
//!   a single character it takes that for one byte;
//! * its `Metaspace` split keeps runs of `▁` together;
//! * it splits text at added tokens even where they shall be read as text. Added tokens are cut by
//!   [`AddedMatcher`](super::added::AddedMatcher) instead and never reach it.

use std::{collections::HashMap, mem, path::Path};

use kitoken::{Definition, Model, Split, SplitBehavior, SplitPattern, convert::ConversionError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    added::AddedToken,
    beside::Beside,
    decoder::Start,
    exact,
    frame::Frame,
    merge::{Fallback, Merger},
    reach::Reached,
    split::{Pattern, Step},
    token_table::{BYTES_MAX, TokenTable},
};
use crate::error::TextError;

/// Everything a tokenizer is made of; what the cache file stores.
#[derive(Debug)]
pub(crate) struct Parts {
    /// How text is normalised; neither vocabulary nor added tokens.
    pub(crate) definition: Definition,
    /// How it is split.
    pub(crate) steps: Vec<Step>,
    /// What pieces of split text become.
    pub(crate) merger: Merger,
    /// The added tokens.
    pub(crate) added: Vec<AddedToken>,
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

impl TokenizerJson {
    /// How text is normalised and split. The converter sees a file without vocabulary: it would spend a
    /// second on 248 thousand tokens that are not used, and tell added tokens from them.
    fn convert(&self) -> Result<Definition, ConversionError> {
        let Self { normalizer, pre_tokenizer, decoder, .. } = self;
        let without = json!({
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder,
            "model": {"vocab": {}, "merges": []},
        });
        Definition::from_tokenizers_slice(without.to_string().as_bytes())
    }
}

/// Whether the file says that its model is none of BPE.
fn is_other_model(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Kinds {
        model: Kind,
    }
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type")]
        kind: String,
    }
    serde_json::from_slice(json).is_ok_and(|Kinds { model: Kind { kind } }| kind != "BPE")
}

/// `model` of `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct BpeJson {
    pub(super) vocab: HashMap<String, u32>,
    pub(super) merges: Vec<MergeJson>,
    pub(super) ignore_merges: Option<bool>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) unk_token: Option<String>,
    pub(super) fuse_unk: Option<bool>,
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
        let json: TokenizerJson = serde_json::from_slice(json).map_err(|source| {
            if is_other_model(json) {
                return unsupported("a model other than BPE");
            }
            TextError::Json { path: path.to_owned(), source }
        })?;
        let mut definition = json
            .convert()
            .map_err(|source| TextError::Convert { path: path.to_owned(), source })?;
        let Model::BytePair { chars, .. } = definition.model else {
            unreachable!("it is made of a model of byte pairs");
        };
        if let Some(feature) = exact::unsupported_feature(&json, chars) {
            return Err(unsupported(feature));
        }
        let start = Start::of_decoder(&json.decoder, chars).map_err(unsupported)?;
        let reached = Reached::of(&json.model, chars).map_err(unsupported)?;
        if reached.merged.is_empty() {
            return Err(unsupported("an empty vocabulary"));
        }
        let merger = Merger::new(&reached, chars, fallback(&json.model, &reached));
        let frame = Frame::of(&json.post_processor)
            .ok_or_else(|| unsupported("a post-processor that is not known"))?;

        let bytes = |text: &str| if chars { char_bytes(text) } else { byte_bytes(text) };
        let table = |added: &[AddedToken]| {
            let vocab = json.model.vocab.iter().map(|(text, &id)| (id, bytes(text)));
            TokenTable::new(
                vocab.chain(added.iter().map(|t| (t.id, added_bytes(&t.content, chars)))),
            )
        };
        let known = json.added_tokens.len();
        let mut whole = table(&json.added_tokens);
        let added = beside.merge(json.added_tokens, (&json.model.vocab, &whole, chars))?;
        if added.iter().any(|token| token.content.len() > BYTES_MAX) {
            return Err(unsupported(exact::TOO_LONG));
        }
        if added.iter().any(|token| token.normalized) && exact::normalizes_late(&json.pre_tokenizer)
        {
            return Err(unsupported("normalized added tokens and spaces written as text is split"));
        }
        if added.len() > known {
            whole = table(&added);
        }
        let steps = mem::take(&mut definition.config.split).into_iter().filter_map(step).collect();
        Ok(Parts { definition, steps, merger, added, table: whole, frame, start })
    }
}

/// What becomes of symbols that have no token: their bytes if there are tokens for bytes, else the
/// unknown token.
fn fallback(model: &BpeJson, reached: &Reached) -> Fallback {
    if reached.has_byte_fallback {
        return Fallback::Bytes;
    }
    let unknown = model.unk_token.as_ref().and_then(|text| model.vocab.get(text));
    let once = model.fuse_unk == Some(true);
    unknown.map_or(Fallback::Never, |&id| Fallback::Unknown { id, once })
}

/// A step of splitting, with the pattern of `tokenizers` where the converter wrote its own.
fn step(split: Split) -> Option<Step> {
    const CONVERTED_BYTE_LEVEL: &str =
        r"'(?:[sdmt]|ll|ve|re)|\s?\p{L}+|\s?\p{N}+|\s?[^\s\p{L}\p{N}]+";
    const GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    // `tokenizer/exact.rs` refuses what splits between scripts.
    let Split::Pattern { pattern, behavior } = split else { return None };
    let spaces = format!("{METASPACE}+");
    let pattern = match pattern {
        SplitPattern::Character(c) => Pattern::Text(c.to_string()),
        SplitPattern::String(text) => Pattern::Text(text),
        SplitPattern::Regex(regex) => match &*regex {
            CONVERTED_BYTE_LEVEL => Pattern::Regex(GPT2.to_owned()),
            regex if *regex == *spaces && behavior == SplitBehavior::MergeRight => {
                Pattern::Text(METASPACE.to_string())
            }
            regex => Pattern::Regex(regex.to_owned()),
        },
    };
    Some(Step { pattern, behavior })
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

/// Bytes of an added token: its text, in which the Llama lineage writes spaces as elsewhere.
pub(super) fn added_bytes(text: &str, chars: bool) -> Vec<u8> {
    if chars { char_bytes(text) } else { text.as_bytes().to_vec() }
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
