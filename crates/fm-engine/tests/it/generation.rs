//! The generation loop on the demonstration model.

use std::ops::ControlFlow;

use fm_engine::{
    Engine, EngineError, Load,
    generate::{Event, FinishReason, Generated, Generation, Request},
    local::read_stats,
    memory_plan::PlanError,
    options::EngineOptions,
    session::Conversation,
};
use fm_model::load::WeightMemory;
use fm_testkit::golden::demo_dir;
use fm_text::{Channel, Message, RenderRequest, SpecialTokens, ThinkingState, ThinkingTags};

use crate::{
    harness::{open, open_at, places},
    prefix::{family_dir, fresh, request, tokens},
};

fn chat(engine: &Engine, text: &str, think: bool) -> Request {
    let messages = [Message::new("user", text)];
    let render = RenderRequest { enable_thinking: Some(think), ..RenderRequest::new(&messages) };
    let rendered = engine.template.as_ref().unwrap().render(&render).unwrap();
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let tags = ThinkingTags::new("<think>", "</think>").unwrap();
    Request {
        prompt: tokenizer.encode(&rendered, SpecialTokens::Parse).unwrap(),
        max_tokens: Some(120),
        eos: engine.eos.clone(),
        thinking: tags.state_at_end_of(&rendered),
        context: engine.plan.context,
        ..Request::default()
    }
}

fn generate(
    engine: &mut Engine,
    request: Request,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Generated, EngineError> {
    let session = engine.runner.open(engine.plan.context).unwrap();
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let tokenizer = engine.tokenizer.as_ref();
    let generation = Generation::new(engine.runner.as_mut(), session, request, tokenizer, &read)?;
    let generated = generation.run(on_event);
    engine.runner.close(session);
    generated
}

fn quietly(engine: &mut Engine, request: Request) -> Result<Generated, EngineError> {
    generate(engine, request, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn it_answers_and_stops_by_itself() {
    let mut engine = open(&EngineOptions::default());
    let request = chat(&engine, "What is the capital of France?", false);
    let generated = quietly(&mut engine, request).unwrap();
    let text = generated.text.unwrap();
    assert!(text.contains("Paris"), "{text}");
    assert_eq!(generated.finish, FinishReason::Stop);
    assert_eq!(generated.thinking, None);
}

#[test]
fn streamed_pieces_are_the_text() {
    let mut engine = open(&EngineOptions::default());
    let request = chat(&engine, "What is 7 plus 5?", true);
    assert_eq!(request.thinking, ThinkingState::Open);
    let (mut answer, mut thinking, mut tokens) = (String::new(), String::new(), Vec::new());
    let generated = generate(&mut engine, request, &mut |event| {
        match event {
            Event::Text(Channel::Answer, text) => answer.push_str(text),
            Event::Text(Channel::Thinking, text) => thinking.push_str(text),
            Event::Token(chosen) => tokens.push(chosen.token),
            Event::Call(..) => panic!("nobody offered a tool"),
            Event::Prefill { done, total } => assert!(done <= total),
            Event::Said { .. } => panic!("nobody asked for log-probabilities"),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(generated.text.unwrap(), answer);
    assert_eq!(generated.thinking.unwrap(), thinking);
    assert_eq!(generated.tokens, tokens);
    assert!(!thinking.is_empty() && !thinking.contains("think>"), "{thinking}");
}

#[test]
fn a_token_limit_a_stop_string_and_the_caller_end_it() {
    let mut engine = open(&EngineOptions::default());
    let story =
        |engine: &Engine| chat(engine, "Write a story about a robot who loves music.", false);
    let request = Request { max_tokens: Some(7), ..story(&engine) };
    let generated = quietly(&mut engine, request).unwrap();
    assert_eq!((generated.tokens.len(), generated.finish), (7, FinishReason::Length));

    let whole = story(&engine);
    let whole = quietly(&mut engine, whole).unwrap().text.unwrap();
    // A string in the middle that begins and ends inside of tokens.
    let stop: String = whole.chars().skip(41).take(9).collect();
    let request = Request { stop: vec![stop.clone()], ..story(&engine) };
    let generated = quietly(&mut engine, request).unwrap();
    assert_eq!(generated.finish, FinishReason::StopString(0));
    assert_eq!(generated.text.unwrap(), whole[..whole.find(&stop).unwrap()]);

    let request = story(&engine);
    let mut seen = 0;
    let generated = generate(&mut engine, request, &mut |event| {
        seen += u32::from(matches!(event, Event::Token(_)));
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!((generated.tokens.len(), generated.finish), (3, FinishReason::Cancelled));
}

#[test]
fn the_context_is_filled_to_the_last_token_and_not_further() {
    let mut engine = open(&EngineOptions { context: Some(64), ..EngineOptions::default() });
    let request = chat(&engine, "Write a story about a robot who loves music.", false);
    let prompt = request.prompt.len();
    let generated = quietly(&mut engine, request.clone()).unwrap();
    assert_eq!(generated.finish, FinishReason::Context);
    // The last token needs no place of its own: nothing is fed after it.
    assert_eq!(prompt + generated.tokens.len(), 64 + 1);

    let exact = Request { prompt: request.prompt.repeat(4)[..64].to_vec(), ..request.clone() };
    assert_eq!(quietly(&mut engine, exact).unwrap().tokens.len(), 1);
    let long = Request { prompt: request.prompt.repeat(4)[..65].to_vec(), ..request };
    let error = quietly(&mut engine, long).unwrap_err().to_string();
    assert_eq!(error, "the prompt has 65 tokens, the context holds 64");
}

#[test]
fn prompts_of_one_token_of_none_and_of_unknown_ones() {
    let mut engine = open(&EngineOptions::default());
    let request = Request { max_tokens: Some(3), ..chat(&engine, "x", false) };
    let one = Request { prompt: vec![11], ..request.clone() };
    assert!(quietly(&mut engine, one).is_ok());
    let none = Request { prompt: Vec::new(), ..request.clone() };
    assert!(matches!(quietly(&mut engine, none), Err(EngineError::EmptyPrompt)));
    let unknown = Request { prompt: vec![1, 2048], ..request };
    let error = quietly(&mut engine, unknown).unwrap_err().to_string();
    assert_eq!(error, "token 2048 is not in the vocabulary of 2048 tokens");
}

#[test]
fn a_token_without_logits_can_be_barred_and_not_be_raised() {
    let mut engine = open(&EngineOptions::default());
    let plain = Request { max_tokens: Some(3), ..chat(&engine, "x", false) };
    let with = |bias| Request { bias: vec![(2048, bias)], ..plain.clone() };
    let barred = quietly(&mut engine, with(f32::NEG_INFINITY)).unwrap();
    assert_eq!(barred.tokens, quietly(&mut engine, plain.clone()).unwrap().tokens);
    let error = quietly(&mut engine, with(1.0)).unwrap_err().to_string();
    assert_eq!(error, "token 2048 is not in the vocabulary of 2048 tokens");
}

#[test]
fn a_think_budget_closes_the_block_and_an_answer_follows() {
    let mut engine = open(&EngineOptions::default());
    let free = chat(&engine, "What is 7 plus 5?", true);
    let budget = Request { think_budget: Some(5), ..free.clone() };
    let free = quietly(&mut engine, free).unwrap();
    let short = quietly(&mut engine, budget).unwrap();
    let (long, short_thinking) = (free.thinking.unwrap(), short.thinking.unwrap());
    assert!(short_thinking.len() < long.len(), "{short_thinking} / {long}");
    assert!(!short.text.unwrap().is_empty());
    assert_eq!(short.finish, FinishReason::Stop);
    let none = Request { think_budget: Some(0), ..chat(&engine, "What is 7 plus 5?", true) };
    let none = quietly(&mut engine, none).unwrap();
    // The tokens that close the block are the text's own, and no thought.
    assert_eq!(none.thinking.unwrap_or_default().trim(), "");
    assert!(!none.text.unwrap().is_empty());
}

/// It does not know that it has closed its thoughts, goes on with them and closes them.
#[test]
fn an_answer_does_not_close_a_block_that_was_closed_in_its_place() {
    let mut engine = open(&EngineOptions::default());
    for budget in [0, 1] {
        let asked = Request { think_budget: Some(budget), ..chat(&engine, "2+2?", true) };
        let text = quietly(&mut engine, asked).unwrap().text.unwrap();
        assert!(!text.is_empty() && !text.contains("</think>"), "{budget}: {text}");
    }
}

#[test]
fn a_think_minimum_keeps_the_block_open_and_changes_nothing_else() {
    let mut engine = open(&EngineOptions::default());
    let free = chat(&engine, "What is 7 plus 5?", true);
    let at_least = |think_min| Request { think_min, max_tokens: Some(400), ..free.clone() };
    let thought = quietly(&mut engine, at_least(0)).unwrap();
    let tokens = thought.thinking_tokens;
    let same = quietly(&mut engine, at_least(tokens - 1)).unwrap();
    assert_eq!((same.tokens, same.logits_hash), (thought.tokens.clone(), thought.logits_hash));
    let longer = quietly(&mut engine, at_least(tokens + 20)).unwrap();
    assert!(longer.thinking_tokens > tokens + 20, "{} of {tokens}", longer.thinking_tokens);
    assert_eq!(longer.tokens[..tokens - 1], thought.tokens[..tokens - 1]);
    let both = Request { think_budget: Some(tokens + 30), ..at_least(1000) };
    let both = quietly(&mut engine, both).unwrap();
    assert!(both.thinking_tokens >= tokens + 30 && both.text.is_some(), "the budget closes it");
}

#[test]
fn a_saved_conversation_goes_on_with_the_same_bits() {
    let mut engine = open(&EngineOptions::default());
    let story = chat(&engine, "Write a story about a robot who loves music.", false);
    let whole = quietly(&mut engine, Request { max_tokens: Some(30), ..story.clone() }).unwrap();

    let session = engine.runner.open(256).unwrap();
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let first = Request { max_tokens: Some(12), ..story.clone() };
    let generation = Generation::new(engine.runner.as_mut(), session, first, None, &read).unwrap();
    let first = generation.run(&mut |_| ControlFlow::Continue(())).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("conversation");
    let tokens = [story.prompt.as_slice(), &first.tokens].concat();
    Conversation::new(Vec::new(), tokens.clone()).save(&mut engine, session, &path).unwrap();
    drop(engine);

    let mut engine = open(&EngineOptions { slots: Some(6), ..EngineOptions::default() });
    let (conversation, session) = Conversation::load(&mut engine, &path).unwrap();
    assert_eq!(conversation.tokens, tokens);
    let rest = Request { prompt: tokens, max_tokens: Some(18), ..story };
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let generation = Generation::new(engine.runner.as_mut(), session, rest, None, &read).unwrap();
    let rest = generation.run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(rest.prefill.tokens, 1, "the session holds all but the latest token");
    assert_eq!([first.tokens, rest.tokens].concat(), whole.tokens);
}

/// A template that leaves thoughts out of earlier turns changes them from the first thought on.
#[test]
fn a_conversation_that_reads_otherwise_is_taken_over_as_far_as_it_does_not() {
    for (family, taken) in [("qwen3_moe", 70), ("gpt_oss", 70), ("qwen3_next", 0)] {
        let dir = family_dir(family);
        let mut engine = open_at(&dir, &EngineOptions::default());
        let run = |engine: &mut Engine, session, prompt: &[u32]| {
            let stats = engine.stats_handle();
            let read = || read_stats(&stats);
            let request = request(prompt.to_vec());
            let runner = engine.runner.as_mut();
            let generation = Generation::new(runner, session, request, None, &read).unwrap();
            generation.run(&mut |_| ControlFlow::Continue(())).unwrap()
        };
        let first = tokens(1, 90);
        let session = engine.runner.open(256).unwrap();
        let said = run(&mut engine, session, &first).tokens;
        let conversation = Conversation::new(Vec::new(), [first.clone(), said].concat());
        let next = [&first[..70], &tokens(2, 30)].concat();
        let (session, reused) = conversation.reuse(&mut engine, session, &next).unwrap();
        assert_eq!(reused, taken, "{family}");
        let got = run(&mut engine, session, &next).logits_hash;
        let want = fresh(&mut open_at(&dir, &EngineOptions::default()), request(next)).logits_hash;
        assert_eq!(got, want, "{family}");
    }
}

#[test]
fn a_conversation_that_cannot_be_saved_leaves_nothing_and_the_earlier_one() {
    let mut engine = open(&EngineOptions::default());
    let session = engine.runner.open(256).unwrap();
    engine.runner.close(session);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("conversation");
    std::fs::write(&path, "earlier").unwrap();
    Conversation::default().save(&mut engine, session, &path).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"earlier");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_plan_that_cannot_work_is_refused_with_numbers() {
    let refuse = |options: EngineOptions| {
        let load = fm_engine::Load::default();
        let dir = fm_testkit::golden::demo_dir();
        let error = fm_engine::engine::plan(&dir, &options, load, &places()).unwrap_err();
        error.to_string()
    };
    let small = refuse(EngineOptions { memory: Some(20_000_000), ..EngineOptions::default() });
    assert!(small.contains("20.00 MB is too small: this model needs at least "), "{small}");
    let long = refuse(EngineOptions { context: Some(5000), ..EngineOptions::default() });
    assert_eq!(long, "a context of 5000 tokens is longer than the model's own 4096");
    let many = refuse(EngineOptions { top_k: Some(33), ..EngineOptions::default() });
    assert_eq!(many, "--k 33 is more than the 32 experts of a layer");
    let wide = EngineOptions {
        memory: Some(34_000_000),
        context: Some(4096),
        prefill_chunk: Some(16),
        ..EngineOptions::default()
    };
    assert!(refuse(wide).starts_with("a context of 4096 tokens takes 8.39 MB"));
}

#[test]
fn what_a_refusal_says_is_needed_is_enough() {
    let plan = |options: EngineOptions| {
        let load = fm_engine::Load::default();
        let dir = fm_testkit::golden::demo_dir();
        fm_engine::engine::plan(&dir, &options, load, &places()).map(|planned| planned.plan)
    };
    for context in [None, Some(1024)] {
        let with = |memory| EngineOptions { memory: Some(memory), context, ..Default::default() };
        let mut memory = 1_000_000;
        while let Err(EngineError::Plan(error)) = plan(with(memory)) {
            memory = match error {
                PlanError::BudgetTooSmall { trunk, state, experts, overhead, .. } => {
                    assert_eq!(memory, 1_000_000, "one refusal names it");
                    trunk + state + experts + overhead
                }
                PlanError::Context { budget, left, bytes, .. } => budget + bytes - left,
                error => panic!("{error}"),
            };
        }
        let least = plan(with(memory)).unwrap();
        assert!(least.total() <= memory, "{context:?}");
        plan(with(memory - 100_000)).unwrap_err();
    }
}

/// Bytes of this process that cannot be paged out.
#[cfg(target_os = "linux")]
fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    1024 * line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_locked_trunk_stays_or_is_refused_with_the_numbers() {
    let options = EngineOptions {
        trunk_memory: WeightMemory::Locked,
        memory: Some(300_000_000),
        ..EngineOptions::default()
    };
    match Engine::open(&demo_dir(), &options, Load::default(), &places()) {
        Ok(engine) => assert!(locked_bytes() > engine.plan.trunk / 2),
        // What the system allows depends on who runs the tests.
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("of weights in memory, this process may lock "), "{text}");
            assert!(error.hint().unwrap().contains("ulimit -l"));
        }
    }
}
