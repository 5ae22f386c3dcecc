//! A message of OpenAI's interface.

use fm_text::{Message, tools::valid_name};
use serde_json::{Map, Value, json};

use crate::{
    fields::plain_or_mended,
    problem::{Problem, Wrong},
};

/// Calls of a message.
const CALLS_MAX: usize = 512;

/// Reads the message in this place.
pub(super) fn read(value: Value, at: usize) -> Result<Message, Problem> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let mut message: Message = serde_json::from_value(value)
        .map_err(|_| Wrong::Kind("a message with a role").at(format!("messages[{at}]")))?;
    message.role = match message.role.as_str() {
        "developer" => "system".to_owned(),
        "system" | "user" | "assistant" | "tool" => message.role,
        _ => {
            let roles = "one of system, developer, user, assistant, tool";
            return Err(Wrong::Kind(roles).at(field("role")));
        }
    };
    message.tool_calls = match message.tool_calls.take() {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) if list.is_empty() => None,
        Some(_) if message.role != "assistant" => {
            return Err(Wrong::Rule("only an assistant calls tools").at(field("tool_calls")));
        }
        Some(Value::Array(list)) if list.len() > CALLS_MAX => {
            return Err(Wrong::Many(CALLS_MAX).at(field("tool_calls")));
        }
        Some(Value::Array(list)) => {
            let calls = list.iter().enumerate();
            let calls =
                calls.map(|(at, item)| call(item, &format!("{}[{at}]", field("tool_calls"))));
            Some(calls.collect::<Result<Value, _>>()?)
        }
        Some(_) => return Err(Wrong::Kind("a list").at(field("tool_calls"))),
    };
    if message.role == "tool" && message.tool_call_id.is_none() {
        return Err(Wrong::Missing.at(field("tool_call_id")));
    }
    // Another name that clients have for it.
    let thought = message.extra.get("reasoning").and_then(Value::as_str);
    message.reasoning_content = message.reasoning_content.or(thought.map(str::to_owned));
    let thinks = message.role == "assistant" && message.reasoning_content.is_some();
    if message.extra.get("function_call").is_some_and(|call| !call.is_null()) {
        return Err(Wrong::Unsupported("function_call; use tool_calls").at(field("function_call")));
    }
    let refusal = message.extra.get(REFUSAL).and_then(Value::as_str).map(str::to_owned);
    let text = match (message.content.take(), refusal) {
        (None | Some(Value::Null), Some(refusal)) if message.role == "assistant" => refusal,
        (content, _) => text_of(content, thinks || message.tool_calls.is_some(), at)?,
    };
    message.content = Some(text.into());
    // What clients send back of earlier answers, and templates do not know.
    message.extra = Map::new();
    Ok(message)
}

/// What a message says; one that says something otherwise may say nothing.
fn text_of(content: Option<Value>, otherwise: bool, at: usize) -> Result<String, Problem> {
    let field = format!("messages[{at}].content");
    match content {
        // Not every template can do without.
        None | Some(Value::Null) if otherwise => Ok(String::new()),
        None | Some(Value::Null) => Err(Wrong::Missing.at(field)),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => parts_text(&parts, &["text", REFUSAL], &field),
        Some(_) => Err(Wrong::Kind("a string or a list of parts").at(field)),
    }
}

/// A call with its arguments as an object.
fn call(call: &Value, field: &str) -> Result<Value, Problem> {
    if call.get("type").is_some_and(|kind| kind != "function") {
        return Err(Wrong::Unsupported("calls other than of functions").at(field));
    }
    let (own, field) = (&call["function"], format!("{field}.function"));
    let function = function(own["name"].as_str().map(str::to_owned), &own["arguments"], &field)?;
    let id = call["id"].as_str().unwrap_or_default();
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// What stands for arguments that are no JSON object, as those of a call that was cut: clients send back
/// what they have.
const UNPARSED: &str = "unparsed";

/// What is called, and the arguments.
pub(super) fn function(
    name: Option<String>,
    arguments: &Value,
    field: &str,
) -> Result<Value, Problem> {
    let wrong = || Wrong::Kind("the name of a function").at(format!("{field}.name"));
    let name = name.filter(|name| valid_name(name)).ok_or_else(wrong)?;
    let arguments = match arguments {
        Value::Null => Map::new(),
        Value::Object(map) => map.clone(),
        Value::String(text) if text.trim().is_empty() => Map::new(),
        Value::String(text) => object(text)
            .unwrap_or_else(|| Map::from_iter([(UNPARSED.to_owned(), text.as_str().into())])),
        _ => {
            let field = format!("{field}.arguments");
            return Err(Wrong::Kind("the text of a JSON object").at(field));
        }
    };
    Ok(json!({"name": name, "arguments": arguments}))
}

/// The object that a text is, if it is one; `null` is what some languages write for one of nothing. Halves of
/// characters are mended as those of a body are.
fn object(text: &str) -> Option<Map<String, Value>> {
    match plain_or_mended(text.as_bytes()).ok()? {
        Value::Null => Some(Map::new()),
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// A part in which an assistant says that it will not.
pub(super) const REFUSAL: &str = "refusal";

/// The text of a list of parts of these kinds.
pub(super) fn parts_text(parts: &[Value], kinds: &[&str], field: &str) -> Result<String, Problem> {
    let texts = parts.iter().enumerate().map(|(at, part)| match part["type"].as_str() {
        Some(kind) if kinds.contains(&kind) => {
            // A refusal is the text of its part.
            let name = if kind == REFUSAL { kind } else { "text" };
            let text = part[name].as_str();
            text.ok_or_else(|| Wrong::Kind("a string").at(format!("{field}[{at}].{name}")))
        }
        Some("image_url" | "input_image") => {
            Err(Wrong::Unsupported("images; the model reads text only")
                .at(format!("{field}[{at}]")))
        }
        _ => Err(Wrong::Unsupported("parts other than text").at(format!("{field}[{at}]"))),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_no_object_are_told_as_they_stand() {
        for (text, expected) in [
            ("", json!({})),
            (" \n", json!({})),
            ("null", json!({})),
            (" null ", json!({})),
            (r#"{"a": "\ud83d", "b": "\ud83d\ude00"}"#, json!({"a": "\u{fffd}", "b": "😀"})),
            (r#"{"a": 1"#, json!({"unparsed": "{\"a\": 1"})),
            (r#"{"a": "\ud83d"#, json!({"unparsed": r#"{"a": "\ud83d"#})),
            ("[1]", json!({"unparsed": "[1]"})),
        ] {
            let function = function(Some("f".to_owned()), &text.into(), "x").unwrap();
            assert_eq!(function, json!({"name": "f", "arguments": expected}), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_what_the_assistant_said() {
        let part = json!({"type": "refusal", "refusal": "No."});
        let said = read(json!({"role": "assistant", "content": [part]}), 0).unwrap();
        assert_eq!(said.content, Some("No.".into()));
        let said = json!({"role": "assistant", "content": null, "refusal": "No."});
        assert_eq!(read(said, 0).unwrap().content, Some("No.".into()));
        let user = json!({"role": "user", "content": null, "refusal": "No."});
        assert_eq!(read(user, 0).unwrap_err().field(), Some("messages[0].content"));
        let part = json!({"type": "refusal", "text": "No."});
        let wrong = read(json!({"role": "assistant", "content": [part]}), 0).unwrap_err();
        assert_eq!(wrong.field(), Some("messages[0].content[0].refusal"));
    }
}
