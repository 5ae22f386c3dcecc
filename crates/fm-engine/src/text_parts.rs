//! What a model says about text: its tokenizer, its chat template, the tokens that end a text, and
//! its own way of choosing words. A directory has files for each, a GGUF file keys.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fm_format::source::{
    gguf::{GgufError, Metadata},
    is_absent, read_json,
};
use fm_text::{
    ChatTemplate, TextError, Tokenizer, Vocabulary, end_token,
    vocabulary::{BPET_MAGIC, key, known_ends},
};
use serde_json::Value;

use crate::{
    error::EngineError,
    generation_config::{GenerationConfig, OneOrMany},
    metadata_keys::check_tokenizer,
};

/// See the module.
pub(crate) struct TextParts {
    /// Nothing for a model of noise.
    pub(crate) tokenizer: Option<Tokenizer>,
    /// Nothing for a base model.
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) generation: GenerationConfig,
    /// Tokens that end a text.
    pub(crate) eos: Vec<u32>,
}

impl TextParts {
    /// Reads the files in the directory `path`, of a model that has `vocab` tokens.
    pub(crate) fn of_directory(
        (path, vocab): (&Path, usize),
        cache_dir: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let generation = generation_config(path)?;
        let (template, mut eos) =
            (ChatTemplate::open(path)?, eos_tokens(path, &generation, vocab)?);
        let tokenizer = if !is_absent(&path.join("tokenizer.json")) {
            Some(Tokenizer::open(path, cache_dir)?)
        } else if let Some((file, vocabulary)) = packed_vocabulary(path)? {
            Some(Tokenizer::from_vocabulary(&vocabulary, &file, cache_dir)?)
        } else {
            None
        };
        if let Some(tokenizer) = &tokenizer {
            add_end_token(&mut eos, path, (tokenizer, vocab))?;
        }
        if let Some(tokenizer) = tokenizer.as_ref().filter(|_| eos.is_empty()) {
            // Packed files name none; the tokens themselves do.
            eos = known_ends(|text| tokenizer.token_id(text));
        }
        let tokenizer = tokenizer.map(|tokenizer| tokenizer.for_model(vocab));
        Ok(Self { tokenizer, template, generation, eos })
    }

    /// Takes everything from the metadata of the file or container at `path`, of a model that has `vocab`
    /// tokens.
    pub(crate) fn of_metadata(
        metadata: &Metadata,
        (path, vocab): (&Path, usize),
        cache_dir: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let generation = GenerationConfig::of_metadata(metadata, path)?;
        let Some(vocabulary) = vocabulary(metadata, path)? else {
            return Ok(Self { tokenizer: None, template: None, generation, eos: Vec::new() });
        };
        Ok(Self {
            tokenizer: Some(
                Tokenizer::from_vocabulary(&vocabulary, path, cache_dir)?.for_model(vocab),
            ),
            template: ChatTemplate::from_vocabulary(&vocabulary, path)?,
            generation,
            eos: vocabulary.end_tokens(),
        })
    }
}

/// Length that a `tokenizer.json` of the vocabulary would have: memory is planned by it.
pub(crate) fn tokenizer_json_bytes(metadata: &Metadata, path: &Path) -> Result<u64, EngineError> {
    let vocabulary = vocabulary(metadata, path)?;
    Ok(vocabulary.map_or(0, |vocabulary| vocabulary.json_bytes()))
}

/// The same for a directory, which has the file or its lists.
pub(crate) fn tokenizer_file_bytes(dir: &Path) -> Result<u64, EngineError> {
    if let Ok(file) = fs::metadata(dir.join("tokenizer.json")) {
        return Ok(file.len());
    }
    let vocabulary = packed_vocabulary(dir)?;
    Ok(vocabulary.map_or(0, |(_, vocabulary)| vocabulary.json_bytes()))
}

/// `tokenizer.bin`, which lies beside packed files; other files of this name are passed over.
fn packed_vocabulary(dir: &Path) -> Result<Option<(PathBuf, Vocabulary)>, TextError> {
    let path = dir.join("tokenizer.bin");
    if is_absent(&path) {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
    if !bytes.starts_with(&BPET_MAGIC) {
        return Ok(None);
    }
    match Vocabulary::from_bpet(&bytes) {
        Ok(vocabulary) => Ok(Some((path, vocabulary))),
        Err(source) => Err(TextError::Bpet { path, source }),
    }
}

fn generation_config(dir: &Path) -> Result<GenerationConfig, EngineError> {
    let path: PathBuf = dir.join("generation_config.json");
    if is_absent(&path) {
        return Ok(GenerationConfig::default());
    }
    let value = read_json(&path)?;
    GenerationConfig::of_json(value, &path)
}

/// Every end-of-text token that the checkpoint names by its id, wherever it names it.
fn eos_tokens(
    dir: &Path,
    generation: &GenerationConfig,
    vocab: usize,
) -> Result<Vec<u32>, EngineError> {
    const KEY: &str = "eos_token_id";
    let path = dir.join("config.json");
    // Packed files carry one that names no tokens.
    let config = if is_absent(&path) { Value::Null } else { read_json(&path)? };
    let mut tokens = Vec::new();
    for value in [config.get(KEY), config["text_config"].get(KEY)].into_iter().flatten() {
        let list = match value {
            Value::Null => &[],
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        for found in list {
            let token = found.as_u64().filter(|token| *token < vocab as u64);
            let (path, found) = (path.clone(), found.clone());
            let token = token.ok_or(EngineError::EndToken { path, key: KEY, found, vocab })?;
            tokens.push(token as u32);
        }
    }
    let named = generation.eos_token_id.clone().map_or_else(Vec::new, OneOrMany::into_vec);
    if let Some(token) = named.iter().find(|token| **token as usize >= vocab) {
        let (path, found) = (dir.join("generation_config.json"), (*token).into());
        return Err(EngineError::EndToken { path, key: KEY, found, vocab });
    }
    tokens.extend(named);
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

/// The end-of-text token that the checkpoint names by its text. One that is no token ends nothing, which
/// is no harm where there are others.
fn add_end_token(
    eos: &mut Vec<u32>,
    dir: &Path,
    (tokenizer, vocab): (&Tokenizer, usize),
) -> Result<(), EngineError> {
    let Some(text) = end_token(dir)? else { return Ok(()) };
    match tokenizer.token_id(&text).filter(|token| (*token as usize) < vocab) {
        Some(token) => eos.push(token),
        None if eos.is_empty() => {
            let (path, found) = (dir.join("tokenizer_config.json"), text.into());
            return Err(EngineError::EndToken { path, key: "eos_token", found, vocab });
        }
        None => {}
    }
    eos.sort_unstable();
    eos.dedup();
    Ok(())
}

/// The `tokenizer` keys of a file; nothing if it has no tokens.
fn vocabulary(metadata: &Metadata, path: &Path) -> Result<Option<Vocabulary>, EngineError> {
    check_tokenizer(metadata, path)?;
    let wrong = |source| EngineError::Metadata { path: path.into(), source };
    read_vocabulary(metadata).map_err(wrong)
}

fn read_vocabulary(metadata: &Metadata) -> Result<Option<Vocabulary>, GgufError> {
    let Some(tokens) = metadata.texts(key::TOKENS)? else { return Ok(None) };
    let id = |key: &str| -> Result<Option<u32>, GgufError> {
        // An id that is too large is refused where ids are held against the tokens.
        Ok(metadata.unsigned(key)?.map(|id| u32::try_from(id).unwrap_or(u32::MAX)))
    };
    let ids = |key: &str| -> Result<Vec<u32>, GgufError> {
        let ids = metadata.unsigned_array(key)?.unwrap_or_default().into_iter();
        Ok(ids.map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect())
    };
    let text = |key: &str| Ok(metadata.text(key)?.map(str::to_owned));
    let names = metadata.texts(key::CHAT_TEMPLATES)?.unwrap_or_default();
    let template = |name: &String| -> Result<_, GgufError> {
        let text = metadata.text(&format!("{}.{name}", key::CHAT_TEMPLATE))?;
        Ok(text.map(|text| (name.clone(), text.to_owned())))
    };
    let templates: Result<Vec<_>, GgufError> =
        names.iter().filter_map(|name| template(name).transpose()).collect();
    let scores = metadata.float_array(key::SCORES)?.unwrap_or_default();
    Ok(Some(Vocabulary {
        model: text(key::MODEL)?.unwrap_or_default(),
        pre: text(key::PRE)?,
        tokens: tokens.to_vec(),
        scores: scores.into_iter().map(|score| score as f32).collect(),
        token_type: metadata.integer_array(key::TOKEN_TYPE)?.unwrap_or_default(),
        merges: metadata.texts(key::MERGES)?.unwrap_or_default().to_vec(),
        add_space_prefix: metadata.bool(key::ADD_SPACE_PREFIX)?,
        add_bos_token: metadata.bool(key::ADD_BOS)?,
        add_eos_token: metadata.bool(key::ADD_EOS)?,
        bos_token_id: id(key::BOS)?,
        eos_token_id: id(key::EOS)?,
        eos_token_ids: ids(key::EOS_ALL)?,
        eot_token_id: id(key::EOT)?,
        eom_token_id: id(key::EOM)?,
        unknown_token_id: id(key::UNKNOWN)?,
        padding_token_id: id(key::PADDING)?,
        chat_template: text(key::CHAT_TEMPLATE)?,
        chat_templates: templates?,
    }))
}

#[cfg(test)]
mod tests {
    use fm_testkit::golden::{copy_files, demo_dir};
    use serde_json::json;

    use super::*;
    use crate::metadata_keys::tests::{Raw, metadata};

    const VOCAB: usize = 2048;
    const MESSAGE_END: u32 = 2041;
    const TEXT_END: u32 = 2039;

    /// Ends of the demonstration model's texts where its files say this.
    fn ends(
        config: &Value,
        generation: &Value,
        tokenizer: &Value,
    ) -> Result<Vec<u32>, EngineError> {
        let dir = tempfile::tempdir().unwrap();
        copy_files(&demo_dir(), dir.path());
        for (name, value) in [
            ("config.json", config),
            ("generation_config.json", generation),
            ("tokenizer_config.json", tokenizer),
        ] {
            fs::write(dir.path().join(name), value.to_string()).unwrap();
        }
        TextParts::of_directory((dir.path(), VOCAB), None).map(|parts| parts.eos)
    }

    #[test]
    fn an_end_that_only_the_tokenizer_names_is_one() {
        let (none, text) = (json!({}), json!({"eos_token": "<|im_end|>"}));
        assert_eq!(ends(&none, &none, &text).unwrap(), [MESSAGE_END]);
        let described = json!({"eos_token": {"content": "<|im_end|>"}});
        let other = json!({"text_config": {"eos_token_id": TEXT_END}});
        assert_eq!(ends(&other, &none, &described).unwrap(), [TEXT_END, MESSAGE_END]);
        let stale = json!({"eos_token": "<|nothing|>"});
        assert_eq!(ends(&other, &none, &stale).unwrap(), [TEXT_END]);
        let message = ends(&none, &none, &stale).unwrap_err().to_string();
        let expected = "tokenizer_config.json: `eos_token` is \"<|nothing|>\", which is no token";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn a_file_may_list_its_ends_and_what_nobody_reads_is_refused() {
        let path = Path::new("m.gguf");
        let tokens = || (key::TOKENS, Raw::Texts(&["a", "b", "c"]));
        let listed = metadata(&[tokens(), (key::EOS_ALL, Raw::Bytes(&[1, 2]))]);
        assert_eq!(vocabulary(&listed, path).unwrap().unwrap().end_tokens(), [1, 2]);
        let unread = metadata(&[tokens(), ("tokenizer.ggml.whatever", Raw::U32(0))]);
        let error = vocabulary(&unread, path).unwrap_err();
        assert!(matches!(error, EngineError::TokenizerKey { .. }) && error.hint().is_some());
    }

    #[test]
    fn ends_that_are_no_tokens_are_refused_by_file_and_key() {
        let none = json!({});
        let wrong = [
            json!(2048),
            json!((1_u64 << 32) + 2041),
            json!(-1),
            json!("<|im_end|>"),
            json!(2041.0),
        ];
        for id in wrong {
            for id in [id.clone(), json!([TEXT_END, id])] {
                let message =
                    ends(&json!({"eos_token_id": id}), &none, &none).unwrap_err().to_string();
                assert!(message.contains("config.json: `eos_token_id` is "), "{id}: {message}");
                assert!(ends(&none, &json!({"eos_token_id": id}), &none).is_err(), "{id}");
            }
        }
        let named = json!({"eos_token_id": [TEXT_END]});
        assert_eq!(ends(&json!({"eos_token_id": null}), &named, &none).unwrap(), [TEXT_END]);
    }
    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_is_no_file_that_a_model_does_without() {
        for name in [
            "generation_config.json",
            "tokenizer_config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "config.json",
        ] {
            let dir = tempfile::tempdir().unwrap();
            copy_files(&demo_dir(), dir.path());
            let path = dir.path().join(name);
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink("../blobs/gone", &path).unwrap();
            let failed = TextParts::of_directory((dir.path(), VOCAB), None).map(drop);
            let message = failed.unwrap_err().to_string();
            assert!(message.contains(name), "{name}: {message}");
        }
    }
}
