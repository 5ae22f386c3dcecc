//! `[TOOL_CALLS]f[ARGS]{…}`, and before that `[TOOL_CALLS][{"name": "f", "arguments": {…}}]`: Mistral.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Definitions, Dialect, Way, Written,
    grammar::{Again, Form, Shape},
    object::{Arguments, Object},
    parts::Parts,
    reader::{Read, Step, valid_name},
    scan::{Is, find, one_of, spaces, undecided},
    splitter::Open,
};
use crate::chat::Message;

const OPEN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// Letters of a call's id: the templates refuse any other number.
const ID_CHARS: usize = 9;

pub(super) const MISTRAL: Dialect = Dialect {
    name: "mistral",
    signs: &[OPEN],
    marks: &[OPEN, ID, ARGUMENTS],
    way: Way::Calls(&[Open { mark: OPEN, skip: OPEN.len(), reader: || Box::<Mistral>::default() }]),
    // Which of the two forms follows, the model knows.
    opening: |_| OPEN.to_owned(),
    written: Written::Object,
    forms: &[
        Form {
            open: OPEN,
            shape: Shape::Json { name: ("", ARGUMENTS), end: "" },
            close: "",
            again: Again::Block(&[""]),
        },
        Form {
            open: "[TOOL_CALLS][",
            shape: Shape::Json { name: ("{\"name\": \"", "\", \"arguments\": "), end: "}" },
            close: "]",
            again: Again::Within(", "),
        },
        Form {
            open: "[TOOL_CALLS] [",
            shape: Shape::Json { name: ("{\"name\": \"", "\", \"arguments\": "), end: "}" },
            close: "]",
            again: Again::Within(", "),
        },
    ],
    prepare: |messages| messages.iter_mut().for_each(shorten_ids),
};

#[derive(Debug, Default)]
enum Mistral {
    #[default]
    Head,
    Name,
    Arguments(Arguments),
    /// Behind arguments that are not in a list.
    Ended,
    Object(Object),
    BetweenObjects,
}

impl Mistral {
    fn name(&mut self, rest: &str, parts: &mut Parts) -> Step {
        const ENDS: [&str; 3] = [ID, ARGUMENTS, "{"];
        let Some((end, _)) = find(rest, &ENDS) else {
            let name = rest[..undecided(rest, &ENDS)].trim();
            let possible = name.is_empty() || valid_name(name);
            return if possible { Step::More } else { Step::Broken(0) };
        };
        let name = rest[..end].trim();
        if !valid_name(name) {
            return Step::Broken(0);
        }
        let Some(start) = rest.find('{') else { return Step::More };
        parts.begin(name);
        *self = Self::Arguments(Arguments::default());
        Step::Took(start)
    }
}

impl Read for Mistral {
    fn read(
        &mut self,
        rest: &str,
        last: bool,
        definitions: &Definitions,
        parts: &mut Parts,
    ) -> Step {
        match self {
            Self::Head | Self::BetweenObjects if spaces(rest) > 0 => Step::Took(spaces(rest)),
            Self::Head if rest.is_empty() => Step::More,
            Self::Head if rest.starts_with('[') => {
                *self = Self::Object(Object::default());
                Step::Took(1)
            }
            Self::Head => {
                *self = Self::Name;
                Step::Took(0)
            }
            Self::Name => self.name(rest, parts),
            Self::Arguments(arguments) => arguments.read(rest, parts).step(|| *self = Self::Ended),
            Self::Ended => {
                *self = Self::BetweenObjects;
                Step::Call(0)
            }
            Self::Object(object) if object.is_new() && spaces(rest) > 0 => Step::Took(spaces(rest)),
            Self::Object(object) => {
                let step = object.read(rest, last, definitions, parts);
                if matches!(step, Step::Call(_) | Step::Odd(_)) {
                    *self = Self::BetweenObjects;
                }
                step
            }
            Self::BetweenObjects => match one_of(rest, &[",", "]"], last) {
                Ok(",") => {
                    *self = Self::Object(Object::default());
                    Step::Took(1)
                }
                Ok(_) => Step::Close(1),
                Err(Is::Maybe) => Step::More,
                Err(_) => Step::Close(0),
            },
        }
    }
}

/// Ids as the templates want them; the same id becomes the same.
fn shorten_ids(message: &mut Message) {
    let calls = message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten();
    for id in calls.filter_map(|call| call.get_mut("id")) {
        if let Value::String(text) = id {
            shorten(text);
        }
    }
    message.tool_call_id.iter_mut().for_each(shorten);
}

fn shorten(id: &mut String) {
    if id.len() == ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    let mut hash = xxh3_64(id.as_bytes());
    let letters = std::iter::repeat_with(|| {
        let digit = (hash % 36) as u32;
        hash /= 36;
        char::from_digit(digit, 36).expect("it is below 36")
    });
    *id = letters.take(ID_CHARS).collect();
}
