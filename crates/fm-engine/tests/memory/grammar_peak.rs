//! Whatever a grammar is, it takes no more memory than is planned for grammars.

use std::{sync::Arc, thread, time::Duration};

use fm_engine::{
    Load,
    generate::{FinishReason, Generation, Request},
    grammar::{Constraint, Grammar, GrammarError, Grammars, Room},
    local::read_stats,
    options::EngineOptions,
    sampler::Sampling,
};
use fm_testkit::{
    counting_alloc::{live_bytes, peak_bytes, reset_peak},
    golden::demo_dir,
};
use fm_text::{ThinkingState, Tokenizer};
use serde_json::{Value, json};

use crate::{alone, open};

fn grammars(room: Room) -> Arc<Grammars> {
    let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
    let grammars = Grammars::build(&tokenizer, tokenizer.vocab_len(), &[], room).unwrap();
    // What is built once by whatever comes first.
    grammars.constraint(Grammar::Json).unwrap();
    grammars
}

/// What came of a grammar, however long that took.
fn compiled(grammars: &Arc<Grammars>, grammar: &Grammar) -> Result<Constraint, GrammarError> {
    loop {
        match grammars.constraint(grammar.clone()) {
            Err(GrammarError::TooSlow) => {}
            outcome => return outcome,
        }
    }
}

fn regex(text: String) -> Grammar {
    Grammar::Regex(text)
}

fn repeated(count: usize, part: impl Fn(usize) -> String) -> String {
    (0..count).map(part).collect()
}

fn letter(at: usize) -> char {
    char::from(b'a' + (at % 26) as u8)
}

/// Words of as many kinds as this, each of which may go on for some letters.
fn kinds(count: usize) -> Grammar {
    let names: Vec<String> = (0..count).map(|at| format!("A{at}")).collect();
    let rules = repeated(count, |at| format!("A{at}: /[a-z]{{1,{}}}{at}x{at}/\n", at + 1));
    Grammar::Lark(format!("start: ({})*\n{rules}", names.join("|")))
}

fn nested(part: &str, count: usize) -> String {
    format!("{}{}{}", "(".repeat(100), part.repeat(count), ")c".repeat(100))
}

/// Grammars whose memory has nothing to do with their length.
fn hostile() -> Vec<(&'static str, Grammar)> {
    let optional = |count| repeated(count, |at| format!("(.*{})?", letter(at)));
    let meeting = |pattern: String| json!({"type": "string", "allOf": [{"pattern": pattern}, {"pattern": "^a.*"}]});
    let doubled = repeated(16, |at| format!("T{}: T{at} T{at} \"x\"?\n", at + 1));
    let letters = repeated(60_000, |at| letter(at * at % 7919 + at / 77).to_string());
    vec![
        ("parts that may be empty", regex(optional(10_900))),
        ("fewer of them", regex(optional(700))),
        (
            "in a schema, where it has to hold with another",
            Grammar::JsonSchema(meeting(optional(10_000))),
        ),
        ("in a grammar", Grammar::Lark(format!("start: /{}/", optional(10_000)))),
        ("counted", regex(repeated(4000, |at| format!("(a|.{{0,{at}}})")))),
        ("letters that may be missing", regex("a?".repeat(32_000))),
        ("classes", regex(r"\w".repeat(32_000))),
        ("properties of letters", Grammar::Lark(format!("start: /{}/", r"\pL".repeat(21_000)))),
        ("dots", regex(".".repeat(65_536))),
        ("digits", regex(r"\d".repeat(32_000))),
        ("groups in groups", regex(nested("a?b", 20_000))),
        ("sets in groups", Grammar::JsonSchema(json!({"pattern": nested("[ab]c", 12_000)}))),
        ("words of words", Grammar::Lark(format!("start: T16\nT0: /[ab]?c/\n{doubled}"))),
        (
            "parts of a text",
            Grammar::Lark(format!("start: S\nS: %regex {}", json!({"substring_chars": letters}))),
        ),
        ("words", regex(repeated(9_000, |at| format!("{:06}|", at * 7919 % 999_983)))),
        ("remainders", Grammar::JsonSchema(json!({"type": "number", "multipleOf": 49_999}))),
        ("kinds of words", kinds(900)),
        ("choices", Grammar::Choice((0..5_000).map(|at| format!("{:06}", at * 7919)).collect())),
        (
            "ranges",
            Grammar::JsonSchema(json!({"anyOf": (0..800).map(|at| {
            json!({"type": "number", "minimum": f64::from(at) + 0.123_456, "maximum": 9e12 + f64::from(at)})
        }).collect::<Vec<_>>()})),
        ),
    ]
}

#[test]
fn no_grammar_takes_more_to_compile_than_there_is_for_all() {
    let _alone = alone();
    for shared in [16_000_000, Room::default().shared] {
        let room = Room { shared, ..Room::default() };
        let grammars = grammars(room);
        let before = live_bytes();
        for (name, grammar) in hostile() {
            reset_peak();
            let outcome = compiled(&grammars, &grammar).map(drop);
            let peak = peak_bytes() - before;
            // Its own text is there three times, in what asks for it.
            assert!(peak < shared + 2_000_000, "{name} took {peak} of {shared}: {outcome:?}");
        }
    }
}

/// Schemas of tools, as an agent has them, `count` of eight properties each.
fn tools(count: usize) -> String {
    let property = |at: usize| match at % 4 {
        0 => json!({"type": "string", "maxLength": 200, "description": "what is looked for"}),
        1 => json!({"type": "integer", "minimum": 0, "maximum": 1000}),
        2 => json!({"type": "array", "items": {"type": "string", "format": "date-time"}}),
        _ => json!({"enum": ["celsius", "fahrenheit", "kelvin"]}),
    };
    let tool = |tool: usize| {
        let properties: serde_json::Map<_, _> =
            (0..8).map(|at| (format!("property_{}", tool * 8 + at), property(at))).collect();
        let schema =
            json!({"type": "object", "properties": properties, "additionalProperties": false});
        format!("\"<tool_{tool}>\" %json {schema}")
    };
    (0..count).map(tool).collect::<Vec<_>>().join(" | ")
}

#[test]
fn what_people_write_is_taken_within_what_it_was_said_to_take() {
    let _alone = alone();
    let grammars = grammars(Room::default());
    let large: serde_json::Map<String, Value> = (0..150)
        .map(|at| {
            (
                format!("field_{at}"),
                json!({"type": "string", "pattern": format!("^[a-z]{{1,20}}-{at}$")}),
            )
        })
        .collect();
    let words = (0..1000).map(|at| format!("{:06x}", at * 7919)).collect::<Vec<_>>();
    let cases = [
        ("tools", Grammar::Calls(format!("start: ({})+", tools(500)))),
        ("a schema", Grammar::JsonSchema(json!({"type": "object", "properties": large}))),
        ("choices", Grammar::Choice(words[..500].to_vec())),
        ("an enumeration", Grammar::JsonSchema(json!({"enum": words}))),
        ("an expression", regex(r"^[\w.+-]+@(?:[\w-]+\.)+\w{2,}$".to_owned())),
        ("optional parts", regex(repeated(200, |at| format!("({}[0-9]+,)?", letter(at))))),
    ];
    for (name, grammar) in cases {
        let before = live_bytes();
        reset_peak();
        let outcome = compiled(&grammars, &grammar);
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
        assert!(peak_bytes() - before < Room::default().shared, "{name}");
    }
}

#[test]
fn a_text_holds_no_more_than_its_allowance() {
    let _alone = alone();
    let options = EngineOptions { context: Some(1024), ..EngineOptions::default() };
    let load = Load { grammars: true, ..Load::default() };
    let mut engine = open(&demo_dir(), &options, load);
    let room = engine.plan.grammars;
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let grammars = Grammars::build(tokenizer, engine.runner.vocab(), &engine.eos, room).unwrap();
    let constraint = grammars.constraint(kinds(900)).unwrap();
    let before = live_bytes();
    reset_peak();
    let request = Request {
        prompt: vec![5, 6, 7],
        sampling: Sampling { temperature: 2.0, seed: 1, ..Sampling::default() },
        max_tokens: Some(900),
        eos: engine.eos.clone(),
        thinking: ThinkingState::Closed,
        constraint: Some(constraint),
        context: 1024,
        ..Request::default()
    };
    let session = engine.runner.open(1024).unwrap();
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let generation =
        Generation::new(engine.runner.as_mut(), session, request, engine.tokenizer.as_ref(), &read)
            .unwrap();
    let written = generation.run(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let peak = peak_bytes() - before;
    assert!(peak < room.parser + 1_000_000, "{peak} of {}", room.parser);
    assert_eq!(written.finish, FinishReason::Grammar, "{:?}", written.text);
    assert!(written.tokens.len() > 4, "{:?}", written.text);
}

#[test]
fn many_grammars_that_wait_take_no_more_than_there_is_for_all() {
    let _alone = alone();
    let room = Room { shared: 16_000_000, ..Room::default() };
    let grammars = grammars(room);
    let before = live_bytes();
    reset_peak();
    let mut waiting = Vec::new();
    let full = loop {
        match compiled(&grammars, &kinds(500 + waiting.len())) {
            Ok(constraint) if waiting.len() < 100 => waiting.push(constraint),
            Ok(_) => panic!("a hundred wait"),
            Err(error) => break error,
        }
    };
    assert_eq!(full, GrammarError::Full);
    assert!(waiting.len() > 3, "{}", waiting.len());
    let peak = peak_bytes() - before;
    assert!(peak < room.shared, "{peak} for {}", waiting.len());
    // Room is there as soon as one has been answered.
    waiting.pop();
    assert!(compiled(&grammars, &kinds(400)).is_ok());
    // Those that nobody has are forgotten where others need room.
    drop(waiting);
    for at in 0..60 {
        compiled(&grammars, &kinds(300 + at)).unwrap();
    }
    thread::park_timeout(Duration::from_millis(1));
    let held = live_bytes() - before;
    assert!(held < room.shared, "{held}");
}
