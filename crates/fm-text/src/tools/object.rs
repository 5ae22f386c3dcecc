//! A call that is a JSON object: `{"name": "f", "arguments": {…}}`.

use serde_json::{Map, Value};

use super::{
    Definitions,
    parts::Parts,
    reader::{Read, Step, valid_name},
    scan::{ObjectEnd, spaces},
};

/// Arguments that are an object, passed on as they are written.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    end: ObjectEnd,
    text: String,
}

impl Arguments {
    /// Reads on, up to the end of the object. All of it is said but the last brace, which is said if
    /// the object is one, and white space before it.
    pub(super) fn read(&mut self, rest: &str, parts: &mut Parts) -> Found {
        if self.text.is_empty() && !rest.starts_with('{') {
            return match spaces(rest) {
                _ if rest.is_empty() => Found::More,
                0 => Found::Broken(0),
                spaces => Found::Took(spaces),
            };
        }
        match self.end.find(rest) {
            None => {
                self.text.push_str(rest);
                parts.arguments(rest);
                if rest.is_empty() { Found::More } else { Found::Took(rest.len()) }
            }
            Some(end) => {
                self.text.push_str(&rest[..end]);
                parts.arguments(&rest[..end - 1]);
                if !is_object(&self.text) {
                    return Found::Broken(end);
                }
                parts.arguments("}");
                Found::End(end)
            }
        }
    }
}

/// How far arguments were read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    More,
    Took(usize),
    End(usize),
    Broken(usize),
}

impl Found {
    /// The step that this is; the arguments may have `ended`.
    pub(super) fn step(self, ended: impl FnOnce()) -> Step {
        match self {
            Self::More => Step::More,
            Self::Took(bytes) => Step::Took(bytes),
            Self::Broken(bytes) => Step::Broken(bytes),
            Self::End(bytes) => {
                ended();
                Step::Took(bytes)
            }
        }
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

/// See the module. The name comes first as a rule; then the arguments go out as they come.
#[derive(Debug, Default)]
pub(super) struct Object {
    place: Place,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Head,
    Arguments(Arguments),
    /// What is left of the object around the arguments.
    Tail,
    /// An object in another order: read when it is complete.
    Whole(ObjectEnd, String),
}

/// How an object begins.
enum Head {
    More,
    /// Its name, and where its arguments start.
    Usual(String, usize),
    Other,
}

impl Object {
    /// Whether nothing of it has been read.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.place, Place::Head)
    }

    fn head(&mut self, rest: &str, parts: &mut Parts) -> Step {
        if !rest.starts_with('{') {
            return if rest.is_empty() { Step::More } else { Step::Broken(0) };
        }
        match head(rest) {
            Head::More => Step::More,
            Head::Usual(name, _) if !valid_name(&name) => Step::Broken(0),
            Head::Usual(name, bytes) => {
                parts.begin(&name);
                self.place = Place::Arguments(Arguments::default());
                Step::Took(bytes)
            }
            Head::Other => {
                self.place = Place::Whole(ObjectEnd::default(), String::new());
                Step::Took(0)
            }
        }
    }
}

/// `{ "name" : "…" , "arguments" : {`
fn head(text: &str) -> Head {
    let mut at = 0;
    let mut name = String::new();
    for expected in ["{", "\"name\"", ":", "", ",", "\"arguments\"", ":", "{"] {
        at += spaces(&text[at..]);
        let rest = &text[at..];
        if rest.is_empty() {
            return Head::More;
        }
        if expected.is_empty() {
            let mut read = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            match read.next() {
                Some(Ok(read)) => name = read,
                Some(Err(error)) if error.is_eof() => return Head::More,
                _ => return Head::Other,
            }
            at += read.byte_offset();
        } else if rest.starts_with(expected) {
            at += expected.len();
        } else {
            return if expected.starts_with(rest) { Head::More } else { Head::Other };
        }
    }
    Head::Usual(name, at - 1)
}

/// Says a call from an object that is complete; false if it is none.
fn say(text: &str, parts: &mut Parts) -> bool {
    let Ok(mut call) = serde_json::from_str::<Map<String, Value>>(text) else { return false };
    let arguments = call.remove("arguments").or_else(|| call.remove("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) if is_object(&text) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return false,
    };
    let Some(name) = call.get("name").and_then(Value::as_str) else { return false };
    if !valid_name(name) {
        return false;
    }
    parts.begin(name);
    parts.arguments(&arguments);
    true
}

impl Read for Object {
    fn read(&mut self, rest: &str, last: bool, _: &Definitions, parts: &mut Parts) -> Step {
        match &mut self.place {
            Place::Head => self.head(rest, parts),
            Place::Arguments(arguments) => {
                arguments.read(rest, parts).step(|| self.place = Place::Tail)
            }
            // Nothing of it is read before all of it is here: the call ends where it begins.
            Place::Tail => match ObjectEnd::inside().find(rest) {
                Some(end) => Step::Call(end),
                None if last => Step::Call(0),
                None => Step::More,
            },
            Place::Whole(end, text) => match end.find(rest) {
                None if rest.is_empty() => Step::More,
                None => {
                    text.push_str(rest);
                    Step::Took(rest.len())
                }
                Some(end) => {
                    text.push_str(&rest[..end]);
                    if say(text, parts) { Step::Odd(end) } else { Step::Broken(0) }
                }
            },
        }
    }
}
