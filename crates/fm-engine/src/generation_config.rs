//! The model's own way of choosing words, and what it asks for that nobody here does.

use std::path::Path;

use fm_format::source::gguf::{GgufError, Metadata, Value as MetadataValue};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    error::EngineError,
    metadata_keys::ignored_sampling,
    options::{MIN_P, PENALTY, REPETITION_PENALTY, TEMPERATURE, TOP_P},
    sampler::Sampling,
};

mod unread;

/// What `generation_config.json` says, or the `general.sampling` keys of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GenerationConfig {
    /// One end-of-text token or several.
    pub eos_token_id: Option<OneOrMany>,
    pub(crate) do_sample: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    /// Keys that would change which tokens come, and do not here.
    pub ignored: Vec<String>,
}

/// A token or a list of tokens.
#[derive(Clone, Debug)]
pub enum OneOrMany {
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

impl OneOrMany {
    /// All of them.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

impl GenerationConfig {
    /// What the file at `path` says, of which `value` is the JSON.
    pub(crate) fn of_json(value: Value, path: &Path) -> Result<Self, EngineError> {
        let wrong = |source| EngineError::GenerationConfig { path: path.to_path_buf(), source };
        let fields = Fields { fields: Map::deserialize(value).map_err(wrong)?, path };
        let float = |key: &Key| {
            let number = |value: &Value| value.as_f64().map(|number| number as f32);
            fields.get(key.json, "a number", number)
        };
        let config = Self {
            eos_token_id: fields.get("eos_token_id", "a token or a list of tokens", tokens)?,
            do_sample: fields.get("do_sample", "true or false", Value::as_bool)?,
            temperature: float(&Key::TEMPERATURE)?,
            top_k: fields.get("top_k", "a whole number, 0 for all tokens", |value| {
                value.as_u64().and_then(|count| usize::try_from(count).ok())
            })?,
            top_p: float(&Key::TOP_P)?,
            min_p: float(&Key::MIN_P)?,
            repetition_penalty: float(&Key::REPETITION_PENALTY)?,
            presence_penalty: float(&Key::PRESENCE_PENALTY)?,
            frequency_penalty: float(&Key::FREQUENCY_PENALTY)?,
            ignored: unread::with_effect(&fields.fields),
        };
        config.check(path, |key| key.json)?;
        Ok(config)
    }

    /// The `general.sampling` keys; a model that names a temperature is made for drawing.
    pub(crate) fn of_metadata(metadata: &Metadata, path: &Path) -> Result<Self, EngineError> {
        let config = Self::read_metadata(metadata)
            .map_err(|source| EngineError::SamplingKey { path: path.to_path_buf(), source })?;
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
            top_k: match metadata.get(TOP_K) {
                // All tokens, as none.
                Some(MetadataValue::Signed(..=0)) => Some(0),
                _ => metadata.unsigned(TOP_K)?.map(|count| count as usize),
            },
            top_p: float(&Key::TOP_P)?,
            min_p: float(&Key::MIN_P)?,
            repetition_penalty: float(&Key::REPETITION_PENALTY)?,
            ignored: ignored_sampling(
                metadata,
                &[
                    TOP_K,
                    Key::TEMPERATURE.gguf,
                    Key::TOP_P.gguf,
                    Key::MIN_P.gguf,
                    Key::REPETITION_PENALTY.gguf,
                ],
            ),
            ..Self::default()
        })
    }

    /// Refuses what the command line refuses.
    fn check(&self, path: &Path, name: impl Fn(&Key) -> &'static str) -> Result<(), EngineError> {
        for (value, key) in [
            (self.temperature, Key::TEMPERATURE),
            (self.top_p, Key::TOP_P),
            (self.min_p, Key::MIN_P),
            (self.repetition_penalty, Key::REPETITION_PENALTY),
            (self.presence_penalty, Key::PRESENCE_PENALTY),
            (self.frequency_penalty, Key::FREQUENCY_PENALTY),
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
        let penalised = Sampling {
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            ..default
        };
        if self.do_sample != Some(true) {
            return penalised;
        }
        Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            ..penalised
        }
    }
}

const TOP_K: &str = "general.sampling.top_k";

/// The fields of a file.
struct Fields<'a> {
    fields: Map<String, Value>,
    path: &'a Path,
}

impl Fields<'_> {
    /// What a field says, if it says something.
    fn get<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, EngineError> {
        let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let wrong = || {
            let (path, found) = (self.path.to_path_buf(), value.to_string());
            EngineError::GenerationField { path, key, found, expected }
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}

fn tokens(value: &Value) -> Option<OneOrMany> {
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match value.as_array() {
        Some(list) => list.iter().map(token).collect::<Option<_>>().map(OneOrMany::Many),
        None => token(value).map(OneOrMany::One),
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
    // Publishers write them for programs that have them; the format of GGUF has no keys for them.
    const PRESENCE_PENALTY: Self = Self { json: "presence_penalty", gguf: "", range: PENALTY };
    const FREQUENCY_PENALTY: Self = Self { json: "frequency_penalty", gguf: "", range: PENALTY };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metadata_keys::tests::{Raw, metadata};

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
    fn penalties_are_the_models_even_without_drawing() {
        let config = json!({"presence_penalty": 1.5, "frequency_penalty": -0.5});
        let want =
            Sampling { presence_penalty: 1.5, frequency_penalty: -0.5, ..Sampling::default() };
        assert_eq!(read(config).unwrap().sampling(), want);
        let message = read(json!({"presence_penalty": 101})).unwrap_err().to_string();
        assert!(message.contains("`presence_penalty` is 101"), "{message}");
    }

    #[test]
    fn values_of_a_wrong_type_are_refused_by_file_and_key() {
        for (key, value) in [
            ("top_k", json!(-1)),
            ("top_k", json!(20.0)),
            ("eos_token_id", json!(-1)),
            ("eos_token_id", json!([3, "x"])),
            ("eos_token_id", json!(1_u64 << 40)),
            ("temperature", json!("hot")),
            ("do_sample", json!(1)),
            ("min_p", json!([0.1])),
        ] {
            let message = read(json!({key: value})).unwrap_err().to_string();
            let expected = format!("generation_config.json: `{key}` is {value}, expected ");
            assert!(message.starts_with(&expected), "{message}");
        }
        assert!(read(json!([])).is_err());
    }

    #[test]
    fn a_file_says_how_words_are_chosen_in_numbers_of_their_kinds() {
        let read = |pairs: &[(&str, Raw)]| {
            GenerationConfig::of_metadata(&metadata(pairs), Path::new("m.gguf"))
        };
        let (temp, top_k) = (Key::TEMPERATURE.gguf, TOP_K);
        for (count, expected) in
            [(Raw::I32(-1), 0), (Raw::I32(0), 0), (Raw::I32(20), 20), (Raw::U32(7), 7)]
        {
            let config = read(&[(temp, Raw::F32(0.5)), (top_k, count)]).unwrap();
            assert_eq!((config.sampling().top_k, config.sampling().temperature), (expected, 0.5));
            assert!(config.ignored.is_empty());
        }
        let asked = [(temp, Raw::F32(0.5)), ("general.sampling.mirostat", Raw::I32(1))];
        assert_eq!(read(&asked).unwrap().ignored, ["general.sampling.mirostat"]);
        for (key, value) in [(temp, Raw::Text("warm")), (top_k, Raw::F32(20.0))] {
            let error = read(&[(key, value)]).unwrap_err();
            let message = crate::error::chain(&error);
            assert!(message.starts_with("m.gguf: the metadata do not say how"), "{message}");
            assert!(message.contains(key), "{message}");
            assert!(error.hint().is_some());
        }
    }
}
