//! `POST /tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use fm_text::{Detokenizer, SpecialText, SpecialTokens};
use serde_json::{Value, json};

use crate::{
    fields::Fields,
    openai::refuse,
    places::Work,
    problem::{Problem, Wrong},
    serve::{self, App},
};

/// Fields that change nothing.
const TOLERATED: [&str; 3] = ["model", "session_id", "cache_control"];

/// Tokens of a request to write out.
const TOKENS_MAX: usize = 1 << 18;

/// Bytes of a text to take apart: a tokenizer takes one to three MB in a second, and others wait for it.
const TEXT_MAX: usize = 1 << 20;

/// Text to tokens. `<|im_end|>`, `<think>` and their like are letters, unless `parse_special` is true.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(serve::prepare((&app, Work::Answer), request, tokens_of).await)
}

pub(crate) fn tokens_of(app: &Arc<App>, mut fields: Fields) -> Result<Value, Problem> {
    let text = fields.text("content")?.or(fields.text("prompt")?);
    let text = text.ok_or_else(|| Wrong::Missing.at("content"))?;
    let special = special(&mut fields)?;
    if text.len() > TEXT_MAX {
        return Err(Wrong::Rule("a text of at most 1 MiB is taken").at("content"));
    }
    fields.end(&TOLERATED)?;
    let tokens = app.model.tokenizer.encode(&text, special)?;
    Ok(json!({"tokens": tokens, "count": tokens.len()}))
}

/// What a raw text may do: by itself nothing but spell.
pub(crate) fn special(fields: &mut Fields) -> Result<SpecialTokens, Problem> {
    let parsed = fields.flag("parse_special")?.unwrap_or(false);
    Ok(if parsed { SpecialTokens::Parse } else { SpecialTokens::AsText })
}

/// Tokens to text, special ones written out.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(serve::prepare((&app, Work::Answer), request, text_of).await)
}

pub(crate) fn text_of(app: &Arc<App>, mut fields: Fields) -> Result<Value, Problem> {
    let list = fields.list("tokens", TOKENS_MAX)?;
    let list = list.ok_or_else(|| Wrong::Missing.at("tokens"))?;
    fields.end(&TOLERATED)?;
    let mut detokenizer = Detokenizer::new(&app.model.tokenizer, SpecialText::Keep);
    let mut text = String::new();
    for value in &list {
        let token = value.as_u64().and_then(|token| u32::try_from(token).ok());
        let token = token.ok_or_else(|| Wrong::Kind("a list of tokens").at("tokens"))?;
        text.push_str(detokenizer.push(token)?);
    }
    text.push_str(detokenizer.finish());
    Ok(json!({"content": text}))
}

fn respond(result: Result<Value, Problem>) -> Response {
    match result {
        Ok(value) => axum::Json(value).into_response(),
        Err(problem) => refuse(&problem),
    }
}
