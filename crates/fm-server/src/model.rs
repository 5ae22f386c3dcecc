//! What handlers know of the model: its words.

use std::{collections::HashMap, sync::Arc};

use fm_engine::{grammar::Grammars, sampler::Sampling};
use fm_text::{
    AnswerForm, Channels, ChatTemplate, Definitions, Dialect, Message, RenderRequest,
    SpecialTokens, ThinkingState, ThinkingTags, Tokenizer, thinking,
};
use serde_json::{Map, Value};

use crate::{
    kept::Kept,
    late_system,
    problem::Problem,
    tools::{Choice, Tools, call_one_by_one, calls, place_results},
    turns,
};

/// Texts of more bytes for every token of the context are looked at piece by piece first.
const LETTERS_PER_TOKEN: usize = 8;
const PIECE_BYTES: usize = 64 << 10;

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
    /// Its vocabulary, for answers that have a grammar.
    pub grammars: Arc<Grammars>,
    /// Whether texts are continued from marks only, so that it is worth knowing where turns begin.
    pub marks_turns: bool,
}

/// A prompt as the model sees it.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Where turns of the user begin, as far as that is known.
    pub(crate) turns: Vec<u32>,
    pub(crate) thinking: ThinkingState,
    pub(crate) answer: AnswerForm,
    /// What it has begun the answer with.
    pub(crate) opening: String,
    /// Whether what follows is an answer, and does not go on with the prompt.
    pub(crate) is_turn: bool,
    pub(crate) calls_max: Option<usize>,
    /// Tokens that must not come.
    pub(crate) banned: Vec<u32>,
}

impl Prompt {
    /// Tokens after which nothing but text is expected.
    pub(crate) fn plain(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            turns: Vec::new(),
            thinking: ThinkingState::Absent,
            answer: AnswerForm::default(),
            opening: String::new(),
            is_turn: false,
            calls_max: None,
            banned: Vec::new(),
        }
    }
}

/// A conversation, and how it shall go on.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) enable_thinking: Option<bool>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    pub(crate) tools: Tools,
}

impl Model {
    /// The prompt of a conversation that shall be answered.
    pub(crate) fn prompt(
        &self,
        conversation: Conversation,
        kept: &Kept,
    ) -> Result<Prompt, Problem> {
        let mut places = self.marks_turns.then(Vec::new);
        let (rendered, mut prompt) = self.render(conversation, kept, places.as_mut())?;
        prompt.tokens = self.encode(&rendered, SpecialTokens::ParseTemplate)?;
        let mut prompt = self.fitting(prompt)?;
        let of = (prompt.tokens.as_slice(), rendered.as_str());
        prompt.turns = turns::begin(&self.tokenizer, of, &places.unwrap_or_default());
        Ok(prompt)
    }

    /// The text of a conversation, and all of its prompt but the tokens; in `places`, if somebody wants to know,
    /// where words of the user are. What its messages spell never becomes a control token.
    pub(crate) fn render(
        &self,
        mut conversation: Conversation,
        kept: &Kept,
        places: Option<&mut Vec<usize>>,
    ) -> Result<(String, Prompt), Problem> {
        let template = self.template.as_ref().ok_or(Problem::NoTemplate)?;
        let tools = std::mem::take(&mut conversation.tools);
        let dialect = tools.dialect(template)?;
        let messages = &mut conversation.messages;
        let written = self.prepare(messages, template, kept);
        let mut list = tools.list.clone();
        let values = conversation.variables.values_mut().chain(&mut list);
        values.for_each(|value| self.tokenizer.guard_value(value));
        let forced = tools.choice.is_forced();
        let render = |messages: &[Message]| {
            template.render(&RenderRequest {
                tools: &list,
                written: Some(&written),
                enable_thinking: if forced { Some(false) } else { conversation.enable_thinking },
                variables: Some(&conversation.variables),
                ..RenderRequest::new(messages)
            })
        };
        let mut rendered = render(messages)?;
        if let Some(places) = places {
            *places = turns::of_the_user(&rendered, messages, render);
        }
        let tags = ThinkingTags::new(thinking::OPEN, thinking::CLOSE)?;
        let mut prompt = Prompt::plain(Vec::new());
        prompt.thinking = tags.state_at_end_of(&rendered);
        prompt.is_turn = true;
        prompt.calls_max = tools.calls_max;
        prompt.answer.dialect = dialect;
        match &tools.choice {
            Choice::None => {
                let mark = dialect.and_then(Dialect::first_mark).filter(|_| !list.is_empty());
                prompt.banned.extend(mark.and_then(|mark| self.tokenizer.token_id(mark)));
            }
            _ if list.is_empty() => {}
            choice => {
                prompt.answer.calls = Some(Arc::new(Definitions::new(&tools.list)));
                prompt.opening = choice.opening(dialect);
            }
        }
        // Who was told not to think shall not begin to.
        if conversation.enable_thinking == Some(false) {
            prompt.banned.extend(self.tokenizer.token_id(thinking::OPEN));
            if let Some(channels) = dialect.and_then(Dialect::channels).filter(|_| !forced) {
                let calls = prompt.answer.calls.is_some();
                unthinking(channels, calls, (&mut rendered, &mut prompt.opening));
            }
        }
        // There are templates that begin a thought whatever they are told.
        let shall_not = forced || conversation.enable_thinking == Some(false);
        if shall_not && prompt.thinking == ThinkingState::Open {
            rendered.push_str(thinking::CLOSE_LINES);
            prompt.thinking = ThinkingState::Closed;
            // Nor end what it may believe to be one still.
            prompt.banned.extend(self.tokenizer.token_id(thinking::CLOSE));
        }
        rendered.push_str(&prompt.opening);
        Ok((rendered, prompt))
    }

    /// Makes messages such that the template takes them and they spell no control token. Gives the arguments of their
    /// calls as the model wrote them.
    fn prepare(
        &self,
        messages: &mut Vec<Message>,
        template: &ChatTemplate,
        kept: &Kept,
    ) -> HashMap<String, String> {
        // To a template, a message of nothing is a turn of its own.
        messages.retain(|message| message.role != "system" || !message.says_nothing());
        let has_system = messages.iter().any(|message| message.role == "system");
        if let (Some(system), false) = (&self.system, has_system) {
            messages.insert(0, Message::new("system", system.as_str()));
        }
        if late_system::are_in(messages) && !template.keeps_system_in_place() {
            late_system::tell(messages);
        }
        turns::join_refused(messages, template);
        let written = self.written(messages, kept);
        place_results(messages);
        if template.dialect().is_some_and(|dialect| dialect.channels().is_some()) {
            call_one_by_one(messages);
        }
        messages.iter_mut().for_each(|message| message.guard(&self.tokenizer));
        written
    }

    /// Arguments of calls as the model wrote them, by the ids of those that are still known. What they
    /// spell is text, as in messages.
    fn written(&self, messages: &[Message], kept: &Kept) -> HashMap<String, String> {
        let known = calls(messages).filter_map(|(id, function)| {
            let written = kept.get(id, function["name"].as_str()?, &function["arguments"])?;
            Some((id.to_owned(), self.tokenizer.guard(&written).into_owned()))
        });
        known.collect()
    }

    /// A text that the model continues as it stands.
    pub(crate) fn raw(&self, text: &str, special: SpecialTokens) -> Result<Prompt, Problem> {
        let tokens = self.encode(text, special)?;
        let tokens = [self.tokenizer.prefix(), &tokens].concat();
        self.fitting(Prompt::plain(tokens))
    }

    /// Encodes a prompt. One that is far too long is noticed after as much of it as would fit twice: what
    /// cannot be answered must not keep the tokenizer from others.
    fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, Problem> {
        let (context, mut tokens, mut rest) = (self.context, 0, text);
        while text.len() > LETTERS_PER_TOKEN * context as usize && !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            tokens += self.tokenizer.encode(piece, SpecialTokens::AsText)?.len();
            if tokens > 2 * context as usize {
                return Err(Problem::too_long(tokens, context));
            }
            rest = behind;
        }
        Ok(self.tokenizer.encode(text, special)?)
    }

    /// Refuses a prompt behind which there is no room.
    pub(crate) fn fitting(&self, prompt: Prompt) -> Result<Prompt, Problem> {
        let (tokens, context) = (prompt.tokens.len(), self.context);
        if tokens > context as usize {
            return Err(Problem::too_long(tokens, context));
        }
        Ok(prompt)
    }
}

/// Begins a turn without a thought, where thoughts are messages: with the answer, or with a thought of nothing where
/// the model may call instead.
fn unthinking(channels: &Channels, calls: bool, (rendered, opening): (&mut String, &mut String)) {
    if calls {
        [channels.think, channels.end, channels.again]
            .iter()
            .for_each(|mark| rendered.push_str(mark));
    } else {
        channels.answer.clone_into(opening);
    }
}

#[cfg(test)]
pub(crate) mod tests;
