//! Calls in every dialect: what a text comes to, in whatever pieces it arrives.

use std::{env, fmt::Write, fs, path::PathBuf, sync::Arc};

use fm_text::{
    AnswerForm, AnswerSplitter, CallPart, Channel, Definitions, Dialect, Part, ThinkingState,
    ThinkingTags, tools::DIALECTS,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn dialect(name: &str) -> &'static Dialect {
    DIALECTS.iter().find(|dialect| dialect.name == name).unwrap()
}

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "opts": {"type": "object"},
        "either": {"type": ["integer", "string"]},
    }});
    vec![json!({"type": "function", "function": {"name": "look", "parameters": parameters}})]
}

/// What was said and called, with thinking in braces and what the model wrote of arguments behind `=`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    script: String,
    channel: Option<Channel>,
    calls: Vec<(String, Value)>,
    name: String,
    arguments: String,
}

impl Heard {
    fn hear(&mut self, part: Part<'_>) {
        let channel = match part {
            Part::Text(said) => Some(said.channel),
            Part::LineEnd(channel) => Some(channel),
            Part::Call(..) => None,
        };
        if channel != self.channel && self.channel == Some(Channel::Thinking) {
            self.script.push('}');
        }
        if channel != self.channel && channel == Some(Channel::Thinking) {
            self.script.push('{');
        }
        self.channel = channel;
        match part {
            Part::Text(said) => self.script.push_str(said.text),
            Part::LineEnd(_) => self.script.push('\n'),
            Part::Call(call, CallPart::Begin(name)) => {
                write!(self.script, "[{call} {name}(").unwrap();
                name.clone_into(&mut self.name);
                self.arguments.clear();
            }
            Part::Call(_, CallPart::Arguments(json)) => {
                self.script.push_str(json);
                self.arguments.push_str(json);
            }
            Part::Call(_, CallPart::End(written)) => {
                write!(self.script, ")={written:?}]").unwrap();
                let arguments = serde_json::from_str(&self.arguments).unwrap();
                self.calls.push((self.name.clone(), arguments));
            }
            Part::Call(_, CallPart::Broken) => {
                let complete = serde_json::from_str::<Value>(&self.arguments).is_ok();
                assert!(!complete, "a broken call must not look whole: {}", self.arguments);
                self.script.push_str("✗]");
            }
        }
    }
}

fn hear(name: &str, tools: &[Value], pieces: &[&str]) -> Heard {
    let tags = ThinkingTags::new("<think>", "</think>").unwrap();
    let calls = Some(Arc::new(Definitions::new(tools)));
    let form = AnswerForm { dialect: Some(dialect(name)), calls };
    let mut splitter = AnswerSplitter::new(tags, ThinkingState::None, &form);
    let whole = pieces.concat();
    let mut heard = Heard::default();
    let mut hear = |part: Part<'_>| {
        if let Part::Text(said) = part {
            assert!(whole[said.at..].starts_with(said.text), "{said:?} of {whole}");
        }
        heard.hear(part);
    };
    for piece in pieces {
        splitter.push(piece).for_each(&mut hear);
    }
    splitter.finish("").for_each(&mut hear);
    splitter.called_as_thought().for_each(hear);
    heard
}

/// Every dialect, a text, and what it comes to.
const CASES: &[(&str, &str, &str)] = &[
    // Text around calls, several of them, and the white space between.
    (
        "hermes",
        "I look.\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"}<\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>\n",
        "I look.[0 look({\"city\": \"}<\"})=Some(\"{\\\"city\\\": \\\"}<\\\"}\")][1 noop({})=Some(\"{}\")]",
    ),
    ("hermes", "a\n<tool_call> b", "a\n<tool_call> b"),
    ("hermes", "no call, a < b  ", "no call, a < b  "),
    // Other orders and names of the same; text behind; no closing tag.
    (
        "hermes",
        "<tool_call>{\"arguments\": {\"a\":1}, \"name\": \"f\"}</tool_call>\nDone.",
        "[0 f({\"a\":1})=None]Done.",
    ),
    ("hermes", "<tool_call>{\"name\": \"f\", \"parameters\": \"{}\"}", "[0 f({})=None]"),
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": [\"}\"]}",
        "[0 f({})=Some(\"{}\")]",
    ),
    // Cut, malformed, no object, no name.
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        "[0 f({\"a\": \"b✗]<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {a}}</tool_call>",
        "[0 f({a✗]<tool_call>{\"name\": \"f\", \"arguments\": {a}}</tool_call>",
    ),
    ("hermes", "<tool_call>{\"arguments\": {}}", "<tool_call>{\"arguments\": {}}"),
    ("hermes", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>"),
    // One that is begun again.
    (
        "hermes",
        "<tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}",
        "<tool_call>[0 f({})=Some(\"{}\")]",
    ),
    // Thinking before it, and calls that are thought about.
    (
        "hermes",
        "<think>\nuse <tool_call>{}\n</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        "{use <tool_call>{}}[0 f({})=Some(\"{}\")]",
    ),
    // Thoughts that are not closed and end with calls, and such that do not.
    (
        "qwen_xml",
        "<think>\nI use <tool_call>: so\n<tool_call>\n<function=noop>\n</function>\n</tool_call>\n<tool_call>\n<function=look>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n",
        "{I use <tool_call>: so\n<tool_call>\n<function=noop>\n</function>\n</tool_call>\n<tool_call>\n<function=look>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n}[0 noop({})=Some(\"\\n\")][1 look({\"days\": 3})=Some(\"\\n<parameter=days>\\n3\\n</parameter>\\n\")]",
    ),
    (
        "qwen_xml",
        "<think>\n<tool_call>\n<function=look>\n<parameter=city>\na <function=b> c\n</parameter>\n</function>\n</tool_call>",
        "{<tool_call>\n<function=look>\n<parameter=city>\na <function=b> c\n</parameter>\n</function>\n</tool_call>}[0 look({\"city\": \"a <function=b> c\"})=Some(\"\\n<parameter=city>\\na <function=b> c\\n</parameter>\\n\")]",
    ),
    (
        "hermes",
        "<think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n</think>\n<think>\n",
        "{<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
    ),
    (
        "hermes",
        "<think>\nso <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> or not",
        "{so <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> or not",
    ),
    (
        "hermes",
        "<think>\nso <tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
        "{so <tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
    ),
    (
        "qwen_xml",
        "<tool_call>\n<function=look>\n<parameter=city>\nline\n<b> \"é\"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "[0 look({\"city\": \"line\\n<b> \\\"é\\\"\\n\", \"days\": 3})=Some(\"\\n<parameter=city>\\nline\\n<b> \\\"é\\\"\\n\\n</parameter>\\n<parameter=days>\\n3\\n</parameter>\\n\")]",
    ),
    // A value that spells the tags.
    (
        "qwen_xml",
        "<tool_call><function=look><parameter=city></parameter> x</parameter></function></tool_call>",
        "[0 look({\"city\": \"</parameter> x\"})=Some(\"<parameter=city></parameter> x</parameter>\")]",
    ),
    // Without the outer tag, or the inner end.
    (
        "qwen_xml",
        "Now:\n<function=noop>\n</function>\n</tool_call>",
        "Now:[0 noop({})=Some(\"\\n\")]",
    ),
    (
        "qwen_xml",
        "<tool_call><function=look><parameter=days>4</parameter></tool_call>.",
        "[0 look({\"days\": 4})=Some(\"<parameter=days>4</parameter>\")].",
    ),
    // The other dialect of the same family.
    (
        "qwen_xml",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "[0 f({})=None]",
    ),
    // A text, a number or nothing.
    (
        "qwen_xml",
        "<function=look><parameter=either>5</parameter><parameter=city>null</parameter></function>",
        "[0 look({\"either\": 5, \"city\": \"null\"})=Some(\"<parameter=either>5</parameter><parameter=city>null</parameter>\")]",
    ),
    (
        "qwen_xml",
        "<function=look><parameter=days>many</parameter></function>",
        "[0 look({\"days\": \"many\"})=Some(\"<parameter=days>many</parameter>\")]",
    ),
    (
        "qwen_xml",
        "<function=look><parameter=city>Par",
        "[0 look({\"city\": \"Par✗]<function=look><parameter=city>Par",
    ),
    ("qwen_xml", "use <function=some name> so", "use <function=some name> so"),
    (
        "glm",
        "<think>hm</think>So:\n<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome\n</arg_value>\n<arg_key>opts</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call><tool_call>noop</tool_call>",
        "{hm}So:[0 look({\"city\": \"Rome\\n\", \"opts\": {\"a\":[1]}})=Some(\"\\n<arg_key>city</arg_key>\\n<arg_value>Rome\\n</arg_value>\\n<arg_key>opts</arg_key>\\n<arg_value>{\\\"a\\\": [1]}</arg_value>\\n\")][1 noop({})=Some(\"\")]",
    ),
    (
        "glm",
        "<tool_call>look<arg_key>city</arg_key>x",
        "[0 look({✗]<tool_call>look<arg_key>city</arg_key>x",
    ),
    (
        "minimax",
        "Ok.\n<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"city\">Bern</parameter>\n</invoke>\n<invoke name=\"noop\">\n</invoke>\n</minimax:tool_call>",
        "Ok.[0 look({\"city\": \"Bern\"})=Some(\"\\n<parameter name=\\\"city\\\">Bern</parameter>\\n\")][1 noop({})=Some(\"\\n\")]",
    ),
    (
        "minimax",
        "<minimax:tool_call><invoke name=\"noop\"></invoke><invoke name=\"look\"><parameter name=\"days\">x</parameter></invoke></minimax:tool_call>",
        "[0 noop({})=Some(\"\")][1 look({\"days\": \"x\"})=Some(\"<parameter name=\\\"days\\\">x</parameter>\")]",
    ),
    (
        "mistral",
        "Hm [TOOL_CALLS]look[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]noop[CALL_ID]abcdefghi[ARGS]{}",
        "Hm[0 look({\"city\": \"Oslo\"})=Some(\"{\\\"city\\\": \\\"Oslo\\\"}\")][1 noop({})=Some(\"{}\")]",
    ),
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {}, \"id\": \"123456789\"}, {\"name\": \"noop\", \"arguments\": {}}]",
        "[0 look({})=Some(\"{}\")][1 noop({})=Some(\"{}\")]",
    ),
    (
        "mistral",
        "[TOOL_CALLS]look[ARGS]{\"city\"",
        "[0 look({\"city\"✗][TOOL_CALLS]look[ARGS]{\"city\"",
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>noop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "[0 look({\"days\": 1})=Some(\"{\\\"days\\\": 1}\")][1 noop({})=Some(\"{}\")]",
    ),
    (
        "deepseek",
        "Yes.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"days\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>",
        "Yes.[0 look({\"days\": 1})=Some(\"{\\\"days\\\": 1}\")]",
    ),
    (
        "deepseek",
        "<｜tool▁call▁begin｜>look<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>look<｜tool▁sep｜>",
    ),
    (
        "kimi",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|><|tool_call_begin|>functions.noop:1 <|tool_call_argument_begin|> {}<|tool_call_end|><|tool_calls_section_end|>",
        "I look.[0 look({\"days\": 1})=Some(\"{\\\"days\\\": 1}\")][1 noop({})=Some(\"{}\")]",
    ),
    // Without the outer marks, and names that are no ids.
    (
        "kimi",
        "<|tool_call_begin|>noop<|tool_call_argument_begin|>{}<|tool_call_end|>\n<|tool_call_begin|>functions.mcp:look:12<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "[0 noop({})=Some(\"{}\")][1 mcp:look({})=Some(\"{}\")]",
    ),
    // Arguments are those of the call that they stand in.
    (
        "kimi",
        "<|tool_call_begin|>functions.noop:0<|tool_call_argument_begin|><|tool_call_end|><|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|>",
        "<|tool_call_begin|>functions.noop:0<|tool_call_argument_begin|><|tool_call_end|>[0 look({\"days\": 1})=Some(\"{\\\"days\\\": 1}\")]",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"days\": ",
        "[0 look({\"days\": ✗]<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"days\": ",
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"days\": 1}",
        "{Hm.}[0 look({\"days\": 1})=Some(\"{\\\"days\\\": 1}\")]",
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes <|x|>.<|return|>",
        "{Hm.}Yes <|x|>.",
    ),
    (
        "harmony",
        " to=functions.noop<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>commentary<|message|>Wait.",
        "[0 noop({})=Some(\"{}\")]Wait.",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.look<|message|>{\"a\": ",
        "[0 look({\"a\": ✗]<|channel|>commentary to=functions.look<|message|>{\"a\": ",
    ),
    ("harmony", "just text", "just text"),
    // A text without a header, whatever follows it, and a header without a text.
    ("harmony", "Hello<|return|>", "Hello"),
    (
        "harmony",
        "to be, <|end|><|start|>assistant<|channel|>final<|message|>or not",
        "to be, \nor not",
    ),
    // Several messages of a channel, one of which says nothing.
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>Oh.<|end|><|start|>assistant<|channel|>analysis<|message|>\
         <|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "{Hm.}I look.{\nOh.}\nYes.",
    ),
    // A call that is none stands in a line of its own, and so does what follows it.
    (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.look<|message|>{1}<|call|><|start|>assistant<|channel|>final<|message|>Sorry.",
        "I look.[0 look({1✗]\n<|start|>assistant<|channel|>commentary to=functions.look<|message|>{1}\nSorry.",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.look<|message|>\n {\"days\": 1}<|call|>",
        "[0 look({\"days\": 1})=Some(\"\\n {\\\"days\\\": 1}\")]",
    ),
    ("harmony", "assistant says hi<|start|>assistant", "assistant says hi"),
    ("harmony", "<|channel|>final Yes, so it is.<|return|>", " Yes, so it is."),
    ("harmony", "<|channel|>analysis so it is", "{ so it is"),
    ("harmony", "<|channel|>final<|return|>", ""),
    ("harmony", "<|channel|>commentary to=functions.look <|constrain|>json<|end|>", ""),
    ("harmony", " to=functions.look<|channel|>commentary", ""),
    ("harmony", "<|start|>user<|message|>Hm?", "Hm?"),
    (
        "harmony",
        "<|channel|>a channel of this name has nobody ever seen, and whoever waits for the mark of its message waits for as long \
         as the model likes to write, and hears of none of it: all that it says would be a header without a message, so here it \
         ends, behind as many letters as no header has, and is told <|message|>.",
        "a channel of this name has nobody ever seen, and whoever waits for the mark of its message waits for as long \
         as the model likes to write, and hears of none of it: all that it says would be a header without a message, so here it \
         ends, behind as many letters as no header has, and is told <|message|>.",
    ),
];

#[test]
fn every_dialect_tells_calls_from_text() {
    for (name, text, expected) in CASES {
        assert_eq!(hear(name, &tools(), &[text]).script, *expected, "{name}: {text}");
    }
}

/// Templates show the model how it calls, in the very words.
#[test]
fn a_template_that_shows_calls_has_their_dialect() {
    for dialect in DIALECTS {
        let calls = |script: &str| script.contains(")=");
        let shown = CASES.iter().find(|(name, _, script)| *name == dialect.name && calls(script));
        let (_, text, _) = shown.expect("every dialect has a call here");
        assert_eq!(Dialect::of_template(text).unwrap().name, dialect.name, "{text}");
        let marks = dialect.first_marks();
        for opening in [dialect.opening(None), dialect.opening(Some("look"))] {
            let begins = marks.iter().any(|mark| opening.starts_with(mark));
            assert!(begins || marks.is_empty(), "{dialect:?} is begun with {opening}");
        }
    }
}

#[test]
fn one_letter_at_a_time_is_the_same() {
    for (name, text, expected) in CASES {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(hear(name, &tools(), &letters).script, *expected, "{name}: {text}");
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    let before = ["<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"abc"];
    let heard = |more: &[&str]| hear("hermes", &[], &[&before, more].concat()).script;
    assert!(heard(&[]).starts_with("[0 f({\"text\": \"abc✗]"));
    let before = ["<function=look><parameter=city>\nabc"];
    let heard = |more: &[&str]| hear("qwen_xml", &tools(), &[&before, more].concat()).script;
    assert!(heard(&[" d"]).starts_with("[0 look({\"city\": \"abc d✗]"));
}

/// Fragments of a dialect's texts, with which nonsense is made that looks like calls.
fn fragments(name: &str) -> Vec<String> {
    let texts = CASES.iter().filter(|(own, ..)| *own == name).map(|(_, text, _)| *text);
    let mut fragments = vec![String::from("\n"), String::from(" "), String::from("é")];
    for text in texts {
        let mut piece = String::new();
        for c in text.chars() {
            if matches!(c, '<' | '{' | '[') && !piece.is_empty() {
                fragments.push(std::mem::take(&mut piece));
            }
            piece.push(c);
            if matches!(c, '>' | '}' | ']') {
                fragments.push(std::mem::take(&mut piece));
            }
        }
        fragments.push(piece);
        fragments.push(text.to_owned());
    }
    fragments.retain(|fragment| !fragment.is_empty());
    fragments
}

fn texts() -> impl Strategy<Value = (&'static str, String)> {
    prop::sample::select(DIALECTS.iter().map(|dialect| dialect.name).collect::<Vec<_>>())
        .prop_flat_map(|name| {
            let parts = prop::collection::vec(prop::sample::select(fragments(name)), 0..12);
            parts.prop_map(move |parts| (name, parts.concat()))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn pieces_do_not_change_what_is_called(
        (name, text) in texts(),
        sizes in prop::collection::vec(1usize..9, 1..6),
    ) {
        let chars: Vec<char> = text.chars().collect();
        let (mut pieces, mut at) = (Vec::new(), 0);
        for size in sizes.iter().cycle() {
            if at >= chars.len() {
                break;
            }
            let end = (at + size).min(chars.len());
            pieces.push(chars[at..end].iter().collect::<String>());
            at = end;
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(hear(name, &tools(), &pieces), hear(name, &tools(), &[&text]));
    }
}

/// Arguments with null for a text that spells it: the other implementation takes even a string's for that.
fn nothing(arguments: &Value) -> Value {
    let mut arguments = arguments.clone();
    let values = arguments.as_object_mut().into_iter().flat_map(|map| map.values_mut());
    values.filter(|value| **value == "null").for_each(|value| *value = Value::Null);
    arguments
}

/// Cases of another implementation, from a folder that is not part of the repository.
#[test]
fn calls_are_what_another_implementation_reads() {
    let Some(folder) = env::var_os("FLASH_MOE_CHAT_GOLDENS").map(PathBuf::from) else {
        #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
        {
            eprintln!("skipped: FLASH_MOE_CHAT_GOLDENS is not set");
        }
        return;
    };
    let text = fs::read_to_string(folder.join("tool_calls.json")).unwrap();
    let goldens: Value = serde_json::from_str(&text).unwrap();
    let tools = goldens["tools"].as_array().unwrap();
    let cases = goldens["cases"].as_array().unwrap();
    for case in cases {
        let (name, open, close) = match case["parser"].as_str().unwrap() {
            "qwen3_coder" => ("qwen_xml", "<tool_call>\n", "\n</tool_call>"),
            "json_tools" => ("hermes", "<tool_call>", "</tool_call>"),
            "glm47" => ("glm", "<tool_call>", "</tool_call>"),
            "minimax_m2" => ("minimax", "<minimax:tool_call>\n", "\n</minimax:tool_call>"),
            other => panic!("{other}"),
        };
        let body = case["text"].as_str().unwrap();
        let text = [open, body, close].concat();
        let heard = hear(name, tools, &[&text]);
        let calls: Vec<Value> = heard
            .calls
            .iter()
            .map(|(name, arguments)| json!({"name": name, "arguments": nothing(arguments)}))
            .collect();
        let expected = match &case["result"] {
            Value::Array(list) => list.clone(),
            // The other implementation has no call where a parameter is not of its type; here whoever is called says so.
            _ if body.contains("<parameter=days>\nabc\n") => {
                vec![json!({"name": "get_weather", "arguments": {"days": "abc"}})]
            }
            result if result.get("error").is_some() => {
                assert!(heard.script.ends_with(&text), "nothing is lost: {}", heard.script);
                Vec::new()
            }
            one => vec![one.clone()],
        };
        assert_eq!(calls, expected, "{name}: {text}");
    }
    assert_eq!(cases.len(), 19);
}
