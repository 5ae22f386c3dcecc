//! Grammars of calls: what templates write is let through, and what is let through is a call that can
//! be read, with arguments as the schema wants them.

use fm_text::{
    AnswerForm, AnswerSplitter, CallPart, Definitions, Dialect, Part, ThinkingState, ThinkingTags,
    tools::{Callable, Calls, DIALECTS},
};

use std::path::Path;

use super::{tests::demo, *};

/// Every dialect with two calls as its templates write them, and whether arguments are in tags.
const WRITTEN: &[(&str, &str)] = &[
    (
        "hermes",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"P <é>\", \"days\": 3}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>",
    ),
    ("mistral", "[TOOL_CALLS]look[ARGS]{\"city\": \"P <é>\", \"days\": 3}[TOOL_CALLS]noop[ARGS]{}"),
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {\"city\": \"P <é>\", \"days\": 3}}, \
         {\"name\": \"noop\", \"arguments\": {}}]",
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"city\": \"P <é>\", \"days\": 3}\
         <｜tool▁call▁end｜><｜tool▁call▁begin｜>noop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n\
         {\"city\": \"P <é>\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
         <｜tool▁sep｜>noop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>\
         {\"city\": \"P <é>\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.noop:1\
         <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "qwen_xml",
        "<tool_call>\n<function=look>\n<parameter=city>\nP <é>\n</parameter>\n<parameter=days>\n3\n\
         </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=noop>\n</function>\n</tool_call>",
    ),
    (
        "glm",
        "<tool_call>look<arg_key>city</arg_key><arg_value>P <é></arg_value><arg_key>days</arg_key>\
         <arg_value>3</arg_value></tool_call><tool_call>noop</tool_call>",
    ),
    (
        "glm",
        "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>P <é></arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>3</arg_value>\n</tool_call>\n<tool_call>noop\n</tool_call>",
    ),
    (
        "minimax",
        "<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"city\">P <é></parameter>\n\
         <parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"noop\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"city\": \"P <é>\", \"days\": 3}",
    ),
    (
        "harmony",
        " to=functions.look<|channel|>commentary <|constrain|>json<|message|>{\"city\": \"P <é>\", \"days\": 3}",
    ),
];

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "a name"},
            "days": {"type": "integer"},
            "sure": {"type": "boolean"},
            "unit": {"enum": ["C", "F"]},
            "range": {"$ref": "#/$defs/range"},
        },
        "required": ["city"],
        "additionalProperties": false,
        "$defs": {"range": {
            "type": "object", "properties": {"from": {"type": "number"}, "to": {"type": "number"}},
            "required": ["from"], "additionalProperties": false,
        }},
    });
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    vec![tool("look", &parameters), tool("noop", &none)]
}

pub(super) fn dialect(name: &str) -> &'static Dialect {
    DIALECTS.iter().find(|dialect| dialect.name == name).unwrap()
}

pub(super) fn with_calls<T>(tools: &[Value], write: impl FnOnce(Calls<'_>) -> T) -> T {
    let functions = tools.iter().map(|tool| Callable {
        name: tool["function"]["name"].as_str().unwrap(),
        parameters: Some(&tool["function"]["parameters"]),
    });
    let functions: Vec<_> = functions.collect();
    write(Calls { functions: &functions, json: json_rule, thoughts: true })
}

/// A grammar at its start.
pub(super) struct Start {
    constraint: Constraint,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// The text may end here.
    Whole,
    /// It may go on only.
    Begun,
    /// The bytes that are let through.
    Refused(usize),
}

impl Start {
    pub(super) fn of(grammars: &Arc<Grammars>, lark: &str) -> Self {
        let compiled = grammars.constraint(Grammar::Calls(lark.to_owned()));
        Self { constraint: compiled.unwrap_or_else(|error| panic!("{error}\n{lark}")) }
    }

    fn words(&self) -> &Words {
        self.constraint.grammars.words().unwrap()
    }

    pub(super) fn verdict(&self, text: &str) -> Verdict {
        let mut matcher = self.constraint.matcher();
        let trie = self.words().factory.tok_env().tok_trie();
        let mut read = 0;
        for token in trie.greedy_tokenize(text.as_bytes()) {
            if matcher.is_stopped() || matcher.count_allowed(&[token]).unwrap() == 0 {
                return Verdict::Refused(read);
            }
            read += trie.token(token).len();
            matcher.consume_token(token).unwrap();
        }
        let whole = matcher.is_stopped() || matcher.is_accepting();
        if whole { Verdict::Whole } else { Verdict::Begun }
    }
}

/// The calls that a reader of the dialect hears, and what was said beside them.
pub(super) fn read(
    dialect: &'static Dialect,
    tools: &[Value],
    text: &str,
) -> (Vec<(String, String)>, String) {
    let tags = ThinkingTags::new("<think>", "</think>").unwrap();
    let calls = Some(Arc::new(Definitions::new(tools)));
    let form = AnswerForm { dialect: Some(dialect), calls };
    let mut splitter = AnswerSplitter::new(tags, ThinkingState::Closed, &form);
    let (mut heard, mut said, mut open) = (Vec::new(), String::new(), None);
    let mut hear = |part: Part<'_>| match part {
        Part::Text(text) => said.push_str(text.text),
        Part::LineEnd(_) => said.push('\n'),
        Part::Call(_, CallPart::Begin(name)) => open = Some((name.to_owned(), String::new())),
        Part::Call(_, CallPart::Arguments(json)) => open.as_mut().unwrap().1.push_str(json),
        Part::Call(_, CallPart::End(_)) => heard.extend(open.take()),
        Part::Call(_, CallPart::Broken) => open = None,
    };
    splitter.push(text).for_each(&mut hear);
    splitter.finish("").for_each(hear);
    (heard, said)
}

/// A second opinion on the schemas above.
fn is_valid(name: &str, arguments: &str) -> bool {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let map = arguments.as_object().unwrap();
    let number = |value: &Value| value.is_number();
    let range = |value: &Value| {
        let map = value.as_object().unwrap();
        map.contains_key("from") && map.iter().all(|(k, v)| (k == "from" || k == "to") && number(v))
    };
    let property = |(key, value): (&String, &Value)| match key.as_str() {
        "city" => value.is_string(),
        "days" => value.as_f64().is_some_and(|days| days.fract() == 0.0),
        "sure" => value.is_boolean(),
        "unit" => value == "C" || value == "F",
        "range" => range(value),
        _ => false,
    };
    match name {
        "look" => map.contains_key("city") && map.iter().all(property),
        "noop" => map.is_empty(),
        _ => false,
    }
}

#[test]
fn what_templates_write_is_let_through_alone_behind_an_opening_and_in_text() {
    let (grammars, tools) = (super::tests::grammars(&demo()), tools());
    for (name, written) in WRITTEN {
        let dialect = dialect(name);
        let alone = |opening: &str| with_calls(&tools, |calls| dialect.calls_alone(calls, opening));
        let start = Start::of(&grammars, &alone("").unwrap());
        assert_eq!(start.verdict(written), Verdict::Whole, "{name}: {written}");
        assert_ne!(start.verdict(&format!("{written} so")), Verdict::Whole, "{name}");
        for opening in [dialect.opening(None), dialect.opening(Some("look"))] {
            let Some(rest) = written.strip_prefix(&opening) else { continue };
            let start = Start::of(&grammars, &alone(&opening).unwrap());
            assert_eq!(start.verdict(rest), Verdict::Whole, "{name} behind {opening:?}");
        }
        let lark = with_calls(&tools, |calls| dialect.calls_in_text(calls));
        let start = Start::of(&grammars, &lark);
        if *name == "harmony" {
            assert_eq!(start.verdict(written), Verdict::Whole, "{written}");
            let answer = json_rule(json!({"const": 5}));
            let lark = with_calls(&tools, |calls| dialect.calls_or(calls, &answer)).unwrap();
            let start = Start::of(&grammars, &lark);
            assert_eq!(start.verdict(written), Verdict::Whole, "{written}");
            assert_eq!(start.verdict("<|channel|>final<|message|>5"), Verdict::Whole);
            for other in ["<|channel|>final<|message|>6", "<|channel|>commentary<|message|>5"] {
                assert!(matches!(start.verdict(other), Verdict::Refused(_)), "{other}");
            }
            continue;
        }
        for text in ["", "no call, a < b [x] {\"y\": 1}\n\n<tool", written] {
            assert_eq!(start.verdict(text), Verdict::Whole, "{name}: {text}");
        }
        let around = format!("I look.\n\n{written}\n\nSo be it, a < b.");
        assert_eq!(start.verdict(&around), Verdict::Whole, "{name}: {around}");
        let (calls, _) = read(dialect, &tools, &around);
        assert_eq!(calls.len(), 2, "{name}");
    }
}

#[test]
fn other_names_and_arguments_are_not() {
    let (grammars, tools) = (super::tests::grammars(&demo()), tools());
    // What stands in a call, and what makes it another one.
    let changes = [
        ("look", "hook"),
        ("city", "town"),
        ("\"P <é>\"", "5"),
        ("days\": 3", "days\": \"3\""),
        ("days\": 3", "days\": 3.5"),
        (">\n3\n", ">\nthree\n"),
        ("<arg_value>3", "<arg_value>three"),
        (">3</parameter>", ">three</parameter>"),
        ("\"city\": \"P <é>\", ", ""),
        ("<parameter=city>\nP <é>\n</parameter>\n", ""),
        ("<arg_key>city</arg_key><arg_value>P <é></arg_value>", ""),
        ("<parameter name=\"city\">P <é></parameter>\n", ""),
    ];
    for (name, written) in WRITTEN {
        let dialect = dialect(name);
        let alone = with_calls(&tools, |calls| dialect.calls_alone(calls, "")).unwrap();
        let in_text = with_calls(&tools, |calls| dialect.calls_in_text(calls));
        let starts = [alone, in_text].map(|lark| Start::of(&grammars, &lark));
        let mut changed = 0;
        for (from, to) in changes {
            let text = written.replacen(from, to, 1);
            if text == *written {
                continue;
            }
            changed += 1;
            for start in &starts {
                let refused = matches!(start.verdict(&text), Verdict::Refused(_));
                assert!(refused, "{name}: {text}");
            }
        }
        assert!(changed >= 3, "{name}: {changed}");
    }
}

/// Texts of a grammar, put together at random from what it lets through.
fn wander(start: &Start, seed: u64, ends: &[&str]) -> Option<String> {
    let trie = start.words().factory.tok_env().tok_trie();
    let mut matcher = start.constraint.matcher();
    let mut random = seed;
    let mut next = |below: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut text = Vec::new();
    for _ in 0..600 {
        if matcher.is_stopped() {
            return String::from_utf8(text).ok();
        }
        let mut mask = matcher.compute_mask().unwrap();
        mask.and(start.words().letters(Letters::AndMarks));
        let may_end = mask.is_allowed(start.words().end);
        mask.disallow_token(start.words().end);
        if mask.is_zero() || (may_end && next(4) == 0) {
            return may_end.then(|| String::from_utf8(text).ok()).flatten();
        }
        // What ends strings and values is one token among thousands.
        let ending = trie.greedy_tokenize(ends[next(ends.len())].as_bytes());
        let tokens = if matcher.count_allowed(&ending).unwrap() == ending.len() && next(2) == 0 {
            ending
        } else {
            let allowed: Vec<u32> = mask.iter().collect();
            vec![allowed[next(allowed.len())]]
        };
        for token in tokens {
            text.extend_from_slice(trie.token(token));
            matcher.consume_token(token).unwrap();
        }
    }
    None
}

fn has_huge_number(text: &str) -> bool {
    let exponents = text.split(['e', 'E']).skip(1);
    let digits = |rest: &str| {
        rest.trim_start_matches(['+', '-']).chars().take_while(char::is_ascii_digit).count()
    };
    exponents.map(digits).any(|digits| digits > 2)
}

#[test]
fn whatever_is_let_through_is_a_call_that_can_be_read() {
    let (grammars, tools) = (super::tests::grammars(&demo()), tools());
    let ends = ["\"", "}", "</parameter>", "</arg_value>", ", ", "3", "\"}"];
    for dialect in DIALECTS {
        let lark = with_calls(&tools, |calls| dialect.calls_alone(calls, "")).unwrap();
        let start = Start::of(&grammars, &lark);
        let texts = (0..60).filter_map(|seed| wander(&start, seed, &ends));
        let texts: Vec<String> = texts.collect();
        assert!(texts.len() > 20, "{}: {} texts", dialect.name, texts.len());
        // Numbers have no bounds in JSON; those that no f64 holds cannot be read, and their call is text.
        for text in texts.into_iter().filter(|text| !has_huge_number(text)) {
            let (calls, said) = read(dialect, &tools, &text);
            assert!(!calls.is_empty(), "{}: {text}", dialect.name);
            assert_eq!(said, "", "{}: {text}", dialect.name);
            for (name, arguments) in calls {
                assert!(is_valid(&name, &arguments), "{}: {text}\n{arguments}", dialect.name);
            }
        }
    }
}

/// The demonstration model's tokenizer, with special tokens for Mistral's marks.
fn with_marks() -> Arc<Tokenizer> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for mark in ["[TOOL_CALLS]", "[ARGS]"] {
        let mut token = added.last().unwrap().clone();
        token["id"] = (token["id"].as_u64().unwrap() + 1).into();
        token["content"] = mark.into();
        token["special"] = true.into();
        added.push(token);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    Arc::new(Tokenizer::open(dir.path(), None).unwrap())
}

#[test]
fn marks_that_are_special_tokens_are_letters_of_calls_and_of_nothing_else() {
    let (tokenizer, tools) = (with_marks(), tools());
    let [open, arguments] =
        ["[TOOL_CALLS]", "[ARGS]"].map(|mark| tokenizer.token_id(mark).unwrap());
    assert!(tokenizer.is_special(open) && tokenizer.is_special(arguments));
    let grammars =
        Grammars::new(Arc::clone(&tokenizer), tokenizer.vocab_len(), vec![5], Room::default());
    let lark = with_calls(&tools, |calls| dialect("mistral").calls_in_text(calls));
    let allows = |constraint: &Constraint, text: &[u32], token: u32| {
        let mut matcher = constraint.matcher();
        text.iter().for_each(|token| matcher.consume_token(*token).unwrap());
        match follower::next_mask(&mut matcher, grammars.words().unwrap(), constraint.letters()) {
            Heard::Mask(mask) => mask.has(token),
            _ => panic!("the text cannot go on"),
        }
    };
    let calls = grammars.constraint(Grammar::Calls(lark.clone())).unwrap();
    let encode = |text| tokenizer.encode(text, fm_text::SpecialTokens::AsText).unwrap();
    let name = encode("noop");
    assert!(allows(&calls, &[], open) && allows(&calls, &encode("I look. "), open));
    assert!(!allows(&calls, &[open], open) && allows(&calls, &[open], name[0]));
    let named = [&[open], name.as_slice()].concat();
    assert!(allows(&calls, &named, arguments) && !allows(&calls, &[], 5));
    // Whoever sends a grammar of their own cannot write them.
    let own = grammars.constraint(Grammar::Lark(lark)).unwrap();
    assert!(!allows(&own, &[], open) && allows(&own, &[], name[0]));
}
