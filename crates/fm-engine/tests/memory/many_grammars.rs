//! Grammars come and go, and leave nothing behind.

use std::{ops::ControlFlow, sync::Arc, thread};

use fm_engine::{
    Engine, Load,
    generate::{Generation, Request},
    grammar::{Grammar, Grammars},
    local::read_stats,
    options::EngineOptions,
    sampler::Sampling,
};
use fm_testkit::{counting_alloc::live_bytes, golden::demo_dir};
use fm_text::ThinkingState;
use serde_json::json;

use crate::{alone, open};

/// Writes a few tokens under a schema of its own.
fn write(engine: &mut Engine, grammars: &Arc<Grammars>, seed: u64) {
    let name = format!("property {seed}");
    let schema =
        json!({"properties": {name.as_str(): {"pattern": format!("^(a|b){{{seed}}}c*$")}}});
    let request = Request {
        prompt: vec![5, 6, 7],
        sampling: Sampling { temperature: 1.5, seed, ..Sampling::default() },
        max_tokens: Some(20),
        eos: engine.eos.clone(),
        thinking: ThinkingState::Closed,
        constraint: Some(grammars.constraint(Grammar::JsonSchema(schema)).unwrap()),
        context: 256,
        ..Request::default()
    };
    let session = engine.runner.open(256).unwrap();
    let stats = engine.stats_handle();
    let (tokenizer, read) = (engine.tokenizer.as_ref(), || read_stats(&stats));
    let generation =
        Generation::new(engine.runner.as_mut(), session, request, tokenizer, &read).unwrap();
    generation.run(&mut |_| ControlFlow::Continue(())).unwrap();
    engine.runner.close(session);
}

#[test]
fn three_hundred_schemas_take_no_more_memory_than_a_hundred() {
    let _alone = alone();
    let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
    let load = Load { grammars: true, ..Load::default() };
    let mut engine = open(&demo_dir(), &options, load);
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let grammars =
        Grammars::build(tokenizer, engine.runner.vocab(), &engine.eos, engine.plan.grammars)
            .unwrap();
    (0..100).for_each(|seed| write(&mut engine, &grammars, seed));
    let before = live_bytes();
    (100..300).for_each(|seed| write(&mut engine, &grammars, seed));
    // The threads of texts that have ended may be on their way out.
    let grown = || live_bytes().saturating_sub(before);
    for _ in 0..10_000 {
        if grown() < 100_000 {
            return;
        }
        thread::park_timeout(std::time::Duration::from_millis(1));
    }
    panic!("{} bytes more", grown());
}
