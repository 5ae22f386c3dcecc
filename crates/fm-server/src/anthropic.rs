//! Anthropic's interface: the shapes that its endpoints share, and how its requests are read.

pub(crate) mod messages;

use axum::{http::StatusCode, response::Response};
use fm_text::Message;
use serde_json::{Value, json};

use crate::{
    ask::{Manner, TOKENS_MAX},
    fields::Fields,
    model::Conversation,
    openai::with_status,
    problem::{Problem, Wrong},
};

/// Messages of a request.
const MESSAGES_MAX: usize = 4096;

/// Fields that never change an answer.
const TOLERATED: &[&str] = &[
    "metadata",
    "service_tier",
    "cache_control",
    "betas",
    "context_management",
    "inference_geo",
    "diagnostics",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// The error object.
pub(crate) fn error(problem: &Problem) -> Value {
    let kind = match problem.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": problem.to_string()}})
}

/// The response to a request that is not answered.
pub(crate) fn refuse(problem: &Problem) -> Response {
    with_status(problem, &error(problem))
}

/// Reads the conversation, and how long the model may think about it.
fn conversation(fields: &mut Fields, manner: &mut Manner) -> Result<Conversation, Problem> {
    let list = fields.list("messages", MESSAGES_MAX)?;
    let list = list.ok_or_else(|| Wrong::Missing.at("messages"))?;
    if list.is_empty() {
        return Err(Wrong::Empty.at("messages"));
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(message("system", &system, "system")?);
    }
    for (at, value) in list.into_iter().enumerate() {
        let field = format!("messages.{at}");
        let mut fields = Fields::of(value, &field)?;
        let role = fields.text("role")?.unwrap_or_default();
        if !matches!(role.as_str(), "user" | "assistant") {
            return Err(Wrong::Kind("user or assistant").at(format!("{field}.role")));
        }
        let content = fields.take("content").unwrap_or_default();
        fields.end(&[])?;
        let next = message(&role, &content, &format!("{field}.content"))?;
        match messages.last_mut() {
            // Turns of one role that follow each other are one turn.
            Some(last) if last.role == role => join(last, &next),
            _ => messages.push(next),
        }
    }
    if messages.last().is_some_and(|message| message.role == "assistant") {
        let wrong = Wrong::Unsupported("the continuation of an assistant's message");
        return Err(wrong.at("messages"));
    }
    let enable_thinking = Some(thinking(fields, manner)?);
    Ok(Conversation { messages, enable_thinking, ..Conversation::default() })
}

fn join(last: &mut Message, next: &Message) {
    let text =
        |message: &Message| message.content.as_ref().and_then(Value::as_str).map(str::to_owned);
    let texts = [text(last), text(next)];
    last.content = Some(texts.into_iter().flatten().collect::<Vec<_>>().join("\n").into());
    if next.reasoning_content.is_some() {
        last.reasoning_content.clone_from(&next.reasoning_content);
    }
}

/// A message of a string or of blocks.
fn message(role: &str, content: &Value, field: &str) -> Result<Message, Problem> {
    let blocks = match content {
        Value::String(text) => return Ok(Message::new(role, text.as_str())),
        Value::Array(blocks) => blocks,
        Value::Null => return Err(Wrong::Missing.at(field)),
        _ => return Err(Wrong::Kind("a string or a list of blocks").at(field)),
    };
    let (mut texts, mut thinking) = (Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let field = format!("{field}.{at}");
        let string = |name: &str| {
            let text = block[name].as_str();
            text.ok_or_else(|| Wrong::Kind("a string").at(format!("{field}.{name}")))
        };
        match block["type"].as_str() {
            Some("text") => texts.push(string("text")?),
            Some("thinking") if role == "assistant" => thinking.push(string("thinking")?),
            Some("image") => {
                return Err(Wrong::Unsupported("images; the model reads text only").at(field));
            }
            Some("tool_use" | "tool_result") => {
                return Err(Wrong::Unsupported("tools yet").at(field));
            }
            _ => return Err(Wrong::Unsupported("blocks of this type").at(field)),
        }
    }
    let mut message = Message::new(role, texts.join("\n"));
    message.reasoning_content = (!thinking.is_empty()).then(|| thinking.join("\n"));
    Ok(message)
}

/// Whether the model shall think; without the field it does not.
fn thinking(fields: &mut Fields, manner: &mut Manner) -> Result<bool, Problem> {
    let Some(value) = fields.take("thinking") else { return Ok(false) };
    let mut thinking = Fields::of(value, "thinking")?;
    let kind = thinking.text("type")?.unwrap_or_default();
    let budget = thinking.count("budget_tokens", 1..=TOKENS_MAX)?;
    thinking.end(&["display"])?;
    manner.think_budget = budget.map(|budget| budget as usize);
    match kind.as_str() {
        "enabled" if budget.is_none() => Err(Wrong::Missing.at("thinking.budget_tokens")),
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        _ => Err(Wrong::Kind("one of enabled, adaptive, disabled").at("thinking.type")),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Problem> {
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    let idle = |value: &Value| value["type"] == "auto" || value["type"] == "none";
    fields.refuse("tools", "tools yet", empty)?;
    fields.refuse("tool_choice", "tools yet", idle)?;
    fields.refuse("mcp_servers", "tools yet", empty)?;
    fields.refuse("container", "containers", |_| false)?;
    fields.refuse("output_format", "structured output yet", |_| false)?;
    let formless = |value: &Value| value.get("format").is_none_or(Value::is_null);
    fields.refuse("output_config", "structured output yet", formless)
}
