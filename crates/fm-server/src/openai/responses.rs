//! `POST /v1/responses`, without a memory: what a response is about comes with its request.

mod items;
mod repeated;
mod writer;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::Value;

use self::{repeated::Repeated, writer::Writer};
use super::{MODERATION, RefusedInside, refuse, thinking};
use crate::{
    answer::Answer,
    ask::{Ask, Manner, Odds, TOKENS_MAX, TOP_LOGPROBS_MAX},
    fields::Fields,
    kept::{CallIds, Kept},
    model::{Conversation, Model},
    places::Work,
    problem::Problem,
    serve::{self, App},
    stream, structured,
    tools::{Namespaces, Tools},
};

const PATH: &str = "/v1/responses";

/// See [`Manner`]: each takes 2 kB while an event has it.
const ODDS_MAX: usize = 1 << 15;

/// Fields that never change an answer.
const TOLERATED: &[&str] = &[
    "user",
    "metadata",
    "client_metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "cache_control",
    "access_programs",
    // Nothing is shortened here, and nobody is promised that it is.
    "context_management",
    // Of tools that run on the original's servers.
    "max_tool_calls",
    "image",
];

/// What the response needs to know of the request.
pub(crate) struct Form {
    app: Arc<App>,
    id: String,
    ids: CallIds,
    created_unix: u64,
    repeated: Repeated,
    stream: bool,
    /// Whether its items may be kept: who leaves `store` open may send their ids alone.
    keeps: bool,
    namespaces: Namespaces,
    thoughts: Thoughts,
}

/// How thoughts are told. They are never summarised: what is called so is all of them.
#[derive(Clone, Copy)]
struct Thoughts {
    /// As the summary of an item, which whoever asked for one shows and sends back, and not as its content.
    summarised: bool,
    /// Once more as what only the original can read, for those who send back nothing else.
    sealed: bool,
}

/// What stands before a thought that is told as `encrypted_content`. It is no secret from whoever reads it.
const SEAL: &str = "flash-moe:";

/// Answers a conversation.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|problem| refuse(&problem))
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (ask, form) = serve::prepare((&app, Work::Answer), request, read).await?;
    let ask = match ask {
        Err(problem @ Problem::TooLong { .. }) if form.stream => return Ok(failed(form, problem)),
        ask => ask?,
    };
    let mut answer: Answer = ask.submit(&app, PATH)?;
    if form.stream {
        return Ok(stream::respond(&app, answer, Writer::new(form)));
    }
    let mut writer = Writer::new(form);
    while let Some((_, piece)) = answer.next().await {
        writer.write(piece)?;
    }
    Ok(axum::Json(writer.response(&answer.tally.requested)).into_response())
}

/// The stream of a response that failed before it began. By this Codex knows that a context is full, and by nothing
/// that is no event.
fn failed(form: Form, problem: Problem) -> Response {
    let inside = RefusedInside(problem.status());
    let mut response = stream::events(Writer::new(form).failed(problem));
    response.extensions_mut().insert(inside);
    response
}

/// Reads a request that is not answered.
pub(crate) fn check(app: &Arc<App>, fields: Fields) -> Result<(), Problem> {
    read(app, fields).and_then(|(ask, _)| ask.map(drop))
}

/// A prompt that cannot be answered is a problem of its own, since it is known in what form that has to be said.
type Asked = Result<Ask, Problem>;

fn read(app: &Arc<App>, fields: Fields) -> Result<(Asked, Form), Problem> {
    let (ask, form) = asked(&app.model, &app.kept, fields)?;
    Ok((ask, form(Arc::clone(app))))
}

/// What a body asks for.
pub(crate) fn asked(
    model: &Model,
    kept: &Kept,
    mut fields: Fields,
) -> Result<(Asked, impl FnOnce(Arc<App>) -> Form + use<>), Problem> {
    let name = fields.name("model")?.unwrap_or_else(|| model.name.clone());
    let mut repeated = Repeated::of(&fields, &name)?;
    let mut manner = Manner::take(&mut fields, model)?;
    let sampling = manner.sampling;
    for (name, value) in [("temperature", sampling.temperature), ("top_p", sampling.top_p)] {
        // The nearest number of f64 to one of f32 has digits that nobody wrote.
        repeated.set(name, &((f64::from(value) * 1e6).round() / 1e6).into());
    }
    let max_tokens = fields.count("max_output_tokens", 1..=TOKENS_MAX)?;
    manner.max_tokens = max_tokens.map(|max| max as usize);
    let (odds, sealed) = included(&mut fields)?;
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    let odds = odds || top.is_some();
    manner.odds = odds.then(|| Odds { top: top.unwrap_or(0) as usize, max: ODDS_MAX });
    manner.constraint = structured::take_responses(&mut fields, &model.grammars)?;
    let asked = |name: &str| fields.peek("reasoning").is_some_and(|of| !of[name].is_null());
    let summarised = asked("summary") || asked("generate_summary");
    let mut conversation = conversation(&mut fields, &mut manner, kept)?;
    structured::with_tools(&mut manner, &conversation, model)?;
    let stream = streams(&mut fields)?;
    let keeps = fields.peek("store").is_none();
    refuse_unsupported(&mut fields)?;
    fields.end(TOLERATED)?;
    let (id, ids) = (serve::new_id("resp_"), CallIds::new("call_"));
    let namespaces = std::mem::take(&mut conversation.tools.namespaces);
    manner.left_out = std::mem::take(&mut conversation.tools.left_out);
    let prompt = model.prompt(conversation, kept).map_err(|problem| problem.of_field("input"));
    let ask = prompt.map(|prompt| Ask { prompts: vec![prompt], manner, ids: ids.clone() });
    let created_unix = serve::now_unix();
    let thoughts = Thoughts { summarised, sealed };
    let form = move |app| Form {
        app,
        id,
        ids,
        created_unix,
        repeated,
        stream,
        keeps,
        namespaces,
        thoughts,
    };
    Ok((ask, form))
}

/// `include`: log-probabilities, and thoughts as what only the original can read. What else it can name is there
/// anyway or never.
fn included(fields: &mut Fields) -> Result<(bool, bool), Problem> {
    const INCLUDES_MAX: usize = 16;
    let names = fields.texts("include", INCLUDES_MAX)?;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    Ok((has("message.output_text.logprobs"), has("reasoning.encrypted_content")))
}

fn streams(fields: &mut Fields) -> Result<bool, Problem> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(options) = fields.take("stream_options") {
        Fields::of(options, "stream_options")?.end(&["include_obfuscation"])?;
    }
    Ok(stream)
}

pub(crate) fn conversation(
    fields: &mut Fields,
    manner: &mut Manner,
    kept: &Kept,
) -> Result<Conversation, Problem> {
    let tools = Tools::take_responses(fields)?;
    let messages = items::read(fields, &tools.namespaces, kept)?;
    let mut conversation = Conversation { messages, tools, ..Conversation::default() };
    let effort = match fields.take("reasoning") {
        None => None,
        Some(value) => {
            let mut reasoning = Fields::of(value, "reasoning")?;
            let effort = reasoning.text("effort")?;
            reasoning.end(&["summary", "generate_summary", "context", "mode"])?;
            effort
        }
    };
    thinking(fields, (effort, "reasoning.effort"), (manner, &mut conversation))?;
    Ok(conversation)
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Problem> {
    let off = |value: &Value| value == false;
    let keeps = "stored responses: it keeps none; leave it out or send false";
    fields.refuse("store", keeps, off)?;
    let keeps = "earlier responses: it keeps none; send the whole conversation as input";
    fields.refuse("previous_response_id", keeps, |_| false)?;
    fields.refuse("conversation", "conversations: it keeps none; send all as input", |_| false)?;
    fields.refuse("moderation", MODERATION, |_| false)?;
    fields.refuse("background", "responses in the background", off)?;
    fields.refuse("prompt", "prompts that are kept elsewhere; send instructions", |_| false)?;
    fields.refuse("truncation", "truncation: it never drops input", |value| value == "disabled")
}
