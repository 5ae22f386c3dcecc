//! `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`: Hermes, Qwen2.5 and Qwen3.

use super::{
    Definitions, Dialect, Way, Written,
    grammar::{Again, Form, Shape},
    object::Object,
    parts::Parts,
    reader::{Read, Step},
    scan::{Is, begins, spaces},
    splitter::Open,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) const HERMES: Dialect = Dialect {
    name: "hermes",
    signs: &[OPEN],
    marks: &[],
    way: Way::Calls(&[Open { mark: OPEN, skip: OPEN.len(), reader: || Box::<Hermes>::default() }]),
    opening: |name| match name {
        None => format!("{OPEN}\n"),
        Some(name) => format!("{OPEN}\n{{\"name\": \"{name}\", \"arguments\":"),
    },
    written: Written::Object,
    forms: &[Form {
        open: "<tool_call>\n",
        shape: Shape::Json { name: ("{\"name\": \"", "\", \"arguments\": "), end: "}" },
        close: "\n</tool_call>",
        again: Again::Block(&["\n"]),
    }],
    prepare: |_| {},
};

#[derive(Debug)]
enum Hermes {
    Object(Object),
    After,
}

impl Default for Hermes {
    fn default() -> Self {
        Self::Object(Object::default())
    }
}

impl Read for Hermes {
    fn read(
        &mut self,
        rest: &str,
        last: bool,
        definitions: &Definitions,
        parts: &mut Parts,
    ) -> Step {
        match self {
            Self::Object(object) if object.is_new() && spaces(rest) > 0 => Step::Took(spaces(rest)),
            Self::Object(object) => {
                let step = object.read(rest, last, definitions, parts);
                if matches!(step, Step::Call(_) | Step::Odd(_)) {
                    *self = Self::After;
                }
                step
            }
            Self::After => {
                let before = spaces(rest);
                match begins(&rest[before..], CLOSE, last) {
                    Is::Yes => Step::Close(before + CLOSE.len()),
                    Is::Maybe => Step::More,
                    Is::No => Step::Close(0),
                }
            }
        }
    }
}
