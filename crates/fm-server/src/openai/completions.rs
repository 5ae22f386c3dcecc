//! `POST /v1/completions`: texts, continued as they stand.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use fm_text::{Detokenizer, SpecialText, SpecialTokens};
use serde_json::{Value, json};

use super::{
    Ending, KEEP_ALIVE, TOLERATED, chat::stream_options, error, finish_reason,
    legacy_odds::LegacyOdds, refuse, usage,
};
use crate::{
    answer::Piece,
    ask::{Ask, Manner, Odds, TOKENS_MAX, TOP_LOGPROBS_MAX},
    fields::Fields,
    kept::CallIds,
    model::{Model, Prompt},
    places::Work,
    problem::{Problem, Wrong},
    serve::{self, App},
    stream::{self, Encode, Out},
    tally::Requested,
    tokens,
    whole::{Part, whole},
};

/// Tokens that are written if nobody says how many, as in the original.
const MAX_TOKENS_DEFAULT: u64 = 16;

/// Prompts of a request.
const PROMPTS_MAX: usize = 32;

const PATH: &str = "/v1/completions";

/// See [`Manner`]: each is a field of JSON while the response is made.
const ODDS_MAX: usize = 1 << 16;

struct Form {
    app: Arc<App>,
    id: String,
    created_unix: u64,
    model: String,
    stream: bool,
    include_usage: bool,
    odds: bool,
    /// By choice, what comes before the answer: the prompt, if it is wanted again.
    echoes: Vec<String>,
    /// By choice, of a stream.
    choices: Vec<LegacyOdds>,
    ending: Ending,
}

/// Continues texts.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|problem| refuse(&problem))
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (ask, form) = serve::prepare((&app, Work::Answer), request, read).await?;
    let answer = ask.submit(&app, PATH)?;
    if form.stream {
        return Ok(stream::respond(&app, answer, form));
    }
    let (wholes, answer) = whole(answer, form.choices.len()).await?;
    let choices = wholes.into_iter().zip(&form.echoes).enumerate().map(|(index, (whole, echo))| {
        let mut odds = LegacyOdds::behind(echo);
        odds.waiting = whole.odds;
        let text = whole.parts.iter().filter_map(|part| match part {
            Part::Text(_, text) => Some(text.as_str()),
            Part::Call(_) => None,
        });
        let text: String = text.collect();
        let odds =
            if form.odds { odds.write(&form.app.model.tokenizer, &text) } else { Value::Null };
        let text = [echo.as_str(), &text].concat();
        choice((index, &text), &odds, Some(finish_reason(&whole.generated)))
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
    let prompts = prompts(&mut fields, model)?;
    let (stream, include_usage) = stream_options(&mut fields)?;
    let top = fields.count("logprobs", 0..=TOP_LOGPROBS_MAX)?;
    manner.odds = top.map(|top| Odds { top: top as usize, max: ODDS_MAX });
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && top.is_some() {
        let rule = "the prompt has no log-probabilities here; leave out echo or logprobs";
        return Err(Wrong::Rule(rule).at("echo"));
    }
    let mut echoes = Vec::new();
    for prompt in &prompts {
        let echo = if echo { spelled(model, &prompt.tokens)? } else { String::new() };
        echoes.extend(std::iter::repeat_n(echo, manner.choices));
    }
    fields.refuse("suffix", "text that an answer leads to; put it into the prompt", |value| {
        value == ""
    })?;
    let all = |value: &Value| value.as_u64() == Some(manner.choices as u64);
    fields.refuse("best_of", "a choice among answers", all)?;
    let name = fields.name("model")?.unwrap_or_else(|| model.name.clone());
    fields.end(TOLERATED)?;
    let id = serve::new_id("cmpl-");
    let ending = Ending::of(echoes.len());
    let choices = echoes.iter().map(|echo| LegacyOdds::behind(echo)).collect();
    let (app, created_unix, odds) = (Arc::clone(app), serve::now_unix(), top.is_some());
    let model = name;
    let form =
        Form { app, id, created_unix, model, stream, include_usage, odds, echoes, choices, ending };
    Ok((Ask { prompts, manner, ids: CallIds::new("") }, form))
}

/// A text or its tokens, or a list of such.
fn prompts(fields: &mut Fields, model: &Model) -> Result<Vec<Prompt>, Problem> {
    let special = tokens::special(fields)?;
    let value = fields.take("prompt").ok_or_else(|| Wrong::Missing.at("prompt"))?;
    let list = match value {
        Value::Array(list) if list.iter().any(|value| !value.is_number()) => list,
        one => return Ok(vec![prompt(&one, "prompt", (model, special))?]),
    };
    if list.len() > PROMPTS_MAX {
        return Err(Wrong::Many(PROMPTS_MAX).at("prompt"));
    }
    let each = list.iter().enumerate();
    each.map(|(at, value)| prompt(value, &format!("prompt[{at}]"), (model, special))).collect()
}

fn prompt(
    value: &Value,
    field: &str,
    (model, special): (&Model, SpecialTokens),
) -> Result<Prompt, Problem> {
    let fitting = if let Value::String(text) = value {
        model.raw(text, special)
    } else {
        let vocab = model.tokenizer.vocab_len() as u64;
        let token = |value: &Value| value.as_u64().filter(|token| *token < vocab);
        let token = |value: &Value| token(value).map(|token| token as u32);
        let tokens = value.as_array().and_then(|tokens| tokens.iter().map(token).collect());
        let tokens = tokens.ok_or_else(|| Wrong::Kind("a text, or its tokens").at(field))?;
        model.fitting(Prompt::plain(tokens))
    };
    let prompt = fitting.map_err(|problem| problem.of_field(field))?;
    if prompt.tokens.is_empty() { Err(Wrong::Empty.at(field)) } else { Ok(prompt) }
}

/// What tokens spell, special ones too.
fn spelled(model: &Model, tokens: &[u32]) -> Result<String, Problem> {
    let own = tokens.strip_prefix(model.tokenizer.prefix()).unwrap_or(tokens);
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(&model.tokenizer, SpecialText::Keep);
    for token in own {
        text.push_str(detokenizer.push(*token)?);
    }
    text.push_str(detokenizer.finish());
    Ok(text)
}

impl Form {
    /// The odds of the tokens that begin in the next piece of a text.
    fn odds(&mut self, index: usize, text: &str) -> Value {
        let own = &mut self.choices[index];
        if self.odds { own.write(&self.app.model.tokenizer, text) } else { Value::Null }
    }

    /// A piece of a stream, which has a place for the usage if that comes in the end.
    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = self.frame(choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn frame(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created_unix,
            "model": self.model,
            "choices": choices,
        })
    }
}

fn choice((index, text): (usize, &str), odds: &Value, finish: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": odds, "finish_reason": finish})
}

impl Encode for Form {
    fn open(&mut self, out: &mut Out, _: &Requested) {
        for (index, echo) in self.echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty()) {
            out.data(&self.chunk(&json!([choice((index, echo), &Value::Null, None)])));
        }
    }

    fn keep_alive(&mut self, out: &mut Out) {
        out.comment(KEEP_ALIVE);
    }

    fn piece(&mut self, out: &mut Out, index: usize, piece: Piece) {
        let ends = matches!(piece, Piece::Done(_));
        let choice = match piece {
            Piece::Token(odds) => return self.choices[index].waiting.push(odds),
            Piece::Call(..) => return,
            // Whatever the model writes is the text.
            Piece::Text(_, text) => choice((index, &text), &self.odds(index, &text), None),
            Piece::Done(generated) => {
                choice((index, ""), &Value::Null, Some(finish_reason(&generated)))
            }
            Piece::Failed(problem) => return out.data(&error(&problem)),
        };
        let chunk = self.chunk(&json!([choice]));
        if ends {
            self.ending.end(out, chunk);
        } else {
            out.data(&chunk);
        }
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        let usage_chunk = self.include_usage.then(|| self.frame(&json!([])));
        self.ending.close(out, usage_chunk, requested);
    }
}
