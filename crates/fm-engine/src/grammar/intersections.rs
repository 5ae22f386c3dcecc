//! Expressions that all have to hold at once.
//!
//! What may follow in a text of several expressions is what is left of all of them together: as many states as the
//! product of their own. `llguidance` visits them before the first letter, to find out whether there is any such text,
//! and what bounds its work is not looked at meanwhile, so it takes minutes and gigabytes.

use std::collections::HashMap;

use serde_json::{Deserializer, Value};

use super::{Grammar, GrammarError};

/// Expressions of a schema that may meet in one text. Ten take 0.03 s whatever they are, twelve half a second,
/// fourteen 13 s.
const MEET_MAX: usize = 8;

/// Schemas within schemas, references followed.
const LEVELS_MAX: usize = 256;

/// Refuses what would take for ever.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    match grammar {
        Grammar::JsonSchema(schema) => check_schema(schema),
        // Three expressions can be too many here. Where they stand is not looked at: a sign in a text can be
        // written otherwise, and who reads a grammar in another way than its compiler lets some pass.
        Grammar::Lark(text) if intersects(text) => Err(invalid(
            "& and ~ of expressions are not taken (a count, as in ~0..3, is), as there is no bound to what they cost; as letters, write them \
             \\x26 and \\x7e"
                .to_owned(),
        )),
        Grammar::Lark(text) | Grammar::Calls(text) => {
            schemas_within(text).try_for_each(|schema| check_schema(&schema))
        }
        _ => Ok(()),
    }
}

fn invalid(reason: String) -> GrammarError {
    GrammarError::Invalid { reason }
}

/// Whether a grammar has the sign of what two expressions share or of what one is not, anywhere. Before a number the
/// latter counts what is before it.
fn intersects(text: &str) -> bool {
    let counts =
        |rest: &str| rest.trim_start_matches([' ', '\t']).starts_with(|c: char| c.is_ascii_digit());
    text.contains('&') || !text.split('~').skip(1).all(counts)
}

/// The schemas of a grammar. What does not parse here does not parse there.
pub(super) fn schemas_within(text: &str) -> impl Iterator<Item = Value> {
    text.match_indices("%json").filter_map(|(at, keyword)| {
        Deserializer::from_str(&text[at + keyword.len()..]).into_iter().next()?.ok()
    })
}

fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    let mut meeting = Meeting { root: schema, of_references: HashMap::new() };
    if meeting.most(schema, 0)? > MEET_MAX {
        return Err(invalid(format!(
            "more than {MEET_MAX} of pattern and format may have to hold for one text (allOf, anyOf and $ref \
             bring them together)"
        )));
    }
    Ok(())
}

/// How many expressions may meet.
struct Meeting<'s> {
    root: &'s Value,
    /// Of what references name; zero while it is looked at, so that who names himself adds nothing.
    of_references: HashMap<&'s str, usize>,
}

impl<'s> Meeting<'s> {
    /// The most expressions of a schema that meet in one text, those of schemas within it too: where schemas are
    /// brought together, so are their properties.
    fn most(&mut self, schema: &'s Value, level: usize) -> Result<usize, GrammarError> {
        if level > LEVELS_MAX {
            return Err(GrammarError::TooDeep { max: LEVELS_MAX });
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Array(list) => return self.largest(list, level),
            _ => return Ok(0),
        };
        let own = ["pattern", "format"].iter().filter(|key| map.contains_key(**key)).count();
        let (mut within, mut beside, mut apart) = (own, 0_usize, 0);
        for (key, value) in map {
            match (key.as_str(), value) {
                // Values, where anything may stand.
                ("const" | "enum" | "default" | "examples", _) => {}
                // Names may be any, keywords too.
                ("properties" | "patternProperties", Value::Object(map)) => {
                    within = within.max(self.largest(map.values(), level)?);
                }
                ("$defs" | "definitions", Value::Object(map)) => {
                    apart = apart.max(self.largest(map.values(), level)?);
                }
                ("allOf", Value::Array(list)) => {
                    for schema in list {
                        beside = beside.saturating_add(self.most(schema, level + 1)?);
                    }
                }
                ("anyOf" | "oneOf", Value::Array(list)) => {
                    beside = beside.saturating_add(self.largest(list, level)?);
                }
                ("$ref", Value::String(name)) => {
                    beside = beside.saturating_add(self.of_reference(name, level)?);
                }
                _ => within = within.max(self.most(value, level + 1)?),
            }
        }
        Ok(within.saturating_add(beside).max(apart))
    }

    fn largest(
        &mut self,
        schemas: impl IntoIterator<Item = &'s Value>,
        level: usize,
    ) -> Result<usize, GrammarError> {
        schemas.into_iter().try_fold(0, |most, schema| Ok(most.max(self.most(schema, level + 1)?)))
    }

    fn of_reference(&mut self, name: &'s str, level: usize) -> Result<usize, GrammarError> {
        if let Some(known) = self.of_references.get(name) {
            return Ok(*known);
        }
        let Some(schema) = name.strip_prefix('#').and_then(|place| self.root.pointer(place)) else {
            return Err(invalid(format!("$ref {name:?} names no place of the schema (#/…)")));
        };
        self.of_references.insert(name, 0);
        let most = self.most(schema, level + 1)?;
        self.of_references.insert(name, most);
        Ok(most)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// So many schemas of expressions.
    fn several(count: usize) -> Vec<Value> {
        (0..count).map(|at| json!({"pattern": format!("a.{{{at}}}b")})).collect()
    }

    fn taken(schema: &Value) -> bool {
        let as_tool = Grammar::Calls(format!("start: \"%json\" %json {schema}"));
        let alone = check(&Grammar::JsonSchema(schema.clone())).is_ok();
        assert_eq!(alone, check(&as_tool).is_ok(), "{schema}");
        alone
    }

    #[test]
    fn expressions_that_meet_are_counted() {
        let met: [&dyn Fn(usize) -> Value; 7] = [
            &|count| json!({"allOf": several(count)}),
            &|count| json!({"allOf": several(count - 1), "anyOf": several(20)}),
            &|count| json!({"allOf": several(count - 2), "format": "date", "pattern": "a"}),
            &|count| json!({"items": {"properties": {"enum": {"allOf": several(count)}}}}),
            &|count| json!({"allOf": [{"allOf": several(count - 3)}, {"properties": {"a": {"allOf": several(3)}}}]}),
            &|count| json!({"$defs": {"a": {"allOf": several(count - 1)}}, "pattern": "a", "$ref": "#/$defs/a"}),
            &|count| json!({"hidden": {"allOf": several(count)}, "items": {"$ref": "#/hidden"}}),
        ];
        for (at, schema) in met.iter().enumerate() {
            assert!(taken(&schema(MEET_MAX)), "{at}");
            assert!(!taken(&schema(MEET_MAX + 1)), "{at}");
        }
    }

    #[test]
    fn expressions_of_several_texts_do_not_meet() {
        let properties: serde_json::Map<_, _> =
            (0..100).map(|at| (format!("p{at}"), json!({"pattern": "a"}))).collect();
        assert!(taken(&json!({"properties": properties})));
        assert!(taken(&json!({"anyOf": several(100)})));
        assert!(taken(
            &json!({"enum": [{"allOf": several(100)}], "default": {"$ref": "elsewhere"}})
        ));
        let tree =
            json!({"pattern": "a", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        assert!(taken(&tree), "it names itself");
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        assert!(!taken(&json!({"$ref": "#/%24defs/a", "$defs": {"a": {}}})));
        let mut chain = serde_json::Map::new();
        for at in 0..=LEVELS_MAX {
            chain.insert(at.to_string(), json!({"$ref": format!("#/$defs/{}", at + 1)}));
        }
        chain.insert((LEVELS_MAX + 1).to_string(), json!({}));
        assert!(!taken(&json!({"$ref": "#/$defs/0", "$defs": chain})));
        let doubled = |levels: usize| {
            let next = |at| json!({"$ref": format!("#/$defs/{at}")});
            let mut defs: serde_json::Map<_, _> = (0..levels)
                .map(|at| (at.to_string(), json!({"allOf": [next(at + 1), next(at + 1)]})))
                .collect();
            defs.insert(levels.to_string(), json!({"pattern": "a"}));
            json!({"$ref": "#/$defs/0", "$defs": defs})
        };
        assert!(taken(&doubled(3)) && !taken(&doubled(4)) && !taken(&doubled(100)));
    }

    #[test]
    fn a_grammar_intersects_nothing() {
        let lark = |text: &str| check(&Grammar::Lark(text.to_owned()));
        for text in [
            "start: T\nT: /a/ & /b/",
            "start: T\nT: ~/a/",
            "start: T ~ 3\nT: ~ T0\nT0: \"a\"",
            "start: \"&\"",
            "start: \"~\"",
        ] {
            assert!(lark(text).unwrap_err().to_string().contains(r"\x26"), "{text}");
        }
        assert_eq!(lark(r#"start: "\x26\x7e" | /a\x26/"#), Ok(()));
        assert_eq!(lark("start: \"a\"~0..3 \"b\" ~ 2"), Ok(()));
    }
}
