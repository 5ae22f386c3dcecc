//! What may be called: names, and of what kinds the parameters are.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::parameters::mentioned;

/// What is looked at to tell the kinds of one parameter: references, and entries of lists. Clients write
/// the schemas, in which each may name all others; of one that takes more, nothing is said.
const LOOKS_MAX: usize = 256;

/// Lists of schemas, any of which a value may have.
pub(super) const CHOICES: [&str; 3] = ["anyOf", "oneOf", "allOf"];

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

const NAMES: [(&str, Kind); 7] = [
    ("string", Kind::String),
    ("integer", Kind::Integer),
    ("number", Kind::Number),
    ("boolean", Kind::Boolean),
    ("array", Kind::Array),
    ("object", Kind::Object),
    ("null", Kind::Null),
];

/// Types that a parameter may have; none if nobody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    /// Those of a schema, which may refer to definitions of `root`. Looks at [`LOOKS_MAX`] at most, and at
    /// the target of no reference twice.
    pub(super) fn of(schema: &Value, root: &Value) -> Self {
        let (mut kinds, mut followed) = (Self::default(), HashSet::new());
        let (mut pending, mut left) = (vec![schema], LOOKS_MAX);
        while let Some(schema) = pending.pop() {
            let length = |list: &str| schema[list].as_array().map_or(0, Vec::len);
            let own = if schema.get("type").is_some() { "type" } else { "enum" };
            let entries = CHOICES.into_iter().chain([own]).map(length);
            let reference = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
            let looks = entries.sum::<usize>() + usize::from(reference.is_some());
            let Some(rest) = left.checked_sub(looks) else { return Self::default() };
            left = rest;
            kinds.add(schema);
            let choices = CHOICES.iter().filter_map(|list| schema[list].as_array()).flatten();
            pending.extend(choices);
            let target = reference.filter(|pointer| followed.insert(*pointer));
            pending.extend(target.and_then(|pointer| root.pointer(pointer)));
        }
        kinds
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 & kind as u8 != 0
    }

    /// Whether it is this one and no other.
    pub(super) fn is(self, kind: Kind) -> bool {
        self.0 == kind as u8
    }

    /// Whether nobody says anything.
    pub(super) fn are_unknown(self) -> bool {
        self == Self::default()
    }

    /// What they are called, but for strings.
    pub(super) fn names_beside_strings(self) -> Vec<&'static str> {
        let named = NAMES.iter().filter(|(_, kind)| self.has(*kind) && *kind != Kind::String);
        named.map(|(name, _)| *name).collect()
    }

    /// Whether every value is a text as it stands.
    pub(super) fn is_text(self) -> bool {
        self.0 & !(Kind::String as u8 | Kind::Null as u8) == 0
    }

    /// Adds what a schema says itself.
    fn add(&mut self, schema: &Value) {
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name));
            }
            Some(_) => {}
            None => {
                let values = schema["enum"].as_array().into_iter().flatten();
                values.chain(schema.get("const")).for_each(|value| self.add_value(value));
            }
        }
    }

    fn add_name(&mut self, name: &str) {
        let named = NAMES.iter().find(|(own, _)| *own == name);
        self.0 |= named.map_or(Kind::String, |(_, kind)| *kind) as u8;
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
pub struct Definitions(HashMap<String, Function>);

#[derive(Debug, Default)]
struct Function {
    parameters: HashMap<String, Kinds>,
    /// Of those that it does not name.
    others: Kinds,
}

impl Function {
    fn new(root: &Value) -> Self {
        let mut parameters = HashMap::<String, Kinds>::new();
        for (key, schema) in mentioned(root) {
            parameters.entry(key.to_owned()).or_default().0 |= Kinds::of(schema, root).0;
        }
        Self { parameters, others: Kinds::of(&root["additionalProperties"], root) }
    }
}

impl Definitions {
    /// Reads `[{"type": "function", "function": {"name": …, "parameters": {…}}}, …]`.
    pub fn new(tools: &[Value]) -> Self {
        let functions = tools.iter().filter_map(|tool| {
            let function = &tool["function"];
            Some((function["name"].as_str()?.to_owned(), Function::new(&function["parameters"])))
        });
        Self(functions.collect())
    }

    /// What a parameter may be.
    pub(super) fn kinds(&self, function: &str, parameter: &str) -> Kinds {
        let Some(function) = self.0.get(function) else { return Kinds::default() };
        function.parameters.get(parameter).copied().unwrap_or(function.others)
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

    #[test]
    fn a_schema_that_refers_to_itself_a_thousand_times_is_looked_at_once() {
        let refer = |count: usize| {
            let mut choices = vec![json!({"$ref": "#/$defs/a"}); count];
            choices.push(json!({"type": "integer"}));
            json!({"$defs": {"a": {"anyOf": choices}}})
        };
        let kinds = |root: &Value| Kinds::of(&json!({"$ref": "#/$defs/a"}), root);
        assert!(kinds(&refer(100)).is(Kind::Integer));
        // Along every path, four rounds of it would be 10^12 schemas.
        assert_eq!(kinds(&refer(1000)), Kinds::default());
    }

    #[test]
    fn of_a_schema_that_takes_too_long_nothing_is_said() {
        let list = |count: usize| json!({"enum": vec![1; count]});
        let chain = |count: usize| {
            let link = |at: usize| (at.to_string(), json!({"$ref": format!("#/{}", at + 1)}));
            let mut links: serde_json::Map<_, _> = (0..count).map(link).collect();
            links.insert(count.to_string(), json!({"type": "integer"}));
            Value::Object(links)
        };
        assert!(Kinds::of(&list(LOOKS_MAX), &Value::Null).is(Kind::Integer));
        let told = json!({"type": "integer", "enum": vec![1; LOOKS_MAX + 1]});
        assert!(Kinds::of(&told, &Value::Null).is(Kind::Integer), "its values say nothing more");
        assert_eq!(Kinds::of(&list(LOOKS_MAX + 1), &Value::Null), Kinds::default());
        let kinds = |links: &Value| Kinds::of(&links["0"], links);
        assert!(kinds(&chain(LOOKS_MAX)).is(Kind::Integer));
        assert_eq!(kinds(&chain(LOOKS_MAX + 1)), Kinds::default());
    }
}
