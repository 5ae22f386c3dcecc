//! What messages of Anthropic's interface consist of.

use fm_text::{Message, tools::valid_name};
use serde_json::{Value, json};

use crate::problem::{Problem, Wrong};

/// Put before a result that is an error: templates have no other word for it.
const ERROR: &str = "Error: ";

/// Reads a message of a string or of blocks. Results of tools are messages of their own, before what
/// the user says.
pub(super) fn read(role: &str, content: &Value, field: &str) -> Result<Vec<Message>, Problem> {
    let blocks = match content {
        Value::String(text) => return Ok(vec![Message::new(role, text.as_str())]),
        Value::Array(blocks) => blocks,
        Value::Null => return Err(Wrong::Missing.at(field)),
        _ => return Err(Wrong::Kind("a string or a list of blocks").at(field)),
    };
    let (mut texts, mut thinking) = (Vec::new(), Vec::new());
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let field = format!("{field}.{at}");
        match (block["type"].as_str().unwrap_or_default(), role) {
            ("text", _) => texts.push(string(block, "text", &field)?),
            ("thinking", "assistant") => thinking.push(string(block, "thinking", &field)?),
            // Nobody can read it.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => calls.push(call(block, &field)?),
            ("tool_result", "user") => results.push(result(block, &field)?),
            ("image", _) => {
                return Err(Wrong::Unsupported("images; the model reads text only").at(field));
            }
            _ => return Err(Wrong::Unsupported("blocks of this type here").at(field)),
        }
    }
    if texts.is_empty() && !results.is_empty() {
        return Ok(results);
    }
    let mut message = Message::new(role, texts.join("\n"));
    message.reasoning_content = (!thinking.is_empty()).then(|| thinking.join("\n"));
    message.tool_calls = (!calls.is_empty()).then(|| calls.into());
    results.push(message);
    Ok(results)
}

fn string<'b>(block: &'b Value, name: &str, field: &str) -> Result<&'b str, Problem> {
    block[name].as_str().ok_or_else(|| Wrong::Kind("a string").at(format!("{field}.{name}")))
}

/// A call in OpenAI's shape, which templates know.
fn call(block: &Value, field: &str) -> Result<Value, Problem> {
    let name = string(block, "name", field)?;
    if !valid_name(name) {
        return Err(Wrong::Kind("the name of a tool").at(format!("{field}.name")));
    }
    let input = &block["input"];
    if !input.is_object() {
        return Err(Wrong::Kind("an object").at(format!("{field}.input")));
    }
    let function = json!({"name": name, "arguments": input});
    Ok(json!({"id": string(block, "id", field)?, "type": "function", "function": function}))
}

/// A message with the result of a call.
fn result(block: &Value, field: &str) -> Result<Message, Problem> {
    let id = string(block, "tool_use_id", field)?;
    let content = match &block["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().enumerate().map(|(at, block)| {
                let field = format!("{field}.content.{at}");
                match block["type"].as_str() {
                    Some("text") => string(block, "text", &field),
                    Some("image") => {
                        Err(Wrong::Unsupported("images; the model reads text only").at(field))
                    }
                    _ => Err(Wrong::Unsupported("results other than text").at(field)),
                }
            });
            texts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        _ => {
            let kind = "a string or a list of blocks";
            return Err(Wrong::Kind(kind).at(format!("{field}.content")));
        }
    };
    let error = block["is_error"] == true && !content.starts_with("Error");
    let content = if error { [ERROR, &content].concat() } else { content };
    Ok(Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", content) })
}
