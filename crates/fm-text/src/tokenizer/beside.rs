//! Added tokens that only the files beside `tokenizer.json` define: `tokenizer_config.json`
//! (`added_tokens_decoder`, `additional_special_tokens`, `extra_special_tokens`) and `added_tokens.json`.
//!
//! `transformers` adds what `tokenizer.json` lacks. Of files that contradict it, nobody knows which one
//! the model was trained with: they are refused.

use std::{
    collections::BTreeMap,
    hash::Hash,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::{added::AddedToken, token_table::TokenTable};
use crate::{error::TextError, files};

/// The largest id that a token may have: a hundred times those of any vocabulary, and the table of
/// tokens has an entry for every id below it.
const ID_MAX: u32 = 1 << 24;

/// What the files say, before anybody has compared it with `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct Beside {
    numbered: Vec<(PathBuf, AddedToken)>,
    /// Special tokens by their text alone.
    named: Vec<(PathBuf, String)>,
}

/// A token of `added_tokens_decoder`, whose key is the id.
#[derive(Deserialize)]
struct Described {
    content: String,
    #[serde(flatten)]
    flags: Flags,
}

// The flags are the file format's.
#[allow(clippy::struct_excessive_bools)]
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Flags {
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// A special token: its text, or that and its flags.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Described { content: String },
}

/// A list of special tokens; newer files give each a name.
#[derive(Deserialize)]
#[serde(untagged)]
enum NamedTokens {
    List(Vec<Named>),
    ByName(BTreeMap<String, Named>),
}

impl Beside {
    /// Reads the files in `dir`; `config` is its `tokenizer_config.json`.
    pub(super) fn read(dir: &Path, config: &Value) -> Result<Beside, TextError> {
        let (config_path, list_path) =
            (dir.join("tokenizer_config.json"), dir.join("added_tokens.json"));
        let described: Option<BTreeMap<u32, Described>> =
            typed(&config["added_tokens_decoder"], &config_path)?;
        let described =
            described.into_iter().flatten().map(|(id, Described { content, flags })| {
                let Flags { single_word, lstrip, rstrip, normalized, special } = flags;
                let token =
                    AddedToken { id, content, single_word, lstrip, rstrip, normalized, special };
                (config_path.clone(), token)
            });
        let mut named = Vec::new();
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            let tokens = match typed(&config[key], &config_path)? {
                None => Vec::new(),
                Some(NamedTokens::List(list)) => list,
                Some(NamedTokens::ByName(tokens)) => tokens.into_values().collect(),
            };
            named.extend(tokens.into_iter().map(|token| match token {
                Named::Text(text) | Named::Described { content: text } => {
                    (config_path.clone(), text)
                }
            }));
        }
        let listed: Option<BTreeMap<String, u32>> =
            typed(&files::read_json_optional(&list_path)?, &list_path)?;
        let listed = listed.into_iter().flatten().map(|(text, id)| {
            let special = named.iter().any(|(_, named)| *named == text);
            (list_path.clone(), AddedToken::new(id, &text, special))
        });
        Ok(Beside { numbered: described.chain(listed).collect(), named })
    }

    /// Changes with everything that it says; 0 if that is nothing.
    pub(super) fn hash(&self) -> u128 {
        if self.numbered.is_empty() && self.named.is_empty() {
            return 0;
        }
        let mut hash = Xxh3::new();
        for (_, token) in &self.numbered {
            let AddedToken { id, content, single_word, lstrip, rstrip, normalized, special } =
                token;
            (id, content, single_word, lstrip, rstrip, normalized, special).hash(&mut hash);
        }
        self.named.iter().for_each(|(_, text)| text.hash(&mut hash));
        hash.digest128()
    }

    /// The tokens that `added` lacks, where `table` has all that `tokenizer.json` knows.
    pub(super) fn missing(
        self,
        added: &[AddedToken],
        table: &TokenTable,
    ) -> Result<Vec<AddedToken>, TextError> {
        let mut missing: Vec<AddedToken> = Vec::new();
        let is_added = |missing: &[AddedToken], text: &str| {
            added.iter().chain(missing).find(|token| token.content == text).map(|token| token.id)
        };
        for (path, token) in self.numbered {
            let text = token.content.as_str();
            if token.id > ID_MAX {
                return Err(TextError::TokenId { path, id: token.id, text: token.content });
            }
            let known_id = is_added(&missing, text);
            let here = table.get(token.id);
            let own = missing.iter().find(|other| other.id == token.id);
            let here = own.map(|own| own.content.as_bytes()).or(here);
            let found = match (known_id, here) {
                (Some(id), _) => Some(id),
                (None, Some(bytes)) if bytes == text.as_bytes() => Some(token.id),
                (None, _) => table.find(text.as_bytes()),
            };
            let contradicts = found.is_some_and(|id| id != token.id)
                || here.is_some_and(|bytes| bytes != text.as_bytes());
            if contradicts {
                let known = here.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                let AddedToken { id, content: text, .. } = token;
                return Err(TextError::TokenContradiction { path, id, text, found, known });
            }
            if known_id.is_none() {
                missing.push(token);
            }
        }
        for (path, text) in self.named {
            if is_added(&missing, &text).is_some() {
                continue;
            }
            match table.find(text.as_bytes()) {
                Some(id) => missing.push(AddedToken::new(id, &text, true)),
                None => return Err(TextError::TokenWithoutId { path, text }),
            }
        }
        Ok(missing)
    }
}

/// Nothing if there is nothing.
fn typed<T: DeserializeOwned>(value: &Value, path: &Path) -> Result<Option<T>, TextError> {
    if value.is_null() {
        return Ok(None);
    }
    let json = |source| TextError::Json { path: path.to_owned(), source };
    serde_json::from_value(value.clone()).map(Some).map_err(json)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::{SpecialTokens, Tokenizer};

    const THINK: u32 = 2046;

    /// The demonstration tokenizer without one of its added tokens, opened twice: converted, then from
    /// the cache.
    fn opened(config: &Value, list: &Value) -> Result<Tokenizer, TextError> {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
        let mut json: Value = serde_json::from_slice(&fs::read(demo).unwrap()).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        added.retain(|token| token["id"] != THINK);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let cache = dir.path().join("cache");
        // The cache of the same file without anything beside it must not serve.
        Tokenizer::open(dir.path(), Some(&cache)).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        if !list.is_null() {
            fs::write(dir.path().join("added_tokens.json"), list.to_string()).unwrap();
        }
        Tokenizer::open(dir.path(), Some(&cache))?;
        Tokenizer::open(dir.path(), Some(&cache))
    }

    #[test]
    fn a_token_that_only_other_files_define_is_one() {
        let described = json!({"content": "<think>", "lstrip": false, "special": true});
        let config = json!({ "added_tokens_decoder": {"2046": described} });
        for (config, list, special) in [
            (config, Value::Null, true),
            (json!({}), json!({"<think>": 2046}), false),
            (
                json!({"additional_special_tokens": ["<think>", "<|im_end|>"]}),
                json!({"<think>": 2046}),
                true,
            ),
            (
                json!({"extra_special_tokens": {"open": {"content": "<think>"}}}),
                json!({"<think>": 2046}),
                true,
            ),
        ] {
            let tokenizer = opened(&config, &list).unwrap();
            let ids = tokenizer.encode("a<think>b", SpecialTokens::Parse).unwrap();
            assert_eq!(ids.iter().filter(|id| **id == THINK).count(), 1, "{config} {list}");
            assert_eq!(ids.len(), 3, "{config} {list}");
            assert_eq!(tokenizer.token_bytes(THINK), Some(&b"<think>"[..]));
            assert_eq!(tokenizer.is_special(THINK), special, "{config} {list}");
        }
        let without = opened(&json!({}), &Value::Null).unwrap();
        assert_eq!(without.token_id("<think>"), None);
    }

    #[test]
    fn a_special_token_of_the_vocabulary_is_cut_out_of_the_text() {
        let tokenizer = opened(&json!({"extra_special_tokens": [" the"]}), &Value::Null).unwrap();
        let the = tokenizer.token_id(" the").unwrap();
        assert!(tokenizer.is_special(the));
        assert!(tokenizer.encode("x thes", SpecialTokens::Parse).unwrap().contains(&the));
    }

    #[test]
    fn contradictions_are_named() {
        let decoder =
            |id: &str, text: &str| json!({"added_tokens_decoder": {id: {"content": text}}});
        for (config, list) in [
            (decoder("2041", "<think>"), Value::Null),
            (decoder("2045", "<|im_end|>"), Value::Null),
            (json!({}), json!({"<think>": 17})),
            (decoder("2046", "<think>"), json!({"<think>": 2047})),
            (decoder("2046", "<think>"), json!({"<thought>": 2046})),
        ] {
            let error = opened(&config, &list).map(drop).unwrap_err();
            assert!(
                matches!(error, TextError::TokenContradiction { .. }),
                "{config} {list}: {error}"
            );
        }
        let nameless = opened(&json!({"extra_special_tokens": ["<think>"]}), &Value::Null);
        assert!(matches!(nameless.map(drop), Err(TextError::TokenWithoutId { .. })));
        let huge = opened(&json!({}), &json!({"<think>": u32::MAX}));
        assert!(matches!(huge.map(drop), Err(TextError::TokenId { .. })));
        for wrong in [decoder("x", "<think>"), json!({"extra_special_tokens": [7]})] {
            let error = opened(&wrong, &Value::Null).map(drop).unwrap_err();
            assert!(matches!(error, TextError::Json { .. }), "{wrong}: {error}");
        }
    }
}
