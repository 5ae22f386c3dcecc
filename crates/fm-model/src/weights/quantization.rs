//! What `config.json` says of how weights are packed: `quantization`, or `quantization_config`.
//!
//! MLX writes both alike. Shapes decide, and words are held against them; a word that cannot be read must not count as
//! none.

use serde_json::Value;

use crate::error::{FieldValue, LoadError};

const OWN: &str = "quantization";
const OTHER: &str = "quantization_config";

/// The dictionary in force, if there is one.
pub(super) fn in_force(config: &Value) -> Result<Option<&Value>, LoadError> {
    let said = |key: &str| config.get(key).filter(|value| !value.is_null());
    let (own, other) = (said(OWN), said(OTHER));
    let found = own.map(|value| (OWN, value)).or(other.map(|value| (OTHER, value)));
    let Some((name, dictionary)) = found else { return Ok(None) };
    check_types(name, dictionary)?;
    // Modules have entries of their own.
    for (module, entry) in dictionary.as_object().into_iter().flatten() {
        check_types(&format!("{name}.{module}"), entry)?;
    }
    if let (Some(own), Some(other)) = (own, other) {
        agree((OWN, own), (OTHER, other))?;
    }
    Ok(Some(dictionary))
}

fn check_types(path: &str, dictionary: &Value) -> Result<(), LoadError> {
    let check = |key: &str, expected, fits: fn(&Value) -> bool| match dictionary.get(key) {
        Some(found) if !found.is_null() && !fits(found) => {
            let (key, found) = (format!("{path}.{key}"), found.to_string());
            Err(LoadError::QuantizationType { key, found, expected })
        }
        _ => Ok(()),
    };
    check("mode", "the name of a mode", Value::is_string)?;
    check("bits", "a count", Value::is_u64)?;
    check("group_size", "a count", Value::is_u64)
}

/// What both dictionaries say, they say alike. Publishers of fp8 leave words of their own in one of them.
fn agree((own_path, own): (&str, &Value), (path, other): (&str, &Value)) -> Result<(), LoadError> {
    if let (Some(own), Some(other)) = (own.as_object(), other.as_object()) {
        let mut shared = own.iter().filter_map(|(key, value)| Some((key, value, other.get(key)?)));
        return shared.try_for_each(|(key, value, found)| {
            agree((&format!("{own_path}.{key}"), value), (&format!("{path}.{key}"), found))
        });
    }
    if own == other {
        return Ok(());
    }
    let word = |value: &Value| FieldValue::Word(value.to_string());
    Err(LoadError::Contradiction {
        field: own_path.to_owned(),
        said: word(own),
        other: path.to_owned(),
        found: word(other),
    })
}
