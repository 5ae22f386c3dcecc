//! What may be called: names, and of what kinds the parameters are.

use std::collections::HashMap;

use serde_json::Value;

/// References that are followed from one schema to another.
const REFERENCES_MAX: usize = 8;

/// A type of JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    String = 1,
    Integer = 2,
    Number = 4,
    Boolean = 8,
    Array = 16,
    Object = 32,
    Null = 64,
}

/// Types that a parameter may have; none if nobody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    /// Those of a schema, which may refer to definitions of `root`.
    pub(super) fn of(schema: &Value, root: &Value) -> Self {
        let mut kinds = Self::default();
        kinds.add(schema, root, REFERENCES_MAX);
        kinds
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 & kind as u8 != 0
    }

    /// Whether it is this one and no other.
    pub(super) fn is(self, kind: Kind) -> bool {
        self.0 == kind as u8
    }

    /// Whether every value is a text as it stands.
    pub(super) fn is_text(self) -> bool {
        self.0 & !(Kind::String as u8 | Kind::Null as u8) == 0
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match &schema["type"] {
            Value::String(name) => self.add_name(name),
            Value::Array(names) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name));
            }
            _ => {}
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let choices = schema[name].as_array().into_iter().flatten();
            choices.for_each(|choice| self.add(choice, root, depth));
        }
        let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        if schema.get("type").is_none() {
            values.for_each(|value| self.add_value(value));
        }
        let target = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            self.add(target, root, depth);
        }
    }

    fn add_name(&mut self, name: &str) {
        self.0 |= match name {
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            "array" => Kind::Array,
            "object" => Kind::Object,
            "null" => Kind::Null,
            _ => Kind::String,
        } as u8;
    }

    fn add_value(&mut self, value: &Value) {
        self.0 |= match value {
            Value::Number(number) if number.is_f64() => Kind::Number,
            Value::Number(_) => Kind::Integer,
            Value::Bool(_) => Kind::Boolean,
            Value::Array(_) => Kind::Array,
            Value::Object(_) => Kind::Object,
            Value::Null => Kind::Null,
            Value::String(_) => Kind::String,
        } as u8;
    }
}

/// The functions of a request. Names that are not among them may be called too: whoever has to
/// answer a call tells the model best that there is no such function.
#[derive(Debug, Default)]
pub struct Definitions(HashMap<String, HashMap<String, Kinds>>);

impl Definitions {
    /// Reads `[{"type": "function", "function": {"name": …, "parameters": {…}}}, …]`.
    pub fn new(tools: &[Value]) -> Self {
        let functions = tools.iter().filter_map(|tool| {
            let function = &tool["function"];
            let root = &function["parameters"];
            let properties = root["properties"].as_object().into_iter().flatten();
            let kinds = properties.map(|(key, schema)| (key.clone(), Kinds::of(schema, root)));
            Some((function["name"].as_str()?.to_owned(), kinds.collect()))
        });
        Self(functions.collect())
    }

    /// What a parameter may be.
    pub(super) fn kinds(&self, function: &str, parameter: &str) -> Kinds {
        self.0.get(function).and_then(|kinds| kinds.get(parameter)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_found_behind_references_and_choices() {
        let root =
            json!({"$defs": {"size": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}});
        let kinds = |schema: Value| Kinds::of(&schema, &root);
        assert!(kinds(json!({"$ref": "#/$defs/size"})).has(Kind::Integer));
        assert!(kinds(json!({"enum": [1, "a"]})).has(Kind::Integer));
        assert!(kinds(json!({"type": "string", "enum": ["1"]})).is_text());
        assert!(kinds(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})).is_text());
        assert!(!kinds(json!({"type": ["string", "number"]})).is_text());
        assert!(kinds(json!({"$ref": "#/$defs/loop"})).is_text());
    }
}
