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

/// The JSON in a file; `null` if there is no such file.
pub(crate) fn read_json_optional(path: &Path) -> Result<serde_json::Value, TextError> {
    let Some(text) = read_optional(path)? else { return Ok(serde_json::Value::Null) };
    serde_json::from_str(&text).map_err(|source| TextError::Json { path: path.to_owned(), source })
}
