//! What reading a grammar may take, told from its text.
//!
//! Before an expression is what the lexer works with, it is two syntax trees of nodes with some hundred bytes each; a
//! class such as `\w` is a list of 770 ranges wherever it stands; and a group within a sequence is copied for every group
//! around it. Rules and schemas become symbols.

use regex_syntax::ast::{
    Ast, ClassPerlKind, ClassSet, ClassSetItem,
    parse::{Parser, ParserBuilder},
};
use serde_json::Value;

use super::{CALLS_BYTES_MAX, Grammar, GrammarError, intersections::schemas_within, terms};

/// A tree that is read here, for every byte of an expression: measured 190 for dots.
const TREE_BYTES: u64 = 250;

/// Memory for every byte of rules and schemas while they are compiled: measured 154.
pub(super) const RULE_BYTES: u64 = 160;

/// What of them may count: more work than that takes is refused by `llguidance`, with 480,000 bytes of schemas.
const RULES_MAX: u64 = 500_000;

/// Memory for every remainder of a number that others shall be multiples of: measured 480.
pub(super) const REMAINDER_BYTES: u64 = 500;

/// Words of a schema that say nothing to a grammar, however long they are.
const IDLE: [&str; 5] = ["description", "title", "examples", "default", "$comment"];

/// What it takes to find out what reading takes.
pub(super) fn of_looking(grammar: &Grammar) -> u64 {
    most(grammar, |text| TREE_BYTES * text.len() as u64)
}

/// What reading the expressions of a grammar may take: the most of one, as they are read one after the other.
pub(super) fn of_expressions(grammar: &Grammar) -> u64 {
    most(grammar, of_expression)
}

/// Refuses expressions of schemas with too many parts that may be empty: where several have to hold, what may follow is
/// looked for while they are read. There has to be memory for reading them.
pub(super) fn check_schemas(grammar: &Grammar) -> Result<(), GrammarError> {
    let check = &mut |text: &str| terms::of_text(text).map(drop);
    match grammar {
        Grammar::JsonSchema(schema) => of_schema(schema, check),
        Grammar::Lark(text) | Grammar::Calls(text) => {
            schemas_within(text).try_for_each(|schema| of_schema(&schema, check))
        }
        _ => Ok(()),
    }
}

fn most(grammar: &Grammar, weigh: impl Fn(&str) -> u64) -> u64 {
    let mut most = 0;
    let heard = expressions(grammar, &mut |text| {
        most = most.max(weigh(text));
        Ok(())
    });
    heard.map_or(0, |()| most)
}

/// Bytes of rules and schemas.
pub(super) fn rules(grammar: &Grammar) -> u64 {
    let bytes = grammar.text_bytes() as u64;
    let idle = match grammar {
        Grammar::JsonSchema(schema) => idle(schema),
        Grammar::Calls(text) => schemas_within(text).map(|schema| idle(&schema)).sum(),
        // An expression is one symbol.
        Grammar::Regex(_) => bytes,
        _ => 0,
    };
    bytes.saturating_sub(idle).min(RULES_MAX)
}

/// Bytes of a schema that are of no account.
fn idle(schema: &Value) -> u64 {
    match schema {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| match (key.as_str(), value) {
                // Values, whose letters are those of the answer.
                ("const" | "enum", _) => 0,
                (key, Value::String(text)) if IDLE.contains(&key) => text.len() as u64,
                (_, value) => idle(value),
            })
            .sum(),
        Value::Array(list) => list.iter().map(idle).sum(),
        _ => 0,
    }
}

/// All that may be an expression in a grammar; some of it may be none, but nothing that is one is missing.
fn expressions(
    grammar: &Grammar,
    hear: &mut dyn FnMut(&str) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    match grammar {
        Grammar::Regex(text) => hear(text),
        Grammar::JsonSchema(schema) => of_schema(schema, hear),
        Grammar::Lark(text) | Grammar::Calls(text) => {
            // A text that others are made of, as an automaton of all its parts.
            if text.contains("%regex") {
                hear(&text[..text.len().min(CALLS_BYTES_MAX)])?;
            }
            between_slashes(text).try_for_each(&mut *hear)?;
            schemas_within(text).try_for_each(|schema| of_schema(&schema, hear))
        }
        _ => Ok(()),
    }
}

/// What stands between a slash and the next one, with no backslash before it: wherever an expression begins, it ends
/// there.
fn between_slashes(text: &str) -> impl Iterator<Item = &str> {
    let slashes = text.match_indices('/').map(|(at, _)| at).filter(|at| {
        let before = text.as_bytes()[..*at].iter().rev();
        before.take_while(|byte| **byte == b'\\').count() % 2 == 0
    });
    let mut last = None;
    slashes.filter_map(move |at| last.replace(at).map(|begin| &text[begin + 1..at]))
}

fn of_schema(
    schema: &Value,
    hear: &mut dyn FnMut(&str) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    match schema {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| match (key.as_str(), value) {
            (
                "pattern" | "whitespace_pattern" | "item_separator" | "key_separator",
                Value::String(text),
            ) => hear(text),
            ("patternProperties", Value::Object(map)) => {
                map.iter().try_for_each(|(name, value)| {
                    hear(name)?;
                    of_schema(value, hear)
                })
            }
            (_, value) => of_schema(value, hear),
        }),
        Value::Array(list) => list.iter().try_for_each(|value| of_schema(value, hear)),
        _ => Ok(()),
    }
}

/// What reading an expression may take. What does not parse is refused with its trees as they are until then.
fn of_expression(text: &str) -> u64 {
    let plain = Parser::new().parse(text).ok();
    // The flag `x` may stand behind it.
    let spaced = || ParserBuilder::new().ignore_whitespace(true).build().parse(text).ok();
    let own = |ast: Ast| Weight::of(&ast).bytes();
    let mut weight = plain.map_or(0, own);
    if text.contains(char::is_whitespace) {
        weight = weight.max(spaced().map_or(0, own));
    }
    weight.max(TREE_BYTES * text.len() as u64)
}

/// Of an expression or a part of it.
#[derive(Clone, Copy, Default)]
struct Weight {
    /// Bytes of its nodes.
    nodes: u64,
    /// Elements that the sequences within it have; letters that stand side by side are stored as 32 each.
    elements: u64,
    /// Elements that are copied for a group around them.
    copied: u64,
}

/// Memory of an element that is copied, in all tables: measured 31 for what is no letter, and 46 in a schema.
const ELEMENT_BYTES: u64 = 13;

impl Weight {
    fn bytes(self) -> u64 {
        self.nodes + self.copied * ELEMENT_BYTES
    }

    /// Measured, and rounded up by a fifth or more: 390 for a letter that may be large or small, 485 for a dot, 330 for
    /// nothing, 415 for `\s`, 900 for `\d`, 6,800 for `\w`, 5,900 for `\pL`, 600 for a group or a count, 490 for a class.
    fn leaf(ast: &Ast) -> Self {
        let nodes = match ast {
            Ast::Literal(_) | Ast::Empty(_) => 480,
            Ast::ClassUnicode(_) => CLASS_BYTES,
            Ast::ClassPerl(class) => perl(&class.kind),
            Ast::ClassBracketed(class) => 700 + set(&class.kind),
            _ => 650,
        };
        let elements = if matches!(ast, Ast::Literal(_)) { 1 } else { 4 };
        Self { nodes, elements, copied: 0 }
    }

    fn of(ast: &Ast) -> Self {
        match ast {
            Ast::Group(group) => {
                let inner = Self::of(&group.ast).within(800);
                Self { copied: inner.copied + inner.elements, ..inner }
            }
            Ast::Repetition(repetition) => Self::of(&repetition.ast).within(750),
            Ast::Alternation(list) => list.asts.iter().map(Self::of).sum::<Self>().within(300),
            Ast::Concat(list) => list.asts.iter().map(Self::of).sum::<Self>().within(300),
            leaf => Self::leaf(leaf),
        }
    }

    fn within(self, bytes: u64) -> Self {
        Self { nodes: self.nodes + bytes, elements: self.elements + 3, ..self }
    }
}

impl std::iter::Sum for Weight {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            nodes: sum.nodes + one.nodes,
            elements: sum.elements + one.elements,
            copied: sum.copied + one.copied,
        })
    }
}

/// A class of letters with a property, large and small ones each.
const CLASS_BYTES: u64 = 15_000;

fn perl(kind: &ClassPerlKind) -> u64 {
    match kind {
        ClassPerlKind::Word => CLASS_BYTES,
        ClassPerlKind::Digit => 1_500,
        ClassPerlKind::Space => 650,
    }
}

fn set(set: &ClassSet) -> u64 {
    match set {
        ClassSet::Item(one) => item(one),
        ClassSet::BinaryOp(both) => 700 + self::set(&both.lhs) + self::set(&both.rhs),
    }
}

fn item(item: &ClassSetItem) -> u64 {
    match item {
        ClassSetItem::Unicode(_) => CLASS_BYTES,
        ClassSetItem::Perl(class) => perl(&class.kind),
        ClassSetItem::Bracketed(class) => 700 + set(&class.kind),
        ClassSetItem::Union(all) => all.items.iter().map(self::item).sum(),
        _ => 450,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all(grammar: &Grammar) -> Vec<String> {
        let mut all = Vec::new();
        expressions(grammar, &mut |text| {
            all.push(text.to_owned());
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn no_expression_is_overlooked() {
        let schema = json!({
            "properties": {"pattern": {"pattern": "a"}, "b": {"allOf": [{"items": {"pattern": "c"}}]}},
            "patternProperties": {"^d": {"pattern": "e"}},
            "x-guidance": {"whitespace_pattern": "f"},
        });
        let words = ["a", "c", "^d", "e", "f"];
        assert_eq!(all(&Grammar::JsonSchema(schema.clone())), words);
        let lark = format!("start: A \"/\" /g\\/h[/ // i\nA: /j\\\\/ %json {schema}");
        let found = all(&Grammar::Lark(lark));
        for expression in ["g\\/h[", "j\\\\"].iter().chain(&words) {
            assert!(found.iter().any(|text| text == expression), "{expression} in {found:?}");
        }
        assert_eq!(all(&Grammar::Regex("/a/".to_owned())), ["/a/"]);
        assert!(
            all(&Grammar::Lark("start: %regex {\"substring_chars\": \"x\"}".to_owned()))[0]
                .contains("chars")
        );
    }

    #[test]
    fn classes_and_groups_around_groups_weigh_what_they_take() {
        let of = |text: &str| of_expression(text);
        assert!(of(&r"\w".repeat(32_000)) > 200_000_000);
        assert!(of(&r"\pL".repeat(21_000)) > 120_000_000);
        assert!(of(&r"[x\w]".repeat(13_000)) > 80_000_000);
        let nested = |levels: usize| {
            format!("{}{}{}", "(".repeat(levels), "a?b".repeat(20_000), ")c".repeat(levels))
        };
        assert!(of(&nested(100)) > 150_000_000);
        assert!(of(&nested(1)) < 60_000_000);
        // Its end stands where there would be none.
        assert!(of(&format!("(?x){}", nested(100).replace("a?b", "a?b#)\n"))) > 150_000_000);
        assert!(of(&format!("{} ", nested(100))) > 150_000_000);
        assert!(of(r"^[\w.+-]+@(?:[\w-]+\.)+\w{2,}$") < 100_000);
        assert!(of("(") > 0);
    }

    #[test]
    fn what_is_said_to_people_does_not_count() {
        let schema = |words: &str| json!({"description": words, "properties": {"title": {"title": words, "const": "x"}}});
        let long = "word ".repeat(4000);
        for of in [
            |schema: Value| Grammar::JsonSchema(schema),
            |schema: Value| Grammar::Calls(format!("start: %json {schema}")),
        ] {
            assert!(rules(&of(schema(&long))) - rules(&of(schema(""))) < 100);
        }
        let value = Grammar::JsonSchema(json!({"enum": [{"title": long}]}));
        assert!(rules(&value) > long.len() as u64);
        assert_eq!(rules(&Grammar::Lark("a".repeat(600_000))), RULES_MAX);
    }
}
