//! Anthropic's interface: the shapes that its endpoints share, and how its requests are read.

mod content;
pub(crate) mod messages;

use axum::{http::StatusCode, response::Response};
use serde_json::{Map, Value, json};

use crate::{
    ask::{Manner, TOKENS_MAX},
    fields::{Fields, float},
    model::{Conversation, Model},
    openai::with_status,
    problem::{Problem, Wrong},
    serve::{REQUEST_IDS, new_id},
    tools::Tools,
    turns,
};

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
    "fallbacks",
    "fallback_credit_token",
    "billing_policy",
];

/// The words of this interface for how much the model shall think and write.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Where a client asks for a conversation that is kept here.
const THREAD: &str = "thread";

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
    let mut error = json!({"type": kind, "message": problem.to_string()});
    if problem.field() == Some(THREAD) {
        // By this the official client knows that it has to send the whole conversation.
        error["details"] =
            json!({"error_code": "thread_unsupported_request", "unsupported": [THREAD]});
    }
    json!({"type": "error", "error": error})
}

/// The response to a request that is not answered.
pub(crate) fn refuse(problem: &Problem) -> Response {
    let (id, mut body) = (new_id("req_"), error(problem));
    body["request_id"] = id.as_str().into();
    let mut response = with_status(problem, &body);
    let id = id.parse().expect("letters and digits");
    response.headers_mut().insert(&REQUEST_IDS[0], id);
    response
}

/// Takes the fields that both interfaces share; in this one temperatures end at 1, and no candidates are fewer than 0.
pub(crate) fn manner(fields: &mut Fields, model: &Model) -> Result<Manner, Problem> {
    if let Some(temperature) = fields.peek("temperature") {
        float(temperature, "temperature", &(0.0..=1.0))?;
    }
    if let Some(top_k) = fields.peek("top_k") {
        float(top_k, "top_k", &(0.0..=u32::MAX as f32))?;
    }
    Manner::take(fields, model)
}

/// Reads the conversation, and how long the model may think about it.
pub(crate) fn conversation(
    fields: &mut Fields,
    manner: &mut Manner,
) -> Result<Conversation, Problem> {
    let list = fields.messages()?;
    let mut messages = Vec::new();
    if let Some(mut system) = fields.take("system") {
        if let Some(blocks) = system.as_array_mut() {
            blocks.retain(|block| !is_billing(block));
        }
        messages.extend(content::read("system", &system, "system")?);
    }
    for (at, value) in list.into_iter().enumerate() {
        let field = format!("messages.{at}");
        let mut fields = Fields::of(value, &field)?;
        let role = fields.text("role")?.unwrap_or_default();
        // Agents add to what the system says in the course of a conversation.
        if !matches!(role.as_str(), "user" | "assistant" | "system") {
            return Err(Wrong::Kind("user, assistant or system").at(format!("{field}.role")));
        }
        let content = fields.take("content").unwrap_or_default();
        fields.end(&[])?;
        for next in content::read(&role, &content, &format!("{field}.content"))? {
            match messages.last_mut() {
                // Turns of one role that follow each other are one turn; results are apart.
                Some(last) if last.role == role && next.role == role => turns::append(last, next),
                _ => messages.push(next),
            }
        }
    }
    let thinking = thinking(fields, manner)?;
    let tools = Tools::take_anthropic(fields)?;
    if thinking && tools.choice.is_forced() {
        let wrong = "a call cannot be asked for together with thinking";
        return Err(Wrong::Rule(wrong).at("tool_choice"));
    }
    // As templates know it.
    let effort = effort(fields)?.map(|effort| ("reasoning_effort".to_owned(), effort));
    let variables = Map::from_iter(effort);
    Ok(Conversation { messages, enable_thinking: Some(thinking), tools, variables })
}

/// Whether a block of the system message is for the original's accounts and not for a model: Claude Code begins with
/// one, which differs from conversation to conversation, so that nothing behind it would ever be known.
fn is_billing(block: &Value) -> bool {
    block["text"].as_str().is_some_and(|text| text.starts_with("x-anthropic-billing-header:"))
}

/// `output_config.effort`; what stands beside it is taken with the form of the answer.
fn effort(fields: &Fields) -> Result<Option<Value>, Problem> {
    let effort = fields.peek("output_config").and_then(|config| config.get("effort"));
    match effort.filter(|effort| !effort.is_null()) {
        Some(effort) if !EFFORTS.iter().any(|word| effort == word) => {
            let words = "one of low, medium, high, xhigh, max";
            Err(Wrong::Kind(words).at("output_config.effort"))
        }
        effort => Ok(effort.cloned()),
    }
}

/// Whether the model shall think; without the field it does not.
fn thinking(fields: &mut Fields, manner: &mut Manner) -> Result<bool, Problem> {
    let Some(value) = fields.take("thinking") else { return Ok(false) };
    let mut thinking = Fields::of(value, "thinking")?;
    let kind = thinking.text("type")?.unwrap_or_default();
    let budget = thinking.count("budget_tokens", 1..=TOKENS_MAX)?;
    thinking.end(&["display", "block_binding"])?;
    manner.think_budget = budget.map(|budget| budget as usize);
    match kind.as_str() {
        "enabled" if budget.is_none() => Err(Wrong::Missing.at("thinking.budget_tokens")),
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        "between_tools" => {
            let what = "thinking between calls only; it is enabled, adaptive or disabled";
            Err(Wrong::Unsupported(what).at("thinking.type"))
        }
        _ => Err(Wrong::Kind("one of enabled, adaptive, disabled").at("thinking.type")),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Problem> {
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.refuse("mcp_servers", "MCP servers; connect the client to them", empty)?;
    fields.refuse("container", "containers", |_| false)?;
    fields.refuse("compaction", "compaction; the client can shorten what it sends", |_| false)?;
    fields.refuse(THREAD, "message threads; send the whole conversation", |_| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effort_is_told_to_the_template() {
        let read = |config: Value| {
            let hi = json!([{"role": "user", "content": "hi"}]);
            let body = json!({"messages": hi, "output_config": config});
            let mut fields = Fields::of(body, "").unwrap();
            conversation(&mut fields, &mut Manner::default())
        };
        for word in EFFORTS {
            let variables = read(json!({"effort": word})).unwrap().variables;
            assert_eq!(Value::Object(variables), json!({"reasoning_effort": word}));
        }
        for nothing in [json!({}), json!({"effort": null}), Value::Null] {
            assert!(read(nothing).unwrap().variables.is_empty());
        }
        for wrong in [json!("none"), json!("High"), json!(3), json!(["low"])] {
            let refused = read(json!({"effort": wrong})).unwrap_err();
            assert_eq!(refused.field(), Some("output_config.effort"), "{wrong}");
        }
    }
}
