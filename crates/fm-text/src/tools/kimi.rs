//! `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`: Kimi-K2, which counts the calls of
//! a conversation.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use super::{
    Dialect, Way, Written,
    grammar::{Again, Form, Shape},
    marked::{Marked, Marks},
    splitter::Open,
};
use crate::chat::Message;

const OPEN: &str = "<|tool_calls_section_begin|>";
const CLOSE: &str = "<|tool_calls_section_end|>";
const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";
const FUNCTIONS: &str = "functions.";

const MARKS: Marks =
    Marks { call: CALL, named: ARGUMENTS, end: END, close: CLOSE, name: |id, _| function(id) };

const COUNTED: Shape =
    Shape::Counted { name: ("<|tool_call_begin|>functions.", ":"), behind: ARGUMENTS, end: END };

pub(super) const KIMI: Dialect = Dialect {
    name: "kimi",
    signs: &[ARGUMENTS],
    marks: &[OPEN, CLOSE, CALL, ARGUMENTS, END],
    way: Way::Calls(&[
        Open { mark: OPEN, skip: OPEN.len(), reader: || Box::new(Marked::new(&MARKS)) },
        // Without the outer mark.
        Open { mark: CALL, skip: 0, reader: || Box::new(Marked::new(&MARKS)) },
    ]),
    opening: |name| match name {
        None => format!("{OPEN}{CALL}{FUNCTIONS}"),
        Some(name) => format!("{OPEN}{CALL}{FUNCTIONS}{name}:"),
    },
    written: Written::Object,
    forms: &[
        Form { open: OPEN, shape: COUNTED, close: CLOSE, again: Again::Within("") },
        Form { open: "", shape: COUNTED, close: "", again: Again::Block(&[""]) },
    ],
    prepare: count,
};

/// The function that an id names.
fn function(id: &str) -> &str {
    let name = id.strip_prefix(FUNCTIONS).unwrap_or(id);
    let counted = name.rsplit_once(':').filter(|(_, number)| is_number(number));
    counted.map_or(name, |(name, _)| name)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Ids as the model has given them, by which the templates write calls and results: whoever serves it may have others.
fn count(messages: &mut [Message]) {
    let mut calls = 0;
    // The calls of the latest message that have an id, whose results have not come.
    let mut ids: HashMap<String, (usize, VecDeque<String>)> = HashMap::new();
    for (at, message) in messages.iter_mut().enumerate() {
        for call in message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten() {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            let own = format!("{FUNCTIONS}{name}:{calls}");
            calls += 1;
            if let Some(id) = call.get("id").and_then(Value::as_str) {
                let (of, waiting) = ids.entry(id.to_owned()).or_default();
                if std::mem::replace(of, at) != at {
                    waiting.clear();
                }
                waiting.push_back(own.clone());
            }
            call["id"] = own.into();
        }
        if let Some(id) = &mut message.tool_call_id
            && let Some((_, waiting)) = ids.get_mut(id.as_str())
        {
            let own =
                if waiting.len() > 1 { waiting.pop_front() } else { waiting.front().cloned() };
            *id = own.unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_counted_through_a_conversation() {
        let called = |ids: &[&str]| {
            let call = |id: &&str| json!({"id": id, "function": {"name": "f", "arguments": {}}});
            let calls: Value = ids.iter().map(call).collect();
            Message { tool_calls: Some(calls), ..Message::new("assistant", "") }
        };
        let result =
            |id: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", "1") };
        let mut told = [called(&["x", "y"]), result("y"), called(&["x"]), result("x"), result("?")];
        let mut alike = [called(&["", ""]), result(""), result("")];
        count(&mut alike);
        let ids = alike.map(|message| message.tool_call_id);
        assert_eq!(ids, [None, Some("functions.f:0".to_owned()), Some("functions.f:1".to_owned())]);
        count(&mut told);
        let [first, second, third] = [0, 1, 2].map(|at| format!("functions.f:{at}"));
        let want = [
            called(&[&first, &second]),
            result(&second),
            called(&[&third]),
            result(&third),
            result("?"),
        ];
        assert_eq!(told, want);
    }
}
