//! Schemas as they stand in the grammar of calls.

use serde_json::{Map, Value};

/// A schema without what says nothing about values: descriptions are most of it.
pub(super) fn pruned(schema: &Value) -> Value {
    const IDLE: [&str; 7] =
        ["description", "title", "examples", "default", "deprecated", "$comment", "$schema"];
    match schema {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !IDLE.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| {
                let value = match key.as_str() {
                    "properties" | "patternProperties" | "$defs" | "definitions" => {
                        pruned_each(value)
                    }
                    // Values, which may look like schemas.
                    "enum" | "const" => value.clone(),
                    _ => pruned(value),
                };
                (key.clone(), value)
            });
            kept.collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

/// Schemas by names, which may be any word.
fn pruned_each(schemas: &Value) -> Value {
    match schemas {
        Value::Object(map) => map
            .iter()
            .map(|(name, schema)| (name.clone(), pruned(schema)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Where the schema of all parameters stands within that of one of them.
pub(super) const ROOT: &str = "root";

/// Lets references name the same places behind [`ROOT`]. Says whether there are any.
pub(super) fn refer_within(schema: &mut Value) -> bool {
    let mut refers = false;
    match schema {
        Value::Object(map) => {
            for (keyword, value) in map {
                match (keyword.as_str(), value) {
                    ("enum" | "const", _) => {}
                    ("$ref", Value::String(reference)) => {
                        if let Some(place) = reference.strip_prefix('#') {
                            *reference = format!("#/$defs/{ROOT}{place}");
                            refers = true;
                        }
                    }
                    // Names may be any word.
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions",
                        Value::Object(own),
                    ) => {
                        for schema in own.values_mut() {
                            refers |= refer_within(schema);
                        }
                    }
                    (_, value) => refers |= refer_within(value),
                }
            }
        }
        Value::Array(list) => {
            for schema in list {
                refers |= refer_within(schema);
            }
        }
        _ => {}
    }
    refers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_says_nothing_about_values_is_left_out_but_no_name() {
        let schema = json!({
            "title": "T", "type": "object", "description": "d",
            "properties": {
                "description": {"type": "string", "description": "d", "default": "x"},
                "title": {"enum": [{"description": 1}]},
            },
            "$defs": {"default": {"anyOf": [{"type": "string", "examples": []}]}},
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "description": {"type": "string"}, "title": {"enum": [{"description": 1}]},
            },
            "$defs": {"default": {"anyOf": [{"type": "string"}]}},
        });
        assert_eq!(pruned(&schema), expected);
    }

    #[test]
    fn references_name_places_of_the_whole() {
        let mut schema = json!({
            "properties": {"$ref": {"$ref": "#"}, "a": {"items": [{"$ref": "#/$defs/x"}]}},
            "enum": [{"$ref": "#/no"}],
            "allOf": [{"$ref": "elsewhere"}],
        });
        assert!(refer_within(&mut schema));
        let want = json!({
            "properties": {
                "$ref": {"$ref": "#/$defs/root"},
                "a": {"items": [{"$ref": "#/$defs/root/$defs/x"}]},
            },
            "enum": [{"$ref": "#/no"}],
            "allOf": [{"$ref": "elsewhere"}],
        });
        assert_eq!(schema, want);
        assert!(!refer_within(&mut json!({"const": {"$ref": "#"}, "properties": {"$ref": {}}})));
    }
}
