//! Prompts of conversations with the demonstration model, and with templates of others.

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
    let call =
        json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
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
    let call =
        Call { index: 0, name: "f".to_owned(), arguments: written.clone(), written: Some(written) };
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
    let request = RenderRequest { enable_thinking: Some(false), ..RenderRequest::new(&messages) };
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
        let result = Message { tool_call_id: Some("x".to_owned()), ..Message::new("tool", "1") };
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
    let tags = [thinking::OPEN, thinking::CLOSE].map(|tag| model.tokenizer.token_id(tag).unwrap());
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

#[test]
fn a_thought_that_a_template_begins_for_who_shall_not_think_is_over() {
    let model = with_template("{{ tools }}<tool_call>{{ messages[0].content }}{{ '<think>\n' }}");
    let end = |enable_thinking| {
        let conversation = Conversation { enable_thinking, ..ask() };
        let (text, prompt) = model.render(conversation, &Kept::default(), None).unwrap();
        let close = model.tokenizer.token_id(thinking::CLOSE).unwrap();
        assert_eq!(prompt.banned.contains(&close), prompt.thinking == ThinkingState::Closed);
        (text.split_once("Hi").unwrap().1.to_owned(), prompt.thinking)
    };
    let open = ("<think>\n".to_owned(), ThinkingState::Open);
    let closed = ("<think>\n\n</think>\n\n".to_owned(), ThinkingState::Closed);
    assert_eq!([Some(false), Some(true), None].map(end), [closed, open.clone(), open]);
}

/// gpt-oss's template writes the first call of a message, and takes every result for that of the last one.
#[test]
fn where_a_message_has_one_call_each_has_a_message() {
    let template = "{{ tools }}{% for m in messages %}{% if m.tool_calls %}\
        <|channel|>{{ m.tool_calls[0].id }}{% elif m.role == 'tool' %}={{ m.content }} {% endif %}{% endfor %}";
    let mut after = called("a", &json!({}));
    let [.., calls, first] = after.messages.as_mut_slice() else { unreachable!() };
    let more = json!({"id": "b", "type": "function", "function": {"name": "f", "arguments": {}}});
    calls.tool_calls.as_mut().unwrap().as_array_mut().unwrap().push(more);
    let second = Message { tool_call_id: Some("b".to_owned()), ..first.clone() };
    after.messages.push(second);
    let text = text(&with_template(template), after, &Kept::default());
    assert!(text.contains("<|channel|>a=done <|channel|>b=done "), "{text}");
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
    let refused = |template| with_template(template).prompt(ask(), &Kept::default()).unwrap_err();
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
            let system = Message { content: Some(content.clone()), ..Message::new("system", "") };
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
    let said = [("user", "a"), ("user", "b"), ("system", "c"), ("assistant", "d"), ("user", "e")];
    let messages = said.map(|(role, text)| Message::new(role, text)).into();
    let conversation = Conversation { messages, ..Conversation::default() };
    let prompt = text(&with_template(strict), conversation, &Kept::default());
    let told = "user:a\nb\n<system-reminder>\nc\n</system-reminder> assistant:d user:e ";
    assert_eq!(prompt, told);
}
