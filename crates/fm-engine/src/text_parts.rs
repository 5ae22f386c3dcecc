//! What a model says about text: its tokenizer, its chat template, the tokens that end a text, and
//! its own way of choosing words. A directory has files for each, a GGUF file keys.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fm_format::source::{
    gguf::{GgufError, Metadata},
    read_json,
};
use fm_text::{
    ChatTemplate, TextError, Tokenizer, Vocabulary,
    vocabulary::{BPET_MAGIC, ENDS, key},
};
use serde_json::Value;

use crate::{
    error::EngineError,
    sampler::{GenerationConfig, OneOrMany},
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
    /// Reads the files in the directory `path`.
    pub(crate) fn of_directory(path: &Path, cache_dir: Option<&Path>) -> Result<Self, EngineError> {
        let generation = generation_config(path)?;
        let (template, mut eos) = (ChatTemplate::open(path)?, eos_tokens(path, &generation)?);
        let tokenizer = if path.join("tokenizer.json").is_file() {
            Some(Tokenizer::open(path, cache_dir)?)
        } else if let Some((file, vocabulary)) = packed_vocabulary(path)? {
            Some(Tokenizer::from_vocabulary(&vocabulary, &file, cache_dir)?)
        } else {
            None
        };
        if let Some(tokenizer) = tokenizer.as_ref().filter(|_| eos.is_empty()) {
            // Packed files name none; the tokens themselves do.
            eos = ENDS.iter().filter_map(|text| tokenizer.token_id(text)).collect();
        }
        Ok(Self { tokenizer, template, generation, eos })
    }

    /// Takes everything from the metadata of the file or container at `path`.
    pub(crate) fn of_metadata(
        metadata: &Metadata,
        path: &Path,
        cache_dir: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let wrong = |source| EngineError::Metadata { path: path.into(), source };
        let generation = sampling(metadata).map_err(wrong)?;
        let Some(vocabulary) = vocabulary(metadata).map_err(wrong)? else {
            return Ok(Self { tokenizer: None, template: None, generation, eos: Vec::new() });
        };
        Ok(Self {
            tokenizer: Some(Tokenizer::from_vocabulary(&vocabulary, path, cache_dir)?),
            template: ChatTemplate::from_vocabulary(&vocabulary, path)?,
            generation,
            eos: vocabulary.end_tokens(),
        })
    }
}

/// Length that a `tokenizer.json` of the vocabulary would have: memory is planned by it.
pub(crate) fn tokenizer_json_bytes(metadata: &Metadata, path: &Path) -> Result<u64, EngineError> {
    let wrong = |source| EngineError::Metadata { path: path.into(), source };
    let vocabulary = vocabulary(metadata).map_err(wrong)?;
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
    if !path.is_file() {
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
    if !path.is_file() {
        return Ok(GenerationConfig::default());
    }
    let value = read_json(&path)?;
    serde_json::from_value(value).map_err(|source| EngineError::GenerationConfig { path, source })
}

/// Every end-of-text token that the checkpoint names, wherever it names it.
fn eos_tokens(dir: &Path, generation: &GenerationConfig) -> Result<Vec<u32>, EngineError> {
    let path = dir.join("config.json");
    // Packed files carry one that names no tokens.
    let config = if path.is_file() { read_json(&path)? } else { Value::Null };
    let text = config.get("text_config");
    let named = [config.get("eos_token_id"), text.and_then(|text| text.get("eos_token_id"))];
    let mut tokens = generation.eos_token_id.clone().map_or_else(Vec::new, OneOrMany::into_vec);
    for value in named.into_iter().flatten() {
        match value {
            Value::Array(list) => {
                tokens.extend(list.iter().filter_map(|token| token.as_u64().map(|t| t as u32)));
            }
            value => tokens.extend(value.as_u64().map(|token| token as u32)),
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

/// The `general.sampling` keys; a model that names a temperature is made for drawing.
fn sampling(metadata: &Metadata) -> Result<GenerationConfig, GgufError> {
    let float = |key: &str| -> Result<Option<f32>, GgufError> {
        Ok(metadata.float(&format!("general.sampling.{key}"))?.map(|value| value as f32))
    };
    let temperature = float("temp")?;
    Ok(GenerationConfig {
        eos_token_id: None,
        do_sample: Some(temperature.is_some()),
        temperature,
        top_k: metadata.unsigned("general.sampling.top_k")?.map(|count| count as usize),
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
    })
}

/// The `tokenizer` keys; nothing if the file has no tokens.
fn vocabulary(metadata: &Metadata) -> Result<Option<Vocabulary>, GgufError> {
    let Some(tokens) = metadata.texts(key::TOKENS)? else { return Ok(None) };
    let id = |key: &str| -> Result<Option<u32>, GgufError> {
        // An id that is too large is refused where ids are held against the tokens.
        Ok(metadata.unsigned(key)?.map(|id| u32::try_from(id).unwrap_or(u32::MAX)))
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
        eot_token_id: id(key::EOT)?,
        eom_token_id: id(key::EOM)?,
        unknown_token_id: id(key::UNKNOWN)?,
        padding_token_id: id(key::PADDING)?,
        chat_template: text(key::CHAT_TEMPLATE)?,
        chat_templates: templates?,
    }))
}
