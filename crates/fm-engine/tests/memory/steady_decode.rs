//! A steady step allocates nothing: scratch is planned, guards are pooled, batches are reused.

use std::{ops::ControlFlow, path::Path};

use fm_engine::{
    Load,
    generate::{Event, Generation, Request},
    local::read_stats,
    look_ahead::LookAhead,
    options::EngineOptions,
    sampler::Sampling,
};
use fm_model::runner::{Batch, Row, RowInput, Wants};
use fm_testkit::{
    counting_alloc::global_allocations,
    golden::{demo_dir, golden_dir},
};

use crate::{alone, open};

fn allocations_of_forty_steps(dir: &Path, slots: Option<usize>, sessions: u32) -> u64 {
    let options = EngineOptions {
        context: Some(256),
        slots,
        // As now and then all that it can do.
        look_ahead: LookAhead::Auto,
        ..EngineOptions::default()
    };
    let count = sessions as usize;
    let load = Load { sessions: count, logits_rows: count, ..Load::default() };
    let mut engine = open(dir, &options, load);
    let sessions: Vec<_> = (0..sessions).map(|_| engine.runner.open(256).unwrap()).collect();
    let mut batch = Batch::default();
    // Routes settle within the first sixty tokens: slots and tickets have been used by then. On a busy
    // machine a thread may begin later, and a thread that begins allocates; what a step allocates
    // comes again in every window.
    let (mut before, mut least) = (0, u64::MAX);
    for position in 0..221 {
        let count = global_allocations().count;
        if position > 60 && position % 40 == 20 {
            least = least.min(count - before);
        }
        if position % 40 == 20 {
            before = count;
        }
        batch.rows.clear();
        batch.rows.extend(sessions.iter().zip(0..).map(|(session, text)| Row {
            session: *session,
            input: RowInput::Token((position * 7 + text * 11) % 50),
            position,
            wants: Wants { logits: true, checkpoint: position % 8 == 0, ..Wants::default() },
        }));
        engine.runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    }
    least
}

/// The same for a text that is written: what grows with it grows now and then, not with every token.
fn allocations_of_forty_tokens() -> u64 {
    let options = EngineOptions { context: Some(512), ..EngineOptions::default() };
    let mut engine = open(&demo_dir(), &options, Load::default());
    let session = engine.runner.open(512).unwrap();
    let stats = engine.stats_handle();
    let read = || read_stats(&stats);
    let request = Request {
        prompt: vec![5, 17, 9],
        max_tokens: Some(400),
        context: 512,
        sampling: Sampling { temperature: 1.0, top_k: 20, ..Sampling::default() },
        bias: vec![(7, 1.0)],
        top_logprobs: Some(4),
        ..Request::default()
    };
    let tokenizer = engine.tokenizer.as_ref();
    let runner = engine.runner.as_mut();
    let generation = Generation::new(runner, session, request, tokenizer, &read).unwrap();
    let (mut tokens, mut before, mut least) = (0, 0, u64::MAX);
    let generated = generation.run(&mut |event| {
        if let Event::Token(_) = event {
            tokens += 1;
            if tokens % 40 == 0 {
                let count = global_allocations().count;
                if tokens > 80 {
                    least = least.min(count - before);
                }
                before = count;
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!(generated.unwrap().tokens.len(), 400);
    least
}

#[test]
fn a_steady_step_allocates_nothing() {
    let _alone = alone();
    assert_eq!(allocations_of_forty_tokens(), 0, "a text");
    let latent = golden_dir("deepseek_v3").join("mlx-4bit");
    for (dir, few) in [(demo_dir(), 40), (latent, 5)] {
        let name = dir.display();
        for sessions in [1, 3] {
            for slots in [None, Some(few)] {
                let count = allocations_of_forty_steps(&dir, slots, sessions);
                assert_eq!(count, 0, "{name}: {sessions} sessions, slots {slots:?}");
            }
        }
    }
}
