//! What handlers know of the model: its words.

use std::sync::Arc;

use fm_engine::sampler::Sampling;
use fm_text::{
    ChatTemplate, Message, RenderRequest, SpecialTokens, ThinkingState, ThinkingTags, Tokenizer,
};
use serde_json::{Map, Value};

use crate::problem::Problem;

/// See the module.
#[derive(Debug)]
pub struct Model {
    /// The name that `/v1/models` tells.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template; a base model has none.
    pub template: Option<ChatTemplate>,
    /// Its own way of choosing words.
    pub sampling: Sampling,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Tokens of a session.
    pub context: u32,
    /// The system prompt of conversations that have none.
    pub system: Option<String>,
}

/// A prompt as the model sees it.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) thinking: ThinkingState,
}

/// A conversation, and how it shall go on.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) enable_thinking: Option<bool>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
}

impl Model {
    /// Renders a conversation. What its messages spell never becomes a special token.
    pub(crate) fn prompt(&self, mut conversation: Conversation) -> Result<Prompt, Problem> {
        let template = self.template.as_ref().ok_or(Problem::NoTemplate)?;
        let messages = &mut conversation.messages;
        let has_system = messages.iter().any(|message| message.role == "system");
        if let (Some(system), false) = (&self.system, has_system) {
            messages.insert(0, Message::new("system", system.as_str()));
        }
        messages.iter_mut().for_each(|message| self.guard(message));
        conversation.variables.values_mut().for_each(|value| self.guard_value(value));
        let rendered = template.render(&RenderRequest {
            enable_thinking: conversation.enable_thinking,
            variables: Some(&conversation.variables),
            ..RenderRequest::new(messages)
        })?;
        let tokens = self.tokenizer.encode(&rendered, SpecialTokens::ParseTemplate)?;
        let thinking = ThinkingTags::new("<think>", "</think>")?.state_at_end_of(&rendered);
        self.fitting(Prompt { tokens, thinking })
    }

    /// A text that the model continues as it stands.
    pub(crate) fn raw(&self, text: &str) -> Result<Prompt, Problem> {
        let tokens = self.tokenizer.encode(text, SpecialTokens::AsText)?;
        let tokens = [self.tokenizer.prefix(), &tokens].concat();
        self.fitting(Prompt { tokens, thinking: ThinkingState::None })
    }

    /// Refuses a prompt behind which there is no room.
    pub(crate) fn fitting(&self, prompt: Prompt) -> Result<Prompt, Problem> {
        let (tokens, context) = (prompt.tokens.len(), self.context);
        if tokens > context as usize {
            return Err(Problem::TooLong { tokens, context });
        }
        Ok(prompt)
    }

    fn guard(&self, message: &mut Message) {
        let texts = [&mut message.role].into_iter();
        let texts = texts.chain(&mut message.reasoning_content).chain(&mut message.name);
        for text in texts.chain(&mut message.tool_call_id) {
            *text = self.tokenizer.guard(text).into_owned();
        }
        let values = message.content.iter_mut().chain(&mut message.tool_calls);
        values.chain(message.extra.values_mut()).for_each(|value| self.guard_value(value));
    }

    fn guard_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.tokenizer.guard(text).into_owned(),
            Value::Array(list) => list.iter_mut().for_each(|value| self.guard_value(value)),
            Value::Object(map) => {
                let entries = std::mem::take(map).into_iter().map(|(key, mut value)| {
                    self.guard_value(&mut value);
                    (self.tokenizer.guard(&key).into_owned(), value)
                });
                *map = entries.collect();
            }
            _ => {}
        }
    }
}
