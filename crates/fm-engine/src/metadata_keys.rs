//! Keys of a GGUF file about text that nobody here acts on.
//!
//! A key of the tokenizer would give other ids, so one that is not known to be without effect is refused. A key
//! of sampling would give other words of the same model: it is told.

use std::path::Path;

use fm_format::source::gguf::{Metadata, Value};
use fm_text::vocabulary::key;

use crate::error::EngineError;

const TOKENIZER: &str = "tokenizer.ggml.";
const SAMPLING: &str = "general.sampling.";

/// Refuses what would change tokens and is not done.
pub(crate) fn check_tokenizer(metadata: &Metadata, path: &Path) -> Result<(), EngineError> {
    let is_undone = |key: &&str| {
        let Some(name) = key.strip_prefix(TOKENIZER) else { return false };
        metadata.get(key).is_some_and(|value| !key::ALL.contains(key) && !is_idle(name, value))
    };
    match metadata.keys().find(is_undone) {
        Some(key) => Err(EngineError::TokenizerKey { path: path.into(), key: key.to_owned() }),
        None => Ok(()),
    }
}

/// Whether a key that is not read has no effect with this value.
fn is_idle(name: &str, value: &Value) -> bool {
    // Who names a token changes none: marks for filling in, separators, line ends.
    if name.ends_with("_token_id") {
        return true;
    }
    // A separator that shall be added, white space that shall be taken out, capitals made small.
    let is_switch = (name.starts_with("add_") && name.ends_with("_token"))
        || ["remove_extra_whitespaces", "normalizer.lowercase"].contains(&name);
    match name {
        // Rows of an embedding of sentences, which these models do not have.
        "token_type_count" => true,
        // A normaliser of other kinds of tokenizers, and tokens that shall never come.
        "precompiled_charsmap" | "suppress_tokens" => match value {
            Value::Numbers(numbers) => numbers.iter().next().is_none(),
            Value::Texts(texts) => texts.is_empty(),
            _ => false,
        },
        _ => is_switch && *value == Value::Bool(false),
    }
}

/// The keys of sampling that change which tokens come, and do not here; `read` are those that do.
pub(crate) fn ignored_sampling(metadata: &Metadata, read: &[&str]) -> Vec<String> {
    let number = |name: &str| match metadata.get(&format!("{SAMPLING}{name}")) {
        Some(Value::Float(value)) => Some(*value),
        Some(Value::Unsigned(value)) => Some(*value as f64),
        Some(Value::Signed(value)) => Some(*value as f64),
        _ => None,
    };
    let is = |name: &str, idle: f64| number(name).unwrap_or(idle) == idle;
    let is_idle = |name: &str| match name {
        "mirostat" | "xtc_probability" => is(name, 0.0),
        "mirostat_tau" | "mirostat_eta" => is("mirostat", 0.0),
        // More than one candidate is never above a half.
        "xtc_threshold" => is("xtc_probability", 0.0) || number(name) > Some(0.5),
        // The penalty is for all of the text here.
        "penalty_last_n" => is(name, -1.0) || is("penalty_repeat", 1.0),
        "sequence" => {
            metadata.get("general.sampling.sequence") == Some(&Value::Text(String::new()))
        }
        _ => false,
    };
    let sampling = metadata.keys().filter_map(|key| Some((key, key.strip_prefix(SAMPLING)?)));
    let ignored = sampling.filter(|(key, name)| !read.contains(key) && !is_idle(name));
    ignored.map(|(key, _)| key.to_owned()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use fm_format::{record::FileIndex, source::gguf::read_header};

    use super::*;

    /// A value as GGUF writes it: its type and its bytes.
    pub(crate) enum Raw {
        U32(u32),
        I32(i32),
        F32(f32),
        Bool(bool),
        Text(&'static str),
        /// An array of texts.
        Texts(&'static [&'static str]),
        /// An array of bytes.
        Bytes(&'static [u8]),
    }

    impl Raw {
        fn bytes(&self) -> Vec<u8> {
            let (kind, bytes): (u32, Vec<u8>) = match self {
                Self::U32(value) => (4, value.to_le_bytes().to_vec()),
                Self::I32(value) => (5, value.to_le_bytes().to_vec()),
                Self::F32(value) => (6, value.to_le_bytes().to_vec()),
                Self::Bool(value) => (7, vec![u8::from(*value)]),
                Self::Text(text) => {
                    (8, [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
                }
                Self::Texts(texts) => {
                    let count = (texts.len() as u64).to_le_bytes();
                    let texts = texts.iter().flat_map(|text| {
                        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
                    });
                    let texts: Vec<u8> = texts.collect();
                    (9, [&8_u32.to_le_bytes(), &count[..], &texts].concat())
                }
                Self::Bytes(bytes) => {
                    let count = (bytes.len() as u64).to_le_bytes();
                    (9, [&0_u32.to_le_bytes(), &count[..], bytes].concat())
                }
            };
            [&kind.to_le_bytes(), &bytes[..]].concat()
        }
    }

    /// The metadata of a file with these pairs.
    pub(crate) fn metadata(pairs: &[(&str, Raw)]) -> Metadata {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([0, pairs.len() as u64].map(u64::to_le_bytes).concat());
        for (key, value) in pairs {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend(value.bytes());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read_header(file.path(), FileIndex(0)).unwrap().metadata
    }

    #[test]
    fn keys_that_would_change_tokens_are_refused_by_name() {
        let check = |key: &str, value: Raw| {
            let metadata = metadata(&[(key, value)]);
            check_tokenizer(&metadata, Path::new("m.gguf")).map_err(|error| error.to_string())
        };
        for (key, value) in [
            ("suppress_tokens", Raw::Bytes(b"7")),
            ("precompiled_charsmap", Raw::Bytes(b"x")),
            ("remove_extra_whitespaces", Raw::Bool(true)),
            ("normalizer.lowercase", Raw::Bool(true)),
            ("add_sep_token", Raw::Bool(true)),
            ("add_everything", Raw::Bool(false)),
            ("whatever", Raw::U32(0)),
        ] {
            let key = format!("tokenizer.ggml.{key}");
            let message = check(&key, value).unwrap_err();
            assert!(message.starts_with(&format!("m.gguf: `{key}`")), "{message}");
        }
        for (key, value) in [
            ("suppress_tokens", Raw::Bytes(b"")),
            ("precompiled_charsmap", Raw::Bytes(b"")),
            ("remove_extra_whitespaces", Raw::Bool(false)),
            ("normalizer.lowercase", Raw::Bool(false)),
            ("add_sep_token", Raw::Bool(false)),
            ("add_padding_token", Raw::Bool(false)),
            ("token_type_count", Raw::U32(2)),
            ("fim_pre_token_id", Raw::U32(7)),
            ("seperator_token_id", Raw::U32(7)),
            ("mask_token_id", Raw::U32(7)),
            ("padding_token_id", Raw::U32(7)),
            ("eos_token_ids", Raw::Bytes(b"7")),
            ("pre", Raw::Text("qwen2")),
        ] {
            check(&format!("tokenizer.ggml.{key}"), value).unwrap();
        }
        check("tokenizer.huggingface.json", Raw::Text("{}")).unwrap();
        check("tokenizer.chat_template.rag", Raw::Text("x")).unwrap();
    }

    #[test]
    fn sampling_that_is_not_done_is_named() {
        let ignored = |pairs: &[(&str, Raw)]| {
            ignored_sampling(&metadata(pairs), &["general.sampling.temp"])
                .join(" ")
                .replace(SAMPLING, "")
        };
        let asked = [
            ("general.sampling.mirostat", Raw::I32(2)),
            ("general.sampling.mirostat_tau", Raw::F32(5.0)),
            ("general.sampling.penalty_last_n", Raw::I32(64)),
            ("general.sampling.penalty_repeat", Raw::F32(1.1)),
            ("general.sampling.sequence", Raw::Text("top_k;temperature")),
            ("general.sampling.dynatemp_range", Raw::F32(0.5)),
            ("general.sampling.xtc_probability", Raw::F32(0.5)),
            ("general.sampling.xtc_threshold", Raw::F32(0.1)),
            ("general.sampling.temp", Raw::F32(0.5)),
        ];
        let expected = "dynatemp_range mirostat mirostat_tau penalty_last_n penalty_repeat sequence \
                        xtc_probability xtc_threshold";
        assert_eq!(ignored(&asked), expected);
        let idle = [
            ("general.sampling.mirostat", Raw::I32(0)),
            ("general.sampling.mirostat_eta", Raw::F32(0.1)),
            ("general.sampling.penalty_last_n", Raw::I32(64)),
            ("general.sampling.sequence", Raw::Text("")),
            ("general.sampling.xtc_probability", Raw::F32(0.0)),
            ("general.sampling.xtc_threshold", Raw::F32(0.1)),
        ];
        assert_eq!(ignored(&idle), "");
        let whole = [
            ("general.sampling.penalty_last_n", Raw::I32(-1)),
            ("general.sampling.xtc_probability", Raw::F32(0.5)),
            ("general.sampling.xtc_threshold", Raw::F32(0.6)),
        ];
        assert_eq!(ignored(&whole), "xtc_probability");
    }
}
