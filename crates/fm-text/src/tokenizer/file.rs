//! `tokenizer.json`, made exact.
//!
//! `kitoken` converts the file, and departs from `tokenizers` in five places that are repaired
//! here or refused, because another id is another prompt:
//!
//! * it merges by the *resulting token*, `tokenizers` by the *pair*. They agree as long as every
//!   token is what its own text encodes to; tokens that no sequence of merges reaches are taken out
//!   of its vocabulary ([`unreachable_tokens`]);
//! * its split pattern of a plain `ByteLevel` pre-tokenizer is not GPT-2's;
//! * its `Metaspace` split keeps runs of `▁` together;
//! * it splits text at added tokens even where they shall be read as text. Added tokens are cut by
//!   [`AddedMatcher`](super::added::AddedMatcher) instead and never reach it;
//! * it drops byte tokens (`<0x41>`) whose byte has a token of its own, so the bytes of tokens are
//!   taken from the file and not from it.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use kitoken::{
    Definition, Model, Normalization, Regex, SpecialTokenKind, Split, SplitBehavior, SplitPattern,
};
use serde::Deserialize;

use super::{added::AddedToken, token_table::TokenTable};
use crate::error::TextError;

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
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<serde_json::Value>,
    pre_tokenizer: Option<serde_json::Value>,
    model: BpeJson,
}

#[derive(Deserialize)]
struct BpeJson {
    vocab: HashMap<String, u32>,
    merges: Vec<MergeJson>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Joined(String),
    Pair(String, String),
}

impl MergeJson {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            MergeJson::Joined(joined) => joined.split_once(' '),
            MergeJson::Pair(left, right) => Some((left, right)),
        }
    }
}

/// What the Llama lineage writes for a space.
const METASPACE: char = '▁';

impl Parts {
    /// Converts the text of `tokenizer.json`; `path` is for errors.
    pub(crate) fn from_json(json: &[u8], path: &Path) -> Result<Parts, TextError> {
        let unsupported =
            |feature| TextError::UnsupportedTokenizer { path: path.to_owned(), feature };
        let mut definition = Definition::from_tokenizers_slice(json)
            .map_err(|source| TextError::Convert { path: path.to_owned(), source })?;
        let Model::BytePair { vocab, chars } = &mut definition.model else {
            return Err(unsupported("a model other than BPE"));
        };
        let json: TokenizerJson = serde_json::from_slice(json)
            .map_err(|source| TextError::Json { path: path.to_owned(), source })?;
        if let Some(feature) = unsupported_feature(&json) {
            return Err(unsupported(feature));
        }

        let unreachable = unreachable_tokens(&json.model);
        let mut whole_pieces = Vec::new();
        vocab.retain(|token| {
            // A single byte is where encoding starts, and what a byte fallback ends with.
            let keep = token.bytes.len() == 1 || !unreachable.contains(&token.id);
            if !keep && json.model.ignore_merges == Some(true) {
                whole_pieces.push((token.id, token.bytes.clone()));
            }
            keep
        });
        // The converter asks for bytes of at least one token.
        if vocab.is_empty() {
            return Err(unsupported("an empty vocabulary"));
        }

        let table = TokenTable::new(
            json.model
                .vocab
                .iter()
                .map(|(text, &id)| (id, if *chars { char_bytes(text) } else { byte_bytes(text) }))
                .chain(json.added_tokens.iter().map(|t| (t.id, t.content.clone().into_bytes()))),
        );
        keep_unknown_token_only(&mut definition);
        repair_splits(&mut definition);
        Ok(Parts { definition, added: json.added_tokens, whole_pieces, table })
    }
}

/// The first thing in the file that could not be encoded exactly.
fn unsupported_feature(json: &TokenizerJson) -> Option<&'static str> {
    let steps = |value: &Option<serde_json::Value>, key: &str| -> Vec<serde_json::Value> {
        let Some(value) = value else { return Vec::new() };
        value.get(key).and_then(|v| v.as_array().cloned()).unwrap_or_else(|| vec![value.clone()])
    };
    let normalizers = steps(&json.normalizer, "normalizers");
    let splitters = steps(&json.pre_tokenizer, "pretokenizers");
    let is = |value: &serde_json::Value, kind: &str| value["type"] == kind;
    let filled = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
    if json.model.dropout.is_some_and(|dropout| dropout > 0.0) {
        return Some("BPE dropout");
    }
    if filled(&json.model.continuing_subword_prefix) || filled(&json.model.end_of_word_suffix) {
        return Some("subword affixes");
    }
    if normalizers.iter().chain(&splitters).any(|step| is(step, "Sequence")) {
        return Some("nested sequences");
    }
    let prefixed = |s: &serde_json::Value| is(s, "ByteLevel") && s["add_prefix_space"] == true;
    if splitters.len() > 1 && splitters.iter().any(prefixed) {
        return Some("a prefix space for every split piece");
    }
    None
}

/// Ids of the tokens that the merges do not make out of the token's own text.
///
/// If a token is what its own text encodes to, then wherever merges have left its two halves
/// beside each other the pair is in the table: up to that moment no merge crossed its borders, so
/// inside them everything went as it does for the token alone. Without the other tokens, merging
/// by resulting token and merging by pair are therefore the same.
fn unreachable_tokens(model: &BpeJson) -> HashSet<u32> {
    let mut merges = HashMap::with_capacity(model.merges.len());
    let mut joined = String::new();
    for (rank, pair) in model.merges.iter().enumerate() {
        let Some((left, right)) = pair.pair() else { continue };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let ids = (model.vocab.get(left), model.vocab.get(right), model.vocab.get(&joined));
        if let (Some(&left), Some(&right), Some(&whole)) = ids {
            merges.insert((left, right), (rank, whole));
        }
    }
    let mut symbols = Vec::new();
    let unreached = |(text, id): (&String, &u32)| {
        symbols.clear();
        let mut utf8 = [0; 4];
        for c in text.chars() {
            match model.vocab.get(&*c.encode_utf8(&mut utf8)) {
                Some(&id) => symbols.push(id),
                None => return Some(*id),
            }
        }
        merge_all(&mut symbols, &merges);
        (symbols != [*id]).then_some(*id)
    };
    model.vocab.iter().filter_map(unreached).collect()
}

/// Applies the merge of lowest rank, leftmost first, until none applies.
fn merge_all(symbols: &mut Vec<u32>, merges: &HashMap<(u32, u32), (usize, u32)>) {
    loop {
        let best = symbols
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| merges.get(&(pair[0], pair[1])).map(|m| (m.0, at, m.1)))
            .min();
        let Some((_, at, whole)) = best else { return };
        symbols[at] = whole;
        symbols.remove(at + 1);
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
        let SplitPattern::Regex(regex) = &*pattern else { continue };
        if &**regex == CONVERTED_BYTE_LEVEL {
            *pattern = Regex::new(GPT2).expect("a constant pattern that a test compiles").into();
        } else if **regex == *spaces && *behavior == SplitBehavior::MergeRight {
            *pattern = SplitPattern::String(METASPACE.to_string());
        }
    }
}

/// Takes the normalisation out of a definition: it runs before added tokens are cut a second
/// time, so it cannot run inside the encoder.
pub(crate) fn take_normalization(definition: &mut Definition) -> Vec<Normalization> {
    std::mem::take(&mut definition.config.normalization)
}

/// Bytes of a byte-level token: every character stands for one byte.
fn byte_bytes(text: &str) -> Vec<u8> {
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
fn byte_of(c: char) -> Option<u8> {
    let itself = |code: u32| matches!(code, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(c);
    if code < 256 {
        return itself(code).then_some(code as u8);
    }
    (0..=255u8).filter(|&byte| !itself(u32::from(byte))).nth((code - 256) as usize)
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

    #[test]
    fn finds_tokens_that_no_merge_reaches() {
        let vocab = ["a", "b", "c", "ab", "abc", "bc", "cab"];
        let model = BpeJson {
            vocab: vocab.iter().zip(0..).map(|(t, id)| ((*t).to_owned(), id)).collect(),
            merges: [("b", "c"), ("a", "b"), ("ab", "c")]
                .map(|(l, r)| MergeJson::Pair(l.to_owned(), r.to_owned()))
                .into(),
            ignore_merges: None,
            dropout: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
        };
        // "abc" has a merge, but its text becomes a + bc first; "cab" has none.
        assert_eq!(unreachable_tokens(&model), HashSet::from([4, 6]));
    }
}
