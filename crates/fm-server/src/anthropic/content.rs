//! What messages of Anthropic's interface consist of.

use fm_text::{Message, tools::valid_name};
use serde_json::{Value, json};

use crate::problem::{Problem, Wrong};

/// Put before a result that is an error: templates have no other word for it.
const ERROR: &str = "Error: ";

/// What is said of images, and of documents that are no text. Claude Code (2.1.197) looks for the first words of either:
/// it takes an image out of the conversation, which would otherwise be refused for ever.
const NO_IMAGE: &str =
    "Could not process image: this server does not do images; the model reads text only";
const NO_PDF: &str =
    "Could not process PDF: this server does not do PDFs; the model reads text only";

/// What tools did that run on the original's servers: the answer behind it says what came of it.
const LEFT_OUT: [&str; 10] = [
    "server_tool_use",
    "advisor_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
];

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
            ("thinking", "assistant") => thinking.push(string(block, "thinking", &field)?),
            // Nobody can read it.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => calls.push(call(block, &field)?),
            ("tool_result", "user") => results.push(result(block, &field)?),
            (of_original, "assistant") if LEFT_OUT.contains(&of_original) => {}
            _ => texts.push(text(block, &field)?),
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

/// The text of a block that is text in one way or another.
fn text(block: &Value, field: &str) -> Result<String, Problem> {
    match block["type"].as_str().unwrap_or_default() {
        "text" => Ok(string(block, "text", field)?.to_owned()),
        "document" => document(block, field),
        "search_result" => {
            let content = texts(&block["content"], &format!("{field}.content"))?;
            let [title, source] = ["title", "source"].map(|name| block[name].as_str());
            Ok([title, source, Some(&content)].into_iter().flatten().collect::<Vec<_>>().join("\n"))
        }
        // The client sends the tool itself.
        "tool_reference" => {
            Ok(format!("The tool {} is there now.", string(block, "tool_name", field)?))
        }
        "image" => Err(Wrong::Rule(NO_IMAGE).at(field)),
        _ => Err(Wrong::Unsupported("blocks of this type here").at(field)),
    }
}

/// A document that is text, below its title.
fn document(block: &Value, field: &str) -> Result<String, Problem> {
    let (source, place) = (&block["source"], format!("{field}.source"));
    let content = match source["type"].as_str().unwrap_or_default() {
        "text" => string(source, "data", &place)?.to_owned(),
        "content" => texts(&source["content"], &format!("{place}.content"))?,
        _ => return Err(Wrong::Rule(NO_PDF).at(field)),
    };
    let about = ["title", "context"].map(|name| block[name].as_str());
    let parts = about.into_iter().flatten().chain([content.as_str()]);
    Ok(parts.collect::<Vec<_>>().join("\n"))
}

/// A string, or the texts of a list of blocks.
fn texts(content: &Value, field: &str) -> Result<String, Problem> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let blocks = blocks.iter().enumerate();
            let texts = blocks.map(|(at, block)| text(block, &format!("{field}.{at}")));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err(Wrong::Kind("a string or a list of blocks").at(field)),
    }
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
        content => texts(content, &format!("{field}.content"))?,
    };
    let error = block["is_error"] == true && !content.starts_with("Error");
    let content = if error { [ERROR, &content].concat() } else { content };
    Ok(Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", content) })
}
