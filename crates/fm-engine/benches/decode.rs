//! Decode speed of a model with every expert it needs in memory, beside the memory bandwidth
//! measured right before: `cargo bench -p fm-engine --bench decode -- MODEL [MEMORY]`.
//!
//! The first lap over the tokens brings the experts in; the others are measured. The model is one of
//! `flash-moe synth`, or any other that knows tokens 0 to 63.
#![allow(clippy::print_stdout)]

use std::{ops::ControlFlow, path::PathBuf, time::Instant};

use fm_engine::{
    Engine, Load, Places, bytes::Bytes, limits::measure_memory, local::read_stats,
    options::EngineOptions,
};
use fm_model::runner::{Batch, Row, RowInput, Wants};

const TOKENS: u32 = 64;
const LAPS: usize = 5;

fn main() {
    // Cargo passes `--bench` to every bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(dir) = arguments.next().map(PathBuf::from) else {
        println!("usage: cargo bench -p fm-engine --bench decode -- MODEL [MEMORY]");
        return;
    };
    let memory = arguments.next().and_then(|text| Bytes::parse(&text)).map(|bytes| bytes.0);
    let options = EngineOptions { memory, context: Some(256), ..EngineOptions::default() };
    let places = Places { root: "/".into(), cache_dir: None };
    let mut engine =
        Engine::open(&dir, &options, Load::default(), &places).expect("the model opens");
    let stats = engine.stats_handle();
    lap(&mut engine);
    let mut ratios = Vec::new();
    for _ in 0..LAPS {
        let limit = measure_memory(engine.threads);
        let before = read_stats(&stats);
        let seconds = lap(&mut engine);
        let misses = (read_stats(&stats) - before).misses();
        let used = engine.footprint.active as f64 * f64::from(TOKENS) / seconds;
        println!(
            "{:6.2} tok/s   {:6.2} of {:6.2} GB/s   {:5.1} %   {misses} misses",
            f64::from(TOKENS) / seconds,
            used / 1e9,
            limit / 1e9,
            100.0 * used / limit
        );
        ratios.push(used / limit);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median {:.1} % of the memory bandwidth", 100.0 * ratios[LAPS / 2]);
}

/// Seconds for one token after the other in a fresh session.
fn lap(engine: &mut Engine) -> f64 {
    let session = engine.runner.open(256).expect("one session was planned");
    let mut batch = Batch::default();
    let started = Instant::now();
    for position in 0..TOKENS {
        let wants = Wants { logits: true, ..Wants::default() };
        let input = RowInput::Token(position);
        batch.rows.clear();
        batch.rows.push(Row { session, input, position, wants });
        let output = engine.runner.step(&batch, &mut |_| ControlFlow::Continue(()));
        assert!(output.expect("the step succeeds").spoiled.is_empty(), "no expert is lost");
    }
    let seconds = started.elapsed().as_secs_f64();
    engine.runner.close(session);
    seconds
}
