//! Arguments of calls as the model wrote them.
//!
//! A client sends the arguments of a call back as JSON, and the template writes them in its own way:
//! other spaces, other escapes, and the prompt is no longer what the model has computed. Where the
//! text is known that the model wrote, it goes there instead. To find the place in what the template
//! makes, such a call is rendered with a mark before its name and without arguments.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::Message;
use crate::tools::Dialect;

/// A noncharacter, but not the one that guards special tokens.
const MARK: char = '\u{FDD1}';

/// A conversation with marks.
#[derive(Debug)]
pub(super) struct Marked<'w> {
    pub(super) messages: Vec<Message>,
    /// Names of the calls that are marked, and their arguments.
    calls: Vec<(String, &'w str)>,
}

fn mark_of(call: usize) -> String {
    format!("{MARK}{call}{MARK}")
}

/// Marks the calls whose arguments are known; nothing if there are none.
pub(super) fn mark<'w>(
    messages: &[Message],
    written: &'w HashMap<String, String>,
) -> Option<Marked<'w>> {
    let foreign = |text: &str| text.contains(MARK);
    if written.is_empty() || serde_json::to_string(messages).is_ok_and(|text| foreign(&text)) {
        return None;
    }
    let mut marked = Marked { messages: messages.to_vec(), calls: Vec::new() };
    let lists = marked.messages.iter_mut().filter_map(|message| message.tool_calls.as_mut());
    for call in lists.filter_map(Value::as_array_mut).flatten() {
        let known = call["id"].as_str().and_then(|id| written.get(id));
        let Some(arguments) = known.filter(|arguments| !foreign(arguments)) else { continue };
        let Some(name) = call["function"]["name"].as_str().map(str::to_owned) else { continue };
        let mark = mark_of(marked.calls.len());
        call["function"]["name"] = format!("{mark}{name}").into();
        call["function"]["arguments"] = Map::new().into();
        marked.calls.push((name, arguments));
    }
    (!marked.calls.is_empty()).then_some(marked)
}

impl Marked<'_> {
    /// Puts the arguments where the marks are; nothing if the template has hidden one.
    pub(super) fn put(&self, mut text: String, dialect: &Dialect) -> Option<String> {
        for (call, (name, arguments)) in self.calls.iter().enumerate() {
            let mark = mark_of(call);
            let start = text.find(&mark)? + mark.len();
            let place = dialect.empty_arguments(&text[start..], name)?;
            text.replace_range(start + place.start..start + place.end, arguments);
            // Some templates say the name of a call again with its result.
            text = text.replace(&mark, "");
        }
        Some(text)
    }
}
