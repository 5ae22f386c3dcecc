//! `tokenizer.json` of published families, with vocabularies of our own.

use std::collections::BTreeMap;

use fm_text::{Vocabulary, vocabulary::kind};
use serde_json::{Value, json};

use super::{library, short_lines};

pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const KIMI_K2: [&str; 8] = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
];
pub(crate) const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];
// As published: composed, it would be another class.
#[allow(clippy::unicode_not_nfc)]
pub(crate) const DEEPSEEK_LLM: [&str; 5] = [
    "[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
];

pub(crate) fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

pub(crate) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
           "use_regex": use_regex})
}

pub(crate) fn sequence(steps: impl IntoIterator<Item = Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps.into_iter().collect::<Vec<_>>()})
}

/// A byte-level tokenizer whose merges were learned from unsplit lines: they cross every border
/// at which a pattern splits, so text that is split elsewhere becomes other tokens.
pub(crate) fn byte_level_json(normalizer: &Value, splitter: &Value) -> Value {
    let mut json = library::learned(&short_lines(1500, 1));
    json["normalizer"] = normalizer.clone();
    json["pre_tokenizer"] = splitter.clone();
    json
}

/// What a writer of metadata makes of a byte-level `tokenizer.json`; some rows of the embedding
/// are left over.
pub(crate) fn to_vocabulary(json: &Value, pre: &str) -> Vocabulary {
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens.insert(id.as_u64().unwrap(), (text.clone(), kind::NORMAL));
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let special = token["special"] == true;
        let kind = if special { kind::CONTROL } else { kind::USER_DEFINED };
        let text = token["content"].as_str().unwrap().to_owned();
        tokens.insert(token["id"].as_u64().unwrap(), (text, kind));
    }
    let rows = tokens.last_key_value().unwrap().0 + 8;
    let padding = |id: u64| (format!("[PAD{id}]"), kind::UNUSED);
    let rows = (0..rows).map(|id| tokens.remove(&id).unwrap_or_else(|| padding(id)));
    let (tokens, token_type) = rows.unzip();
    let merge =
        |pair: &Value| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens,
        token_type,
        bos_token_id: Some(0),
        merges: json["model"]["merges"].as_array().unwrap().iter().map(merge).collect(),
        ..Vocabulary::default()
    }
}
