//! Files that a model may or may not have.

use std::{fs, io, path::Path};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::TextError;

/// The text of a file, or nothing if there is no such file.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>, TextError> {
    match fs::read_to_string(path) {
        Ok(text) => refuse_pointer(path, text.as_bytes()).map(|()| Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_absent(path) => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

/// How what git-lfs leaves in the place of a file begins, of any size.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The bytes of a file that has to be there.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TextError> {
    let bytes =
        fs::read(path).map_err(|source| TextError::Read { path: path.to_owned(), source })?;
    refuse_pointer(path, &bytes)?;
    Ok(bytes)
}

fn refuse_pointer(path: &Path, bytes: &[u8]) -> Result<(), TextError> {
    if bytes.starts_with(LFS_POINTER) {
        return Err(TextError::LfsPointer { path: path.to_owned() });
    }
    Ok(())
}

/// Whether nothing of this name is there. A link to nothing is there: a model must not be run without
/// a file that somebody meant to give it.
fn is_absent(path: &Path) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    path.symlink_metadata().is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

/// `tokenizer_config.json` of a directory, with the special tokens that only `special_tokens_map.json`
/// names; `null` if there is neither.
pub(crate) fn read_tokenizer_config(dir: &Path) -> Result<Value, TextError> {
    let config: Option<Map<_, _>> = read_optional_as(&dir.join("tokenizer_config.json"))?;
    let map: Option<Map<_, _>> = read_optional_as(&dir.join("special_tokens_map.json"))?;
    if config.is_none() && map.is_none() {
        return Ok(Value::Null);
    }
    let mut config = config.unwrap_or_default();
    let named = map.into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
    for (name, token) in named {
        config.entry(name).or_insert(token);
    }
    Ok(config.into())
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
pub(crate) fn read_json_optional(path: &Path) -> Result<Value, TextError> {
    Ok(read_optional_as(path)?.unwrap_or_default())
}

fn read_optional_as<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(text) = read_optional(path)? else { return Ok(None) };
    let json = |source| TextError::Json { path: path.to_owned(), source };
    serde_json::from_str(&text).map(Some).map_err(json)
}
