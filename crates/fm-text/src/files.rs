//! Files that a model may or may not have.

use std::{fs, io, path::Path};

use crate::error::TextError;

/// The text of a file, or nothing if there is no such file.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>, TextError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

/// `tokenizer_config.json` of a directory, with the special tokens that only `special_tokens_map.json`
/// names; `null` if there is neither.
pub(crate) fn read_tokenizer_config(dir: &Path) -> Result<serde_json::Value, TextError> {
    let mut config = read_json_optional(&dir.join("tokenizer_config.json"))?;
    let map = read_json_optional(&dir.join("special_tokens_map.json"))?;
    let serde_json::Value::Object(map) = map else { return Ok(config) };
    if config.is_null() {
        config = serde_json::Map::new().into();
    }
    if let Some(config) = config.as_object_mut() {
        for (name, token) in map.into_iter().filter(|(name, _)| name.ends_with("_token")) {
            config.entry(name).or_insert(token);
        }
    }
    Ok(config)
}

/// The text of the token that ends a text, as far as a directory names one by its text: the
/// `eos_token` of `tokenizer_config.json`, or else of `special_tokens_map.json`.
///
/// # Errors
/// If a file cannot be read or parsed.
pub fn end_token(dir: &Path) -> Result<Option<String>, TextError> {
    let config = read_tokenizer_config(dir)?;
    let token = &config["eos_token"];
    Ok(token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned))
}

/// The JSON in a file; `null` if there is no such file.
pub(crate) fn read_json_optional(path: &Path) -> Result<serde_json::Value, TextError> {
    let Some(text) = read_optional(path)? else { return Ok(serde_json::Value::Null) };
    serde_json::from_str(&text).map_err(|source| TextError::Json { path: path.to_owned(), source })
}
