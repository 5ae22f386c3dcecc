//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use fm_engine::generate::Generated;
use fm_text::Channel;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Ending, KEEP_ALIVE, MODERATION, TOLERATED, error, finish_reason, keep_thoughts, message,
    odds::Logprobs, refuse, thinking, usage,
};
use crate::{
    answer::{Answer, CallPiece, Piece, TokenOdds},
    ask::{Ask, Manner, Odds, TOKENS_MAX, TOP_LOGPROBS_MAX},
    fields::Fields,
    kept::{CallIds, Kept},
    model::{Conversation, Model},
    places::Work,
    problem::{Problem, Wrong},
    serve::{self, App},
    stream::{self, Encode, Out},
    structured,
    tally::Requested,
    tools::Tools,
    whole::{Whole, whole},
};

const PATH: &str = "/v1/chat/completions";

/// See [`Manner`]: each is some 80 bytes of the response.
const ODDS_MAX: usize = 1 << 18;

/// What other engines' interfaces call a message that is to be continued.
const CONTINUED: [&str; 2] = ["prefix", "partial"];

/// What the response needs to know of the request.
pub(crate) struct Form {
    app: Arc<App>,
    id: String,
    ids: CallIds,
    created_unix: u64,
    model: String,
    stream: bool,
    include_usage: bool,
    odds: bool,
}

/// Answers a conversation.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|problem| refuse(&problem))
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (ask, form) = serve::prepare((&app, Work::Answer), request, read).await?;
    let choices = ask.manner.choices;
    let answer = ask.submit(&app, PATH)?;
    if form.stream {
        let odds = vec![Vec::new(); choices];
        let stream = ChatStream { form, odds, ending: Ending::of(choices) };
        return Ok(stream::respond(&app, answer, stream));
    }
    let (wholes, answer) = whole(answer, choices).await?;
    Ok(form.completion(&wholes, &answer))
}

/// Reads a request that is not answered.
pub(crate) fn check(app: &Arc<App>, fields: Fields) -> Result<(), Problem> {
    read(app, fields).map(drop)
}

fn read(app: &Arc<App>, fields: Fields) -> Result<(Ask, Form), Problem> {
    let (ask, form) = asked(&app.model, &app.kept, fields)?;
    Ok((ask, form(Arc::clone(app))))
}

/// What a body asks for.
pub(crate) fn asked(
    model: &Model,
    kept: &Kept,
    mut fields: Fields,
) -> Result<(Ask, impl FnOnce(Arc<App>) -> Form + use<>), Problem> {
    let mut manner = Manner::take_openai(&mut fields, model)?;
    let max_tokens = fields.count("max_completion_tokens", 1..=TOKENS_MAX)?;
    let max_tokens = max_tokens.or(fields.count("max_tokens", 1..=TOKENS_MAX)?);
    manner.max_tokens = max_tokens.map(|max| max as usize);
    let odds = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    if top.is_some() && !odds {
        return Err(Wrong::Rule("logprobs must be true for it").at("top_logprobs"));
    }
    manner.odds = odds.then(|| Odds { top: top.unwrap_or(0) as usize, max: ODDS_MAX });
    let conversation = conversation(&mut fields, &mut manner)?;
    structured::with_tools(&mut manner, &conversation, model)?;
    let (stream, include_usage) = stream_options(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    let name = fields.name("model")?.unwrap_or_else(|| model.name.clone());
    fields.end(TOLERATED)?;
    let (id, ids) = (serve::new_id("chatcmpl-"), CallIds::new("call_"));
    let prompts = vec![model.prompt(conversation, kept)?];
    let ask = Ask { prompts, manner, ids: ids.clone() };
    let (created_unix, model) = (serve::now_unix(), name);
    let form = move |app| Form { app, id, ids, created_unix, model, stream, include_usage, odds };
    Ok((ask, form))
}

/// `stream` and `stream_options`.
pub(super) fn stream_options(fields: &mut Fields) -> Result<(bool, bool), Problem> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.take("stream_options") else { return Ok((stream, false)) };
    if !stream {
        return Err(Wrong::Rule("stream must be true for it").at("stream_options"));
    }
    let mut options = Fields::of(options, "stream_options")?;
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.end(&["include_obfuscation"])?;
    Ok((stream, include_usage))
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Problem> {
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    let idle = |value: &Value| value == "none" || value == "auto";
    fields.refuse("functions", "functions; use tools", empty)?;
    fields.refuse("function_call", "function_call; use tool_choice", idle)?;
    fields.refuse("modalities", "anything but text", |value| *value == json!(["text"]))?;
    fields.refuse("moderation", MODERATION, |_| false)?;
    fields.refuse("audio", "audio", |_| false)?;
    fields.refuse("web_search_options", "searches", |_| false)
}

/// Other engines go on with a last message that says so; here it would be followed by a turn of its own.
fn refuse_continued(messages: &[Value]) -> Result<(), Problem> {
    let last = messages.last().filter(|last| last["role"] == "assistant");
    let said = last.and_then(|last| CONTINUED.into_iter().find(|name| last[name] == true));
    said.map_or(Ok(()), |name| {
        let field = format!("messages[{}].{name}", messages.len() - 1);
        Err(Wrong::Unsupported("the continuation of an assistant's message").at(field))
    })
}

pub(crate) fn conversation(
    fields: &mut Fields,
    manner: &mut Manner,
) -> Result<Conversation, Problem> {
    let list = fields.messages()?;
    refuse_continued(&list)?;
    let messages = list.into_iter().enumerate().map(|(at, value)| message::read(value, at));
    let mut conversation =
        Conversation { messages: messages.collect::<Result<_, _>>()?, ..Conversation::default() };
    let effort = fields.text("reasoning_effort")?;
    let (effort, switch) = of_vendors(fields, effort, &mut conversation)?;
    thinking(fields, (effort, "reasoning_effort"), (manner, &mut conversation))?;
    conversation.enable_thinking = conversation.enable_thinking.or(switch);
    conversation.tools = Tools::take_openai(fields)?;
    Ok(conversation)
}

/// Whether the model shall think, in the words of vendors whose packages speak this interface: `thinking` of `DeepSeek`
/// and GLM, `reasoning` of `OpenRouter`. What is said in OpenAI's words goes before.
fn of_vendors(
    fields: &mut Fields,
    effort: Option<String>,
    conversation: &mut Conversation,
) -> Result<(Option<String>, Option<bool>), Problem> {
    let (mut own, mut switch) = (None, None);
    if let Some(value) = fields.take("thinking") {
        let mut thinking = Fields::of(value, "thinking")?;
        switch = match thinking.text("type")?.as_deref() {
            Some("enabled" | "adaptive" | "auto") => Some(true),
            Some("disabled") => Some(false),
            _ => return Err(Wrong::Kind("enabled or disabled").at("thinking.type")),
        };
        keep_thoughts(&mut thinking, conversation)?;
        thinking.end(&[])?;
    }
    if let Some(value) = fields.take("reasoning") {
        let mut reasoning = Fields::of(value, "reasoning")?;
        (own, switch) = (reasoning.text("effort")?, reasoning.flag("enabled")?.or(switch));
        reasoning.end(&["summary"])?;
    }
    Ok((effort.or(own), switch))
}

/// The delta of a piece of a call.
fn call_delta(id: &str, call: usize, piece: CallPiece) -> Option<Value> {
    let delta = match piece {
        CallPiece::Begin(name) => json!({
            "index": call,
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }),
        CallPiece::Arguments(json) => json!({"index": call, "function": {"arguments": json}}),
        CallPiece::End | CallPiece::Broken => return None,
    };
    Some(json!({"tool_calls": [delta]}))
}

impl Form {
    fn frame(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_unix,
            "model": self.model,
            "choices": choices,
        })
    }

    fn odds<'o>(&'o self, odds: &'o [TokenOdds]) -> Option<Logprobs<'o>> {
        self.odds.then(|| Logprobs::new(&self.app.model.tokenizer, odds))
    }

    fn completion(&self, wholes: &[Whole], answer: &Answer) -> Response {
        let choices = wholes.iter().enumerate().map(|(index, whole)| {
            let Generated { text, thinking, calls, .. } = whole.generated.as_ref();
            let text = text.as_ref().filter(|text| calls.is_empty() || !text.is_empty());
            let mut message = json!({"role": "assistant", "content": text, "refusal": null});
            if !calls.is_empty() {
                let calls = calls.iter().map(|call| {
                    json!({
                        "id": self.ids.id(index, call.index),
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    })
                });
                message["tool_calls"] = calls.collect();
            }
            if let Some(thinking) = thinking {
                message["reasoning_content"] = thinking.as_str().into();
            }
            Choice {
                index,
                message,
                logprobs: self.odds(&whole.odds),
                finish_reason: finish_reason(&whole.generated),
            }
        });
        let completion = Completion {
            id: &self.id,
            object: "chat.completion",
            created: self.created_unix,
            model: &self.model,
            choices: choices.collect(),
            usage: usage(&answer.tally.requested),
            timings: answer.tally.requested.timings(),
        };
        axum::Json(completion).into_response()
    }
}

/// A whole answer.
#[derive(Serialize)]
struct Completion<'c> {
    id: &'c str,
    object: &'static str,
    created: u64,
    model: &'c str,
    choices: Vec<Choice<'c>>,
    usage: Value,
    timings: Value,
}

#[derive(Serialize)]
struct Choice<'c> {
    index: usize,
    message: Value,
    logprobs: Option<Logprobs<'c>>,
    finish_reason: &'static str,
}

/// The events of a streamed answer.
struct ChatStream {
    form: Form,
    /// By choice: tokens of the text that comes next.
    odds: Vec<Vec<TokenOdds>>,
    ending: Ending,
}

impl ChatStream {
    fn chunk(&self, (index, delta): (usize, &Value), odds: &Value, finish: Option<&str>) -> Value {
        let choice = json!([
            {"index": index, "delta": delta, "logprobs": odds, "finish_reason": finish}
        ]);
        let mut chunk = self.form.frame("chat.completion.chunk", &choice);
        if self.form.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Encode for ChatStream {
    fn open(&mut self, out: &mut Out, _: &Requested) {
        for index in 0..self.odds.len() {
            let delta = json!({"role": "assistant", "content": ""});
            out.data(&self.chunk((index, &delta), &Value::Null, None));
        }
    }

    fn keep_alive(&mut self, out: &mut Out) {
        out.comment(KEEP_ALIVE);
    }

    fn piece(&mut self, out: &mut Out, index: usize, piece: Piece) {
        match piece {
            Piece::Token(odds) => self.odds[index].push(odds),
            Piece::Call(call, piece) => {
                let id = self.form.ids.id(index, call);
                if let Some(delta) = call_delta(&id, call, piece) {
                    out.data(&self.chunk((index, &delta), &Value::Null, None));
                }
            }
            Piece::Text(Channel::Thinking, text) => {
                let delta = json!({"reasoning_content": text});
                out.data(&self.chunk((index, &delta), &Value::Null, None));
            }
            Piece::Text(Channel::Answer, text) => {
                let odds = std::mem::take(&mut self.odds[index]);
                let delta = json!({"content": text});
                let odds = json!(self.form.odds(&odds));
                out.data(&self.chunk((index, &delta), &odds, None));
            }
            Piece::Done(generated) => {
                let finish = Some(finish_reason(&generated));
                let chunk = self.chunk((index, &json!({})), &Value::Null, finish);
                self.ending.end(out, chunk);
            }
            Piece::Failed(problem) => out.data(&error(&problem)),
        }
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        let usage_chunk =
            self.form.include_usage.then(|| self.form.frame("chat.completion.chunk", &json!([])));
        self.ending.close(out, usage_chunk, requested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_earlier_thoughts_are_told_is_the_templates_business() {
        let read = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut fields = Fields::of(body, "").unwrap();
            conversation(&mut fields, &mut Manner::default())
        };
        let said = |more: Value| Value::Object(read(more).unwrap().variables);
        let glm = json!({"thinking": {"type": "enabled", "clear_thinking": false}});
        assert_eq!(said(glm), json!({"clear_thinking": false}));
        let words = json!({"clear_thinking": true, "preserve_thinking": false});
        assert_eq!(said(json!({"chat_template_kwargs": words})), words);
        assert_eq!(said(json!({"enable_thinking": true})), json!({}));
        let wrong = read(json!({"chat_template_kwargs": {"clear_thinking": "no"}})).unwrap_err();
        assert_eq!(wrong.field(), Some("chat_template_kwargs.clear_thinking"));
    }
}
