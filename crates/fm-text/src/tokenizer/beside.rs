//! What the files beside `tokenizer.json` say of added tokens: `tokenizer_config.json`
//! (`added_tokens_decoder`, `eos_token` and its like, `extra_special_tokens`), `added_tokens.json` and
//! `special_tokens_map.json`.
//!
//! As in `transformers`: what `tokenizer.json` lacks is added, flags of `added_tokens_decoder` replace those
//! there, and every special token that is named is one, if the vocabulary has it. Of files that contradict
//! each other in ids, nobody knows which one the model was trained with: they are refused.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::{added::AddedToken, file::added_bytes, token_table::TokenTable};
use crate::{error::TextError, files};

/// The largest id that a token may have: a hundred times those of any vocabulary, and the table of
/// tokens has an entry for every id below it.
const ID_MAX: u32 = 1 << 24;

/// What the files say, before anybody has compared it with `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct Beside {
    numbered: Vec<Numbered>,
    specials: Vec<Special>,
}

/// A token with its id.
#[derive(Debug)]
struct Numbered {
    path: PathBuf,
    token: AddedToken,
    /// Whether its flags replace those of `tokenizer.json`.
    overrules: bool,
}

/// A special token by its text alone.
#[derive(Debug)]
struct Special {
    path: PathBuf,
    token: Described,
    naming: Naming,
}

/// How a special token is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// By a key like `pad_token`. Files are left with names of tokens that the model does not have.
    Key,
    /// In a table of names.
    Table,
    /// In a list.
    List,
}

/// A token of `added_tokens_decoder`, whose key is the id, or a special token.
#[derive(Debug, Default, Deserialize)]
// The flags are the file format's.
#[allow(clippy::struct_excessive_bools)]
struct Described {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl Described {
    fn with_id(self, id: u32) -> AddedToken {
        let Described { content, single_word, lstrip, rstrip, normalized, special } = self;
        let normalized = normalized.unwrap_or(!special);
        AddedToken { id, content, single_word, lstrip, rstrip, normalized, special }
    }
}

/// A special token: its text, or that and its flags.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Described(Described),
}

/// Special tokens; newer files give each a name.
#[derive(Deserialize)]
#[serde(untagged)]
enum NamedTokens {
    List(Vec<Named>),
    ByName(BTreeMap<String, Named>),
}

impl Beside {
    /// Reads the files in `dir`.
    pub(super) fn read(dir: &Path) -> Result<Beside, TextError> {
        let [config_path, list_path, map_path] =
            ["tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"]
                .map(|name| dir.join(name));
        let config = files::read_json_optional(&config_path)?;
        let described: Option<BTreeMap<u32, Described>> =
            typed(&config["added_tokens_decoder"], &config_path)?;
        let mut specials = special_tokens(&config, &config_path)?;
        if described.is_none() {
            // Files that have it are not asked for more, as in `transformers`.
            specials.extend(special_tokens(&files::read_json_optional(&map_path)?, &map_path)?);
        }
        let described = described.into_iter().flatten().map(|(id, token)| {
            let token = token.with_id(id);
            Numbered { path: config_path.clone(), token, overrules: true }
        });
        let listed: Option<BTreeMap<String, u32>> =
            typed(&files::read_json_optional(&list_path)?, &list_path)?;
        let listed = listed.into_iter().flatten().map(|(text, id)| {
            let special = specials.iter().any(|special| special.token.content == text);
            let token = Described { content: text, special, ..Described::default() };
            Numbered { path: list_path.clone(), token: token.with_id(id), overrules: false }
        });
        Ok(Beside { numbered: described.chain(listed).collect(), specials })
    }

    /// Changes with everything that it says; 0 if that is nothing.
    pub(super) fn hash(&self) -> u128 {
        if self.numbered.is_empty() && self.specials.is_empty() {
            return 0;
        }
        let mut hash = Xxh3::new();
        for Numbered { token, overrules, .. } in &self.numbered {
            let AddedToken { id, content, single_word, lstrip, rstrip, normalized, special } =
                token;
            let flags = (single_word, lstrip, rstrip, normalized, special, overrules);
            (id, content, flags).hash(&mut hash);
        }
        for Special { token, naming, .. } in &self.specials {
            let Described { content, single_word, lstrip, rstrip, normalized, special } = token;
            let flags = (single_word, lstrip, rstrip, normalized, special, *naming as u8);
            (content, flags).hash(&mut hash);
        }
        hash.digest128()
    }

    /// The added tokens of a model, where those of `tokenizer.json` are `added`, and `vocab` and `table` have
    /// all that it knows. `chars` says whether a symbol is a character; otherwise it stands for a byte.
    pub(super) fn merge(
        self,
        mut added: Vec<AddedToken>,
        (vocab, table, chars): (&HashMap<String, u32>, &TokenTable, bool),
    ) -> Result<Vec<AddedToken>, TextError> {
        let is_named = |text: &str| {
            let named = self.specials.iter().filter(|special| special.naming != Naming::List);
            named.into_iter().any(|special| special.token.content == text)
        };
        let known = added.len();
        for Numbered { path, mut token, overrules } in self.numbered {
            let at = place(&token, &path, (&added, known), (table, chars))?;
            if at.is_some_and(|at| !overrules || added[at] == token) {
                continue;
            }
            token.special |= overrules && is_named(&token.content);
            match at {
                Some(at) => {
                    // What was special once is left out of answers.
                    token.special |= added[at].special;
                    added[at] = token;
                }
                None => added.push(token),
            }
        }
        for Special { path, token, naming } in self.specials {
            let text = token.content.as_str();
            if text.is_empty() || added.iter().any(|other| other.content == text) {
                continue;
            }
            match vocab.get(text) {
                Some(&id) => added.push(token.with_id(id)),
                None if naming == Naming::Key => {}
                None => {
                    let text = text.to_owned();
                    return Err(TextError::TokenWithoutId { path, text });
                }
            }
        }
        Ok(added)
    }
}

/// Where `added`, of which the first `known` are in `table`, has the text of a token, if it has it.
fn place(
    token: &AddedToken,
    path: &Path,
    (added, known): (&[AddedToken], usize),
    (table, chars): (&TokenTable, bool),
) -> Result<Option<usize>, TextError> {
    let AddedToken { id, content: text, .. } = token;
    let (path, id) = (path.to_owned(), *id);
    if id > ID_MAX {
        return Err(TextError::TokenId { path, id, text: text.clone() });
    }
    let at = added.iter().position(|other| other.content == *text);
    let own = added[known..].iter().find(|other| other.id == id);
    let bytes = added_bytes(text, chars);
    let here = own.map(|own| added_bytes(&own.content, chars));
    let here = here.or_else(|| table.get(id).map(<[u8]>::to_vec));
    let found = match (at, &here) {
        (Some(at), _) => Some(added[at].id),
        (None, Some(here)) if *here == bytes => Some(id),
        (None, _) => table.find(&bytes),
    };
    let contradicts =
        found.is_some_and(|found| found != id) || here.as_ref().is_some_and(|here| *here != bytes);
    if contradicts {
        let known = here.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        return Err(TextError::TokenContradiction { path, id, text: text.clone(), found, known });
    }
    Ok(at)
}

/// The special tokens that a file names, whatever it calls them.
fn special_tokens(config: &Value, path: &Path) -> Result<Vec<Special>, TextError> {
    let mut specials = Vec::new();
    let mut add = |token: Named, naming: Naming| {
        let described = match token {
            Named::Text(text) => Described { content: text, ..Described::default() },
            Named::Described(described) => described,
        };
        let token = Described { special: true, ..described };
        specials.push(Special { path: path.to_owned(), token, naming });
    };
    for (name, value) in config.as_object().into_iter().flatten() {
        // `add_bos_token` and the like are no tokens.
        if name.ends_with("_token") && (value.is_string() || value["content"].is_string()) {
            typed(value, path)?.into_iter().for_each(|token| add(token, Naming::Key));
        }
    }
    for key in
        ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"]
    {
        match typed(&config[key], path)? {
            None => {}
            Some(NamedTokens::List(list)) => {
                list.into_iter().for_each(|token| add(token, Naming::List));
            }
            Some(NamedTokens::ByName(tokens)) => {
                tokens.into_values().for_each(|token| add(token, Naming::Table));
            }
        }
    }
    Ok(specials)
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
        opened_beside(config, list, None)
    }

    fn opened_beside(
        config: &Value,
        list: &Value,
        map: Option<&Value>,
    ) -> Result<Tokenizer, TextError> {
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
        if let Some(map) = map {
            fs::write(dir.path().join("special_tokens_map.json"), map.to_string()).unwrap();
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
    fn every_special_token_that_is_named_is_cut_out_of_the_text() {
        let strip = json!({"content": "the", "rstrip": true, "special": false});
        // As `transformers` has them.
        let (cut, stripped) = (vec![64, 220, 1282, 302, 1282, 81, 291], vec![64, 220, 1282, 65]);
        for (config, expected) in [
            (json!({"eos_token": "the"}), &cut),
            (json!({"pad_token": {"content": "the"}}), &cut),
            (json!({"image_token": "the", "add_bos_token": false, "unk_token": ""}), &cut),
            (json!({"model_specific_special_tokens": {"x": "the"}}), &cut),
            (json!({"extra_special_tokens": {"x": "the"}}), &cut),
            (json!({"additional_special_tokens": ["the"]}), &cut),
            (json!({"extra_special_tokens": ["the"], "pad_token": "<nowhere>"}), &cut),
            (json!({"cls_token": strip}), &stripped),
        ] {
            let text = if *expected == cut { "a the other b" } else { "a the  b" };
            for (config, map) in [(config.clone(), None), (json!({}), Some(config))] {
                let tokenizer = opened_beside(&config, &Value::Null, map.as_ref()).unwrap();
                let ids = tokenizer.encode(text, SpecialTokens::Parse).unwrap();
                assert_eq!(ids, *expected, "{config} {map:?}");
                assert!(tokenizer.is_special(1282));
            }
        }
        // Described tokens are all there are; and the vocabulary spells its tokens in its own letters.
        let map = json!({"additional_special_tokens": ["the"], "eos_token": "the"});
        let config =
            json!({"added_tokens_decoder": {}, "pad_token": " the", "cls_token": "\u{120}the"});
        let tokenizer = opened_beside(&config, &Value::Null, Some(&map)).unwrap();
        assert_eq!(tokenizer.encode("a the b", SpecialTokens::Parse).unwrap(), [64, 275, 291]);
        let without_id = opened(&json!({"extra_special_tokens": [" the"]}), &Value::Null);
        assert!(matches!(without_id.map(drop), Err(TextError::TokenWithoutId { .. })));
    }

    #[test]
    fn flags_beside_the_file_replace_its_own() {
        let flagged = |flags: Value, more: Value| {
            let mut described = json!({"content": "<|im_end|>"});
            described.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            let mut config = json!({"added_tokens_decoder": {"2041": described}});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            opened(&config, &json!({"<|im_end|>": 2041})).unwrap()
        };
        let encode = |tokenizer: &Tokenizer, text: &str| {
            tokenizer.encode(text, SpecialTokens::Parse).unwrap()
        };
        let strips = flagged(json!({"lstrip": true, "rstrip": true, "special": true}), json!({}));
        assert_eq!(encode(&strips, "a <|im_end|> b"), [64, 2041, 65]);
        let word = flagged(json!({"single_word": true, "special": true}), json!({}));
        assert!(!encode(&word, "a<|im_end|>").contains(&2041));
        assert!(encode(&word, "a <|im_end|>").contains(&2041));
        // The sign of the unit kelvin is the letter K in every normal form.
        for (flags, finds) in [
            (json!({"special": true}), false),
            (json!({"special": false}), true),
            (json!({"special": true, "normalized": true}), true),
            (json!({"special": false, "normalized": false}), false),
        ] {
            let mut described = flags.clone();
            described["content"] = "<K>".into();
            let config = json!({"added_tokens_decoder": {"2048": described}});
            let tokenizer = opened(&config, &Value::Null).unwrap();
            assert_eq!(encode(&tokenizer, "<\u{212A}>").contains(&2048), finds, "{flags}");
            assert_eq!(tokenizer.is_special(2048), flags["special"] == true);
        }
        let listed = opened(&json!({}), &json!({"<K>": 2048})).unwrap();
        assert!(encode(&listed, "<\u{212A}>").contains(&2048));
        // What was special stays so, and what is named becomes it.
        assert!(flagged(json!({}), json!({})).is_special(2041));
        let think = |more: Value| {
            let mut config = json!({"added_tokens_decoder": {"2047": {"content": "</think>"}}});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            opened(&config, &Value::Null).unwrap().is_special(2047)
        };
        assert!(!think(json!({})));
        assert!(!think(json!({"extra_special_tokens": ["</think>"]})));
        assert!(think(json!({"sep_token": "</think>"})));
    }

    #[test]
    fn switches_that_are_not_known_here_are_refused() {
        let forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
        for idle in [
            json!({"split_special_tokens": false, "clean_up_tokenization_spaces": true}),
            json!({"clean_up_tokenization_spaces": false, forced: true}),
        ] {
            opened(&idle, &Value::Null).unwrap();
        }
        for (config, key) in [
            (json!({"split_special_tokens": true}), "split_special_tokens"),
            (json!({"clean_up_tokenization_spaces": true, forced: true}), forced),
        ] {
            let message = opened(&config, &Value::Null).map(drop).unwrap_err().to_string();
            let expected = format!("tokenizer_config.json uses {key}, which");
            assert!(message.contains(&expected), "{message}");
        }
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
