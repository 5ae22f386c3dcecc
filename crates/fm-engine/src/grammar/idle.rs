//! Keywords of a schema that ask for nothing as they are used, and that `llguidance` refuses all the same.

use serde_json::{Map, Value, json};

/// The schema without them.
pub(super) fn dropped(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(keyword, value)| !is_idle(keyword, value));
            let kept = kept.map(|(keyword, value)| {
                let value = match keyword.as_str() {
                    "properties" | "patternProperties" | "$defs" | "definitions" => {
                        dropped_each(value)
                    }
                    // Values, which may look like schemas.
                    "enum" | "const" | "default" | "examples" => value,
                    _ => dropped(value),
                };
                (keyword, value)
            });
            kept.collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.into_iter().map(dropped).collect(),
        other => other,
    }
}

/// Schemas by names, which may be any word.
fn dropped_each(schemas: Value) -> Value {
    match schemas {
        Value::Object(map) => map
            .into_iter()
            .map(|(name, schema)| (name, dropped(schema)))
            .collect::<Map<_, _>>()
            .into(),
        other => other,
    }
}

fn is_idle(keyword: &str, value: &Value) -> bool {
    match keyword {
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
        assert_eq!(dropped(schema), expected);
    }
}
