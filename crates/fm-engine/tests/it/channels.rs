//! Grammars where thoughts and answers are messages in channels, as gpt-oss writes them: with the
//! demonstration model's weights, and its other marks renamed.

use std::{ops::ControlFlow, sync::Arc};

use fm_engine::{
    Engine,
    generate::{Constrained, FinishReason, Generated, Generation, Request},
    grammar::{Grammar, Grammars, json_rule},
    local::read_stats,
    options::EngineOptions,
    sampler::Sampling,
};
use fm_testkit::{golden::demo_dir, noise::Noise};
use fm_text::{
    AnswerForm, Definitions, Dialect, SpecialTokens, ThinkingState, Tokenizer,
    tools::{Callable, Calls},
};
use serde_json::{Value, json};

use crate::harness::open;

const MARKS: [&str; 5] = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"];

struct Channels {
    engine: Engine,
    tokenizer: Tokenizer,
    grammars: Arc<Grammars>,
}

fn channels() -> Channels {
    let file = std::fs::read(demo_dir().join("tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&file).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let own = added.iter_mut().filter(|token| token["special"] == false);
    own.zip(MARKS).for_each(|(token, mark)| {
        token["content"] = mark.into();
        token["special"] = true.into();
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path(), None).unwrap();
    let engine = open(&EngineOptions::default());
    let grammars =
        Grammars::build(&tokenizer, engine.runner.vocab(), &engine.eos, engine.plan.grammars)
            .unwrap();
    Channels { engine, tokenizer, grammars }
}

fn dialect() -> &'static Dialect {
    Dialect::of_template("<|channel|>").unwrap()
}

fn tool() -> Value {
    let parameters = json!({
        "type": "object", "required": ["days"], "additionalProperties": false,
        "properties": {"days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    });
    json!({"type": "function", "function": {"name": "analysis_of", "parameters": parameters}})
}

fn callable(tool: &Value) -> Callable<'_> {
    Callable { name: "analysis_of", parameters: Some(&tool["function"]["parameters"]) }
}

impl Channels {
    fn id(&self, mark: &str) -> u32 {
        let id = self.tokenizer.token_id(mark).unwrap();
        assert!(self.tokenizer.is_special(id));
        id
    }

    fn request(&self, grammar: Grammar, constrained: Constrained, seed: u64) -> Request {
        let calls = (constrained != Constrained::Answer).then(|| Definitions::new(&[tool()]));
        Request {
            prompt: Noise::new(seed).tokens(12, 2000),
            sampling: Sampling { temperature: 2.0, seed, ..Sampling::default() },
            max_tokens: Some(220),
            eos: self.engine.eos.clone(),
            context: 256,
            constraint: Some(self.grammars.constraint(grammar).unwrap()),
            constrained,
            answer: AnswerForm { dialect: Some(dialect()), calls: calls.map(Arc::new) },
            ..Request::default()
        }
    }

    /// A request of which a third each begins with a thought, the answer and a call; one in four also with the rarer way
    /// to write a call.
    fn turn(&self, lark: &str, constrained: Constrained, seed: u64) -> Request {
        let mut request = self.request(Grammar::Calls(lark.to_owned()), constrained, seed);
        // A thought is closed after some tokens, or ends itself.
        request.think_budget = seed.is_multiple_of(2).then_some(9);
        let first = |text: &str| self.tokens(text)[0];
        let kinds = ["analysis", "final", "commentary"].map(first);
        let kind = kinds[seed as usize % kinds.len()];
        request.bias = vec![(self.id("<|end|>"), 4.0), (kind, 20.0)];
        if !seed.is_multiple_of(4) {
            // Many tokens begin the other way to write a call, and one a channel.
            request.bias.extend([" to", " t", " "].map(first).map(|token| (token, -100.0)));
        }
        request
    }

    fn run(&mut self, request: Request) -> Generated {
        let session = self.engine.runner.open(256).unwrap();
        let stats = self.engine.stats_handle();
        let read = || read_stats(&stats);
        let runner = self.engine.runner.as_mut();
        let generation =
            Generation::new(runner, session, request, Some(&self.tokenizer), &read).unwrap();
        let generated = generation.run(&mut |_| ControlFlow::Continue(())).unwrap();
        self.engine.runner.close(session);
        generated
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, SpecialTokens::Parse).unwrap()
    }
}

#[test]
fn calls_keep_to_their_schemas_where_the_model_may_also_answer() {
    let mut channels = channels();
    let tool = tool();
    let functions = [callable(&tool)];
    let lark =
        dialect().calls_in_text(Calls { functions: &functions, json: json_rule, thoughts: true });
    let (mut called, mut thought, mut answered) = (0, 0, 0);
    for seed in 0..36 {
        let request = channels.turn(&lark, Constrained::Calls, seed);
        let generated = channels.run(request);
        thought += usize::from(generated.thinking.is_some());
        for call in &generated.calls {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            let map = arguments.as_object().unwrap();
            let days = arguments["days"].as_f64();
            assert_eq!(call.name, "analysis_of");
            assert!(days.is_some_and(|days| days.fract() == 0.0), "{arguments}");
            assert!(map.keys().all(|key| key == "days" || key == "unit"), "{arguments}");
            called += 1;
        }
        let text = generated.text.unwrap();
        let whole = generated.finish == FinishReason::Stop;
        assert!(!whole || !text.contains("<|"), "{text}");
        answered += usize::from(generated.calls.is_empty() && !text.is_empty());
    }
    assert!(called > 5 && thought > 5 && answered > 5, "{called} {thought} {answered}");
}

#[test]
fn an_answer_of_a_given_form_may_be_a_call_instead() {
    let mut channels = channels();
    let tool = tool();
    let functions = [callable(&tool)];
    // A text that spells the end of a message.
    let note = "so <|end|><|start|> be it";
    let answer = json_rule(json!({
        "type": "object", "required": ["sum", "note"], "additionalProperties": false,
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}, "note": {"const": note}},
    }));
    let calls = Calls { functions: &functions, json: json_rule, thoughts: true };
    let lark = dialect().calls_or(calls, &answer).unwrap();
    let (mut called, mut thought, mut answered) = (0, 0, 0);
    for seed in 0..24 {
        let request = channels.turn(&lark, Constrained::Either, seed);
        let generated = channels.run(request);
        thought += usize::from(generated.thinking.is_some());
        let text = generated.text.unwrap();
        if generated.finish != FinishReason::Stop {
            continue;
        }
        if generated.calls.is_empty() {
            let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
            assert!(answer["sum"].is_u64() && answer["note"] == note, "{answer}");
            answered += 1;
        } else {
            let arguments: Value = serde_json::from_str(&generated.calls[0].arguments).unwrap();
            assert!(arguments["days"].is_number() && text.is_empty(), "{arguments} {text}");
            called += 1;
        }
    }
    assert!(called > 3 && thought > 5 && answered > 3, "{called} {thought} {answered}");
}

#[test]
fn an_answer_of_a_given_form_stands_in_its_channel_behind_a_thought() {
    let mut channels = channels();
    let schema = json!({
        "type": "object", "required": ["sum"], "additionalProperties": false,
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
    });
    let before = channels.tokens("<|channel|>analysis<|message|>");
    let between = channels.tokens("<|end|><|start|>assistant<|channel|>final<|message|>");
    let end = channels.id("<|end|>");
    for (seed, budget) in [(1, Some(7)), (2, None)] {
        let grammar = Grammar::JsonSchema(schema.clone());
        let mut request = channels.request(grammar.clone(), Constrained::Answer, seed);
        request.think_budget = budget;
        if budget.is_none() {
            request.bias = vec![(end, 9.0)];
        }
        let generated = channels.run(request);
        let answer: Value = serde_json::from_str(generated.text.as_deref().unwrap()).unwrap();
        assert!(answer["sum"].is_u64(), "{answer}");
        assert_eq!(generated.finish, FinishReason::Stop);
        assert!(generated.tokens.starts_with(&before));
        let at = generated.tokens.iter().position(|token| *token == end).unwrap();
        assert!(generated.tokens[at..].starts_with(&between), "{:?}", &generated.tokens[at..]);
        // What closes it is counted too.
        assert!(budget.is_none_or(|budget| generated.thinking_tokens == budget + 1));
        // Who does not want it thinks nothing.
        let mut request = channels.request(grammar, Constrained::Answer, seed);
        request.thinking = ThinkingState::Closed;
        let generated = channels.run(request);
        assert!(generated.thinking.is_none());
        assert!(generated.tokens.starts_with(&channels.tokens("<|channel|>final<|message|>")));
        assert!(serde_json::from_str::<Value>(&generated.text.unwrap()).is_ok());
    }
}

#[test]
fn a_thought_that_is_closed_for_the_model_may_be_followed_by_a_call() {
    let mut channels = channels();
    let think = "<|channel|>analysis<|message|>";
    let end = channels.id("<|end|>");
    // What the model wants to say all the time: a call begins with it.
    let wish = channels.tokens(" to=functions.")[0];
    let message = channels.tokens("<|end|><|start|>assistant");
    let answer = channels.tokens("<|channel|>final<|message|>");
    for (calls, behind) in [(Some(&[tool()][..]), vec![wish]), (None, answer)] {
        let mut request = channels.request(Grammar::Json, Constrained::Answer, 3);
        request.constraint = None;
        request.answer.calls = calls.map(|tools| Arc::new(Definitions::new(tools)));
        request.think_budget = Some(7);
        request.prompt.extend(channels.tokens(think));
        think.clone_into(&mut request.opening);
        request.bias = vec![(wish, 100.0), (end, -100.0)];
        request.max_tokens = Some(40);
        let tokens = channels.run(request).tokens;
        let at = tokens.iter().position(|token| *token == end).unwrap();
        assert!(tokens[at..].starts_with(&[message.clone(), behind].concat()), "{tokens:?}");
    }
}
