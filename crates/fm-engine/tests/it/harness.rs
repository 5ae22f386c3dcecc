//! The demonstration model through the engine.

use std::{ops::ControlFlow, path::Path};

use fm_engine::{Engine, Load, Places, options::EngineOptions};
use fm_model::{
    Runner,
    runner::{Batch, Row, RowInput, SessionId, Wants},
};
use fm_testkit::golden::demo_dir;

/// Free memory as the machine has it, and nothing written anywhere.
pub(crate) fn places() -> Places {
    Places { root: "/".into(), cache_dir: None }
}

pub(crate) fn open(options: &EngineOptions) -> Engine {
    open_at(&demo_dir(), options)
}

pub(crate) fn open_at(dir: &Path, options: &EngineOptions) -> Engine {
    open_with_marks(dir, options, 40)
}

/// With memory for so many places from which texts can go on.
pub(crate) fn open_with_marks(dir: &Path, options: &EngineOptions, marks: usize) -> Engine {
    // A small plan, and one thread: tests run side by side, and threads that wait for each other take a third of
    // the time of both cores then.
    let options = EngineOptions {
        memory: options.memory.or(Some(300_000_000)),
        context: options.context.or(Some(256)),
        prefill_chunk: options.prefill_chunk.or(Some(64)),
        threads: options.threads.or(Some(1)),
        ..options.clone()
    };
    let load = Load { sessions: 3, logits_rows: 64, marks, grammars: true, prefix_disk: true };
    Engine::open(dir, &options, load, &places()).unwrap()
}

/// Noise that is a prompt: 70 tokens cross a block of keys and values.
pub(crate) fn prompt() -> Vec<u32> {
    fm_testkit::noise::Noise::new(5).tokens(70, 2000)
}

pub(crate) fn row(session: SessionId, token: u32, position: u32) -> Row {
    let wants = Wants { logits: true, ..Wants::default() };
    Row { session, input: RowInput::Token(token), position, wants }
}

/// Bits of the logits after every token, taken in `chunk` tokens at a time.
pub(crate) fn bits(
    runner: &mut dyn Runner,
    session: SessionId,
    tokens: &[u32],
    chunk: usize,
) -> Vec<u32> {
    let mut bits = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let position = runner.position(session).unwrap();
        let rows = tokens.iter().zip(position..).map(|(token, at)| row(session, *token, at));
        let batch = Batch { rows: rows.collect(), hidden_layer: None };
        let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(output.spoiled.is_empty());
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
    }
    bits
}
