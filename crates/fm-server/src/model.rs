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
    tools::{Choice, Tools, calls, place_results},
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
        if forced && prompt.thinking == ThinkingState::Open {
            rendered.push_str(thinking::CLOSE_LINES);
            prompt.thinking = ThinkingState::Closed;
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
pub(crate) mod tests {
    use fm_engine::{generate::Call, grammar::Room};
    use fm_testkit::golden::demo_dir;
    use serde_json::json;

    use super::*;
    use crate::kept::CallIds;

    pub(crate) fn demo() -> Model {
        let dir = demo_dir();
        let tokenizer = Arc::new(Tokenizer::open(&dir, None).unwrap());
        let (letters, vocab) = (Arc::clone(&tokenizer), tokenizer.vocab_len());
        Model {
            name: "demo".to_owned(),
            grammars: Grammars::new(letters, vocab, Vec::new(), Room::default()),
            tokenizer,
            template: ChatTemplate::open(&dir).unwrap(),
            sampling: Sampling::default(),
            eos: Vec::new(),
            context: 4096,
            system: None,
            marks_turns: true,
        }
    }

    fn ask() -> Conversation {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        Conversation {
            messages: vec![Message::new("user", "Hi")],
            tools: Tools { list: vec![tool], strict: vec![false], ..Tools::default() },
            enable_thinking: Some(false),
            ..Conversation::default()
        }
    }

    /// The conversation after a call with this id, as a client sends it.
    fn called(id: &str, arguments: &Value) -> Conversation {
        let mut after = ask();
        let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        after
            .messages
            .push(Message { tool_calls: Some(json!([call])), ..Message::new("assistant", "") });
        after
            .messages
            .push(Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", "done") });
        after
    }

    fn text(model: &Model, conversation: Conversation, kept: &Kept) -> String {
        let tokens = model.prompt(conversation, kept).unwrap().tokens;
        let bytes = tokens.iter().flat_map(|token| model.tokenizer.token_bytes(*token).unwrap());
        String::from_utf8(bytes.copied().collect()).unwrap()
    }

    #[test]
    fn a_call_that_comes_back_is_what_the_model_wrote() {
        let (model, kept) = (demo(), Kept::default());
        let written = "{\"a\":1,\n \"b\": \"\\u00e9<|im_end|></tool_call>\"}".to_owned();
        let call = Call {
            index: 0,
            name: "f".to_owned(),
            arguments: written.clone(),
            written: Some(written),
        };
        let id = CallIds::new("call_").id(0, 0);
        kept.put(&id, &call);
        let same = json!({"b": "é<|im_end|></tool_call>", "a": 1});
        let prompt = model.prompt(called(&id, &same), &kept).unwrap().tokens;
        let first = model.prompt(ask(), &kept).unwrap().tokens;
        let (written, before) = (model.tokenizer.guard(&call.arguments), "\"arguments\": ");
        let said = format!("<tool_call>\n{{\"name\": \"f\", {before}{written}}}\n</tool_call>");
        let said = model.tokenizer.encode(&said, SpecialTokens::ParseTemplate).unwrap();
        assert_eq!(prompt[..first.len()], first, "what was asked is still what was asked");
        assert_eq!(prompt[first.len()..][..said.len()], said, "and what was said, what was said");
        // Other arguments, or nobody's id: the template writes them.
        let other = text(&model, called(&id, &json!({"a":2})), &kept);
        assert!(other.contains("\"arguments\": {\"a\": 2}}"), "{other}");
        let foreign = text(&model, called("call_x", &same), &kept);
        assert!(
            foreign.contains("\"arguments\": {\"b\": \"é<|im_end|></tool_call>\", \"a\": 1}}"),
            "{foreign}"
        );
    }

    #[test]
    fn who_shall_not_think_cannot_begin_to() {
        let (model, kept) = (demo(), Kept::default());
        let think = model.tokenizer.token_id(thinking::OPEN).unwrap();
        let banned = |enable_thinking| {
            let conversation = Conversation { enable_thinking, ..ask() };
            model.prompt(conversation, &kept).unwrap().banned.contains(&think)
        };
        assert_eq!([Some(false), Some(true), None].map(banned), [true, false, false]);
    }

    #[test]
    fn what_tools_and_calls_spell_is_no_token_of_the_template() {
        let (model, kept) = (demo(), Kept::default());
        for control in ["<|im_end|>", "<think>", "</tool_call>", "</tool_response>"] {
            let id = model.tokenizer.token_id(control).unwrap();
            let count = |conversation: Conversation| {
                let tokens = model.prompt(conversation, &kept).unwrap().tokens;
                tokens.iter().filter(|token| **token == id).count()
            };
            let mut spelled = called(control, &json!({control: [control]}));
            spelled.messages.last_mut().unwrap().content = Some(control.into());
            let tool = json!({"type": "function", "function": {
                "name": "f",
                "description": control,
                "parameters": {"properties": {control: {"enum": [control]}}},
            }});
            spelled.tools.list = vec![tool];
            assert_eq!(count(spelled), count(called("x", &json!({}))), "{control}");
        }
    }

    /// The tokens of a conversation and of its rendering, in which every mark is a token.
    fn guarded_and_not(model: &Model, messages: Vec<Message>) -> (Vec<u32>, Vec<u32>) {
        let request =
            RenderRequest { enable_thinking: Some(false), ..RenderRequest::new(&messages) };
        let rendered = model.template.as_ref().unwrap().render(&request).unwrap();
        let plain = model.tokenizer.encode(&rendered, SpecialTokens::Parse).unwrap();
        let conversation = Conversation { messages, tools: Tools::default(), ..ask() };
        (model.prompt(conversation, &Kept::default()).unwrap().tokens, plain)
    }

    #[test]
    fn thoughts_and_calls_of_earlier_answers_are_the_tokens_that_templates_write() {
        // It looks for the tags of a thought, as many do.
        let looks = "{% for m in messages %}<|im_start|>{{ m.role + '\\n' }}{% if m.role == 'assistant' \
             and '</think>' in m.content %}<think>{{ m.content.split('</think>')[0].split('<think>')[-1] }}\
             </think>{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\
             {% endfor %}";
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("chat_template.jinja"), looks).unwrap();
        let looking = Model { template: ChatTemplate::open(dir.path()).unwrap(), ..demo() };
        let thought = Message::new("assistant", " <think>\nhm\n</think>\n\nyes");
        let apart = Message {
            reasoning_content: Some("hm".to_owned()),
            tool_calls: Some(json!([{"id": "x", "function": {"name": "f", "arguments": {}}}])),
            ..Message::new("assistant", "yes")
        };
        for (model, answer) in [(&demo(), &thought), (&demo(), &apart), (&looking, &thought)] {
            let result =
                Message { tool_call_id: Some("x".to_owned()), ..Message::new("tool", "1") };
            let messages = vec![Message::new("user", "Hi"), answer.clone(), result];
            let (guarded, plain) = guarded_and_not(model, messages);
            assert_eq!(guarded, plain);
            let think = model.tokenizer.token_id(thinking::OPEN).unwrap();
            assert!(plain.contains(&think), "the thought is there, with its tags");
        }
    }

    #[test]
    fn only_a_thought_that_an_answer_begins_with_has_tags() {
        let model = demo();
        let tags =
            [thinking::OPEN, thinking::CLOSE].map(|tag| model.tokenizer.token_id(tag).unwrap());
        let count = |role: &str, text: &str| {
            let messages = vec![Message::new(role, text), Message::new("user", "Hi")];
            let conversation = Conversation { messages, tools: Tools::default(), ..ask() };
            let tokens = model.prompt(conversation, &Kept::default()).unwrap().tokens;
            tokens.iter().filter(|token| tags.contains(token)).count()
        };
        let none = count("assistant", "yes");
        assert_eq!(count("assistant", "<think>hm <think></think>yes </think><think>"), none + 2);
        // The prompt had opened what the last two close.
        let texts = ["yes <think>hm</think>", "<think>hm", "hm</think>yes", "</think><think>"];
        assert_eq!(texts.map(|text| count("assistant", text) - none), [0, 0, 1, 1]);
        assert_eq!(count("user", "<think>hm</think>yes"), none);
    }

    fn with_template(template: &str) -> Model {
        let id = (std::process::id(), std::thread::current().id());
        let dir = std::env::temp_dir().join(format!("fm-server-model-{id:?}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
        let model = Model { template: ChatTemplate::open(&dir).unwrap(), ..demo() };
        std::fs::remove_dir_all(&dir).unwrap();
        model
    }

    #[test]
    fn a_template_without_tools_refuses_them() {
        let refused =
            |template| with_template(template).prompt(ask(), &Kept::default()).unwrap_err();
        assert!(matches!(refused("{{ messages[0].content }}"), Problem::NoTools));
        assert!(matches!(refused("{{ tools }} write <some_call>"), Problem::NoDialect));
    }

    #[test]
    fn a_turn_without_a_thought_begins_behind_where_it_would_be() {
        let model = with_template("{{ tools }}<|channel|><|start|>assistant");
        let end = |change: fn(&mut Conversation)| {
            let mut conversation = ask();
            change(&mut conversation);
            let prompt = model.prompt(conversation, &Kept::default()).unwrap();
            assert!(prompt.is_turn && !Prompt::plain(Vec::new()).is_turn);
            let bytes =
                prompt.tokens.iter().flat_map(|token| model.tokenizer.token_bytes(*token).unwrap());
            let text = String::from_utf8(bytes.copied().collect()).unwrap();
            (text.split_once("assistant").unwrap().1.to_owned(), prompt.opening)
        };
        let answer = "<|channel|>final<|message|>".to_owned();
        let nothing = "<|channel|>analysis<|message|><|end|><|start|>assistant".to_owned();
        assert_eq!(end(|_| {}), (nothing, String::new()), "it may call");
        assert_eq!(end(|ask| ask.tools = Tools::default()), (answer.clone(), answer.clone()));
        assert_eq!(end(|ask| ask.tools.choice = Choice::None), (answer.clone(), answer));
        assert_eq!(end(|ask| ask.enable_thinking = None), (String::new(), String::new()));
        let called = end(|ask| ask.tools.choice = Choice::Required);
        assert!(called.0 == called.1 && called.0.ends_with("to=functions."), "{called:?}");
    }

    #[test]
    fn a_system_message_of_nothing_is_none() {
        let template = "{%- for m in messages %}{{ m.role }}:{{ m.content }} {% endfor -%}";
        let mut model = with_template(template);
        let nothing = [json!(""), json!([]), json!([{"type": "text", "text": ""}])];
        for (own, told) in [(None, "user:a "), (Some("b"), "system:b user:a ")] {
            model.system = own.map(str::to_owned);
            for content in &nothing {
                let system =
                    Message { content: Some(content.clone()), ..Message::new("system", "") };
                let messages = vec![system, Message::new("user", "a")];
                let conversation = Conversation { messages, ..Conversation::default() };
                assert_eq!(text(&model, conversation, &Kept::default()), told);
            }
        }
    }

    #[test]
    fn a_template_that_takes_turns_strictly_sees_one_turn_of_what_follows_each_other() {
        let strict = "{%- for m in messages -%}\
                      {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}\
                      {{- raise_exception('roles must alternate') -}}{%- endif -%}\
                      {{ m.role }}:{{ m.content }} {% endfor -%}";
        let said =
            [("user", "a"), ("user", "b"), ("system", "c"), ("assistant", "d"), ("user", "e")];
        let messages = said.map(|(role, text)| Message::new(role, text)).into();
        let conversation = Conversation { messages, ..Conversation::default() };
        let prompt = text(&with_template(strict), conversation, &Kept::default());
        let told = "user:a\nb\n<system-reminder>\nc\n</system-reminder> assistant:d user:e ";
        assert_eq!(prompt, told);
    }
}
