//! Chat templates: the demonstration model's, and small ones for every way to find one.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use fm_text::{
    ChatTemplate, Message, RenderRequest, SpecialTokens, TextError, ThinkingState, ThinkingTags,
    Tokenizer, Vocabulary, end_token,
};
use serde_json::{Value, json};

fn demo_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn demo() -> ChatTemplate {
    ChatTemplate::open(&demo_dir()).unwrap().unwrap()
}

fn messages(json: Value) -> Vec<Message> {
    serde_json::from_value(json).unwrap()
}

/// A template in a folder of its own, with the given `tokenizer_config.json`.
fn opened(template: Option<&str>, config: &Value) -> Result<Option<ChatTemplate>, TextError> {
    let dir = tempfile::tempdir().unwrap();
    if let Some(template) = template {
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    }
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTemplate::open(dir.path())
}

fn template(text: &str) -> ChatTemplate {
    opened(Some(text), &json!({})).unwrap().unwrap()
}

fn render(template: &ChatTemplate) -> Result<String, TextError> {
    template.render(&RenderRequest::new(&[Message::new("user", "Hi")]))
}

#[test]
fn a_question_opens_the_assistants_thinking() {
    let conversation = [Message::new("system", "Be brief."), Message::new("user", "Hi é")];
    let prompt = demo().render(&RenderRequest::new(&conversation)).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi é<|im_end|>\n\
         <|im_start|>assistant\n<think>\n"
    );
    let tags = ThinkingTags::new("<think>", "</think>").unwrap();
    assert_eq!(tags.state_at_end_of(&prompt), ThinkingState::Open);
}

#[test]
fn thinking_can_be_turned_off_and_the_prompt_left_out() {
    let conversation = [Message::new("user", "Hi")];
    let request = RenderRequest::new(&conversation);
    let off = RenderRequest { enable_thinking: Some(false), ..request };
    let user = "<|im_start|>user\nHi<|im_end|>\n";
    assert_eq!(
        demo().render(&off).unwrap(),
        format!("{user}<|im_start|>assistant\n<think>\n\n</think>\n\n")
    );
    let on = RenderRequest { enable_thinking: Some(true), ..request };
    assert_eq!(demo().render(&on).unwrap(), format!("{user}<|im_start|>assistant\n<think>\n"));
    let no_prompt = RenderRequest { add_generation_prompt: false, ..request };
    assert_eq!(demo().render(&no_prompt).unwrap(), user);
}

#[test]
fn templates_hear_under_either_name_whether_to_think() {
    let conversation = [Message::new("user", "Hi")];
    for name in ["enable_thinking", "thinking"] {
        let text =
            format!("{{% if {name} is defined %}}{{{{ {name} }}}}{{% else %}}open{{% endif %}}");
        let template = template(&text);
        let said = [None, Some(true), Some(false)].map(|enable_thinking| {
            let request = RenderRequest { enable_thinking, ..RenderRequest::new(&conversation) };
            template.render(&request).unwrap()
        });
        assert_eq!(said, ["open", "True", "False"], "{name}");
    }
}

/// Mistral's templates want ids of nine characters, and clients send back the longer ones that they were given.
#[test]
fn calls_are_as_they_were_written_where_the_dialect_has_ids_of_its_own() {
    let template = template(
        "{% for message in messages %}{% for call in message.tool_calls or [] %}[TOOL_CALLS]\
         {{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]{{ call.function.arguments | tojson }}\
         {% endfor %}{% if message.role == 'tool' %}[CALL_ID]{{ message.tool_call_id }}{% endif %}{% endfor %}",
    );
    let id = "call_0123456789abcdef01234567";
    let call = json!({"id": id, "type": "function", "function": {"name": "look", "arguments": {"to": "é"}}});
    let conversation = messages(json!([
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "sun", "tool_call_id": id}]));
    let written = HashMap::from([(id.to_owned(), "{\"to\":\"\\u00e9\"}".to_owned())]);
    let request = RenderRequest { written: Some(&written), ..RenderRequest::new(&conversation) };
    let rendered = template.render(&request).unwrap();
    let (call, result) = rendered.rsplit_once("[CALL_ID]").unwrap();
    assert_eq!(result.len(), 9, "{rendered}");
    assert_eq!(call, format!("[TOOL_CALLS]look[CALL_ID]{result}[ARGS]{{\"to\":\"\\u00e9\"}}"));
}

#[test]
fn tools_calls_and_answers_of_tools_are_written_out() {
    let conversation = messages(json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "reasoning_content": "look", "tool_calls": [
            {"type": "function", "function": {"name": "look", "arguments": {"to": "<é>", "n": 1.0}}},
            {"type": "function", "function": {"name": "nop", "arguments": "{}"}}]},
        {"role": "tool", "content": "sun"},
        {"role": "tool", "content": "ok"}]));
    let tools = [json!({"type": "function", "function": {"name": "look", "b": [true, null]}})];
    let request = RenderRequest { tools: &tools, ..RenderRequest::new(&conversation) };
    assert_eq!(
        demo().render(&request).unwrap(),
        "<|im_start|>system\n# Tools\n\nThese functions can be called:\n<tools>\n\
         {\"type\": \"function\", \"function\": {\"name\": \"look\", \"b\": [true, null]}}\n\
         </tools>\n\nA call is written as:\n<tool_call>\n\
         {\"name\": <function-name>, \"arguments\": <arguments-object>}\n</tool_call><|im_end|>\n\
         <|im_start|>user\nWeather?<|im_end|>\n\
         <|im_start|>assistant\n<think>\nlook\n</think>\n\n\
         <tool_call>\n{\"name\": \"look\", \"arguments\": {\"to\": \"<é>\", \"n\": 1.0}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"nop\", \"arguments\": {}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\nsun\n</tool_response>\n\
         <tool_response>\nok\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n"
    );
}

#[test]
fn a_pointer_of_git_lfs_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), pointer).unwrap();
        let refused = match name {
            "tokenizer.json" => Tokenizer::open(dir.path(), None).unwrap_err(),
            _ => ChatTemplate::open(dir.path()).unwrap_err(),
        };
        assert!(
            matches!(&refused, TextError::LfsPointer { path } if path.ends_with(name)),
            "{name}: {refused}"
        );
    }
}

#[test]
fn a_base_model_has_no_template() {
    assert!(opened(None, &json!({})).unwrap().is_none());
    assert!(ChatTemplate::open(Path::new("/nowhere")).unwrap().is_none());
}

#[test]
fn the_configuration_may_hold_one_template_or_several() {
    let one = opened(
        None,
        &json!({"chat_template": "{{ bos_token }}one", "bos_token": {"content": "<s>"}}),
    );
    assert_eq!(render(&one.unwrap().unwrap()).unwrap(), "<s>one");

    let list = json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]);
    let several = opened(None, &json!({"chat_template": list})).unwrap().unwrap();
    assert_eq!(render(&several).unwrap(), "plain");
    let tools = [json!({})];
    let request = RenderRequest { tools: &tools, ..RenderRequest::new(&[]) };
    assert_eq!(several.render(&request).unwrap(), "tools");

    let none = opened(None, &json!({"chat_template": [{"name": "rag", "template": ""}]}));
    assert!(matches!(none, Err(TextError::NoDefaultTemplate { count: 1, .. })));
}

#[test]
fn the_file_comes_before_the_configuration() {
    let both = opened(Some("file"), &json!({"chat_template": "configuration"}));
    assert_eq!(render(&both.unwrap().unwrap()).unwrap(), "file");
}

#[test]
fn line_ends_of_a_template_are_line_feeds_wherever_it_stands() {
    let text =
        "{% for m in messages %}\r\n{{ m.role }}:\r{{ 'a\r\nb' }}\r\n{% endfor %}\r\nend\r\n";
    let of_config = opened(None, &json!({"chat_template": text})).unwrap();
    let vocabulary = Vocabulary { chat_template: Some(text.to_owned()), ..Vocabulary::default() };
    let of_metadata = ChatTemplate::from_vocabulary(&vocabulary, Path::new("m.gguf")).unwrap();
    for template in [template(text), of_config.unwrap(), of_metadata.unwrap()] {
        assert_eq!(render(&template).unwrap(), "user:\na\nb\nend");
    }
}

#[test]
fn a_template_for_tools_lies_in_a_directory_of_its_own() {
    let listed =
        json!([{"name": "tool_use", "template": "list"}, {"name": "default", "template": "list"}]);
    let open = |default: Option<&str>, tools: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({ "chat_template": listed }).to_string();
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        if let Some(text) = default {
            fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
        }
        let additional = dir.path().join("additional_chat_templates");
        fs::create_dir(&additional).unwrap();
        fs::write(additional.join("tool_use.jinja"), tools).unwrap();
        ChatTemplate::open(dir.path()).map(Option::unwrap)
    };
    let both = open(Some("plain"), "<tool_call>").unwrap();
    assert_eq!(render(&both).unwrap(), "plain");
    let tools = [json!({})];
    let request = RenderRequest { tools: &tools, ..RenderRequest::new(&[]) };
    assert_eq!(both.render(&request).unwrap(), "<tool_call>");
    assert!(both.takes_tools());
    // Files replace all that the configuration says, as in `transformers`.
    let alone = open(None, "tools").map(drop);
    assert!(matches!(alone, Err(TextError::NoDefaultTemplate { count: 1, .. })), "{alone:?}");
    let broken = open(Some("plain"), "{% if %}").map(drop);
    assert!(
        matches!(&broken, Err(TextError::TemplateSyntax { path, .. }) if path.ends_with("tool_use.jinja")),
        "{broken:?}"
    );
}

#[test]
fn the_templates_own_words_reach_the_user() {
    let refusing = template(
        "\n{% macro no() %}{{ raise_exception('No ' ~ messages[0].role) }}{% endmacro %}{{ no() }}",
    );
    let Err(TextError::Refused { source }) = render(&refusing) else {
        panic!("a refusal is expected");
    };
    assert_eq!(source.message, "No user");
}

#[test]
fn a_refusal_is_one_line_of_a_bounded_length_whatever_it_quotes() {
    let quoting = template("{{ raise_exception(messages[0].content) }}");
    let says = |content: &str| {
        let refused = quoting.render(&RenderRequest::new(&[Message::new("user", content)]));
        let Err(TextError::Refused { source }) = refused else { panic!("a refusal is expected") };
        source.message
    };
    assert_eq!(says("a\n<\u{FDD0}|im_end|>\u{1b}[1m"), "a <|im_end|> [1m");
    assert_eq!(says(&"é".repeat(500)), "é".repeat(500));
    assert_eq!(says(&"é".repeat(501)), "é".repeat(500) + "…");
}

#[test]
fn a_template_that_fails_says_where() {
    let broken = render(&template("a\n{{ messages.x.y }}"));
    let Err(TextError::Render { source }) = broken else { panic!("an error is expected") };
    assert_eq!(source.line(), Some(2));
    assert!(matches!(opened(Some("{% if %}"), &json!({})), Err(TextError::TemplateSyntax { .. })));
}

#[test]
fn a_template_cannot_run_for_ever() {
    let endless = template(
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
         {% endfor %}{% endfor %}{% endfor %}",
    );
    assert!(matches!(render(&endless), Err(TextError::Render { .. })));
}

/// Each operator is a level of a tree that is walked by recursion; a stack that overflows ends the program.
#[test]
fn long_chains_of_operators_overflow_no_stack() {
    let chain = |operator: &str, bytes: usize| {
        let chain = operator.repeat(bytes / operator.len() - 8);
        let _ = opened(Some(&format!("{{{{ 1{chain} }}}}")), &json!({}));
    };
    for operator in ["+1", ".a", "|list", " if b else c", "[0]", "~1", " not in b"] {
        chain(operator, 256 << 10);
    }
    // The library takes the square of its length for this one: 43 s for the longest.
    chain(" and b", 32 << 10);
    let long = "x".repeat((256 << 10) + 1);
    let refused = opened(Some(&long), &json!({})).unwrap_err();
    assert!(matches!(refused, TextError::TemplateSyntax { .. }), "{refused}");
    assert!(opened(Some(&long[1..]), &json!({})).is_ok());
}

#[test]
fn the_python_of_templates_works() {
    let source = "{%- for m in messages[::-1] %}\n\
        {%- if loop.previtem is defined %}{{ loop.previtem.role }} {% endif %}\n\
        {%- if loop.index == 3 %}{% break %}{% endif %}\n\
        {{- m.content.strip().split(' ')[-1].rstrip('!') }}|\n\
        {%- for key, value in m.items() %}{{ key }},{% endfor %}\n\
        {% endfor %}\n    {% set ns = namespace(x=1) %}\n{{ ns.x }}{{ strftime_now('%d %b %Y') }}";
    let conversation =
        [Message::new("a", "never"), Message::new("b", " one two!"), Message::new("c", "x")];
    let now = UNIX_EPOCH + Duration::from_hours(498_648);
    let request = RenderRequest { now, ..RenderRequest::new(&conversation) };
    assert_eq!(
        template(source).render(&request).unwrap(),
        "x|role,content,c two|role,content,b 120 Nov 2026"
    );
}

#[test]
fn variables_of_the_caller_reach_the_template() {
    let variables = json!({"reasoning_effort": "high"});
    let request = RenderRequest { variables: variables.as_object(), ..RenderRequest::new(&[]) };
    assert_eq!(template("{{ reasoning_effort }}").render(&request).unwrap(), "high");
}

/// gpt-oss was trained with three.
#[test]
fn an_effort_is_told_in_a_word_that_the_model_knows() {
    let told = |source: &str, effort: &str| {
        let variables = json!({"reasoning_effort": effort});
        let request = RenderRequest { variables: variables.as_object(), ..RenderRequest::new(&[]) };
        template(source).render(&request).unwrap()
    };
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    let known = efforts.map(|effort| told("{{ reasoning_effort }}{# <|channel|> #}", effort));
    assert_eq!(known, ["low", "low", "low", "medium", "high", "high", "high"]);
    assert_eq!(efforts.map(|effort| told("{{ reasoning_effort }}", effort)), efforts);
}

#[test]
fn metadata_may_hold_one_template_or_several() {
    let vocabulary = Vocabulary {
        tokens: ["<unk>", "<s>", "</s>", "<|im_end|>", "<|call|>", "<|endoftext|>"]
            .map(str::to_owned)
            .into(),
        token_type: vec![2, 3, 3, 1, 3, 3],
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Vocabulary::default()
    };
    let path = Path::new("model.gguf");
    let opened = |vocabulary: &Vocabulary| ChatTemplate::from_vocabulary(vocabulary, path);
    assert!(opened(&vocabulary).unwrap().is_none());
    let text = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}";
    let one = Vocabulary { chat_template: Some(text.to_owned()), ..vocabulary.clone() };
    assert_eq!(render(&opened(&one).unwrap().unwrap()).unwrap(), "<s>Hi</s>");

    let named = |names: [&str; 2]| Vocabulary {
        chat_templates: names.map(|name| (name.to_owned(), format!("{name}!"))).into(),
        ..vocabulary.clone()
    };
    let several = opened(&named(["tool_use", "default"])).unwrap().unwrap();
    assert_eq!(render(&several).unwrap(), "default!");
    let tools = [json!({})];
    let request = RenderRequest { tools: &tools, ..RenderRequest::new(&[]) };
    assert_eq!(several.render(&request).unwrap(), "tool_use!");
    let none = opened(&named(["rag", "tool_use"])).unwrap_err();
    assert!(matches!(none, TextError::NoDefaultTemplate { count: 2, .. }));
    let broken = Vocabulary { chat_template: Some("{% if %}".to_owned()), ..vocabulary.clone() };
    assert!(matches!(opened(&broken), Err(TextError::TemplateSyntax { .. })));

    // The end of a text, and every mark that is known for one, whatever kind of token it is.
    assert_eq!(vocabulary.end_tokens(), [2, 3, 4, 5]);
}

#[test]
fn marks_that_end_a_text_are_known_by_their_text() {
    let ends = |tokens: &[&str], kind: i32| {
        let tokens = tokens.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let token_type = vec![kind; tokens.len()];
        Vocabulary { tokens, token_type, ..Vocabulary::default() }.end_tokens()
    };
    for kind in [1, 3, 4] {
        for end in ["<|im_end|>", "<end_of_turn>", "<|end|>", "</s>", "<|eot_id|>", "[EOT]"] {
            assert_eq!(ends(&["a", end, "<|start|>"], kind), [1], "{end} {kind}");
        }
    }
    // Where the file names an end, plain text that is spelled like one is plain text.
    let named = Vocabulary {
        tokens: ["a", "</s>", "<|im_end|>", "<｜end▁of▁sentence｜>", "[EOS]"]
            .map(str::to_owned)
            .into(),
        token_type: vec![3, 1, 1, 1, 3],
        ..Vocabulary::default()
    };
    assert_eq!(named.end_tokens(), [1, 2, 3, 4]);
    let with_one = Vocabulary { eos_token_id: Some(0), ..named.clone() };
    assert_eq!(with_one.end_tokens(), [0, 2, 3, 4]);
    let with_list = Vocabulary { eos_token_ids: vec![0], ..named };
    assert_eq!(with_list.end_tokens(), [0, 2, 3, 4]);
    let tokens = ["a", "b", "c"].map(str::to_owned).to_vec();
    let listed = Vocabulary { tokens, eos_token_ids: vec![2, 1], ..Vocabulary::default() };
    assert_eq!(listed.end_tokens(), [1, 2]);
    // Where a turn has an end of its own, the end of a message is none.
    assert_eq!(ends(&["<|return|>", "<|end|>", "<|call|>"], 3), [0, 2]);
}

#[test]
fn special_tokens_are_those_of_their_map_where_the_configuration_names_none() {
    let dir = tempfile::tempdir().unwrap();
    let write =
        |name: &str, json: Value| fs::write(dir.path().join(name), json.to_string()).unwrap();
    let text = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}";
    fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
    let rendered = || render(&ChatTemplate::open(dir.path()).unwrap().unwrap()).unwrap();
    let map = json!({"bos_token": "<m>", "eos_token": {"content": "</m>"}, "pad_token": "<p>"});
    write("special_tokens_map.json", map);
    assert_eq!(rendered(), "<m>|</m>|<p>");
    assert_eq!(end_token(dir.path()).unwrap().as_deref(), Some("</m>"));
    write("tokenizer_config.json", json!({"bos_token": "<c>", "pad_token": null}));
    assert_eq!(rendered(), "<c>|</m>|");
    write("tokenizer_config.json", json!({"eos_token": "</c>"}));
    assert_eq!(end_token(dir.path()).unwrap().as_deref(), Some("</c>"));
}

/// Servers that do not take thoughts apart give back what the model wrote, and the prompt wrote the opening
/// tag.
#[test]
fn an_answer_keeps_the_tag_that_closes_its_thought_whoever_opened_it() {
    let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
    let cuts = template(
        "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}\
         {% else %}{{ m.content }}{% endif %}{% endfor %}",
    );
    let ids = |answer: &str| {
        let mut message = Message::new("assistant", answer);
        message.guard(&tokenizer);
        let rendered = cuts.render(&RenderRequest::new(&[message])).unwrap();
        tokenizer.encode(&rendered, SpecialTokens::ParseTemplate).unwrap()
    };
    let spelled = |text: &str| tokenizer.encode(text, SpecialTokens::AsText).unwrap();
    for thought in ["<think>hm", "hm\n", "\nhm", ""] {
        let answer = "\n\nyes </think> <think> <|im_end|>";
        assert_eq!(ids(&format!("{thought}</think>{answer}")), spelled(answer), "{thought}");
    }
    for text in ["between <think> and </think>", "<think>hm"] {
        assert_eq!(ids(text), spelled(text));
    }
    let apart = Some("a thought".to_owned());
    let mut apart =
        Message { reasoning_content: apart, ..Message::new("assistant", "a </think> b") };
    apart.guard(&tokenizer);
    let rendered = cuts.render(&RenderRequest::new(&[apart])).unwrap();
    let told = tokenizer.encode(&rendered, SpecialTokens::ParseTemplate).unwrap();
    assert_eq!(told, spelled("a </think> b"), "an answer whose thought is known speaks of tags");
}

#[test]
fn a_configuration_that_is_no_object_is_not_taken_for_none() {
    for wrong in [json!([]), json!("x"), json!(1)] {
        let refused = opened(Some("x"), &wrong).unwrap_err();
        let named = matches!(&refused, TextError::Json { path, .. } if path.ends_with("tokenizer_config.json"));
        assert!(named, "{refused}");
    }
}

#[test]
fn a_template_keeps_late_system_messages_in_place_or_is_known_not_to() {
    assert!(demo().keeps_system_in_place());
    let each = "{%- for m in messages -%}";
    let refuses = "{%- if m.role == 'system' and not loop.first -%}{{- raise_exception('late') -}}{%- endif -%}";
    let drops = "{%- if m.role != 'system' -%}{{- m.content -}}{%- endif -%}{%- endfor -%}";
    let first = "{%- if m.role == 'system' -%}{{- m.content -}}{%- endif -%}{%- endfor -%}";
    for other in [
        format!("{each}{refuses}{{{{- m.content -}}}}{{%- endfor -%}}"),
        format!("{each}{drops}"),
        format!("{each}{first}{each}{drops}"),
    ] {
        assert!(!template(&other).keeps_system_in_place(), "{other}");
    }
    assert!(
        template(&format!("{each}{{{{- m.content -}}}}{{%- endfor -%}}")).keeps_system_in_place()
    );
}
