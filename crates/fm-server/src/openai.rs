//! OpenAI's interface: the shapes that its endpoints share.

pub(crate) mod chat;
pub(crate) mod completions;
mod legacy_odds;
mod message;
mod odds;
pub(crate) mod responses;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use fm_engine::generate::{FinishReason, Generated};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::{
    ask::{Manner, TOKENS_MAX},
    fields::Fields,
    model::Conversation,
    problem::{Problem, Wrong},
    serve::{App, RETRY_AFTER_SECONDS},
    stream::Out,
    tally::Requested,
};

/// Fields that say something about the client, or about a place where answers are kept; none of them
/// changes an answer.
pub(crate) const TOLERATED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
    "cache_control",
];

/// What whoever asks for it would believe had been done.
const MODERATION: &str = "moderation: nobody looks at what is said; leave it out";

/// The comment of a stream that has nothing to tell: chunks have no word for that.
const KEEP_ALIVE: &str = "keep-alive";

/// The error object.
pub(crate) fn error(problem: &Problem) -> Value {
    let status = problem.status();
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let code = match problem {
        Problem::TooLong { .. } => Some("context_length_exceeded"),
        Problem::Key => Some("invalid_api_key"),
        Problem::Refused(_) if status == StatusCode::TOO_MANY_REQUESTS => {
            Some("rate_limit_exceeded")
        }
        _ => None,
    };
    let message = problem.to_string();
    json!({"error": {"message": message, "type": kind, "param": problem.field(), "code": code}})
}

/// The response to a request that is not answered.
pub(crate) fn refuse(problem: &Problem) -> Response {
    with_status(problem, &error(problem))
}

/// Marks an error of a request that the model has begun: the log has its line.
#[derive(Clone, Copy)]
pub(crate) struct Told;

/// What a response that is none is to the log: its status says otherwise.
#[derive(Clone, Copy)]
pub(crate) struct RefusedInside(pub(crate) StatusCode);

/// An error in the shape of an interface, with the headers that belong to its status.
pub(crate) fn with_status(problem: &Problem, body: &Value) -> Response {
    let status = problem.status();
    let json = HeaderValue::from_static("application/json");
    let mut response = (status, body.to_string()).into_response();
    if matches!(problem, Problem::Engine(_) | Problem::Gone) {
        response.extensions_mut().insert(Told);
    }
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    if status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let seconds = HeaderValue::from(RETRY_AFTER_SECONDS);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

fn finish_reason(generated: &Generated) -> &'static str {
    match generated.finish {
        finish if finish.is_cut() => "length",
        // A stop string may follow a call, which is there all the same.
        FinishReason::Stop | FinishReason::StopString(_) if !generated.calls.is_empty() => {
            "tool_calls"
        }
        _ => "stop",
    }
}

fn usage(requested: &Requested) -> Value {
    let Requested { prompt_tokens, written_tokens, thinking_tokens, cached_tokens, .. } = requested;
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written_tokens,
        "total_tokens": prompt_tokens + written_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": thinking_tokens},
    })
}

/// The last chunks of a stream, the last of which says what it all took.
struct Ending {
    /// Choices that have not ended.
    going: usize,
    /// The end of the last one.
    last: Option<Value>,
}

impl Ending {
    fn of(choices: usize) -> Self {
        Self { going: choices, last: None }
    }

    /// Tells how a choice ended, or keeps it if it is the last.
    fn end(&mut self, out: &mut Out, chunk: Value) {
        self.going -= 1;
        if self.going == 0 {
            self.last = Some(chunk);
        } else {
            out.data(&chunk);
        }
    }

    /// The end of a stream, with a chunk for the usage if that is wanted.
    fn close(&mut self, out: &mut Out, usage_chunk: Option<Value>, requested: &Requested) {
        let usage_chunk = usage_chunk.map(|mut chunk| {
            chunk["usage"] = usage(requested);
            chunk
        });
        let mut chunks: Vec<Value> = self.last.take().into_iter().chain(usage_chunk).collect();
        if let Some(last) = chunks.last_mut() {
            last["timings"] = requested.timings();
        }
        chunks.iter().for_each(|chunk| out.data(chunk));
        out.text("[DONE]");
    }
}

/// Whether the model shall think and for how long, in the words that OpenAI's interfaces share and
/// those that other engines added. `effort` is what the request says where its interface says it.
fn thinking(
    fields: &mut Fields,
    (effort, field): (Option<String>, &str),
    (manner, conversation): (&mut Manner, &mut Conversation),
) -> Result<(), Problem> {
    let mut words = match fields.take("chat_template_kwargs") {
        Some(value) => Fields::of(value, "chat_template_kwargs")?,
        None => Fields::of(json!({}), "")?,
    };
    let effort = effort.or(words.text("reasoning_effort")?);
    let thinking = fields.flag("enable_thinking")?;
    let thinking = thinking.or(words.flag("enable_thinking")?).or(words.flag("thinking")?);
    keep_thoughts(&mut words, conversation)?;
    words.end(&[])?;
    conversation.enable_thinking =
        thinking.or(effort.as_ref().map(|effort| !matches!(effort.as_str(), "none" | "minimal")));
    if let Some(effort) = effort {
        let known = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
        if !known.contains(&effort.as_str()) {
            let words = "one of none, minimal, low, medium, high, xhigh, max";
            return Err(Wrong::Kind(words).at(field));
        }
        conversation.variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    let budget = fields.count("thinking_budget", 0..=TOKENS_MAX)?;
    manner.think_budget = budget.map(|budget| budget as usize);
    Ok(())
}

/// Takes whether thoughts of earlier turns are told, as GLM's and Qwen's templates call it.
fn keep_thoughts(fields: &mut Fields, conversation: &mut Conversation) -> Result<(), Problem> {
    for name in ["clear_thinking", "preserve_thinking"] {
        let said = fields.flag(name)?.map(|said| (name.to_owned(), said.into()));
        conversation.variables.extend(said);
    }
    Ok(())
}

/// `GET /v1/models`, in words that the clients of both interfaces understand.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let (name, own) = (&app.model.name, model(&app, &app.model.name));
    Json(json!({
        "object": "list", "data": [own], "has_more": false, "first_id": name, "last_id": name,
    }))
}

/// `GET /v1/models/{name}`: every name is the one model's.
pub(crate) async fn one_model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    match name {
        Ok(Path(name)) => Json(model(&app, &name)).into_response(),
        // Its bytes are no text.
        Err(_) => refuse(&Problem::NotFound { path: "/v1/models/…".to_owned(), meant: None }),
    }
}

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": app.started_unix,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "flash-moe",
        "context_length": app.model.context,
        "max_model_len": app.model.context,
        "max_input_tokens": app.model.context,
        "numerics": app.watch.gauges.numerics,
        "lossy": app.watch.gauges.lossy,
    })
}
