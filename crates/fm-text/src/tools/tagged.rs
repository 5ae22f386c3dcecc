//! Calls whose parameters are written one by one between tags, with values that are bare text.

use super::{
    Definitions,
    definitions::Kinds,
    object::Object,
    parts::Parts,
    reader::{Read, Step, valid_name},
    scan::{Is, begins, find, one_of, spaces, undecided},
    value,
};

/// The tags of such a dialect; empty ones it does not have.
#[derive(Debug)]
pub(super) struct Tags {
    /// Before and after the name.
    pub(super) name: (&'static str, &'static str),
    /// Around the name of a parameter.
    pub(super) key: (&'static str, &'static str),
    /// Around its value.
    pub(super) value: (&'static str, &'static str),
    /// Whether a line break on either side of a value belongs to the tags.
    pub(super) broken_lines: bool,
    /// After the parameters.
    pub(super) end: &'static str,
    /// After the last call.
    pub(super) close: &'static str,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tagged {
    tags: &'static Tags,
    place: Place,
    name: String,
    /// Parameters that the call has.
    parameters: usize,
}

#[derive(Debug)]
enum Place {
    /// Before a name.
    Head,
    /// Between parameters.
    Parameters,
    /// Before the text of a value.
    BeforeValue(Value),
    Value(Value),
    /// After a call.
    After,
    /// In a call that is an object after all.
    Object(Object),
}

#[derive(Debug)]
struct Value {
    key: String,
    kinds: Kinds,
    text: String,
    /// Whether the text goes out as it comes.
    streams: bool,
}

impl Tagged {
    pub(super) fn new(tags: &'static Tags) -> Self {
        Self { tags, place: Place::Head, name: String::new(), parameters: 0 }
    }

    fn head(&mut self, rest: &str, last: bool, parts: &mut Parts) -> Step {
        let tags = self.tags;
        if rest.starts_with('{') {
            self.place = Place::Object(Object::default());
            return Step::Took(0);
        }
        match begins(rest, tags.name.0, last) {
            Is::No => return Step::Broken(0),
            Is::Maybe => return Step::More,
            Is::Yes => {}
        }
        let ends = if tags.name.1.is_empty() { [tags.key.0, tags.close] } else { [tags.name.1; 2] };
        let text = &rest[tags.name.0.len()..];
        let Some((end, tag)) = find(text, &ends) else {
            // A name that may still be one, with the start of a tag behind it.
            let name = &text[..undecided(text, &ends)];
            let possible = name.trim().is_empty() || valid_name(name.trim());
            return if possible { Step::More } else { Step::Broken(0) };
        };
        let name = text[..end].trim();
        if !valid_name(name) {
            return Step::Broken(0);
        }
        parts.begin(name);
        parts.arguments("{");
        name.clone_into(&mut self.name);
        self.parameters = 0;
        self.place = Place::Parameters;
        // Without a tag behind the name, white space behind it belongs to the arguments.
        let name =
            if tags.name.1.is_empty() { text[..end].trim_end().len() } else { end + tag.len() };
        Step::Took(tags.name.0.len() + name)
    }

    fn parameters(
        &mut self,
        rest: &str,
        last: bool,
        definitions: &Definitions,
        parts: &mut Parts,
    ) -> Step {
        let tags = self.tags;
        let tag = match one_of(rest, &[tags.key.0, tags.end, tags.close], last) {
            Ok(tag) => tag,
            Err(Is::Maybe) => return Step::More,
            Err(_) => return Step::Broken(0),
        };
        if tag != tags.key.0 {
            parts.arguments("}");
            self.place = Place::After;
            return Step::Call(if tag == tags.end { tag.len() } else { 0 });
        }
        let text = &rest[tag.len()..];
        let end = text.find(tags.key.1);
        if text[..end.unwrap_or(text.len())].contains('\n') {
            return Step::Broken(0);
        }
        let Some(end) = end else { return Step::More };
        let key = text[..end].trim().to_owned();
        let kinds = definitions.kinds(&self.name, &key);
        let value = Value { key, kinds, text: String::new(), streams: false };
        self.place = Place::BeforeValue(value);
        Step::Took(tag.len() + end + tags.key.1.len())
    }

    /// Takes the tag before a value and the line break that belongs to it.
    fn before_value(&mut self, value: Value, rest: &str, last: bool) -> Step {
        let tags = self.tags;
        let open = tags.value.0;
        let before = if open.is_empty() { 0 } else { spaces(rest) };
        let step = match begins(&rest[before..], open, last) {
            Is::No => return Step::Broken(0),
            Is::Yes if !(tags.broken_lines && rest.is_empty()) => {
                let after = &rest[before + open.len()..];
                let line = usize::from(tags.broken_lines && after.starts_with('\n'));
                self.place = Place::Value(value);
                return Step::Took(before + open.len() + line);
            }
            _ => Step::More,
        };
        self.place = Place::BeforeValue(value);
        step
    }

    fn value(&mut self, mut value: Value, rest: &str, last: bool, parts: &mut Parts) -> Step {
        let close = self.tags.value.1;
        let (end, ends) = match rest.find(close) {
            None => (undecided(rest, &[close]), Is::Maybe),
            Some(end) => (end, self.ends_value(&rest[end + close.len()..], last)),
        };
        let line = usize::from(self.tags.broken_lines && rest[..end].ends_with('\n'));
        match ends {
            Is::Yes => {
                value.push(&rest[..end - line], self.parameters, parts);
                value.finish(self.parameters, parts);
                self.parameters += 1;
                self.place = Place::Parameters;
                Step::Took(end + close.len())
            }
            Is::Maybe => {
                value.push(&rest[..end - line], self.parameters, parts);
                self.place = Place::Value(value);
                if end > line { Step::Took(end - line) } else { Step::More }
            }
            Is::No => {
                value.push(&rest[..end + close.len()], self.parameters, parts);
                self.place = Place::Value(value);
                Step::Took(end + close.len())
            }
        }
    }

    /// Whether a closing tag closes: a value may spell one, but then no other tag follows.
    fn ends_value(&self, after: &str, last: bool) -> Is {
        let Tags { key, end, close, .. } = self.tags;
        match one_of(after.trim_start(), &[key.0, end, close], last) {
            Ok(_) => Is::Yes,
            Err(is) => is,
        }
    }

    fn after(&mut self, rest: &str, last: bool) -> Step {
        let tags = self.tags;
        match one_of(rest, &[tags.close, tags.name.0], last) {
            Ok(tag) if tag == tags.close => Step::Close(tag.len()),
            Ok(_) => {
                self.place = Place::Head;
                Step::Took(0)
            }
            Err(Is::Maybe) => Step::More,
            Err(_) => Step::Close(0),
        }
    }
}

impl Value {
    /// Adds text, and says it if every value of this kind is a text.
    fn push(&mut self, text: &str, before: usize, parts: &mut Parts) {
        self.text.push_str(text);
        if !self.kinds.is_text() {
            return;
        }
        if self.streams {
            parts.arguments(&value::escaped(text));
        } else if !value::may_become_null(&self.text) {
            self.streams = true;
            self.name(before, parts);
            parts.arguments("\"");
            parts.arguments(&value::escaped(&self.text));
        }
    }

    /// Says the rest.
    fn finish(&self, before: usize, parts: &mut Parts) {
        if self.streams {
            parts.arguments("\"");
            return;
        }
        self.name(before, parts);
        parts.arguments(&value::to_json(&self.text, self.kinds));
    }

    fn name(&self, before: usize, parts: &mut Parts) {
        parts.arguments(if before > 0 { ", " } else { "" });
        parts.arguments(&value::quoted(&self.key));
        parts.arguments(": ");
    }
}

impl Read for Tagged {
    fn read(
        &mut self,
        rest: &str,
        last: bool,
        definitions: &Definitions,
        parts: &mut Parts,
    ) -> Step {
        let outside = matches!(self.place, Place::Head | Place::Parameters | Place::After);
        if outside && spaces(rest) > 0 {
            return Step::Took(spaces(rest));
        }
        match std::mem::replace(&mut self.place, Place::After) {
            Place::Head => {
                self.place = Place::Head;
                self.head(rest, last, parts)
            }
            Place::Parameters => {
                self.place = Place::Parameters;
                self.parameters(rest, last, definitions, parts)
            }
            Place::BeforeValue(value) => self.before_value(value, rest, last),
            Place::Value(value) => self.value(value, rest, last, parts),
            Place::After => self.after(rest, last),
            Place::Object(mut object) => match object.read(rest, last, definitions, parts) {
                Step::Call(bytes) | Step::Odd(bytes) => Step::Odd(bytes),
                step => {
                    self.place = Place::Object(object);
                    step
                }
            },
        }
    }
}
