//! Prompts that are computed before the first client comes: what all conversations with the same system
//! message and tools begin with.

use fm_engine::{generate::Request, schedule::Pin};
use serde_json::{Map, Value, json};

use crate::{
    anthropic,
    ask::Manner,
    fields::Fields,
    kept::Kept,
    model::Model,
    openai,
    problem::{Problem, Wrong},
};

/// What users might say, as unlike as can be: what the prompts have in common is not theirs.
const SAID: [&str; 3] = ["A", "1 + 1", "\n\n<x>"];

/// Why a prompt cannot be computed beforehand.
#[derive(Debug, thiserror::Error)]
#[error("this is no request that could be answered here: {0}")]
pub struct NoRequest(Problem);

impl Model {
    /// What a client's request, a body for chat completions, responses or messages, has in common with all that
    /// differ from it in the last user's message and what follows; without one, the system message of
    /// conversations that have none. Nothing if that is nothing.
    ///
    /// # Errors
    /// If the request could not be answered.
    pub fn prefill(&self, body: Option<&[u8]>) -> Result<Option<Request>, NoRequest> {
        let tokens = self.beginning(body.unwrap_or(b"{}")).map_err(NoRequest)?;
        Ok(tokens.map(|prompt| Request {
            prompt,
            max_tokens: Some(0),
            context: self.context,
            pin: Pin::Prefilled,
            ..Request::default()
        }))
    }

    /// The common beginning and a token more, which is not computed.
    fn beginning(&self, body: &[u8]) -> Result<Option<Vec<u32>>, Problem> {
        let body: Value =
            serde_json::from_slice(body).map_err(|error| Problem::Body { source: Some(error) })?;
        let Value::Object(body) = body else { return Err(Problem::Body { source: None }) };
        let mut beginning = self.tokens(&body, SAID[0])?;
        for said in &SAID[1..] {
            let other = self.tokens(&body, said)?;
            let common = beginning.iter().zip(&other).take_while(|(a, b)| a == b).count();
            beginning.truncate(common + 1);
        }
        Ok((beginning.len() > 1).then_some(beginning))
    }

    /// The prompt if that is what the user said last.
    fn tokens(&self, body: &Map<String, Value>, said: &str) -> Result<Vec<u32>, Problem> {
        let mut body = body.clone();
        let responses = body.contains_key("input") || body.contains_key("instructions");
        let field = if responses { "input" } else { "messages" };
        let messages = body.entry(field).or_insert_with(|| json!([]));
        if responses && messages.is_string() {
            // The short form of a user's message.
            *messages = json!([]);
        }
        let list = messages.as_array_mut().ok_or_else(|| Wrong::Kind("a list").at(field))?;
        let last = list.iter().rposition(|message| message["role"] == "user");
        list.truncate(last.unwrap_or(list.len()));
        list.push(json!({"role": "user", "content": said}));
        let tools = body.get("tools").and_then(Value::as_array);
        let anthropic = body.contains_key("system")
            || tools.is_some_and(|tools| tools.iter().any(|tool| !tool["input_schema"].is_null()));
        let mut fields = Fields::of(Value::Object(body), "")?;
        let mut manner = Manner::default();
        let conversation = if responses {
            openai::responses::conversation(&mut fields, &mut manner, &Kept::default())?
        } else if anthropic {
            anthropic::conversation(&mut fields, &mut manner)?
        } else {
            openai::chat::conversation(&mut fields, &mut manner)?
        };
        Ok(self.prompt(conversation, &Kept::default())?.tokens)
    }
}
