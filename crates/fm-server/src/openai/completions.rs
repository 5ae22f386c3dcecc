//! `POST /v1/completions`: a text, continued as it stands.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};

use serde_json::{Value, json};

use super::{TOLERATED, chat::stream_options, error, finish_reason, refuse, usage};
use crate::{
    answer::{Piece, Requested},
    ask::{Ask, Manner, TOKENS_MAX},
    fields::Fields,
    kept::CallIds,
    model::{Model, Prompt},
    problem::{Problem, Wrong},
    serve::{self, App},
    stream::{self, Encode, Out},
};

/// Tokens that are written if nobody says how many, as in the original.
const MAX_TOKENS_DEFAULT: u64 = 16;

const PATH: &str = "/v1/completions";

struct Form {
    id: String,
    model: String,
    stream: bool,
    include_usage: bool,
}

/// Continues a text.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    match answer(app, request).await {
        Ok(response) => response,
        Err(problem) => refuse(&problem),
    }
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (ask, form) = serve::prepare(&app, request, read).await?;
    let choices = ask.manner.choices;
    let answer = ask.submit(&app, PATH)?;
    if form.stream {
        return Ok(stream::respond(answer, form));
    }
    let (wholes, answer) = serve::whole(answer, choices).await?;
    let choices = wholes.iter().enumerate().map(|(index, whole)| {
        let finish = finish_reason(&whole.generated);
        choice((index, &whole.text), Some(finish))
    });
    let mut completion = form.frame(&choices.collect());
    completion["usage"] = usage(&answer.tally.requested);
    completion["timings"] = answer.tally.requested.timings();
    Ok(axum::Json(completion).into_response())
}

/// Reads a request that is not answered.
pub(crate) fn check(app: &Arc<App>, fields: Fields) -> Result<(), Problem> {
    read(app, fields).map(drop)
}

fn read(app: &Arc<App>, mut fields: Fields) -> Result<(Ask, Form), Problem> {
    let model = &app.model;
    let mut manner = Manner::take_openai(&mut fields, model)?;
    let max_tokens = fields.count("max_tokens", 1..=TOKENS_MAX)?.unwrap_or(MAX_TOKENS_DEFAULT);
    manner.max_tokens = Some(max_tokens as usize);
    let mut prompt = prompt(&mut fields, model)?;
    if manner.constraint.is_some() {
        // Whatever is written is the text, so that the grammar begins at once.
        prompt.thinking = fm_text::ThinkingState::Closed;
    }
    let (stream, include_usage) = stream_options(&mut fields)?;
    fields.refuse("logprobs", "logprobs here; chat completions have them", |_| false)?;
    fields.refuse("suffix", "text to end in", |value| value == "")?;
    fields.refuse("echo", "the prompt again", |value| value == false)?;
    fields.refuse("best_of", "a choice among answers", |value| *value == 1)?;
    let name = fields.text("model")?.unwrap_or_else(|| model.name.clone());
    fields.end(TOLERATED)?;
    let id = serve::new_id("cmpl-");
    let form = Form { id, model: name, stream, include_usage };
    Ok((Ask { prompt, manner, ids: CallIds::new("") }, form))
}

/// A string, a list of one, or tokens.
fn prompt(fields: &mut Fields, model: &Model) -> Result<Prompt, Problem> {
    let refuse = || Wrong::Kind("one string, or the tokens of one").at("prompt");
    match fields.take("prompt") {
        None => Err(Wrong::Missing.at("prompt")),
        Some(Value::String(text)) => model.raw(&text),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => model.raw(text),
            tokens => {
                let vocab = model.tokenizer.vocab_len() as u64;
                let token = |value: &Value| value.as_u64().filter(|token| *token < vocab);
                let tokens = tokens.iter().map(|value| token(value).map(|token| token as u32));
                let tokens = tokens.collect::<Option<Vec<_>>>().ok_or_else(refuse)?;
                model.fitting(Prompt::plain(tokens))
            }
        },
        Some(_) => Err(refuse()),
    }
}

impl Form {
    fn frame(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": serve::now_unix(),
            "model": self.model,
            "choices": choices,
        })
    }
}

fn choice((index, text): (usize, &str), finish: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish})
}

impl Encode for Form {
    fn open(&mut self, _: &mut Out, _: &Requested) {}

    fn piece(&mut self, out: &mut Out, index: usize, piece: Piece) {
        let choice = match piece {
            Piece::Token(_) | Piece::Call(..) => return,
            // Whatever the model writes is the text.
            Piece::Text(_, text) => choice((index, &text), None),
            Piece::Done(generated) => choice((index, ""), Some(finish_reason(&generated))),
            Piece::Failed(problem) => return out.data(&error(&problem)),
        };
        out.data(&self.frame(&json!([choice])));
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        if self.include_usage {
            let mut chunk = self.frame(&json!([]));
            chunk["usage"] = usage(requested);
            chunk["timings"] = requested.timings();
            out.data(&chunk);
        }
        out.text("[DONE]");
    }
}
