//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use fm_engine::generate::{Call, FinishReason, Generated};
use fm_text::Channel;
use serde_json::{Value, json};

use super::{TOLERATED, conversation, error, refuse, refuse_unsupported};
use crate::{
    answer::{CallPiece, Piece},
    ask::{Ask, Manner, TOKENS_MAX, stops},
    count::Waits,
    fields::{Fields, plain},
    kept::{CallIds, Kept},
    model::{Conversation, Model},
    places::Work,
    problem::{Problem, Wrong},
    serve::{self, App},
    stream::{self, Encode, Out},
    structured,
    tally::Requested,
    whole::{Part, Whole, whole},
};

const PATH: &str = "/v1/messages";

/// Thinking is not signed, but clients leave out of the history what has no signature.
const SIGNATURE: &str = "unsigned";

/// What the response needs to know of the request.
pub(crate) struct Form {
    id: String,
    ids: CallIds,
    model: String,
    stream: bool,
    stop: Vec<String>,
}

/// Answers a conversation.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|problem| refuse(&problem))
}

/// Counts the tokens of a conversation, also of one that is too long, or not anybody's turn to answer.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request) -> Response {
    let asks = Arc::new(());
    let waits = Arc::downgrade(&asks);
    let read = move |app: &Arc<App>, fields| tokens_of(app, fields, &waits);
    match serve::prepare((&app, Work::Count), request, read).await {
        Ok(tokens) => axum::Json(json!({"input_tokens": tokens})).into_response(),
        Err(problem) => refuse(&problem),
    }
}

pub(crate) fn tokens_of(
    app: &Arc<App>,
    mut fields: Fields,
    waits: &Waits,
) -> Result<usize, Problem> {
    let manner = super::manner(&mut fields, &app.model)?;
    let (conversation, ..) = read_conversation(&app.model, fields, manner)?;
    app.model.count(conversation, &app.kept, waits)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (ask, form) = serve::prepare((&app, Work::Answer), request, read).await?;
    let answer = ask.submit(&app, PATH)?;
    if form.stream {
        let stream = MessageStream { form, block: None, blocks: 0, end: None };
        return Ok(stream::respond(&app, answer, stream));
    }
    let (mut wholes, answer) = whole(answer, 1).await?;
    let Whole { generated, parts, .. } = wholes.remove(0);
    let Generated { calls, finish, .. } = *generated;
    let content: Value = parts.iter().filter_map(|part| form.block(part, &calls)).collect();
    let requested = &answer.tally.requested;
    let mut message = form.message(&content, &usage(requested));
    form.stop_fields(&mut message, finish, !calls.is_empty());
    message["timings"] = requested.timings();
    Ok(axum::Json(message).into_response())
}

/// Reads a request that is not answered.
pub(crate) fn check(app: &Arc<App>, fields: Fields) -> Result<(), Problem> {
    read(app, fields).map(drop)
}

fn read(app: &Arc<App>, fields: Fields) -> Result<(Ask, Form), Problem> {
    asked(&app.model, &app.kept, fields)
}

/// What a body asks for.
pub(crate) fn asked(own: &Model, kept: &Kept, mut fields: Fields) -> Result<(Ask, Form), Problem> {
    let mut manner = super::manner(&mut fields, own)?;
    // Of none, the prompt is taken in for whoever asks next.
    let max_tokens = fields.count("max_tokens", 0..=TOKENS_MAX)?;
    let max_tokens = max_tokens.ok_or_else(|| Wrong::Missing.at("max_tokens"))?;
    manner.max_tokens = Some(max_tokens as usize);
    manner.stop = stops(&mut fields, "stop_sequences")?;
    let stop = manner.stop.clone();
    let stream = fields.flag("stream")?.unwrap_or(false);
    let (conversation, manner, model) = read_conversation(own, fields, manner)?;
    if conversation.messages.last().is_some_and(|message| message.role == "assistant") {
        let wrong = Wrong::Unsupported("the continuation of an assistant's message");
        return Err(wrong.at("messages"));
    }
    let prompts = vec![own.prompt(conversation, kept)?];
    let ids = CallIds::new("toolu_");
    let ask = Ask { prompts, manner, ids: ids.clone() };
    Ok((ask, Form { id: serve::new_id("msg_"), ids, model, stream, stop }))
}

/// Reads what messages and counts have in common; with the model's name.
fn read_conversation(
    own: &Model,
    mut fields: Fields,
    mut manner: Manner,
) -> Result<(Conversation, Manner, String), Problem> {
    let mut conversation = conversation(&mut fields, &mut manner)?;
    manner.left_out = std::mem::take(&mut conversation.tools.left_out);
    manner.constraint = structured::take_anthropic(&mut fields, &own.grammars)?;
    structured::with_tools(&mut manner, &conversation, own)?;
    refuse_unsupported(&mut fields)?;
    let name = fields.name("model")?.unwrap_or_else(|| own.name.clone());
    fields.end(TOLERATED)?;
    Ok((conversation, manner, name))
}

fn usage(requested: &Requested) -> Value {
    let Requested { prompt_tokens, cached_tokens, written_tokens, thinking_tokens, .. } = requested;
    json!({
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": written_tokens,
        "output_tokens_details": {"thinking_tokens": thinking_tokens},
    })
}

impl Form {
    fn message(&self, content: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    /// A block of the content; nothing of a text that is none.
    fn block(&self, part: &Part, calls: &[Call]) -> Option<Value> {
        Some(match part {
            Part::Text(_, text) if text.is_empty() => return None,
            Part::Text(Channel::Thinking, text) => {
                json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
            }
            Part::Text(Channel::Answer, text) => json!({"type": "text", "text": text}),
            Part::Call(index) => {
                let call = calls.iter().find(|call| call.index == *index)?;
                let input = plain(call.arguments.as_bytes()).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": self.ids.id(0, *index), "name": call.name, "input": input})
            }
        })
    }

    fn stop_fields(&self, into: &mut Value, finish: FinishReason, calls: bool) {
        into["stop_reason"] = match finish {
            // A stop sequence may follow a call, which is there all the same.
            FinishReason::Stop | FinishReason::StopString(_) if calls => "tool_use",
            FinishReason::Stop | FinishReason::Cancelled => "end_turn",
            FinishReason::StopString(at) => {
                into["stop_sequence"] = self.stop[at].as_str().into();
                "stop_sequence"
            }
            FinishReason::Length
            | FinishReason::Repetition
            | FinishReason::Noise
            | FinishReason::Deadline
            | FinishReason::Grammar => "max_tokens",
            FinishReason::Context => "model_context_window_exceeded",
        }
        .into();
    }
}

/// The events of a streamed answer.
struct MessageStream {
    form: Form,
    /// The block that is open.
    block: Option<Block>,
    /// Blocks that have been opened.
    blocks: usize,
    /// Why it ended, and whether it calls tools.
    end: Option<(FinishReason, bool)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Block {
    Text(Channel),
    Call,
}

impl MessageStream {
    /// Opens the block that a text belongs to, and closes the one before.
    fn enter(&mut self, out: &mut Out, channel: Channel) {
        if self.block == Some(Block::Text(channel)) {
            return;
        }
        let block = match channel {
            Channel::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Channel::Answer => json!({"type": "text", "text": ""}),
        };
        self.start(out, Block::Text(channel), &block);
    }

    fn start(&mut self, out: &mut Out, block: Block, content: &Value) {
        self.leave(out);
        out.named(&json!({
            "type": "content_block_start", "index": self.blocks, "content_block": content,
        }));
        self.block = Some(block);
        self.blocks += 1;
    }

    fn leave(&mut self, out: &mut Out) {
        let Some(block) = self.block.take() else { return };
        if block == Block::Text(Channel::Thinking) {
            self.delta(out, &json!({"type": "signature_delta", "signature": SIGNATURE}));
        }
        out.named(&json!({"type": "content_block_stop", "index": self.blocks - 1}));
    }

    fn call(&mut self, out: &mut Out, call: usize, piece: CallPiece) {
        match piece {
            CallPiece::Begin(name) => {
                let id = self.form.ids.id(0, call);
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.start(out, Block::Call, &block);
            }
            CallPiece::Arguments(json) => {
                self.delta(out, &json!({"type": "input_json_delta", "partial_json": json}));
            }
            CallPiece::End | CallPiece::Broken => self.leave(out),
        }
    }

    fn delta(&self, out: &mut Out, delta: &Value) {
        let index = self.blocks - 1;
        out.named(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }
}

impl Encode for MessageStream {
    fn open(&mut self, out: &mut Out, requested: &Requested) {
        let message = self.form.message(&json!([]), &usage(requested));
        out.named(&json!({"type": "message_start", "message": message}));
        self.keep_alive(out);
    }

    fn keep_alive(&mut self, out: &mut Out) {
        out.named(&json!({"type": "ping"}));
    }

    fn piece(&mut self, out: &mut Out, _: usize, piece: Piece) {
        match piece {
            Piece::Token(_) => {}
            Piece::Call(call, piece) => self.call(out, call, piece),
            Piece::Text(channel, text) => {
                self.enter(out, channel);
                let delta = match channel {
                    Channel::Thinking => json!({"type": "thinking_delta", "thinking": text}),
                    Channel::Answer => json!({"type": "text_delta", "text": text}),
                };
                self.delta(out, &delta);
            }
            Piece::Done(generated) => {
                self.end = Some((generated.finish, !generated.calls.is_empty()));
            }
            Piece::Failed(problem) => out.named(&error(&problem)),
        }
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        self.leave(out);
        let mut delta = json!({"stop_reason": null, "stop_sequence": null});
        let (finish, calls) = self.end.unwrap_or((FinishReason::Stop, false));
        self.form.stop_fields(&mut delta, finish, calls);
        let usage = usage(requested);
        out.named(&json!({
            "type": "message_delta", "delta": delta, "usage": usage, "timings": requested.timings(),
        }));
        out.named(&json!({"type": "message_stop"}));
    }
}
