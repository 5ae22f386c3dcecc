//! Which `tokenizer.json` can be encoded exactly.
//!
//! Lists what is allowed: each step here was held against `tokenizers`. What is not listed is known
//! to differ (`WhitespaceSplit`, an inverted `MergedWithNext`, `Lowercase` at the end of a Greek word,
//! what takes marks off) or was never tried.

use serde_json::Value;

use super::{
    file::{BpeJson, TokenizerJson, byte_bytes},
    token_table::BYTES_MAX,
};

/// Ids above have no place in the table of tokens; the largest vocabularies have 262 thousand.
const IDS_MAX: u32 = 1 << 24;

/// Of a token with more than [`BYTES_MAX`].
pub(super) const TOO_LONG: &str = "tokens of 64 KiB";

/// The first thing in the file that could not be encoded exactly. `chars` says whether a symbol
/// is a character; otherwise it stands for a byte.
pub(super) fn unsupported_feature(json: &TokenizerJson, chars: bool) -> Option<&'static str> {
    let normalizers = steps(&json.normalizer, "normalizers");
    let splitters = steps(&json.pre_tokenizer, "pretokenizers");
    let filled = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
    if json.model.dropout.is_some_and(|dropout| dropout > 0.0) {
        return Some("BPE dropout");
    }
    if filled(&json.model.continuing_subword_prefix) || filled(&json.model.end_of_word_suffix) {
        return Some("subword affixes");
    }
    if json.model.vocab.len() >= IDS_MAX as usize {
        return Some("more than 16 million tokens");
    }
    let ids = json.model.vocab.values().copied().chain(json.added_tokens.iter().map(|t| t.id));
    if ids.max().is_some_and(|id| id >= IDS_MAX) {
        return Some("token ids above 16 million");
    }
    if json.model.vocab.keys().any(|text| text.len() > BYTES_MAX) {
        return Some(TOO_LONG);
    }
    // `tokenizers` takes the vocabulary's, without a word: whoever wrote the file meant something else.
    let mut ids = json.added_tokens.iter().map(|t| (t.id, json.model.vocab.get(&t.content)));
    if ids.any(|(id, known)| known.is_some_and(|known| *known != id)) {
        return Some("an added token with another id than in the vocabulary");
    }
    if normalizers.iter().chain(splitters).any(|step| step["type"] == "Sequence") {
        return Some("nested sequences");
    }
    if !normalizers.iter().all(is_exact_normalizer) {
        return Some("a normalizer that is not known to be exact");
    }
    if !splitters.iter().all(is_exact_splitter) {
        return Some("a pre-tokenizer that is not known to be exact");
    }
    // These put something before every piece that earlier steps made.
    if splitters.len() > 1 && splitters.iter().any(writes_spaces) {
        return Some("a prefix space for every split piece");
    }
    drops_text(&json.model, chars).then_some("a vocabulary that drops text it has no token for")
}

/// Whether text is changed where it is split. The converter makes a normaliser of that, which runs on
/// whole texts, before normalised added tokens are looked for in them, and on those tokens too.
pub(super) fn normalizes_late(pre_tokenizer: &Value) -> bool {
    steps(pre_tokenizer, "pretokenizers").iter().any(writes_spaces)
}

fn writes_spaces(step: &Value) -> bool {
    step["type"] == "Metaspace" || (step["type"] == "ByteLevel" && step["add_prefix_space"] == true)
}

/// The steps of a sequence, or the one step there is.
fn steps<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    match value.get(key).and_then(Value::as_array) {
        Some(steps) => steps,
        None if value.is_null() => &[],
        None => std::slice::from_ref(value),
    }
}

fn is_exact_normalizer(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("NFC" | "NFKC" | "Prepend") => true,
        // Elsewhere `$1` would be a group of the pattern.
        Some("Replace") => step["content"].as_str().is_some_and(|text| !text.contains('$')),
        _ => false,
    }
}

fn is_exact_splitter(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("ByteLevel" | "Digits" | "Metaspace" | "Punctuation" | "Whitespace") => true,
        Some("Split") => {
            let merged =
                matches!(step["behavior"].as_str(), Some("MergedWithPrevious" | "MergedWithNext"));
            !merged || step["invert"] == false
        }
        _ => false,
    }
}

/// Whether some text has neither a token nor a fallback. It is dropped, and what stood on its two
/// sides merges: before merging in `tokenizers`, never in `kitoken`.
fn drops_text(model: &BpeJson, chars: bool) -> bool {
    if chars {
        let falls_back = model.byte_fallback == Some(true) && model.vocab.contains_key("<0x00>");
        let unknown = model.unk_token.as_ref().is_some_and(|text| model.vocab.contains_key(text));
        return !unknown && !falls_back;
    }
    let mut spelled = [false; 256];
    // No character of UTF-8 contains these.
    for byte in [0xC0, 0xC1].into_iter().chain(0xF5..=0xFF) {
        spelled[byte] = true;
    }
    for text in model.vocab.keys() {
        if let [byte] = *byte_bytes(text) {
            spelled[usize::from(byte)] = true;
        }
    }
    spelled.contains(&false)
}
