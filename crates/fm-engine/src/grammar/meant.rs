//! A schema in words that `llguidance` takes as they are meant.
//!
//! It refuses keywords that ask for nothing as they are used, and formats that it does not know; it passes over keywords
//! that the draft which `$schema` names does not have; and it lets quotes through where a pattern has none
//! ([`classes`]).

use serde_json::{Map, Value, json};

use super::classes;

/// Formats that say nothing of a text, or nothing that the type does not say: pydantic's and those of `OpenAPI`.
const IDLE_FORMATS: [&str; 9] = [
    "binary",
    "directory-path",
    "double",
    "file-path",
    "float",
    "int32",
    "int64",
    "password",
    "path",
];

/// The schema in those words.
pub(super) fn rewritten(schema: Value) -> Value {
    match schema {
        Value::Object(mut map) => {
            tell_version(&mut map);
            let kept = map.into_iter().filter(|(keyword, value)| !is_idle(keyword, value));
            let kept = kept.map(|(keyword, value)| {
                let value = match (keyword.as_str(), value) {
                    ("properties" | "$defs" | "definitions", value) => each(value, |name| name),
                    ("patternProperties", value) => each(value, classes::without_nul),
                    ("$ref", Value::String(reference)) => renamed(&reference).into(),
                    ("pattern", Value::String(pattern)) => classes::without_nul(pattern).into(),
                    // Values, which may look like schemas.
                    ("enum" | "const" | "default" | "examples", value) => value,
                    (_, value) => rewritten(value),
                };
                (keyword, value)
            });
            kept.collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.into_iter().map(rewritten).collect(),
        other => other,
    }
}

/// A reference with the names that patterns have in the rewritten schema.
fn renamed(reference: &str) -> String {
    let mut before = "";
    let parts = reference.split('/').map(|part| match std::mem::replace(&mut before, part) {
        "patternProperties" => classes::without_nul(part.to_owned()),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Schemas by names, which may be any word.
fn each(schemas: Value, rename: impl Fn(String) -> String) -> Value {
    match schemas {
        Value::Object(map) => map
            .into_iter()
            .map(|(name, schema)| (rename(name), rewritten(schema)))
            .collect::<Map<_, _>>()
            .into(),
        other => other,
    }
}

/// A UUID of one version, as pydantic asks for it, has a digit that says so.
fn tell_version(schema: &mut Map<String, Value>) {
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    let version = format.strip_prefix("uuid").filter(|version| {
        version.len() == 1 && ("1"..="8").contains(version) && !schema.contains_key("pattern")
    });
    let Some(version) = version else { return };
    let hex = "[0-9a-fA-F]";
    let pattern =
        format!("^{hex}{{8}}-{hex}{{4}}-{version}{hex}{{3}}-[89abAB]{hex}{{3}}-{hex}{{12}}$");
    schema.remove("format");
    schema.insert("pattern".to_owned(), pattern.into());
}

fn is_idle(keyword: &str, value: &Value) -> bool {
    match keyword {
        "$schema" => value.is_string(),
        "format" => value.as_str().is_some_and(|format| IDLE_FORMATS.contains(&format)),
        "uniqueItems" => *value == false,
        // Every name is a string.
        "propertyNames" => *value == true || [json!({}), json!({"type": "string"})].contains(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_nothing_is_dropped_but_no_name_and_no_value() {
        let schema = json!({
            "uniqueItems": false,
            "properties": {
                "uniqueItems": false,
                "a": {"uniqueItems": true, "propertyNames": {"type": "string"}},
                "b": {"const": {"uniqueItems": false}},
            },
            "propertyNames": {"pattern": "a"},
        });
        let expected = json!({
            "properties": {
                "uniqueItems": false,
                "a": {"uniqueItems": true},
                "b": {"const": {"uniqueItems": false}},
            },
            "propertyNames": {"pattern": "a"},
        });
        assert_eq!(rewritten(schema), expected);
    }

    #[test]
    fn formats_and_patterns_are_told_as_they_are_meant() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"$schema": {"format": "uuid"}, "format": {"format": "path"}, "a": {"format": "date"}},
            "allOf": [{"$ref": "#/patternProperties/^[^\"]$"}],
            "patternProperties": {"^[^\"]$": {"pattern": "^[^/\\\\]{2}\\d$"}},
        });
        let expected = json!({
            "properties": {"$schema": {"format": "uuid"}, "format": {}, "a": {"format": "date"}},
            "allOf": [{"$ref": "#/patternProperties/^[[^\"]--\\x00]$"}],
            "patternProperties": {"^[[^\"]--\\x00]$": {"pattern": "^[[^/\\\\]--\\x00]{2}\\d$"}},
        });
        assert_eq!(rewritten(schema), expected);
    }
}
