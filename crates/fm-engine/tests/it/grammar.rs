//! Answers under a grammar: valid whatever the model would rather say.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fm_engine::{
    Engine, EngineError,
    generate::{FinishReason, Generated, Generation, Request},
    grammar::{Grammar, GrammarError, Grammars},
    local::read_stats,
    options::EngineOptions,
    sampler::Sampling,
    schedule::{Driven, Job, ScheduleOptions, Scheduler, Update},
};
use fm_testkit::noise::Noise;
use fm_text::{Message, RenderRequest, SpecialTokens, ThinkingState, ThinkingTags};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::open;

fn grammars(engine: &Engine) -> Arc<Grammars> {
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    Grammars::build(tokenizer, engine.runner.vocab(), &engine.eos, engine.plan.grammars).unwrap()
}

/// A question, to be answered with a grammar, wildly.
fn request(engine: &Engine, grammars: &Arc<Grammars>, grammar: Grammar, seed: u64) -> Request {
    Request {
        prompt: Noise::new(seed).tokens(12, 2000),
        sampling: Sampling { temperature: 2.0, seed, ..Sampling::default() },
        max_tokens: Some(200),
        eos: engine.eos.clone(),
        context: 256,
        thinking: ThinkingState::Closed,
        constraint: Some(grammars.constraint(grammar).unwrap()),
        ..Request::default()
    }
}

fn run(engine: &mut Engine, request: Request) -> Result<Generated, EngineError> {
    let session = engine.runner.open(256).unwrap();
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let tokenizer = engine.tokenizer.as_ref();
    let generation =
        Generation::new(engine.runner.as_mut(), session, request, tokenizer, &read).unwrap();
    let generated = generation.run(&mut |_| ControlFlow::Continue(()));
    engine.runner.close(session);
    generated
}

/// A schema whose texts are short.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"type": "string", "maxLength": 8})),
        Just(json!({"type": "integer", "minimum": -20, "maximum": 300})),
        Just(json!({"enum": ["a", "bé", 7, null, ["x"]]})),
        Just(json!({"type": "string", "pattern": "^[a-f]{2}-(日|本)$"})),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let named = ("[a-cé\"\\\\]{1,3}", inner.clone());
        prop_oneof![
            inner.clone().prop_map(|items| {
                json!({"type": "array", "items": items, "minItems": 1, "maxItems": 2})
            }),
            prop::collection::vec(inner, 1..3).prop_map(|any| json!({"anyOf": any})),
            prop::collection::vec(named, 1..3).prop_map(|properties| {
                let required: Vec<&str> = properties[..1].iter().map(|p| p.0.as_str()).collect();
                json!({
                    "type": "object",
                    "required": required,
                    "properties": properties.iter().cloned().collect::<serde_json::Map<_, _>>(),
                    "additionalProperties": false,
                })
            }),
        ]
    })
}

/// Whether a value is valid, by the words that [`schema`] uses.
fn valid(schema: &Value, value: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| valid(schema, value));
    }
    if let Some(of) = schema["enum"].as_array() {
        return of.contains(value);
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        // A number without a fraction is an integer, however it is written: -0.0 is one.
        "integer" => value
            .as_f64()
            .is_some_and(|number| number.fract() == 0.0 && (-20.0..=300.0).contains(&number)),
        "string" => value.as_str().is_some_and(|text| {
            if schema["pattern"].is_null() {
                return text.chars().count() <= 8;
            }
            let (letters, rest) = text.split_at(2);
            letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
                && ["-日", "-本"].contains(&rest)
        }),
        "array" => value.as_array().is_some_and(|list| {
            (1..=2).contains(&list.len()) && list.iter().all(|item| valid(&schema["items"], item))
        }),
        _ => value.as_object().is_some_and(|map| {
            let own = |name: &str| schema["properties"].get(name);
            let known =
                map.iter().all(|(name, value)| own(name).is_some_and(|of| valid(of, value)));
            known && map.contains_key(schema["required"][0].as_str().unwrap())
        }),
    }
}

#[test]
fn what_is_said_under_any_schema_is_valid_at_any_temperature() {
    let mut engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    let (mut seed, mut whole) = (0, 0);
    let cases = ProptestConfig { cases: 60, failure_persistence: None, ..<_>::default() };
    let mut runner = proptest::test_runner::TestRunner::new(cases);
    let engine = std::cell::RefCell::new(&mut engine);
    let counts = std::cell::RefCell::new((&mut seed, &mut whole));
    runner
        .run(&schema(), |schema| {
            let mut engine = engine.borrow_mut();
            let mut counts = counts.borrow_mut();
            *counts.0 += 1;
            let seed = *counts.0;
            let mut request =
                request(&engine, &grammars, Grammar::JsonSchema(schema.clone()), seed);
            if seed % 4 == 0 {
                request.sampling.temperature = 0.0;
            }
            let generated = run(&mut engine, request).unwrap();
            let text = generated.text.unwrap();
            if generated.finish == FinishReason::Stop {
                let value: Value = serde_json::from_str(&text).map_err(|error| {
                    TestCaseError::fail(format!("{text:?} under {schema}: {error}"))
                })?;
                prop_assert!(valid(&schema, &value), "{} under {}", value, schema);
                *counts.1 += 1;
            } else {
                prop_assert_eq!(generated.finish, FinishReason::Length);
                prop_assert!(serde_json::from_str::<Value>(&text).is_err(), "{} was whole", text);
            }
            Ok(())
        })
        .unwrap();
    assert!(whole * 10 > seed * 8, "{whole} of {seed} texts were whole");
}

#[test]
fn a_text_ends_where_it_may_and_where_it_must() {
    let mut engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    // The model would end at once, and is let as soon as there are five letters.
    let mut eager = request(&engine, &grammars, Grammar::Regex("[a-z]{5,}".to_owned()), 3);
    eager.bias = engine.eos.iter().map(|token| (*token, 100.0)).collect();
    let generated = run(&mut engine, eager.clone()).unwrap();
    let text = generated.text.unwrap();
    assert_eq!(generated.finish, FinishReason::Stop);
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let last = tokenizer.token_bytes(*generated.tokens.last().unwrap()).unwrap().len();
    assert!(text.len() >= 5 && text.len() - last < 5, "{text}");
    assert!(text.bytes().all(|byte| byte.is_ascii_lowercase()), "{text}");

    // It never would, and has to: nothing can follow.
    let mut talker =
        request(&engine, &grammars, Grammar::Choice(vec!["yes".into(), "no".into()]), 4);
    talker.bias = engine.eos.iter().map(|token| (*token, -100.0)).collect();
    let generated = run(&mut engine, talker).unwrap();
    assert_eq!(generated.finish, FinishReason::Stop);
    assert!(["yes", "no"].contains(&generated.text.as_deref().unwrap()));

    // Cut in the middle.
    let cut = Request { max_tokens: Some(2), ..eager };
    let generated = run(&mut engine, Request { bias: Vec::new(), ..cut }).unwrap();
    assert_eq!((generated.finish, generated.tokens.len()), (FinishReason::Length, 2));
}

#[test]
fn what_cannot_be_spelled_ends_the_text_with_an_error() {
    let mut engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    let special = engine.tokenizer.as_ref().unwrap().token_id("<|im_start|>").unwrap();
    let grammar = Grammar::Lark(format!("start: \"a\" <[{special}]>"));
    let request = request(&engine, &grammars, grammar, 1);
    let error = run(&mut engine, request).unwrap_err();
    assert!(matches!(error, EngineError::Grammar(GrammarError::Stuck { .. })), "{error:?}");
}

#[test]
fn a_schema_can_stand_within_a_grammar() {
    let mut engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    let schema = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 9}},
    });
    let (open, close) = ("<tool_call>\n{\"name\": \"weather\", \"arguments\": ", "}\n</tool_call>");
    let quoted = |text: &str| Value::from(text).to_string();
    let grammar = format!("start: {} %json {schema} {}", quoted(open), quoted(close));
    for seed in 0..5 {
        let request = request(&engine, &grammars, Grammar::Lark(grammar.clone()), seed);
        let generated = run(&mut engine, request).unwrap();
        assert_eq!(generated.finish, FinishReason::Stop);
        let text = generated.text.unwrap();
        let arguments = text.strip_prefix(open).and_then(|text| text.strip_suffix(close)).unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert!(arguments["city"].as_str().unwrap().chars().count() <= 9, "{arguments}");
    }
}

#[test]
fn thinking_comes_first_and_is_free() {
    let mut engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    let schema = json!({
        "type": "object", "required": ["sum"], "additionalProperties": false,
        "properties": {"sum": {"type": "integer"}},
    });
    let messages = [Message::new("user", "What is 7 plus 5?")];
    let render = RenderRequest { enable_thinking: Some(true), ..RenderRequest::new(&messages) };
    let rendered = engine.template.as_ref().unwrap().render(&render).unwrap();
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let tags = ThinkingTags::new("<think>", "</think>").unwrap();
    let prompt = tokenizer.encode(&rendered, SpecialTokens::Parse).unwrap();
    for budget in [None, Some(3)] {
        let request = Request {
            prompt: prompt.clone(),
            thinking: tags.state_at_end_of(&rendered),
            sampling: Sampling::default(),
            think_budget: budget,
            ..request(&engine, &grammars, Grammar::JsonSchema(schema.clone()), 1)
        };
        let generated = run(&mut engine, request).unwrap();
        let answer: Value = serde_json::from_str(generated.text.as_deref().unwrap()).unwrap();
        assert!(answer["sum"].is_i64(), "{answer}");
        assert!(generated.thinking.unwrap().len() > 3);
        assert_eq!(budget.is_some(), generated.thinking_tokens < 8, "{budget:?}");
    }
}

#[test]
fn texts_with_and_without_grammars_do_not_see_each_other() {
    let engine = open(&EngineOptions::default());
    let grammars = grammars(&engine);
    let requests: Vec<Request> = (0..6_u64)
        .map(|seed| {
            let schema = json!({"type": "array", "items": {"type": "string", "maxLength": 9}});
            let grammar = Grammar::JsonSchema(schema);
            let mut request = request(&engine, &grammars, grammar, seed);
            request.max_tokens = Some(40);
            if seed % 3 == 0 {
                request.constraint = None;
            }
            request
        })
        .collect();
    let stats = engine.stats_handle();
    let options = ScheduleOptions { sessions: 3, queue: 8, stall_max: Duration::from_secs(2) };
    let tokenizer = engine.tokenizer.map(Arc::new);
    let driven = Driven { runner: engine.runner, tokenizer, stats, disk: None };
    let scheduler = Scheduler::start(driven, options).unwrap();
    let push = |request: &Request| {
        let (send, ends) = std::sync::mpsc::channel();
        let listener = Box::new(move |update: Update<'_>| {
            match update {
                Update::Done(generated) => send.send(*generated).unwrap(),
                Update::Failed(error) => panic!("{error}"),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        scheduler.queue().push(vec![Job { request: request.clone(), listener }]).unwrap();
        ends
    };
    let alone: Vec<Generated> = requests.iter().map(|it| push(it).recv().unwrap()).collect();
    let together: Vec<_> = requests.iter().map(push).collect();
    for (ends, alone) in together.iter().zip(&alone) {
        let generated = ends.recv().unwrap();
        assert_eq!(generated.text, alone.text);
        assert_eq!(generated.logits_hash, alone.logits_hash);
    }
    scheduler.drain().unwrap();
}

#[test]
fn a_panic_elsewhere_is_reported_after_grammars_have_been_compiled() {
    let engine = open(&EngineOptions::default());
    let heard = Arc::new(AtomicUsize::new(0));
    let (count, before) = (Arc::clone(&heard), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() == Some("elsewhere") {
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            before(info);
        }
    }));
    // `llguidance` puts a hook of its own before whoever is there, to turn panics of its own into errors.
    grammars(&engine).constraint(Grammar::Json).unwrap();
    assert!(std::thread::spawn(|| panic!("elsewhere")).join().is_err());
    assert_eq!(heard.load(Ordering::Relaxed), 1);
}
