//! What the calls of a dialect look like, as a grammar: for whoever lets no others through.
//!
//! ```text
//! block:  open call (between call)* close        several blocks, or several calls in one
//! call:   name, arguments
//! text:   (anything up to a mark, the rest of its block)* anything
//! ```
//!
//! The grammar is written in Lark as `llguidance` reads it. A schema stands in it as whoever compiles it
//! writes schemas. In tags, parameters come in the order of the schema, those that it requires are there,
//! and a value that is not bare text is JSON of its schema.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    definitions::{Kind, Kinds},
    parameters::{Parameter, Parameters, Unkept},
    schema::{ROOT, pruned, refer_within},
    tagged::Tags,
};

/// Bytes of a grammar that is worth having. One that becomes longer is not written on with schemas, since nobody
/// compiles it: every value may bring the definitions of all along.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// How calls are written, the way templates write them.
#[derive(Debug)]
pub(super) struct Form {
    /// Before the first call of a block.
    pub(super) open: &'static str,
    pub(super) shape: Shape,
    /// After the last one.
    pub(super) close: &'static str,
    pub(super) again: Again,
}

/// A call.
#[derive(Debug)]
pub(super) enum Shape {
    /// Its name between two texts, its arguments as JSON, and what follows them.
    Json {
        name: (&'static str, &'static str),
        end: &'static str,
    },
    /// The same with a number behind the name and its closing text, and what follows the number.
    Counted {
        name: (&'static str, &'static str),
        behind: &'static str,
        end: &'static str,
    },
    Tagged(&'static Tags, Lines),
}

/// Line breaks behind the name, the key and the value of parameters in tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
}

/// What stands before another call.
#[derive(Debug)]
pub(super) enum Again {
    /// Nothing: there is one.
    Never,
    /// One of these, and another block.
    Block(&'static [&'static str]),
    /// This, within the block.
    Within(&'static str),
}

/// A line break that may be there or not, in [`Lines`].
pub(super) const MAYBE: &str = "\n?";

/// A function that may be called.
#[derive(Clone, Copy, Debug)]
pub struct Callable<'t> {
    /// Its name.
    pub name: &'t str,
    /// The schema of its arguments; without one they are any object.
    pub parameters: Option<&'t Value>,
}

/// Writes the grammars of calls.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'t> {
    /// What may be called.
    pub functions: &'t [Callable<'t>],
    /// Writes the body of a rule that is JSON of a schema.
    pub json: fn(Value) -> String,
    /// Whether a thought may come before them, where it is a message like others.
    pub thoughts: bool,
}

impl Calls<'_> {
    /// Calls and nothing else, behind what the prompt has begun the answer with. `None` if no form
    /// begins that way.
    pub(super) fn alone(self, forms: &[Form], opening: &str) -> Option<String> {
        let mut rules = Rules::new(self);
        let starts: Vec<String> = (0..forms.len())
            .filter_map(|at| Some(format!("{} blocks_{at}", rules.first(forms, at, opening)?)))
            .collect();
        if starts.is_empty() {
            return None;
        }
        for at in rules.formed.clone() {
            let again = match &forms[at].again {
                Again::Block(between) => {
                    let between: Vec<String> = between.iter().map(|text| quoted(text)).collect();
                    format!("(({}) block_{at})*", between.join(" | "))
                }
                _ => String::new(),
            };
            rules.add(&format!("blocks_{at}"), &format!("rest_{at} {again}"));
        }
        Some(rules.finish(&starts.join(" | ")))
    }

    /// The schemas of all functions, one behind the other: whether they can be kept to where they are JSON.
    pub fn schemas(self) -> Option<String> {
        let mut rules = Rules::new(self);
        let schemas = self.functions.iter().filter_map(|function| function.parameters);
        let names: Vec<String> = schemas.map(|schema| rules.json(pruned(schema))).collect();
        (!names.is_empty()).then(|| rules.finish(&names.join(" ")))
    }

    /// Text in which whatever begins like a call is one. `marks` are what calls begin with.
    pub(super) fn in_text(self, forms: &[Form], marks: &[&str]) -> String {
        let mut rules = Rules::new(self);
        let mut tags = Vec::new();
        for (at_mark, mark) in marks.iter().enumerate() {
            let rests = (0..forms.len())
                .filter_map(|at| Some(format!("({}) rest_{at}", rules.first(forms, at, mark)?)));
            let rests: Vec<String> = rests.collect();
            if rests.is_empty() {
                continue;
            }
            tags.push(format!("trigger_{at_mark} ({})", rests.join(" | ")));
            let trigger = format!("trigger_{at_mark}[lazy]");
            rules.add(&trigger, &format!("/(?s:.*)/ {}", quoted(mark)));
        }
        rules.add("tag", &tags.join(" | "));
        rules.add("tail", "| TAIL");
        rules.add("TAIL", "/(?s:.+)/");
        rules.finish("tag* tail")
    }

    /// Rules by which `call` is a block of any form.
    pub(super) fn blocks(self, forms: &[Form]) -> String {
        let mut rules = Rules::new(self);
        let blocks = forms.iter().enumerate().map(|(at, form)| {
            rules.form(form, at);
            format!("block_{at}")
        });
        let blocks: Vec<String> = blocks.collect();
        rules.add("call", &blocks.join(" | "));
        rules.text
    }

    /// An answer by a rule of its own, or calls and nothing else.
    pub(super) fn or(self, forms: &[Form], answer: &str) -> Option<String> {
        let alone = self.alone(forms, "")?;
        let calls = alone.strip_prefix("start: ")?;
        Some(format!("start: answer | calls\nanswer: {answer}\ncalls: {calls}"))
    }
}

/// A grammar in the making.
struct Rules<'t> {
    calls: Calls<'t>,
    text: String,
    /// Forms whose rules are there.
    formed: Vec<usize>,
    values: usize,
}

impl<'t> Rules<'t> {
    fn new(calls: Calls<'t>) -> Self {
        Self { calls, text: String::new(), formed: Vec::new(), values: 0 }
    }

    fn add(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}");
    }

    fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.text)
    }

    /// Alternatives of a first call without what has been written of it already.
    fn first(&mut self, forms: &[Form], at: usize, written: &str) -> Option<String> {
        let form = &forms[at];
        let functions = self.calls.functions;
        let firsts = functions.iter().enumerate().filter_map(|(function, callable)| {
            let lead = [form.open, &form.shape.lead(callable.name)].concat();
            Some(format!("{} call_{at}_{function}", quoted(lead.strip_prefix(written)?)))
        });
        let firsts: Vec<String> = firsts.collect();
        if firsts.is_empty() {
            return None;
        }
        if !self.formed.contains(&at) {
            self.formed.push(at);
            self.form(form, at);
        }
        Some(format!("({})", firsts.join(" | ")))
    }

    /// `call_{form}_{function}` is a call behind its name, `any_{form}` a call, `rest_{form}` what follows the
    /// first call of a block, `block_{form}` a block.
    fn form(&mut self, form: &Form, at: usize) {
        let mut any = Vec::new();
        let functions = self.calls.functions;
        for (function, callable) in functions.iter().enumerate() {
            let lead = quoted(&form.shape.lead(callable.name));
            any.push(format!("{lead} call_{at}_{function}"));
            let body = match form.shape {
                Shape::Json { end, .. } => self.object(callable, end),
                Shape::Counted { behind, end, .. } => {
                    format!("/[0-9]{{1,9}}/ {} {}", quoted(behind), self.object(callable, end))
                }
                Shape::Tagged(tags, lines) => self.parameters(callable, tags, lines),
            };
            self.add(&format!("call_{at}_{function}"), &body);
        }
        self.add(&format!("any_{at}"), &any.join(" | "));
        let (open, close) = (quoted(form.open), quoted(form.close));
        let more = match form.again {
            Again::Within(between) => format!("({} any_{at})*", quoted(between)),
            _ => String::new(),
        };
        self.add(&format!("rest_{at}"), &format!("{more} {close}"));
        self.add(&format!("block_{at}"), &format!("{open} any_{at} rest_{at}"));
    }

    fn object(&mut self, callable: &Callable<'_>, end: &str) -> String {
        let any = json!({"type": "object"});
        let value = self.json(callable.parameters.map_or(any, pruned));
        format!("{value} {}", quoted(end))
    }

    fn parameters(&mut self, callable: &Callable<'_>, tags: &Tags, lines: Lines) -> String {
        let mut body = if lines.name == MAYBE { line(MAYBE) } else { String::new() };
        let root = callable.parameters.unwrap_or(&Value::Null);
        let known = callable.parameters.and_then(|root| Parameters::of(root, tags).ok());
        let any_key = format!("{} /[^<>\"\\n]+/ {}", quoted(tags.key.0), quoted(tags.key.1));
        let Some(known) = known else {
            let any = parameter(&any_key, &self.bare(tags), tags, lines);
            return format!("{body} ({any})* {}", quoted(tags.end));
        };
        for own in &known.list {
            let lead = quoted(&[tags.key.0, own.key, tags.key.1].concat());
            let one = parameter(&lead, &self.value(own, root, tags), tags, lines);
            let _ = write!(body, " ({one}){}", if own.required { "" } else { "?" });
        }
        if let Some(others) = &known.others {
            let one = parameter(&any_key, &self.value(others, root, tags), tags, lines);
            let _ = write!(body, " ({one})*");
        }
        format!("{body} {}", quoted(tags.end))
    }

    /// A rule for a value up to and with its closing tag.
    fn value(&mut self, parameter: &Parameter<'_>, root: &Value, tags: &Tags) -> String {
        let close = quoted(tags.value.1);
        let end = |value: &str| format!("({value}) \"\\n\"? {close}");
        if self.text.len() > GRAMMAR_BYTES_MAX {
            return end("\"\"");
        }
        let schema = parameter.schema();
        let kinds = Kinds::of(&schema, root);
        match &parameter.texts {
            None if kinds.is_text() || kinds.has(Kind::String) => return self.bare(tags),
            Some(texts) if !texts.is_empty() => {
                let mut any: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                let beside = kinds.names_beside_strings();
                if !beside.is_empty() {
                    any.push(self.json_of(&json!({"allOf": [schema, {"type": beside}]}), root));
                }
                let any = self.rule("texts", &any.join(" | "));
                // Where lines belong to values, one more would be another text.
                let exact = format!("({any}) {close}");
                return if tags.broken_lines { end(&any) } else { exact };
            }
            _ => {}
        }
        let is_any = CHOICES.iter().all(|keyword| schema.get(keyword).is_none());
        if kinds.is(Kind::Boolean) && is_any {
            // Some templates write them as Python does.
            return end(r#""true" | "false" | "True" | "False""#);
        }
        let value = self.json_of(&schema, root);
        end(&value)
    }

    /// A rule for JSON of a schema, which may refer to any place of `root`.
    fn json_of(&mut self, schema: &Value, root: &Value) -> String {
        let mut schema = pruned(schema);
        if refer_within(&mut schema) {
            let mut root = pruned(root);
            refer_within(&mut root);
            schema["$defs"] = json!({ROOT: root});
        }
        self.json(schema)
    }

    fn json(&mut self, schema: Value) -> String {
        let body = (self.calls.json)(schema);
        self.rule("value", &body)
    }

    /// Any text up to and with a closing tag.
    fn bare(&mut self, tags: &Tags) -> String {
        let suffix = quoted(tags.value.1);
        let name = self.rule_name("bare");
        self.add(&format!("{name}[suffix={suffix}]"), "/(?s:.*)/");
        name
    }

    fn rule(&mut self, kind: &str, body: &str) -> String {
        let name = self.rule_name(kind);
        self.add(&name, body);
        name
    }

    fn rule_name(&mut self, kind: &str) -> String {
        self.values += 1;
        format!("{kind}_{}", self.values)
    }
}

impl Shape {
    /// What a call begins with, up to and with its name and what follows any name.
    fn lead(&self, name: &str) -> String {
        match self {
            Self::Json { name: around, .. } | Self::Counted { name: around, .. } => {
                [around.0, name, around.1].concat()
            }
            Self::Tagged(tags, Lines { name: MAYBE, .. }) => {
                [tags.name.0, name, tags.name.1].concat()
            }
            Self::Tagged(tags, lines) => [tags.name.0, name, tags.name.1, lines.name].concat(),
        }
    }
}

/// What may leave only some of the values that a type has.
const CHOICES: [&str; 6] = ["enum", "const", "$ref", "allOf", "anyOf", "oneOf"];

/// Whether calls of this form can be held to a schema.
pub(super) fn keeps(form: &Form, parameters: &Value) -> Result<(), Unkept> {
    match form.shape {
        Shape::Json { .. } | Shape::Counted { .. } => Ok(()),
        Shape::Tagged(tags, _) => Parameters::of(parameters, tags).map(drop),
    }
}

fn parameter(lead: &str, value: &str, tags: &Tags, lines: Lines) -> String {
    let open = if tags.value.0.is_empty() {
        line(lines.key)
    } else {
        format!("{} {}", line(lines.key), quoted(tags.value.0))
    };
    format!("{lead} {open} {value} {}", line(lines.value))
}

fn line(text: &str) -> String {
    match text {
        "" => String::new(),
        MAYBE => "\"\\n\"?".to_owned(),
        text => quoted(text),
    }
}

/// Literals, apart where lines begin: of two that begin alike, the longer one would be taken for good by
/// its first letter that they share.
fn quoted(text: &str) -> String {
    let literal = |text: &str| Value::from(text).to_string();
    match text.find('\n') {
        None => literal(text),
        Some(at) => {
            let before = if at > 0 { literal(&text[..at]) } else { String::new() };
            let rest = &text[at + 1..];
            let rest = if rest.is_empty() { String::new() } else { quoted(rest) };
            format!("{before} \"\\n\" {rest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::tools::qwen_xml::QWEN_XML;

    #[test]
    fn definitions_that_every_value_brings_along_end_where_nobody_compiles_them() {
        let definitions = json!({"n": {"enum": vec![123_456; 10_000]}});
        let number = |at| (format!("p{at}"), json!({"type": "number", "$ref": "#/$defs/n"}));
        let properties: Map<_, _> = (0..1000).map(number).collect();
        let parameters = json!({"properties": properties, "$defs": definitions});
        let functions = [Callable { name: "f", parameters: Some(&parameters) }];
        let calls =
            Calls { functions: &functions, json: |schema| schema.to_string(), thoughts: true };
        let written = calls.blocks(QWEN_XML.forms).len();
        assert!(written > GRAMMAR_BYTES_MAX, "it is refused: {written}");
        assert!(written < 2 * GRAMMAR_BYTES_MAX, "{written}");
    }
}
