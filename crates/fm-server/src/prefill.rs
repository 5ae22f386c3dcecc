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

/// Who would answer it.
#[derive(Clone, Copy, PartialEq)]
enum Api {
    Chat,
    Responses,
    Messages,
}

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
        let tokens = match body {
            Some(body) => self.asked(body).and_then(|(body, api)| self.beginning(&body, api)),
            None => self.beginning(&Map::new(), Api::Chat),
        };
        let tokens = tokens.map_err(NoRequest)?;
        Ok(tokens.map(|prompt| Request {
            prompt,
            max_tokens: Some(0),
            context: self.context,
            pin: Pin::Prefilled,
            ..Request::default()
        }))
    }

    /// A body that could be answered, and by whom.
    fn asked(&self, body: &[u8]) -> Result<(Map<String, Value>, Api), Problem> {
        let fields = Fields::parse(body)?;
        let tools = fields.peek("tools").and_then(Value::as_array);
        let schemas = tools.into_iter().flatten().any(|tool| !tool["input_schema"].is_null());
        let api = if fields.peek("input").or(fields.peek("instructions")).is_some() {
            Api::Responses
        } else if schemas || fields.peek("system").is_some() {
            Api::Messages
        } else {
            Api::Chat
        };
        let kept = Kept::default();
        let takes = |api, fields| match api {
            Api::Chat => openai::chat::asked(self, &kept, fields).map(drop),
            Api::Responses => {
                openai::responses::asked(self, &kept, fields).and_then(|(ask, _)| ask.map(drop))
            }
            Api::Messages => anthropic::messages::asked(self, &kept, fields).map(drop),
        };
        let api = match takes(api, fields) {
            Ok(()) => api,
            // Some bodies of messages show by a field only what they are.
            Err(_) if api == Api::Chat && takes(Api::Messages, Fields::parse(body)?).is_ok() => {
                Api::Messages
            }
            Err(problem) => return Err(problem),
        };
        Ok((Fields::parse(body)?.all(), api))
    }

    /// The common beginning and a token more, which is not computed.
    fn beginning(&self, body: &Map<String, Value>, api: Api) -> Result<Option<Vec<u32>>, Problem> {
        let mut beginning = self.tokens(body, api, SAID[0])?;
        for said in &SAID[1..] {
            let other = self.tokens(body, api, said)?;
            let common = beginning.iter().zip(&other).take_while(|(a, b)| a == b).count();
            beginning.truncate(common + 1);
        }
        Ok((beginning.len() > 1).then_some(beginning))
    }

    /// The prompt if that is what the user said last.
    fn tokens(&self, body: &Map<String, Value>, api: Api, said: &str) -> Result<Vec<u32>, Problem> {
        let mut body = body.clone();
        let responses = api == Api::Responses;
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
        let mut fields = Fields::of(Value::Object(body), "")?;
        let mut manner = Manner::default();
        let (fields, manner) = (&mut fields, &mut manner);
        let conversation = match api {
            Api::Chat => openai::chat::conversation(fields, manner)?,
            Api::Responses => openai::responses::conversation(fields, manner, &Kept::default())?,
            Api::Messages => anthropic::conversation(fields, manner)?,
        };
        Ok(self.prompt(conversation, &Kept::default())?.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::demo;

    #[test]
    fn what_no_endpoint_would_answer_is_not_taken_in() {
        let model = demo();
        let prefill = |body: &Value| model.prefill(Some(body.to_string().as_bytes()));
        let (hi, rules) = (json!([{"role": "user", "content": "hi"}]), "Be kind. ".repeat(9));
        for (body, said) in [
            (json!({"messages": []}), "messages: it must not be empty"),
            (json!({"prompt": "x"}), "messages: it is required"),
            (json!({"messages": hi, "foo": 1}), "foo: this server does not know this field"),
            (json!({"messages": hi, "temperature": "hot"}), "temperature: it must be a number"),
            (json!({"system": rules, "messages": hi}), "max_tokens: it is required"),
            (json!({"instructions": rules}), "input: it is required"),
        ] {
            let refused = prefill(&body).unwrap_err().to_string();
            assert!(refused.ends_with(said), "{body}: {refused}");
        }
        for body in [
            json!({"messages": [{"role": "system", "content": rules}, hi[0]]}),
            json!({"system": rules, "messages": hi, "max_tokens": 3}),
            json!({"messages": [hi[0], {"role": "assistant", "content": rules}, hi[0]],
                "max_tokens": 3, "thinking": {"type": "disabled"}}),
            json!({"instructions": rules, "input": "hi"}),
        ] {
            let prompt = prefill(&body).unwrap().unwrap().prompt;
            assert!(prompt.len() > 20, "{body}: {}", prompt.len());
        }
    }
}
