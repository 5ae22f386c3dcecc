//! The model's own way of choosing words, and what it asks for that nobody here does.

use std::path::Path;

use fm_format::source::gguf::{GgufError, Metadata};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::EngineError,
    options::{MIN_P, REPETITION_PENALTY, TEMPERATURE, TOP_P},
    sampler::Sampling,
};

/// What `generation_config.json` says, or the `general.sampling` keys of a GGUF file.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct GenerationConfig {
    /// One end-of-text token or several.
    #[serde(default)]
    pub eos_token_id: Option<OneOrMany>,
    pub(crate) do_sample: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    /// Keys that would change which tokens come, and do not here.
    #[serde(skip)]
    pub ignored: Vec<&'static str>,
}

/// A token or a list of tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

impl OneOrMany {
    /// All of them.
    pub fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

/// Keys that change which tokens come and that nobody here reads, and the value with which they change
/// nothing.
fn unread() -> [(&'static str, Value); 11] {
    [
        ("suppress_tokens", Value::Null),
        ("begin_suppress_tokens", Value::Null),
        ("bad_words_ids", Value::Null),
        ("forced_bos_token_id", Value::Null),
        ("forced_eos_token_id", Value::Null),
        ("sequence_bias", Value::Null),
        ("stop_strings", Value::Null),
        ("no_repeat_ngram_size", 0.into()),
        ("typical_p", 1.0.into()),
        ("num_beams", 1.into()),
        ("min_new_tokens", 0.into()),
    ]
}

impl GenerationConfig {
    /// What the file at `path` says, of which `value` is the JSON.
    pub(crate) fn of_json(value: Value, path: &Path) -> Result<Self, EngineError> {
        let is_neutral = |value: &Value, neutral: &Value| {
            let empty = value.as_array().is_some_and(Vec::is_empty);
            let same = value.as_f64().is_some_and(|number| Some(number) == neutral.as_f64());
            value.is_null() || empty || same
        };
        let asked = unread().into_iter().filter(|(key, neutral)| {
            value.get(key).is_some_and(|value| !is_neutral(value, neutral))
        });
        let ignored = asked.map(|(key, _)| key).collect();
        let wrong = |source| EngineError::GenerationConfig { path: path.to_path_buf(), source };
        let config = Self { ignored, ..Self::deserialize(value).map_err(wrong)? };
        config.check(path, |key| key.json)?;
        Ok(config)
    }

    /// The `general.sampling` keys; a model that names a temperature is made for drawing.
    pub(crate) fn of_metadata(metadata: &Metadata, path: &Path) -> Result<Self, EngineError> {
        let config = Self::read_metadata(metadata)
            .map_err(|source| EngineError::Metadata { path: path.to_path_buf(), source })?;
        config.check(path, |key| key.gguf)?;
        Ok(config)
    }

    fn read_metadata(metadata: &Metadata) -> Result<Self, GgufError> {
        let float = |key: &Key| -> Result<Option<f32>, GgufError> {
            Ok(metadata.float(key.gguf)?.map(|value| value as f32))
        };
        let temperature = float(&Key::TEMPERATURE)?;
        Ok(Self {
            eos_token_id: None,
            do_sample: Some(temperature.is_some()),
            temperature,
            top_k: metadata.unsigned("general.sampling.top_k")?.map(|count| count as usize),
            top_p: float(&Key::TOP_P)?,
            min_p: float(&Key::MIN_P)?,
            repetition_penalty: float(&Key::REPETITION_PENALTY)?,
            ignored: Vec::new(),
        })
    }

    /// Refuses what the command line refuses.
    fn check(&self, path: &Path, name: impl Fn(&Key) -> &'static str) -> Result<(), EngineError> {
        for (value, key) in [
            (self.temperature, Key::TEMPERATURE),
            (self.top_p, Key::TOP_P),
            (self.min_p, Key::MIN_P),
            (self.repetition_penalty, Key::REPETITION_PENALTY),
        ] {
            let [low, high] = key.range;
            if let Some(found) = value.filter(|value| !(low..=high).contains(value)) {
                let (path, key) = (path.to_path_buf(), name(&key));
                return Err(EngineError::Sampling { path, key, found, low, high });
            }
        }
        Ok(())
    }

    /// The model's own way of choosing. Without `do_sample` that is the most likely token.
    pub fn sampling(&self) -> Sampling {
        let default = Sampling::default();
        let repetition_penalty = self.repetition_penalty.unwrap_or(default.repetition_penalty);
        if self.do_sample != Some(true) {
            return Sampling { repetition_penalty, ..default };
        }
        Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty,
            ..default
        }
    }
}

/// A number by its names, and what it may be.
struct Key {
    json: &'static str,
    gguf: &'static str,
    range: [f32; 2],
}

impl Key {
    const TEMPERATURE: Self =
        Self { json: "temperature", gguf: "general.sampling.temp", range: TEMPERATURE };
    const TOP_P: Self = Self { json: "top_p", gguf: "general.sampling.top_p", range: TOP_P };
    const MIN_P: Self = Self { json: "min_p", gguf: "general.sampling.min_p", range: MIN_P };
    const REPETITION_PENALTY: Self = Self {
        json: "repetition_penalty",
        gguf: "general.sampling.penalty_repeat",
        range: REPETITION_PENALTY,
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<GenerationConfig, EngineError> {
        GenerationConfig::of_json(value, Path::new("generation_config.json"))
    }

    #[test]
    fn the_model_decides_unless_it_says_nothing() {
        let config = json!({
            "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.95, "eos_token_id": [4, 2],
        });
        let config = read(config).unwrap();
        let want = Sampling { temperature: 0.7, top_k: 20, top_p: 0.95, ..Sampling::default() };
        assert_eq!(config.sampling(), want);
        assert_eq!(config.eos_token_id.unwrap().into_vec(), [4, 2]);
        assert_eq!(GenerationConfig::default().sampling(), Sampling::default());
    }

    #[test]
    fn numbers_that_the_command_line_refuses_are_refused_by_file_and_key() {
        for (key, value) in [
            ("temperature", -1.0),
            ("temperature", 1e9),
            ("top_p", 2.0),
            ("top_p", -0.1),
            ("min_p", 3.0),
            ("repetition_penalty", 0.0),
        ] {
            let message = read(json!({"do_sample": true, key: value})).unwrap_err().to_string();
            assert!(message.starts_with("generation_config.json: "), "{message}");
            assert!(message.contains(&format!("`{key}`")), "{message}");
        }
        read(json!({"temperature": 0, "top_p": 1, "min_p": null, "repetition_penalty": 1}))
            .unwrap();
    }

    #[test]
    fn keys_that_change_tokens_and_are_not_read_are_named() {
        let ignored = |value: Value| read(value).unwrap().ignored;
        let asked = json!({
            "suppress_tokens": [1], "no_repeat_ngram_size": 3, "num_beams": 4, "stop_strings": "x",
            "typical_p": 0.2, "bad_words_ids": [[7]], "transformers_version": "5",
        });
        let named = [
            "suppress_tokens",
            "bad_words_ids",
            "stop_strings",
            "no_repeat_ngram_size",
            "typical_p",
            "num_beams",
        ];
        assert_eq!(ignored(asked), named);
        let neutral = json!({
            "suppress_tokens": null, "bad_words_ids": [], "no_repeat_ngram_size": 0, "num_beams": 1,
            "typical_p": 1.0,
        });
        assert!(ignored(neutral).is_empty());
    }
}
